//! A stream without RDMA: its frames on the connection on which its sides have met.
//!
//! A frame is a message of the exchange's codec, and there are no credits: the socket holds a
//! writer up whose peer does not read. What a write has accepted is the socket's, or that of a task
//! of its own, which writes the rest of a frame that the socket has not taken whole. So it goes on
//! though no task of the stream polls again, as it does over RDMA.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use crate::channel::{Inbox, Socket};
use crate::error::{JobError, Reason};
use crate::mem::{Buf, BufPool, BufWait};
use crate::reactor::budget;
use crate::stream::core::StreamStats;
use crate::stream::drain::Guest;
use crate::stream::flow::HEAD;

/// Bytes of the length before a frame.
const LENGTH: usize = 4;

/// The first and the longest pause between two looks whether the peer's host has all.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

/// The kinds of frames, as over RDMA.
const DATA: [u8; HEAD] = [0; HEAD];
const END: [u8; HEAD] = [1, 0, 0, 0];

/// What an error of the socket means for a stream.
fn lost(error: &io::Error) -> JobError {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    JobError::of(match error.kind() {
        BrokenPipe | ConnectionReset => Reason::PeerClosed,
        _ => Reason::NotConnected,
    })
}

pub(in crate::stream) struct TcpCore {
    socket: Arc<Socket>,
    /// Where the socket is registered.
    runtime: Handle,
    inbox: Inbox,
    /// What is left of the frame that is read.
    unread: Bytes,
    /// The peer has sent its end.
    ended: bool,
    /// Writes what the socket has not taken of the last frame.
    rest: Option<JoinHandle<io::Result<()>>>,
    recv_error: Option<JobError>,
    send_error: Option<JobError>,
    /// A task did not write all that was accepted.
    incomplete: bool,
    /// The end was sent, or nobody waits for it.
    closed: bool,
    /// Until the next look whether the peer's host has all, and the pause before it.
    pause: Option<(Pin<Box<Sleep>>, Duration)>,
    /// The longest frame that both sides take.
    frame: usize,
    bufs: Pin<Box<BufWait>>,
    /// The part of its memory that counts it among the `connections`.
    _control: [Buf; 2],
    counted: StreamStats,
    /// The next frame waits, which is counted.
    waits: bool,
    guest: Option<Guest>,
}

impl TcpCore {
    /// Goes on where the exchange has ended: `inbox` has what was read of the socket.
    pub(in crate::stream) fn new(
        socket: Arc<Socket>,
        runtime: Handle,
        mut inbox: Inbox,
        (receives, control): (BufPool, [Buf; 2]),
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
            recv_error: None,
            send_error: None,
            incomplete: false,
            closed: false,
            pause: None,
            frame,
            bufs: Box::pin(BufWait::new(&receives)),
            _control: control,
            counted: StreamStats::default(),
            waits: false,
            guest: None,
        }
    }

    pub(super) fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }

    pub(super) fn set_guest(&mut self, guest: Option<Guest>) {
        self.guest = guest;
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
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

    /// Takes the next frame.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let frame = loop {
            match self.inbox.next() {
                Ok(Some(frame)) => break frame,
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(JobError::of(Reason::PeerNonsense))),
            }
            let readable = ready!(self.socket.poll_readable(cx));
            match readable.and_then(|()| self.socket.try_read(&mut self.inbox.room())) {
                // It may still take what this side sends.
                Ok(0) => return Poll::Ready(Err(JobError::of(Reason::PeerClosed))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(self.fail(error))),
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

    /// Takes out what is left of the frame, by a copy into a Buf. `None` at the end.
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

    /// Gives up the turn of a `poll_take_buf` that was dropped.
    pub(super) fn leave_bufs(&mut self) {
        self.bufs.as_mut().stop();
    }

    /// Sends a frame of what it takes of these bytes. `None` if the stream was closed.
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
        self.poll_data(len, slices.iter().map(|slice| &slice[..]), cx)
            .map_ok(|()| Some(len))
    }

    /// Sends a frame of the data of a Buf, by a copy. `None` if the stream was closed.
    pub(super) fn poll_send_buf(
        &mut self,
        buf: &Buf,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<()>, JobError>> {
        if self.closed {
            return Poll::Ready(Ok(None));
        }
        let data = buf.data()?;
        // Another handle may have changed it since the caller looked.
        let len = data.len().min(self.max_message_size());
        self.poll_data(len, [&data[..]].into_iter(), cx)
            .map_ok(Some)
    }

    fn poll_data<'a>(
        &mut self,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        ready!(budget::proceed(cx));
        let sent = self.poll_send(&DATA, len, pieces, cx);
        if sent.is_pending() && !std::mem::replace(&mut self.waits, true) {
            self.counted.room_waits += 1;
        }
        ready!(sent)?;
        budget::spent(len);
        self.waits = false;
        self.counted.frames_sent += 1;
        self.counted.bytes_sent += len as u64;
        Poll::Ready(Ok(()))
    }

    fn poll_send<'a>(
        &mut self,
        head: &[u8; HEAD],
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), JobError>> {
        ready!(self.poll_rest(cx))?;
        loop {
            ready!(self.socket.poll_writable(cx)).map_err(|error| self.fail(error))?;
            let mut frame = BytesMut::with_capacity(LENGTH + HEAD + len);
            frame.put_u32((HEAD + len) as u32);
            frame.put_slice(head);
            for piece in pieces.clone() {
                let room = LENGTH + HEAD + len - frame.len();
                frame.put_slice(&piece[..piece.len().min(room)]);
            }
            match self.socket.try_write(&frame) {
                Ok(written) if written == frame.len() => return Poll::Ready(Ok(())),
                Ok(written) => {
                    let rest = write_all(Arc::clone(&self.socket), frame.split_off(written));
                    self.rest = Some(self.runtime.spawn(rest));
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(self.fail(error))),
            }
        }
    }

    /// Waits until the socket has all that was accepted.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        if let Some(rest) = &mut self.rest {
            let written = ready!(Pin::new(rest).poll(cx));
            self.rest = None;
            let gone = |_| Err(io::ErrorKind::NotConnected.into());
            if let Err(error) = written.unwrap_or_else(gone) {
                self.incomplete = true;
                self.fail(error);
            }
        }
        Poll::Ready(self.check())
    }

    /// Why nothing can be sent any more, if so.
    fn check(&self) -> Result<(), JobError> {
        self.send_error.map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: io::Error) -> JobError {
        *self.send_error.get_or_insert(lost(&error))
    }

    /// Says whether all is well. While something is on its way nobody knows what an error means.
    pub(super) fn flush(&mut self) -> Result<(), JobError> {
        match self.check() {
            Err(error) if self.rest.is_none() => self.after(error),
            _ => Ok(()),
        }
    }

    /// What an error means for those who end: whether something that was accepted is lost.
    fn after(&self, error: JobError) -> Result<(), JobError> {
        // Its end does not count.
        let end = if self.closed { LENGTH + HEAD } else { 0 };
        let all = !self.incomplete && self.socket.unacknowledged() <= end;
        match error.reason() != Reason::PeerNonsense && all {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Sends the end of the stream, and waits until the peer's host has all of it.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let ended = match ready!(self.poll_end(cx)) {
            Ok(()) => Ok(()),
            Err(error) => self.after(error),
        };
        self.closed |= ended.is_ok();
        Poll::Ready(ended)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        if !self.closed {
            ready!(self.poll_send(&END, 0, std::iter::empty(), cx))?;
            self.closed = true;
        }
        ready!(self.poll_rest(cx))?;
        loop {
            if self.socket.unacknowledged() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.check()?;
            self.socket.take_error().map_err(|error| self.fail(error))?;
            ready!(self.poll_pause(cx))?;
        }
    }

    /// Waits until the next look, which no event calls for.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let [first, longest] = PAUSES;
        if self.pause.is_none() {
            // Timers of a runtime that has gone panic: its sockets fail.
            if let Poll::Ready(Err(error)) = self.socket.poll_writable(cx) {
                return Poll::Ready(Err(self.fail(error)));
            }
            let here = Handle::try_current();
            let _entered = here.is_err().then(|| self.runtime.enter());
            self.pause = Some((Box::pin(tokio::time::sleep(first)), first));
        }
        if let Some((sleep, pause)) = &mut self.pause {
            ready!(sleep.as_mut().poll(cx));
            *pause = longest.min(*pause * 2);
            sleep.as_mut().reset(Instant::now() + *pause);
        }
        Poll::Ready(Ok(()))
    }

    /// Shuts a stream down that nobody reads any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.leave_bufs();
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

    /// Ends the connection without an end of the data.
    pub(super) fn reset(&self) {
        self.socket.hang_up();
    }
}

/// Writes the rest of a frame.
async fn write_all(socket: Arc<Socket>, mut rest: BytesMut) -> io::Result<()> {
    while !rest.is_empty() {
        socket.writable().await?;
        match socket.try_write(&rest) {
            Ok(written) => rest.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
