//! `tokio-doca bench serve`: the other side of `bench --peer`, until a signal.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_doca::stream::{Incoming, RdmaStream, StreamOptions};
use tokio_doca::{Device, WorkQ};

use super::part::Part;
use super::{Asked, PEERS};
use crate::about::About;
use crate::bench::limits::{self, MEMORY};
use crate::bench::measure::why;
use crate::bench::short::counted;
use crate::failure::{Failure, Result, cannot};
use crate::open;
use crate::output::print;
use crate::signals::Signals;
use crate::transfer::{
    ANSWER, BENCH, Bind, NoMessage, Session, Step, each, limited, play, verdict,
};

/// How long a connection may last: long enough for the longest point, the TCP baseline that takes
/// turns with it, and the setup and end of both.
const LIMIT: Duration = Duration::from_secs(180);

const AFTER: &str = "\
Exit codes: 0 ended by a signal, 1 failed, or a signal cut a measurement off, 2
wrong usage. Serves 64 connections at once, of 1 GiB of memory together. Each
has 5 s for its proof, 10 s for each step, and 180 s in all. One thread answers
all of them, and sleeps between their messages. For --vs tcp each connection has
a new TCP port of the same address. Nothing is encrypted. A --bind that other
hosts reach demands a token.";

#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(in crate::bench) struct ServeArgs {
    /// The device [default: the first that copies]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    #[command(flatten)]
    bind: Bind,
}

pub(in crate::bench) fn serve(args: &ServeArgs) -> Result {
    let token = args.bind.token()?;
    let device = open::device(args.device.as_deref())?;
    let about = About::of(device.info(), args.device.is_none()).line();
    open::runtime()?.block_on(async {
        let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
        let workq = WorkQ::builder().build()?;
        // Twice the limit: a client may begin a point before the server notices the end of the one
        // before.
        let options = StreamOptions::new().connections(2 * PEERS);
        let listener = options.bind(&device, &workq, args.bind.bind).await?;
        let addr = listener.tcp_addr().unwrap_or(args.bind.bind);
        let device_name = device.info().name();
        print(&format!("serving bench of {device_name} at {addr}\n"))?;
        let server = Server {
            device: &device,
            addr,
            free: &Semaphore::new((MEMORY >> 10) as usize),
        };
        let one = async |incoming: Incoming| {
            let peer = incoming.peer().to_string();
            let part = async |stream: &mut RdmaStream, session: &Session| {
                let asked = server.answer(stream, session).await?;
                Ok(format!("measured with {peer}: {}", asked.words()))
            };
            play((&BENCH, "measurement"), &token, incoming, &about, part).await
        };
        match each(&listener, &mut signals, PEERS, false, one).await? {
            None | Some(0) => Ok(()),
            Some(cut) => Err(Failure::Failed(format!(
                "interrupted: {} of bench --peer cut off",
                counted(cut, "connection")
            ))),
        }
    })
}

pub(super) struct Server<'a> {
    pub(super) device: &'a Device,
    /// The address at which the server listens. TCP connections use the same address with another
    /// port.
    pub(super) addr: SocketAddr,
    /// The free memory that connections may still take, in KiB.
    pub(super) free: &'a Semaphore,
}

impl Server<'_> {
    /// Serves one client, and returns what it asked for.
    pub(super) async fn answer(
        &self,
        stream: &mut RdmaStream,
        session: &Session,
    ) -> Result<Asked, String> {
        let asked = limited(ANSWER, async {
            let said = session.hear(stream, Step::Plan).await?;
            Asked::parse(&said).ok_or(NoMessage::Odd)
        });
        let asked = asked.await?;
        let prepared = self.prepare(asked).await;
        let answer = match &prepared {
            Ok((_, _, memory)) => [&[0], &memory[..]].concat(),
            Err(why) => verdict(Some(why)),
        };
        limited(ANSWER, async {
            Ok(session.say(stream, Step::Answer, &answer).await?)
        })
        .await?;
        let (_lease, part, _) = match prepared {
            Ok(prepared) => prepared,
            Err(why) => {
                // Let the client read why, until it has gone.
                let _ = timeout(ANSWER, stream.read(&mut [0])).await;
                return Err(format!("refused: {why}"));
            }
        };
        let late = |_| format!("it took longer than {} s", LIMIT.as_secs());
        let done = timeout(LIMIT, part.play(stream)).await;
        done.map_err(late)??;
        Ok(asked)
    }

    /// Takes free memory and makes the part that the client asks for. Also returns the data for the
    /// answer.
    async fn prepare(&self, asked: Asked) -> Result<(SemaphorePermit<'_>, Part, Vec<u8>), String> {
        let Asked {
            kind, size, depth, ..
        } = asked;
        let (size, depth) = (size as usize, depth as usize);
        let within = limits::check(kind, self.device.info(), (&[size], &[depth]), 1);
        within.map_err(|failure| match failure {
            Failure::Failed(why) | Failure::Usage(why) => why,
            Failure::Closed | Failure::Said => "for no reason that is known".to_owned(),
        })?;
        let memory = kind.memory(size) * depth as u64;
        let memory = self.free.acquire_many(memory.div_ceil(1 << 10) as u32);
        let Ok(Ok(lease)) = timeout(ANSWER / 2, memory).await else {
            return Err("others have its memory: lower --size, --depth or --threads".to_owned());
        };
        let part = Part::of(self.device, asked, self.addr).await;
        let (part, blob) = part.map_err(why)?;
        Ok((lease, part, blob))
    }
}
