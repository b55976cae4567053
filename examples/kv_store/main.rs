//! A key-value store whose clients read values directly from its memory, and write by messages. Its
//! values survive if the server is killed.
//!
//! ```text
//! $ cargo run --release --example kv_store -- serve 127.0.0.1:7070
//! $ kv_store put 127.0.0.1:7070 colour green                  (another terminal)
//! $ kv_store get 127.0.0.1:7070 colour
//! $ kv_store load 127.0.0.1:7070 --clients 16 --busy
//! $ kv_store load 127.0.0.1:7070 --clients 16 --tcp
//! ```
//!
//! The guarantees, and why they hold, are at the head of [`store`] and of [`client`]. You can copy
//! the file `client.rs` into your own program. The memory is a memfd that [`keeper`] keeps.

#[path = "../arrivals/mod.rs"]
mod arrivals;
mod client;
#[path = "../file_limit/mod.rs"]
mod file_limit;
mod keeper;
mod load;
mod memory;
mod server;
mod store;
mod wire;

use std::collections::HashMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio_doca::{Device, Mode, WorkQ};

use client::Client;
use load::Load;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

const HELP: &str = "\
Keeps values, which clients read from its memory by themselves.

  kv_store serve ADDRESS               serves at a TCP address, as long as it is not killed itself
  kv_store get ADDRESS KEY             prints the value, or ends with 3
  kv_store put ADDRESS KEY VALUE
  kv_store delete ADDRESS KEY
  kv_store load ADDRESS                measures gets

  --device NAME     the device (default: any)
  --memory BYTES    of the server, index included (default: 67108864)
  --patience MS     how long get, put and delete try to reach the server (default: 10000)
  --clients N       of a load (default: 16)
  --value BYTES     of each value of a load (default: 1024)
  --keys N          of a load (default: 1000)
  --seconds N       of a load (default: 2)
  --puts PERCENT    of a load (default: 0)
  --busy, --hybrid  the mode of its clients (default: event-driven)
  --threads N       of its clients (default: one for each CPU)
  --tcp             by TCP: the server answers gets
  --depth N         gets of a TCP client that are on their way (default: 32)
  -h, --help        this
";

/// The exit code if there is no such key.
const ABSENT: u8 = 3;

fn main() -> ExitCode {
    let ended = match Args::parse(std::env::args().skip(1)) {
        Ok(Some(args)) => run(&args),
        Ok(None) => write!(io::stdout(), "{HELP}")
            .map(|()| ExitCode::SUCCESS)
            .map_err(Error::from),
        Err(error) => Err(format!("{error}: see kv_store -h").into()),
    };
    ended.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "kv_store: {error}");
        ExitCode::from(1)
    })
}

struct Args {
    words: Vec<String>,
    flags: HashMap<String, String>,
}

const SWITCHES: [&str; 3] = ["--busy", "--hybrid", "--tcp"];

/// Returns the flags that a command takes besides `--device`; `None` if there is no such command.
fn flags_of(command: &str) -> Option<&'static [&'static str]> {
    Some(match command {
        "serve" => &["--memory"],
        "server" => &[],
        "get" | "put" | "delete" => &["--patience"],
        "load" => &[
            "--clients",
            "--value",
            "--keys",
            "--seconds",
            "--puts",
            "--busy",
            "--hybrid",
            "--threads",
            "--tcp",
            "--depth",
        ],
        _ => return None,
    })
}

impl Args {
    /// Parses the arguments. Returns `None` if they ask for help.
    fn parse(mut from: impl Iterator<Item = String>) -> Result<Option<Args>> {
        let (mut words, mut flags) = (Vec::new(), HashMap::new());
        while let Some(word) = from.next() {
            if word == "-h" || word == "--help" {
                return Ok(None);
            }
            if !word.starts_with("--") {
                words.push(word);
                continue;
            }
            let value = match SWITCHES.contains(&&*word) {
                true => Some(String::new()),
                // HELP lists a flag that takes a value with a space and the value after it.
                false if HELP.contains(&format!("  {word} ")) => from.next(),
                false => return Err(format!("there is no flag {word:?}").into()),
            };
            let value = value.ok_or_else(|| format!("{word} needs a value"))?;
            flags.insert(word, value);
        }
        if let Some(known) = words.first().and_then(|command| flags_of(command)) {
            let takes = |flag: &str| flag == "--device" || known.contains(&flag);
            if let Some(flag) = flags.keys().find(|flag| !takes(flag)) {
                return Err(format!("{:?} does not take {flag}", words[0]).into());
            }
        }
        Ok(Some(Args { words, flags }))
    }

    fn number(&self, flag: &str, default: u64) -> Result<u64> {
        let number = self
            .flags
            .get(flag)
            .map_or(Ok(default), |text| text.parse());
        number.map_err(|error| format!("{flag}: {error}").into())
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.contains_key(flag)
    }

    fn load(&self) -> Result<Load> {
        let number = |flag, default| match self.number(flag, default)? {
            0 => Err(Error::from(format!("{flag} 0: at least 1"))),
            number => Ok(number as usize),
        };
        let spin = Duration::from_micros(30);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Load {
            clients: number("--clients", 16)?,
            value: number("--value", 1024)?,
            keys: number("--keys", 1000)?,
            time: Duration::from_secs(self.number("--seconds", 2)?),
            mode: match (self.has("--tcp"), self.has("--busy"), self.has("--hybrid")) {
                (true, ..) => None,
                (_, true, _) => Some(Mode::BusyPoll),
                (_, _, true) => Some(Mode::Hybrid { spin }),
                _ => Some(Mode::EventDriven),
            },
            threads: number("--threads", cpus as u64)?,
            depth: number("--depth", 32)?,
            puts: self.number("--puts", 0)?,
        })
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    if let ["serve", address] = words[..] {
        let device = args.flags.get_key_value("--device");
        let device = device.map(|(flag, name)| [flag.clone(), name.clone()]);
        let flags: Vec<String> = device.into_iter().flatten().collect();
        let memory = args.number("--memory", 64 << 20)?;
        return keeper::keep(address, memory.try_into()?, &flags);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let device = match args.flags.get("--device") {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let patience = Duration::from_millis(args.number("--patience", 10_000)?);
        let workq = WorkQ::builder().build()?;
        let client = |address| Client::new(address, &device, &workq, patience);
        match words[..] {
            // The keeper starts the server by this command.
            ["server", address, keeper] => {
                keeper::end_with(keeper.parse()?)?;
                server::serve(address, &device).await?;
            }
            ["load", address] => load::run(address, &device, args.load()?).await?,
            ["get", address, key] => match client(address)?.get(key.as_bytes()).await? {
                Some(value) => io::stdout().write_all(&value.data)?,
                None => return Ok(ExitCode::from(ABSENT)),
            },
            ["put", address, key, value] => {
                client(address)?
                    .put(key.as_bytes(), value.as_bytes())
                    .await?;
            }
            ["delete", address, key] => match client(address)?.delete(key.as_bytes()).await? {
                Some(_) => {}
                None => return Ok(ExitCode::from(ABSENT)),
            },
            _ => return Err("what? serve, get, put, delete or load: see kv_store -h".into()),
        }
        Ok(ExitCode::SUCCESS)
    })
}
