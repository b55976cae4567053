//! `tokio-doca serve`: receives files until a signal.

use std::cell::Cell;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio_doca::WorkQ;
use tokio_doca::stream::{Incoming, RdmaListener, StreamOptions};

use super::PORT;
use super::receive::{Failed, Receiver};
use super::token::{Token, TokenArgs};
use crate::failure::{Failure, Result, cannot, name, say};
use crate::open;
use crate::output::print;
use crate::signals::Signals;

/// The most connections at once, including those of peers without the token.
const CONNECTIONS: usize = 64;

const AFTER: &str = "\
Exit codes: 0 ended by a signal, or --once has stored its file; 1 failed, or a
signal cut a file off; 2 wrong usage. Nothing is encrypted. A --bind that other
hosts reach demands a token.";

#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct ServeArgs {
    /// The folder for the files; none is ever replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    bind: Bind,
    /// End after the first file, whose fate is the exit code
    #[arg(long)]
    once: bool,
    /// The largest file, also as 64K, 1M, 1G
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64G")]
    max_size: u64,
    /// The device [default: the first that copies]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
}

/// Where a command listens, and the token that it demands there.
#[derive(clap::Args)]
pub(crate) struct Bind {
    /// The address to listen at
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    #[arg(default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))]
    pub(crate) bind: SocketAddr,
    #[command(flatten)]
    token: TokenArgs,
}

impl Bind {
    /// Reads the token. Fails if there is none and other hosts can reach the address.
    pub(crate) fn token(&self) -> Result<Token> {
        let token = self.token.read()?;
        token.check(Some(self.bind.ip()), &format!("--bind {}", self.bind))?;
        Ok(token)
    }
}

/// Parses an address with or without a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let alone = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    let addr = text.parse().or_else(|_| alone());
    addr.map_err(|_| "write an address, for example 0.0.0.0:4792 or [::]:4792".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    let size = open::size(text, u64::MAX - 1);
    size.ok_or_else(|| "write a size, for example 64K, 1M or 10G".to_owned())
}

pub(crate) fn serve(args: &ServeArgs) -> Result {
    let (token, bind) = (args.bind.token()?, args.bind.bind);
    let device = open::device(args.device.as_deref())?;
    let folder = fs::canonicalize(&args.out).and_then(|folder| {
        fs::read_dir(&folder)?;
        Ok(folder)
    });
    let folder = folder.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{} does not exist: make it first", name(&args.out)),
        _ => cannot("write to", &args.out)(error),
    })?;
    let receiver = Receiver {
        folder: &folder,
        token: &token,
        most: args.max_size,
        once: args.once.then(Cell::default),
    };
    let runtime = open::runtime()?;
    let served = runtime.block_on(async {
        // Catch signals first, so that none leaves a temporary file behind.
        let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
        let options = StreamOptions::new().connections(CONNECTIONS).or_tcp(true);
        let workq = WorkQ::builder().build()?;
        let listener = options.bind(&device, &workq, bind).await?;
        let addr = listener.tcp_addr().unwrap_or(bind);
        print(&format!("serving {} at {addr}\n", name(&args.out)))?;
        let once = args.once;
        let one = async |incoming| receiver.receive(incoming).await;
        match each(&listener, &mut signals, CONNECTIONS, once, one).await? {
            None => Ok(()),
            Some(0) if !once => Ok(()),
            Some(0) => Err(Failure::Failed("interrupted before a file came".to_owned())),
            Some(cut) => Err(Failure::Failed(format!(
                "interrupted: {cut} connections were cut off before their files were confirmed"
            ))),
        }
    });
    // Do not wait for a thread that may be in a long write.
    runtime.shutdown_background();
    served
}

/// Serves all peers, at most `most` at once, and prints what became of each.
///
/// With `once`, ends after the first peer that has the token: returns `None`, or fails if its file
/// was not stored. After a signal, returns the number of peers whose connections it cuts off.
pub(crate) async fn each(
    listener: &RdmaListener,
    signals: &mut Signals,
    most: usize,
    once: bool,
    serve: impl AsyncFn(Incoming) -> Result<String, Failed>,
) -> Result<Option<usize>> {
    let mut peers = FuturesUnordered::new();
    let one = async |incoming: Incoming| {
        let peer = incoming.peer().to_string();
        (peer, serve(incoming).await)
    };
    loop {
        let is_open = peers.len() < most;
        tokio::select! {
            () = signals.recv() => return Ok(Some(peers.len())),
            incoming = listener.accept(), if is_open => peers.push(one(incoming?)),
            Some((peer, served)) = peers.next() => match served {
                Ok(text) => {
                    print(&format!("{text}\n"))?;
                    if once {
                        return Ok(None);
                    }
                }
                Err(Failed { text, proven }) => {
                    say(&format!("{peer}: {text}"));
                    if once && proven {
                        return Err(Failure::Said);
                    }
                }
            },
        }
    }
}
