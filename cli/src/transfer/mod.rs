//! `tokio-doca send` and `tokio-doca serve`: send a file over a stream to another host.
//!
//! ```text
//!   send                                     serve
//!   hello: magic, has a token, nonce ------>          refuses without a stream, or
//!          <------------------------ welcome: nonce
//!   Sender: proof ------------------------->          a wrong proof ends the connection
//!          <----------------------- Receiver: proof
//!   File: size, name ---------------------->
//!          <------------------------ Answer: yes, or why not
//!   frames of data, and an empty one ------>
//!   Sum: size, SHA-256 -------------------->          syncs the file, and names it
//!          <------------------------ Stored: yes, or why not; may come before the end
//! ```
//!
//! Each message ends with an HMAC-SHA-256, with the token as key, over its step, both nonces and
//! its body. The sender proves first, so that a stranger that connects gets nothing by which to
//! guess the token.

mod meet;
mod messages;
mod name;
mod receive;
mod send;
mod serve;
mod token;

use std::time::{Duration, Instant};

use tokio_doca::stream::StreamTransport;

#[cfg(test)]
pub(crate) use meet::meet;
pub(crate) use meet::{Unmet, call, destination, play, printable};
pub(crate) use messages::{
    BENCH, CHECK, NoMessage, Nonce, Session, Step, limited, nonce, parse_verdict, verdict,
};
pub(crate) use receive::Failed;
pub(crate) use send::{SendArgs, send};
pub(crate) use serve::{Bind, ServeArgs, each, serve};
pub(crate) use token::{Token, TokenArgs};

/// The default port.
const PORT: u16 = 4792;

/// The largest frame of data, in bytes.
pub(crate) const FRAME: usize = 256 << 10;

/// The length of an empty frame by which the sender signals that it waits for its input.
const WAITS: u32 = u32::MAX;

/// How long a side waits for a message of the other side, before and after the data.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// How long a side waits for the other side within the data.
const SILENCE: Duration = Duration::from_secs(30);

/// How long the sender waits until the receiver has synced the file.
const SYNC: Duration = Duration::from_secs(600);

/// Returns the name of a stream's transport.
pub(crate) fn transport(stream: StreamTransport) -> &'static str {
    match stream {
        StreamTransport::Rdma => "RDMA",
        _ => "TCP",
    }
}

/// Returns the number of bytes, the transport, and the rate since `begun`.
fn way(bytes: u64, transport: StreamTransport, begun: Instant) -> String {
    let transport = self::transport(transport);
    let took = begun.elapsed();
    let rate = bytes as f64 / 1e6 / took.as_secs_f64();
    format!("{bytes} bytes by {transport} in {took:.1?}, {rate:.0} MB/s")
}

/// Returns a checksum in hexadecimal.
fn hex(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}
