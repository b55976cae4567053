//! A store of blocks that another process replicates: a write is copied, hashed and replicated by
//! one run of a graph, and acknowledged once the replica has it.
//!
//! ```text
//! $ cargo run --release --example block_store -- replica 127.0.0.1:7081
//! $ block_store serve 127.0.0.1:7080 --replica 127.0.0.1:7081          (another terminal)
//! $ block_store write 127.0.0.1:7080 Cargo.lock
//! $ block_store read 127.0.0.1:7080 1000
//! ```
//!
//! Kill the replica, even under load: writes continue, and the next replica at its address is
//! brought up to date. Kill the primary: the next primary loads what the replica has. Acknowledged
//! writes are lost if both die, or if one dies while the other is brought up to date. [`store`]
//! says when a write waits for a replica that cannot be reached.

#[path = "../arrivals/mod.rs"]
mod arrivals;
mod client;
mod follow;
mod layout;
mod replica;
mod server;
mod store;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_doca::{Device, WorkQ};

use client::Client;
use follow::Follower;
use layout::{BLOCK, Layout};
use store::Store;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

const HELP: &str = "\
Stores blocks of up to 65536 bytes, which another process replicates.

  block_store replica ADDRESS      lends memory to a primary, at a TCP address
  block_store serve ADDRESS        is the primary
  block_store write ADDRESS FILE   writes a file, from block 0 on
  block_store read ADDRESS BYTES   writes so many bytes to the standard output

  --replica ADDRESS  of a primary (default: none)
  --idle MS          how long a client of a primary may ask for nothing (default: 60000)
  --blocks N         of a primary and its replica: the same number (default: 1024)
  --device NAME      the device (default: any)
  --patience MS      how long a client tries to reach the primary (default: 10000)
  -h, --help         this
";

fn main() -> ExitCode {
    let ended = match Args::parse(std::env::args().skip(1)) {
        Ok(Some(args)) => run(&args),
        Ok(None) => write!(io::stdout(), "{HELP}").map_err(Error::from),
        Err(error) => Err(format!("{error}: see block_store -h").into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "block_store: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

struct Args {
    words: Vec<String>,
    replica: Option<SocketAddr>,
    blocks: usize,
    device: Option<String>,
    patience: Duration,
    idle: Duration,
}

impl Args {
    /// Parses the arguments. Returns `None` if they ask for help.
    fn parse(mut from: impl Iterator<Item = String>) -> Result<Option<Args>> {
        let mut args = Args {
            words: Vec::new(),
            replica: None,
            blocks: 1024,
            device: None,
            patience: Duration::from_secs(10),
            idle: Duration::from_secs(60),
        };
        while let Some(word) = from.next() {
            if word == "-h" || word == "--help" {
                return Ok(None);
            }
            if !word.starts_with("--") {
                args.words.push(word);
                continue;
            }
            let value = from.next().ok_or_else(|| format!("{word} needs a value"))?;
            let wrong = |error: &dyn std::fmt::Display| format!("{word} {value}: {error}");
            match &*word {
                "--replica" => args.replica = Some(value.parse().map_err(|error| wrong(&error))?),
                "--blocks" => match value.parse().map_err(|error| wrong(&error))? {
                    blocks @ 1..=1_048_576 => args.blocks = blocks,
                    _ => return Err(wrong(&"there are 1 to 1048576").into()),
                },
                "--device" => args.device = Some(value),
                "--patience" | "--idle" => {
                    let millis = value.parse().map_err(|error| wrong(&error))?;
                    let millis = Duration::from_millis(millis);
                    match &*word {
                        "--idle" => args.idle = millis,
                        _ => args.patience = millis,
                    }
                }
                _ => return Err(format!("there is no flag {word}").into()),
            }
        }
        Ok(Some(args))
    }
}

fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let device = match &args.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let layout = Layout {
            blocks: args.blocks,
        };
        let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
        match words[..] {
            ["replica", addr] => {
                let addr: SocketAddr = addr.parse()?;
                replica::serve(addr.into(), &device, layout).await
            }
            ["serve", addr] => {
                let store = Arc::new(Store::new(&device, layout)?);
                if let Some(addr) = args.replica {
                    Follower::new(&store, addr.into())?.begin().await?;
                }
                server::serve(addr.parse()?, store, args.idle).await
            }
            ["write", addr, file] => {
                let bytes = Bytes::from(std::fs::read(file)?);
                let mut client = client(args, addr, &device)?;
                for (block, at) in (0..bytes.len()).step_by(BLOCK).enumerate() {
                    let end = bytes.len().min(at + BLOCK);
                    client.put(block, &bytes.slice(at..end)).await?;
                }
                let from = client.registers_from;
                say(&format!("{} bytes; registered from {from} on", bytes.len()));
                Ok(())
            }
            ["read", addr, bytes] => {
                let (mut client, mut left) = (client(args, addr, &device)?, bytes.parse()?);
                for block in 0.. {
                    if left == 0 {
                        break;
                    }
                    let data = client.get(block).await?.unwrap_or_default().1;
                    let len = data.len().min(left);
                    if len == 0 {
                        return Err(format!("block {block} was never written").into());
                    }
                    io::stdout().write_all(&data[..len])?;
                    left -= len;
                }
                Ok(())
            }
            _ => Err("what? replica, serve, write or read: see block_store -h".into()),
        }
    })
}

fn client(args: &Args, addr: &str, device: &Device) -> Result<Client> {
    let workq = WorkQ::builder().build()?;
    Client::new(addr.parse()?, device, &workq, args.patience)
}
