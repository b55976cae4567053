//! The other side in another process or on another host: `bench --peer` and `bench serve`.
//!
//! ```text
//!   bench --peer                             bench serve
//!   hello, welcome and proofs as in `send`; with its proof the server describes itself
//!   Plan: size, depth, kind or tcp -------->
//!          <--------- Answer: yes, or why not; with the blob of lent memory,
//!                     or of tcp a port and a nonce
//!   of rdma kinds, `handshake_connect` ---->            `handshake_accept`
//!   of tcp, a connection with the nonce --->            accepts it
//!   operations, until the end of the stream
//! ```
//!
//! Each measuring thread has a connection of its own. For the kind stream and for tcp, each lane
//! has one.

#[cfg(test)]
mod hostile;
mod part;
mod serve;

use std::fmt;
use std::process::Command;
use std::sync::OnceLock;

use futures::future::LocalBoxFuture;
use tokio::time::timeout;
use tokio_doca::stream::{RdmaConnector, StreamAddr, StreamOptions};
use tokio_doca::{Rdma, WorkQ};

use super::kind::{BASELINES, KINDS, name};
use super::load::far::{Far, Meet};
use super::load::pair::context;
use super::load::{Baseline, Failed, Kind, Plan, Result};
use crate::about;
use crate::transfer::{
    ANSWER, BENCH, Nonce, Step, Token, call, destination, limited, parse_verdict, printable,
};

pub(super) use serve::{ServeArgs, serve};

/// The most connections of a server at once, including those of clients without the token.
pub(super) const PEERS: usize = 64;

/// What a client asks the server to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Asked {
    kind: Kind,
    /// True for the TCP baseline: the bytes go by TCP instead of RDMA.
    tcp: bool,
    size: u32,
    depth: u32,
}

impl Asked {
    pub(super) fn of(plan: &Plan) -> Asked {
        let number = |it| u32::try_from(it).unwrap_or(u32::MAX);
        let tcp = plan.baseline == Some(Baseline::Tcp);
        // The TCP baseline is a stream, whatever kind it is a baseline of.
        let kind = if tcp { Kind::Stream } else { plan.kind };
        Asked {
            kind,
            tcp,
            size: number(plan.size),
            // A stream or TCP connection has one operation in flight.
            depth: match kind {
                Kind::Stream => 1,
                _ => number(plan.depth),
            },
        }
    }

    fn name(self) -> &'static str {
        match self.tcp {
            true => name(&BASELINES, &Baseline::Tcp),
            false => self.kind.name(),
        }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let numbers = [self.size.to_be_bytes(), self.depth.to_be_bytes()];
        [&numbers.concat(), self.name().as_bytes()].concat()
    }

    /// Parses what a client asks for. Returns `None` if `bench` never asks for such a thing.
    fn parse(bytes: &[u8]) -> Option<Asked> {
        let (size, rest) = bytes.split_first_chunk()?;
        let (depth, named) = rest.split_first_chunk()?;
        let (size, depth) = (u32::from_be_bytes(*size), u32::from_be_bytes(*depth));
        let tcp = named == name(&BASELINES, &Baseline::Tcp).as_bytes();
        let mut known = KINDS.iter().filter(|(_, kind)| kind.has_peer());
        let kind = match tcp {
            true => Kind::Stream,
            false => known.find(|(it, _)| it.as_bytes() == named)?.1,
        };
        (size > 0 && depth > 0).then_some(Asked {
            kind,
            tcp,
            size,
            depth,
        })
    }

    fn words(self) -> String {
        let Asked { size, depth, .. } = self;
        format!("{} of {size} bytes, depth {depth}", self.name())
    }
}

/// What the measuring threads need to connect to the other side.
pub(super) struct Peer {
    /// The server, as the command line names it.
    pub(super) host: String,
    addr: StreamAddr,
    token: Token,
    /// The server's address, and its description of itself. Set at the first connection.
    pub(super) about: OnceLock<about::Peer>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)
    }
}

impl Peer {
    pub(super) fn new(host: &str, token: Token) -> crate::failure::Result<Peer> {
        Ok(Peer {
            host: host.to_owned(),
            addr: destination(host, &token)?,
            token,
            about: OnceLock::new(),
        })
    }

    /// Adds options to a `bench` command, so that it measures with the same server.
    pub(super) fn give(&self, command: &mut Command) {
        command.args(["--peer", &self.host]);
        self.token.give(command);
    }

    async fn met(&self, connector: &RdmaConnector, plan: &Plan) -> Result<Far> {
        let met = call(connector, &BENCH, &self.token, self.addr.clone()).await;
        let (mut stream, session, about) = met.map_err(|unmet| Failed::Said(unmet.why(&BENCH)))?;
        self.about.get_or_init(|| about::Peer {
            address: stream.peer().to_string(),
            about: printable(&about),
        });
        let asked = Asked::of(plan);
        let answer = limited(ANSWER, async {
            session.say(&mut stream, Step::Plan, &asked.bytes()).await?;
            session.hear(&mut stream, Step::Answer).await
        });
        let answer = answer.await.map_err(Failed::Said)?;
        let Some((0, rest)) = answer.split_first() else {
            let why = parse_verdict(&answer).err().unwrap_or_default();
            return Err(Failed::Said(format!("it refuses: {why}")));
        };
        let tcp = rest.split_first_chunk().zip(stream.peer().tcp_addr());
        let tcp = tcp.filter(|_| asked.tcp);
        let tcp = tcp.and_then(|((port, nonce), mut addr)| {
            addr.set_port(u16::from_be_bytes(*port));
            Some((addr, Nonce::try_from(nonce).ok()?))
        });
        Ok(Far {
            memory: rest.to_vec(),
            tcp,
            stream,
        })
    }

    async fn met_and_connected(&self, workq: &WorkQ, plan: &Plan) -> Result<(Rdma, Far)> {
        let rdma = context(&plan.device, workq, plan.depth)?;
        // The connection is set up on a WorkQ that sleeps, whatever mode is measured.
        let exchange = WorkQ::builder().build()?;
        let options = StreamOptions::new().connections(1);
        let connector = options.connector(&plan.device, &exchange)?;
        let mut far = self.met(&connector, plan).await?;
        let connected = timeout(ANSWER, rdma.handshake_connect(&mut far.stream)).await;
        let silent = |_| Failed::Said(format!("it was silent for {} s", ANSWER.as_secs()));
        connected.map_err(silent)??;
        Ok((rdma, far))
    }
}

impl Meet for Peer {
    fn meet<'a>(
        &'a self,
        connector: &'a RdmaConnector,
        plan: &'a Plan,
    ) -> LocalBoxFuture<'a, Result<Far>> {
        Box::pin(self.met(connector, plan))
    }

    fn connected<'a>(
        &'a self,
        workq: &'a WorkQ,
        plan: &'a Plan,
    ) -> LocalBoxFuture<'a, Result<(Rdma, Far)>> {
        Box::pin(self.met_and_connected(workq, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_nothing_else() {
        let asked = Asked {
            kind: Kind::RdmaRead,
            tcp: false,
            size: 4096,
            depth: 8,
        };
        let tcp = Asked {
            kind: Kind::Stream,
            tcp: true,
            size: 64,
            depth: 1,
        };
        for asked in [asked, tcp] {
            assert_eq!(Asked::parse(&asked.bytes()), Some(asked));
        }
        let bytes = |size: u32, depth: u32, kind: &[u8]| {
            [&size.to_be_bytes(), &depth.to_be_bytes(), kind].concat()
        };
        for odd in [
            b"".to_vec(),
            vec![0; 7],
            vec![0xff; 2000],
            bytes(1, 1, b"dma"),
            bytes(1, 1, b"unix"),
            bytes(1, 1, b"stream "),
            bytes(0, 1, b"stream"),
            bytes(1, 0, b"stream"),
        ] {
            assert_eq!(Asked::parse(&odd), None, "{odd:?}");
        }
    }
}
