//! One connection: both queues, and how it ends.
//!
//! A permit is a place in the send queue. A sender takes one, writes to the socket, and gives it
//! back if the socket took all. Otherwise the frame keeps it until a flushing task has written the
//! last of it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, SemaphorePermit};

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::peer::Peer;
use super::socket::Socket;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, log};

pub(super) const SEND: &str = "Channel::send";
pub(super) const RECV: &str = "Channel::recv";
const FLUSH: &str = "Channel::flush";

/// A connection that has been greeted.
pub(super) struct Connection {
    socket: Socket,
    peer: Peer,
    max_message: usize,
    send_queue: usize,
    permits: Semaphore,
    outbox: Mutex<Outbox>,
    inbox: AsyncMutex<Inbox>,
    ended: OnceLock<Ended>,
    /// Where the socket is registered.
    runtime: Handle,
    counts: Counts,
    pub(super) user_data: AtomicU64,
    /// Stays open.
    pub(super) device: Device,
}

/// Counts of the messages and bytes of a [`Channel`](crate::channel::Channel).
///
/// ```
/// use tokio_doca::channel::{Channel, ChannelStats};
///
/// fn log(channel: &Channel) {
///     let stats: ChannelStats = channel.stats();
///     let (messages, bytes) = (stats.received_messages, stats.received_bytes);
///     println!("{}: {messages} messages, {bytes} bytes", channel.peer());
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// The number of messages that `send` has accepted.
    #[doc(alias = "doca_comch_connection_get_counter")]
    #[doc(alias = "DOCA_COMCH_COUNTER_SENT_MESSAGES")]
    pub sent_messages: u64,
    /// The number of their bytes.
    #[doc(alias = "doca_comm_channel_peer_addr_get_send_bytes")]
    #[doc(alias = "DOCA_COMCH_COUNTER_SENT_BYTES")]
    pub sent_bytes: u64,
    /// The number of messages that `recv` has returned.
    #[doc(alias = "DOCA_COMCH_COUNTER_RECV_MESSAGES")]
    pub received_messages: u64,
    /// The number of their bytes.
    #[doc(alias = "doca_comm_channel_peer_addr_get_recv_bytes")]
    #[doc(alias = "DOCA_COMCH_COUNTER_RECV_BYTES")]
    pub received_bytes: u64,
    /// The number of messages in the send queue, which wait for the peer to read.
    #[doc(alias = "doca_comm_channel_peer_addr_get_send_in_flight_messages")]
    pub sends_in_flight: usize,
}

/// Where a connection is made: of a device, on a runtime.
#[derive(Clone)]
pub(super) struct At {
    pub(super) device: Device,
    pub(super) runtime: Handle,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// `disconnect`.
    Here,
    /// The peer disconnected, or its process ended.
    There,
    /// The peer ended within a message.
    Torn,
    /// The peer sent a longer message than it may.
    TooLong,
    /// The socket failed.
    Failed(io::ErrorKind),
    /// The runtime of the socket has gone.
    Runtime,
}

impl Ended {
    fn error(self, op: &'static str) -> Error {
        let (kind, text) = match self {
            Ended::Here => (ErrorKind::NotConnected, "this side has disconnected"),
            Ended::There => (
                ErrorKind::ConnectionReset,
                "the peer has disconnected, or its process has ended",
            ),
            Ended::Torn => (
                ErrorKind::ConnectionReset,
                "the peer has ended within a message",
            ),
            Ended::TooLong => (
                ErrorKind::ConnectionReset,
                "the peer has sent a longer message than it may: the connection was ended",
            ),
            Ended::Runtime => (
                ErrorKind::Shutdown,
                "the runtime on which the connection was made has ended",
            ),
            Ended::Failed(kind) => {
                let text = format!("the socket failed: {kind}");
                return Error::new(ErrorKind::ConnectionReset, op, text);
            }
        };
        Error::new(kind, op, text)
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns what the error of a call on the socket means.
fn failed(error: &io::Error) -> Ended {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ended::There,
        // What Tokio says of a socket whose driver has gone.
        io::ErrorKind::Other => Ended::Runtime,
        kind => Ended::Failed(kind),
    }
}

impl Connection {
    pub(super) fn new(
        socket: Socket,
        inbox: Inbox,
        max_message: usize,
        send_queue: usize,
        at: At,
    ) -> Connection {
        socket.keep_alive();
        Connection {
            peer: socket.peer(),
            socket,
            max_message,
            send_queue,
            permits: Semaphore::new(send_queue),
            outbox: Mutex::new(Outbox::new(max_message)),
            inbox: AsyncMutex::new(inbox),
            ended: OnceLock::new(),
            runtime: at.runtime,
            device: at.device,
            counts: Counts::default(),
            user_data: AtomicU64::new(0),
        }
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.outbox)
    }

    /// Nothing is sent any more, and who waits is notified. What has come can still be received,
    /// unless this side ended it.
    fn end(&self, why: Ended) {
        if self.ended.set(why).is_ok() {
            self.permits.close();
            self.socket.hang_up();
            self.log("closed", Some(why));
        }
    }

    /// Writes to the log what became of it. The caller has no locks.
    pub(super) fn log(&self, what: &str, why: Option<Ended>) {
        let (device, peer) = (self.device.info().name(), &self.peer);
        let cause = why.map(|why| why.error(SEND).message().to_owned());
        log(|| tracing::debug!(target: "tokio_doca::channel", device, ?peer, cause, "{what}"));
    }

    /// Why it has completed; it is.
    fn over(&self, op: &'static str) -> Error {
        self.ended.get().unwrap_or(&Ended::There).error(op)
    }

    fn check(&self, message: &[u8]) -> Result<()> {
        let (len, max) = (message.len(), self.max_message);
        if len > max {
            let text =
                format!("{len} bytes: a message of this connection has at most {max}: send parts");
            return Err(Error::new(ErrorKind::InvalidValue, SEND, text));
        }
        Ok(())
    }

    pub(super) async fn send(self: &Arc<Connection>, message: &[u8]) -> Result<()> {
        self.check(message)?;
        match self.permits.acquire().await {
            Ok(permit) => self.put(permit, message),
            Err(_) => Err(self.over(SEND)),
        }
    }

    pub(super) fn try_send(self: &Arc<Connection>, message: &[u8]) -> Result<()> {
        use tokio::sync::TryAcquireError::{Closed, NoPermits};
        self.check(message)?;
        match self.permits.try_acquire() {
            Ok(permit) => self.put(permit, message),
            Err(Closed) => Err(self.over(SEND)),
            Err(NoPermits) => {
                let queue = self.send_queue;
                let text = format!("{queue} messages wait for the peer to read: await send");
                Err(Error::new(ErrorKind::Again, SEND, text))
            }
        }
    }

    /// Writes it, or leaves it to the flushing task, which is started if there is none.
    fn put(self: &Arc<Connection>, permit: SemaphorePermit<'_>, message: &[u8]) -> Result<()> {
        let mut outbox = self.outbox();
        if self.ended.get().is_some() {
            return Err(self.over(SEND));
        }
        let idle = outbox.len() == 0;
        // The length was checked.
        outbox.push(message);
        if idle {
            match self.socket.try_write(outbox.bytes()) {
                Ok(written) => _ = outbox.wrote(written),
                Err(error) if would_block(&error) => {}
                Err(error) => {
                    // First: whom it wakes is user code.
                    drop(outbox);
                    self.end(failed(&error));
                    return Err(self.over(SEND));
                }
            }
        }
        self.counts.sent.fetch_add(1, Relaxed);
        self.counts
            .sent_bytes
            .fetch_add(message.len() as u64, Relaxed);
        if outbox.len() > 0 {
            permit.forget();
            if !outbox.flushing {
                outbox.flushing = true;
                // First: a runtime that has gone drops the task here.
                drop(outbox);
                let task = Flushing {
                    connection: Arc::clone(self),
                    done: false,
                };
                drop(self.runtime.spawn(task.run()));
            }
        }
        Ok(())
    }

    pub(super) async fn recv(&self) -> Result<Bytes> {
        let mut inbox = self.inbox.lock().await;
        let why = loop {
            match self.take(&mut inbox) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(why) => break why,
            }
            if let Err(error) = self.socket.readable().await {
                break failed(&error);
            }
        };
        // First: whom it wakes, and the log, are user code.
        drop(inbox);
        self.end(why);
        Err(self.over(RECV))
    }

    pub(super) fn try_recv(&self) -> Result<Bytes> {
        let again = |text| Err(Error::new(ErrorKind::Again, RECV, text));
        let Ok(mut inbox) = self.inbox.try_lock() else {
            return again("another receive is under way");
        };
        let taken = self.take(&mut inbox);
        // First, as in `recv`.
        drop(inbox);
        match taken {
            Ok(Some(message)) => Ok(message),
            Ok(None) => again("no message has come: await recv"),
            Err(why) => {
                self.end(why);
                Err(self.over(RECV))
            }
        }
    }

    /// Returns the next message, of what was read or can be.
    ///
    /// # Errors
    ///
    /// Why there will be none: the connection is to end so, unless it has.
    fn take(&self, inbox: &mut Inbox) -> std::result::Result<Option<Bytes>, Ended> {
        loop {
            if let Some(Ended::Here) = self.ended.get() {
                return Err(Ended::Here);
            }
            match inbox.next() {
                Ok(Some(message)) => {
                    self.counts.received.fetch_add(1, Relaxed);
                    let bytes = message.len() as u64;
                    self.counts.received_bytes.fetch_add(bytes, Relaxed);
                    return Ok(Some(message));
                }
                Ok(None) => {}
                Err(_) => return Err(Ended::TooLong),
            }
            match self.socket.try_read(&mut inbox.room()) {
                Ok(0) if inbox.is_torn() => return Err(Ended::Torn),
                Ok(0) => return Err(Ended::There),
                Ok(_) => {}
                Err(error) if would_block(&error) => return Ok(None),
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Waits until the socket has taken everything that was sent before. While the answer is held,
    /// nothing more is sent.
    async fn drain(&self) -> Result<SemaphorePermit<'_>> {
        let all = u32::try_from(self.send_queue).unwrap_or(u32::MAX);
        let drained = self.permits.acquire_many(all).await;
        drained.map_err(|_| self.over(FLUSH))
    }

    pub(super) async fn flush(&self) -> Result<()> {
        self.drain().await.map(drop)
    }

    /// Ends it once the socket has taken everything that was sent before.
    pub(super) async fn disconnect(&self) {
        // An error says that it has ended already.
        if let Ok(_all) = self.drain().await {
            self.end(Ended::Here);
        }
    }

    /// Ends it now: what waits to be written is not.
    pub(super) fn abort(&self) {
        self.end(Ended::Here);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.ended.get().is_none()
    }

    pub(super) fn stats(&self) -> ChannelStats {
        ChannelStats {
            sent_messages: self.counts.sent.load(Relaxed),
            sent_bytes: self.counts.sent_bytes.load(Relaxed),
            received_messages: self.counts.received.load(Relaxed),
            received_bytes: self.counts.received_bytes.load(Relaxed),
            sends_in_flight: self.outbox().len(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.ended.get().is_none() {
            self.log("closed", None);
        }
    }
}

/// The task that writes what waits. If it is dropped before it is done, its runtime has ended.
struct Flushing {
    connection: Arc<Connection>,
    /// This task has handed its duty back. The outbox cannot tell: the next task may have taken the
    /// duty over already.
    done: bool,
}

impl Flushing {
    async fn run(mut self) {
        while !self.done {
            if let Err(error) = self.connection.socket.writable().await {
                self.connection.end(failed(&error));
            }
            self.write_on();
        }
    }

    /// Writes what waits, as far as the socket takes it. The task is done once nothing waits.
    fn write_on(&mut self) {
        let connection = &*self.connection;
        let (mut room, mut end) = (0, None);
        let mut outbox = connection.outbox();
        match connection.socket.try_write(outbox.bytes()) {
            Ok(written) => room = outbox.wrote(written),
            Err(error) if would_block(&error) => {}
            Err(error) => end = Some(failed(&error)),
        }
        self.done = outbox.len() == 0 || end.is_some() || connection.ended.get().is_some();
        outbox.flushing = !self.done;
        // Dropped first: the wakers of waiting senders are user code.
        drop(outbox);
        if let Some(why) = end {
            connection.end(why);
        }
        connection.permits.add_permits(room);
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        if !self.done {
            self.connection.end(Ended::Runtime);
        }
    }
}
