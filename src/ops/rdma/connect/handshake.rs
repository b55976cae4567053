//! [`Rdma::builder`], and the handshakes that connect two contexts over a stream (docs/wire.md,
//! *Handshake*).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::try_join;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use super::super::{Rdma, RdmaBuilder};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::context::BLOB;
use crate::reactor::{Backoff, RdmaState};
use crate::sync::log;

const SHAKE: &str = "Rdma::handshake";
const CONNECT: &str = "Rdma::handshake_connect";
const ACCEPT: &str = "Rdma::handshake_accept";

/// How long a side waits for its peer's blob before it logs that it waits.
const LATE: Duration = Duration::from_secs(1);

/// A flag in the length of a blob. If it is set, the sender of the blob listens, and the receiver
/// dials.
const LISTENS: u32 = 1 << 31;

impl Rdma {
    /// Returns a builder for a context on `device`.
    #[doc(alias = "doca_rdma_create")]
    pub fn builder(device: &Device) -> RdmaBuilder<'_> {
        RdmaBuilder::new(device)
    }

    /// Exports this side's blob, exchanges the blobs over `stream`, and connects. This side is the
    /// client of a server that calls [`handshake_accept`](Rdma::handshake_accept) at the other end.
    /// Both sides are connected when `handshake_connect` returns. The stream can be used for
    /// something else afterwards: no byte beyond the handshake is read.
    ///
    /// The server may be hostile: it can decide only whether the two sides are connected. This side
    /// connects to the process that has made the server's blob, and refuses a peer that does not
    /// call `handshake_accept`. Over an adapter the server's blob names the address to connect to.
    ///
    /// The builder's time limit applies only to the connection. This side waits forever for a peer
    /// that sends nothing: set a limit with `tokio::time::timeout`. If one task has both sides, run
    /// them together with `tokio::join!`: a task that awaits the first side alone waits forever.
    /// After a second of waiting, a message is logged at debug level.
    ///
    /// # Errors
    ///
    /// As [`Rdma::export`] and [`Rdma::connect`]; `IoFailed` if the stream fails or ends;
    /// `InvalidValue` if the peer's blob is invalid; `NotPermitted` for a blob that names a socket
    /// of a process that has not made the blob; `ConnectionAborted` if the peer could not connect,
    /// refuses this side's blob, or does not call `handshake_accept`. If this side had connected,
    /// it is then reset.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the stream in the middle of the exchange: drop the stream too,
    /// and [`reset`](Rdma::reset) the context.
    pub async fn handshake_connect<S>(&self, stream: &mut S) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.shake(CONNECT, stream).await
    }

    /// Connects as [`handshake_connect`](Rdma::handshake_connect) does, but the peer may call
    /// `handshake` as well, so that neither side is the server. This side trusts such a peer: it
    /// connects to what the peer's blob names, and believes the peer's report that it is connected.
    ///
    /// # Errors
    ///
    /// As [`Rdma::handshake_connect`], except that a peer that calls `handshake` too is no error.
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::handshake_connect`].
    pub async fn handshake<S>(&self, stream: &mut S) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.shake(SHAKE, stream).await
    }

    async fn shake<S>(&self, op: &'static str, stream: &mut S) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let blob = self.export().map_err(|error| error.with_call(op))?;
        let len = (blob.len() as u32).to_be_bytes();
        let give = async {
            say(op, &mut writer, &len).await?;
            say(op, &mut writer, &blob).await
        };
        let ((theirs, dials), ()) = try_join(self.get(op, &mut reader), give).await?;
        let connect = match dials {
            true => self.dial(&theirs),
            false => self.connect(&theirs),
        };
        let connected = connect.await;
        // Each side sends the other whether it is connected, so that neither begins with a peer
        // that is not.
        let is_connected = [connected.is_ok().into()];
        let say = say(op, &mut writer, &is_connected);
        let heard = try_join(say, read_answer(op, &mut reader)).await;
        connected.map_err(|error| error.with_call(op))?;
        let heard = heard.and_then(|((), is_connected)| is_connected);
        heard.inspect_err(|_| self.port().reset())
    }

    /// Connects as the server of a client that calls [`handshake_connect`](Rdma::handshake_connect)
    /// or [`handshake`](Rdma::handshake). The client may be hostile: this side contacts no other
    /// process, and is connected once the client has connected to it with the key of this side's
    /// blob. A client that sends nothing, or something that is no blob, does not get this side's
    /// blob.
    ///
    /// An adapter cannot see whether the client has connected. There, this side believes the
    /// client's report. If the report is false, the first message to the client fails.
    ///
    /// There is no time limit: this side waits forever for a client that sends nothing. Set a
    /// limit, so that such a client does not occupy the Rdma for longer:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tokio::net::TcpStream;
    /// # use tokio_doca::Rdma;
    /// # async fn meet(rdma: &Rdma, mut client: TcpStream) -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Duration::from_secs(5);
    /// tokio::time::timeout(limit, rdma.handshake_accept(&mut client)).await??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Rdma::export`]; `IoFailed` if the stream fails or ends; `InvalidValue` if the client's
    /// blob is invalid, and over an adapter for the blob of a program without this library;
    /// `NotSupported` for the blob of another host's software device; `ConnectionAborted` if the
    /// client could not connect, reports a connection that it has not made, or calls
    /// `handshake_accept` as well. After an error the context is in the state Init. Drop the stream
    /// too: a client whose blob did not arrive, or was refused, has not received this side's blob.
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::handshake_connect`].
    pub async fn handshake_accept<S>(&self, stream: &mut S) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let blob = self.export().map_err(|error| error.with_call(ACCEPT))?;
        let len = (blob.len() as u32 | LISTENS).to_be_bytes();
        let announce = say(ACCEPT, &mut writer, &len);
        // The length is sent first, so that a peer that accepts as well is notified before this
        // side gives up.
        let ((), (theirs, _)) = try_join(announce, self.get(ACCEPT, &mut reader)).await?;
        let accept = async {
            let listening = self.listen(&theirs).await;
            listening.map_err(|error| error.with_call(ACCEPT))?;
            // The blob is sent only now, since it reveals much about its host.
            say(ACCEPT, &mut writer, &blob).await?;
            read_answer(ACCEPT, &mut reader).await??;
            match self.state() {
                RdmaState::Connected => Ok(()),
                RdmaState::Init => {
                    let text = "the peer says that it is connected, and has not come";
                    aborted(ACCEPT, text)
                }
                _ => aborted(ACCEPT, "the peer has come, and the connection has ended"),
            }
        };
        let mut accepted = accept.await;
        let said = say(ACCEPT, &mut writer, &[accepted.is_ok().into()]).await;
        accepted = accepted.and(said);
        accepted.inspect_err(|_| self.port().reset())
    }

    /// Returns the peer's blob, and true if the peer listens.
    async fn get(
        &self,
        op: &'static str,
        reader: &mut (impl AsyncRead + Unpin),
    ) -> Result<(Vec<u8>, bool)> {
        let mut get = pin!(async {
            let said = reader.read_u32().await.map_err(io(op))?;
            let len = (said & !LISTENS) as usize;
            if len > BLOB {
                let text = format!(
                    "the peer announces a blob of {len} bytes, and none has more than {BLOB}"
                );
                return Err(Error::new(ErrorKind::InvalidValue, op, text));
            }
            let listens = said & LISTENS != 0;
            if listens && op == ACCEPT {
                return aborted(op, "both sides accept: one calls `handshake_connect`");
            }
            if !listens && op == CONNECT {
                return aborted(op, "the peer does not accept: it calls `handshake_accept`");
            }
            let mut theirs = vec![0; len];
            match reader.read_exact(&mut theirs).await {
                Err(error) if listens && error.kind() == io::ErrorKind::UnexpectedEof => aborted(
                    op,
                    "the peer refuses this side's blob, or has gone: its own error says why",
                ),
                read => read.map(|_| (theirs, listens)).map_err(io(op)),
            }
        });
        let begun = Instant::now();
        let mut late = pin!(Backoff::after(self.workq(), LATE));
        let mut told = false;
        poll_fn(|cx| {
            let polled = get.as_mut().poll(cx);
            // If nothing wakes the task after a second, the message is logged at its next wake-up.
            let waits = polled.is_pending() && !told;
            let is_late = waits && late.as_mut().poll(cx).is_ready() && begun.elapsed() >= LATE;
            if is_late {
                told = true;
                let (rdma, call) = (self.port().id(), op);
                let text = "waits for the blob of its peer";
                log(|| debug!(target: "tokio_doca::rdma", rdma, call, "{text}"));
            }
            polled
        })
        .await
    }
}

async fn say(op: &'static str, writer: &mut (impl AsyncWrite + Unpin), what: &[u8]) -> Result<()> {
    writer.write_all(what).await.map_err(io(op))?;
    writer.flush().await.map_err(io(op))
}

fn io(op: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::new(ErrorKind::IoFailed, op, format!("the stream: {error}"))
}

fn aborted<T>(op: &'static str, text: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::ConnectionAborted, op, text))
}

/// Reads the peer's answer. The inner result is an error if the peer is not connected.
async fn read_answer(
    op: &'static str,
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<Result<()>> {
    match reader.read_u8().await.map_err(io(op))? {
        1 => Ok(Ok(())),
        _ => Ok(aborted(op, "the peer could not connect")),
    }
}
