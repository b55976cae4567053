//! The other side in another process or on another host: `bench --peer` and `bench serve`.
//!
//! ```text
//!   bench --peer                             bench serve
//!   hello, welcome and proofs as of `send`; the proof of the server says what it is
//!   Plan: size, depth, kind --------------->
//!          <--------- Answer: go on, with the blob of lent memory, or why not
//!   of rdma kinds, `handshake_connect` ---->            `handshake_accept`
//!   operations, until the end of the stream
//! ```
//!
//! Each thread that measures has a connection of its own, and of the kind stream each lane.

#[cfg(test)]
mod hostile;
mod part;
mod serve;

use std::fmt;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::timeout;
use tokio_doca::stream::{RdmaConnector, RdmaStream, StreamAddr, StreamOptions};
use tokio_doca::{Rdma, WorkQ};

use super::kind::KINDS;
use super::load::pair::context;
use super::load::{Failed, Kind, Plan, Result};
use crate::about;
use crate::transfer::{
    ANSWER, BENCH, Step, Token, call, destination, limited, parse_verdict, printable,
};

pub(super) use part::lent;
pub(super) use serve::{ServeArgs, serve};

/// The most connections of a server at once, strangers included.
pub(super) const PEERS: usize = 64;

/// What a thread that measures may take until it has met the other side.
pub(super) const MEETING: Duration = Duration::from_secs(40);

/// What the other side asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Asked {
    kind: Kind,
    size: u32,
    depth: u32,
}

impl Asked {
    pub(super) fn of(plan: &Plan) -> Asked {
        let number = |it| u32::try_from(it).unwrap_or(u32::MAX);
        Asked {
            kind: plan.kind,
            size: number(plan.size),
            // Of streams each connection is one operation.
            depth: match plan.kind {
                Kind::Stream => 1,
                _ => number(plan.depth),
            },
        }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let numbers = [self.size.to_be_bytes(), self.depth.to_be_bytes()];
        [&numbers.concat(), self.kind.name().as_bytes()].concat()
    }

    /// `None` if it is none that `bench` asks for.
    fn parse(bytes: &[u8]) -> Option<Asked> {
        let (size, rest) = bytes.split_first_chunk()?;
        let (depth, named) = rest.split_first_chunk()?;
        let (size, depth) = (u32::from_be_bytes(*size), u32::from_be_bytes(*depth));
        let known = KINDS.iter().find(|(it, _)| it.as_bytes() == named);
        let (_, kind) = known.filter(|(_, kind)| kind.has_peer())?;
        (size > 0 && depth > 0).then_some(Asked {
            kind: *kind,
            size,
            depth,
        })
    }

    fn words(self) -> String {
        let Asked { kind, size, depth } = self;
        format!("{} of {size} bytes, depth {depth}", kind.name())
    }
}

/// What the threads that measure need to meet the other side.
pub(super) struct Peer {
    /// How the command line names it.
    pub(super) host: String,
    addr: StreamAddr,
    token: Token,
    /// Where it is and what it says of itself, once it was met.
    pub(super) about: OnceLock<about::Peer>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)
    }
}

/// A connection to the other side, whose part ends with the stream.
pub(super) struct Far {
    pub(super) stream: RdmaStream,
    /// The blob of the memory that it lends.
    pub(super) memory: Vec<u8>,
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

    /// Has a command measure with the same other side.
    pub(super) fn give(&self, command: &mut Command) {
        command.args(["--peer", &self.host]);
        self.token.give(command);
    }

    /// Meets the other side, which agrees to the plan.
    pub(super) async fn meet(&self, connector: &RdmaConnector, plan: &Plan) -> Result<Far> {
        let met = call(connector, &BENCH, &self.token, self.addr.clone()).await;
        let (mut stream, session, about) = met.map_err(|unmet| Failed::Said(unmet.why()))?;
        self.about.get_or_init(|| about::Peer {
            address: stream.peer().to_string(),
            about: printable(&about),
        });
        let asked = Asked::of(plan).bytes();
        let answer = limited(ANSWER, async {
            session.say(&mut stream, Step::Plan, &asked).await?;
            session.hear(&mut stream, Step::Answer).await
        });
        let answer = answer.await.map_err(Failed::Said)?;
        match answer.split_first() {
            Some((0, memory)) => Ok(Far {
                stream,
                memory: memory.to_vec(),
            }),
            _ => {
                let why = parse_verdict(&answer).err().unwrap_or_default();
                Err(Failed::Said(format!("it refuses: {why}")))
            }
        }
    }

    /// Meets the other side, and connects a context of the WorkQ with one there.
    pub(super) async fn connected(&self, workq: &WorkQ, plan: &Plan) -> Result<(Rdma, Far)> {
        let rdma = context(&plan.device, workq, plan.depth)?;
        // The exchange sleeps, in whatever mode the operations are.
        let exchange = WorkQ::builder().build()?;
        let options = StreamOptions::new().connections(1);
        let connector = options.connector(&plan.device, &exchange)?;
        let mut far = self.meet(&connector, plan).await?;
        let connected = timeout(ANSWER, rdma.handshake_connect(&mut far.stream)).await;
        let silent = |_| Failed::Said(format!("it was silent for {} s", ANSWER.as_secs()));
        connected.map_err(silent)??;
        Ok((rdma, far))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_nothing_else() {
        let asked = Asked {
            kind: Kind::RdmaRead,
            size: 4096,
            depth: 8,
        };
        assert_eq!(Asked::parse(&asked.bytes()), Some(asked));
        let bytes = |size: u32, depth: u32, kind: &[u8]| {
            [&size.to_be_bytes(), &depth.to_be_bytes(), kind].concat()
        };
        for odd in [
            b"".to_vec(),
            vec![0; 7],
            vec![0xff; 2000],
            bytes(1, 1, b"dma"),
            bytes(1, 1, b"stream "),
            bytes(0, 1, b"stream"),
            bytes(1, 0, b"stream"),
        ] {
            assert_eq!(Asked::parse(&odd), None, "{odd:?}");
        }
    }
}
