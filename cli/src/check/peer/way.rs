//! The checks of one stream, in the order of the script.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_doca::Device;
use tokio_doca::stream::RdmaStream;

use super::data::{self, BYTES};
use super::lent::{LENT, Lent};
use super::rows::{Fault, Found, Rows};
use super::{LONG, ROUNDS, SMALL};
use crate::transfer::{ANSWER, NoMessage, Session, Step, parse_verdict, transport};

/// A stream whose peer has proved that it has the token.
pub(super) struct Met<'a> {
    pub(super) device: &'a Device,
    pub(super) stream: RdmaStream,
    pub(super) session: Session,
    /// The peer's description of itself.
    pub(super) about: String,
    /// The reason why the peer does not listen by rdma_cm, if it does not.
    pub(super) no_cm: Option<String>,
}

fn rate(begun: Instant) -> String {
    let rate = BYTES as f64 / 1e6 / begun.elapsed().as_secs_f64();
    format!("{BYTES} bytes, {rate:.0} MB/s with SHA-256, equal sums")
}

/// Makes a check within its time limit, and adds its row.
async fn row(
    rows: &mut Rows,
    check: &str,
    limit: Duration,
    made: impl Future<Output = Result<Found, Fault>>,
) -> Option<()> {
    rows.announce(check);
    let begun = Instant::now();
    let made = timeout(limit, made).await.unwrap_or_else(|_| {
        let limit = limit.as_secs();
        let text = format!("it took longer than {limit} s: the peer is silent or slow");
        Err(Fault::Lost(text))
    });
    rows.row(check, begun, made)
}

impl Met<'_> {
    /// Makes all checks of the stream. `begun` is the time at which the connect began.
    pub(super) async fn checks(mut self, rows: &mut Rows, begun: Instant) {
        // The checks stop early if one returns `None`.
        let _ = self.try_checks(rows, begun).await;
        rows.end();
    }

    async fn try_checks(&mut self, rows: &mut Rows, begun: Instant) -> Option<()> {
        rows.row("connects", begun, Ok(Some(self.ends())))?;
        if self.stream.rdma().is_some() {
            row(rows, "path", ANSWER, async { self.path() }).await?;
        }
        row(rows, "round_trips", ANSWER, self.round_trips()).await?;
        row(rows, "bytes_to_the_peer", LONG, self.there()).await?;
        row(rows, "bytes_from_the_peer", LONG, self.back()).await?;
        if self.stream.rdma().is_some() {
            self.one_sided(rows).await?;
        }
        row(rows, "end", ANSWER, self.end()).await
    }

    /// Returns the transport of the stream, and its addresses on both sides.
    fn ends(&self) -> String {
        let by = transport(self.stream.transport());
        let peer = self.stream.peer();
        match self.stream.local_addr() {
            Some(local) => format!("by {by}, from {local} to {peer}"),
            None => format!("by {by}, to {peer}"),
        }
    }

    /// Reports the addresses of the ports, and the size of packets.
    fn path(&self) -> Result<Found, Fault> {
        match self.stream.rdma().and_then(|rdma| rdma.path()) {
            Some(path) => Ok(Some(path.to_string())),
            None => {
                let name = self.device.info().name();
                let text = format!("device {name} has no network: no GIDs and no MTU");
                Err(Fault::Lacks(text))
            }
        }
    }

    async fn round_trips(&mut self) -> Result<Found, Fault> {
        let (ours, mut theirs) = ([0x5a; SMALL], [0; SMALL]);
        let mut times = [Duration::ZERO; ROUNDS];
        for time in &mut times {
            let begun = Instant::now();
            self.stream.write_all(&ours).await?;
            self.stream.read_exact(&mut theirs).await?;
            *time = begun.elapsed();
            if theirs != ours {
                return Err(Fault::Lost("the peer sent other bytes back".to_owned()));
            }
        }
        times.sort();
        let (least, median) = (times[0], times[ROUNDS / 2]);
        Ok(Some(format!(
            "{ROUNDS} of {SMALL} bytes, smallest {least:.1?}, median {median:.1?}"
        )))
    }

    async fn there(&mut self) -> Result<Found, Fault> {
        let (begun, stream) = (Instant::now(), &mut self.stream);
        let sum = data::give(stream).await?;
        self.session.say(stream, Step::Sum, &sum).await?;
        let answer = self.session.hear(stream, Step::Answer).await?;
        parse_verdict(&answer).map_err(Fault::Differs)?;
        Ok(Some(rate(begun)))
    }

    async fn back(&mut self) -> Result<Found, Fault> {
        let (begun, stream) = (Instant::now(), &mut self.stream);
        let sum = data::take(stream).await?;
        match self.session.hear(stream, Step::Sum).await? == sum {
            true => Ok(Some(rate(begun))),
            false => Err(Fault::Differs(
                "the SHA-256 of the bytes differs here".to_owned(),
            )),
        }
    }

    /// Checks the memory that the server lends.
    async fn one_sided(&mut self, rows: &mut Rows) -> Option<()> {
        let mut lent = None;
        let borrow = async {
            lent = Some(self.borrow().await?);
            Ok(Some(format!("{LENT} bytes")))
        };
        row(rows, "memory_of_the_peer", ANSWER, borrow).await?;
        if let Some(lent) = lent {
            row(rows, "one-sided_write", ANSWER, lent.write()).await?;
            row(rows, "one-sided_read", ANSWER, lent.read()).await?;
            row(rows, "atomics", ANSWER, lent.atomics()).await?;
        }
        Some(())
    }

    /// Receives the message about the lent memory, and imports the memory.
    async fn borrow(&mut self) -> Result<Lent, Fault> {
        let said = self.session.hear(&mut self.stream, Step::Memory).await?;
        match (said.split_first(), self.stream.rdma()) {
            (Some((0, blob)), Some(rdma)) => Lent::new(self.device, rdma.clone(), blob).await,
            _ => {
                let why = parse_verdict(&said).err().unwrap_or_default();
                Err(Fault::Lacks(format!("the peer lends no memory: {why}")))
            }
        }
    }

    /// Ends this side of the stream, and waits until the other side has ended as well.
    async fn end(&mut self) -> Result<Found, Fault> {
        let stream = &mut self.stream;
        stream.shutdown().await?;
        // By TCP the server first says that it lends no memory.
        if stream.rdma().is_none() {
            self.session.hear(stream, Step::Memory).await?;
        }
        self.session.hear(stream, Step::Ended).await?;
        match stream.read(&mut [0]).await? {
            0 => Ok(Some("heard by both sides".to_owned())),
            _ => Err(NoMessage::Odd.into()),
        }
    }
}
