//! What `sync_event_host` and `sync_event_dpu` share: the flags of DOCA's samples, how the two processes meet, and the two flavours.
//!
//! They meet at a Unix socket with an abstract name, which the PCI address of the host's function makes. Nothing else but the blob goes there, and
//! only between processes of one user.
#![allow(dead_code, unreachable_pub, reason = "each example uses its own part")]

use std::io::{self, ErrorKind as Io, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener as Listener, UnixStream as Stream};
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_doca::{
    BlockingSyncEvent, Device, ImportedSyncEvent, PciAddr, SyncEvent, SyncEventBuilder, WorkQ,
};

pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// How long one waits for the other.
const LIMIT: Duration = Duration::from_secs(30);
/// How often a listener is looked for.
const AGAIN: Duration = Duration::from_millis(10);
/// The longest message.
const MESSAGE: usize = 1024;

/// What was asked for.
pub struct Args {
    pub device: String,
    /// On the DPU.
    pub representor: Option<PciAddr>,
    pub asynchronous: bool,
    pub depth: u32,
    pub atomic: bool,
    log_level: u32,
}

/// One of the two examples.
pub struct Sample {
    pub name: &'static str,
    pub about: &'static str,
    pub on_dpu: bool,
}

impl Sample {
    fn help(&self) -> String {
        let representor = match self.on_dpu {
            true => "\n  -r, --rep-pci-addr PCI    PCI address of the host's function",
            false => "",
        };
        format!(
            "{}\n\nusage: {} -d PCI [FLAG]...\n\n  -h, --help                this\n  -v, --version             version of the library\n  -l, --log-level N         \
             20 critical, 30 error, 40 warning, 50 info (default), 60 debug\n  -d, --dev-pci-addr PCI    PCI address of the device{representor}\n      --async               \
             by jobs on a WorkQ (default: blocking calls)\n      --qdepth N            depth of that WorkQ (default: 10)\n      --atomic              add to the event \
             (default: set it)\n",
            self.about, self.name
        )
    }

    /// None if it was answered.
    fn parse(&self, mut words: impl Iterator<Item = String>) -> Result<Option<Args>> {
        let see = format!("see {} -h", self.name);
        let (mut device, mut representor) = (None, None);
        let mut args = Args {
            device: String::new(),
            representor: None,
            asynchronous: false,
            depth: 10,
            atomic: false,
            log_level: 50,
        };
        while let Some(word) = words.next() {
            let (flag, joined) = match word.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
                _ => (&word[..], None),
            };
            let mut value = || {
                let value = joined.clone().or_else(|| words.next());
                value
                    .filter(|value| !value.is_empty())
                    .ok_or(format!("{flag} needs a value: {see}"))
            };
            let number = |text: String| -> Result<u32> {
                let number = text.parse();
                Ok(number.map_err(|error| format!("{flag} {text:?}: {error}"))?)
            };
            match flag {
                "-h" | "--help" => {
                    write!(io::stdout(), "{}", self.help())?;
                    return Ok(None);
                }
                "-v" | "--version" => {
                    writeln!(io::stdout(), "{} {}", self.name, env!("CARGO_PKG_VERSION"))?;
                    return Ok(None);
                }
                "-l" | "--log-level" => args.log_level = number(value()?)?,
                "-d" | "--dev-pci-addr" => device = Some(value()?),
                "-r" | "--rep-pci-addr" if self.on_dpu => representor = Some(value()?),
                "--async" => args.asynchronous = true,
                "--qdepth" => args.depth = number(value()?)?,
                "--atomic" => args.atomic = true,
                _ => return Err(format!("there is no flag {word:?}: {see}").into()),
            }
        }
        args.device = device.ok_or(format!("-d is needed: {see}"))?;
        args.representor = match representor {
            Some(text) => Some(
                text.parse()
                    .map_err(|error| format!("-r {text:?}: {error}"))?,
            ),
            None if self.on_dpu => return Err(format!("-r is needed: {see}").into()),
            None => None,
        };
        if !matches!(args.log_level, 20 | 30 | 40 | 50 | 60) {
            return Err(format!("there is no log level {}: {see}", args.log_level).into());
        }
        Ok(Some(args))
    }

    /// Reads the arguments, does what they ask for, and says in one line why not.
    pub async fn run(&self, session: impl AsyncFnOnce(&Args) -> Result<()>) -> ExitCode {
        let done = async {
            match self.parse(std::env::args().skip(1))? {
                Some(args) => session(&args).await,
                None => Ok(()),
            }
        };
        match done.await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "{}: {error}", self.name);
                ExitCode::from(1)
            }
        }
    }
}

impl Args {
    /// A line for the user.
    pub fn say(&self, line: &str) -> Result<()> {
        if self.log_level >= 50 {
            writeln!(io::stdout(), "{line}")?;
        }
        Ok(())
    }

    /// The flavour that was asked for.
    pub fn start(&self, builder: SyncEventBuilder<'_>) -> Result<Event> {
        Ok(match self.asynchronous {
            true => Event::Async(builder.attach(&self.workq()?)?),
            false => Event::Blocking(builder.start()?),
        })
    }

    pub fn start_imported(&self, imported: ImportedSyncEvent) -> Result<Event> {
        Ok(match self.asynchronous {
            true => Event::Async(imported.attach(&self.workq()?)?),
            false => Event::Blocking(imported.start()?),
        })
    }

    fn workq(&self) -> Result<WorkQ> {
        Ok(WorkQ::builder().depth(self.depth).build()?)
    }
}

/// An event of either flavour.
pub enum Event {
    Async(SyncEvent),
    Blocking(BlockingSyncEvent),
}

impl Event {
    pub fn export(&self, device: &Device) -> Result<Vec<u8>> {
        Ok(match self {
            Event::Async(event) => event.export_dpu(device)?,
            Event::Blocking(event) => event.export_dpu(device)?,
        })
    }

    /// The value becomes this, which is one more than it is.
    pub async fn signal(&self, value: u64, atomic: bool) -> Result<()> {
        match (self, atomic) {
            (Event::Async(event), true) => drop(event.add(1).await?),
            (Event::Async(event), false) => event.set(value).await?,
            (Event::Blocking(event), true) => drop(event.add(1)?),
            (Event::Blocking(event), false) => event.set(value)?,
        }
        Ok(())
    }

    /// Waits until the value is greater.
    pub async fn wait_gt(&self, value: u64) -> Result<()> {
        match self {
            Event::Async(event) => match timeout(LIMIT, event.wait_gt(value)).await {
                Ok(waited) => drop(waited?),
                Err(_) => return Err(format!("the event was not signaled within {LIMIT:?}").into()),
            },
            Event::Blocking(event) => drop(event.wait_gt_yield(value, u64::MAX)?),
        }
        Ok(())
    }
}

fn address(function: PciAddr) -> Result<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(format!(
        "sync_event_sample.{function}"
    ))?)
}

/// Nobody else is told the blob.
fn same_user(stream: &UnixStream) -> Result<bool> {
    Ok(stream.peer_cred()?.uid() == std::fs::metadata("/proc/self")?.uid())
}

fn late(who: &str) -> String {
    format!("no {who} within {LIMIT:?}")
}

/// The host's end: the DPU may come later.
pub async fn connect(function: PciAddr) -> Result<UnixStream> {
    let address = address(function)?;
    let reach = async {
        loop {
            match Stream::connect_addr(&address) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    let stream = UnixStream::from_std(stream)?;
                    return match same_user(&stream)? {
                        true => Ok(stream),
                        false => Err("another user's process listens in the DPU's place".into()),
                    };
                }
                Err(error) if error.kind() == Io::ConnectionRefused => sleep(AGAIN).await,
                Err(error) => return Err(error.into()),
            }
        }
    };
    timeout(LIMIT, reach).await.map_err(|_| late("DPU"))?
}

/// The DPU's end: the host may come later.
pub async fn listen(function: PciAddr) -> Result<UnixStream> {
    let listener = Listener::bind_addr(&address(function)?)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await?;
            if same_user(&stream)? {
                return Ok(stream);
            }
        }
    };
    timeout(LIMIT, accept).await.map_err(|_| late("host"))?
}

pub async fn send(stream: &mut UnixStream, message: &[u8]) -> Result<()> {
    stream.write_u32_le(message.len().try_into()?).await?;
    Ok(stream.write_all(message).await?)
}

pub async fn receive(stream: &mut UnixStream) -> Result<Vec<u8>> {
    let message = async {
        let len = stream.read_u32_le().await? as usize;
        if len > MESSAGE {
            return Err(
                format!("a message of {len} bytes, and none has more than {MESSAGE}").into(),
            );
        }
        let mut message = vec![0; len];
        stream.read_exact(&mut message).await?;
        Ok(message)
    };
    timeout(LIMIT, message).await.map_err(|_| late("message"))?
}
