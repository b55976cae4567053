//! One connection: both queues, and how it ends.
//!
//! The outbox is the send queue: frames that the socket has not taken. A sender appends its frame
//! if the queue is not full, and writes to the socket itself if no other frame waits. A flushing
//! task writes the remaining bytes.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::ended::{Ended, failed, would_block};
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::peer::Peer;
use super::socket::{Socket, runtime};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Polled, log};

pub(super) const SEND: &str = "Channel::send";
pub(super) const RECV: &str = "Channel::recv";
const FLUSH: &str = "Channel::flush";

/// A connection whose two sides have exchanged greetings.
pub(super) struct Connection {
    socket: Socket,
    peer: Peer,
    max_message: usize,
    send_queue: usize,
    outbox: Polled<Outbox>,
    /// Notified when the socket has taken a message, or the connection has ended.
    written: Notify,
    inbox: Polled<Inbox>,
    ended: OnceLock<Ended>,
    /// The runtime with which the socket is registered.
    runtime: Handle,
    counts: Counts,
    pub(super) user_data: AtomicU64,
    /// The device of the connection, which stays open.
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
    /// The number of bytes in the messages that `send` has accepted.
    #[doc(alias = "doca_comm_channel_peer_addr_get_send_bytes")]
    #[doc(alias = "DOCA_COMCH_COUNTER_SENT_BYTES")]
    pub sent_bytes: u64,
    /// The number of messages that `recv` has returned.
    #[doc(alias = "DOCA_COMCH_COUNTER_RECV_MESSAGES")]
    pub received_messages: u64,
    /// The number of bytes in the messages that `recv` has returned.
    #[doc(alias = "doca_comm_channel_peer_addr_get_recv_bytes")]
    #[doc(alias = "DOCA_COMCH_COUNTER_RECV_BYTES")]
    pub received_bytes: u64,
    /// The number of messages in the send queue, which wait for the peer to read.
    #[doc(alias = "doca_comm_channel_peer_addr_get_send_in_flight_messages")]
    pub sends_in_flight: usize,
}

/// The device and the runtime of a new connection.
#[derive(Clone)]
pub(super) struct At {
    pub(super) device: Device,
    pub(super) runtime: Handle,
}

impl At {
    /// Returns the device with the current runtime.
    pub(super) fn here(op: &'static str, device: &Device) -> Result<At> {
        let (device, runtime) = (device.clone(), runtime(op)?);
        Ok(At { device, runtime })
    }
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
}

/// The result of an operation on a queue, or the reason why the connection has ended.
type OrEnded<T> = std::result::Result<T, Ended>;

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
            outbox: Polled::new(Outbox::new(max_message)),
            written: Notify::new(),
            inbox: Polled::new(inbox),
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

    /// Ends sending, and notifies the tasks that wait. Messages that have come can still be
    /// received, unless this side ended the connection.
    fn end(&self, why: Ended) {
        if self.ended.set(why).is_ok() {
            self.hang_up(why);
        }
    }

    /// Shuts the socket down, and notifies all tasks that wait. The caller holds no locks.
    fn hang_up(&self, why: Ended) {
        self.socket.hang_up();
        self.outbox.notify();
        self.written.notify_waiters();
        self.inbox.notify();
        self.log("closed", Some(why));
    }

    /// Logs what happened to the connection, and why it ended. The caller holds no locks.
    pub(super) fn log(&self, what: &str, why: Option<Ended>) {
        let (device, peer) = (self.device.info().name(), &self.peer);
        let cause = why.map(|why| why.error(SEND).message().to_owned());
        log(|| tracing::debug!(target: "tokio_doca::channel", device, ?peer, cause, "{what}"));
    }

    /// Returns the error of a call on this connection, which has ended.
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
        self.outbox.wait(|| self.poll_put(message)).await
    }

    pub(super) fn try_send(self: &Arc<Connection>, message: &[u8]) -> Result<()> {
        self.check(message)?;
        let put = match self.outbox.lets_pass() || self.ended.get().is_some() {
            true => self.poll_put(message),
            false => Poll::Pending,
        };
        let Poll::Ready(done) = put else {
            let queue = self.send_queue;
            let text = format!("{queue} messages wait for the peer to read: await send");
            return Err(Error::new(ErrorKind::Again, SEND, text));
        };
        done
    }

    /// Sends the message if the send queue is not full: writes it, or leaves it to the flushing
    /// task, which is started if none runs.
    fn poll_put(self: &Arc<Connection>, message: &[u8]) -> Poll<Result<()>> {
        let put = self.outbox.poll(|outbox, _| self.put(outbox, message));
        // Outside of the lock: `end` wakes tasks, which runs user code, and a runtime that has
        // ended drops the task here.
        Poll::Ready(match ready!(put) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let task = Flushing {
                    connection: Arc::clone(self),
                    done: false,
                };
                drop(self.runtime.spawn(task.run()));
                Ok(())
            }
            Err(why) => {
                self.end(why);
                Err(self.over(SEND))
            }
        })
    }

    /// The part of [`poll_put`](Self::poll_put) under the lock of the outbox. Returns true if a
    /// flushing task must be started.
    ///
    /// # Errors
    ///
    /// The reason why nothing can be sent. The caller ends the connection for it, unless it has
    /// ended.
    fn put(&self, outbox: &mut Outbox, message: &[u8]) -> Poll<OrEnded<bool>> {
        if let Some(&why) = self.ended.get() {
            return Poll::Ready(Err(why));
        }
        if outbox.len() >= self.send_queue {
            return Poll::Pending;
        }
        let idle = outbox.len() == 0;
        // The caller has checked the length.
        outbox.push(message);
        if idle {
            match self.socket.try_write(outbox.bytes()) {
                Ok(written) => _ = outbox.wrote(written),
                Err(error) if would_block(&error) => {}
                Err(error) => return Poll::Ready(Err(failed(&error))),
            }
        }
        self.counts.sent.fetch_add(1, Relaxed);
        let bytes = message.len() as u64;
        self.counts.sent_bytes.fetch_add(bytes, Relaxed);
        let starts = outbox.len() > 0 && !outbox.flushing;
        outbox.flushing |= starts;
        Poll::Ready(Ok(starts))
    }

    pub(super) async fn recv(&self) -> Result<Bytes> {
        let poll = || self.inbox.poll(|inbox, cx| self.poll_take(inbox, cx));
        self.inbox.wait(poll).await.map_err(|why| {
            self.end(why);
            self.over(RECV)
        })
    }

    fn poll_take(&self, inbox: &mut Inbox, cx: &mut Context<'_>) -> Poll<OrEnded<Bytes>> {
        loop {
            if let Some(message) = self.take(inbox)? {
                return Poll::Ready(Ok(message));
            }
            ready!(self.socket.poll_readable(cx)).map_err(|error| failed(&error))?;
        }
    }

    pub(super) fn try_recv(&self) -> Result<Bytes> {
        let again = |text| Err(Error::new(ErrorKind::Again, RECV, text));
        if !self.inbox.lets_pass() {
            return again("another receive is under way");
        }
        match self.inbox.poll(|inbox, _| self.take(inbox)) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => again("no message has come: await recv"),
            Err(why) => {
                self.end(why);
                Err(self.over(RECV))
            }
        }
    }

    /// Returns the next message, from bytes that were read before or can be read now.
    ///
    /// # Errors
    ///
    /// The reason why no message will come. The caller ends the connection for it, unless it has
    /// ended.
    fn take(&self, inbox: &mut Inbox) -> OrEnded<Option<Bytes>> {
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
            match self.socket.try_read(&mut inbox.free()) {
                Ok(0) if inbox.is_torn() => return Err(Ended::Torn),
                Ok(0) => return Err(Ended::There),
                Ok(_) => {}
                Err(error) if would_block(&error) => return Ok(None),
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Waits until the messages that were sent so far are written. It does not wait in line with
    /// sends, which continue.
    pub(super) async fn flush(&self) -> Result<()> {
        let all = self.outbox.poll(|outbox, _| outbox.pushed());
        loop {
            let mut written = pin!(self.written.notified());
            // This comes before the outbox is polled, so that a later write is noticed.
            written.as_mut().enable();
            if self.outbox.poll(|outbox, _| outbox.written()) >= all {
                return Ok(());
            }
            if self.ended.get().is_some() {
                return Err(self.over(FLUSH));
            }
            written.await;
        }
    }

    /// Ends the connection once the socket has taken everything that was sent before.
    pub(super) async fn disconnect(&self) {
        let drained = self.outbox.wait(|| {
            // This is under the lock of the outbox, so that nothing is sent meanwhile.
            self.outbox.poll(|outbox, _| match self.ended.get() {
                Some(_) => Poll::Ready(false),
                None if outbox.len() == 0 => Poll::Ready(self.ended.set(Ended::Here).is_ok()),
                None => Poll::Pending,
            })
        });
        if drained.await {
            self.hang_up(Ended::Here);
        }
    }

    /// Ends the connection now. Messages that wait to be written are lost.
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
            sends_in_flight: self.outbox.poll(|outbox, _| outbox.len()),
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

/// The task that writes the waiting frames. If it is dropped before it is done, its runtime has
/// ended.
struct Flushing {
    connection: Arc<Connection>,
    /// True once this task has cleared `Outbox::flushing`. That field cannot show it: the next task
    /// may have set the field again already.
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

    /// Writes the waiting frames, as far as the socket takes them. The task is done once no frame
    /// waits.
    fn write_on(&mut self) {
        let Flushing { connection, done } = self;
        let mut wrote = 0;
        let end = connection.outbox.poll(|outbox, cx| {
            let end = match connection.socket.try_write(outbox.bytes()) {
                Ok(written) => {
                    wrote = outbox.wrote(written);
                    None
                }
                Err(error) if would_block(&error) => None,
                Err(error) => Some(failed(&error)),
            };
            if wrote > 0 {
                cx.waker().wake_by_ref();
            }
            *done = outbox.len() == 0 || end.is_some() || connection.ended.get().is_some();
            outbox.flushing = !*done;
            end
        });
        if wrote > 0 {
            connection.written.notify_waiters();
        }
        if let Some(why) = end {
            connection.end(why);
        }
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        if !self.done {
            self.connection.end(Ended::Runtime);
        }
    }
}
