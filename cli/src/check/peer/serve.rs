//! `tokio-doca check serve`: answers `check --peer` until a signal.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::rdma::CmListener;
use tokio_doca::stream::{Incoming, RdmaListener, RdmaStream, StreamAddr};
use tokio_doca::{Device, WorkQ};

use super::data;
use super::lent::{lend, options};
use super::{LONG, ROUNDS, SMALL};
use crate::about::About;
use crate::failure::{Failure, Result, cannot, text};
use crate::open;
use crate::output::print;
use crate::signals::Signals;
use crate::transfer::{
    ANSWER, Bind, CHECK, Failed, NoMessage, Session, Step, Token, each, limited, play, transport,
    verdict,
};

/// The maximum number of peers at once, strangers included.
const PEERS: usize = 8;

const AFTER: &str = "\
Exit codes: 0 ended by a signal, 1 failed, or a signal cut a check off, 2 wrong
usage. Serves 8 peers at once. Each has 5 s for its proof, 10 s for each step,
and 60 s for 16 MiB each way and for its work on the memory here. Nothing is
encrypted. A --bind that other hosts reach demands a token.";

#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct ServeArgs {
    /// The device's name or PCI address [default: the first that copies]
    device: Option<String>,
    #[command(flatten)]
    bind: Bind,
}

struct Server<'a> {
    device: &'a Device,
    token: &'a Token,
    /// The server's description of itself. If it does not listen by rdma_cm, a second line has the
    /// reason.
    about: String,
}

pub(crate) fn serve(args: &ServeArgs) -> Result {
    let token = args.bind.token()?;
    let device = open::device(args.device.as_deref())?;
    let runtime = open::runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
        let workq = WorkQ::builder().build()?;
        let (listener, no_cm) = listen(&device, &workq, args.bind.bind).await?;
        let addr = listener.tcp_addr().unwrap_or(args.bind.bind);
        let name = device.info().name();
        print(&format!("serving checks of {name} at {addr}\n"))?;
        if let Some(why) = &no_cm {
            print(&format!("not by rdma_cm: {why}\n"))?;
        }
        let about = About::of(device.info(), args.device.is_none()).line();
        let server = Server {
            device: &device,
            token: &token,
            about: format!("{about}\n{}", no_cm.unwrap_or_default()),
        };
        let one = async |incoming| server.answer(incoming).await;
        match each(&listener, &mut signals, PEERS, false, one).await? {
            None | Some(0) => Ok(()),
            Some(cut) => Err(Failure::Failed(format!(
                "interrupted: the checks of {cut} peers were cut off"
            ))),
        }
    })
}

/// Listens by the exchange and, if possible, by rdma_cm at the same port. Also returns the reason
/// if rdma_cm is not possible.
async fn listen(
    device: &Device,
    workq: &WorkQ,
    bind: SocketAddr,
) -> Result<(RdmaListener, Option<String>)> {
    // A listener for both ways fails if rdma_cm has another adapter at this address. So a bind
    // tests rdma_cm first.
    let by_cm = CmListener::bind(device, SocketAddr::new(bind.ip(), 0));
    let (addr, no_cm) = match by_cm {
        Ok(_) => (StreamAddr::Cm(bind), None),
        Err(error) => (StreamAddr::Tcp(bind), Some(text(&error))),
    };
    let options = options(PEERS).or_tcp(true);
    Ok((options.bind(device, workq, addr).await?, no_cm))
}

impl Server<'_> {
    /// Plays the server's part, and returns the line to print about it.
    async fn answer(&self, incoming: Incoming) -> Result<String, Failed> {
        let peer = incoming.peer().to_string();
        let part = async |stream: &mut RdmaStream, session: &Session| {
            self.play(stream, session).await?;
            let by = transport(stream.transport());
            Ok(format!("checked with {peer} by {by}"))
        };
        play((&CHECK, "check"), self.token, incoming, &self.about, part).await
    }

    async fn play(&self, stream: &mut RdmaStream, session: &Session) -> Result<(), String> {
        limited(ANSWER, async { Ok(echo(stream).await?) }).await?;
        let is_equal = limited(LONG, async {
            let sum = data::take(stream).await?;
            Ok(session.hear(stream, Step::Sum).await? == sum)
        });
        let differs = "the SHA-256 of the bytes differs at the peer";
        let answer = verdict((!is_equal.await?).then_some(differs));
        limited(LONG, async {
            session.say(stream, Step::Answer, &answer).await?;
            let sum = data::give(stream).await?;
            Ok(session.say(stream, Step::Sum, &sum).await?)
        })
        .await?;
        let lent = lend(self.device, stream);
        let memory = match &lent {
            Ok((_, blob)) => [&[0], &blob[..]].concat(),
            Err(why) => verdict(Some(why)),
        };
        limited(LONG, async {
            session.say(stream, Step::Memory, &memory).await?;
            // The client now uses the memory, and sends nothing more on the stream.
            match stream.read(&mut [0]).await? {
                0 => Ok(()),
                _ => Err(NoMessage::Odd),
            }
        })
        .await?;
        limited(ANSWER, async {
            session.say(stream, Step::Ended, &[]).await?;
            Ok(stream.shutdown().await?)
        })
        .await
    }
}

pub(super) async fn echo(stream: &mut RdmaStream) -> io::Result<()> {
    let mut bytes = [0; SMALL];
    for _ in 0..ROUNDS {
        stream.read_exact(&mut bytes).await?;
        stream.write_all(&bytes).await?;
    }
    Ok(())
}
