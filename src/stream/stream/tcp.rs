//! A stream without RDMA: its frames on the connection on which its sides have met.
//!
//! A frame is a message of the exchange's codec. There are no credits: if the peer does not read,
//! the full socket holds the writer up. If the socket takes only a part of a frame, a spawned task
//! writes the rest. So every accepted write is sent even if the application does not poll the
//! stream again, as with RDMA.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::channel::{Inbox, Socket};
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufWait};
use crate::reactor::budget;
use crate::stream::core::StreamStats;
use crate::stream::flow::HEAD;
use crate::stream::side::Pools;

/// The length of the length field before a frame, in bytes.
const LENGTH: usize = 4;

/// The first and the longest pause between two checks whether the peer's host has received
/// everything.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

/// Milliseconds after which the system gives up a peer that does not answer, at the earliest.
const SILENCE: u64 = 60_000;

/// The header of a frame with data, as over RDMA; below, that of the end.
const DATA: [u8; HEAD] = [0; HEAD];
const END: [u8; HEAD] = [1, 0, 0, 0];

/// Maps an error of the socket to the error of a stream.
fn lost(error: &io::Error) -> JobError {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, HostUnreachable, TimedOut};
    match error.kind() {
        BrokenPipe | ConnectionReset => JobError::of(Reason::PeerClosed),
        TimedOut | HostUnreachable => JobError::new(Reason::PeerSilent, SILENCE, 0),
        _ => JobError::of(Reason::NotConnected),
    }
}

/// A task on the runtime of the socket, which continues although the stream is not polled.
type Task = Option<JoinHandle<io::Result<()>>>;

fn poll_task(task: &mut Task, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let Some(handle) = task else {
        return Poll::Ready(Ok(()));
    };
    let ended = ready!(Pin::new(handle).poll(cx));
    *task = None;
    // The task's runtime has gone.
    Poll::Ready(ended.unwrap_or_else(|_| Err(io::ErrorKind::NotConnected.into())))
}

pub(in crate::stream) struct TcpCore {
    socket: Arc<Socket>,
    /// The runtime on which the socket is registered.
    runtime: Handle,
    inbox: Inbox,
    /// The rest of the frame that the application reads.
    unread: Bytes,
    /// True once the peer has sent the end of the stream.
    ended: bool,
    /// The task that writes the part of the last frame that the socket has not taken.
    rest: Task,
    /// The task that waits until the peer's host has received everything.
    delivery: Task,
    recv_error: Option<JobError>,
    send_error: Option<JobError>,
    /// True if the rest of a frame could not be written.
    incomplete: bool,
    /// True once the end was sent, or its failure does not matter.
    closed: bool,
    /// The longest frame that both sides take.
    frame: usize,
    bufs: Pin<Box<BufWait>>,
    /// Counts the stream among the `connections`.
    _pools: Pools,
    counted: StreamStats,
    /// True while the next frame waits, so that the wait is counted once.
    waits: bool,
}

impl TcpCore {
    /// Makes a stream on the socket of an exchange. `inbox` has the bytes that were read from the
    /// socket but not used.
    pub(in crate::stream) fn new(
        socket: Arc<Socket>,
        runtime: Handle,
        mut inbox: Inbox,
        pools: Pools,
        frame: usize,
    ) -> TcpCore {
        socket.keep_alive();
        inbox.agree(frame, 1);
        TcpCore {
            socket,
            runtime,
            inbox,
            unread: Bytes::new(),
            ended: false,
            rest: None,
            delivery: None,
            recv_error: None,
            send_error: None,
            incomplete: false,
            closed: false,
            frame,
            bufs: Box::pin(BufWait::new(&pools.receives)),
            _pools: pools,
            counted: StreamStats::default(),
            waits: false,
        }
    }

    pub(super) fn stats(&self) -> StreamStats {
        StreamStats {
            frames_unread: u64::from(!self.unread.is_empty()),
            ..self.counted
        }
    }

    pub(super) fn max_message_size(&self) -> usize {
        self.frame - HEAD
    }

    /// Receives the next frame from the socket.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let frame = loop {
            match self.inbox.next() {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(JobError::of(Reason::PeerNonsense))),
            }
            let readable = ready!(self.socket.poll_readable(cx));
            match readable.and_then(|()| self.socket.try_read(&mut self.inbox.free())) {
                // Only reading fails: the peer may still read what this side sends.
                Ok(0) => return Poll::Ready(Err(JobError::of(Reason::PeerClosed))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(self.fail(&error))),
            }
        };
        Poll::Ready(match frame.split_first_chunk() {
            Some((&DATA, [_, ..])) => {
                self.unread = frame.slice(HEAD..);
                self.counted.frames_received += 1;
                self.counted.bytes_received += self.unread.len() as u64;
                Ok(())
            }
            Some((&END, [])) => {
                self.ended = true;
                // The peer may wait for the acknowledgment.
                self.socket.acknowledge();
                Ok(())
            }
            _ => Err(JobError::of(Reason::PeerNonsense)),
        })
    }

    /// Waits until there is something to read, or the end of the stream.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        while self.unread.is_empty() && !self.ended {
            if let Some(error) = self.recv_error {
                return Poll::Ready(Err(error));
            }
            ready!(budget::proceed(cx));
            if let Err(error) = ready!(self.poll_frame(cx)) {
                self.recv_error = Some(error);
                if error.reason() == Reason::PeerNonsense {
                    self.send_error = Some(error);
                    self.socket.hang_up();
                }
            }
            budget::spent(self.unread.len());
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.unread
    }

    pub(super) fn consume(&mut self, len: usize, _: &mut Context<'_>) {
        self.unread.advance(len.min(self.unread.len()));
    }

    /// Copies the rest of the frame into a Buf. Returns `None` at the end of the stream.
    pub(super) fn poll_take_buf(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Buf>, JobError>> {
        if self.unread.is_empty() {
            return Poll::Ready(Ok(None));
        }
        let Some(buf) = self.bufs.as_mut().poll(cx.waker()) else {
            return Poll::Pending;
        };
        let copied = buf.set_data(HEAD, 0);
        copied.and_then(|()| buf.extend_from_slice(&self.unread))?;
        self.unread.clear();
        Poll::Ready(Ok(Some(buf)))
    }

    /// Takes a dropped `recv_buf` out of the line in which it waited for a Buf.
    pub(super) fn leave_bufs(&mut self, _: &mut Context<'_>) {
        self.bufs.as_mut().stop();
    }

    /// Sends as many of these bytes as fit into one frame, and returns their number; `None` if the
    /// stream was closed.
    pub(super) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<usize>, JobError>> {
        if self.closed {
            return Poll::Ready(Ok(None));
        }
        let len = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let len = len.min(self.max_message_size());
        if len == 0 {
            return Poll::Ready(self.check().map(|()| Some(0)));
        }
        ready!(budget::proceed(cx));
        let sent = self.poll_send(&DATA, len, slices, cx);
        if sent.is_pending() && !std::mem::replace(&mut self.waits, true) {
            self.counted.resource_waits += 1;
        }
        ready!(sent)?;
        budget::spent(len);
        self.waits = false;
        self.counted.frames_sent += 1;
        self.counted.bytes_sent += len as u64;
        Poll::Ready(Ok(Some(len)))
    }

    /// Sends the data of a Buf as a frame, by a copy. Returns `None` if the stream was closed.
    pub(super) fn poll_send_buf(
        &mut self,
        buf: &Buf,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<()>, JobError>> {
        let data = buf.data()?;
        self.poll_write(&[IoSlice::new(&data)], cx)
            .map_ok(|sent| sent.map(drop))
    }

    fn poll_send(
        &mut self,
        head: &[u8; HEAD],
        len: usize,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        ready!(self.poll_rest(cx))?;
        loop {
            ready!(self.socket.poll_writable(cx)).map_err(|error| self.fail(&error))?;
            let mut frame = BytesMut::with_capacity(LENGTH + HEAD + len);
            frame.put_u32((HEAD + len) as u32);
            frame.put_slice(head);
            for slice in slices {
                let capacity = LENGTH + HEAD + len - frame.len();
                frame.put_slice(&slice[..slice.len().min(capacity)]);
            }
            match self.socket.try_write(&frame) {
                Ok(written) if written == frame.len() => return Poll::Ready(Ok(())),
                Ok(written) => {
                    let (socket, rest) = (Arc::clone(&self.socket), frame.split_off(written));
                    let write = async move { socket.write_all(&rest).await };
                    self.rest = Some(self.runtime.spawn(write));
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(self.fail(&error))),
            }
        }
    }

    /// Waits until the socket has taken everything that was accepted.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        if let Err(error) = ready!(poll_task(&mut self.rest, cx)) {
            // A lost end of the stream does not count as lost data.
            self.incomplete |= !self.closed;
            self.fail(&error);
        }
        Poll::Ready(self.check())
    }

    /// Returns the error after which nothing can be sent any more, if there is one.
    fn check(&self) -> Result<(), JobError> {
        self.send_error.map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: &io::Error) -> JobError {
        *self.send_error.get_or_insert(lost(error))
    }

    /// Waits until the socket has taken what was written, and returns an error if accepted data is
    /// lost.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        _ = ready!(self.poll_rest(cx));
        if let Err(error) = self.socket.take_error() {
            self.fail(&error);
        }
        Poll::Ready(self.check().or_else(|error| self.after(error)))
    }

    /// Returns `error` if accepted data may be lost, or `Ok` if the peer's host has received
    /// everything.
    fn after(&self, error: JobError) -> Result<(), JobError> {
        // The end of the stream does not count, nor does the byte that the system adds if this side
        // has hung up.
        let end = if self.closed { LENGTH + HEAD } else { 0 } + 1;
        match self.incomplete || self.socket.unacknowledged() > end {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Sends the end of the stream, and waits until the peer's host has received everything.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let ended = ready!(self.poll_end(cx)).or_else(|error| self.after(error));
        self.closed |= ended.is_ok();
        Poll::Ready(ended)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        if !self.closed {
            ready!(self.poll_send(&END, 0, &[], cx))?;
            self.closed = true;
        }
        ready!(self.poll_rest(cx))?;
        while self.delivery.is_some() || self.socket.unacknowledged() > 0 {
            let (socket, runtime) = (&self.socket, &self.runtime);
            let wait = || Some(runtime.spawn(delivered(Arc::clone(socket))));
            self.delivery = self.delivery.take().or_else(wait);
            ready!(poll_task(&mut self.delivery, cx)).map_err(|error| self.fail(&error))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Shuts down a stream that the application does not read any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.bufs.as_mut().stop();
        loop {
            if let Poll::Ready(closed) = self.poll_shutdown(cx) {
                return Poll::Ready(closed);
            }
            self.unread.clear();
            if self.ended || ready!(self.poll_fill(cx)).is_err() {
                return Poll::Pending;
            }
        }
    }

    /// Closes the connection without sending the end of the stream.
    pub(super) fn reset(&self) {
        self.socket.hang_up();
    }
}

impl Drop for TcpCore {
    /// Aborts the tasks, so that a peer that does not read keeps no task and no socket.
    fn drop(&mut self) {
        let tasks = [&self.rest, &self.delivery];
        tasks.into_iter().flatten().for_each(JoinHandle::abort);
    }
}

/// Waits until the peer's host has received everything that was written. It polls the socket, since
/// the system has no event for this.
async fn delivered(socket: Arc<Socket>) -> io::Result<()> {
    let [mut pause, longest] = PAUSES;
    while socket.unacknowledged() > 0 {
        socket.take_error()?;
        tokio::time::sleep(pause).await;
        pause = longest.min(pause * 2);
    }
    Ok(())
}
