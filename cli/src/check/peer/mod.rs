//! `tokio-doca check --peer` and `tokio-doca check serve`: check what works between two hosts.
//!
//! ```text
//!   check --peer                             check serve
//!   hello, welcome and proofs as in `send`; with its proof the server describes itself
//!   64 bytes ------------------------------>
//!          <-------------------------------- the same; ROUNDS times
//!   BYTES, and Sum: their SHA-256 --------->
//!          <------------------------ Answer: equal, or not
//!          <--------- BYTES, and Sum: their SHA-256
//!          <------------------------ Memory: a blob, or why there is none
//!   writes, reads and atomics there
//!   the end of the stream ----------------->
//!          <------------------------ Ended, and the end
//! ```
//!
//! The script is fixed, so that neither side has to trust a length. The two ways to connect, by the
//! exchange and by rdma_cm, have a stream each.

mod data;
#[cfg(test)]
mod hostile;
mod lent;
mod rows;
mod serve;
mod way;

use std::time::{Duration, Instant};

use tokio_doca::error::ErrorKind;
use tokio_doca::stream::{RdmaConnector, StreamAddr, StreamTransport};
use tokio_doca::{Device, WorkQ};

use super::report::Report;
use super::{Args, finish};
use crate::about::{About, Peer};
use crate::failure::{Failure, Result, cannot, text};
use crate::open;
use crate::signals::Signals;
use crate::transfer::{self, CHECK, Token, Unmet, destination, printable};
use rows::{Fault, Rows, Way};
use way::Met;

pub(super) use serve::{ServeArgs, serve};

/// The number of small messages that go there and back, and their size in bytes.
const ROUNDS: usize = 100;
const SMALL: usize = 64;

/// The time limit for the bytes of one direction.
const LONG: Duration = Duration::from_secs(60);

/// The client of a check, which connects to the other host.
struct Caller<'a> {
    device: &'a Device,
    workq: &'a WorkQ,
    token: &'a Token,
    host: &'a str,
}

pub(super) fn run(args: &Args, host: &str) -> Result {
    let token = args.token.read()?;
    let addr = destination(host, &token)?;
    let device = open::device(args.device.as_deref())?;
    let about = About::of(device.info(), args.device.is_none());
    let mut rows = Rows::new();
    let begun = Instant::now();
    let runtime = open::runtime()?;
    let peer = runtime.block_on(async {
        let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
        let workq = WorkQ::builder().build()?;
        let caller = Caller {
            device: &device,
            workq: &workq,
            token: &token,
            host,
        };
        let mut peer = None;
        tokio::select! {
            done = caller.check(addr, &mut rows, &mut peer) => done?,
            () = signals.recv() => {}
        }
        Ok::<_, Failure>(peer)
    })?;
    let about = About { peer, ..about };
    let (rows, checks) = rows.finish();
    finish(
        &Report::new(about, rows, checks, begun.elapsed()),
        args.json,
    )
}

impl Caller<'_> {
    /// Makes all checks. Sets `peer` to the other side's description of itself.
    ///
    /// # Errors
    ///
    /// Fails if no stream at all can be made.
    async fn check(&self, addr: StreamAddr, rows: &mut Rows, peer: &mut Option<Peer>) -> Result {
        let begun = Instant::now();
        let met = self.meet(addr.clone(), true).await;
        let met =
            met.map_err(|unmet| format!("cannot check with {}: {}", self.host, unmet.why(&CHECK)))?;
        let address = met.stream.peer().to_string();
        let about = met.about.clone();
        *peer = Some(Peer { address, about });
        let (at, no_cm) = (met.stream.peer_addr(), met.no_cm.clone());
        if met.stream.transport() == StreamTransport::Rdma {
            rows.begin(Way::Exchange);
            met.checks(rows, begun).await;
        } else {
            rows.begin(Way::Tcp);
            met.checks(rows, begun).await;
            // Tries RDMA as well, so that the library reports why there is none.
            self.demand(Way::Exchange, addr, None, rows).await;
        }
        if let Some(at) = at {
            self.demand(Way::Cm, StreamAddr::Cm(at), no_cm, rows).await;
        }
        Ok(())
    }

    /// Checks a way of connecting that must have RDMA. `lacks` is the peer's reason if it does not
    /// offer this way.
    async fn demand(&self, way: Way, addr: StreamAddr, lacks: Option<String>, rows: &mut Rows) {
        rows.begin(way);
        rows.announce("connects");
        let begun = Instant::now();
        let fault = match (self.meet(addr, false).await, lacks) {
            (Ok(met), _) => return met.checks(rows, begun).await,
            (Err(Unmet::Library(error)), _) if error.kind() == ErrorKind::NotSupported => {
                Fault::Lacks(text(&error))
            }
            (Err(_), Some(why)) => Fault::Lacks(format!("the peer has none: {why}")),
            (Err(Unmet::Library(error)), None) => Fault::Lost(text(&error)),
            (Err(Unmet::Peer(why)), None) => Fault::Lost(why),
        };
        rows.row("connects", begun, Err(fault));
        rows.end();
    }

    /// Connects. Both sides prove that they have the token.
    async fn meet(&self, addr: StreamAddr, or_tcp: bool) -> Result<Met<'_>, Unmet> {
        let options = lent::options(1).or_tcp(or_tcp);
        let connector: RdmaConnector = options
            .connector(self.device, self.workq)
            .map_err(Unmet::Library)?;
        let met = transfer::call(&connector, &CHECK, self.token, addr).await;
        let (stream, session, about) = met?;
        let mut lines = about.split(|byte| *byte == b'\n').map(printable);
        Ok(Met {
            about: lines.next().unwrap_or_default(),
            no_cm: lines.next().filter(|why| !why.is_empty()),
            device: self.device,
            stream,
            session,
        })
    }
}
