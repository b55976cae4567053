//! The frames that a stream could not send at once: the frame that writes are filling, and the
//! frame of credits, or the confirmation of the peer's end, that the stream owes the peer.
//!
//! Neither frame waits for another call of the application, which may not come for long: the
//! stream's own tasks send them (`stream/rest.rs`).

use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use super::Core;
use crate::error::JobError;
use crate::stream::flow::{HEAD, Kind};

impl Core {
    /// Returns true if the frame that the stream owes, or the frame that was begun, is to be sent.
    pub(in crate::stream) fn has_rest(&self) -> bool {
        self.owes || self.begun.is_some()
    }

    /// Sends what can be sent now.
    pub(in crate::stream) fn poll_rest(&mut self, cx: &mut Context<'_>) {
        _ = self.poll_owed(cx);
        _ = self.poll_begun(cx);
        // On the way to a credit, the peer's end may have come, which this side confirms.
        _ = self.poll_owed(cx);
    }

    /// Cleans up after sending has ended. The frame that was begun is lost; this returns its Buf
    /// and gives up its turn in the line, which may belong to a write.
    pub(super) fn lose_rest(&mut self) {
        self.owes = false;
        self.lost |= self.begun.take().is_some();
        self.leave_line();
    }

    /// Gives up a turn in the line that is not needed any more. A write that needs a turn enqueues
    /// again.
    fn leave_line(&mut self) {
        if self.sends.is_in_line() {
            self.sends.leave();
            self.wakers.wake_writer();
        }
    }

    /// Returns true if a wait on this thread would notice the completions of sends.
    pub(in crate::stream) fn is_notified_here(&self) -> bool {
        self.sends.is_notified_here()
    }

    /// Sends the frame that the stream owes, if it owes one.
    ///
    /// # Errors
    ///
    /// Only the error which says that the stream cannot wait here. Other errors end sending.
    pub(super) fn poll_owed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        while self.owes {
            if let Err(error) = self.check() {
                self.fail(error);
                break;
            }
            // The peer may have received the last such frame before this side knows that its send
            // has completed.
            if self.credits.reset_data_len().is_err() {
                if self.sends.in_flight() == 0 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                if let Err(error) = ready!(self.sends.poll_end(cx)) {
                    self.fail(error);
                    if error.cannot_wait() {
                        return Poll::Ready(Err(error));
                    }
                }
                continue;
            }
            let lent = self.lend(cx);
            let mut flow = self.flow;
            // Another frame may have carried the credits meanwhile.
            let Some(kind) = flow.due(lent) else {
                self.owes = false;
                self.leave_line();
                break;
            };
            let head = flow.head(kind, lent);
            let credits = &self.credits;
            let frame = || {
                credits.reset_data_len()?;
                credits.extend_from_slice(&head)?;
                Ok(credits.clone())
            };
            match ready!(self.sends.poll_send(cx, frame)) {
                Ok(()) => self.flow = flow,
                Err(error) if error.cannot_wait() => return Poll::Ready(Err(self.fail(error))),
                // The next write returns the error. The reader still gets the frames that have
                // arrived.
                Err(error) => _ = self.fail(error),
            }
            self.owes = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the frame that was begun, if there is one. If that fails, the frame is lost.
    pub(super) fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        let Some(begun) = &self.begun else {
            return Poll::Ready(Ok(()));
        };
        let begun = begun.clone();
        let sent = match self.check() {
            Ok(()) => ready!(self.poll_capacity(cx, |core, cx| {
                core.poll_frame_of(Kind::Data, cx, |head| {
                    begun.copy_in(0, &head)?;
                    Ok(begun.clone())
                })
            })),
            error => error,
        };
        if let Err(error) = sent {
            return Poll::Ready(Err(self.fail(error)));
        }
        self.data_end = self.sends.accepted();
        self.begun = None;
        self.count_frame();
        Poll::Ready(Ok(()))
    }

    /// Copies the part of a write that fits into the frame that was begun. If no frame was begun,
    /// and the write waits for credits or for the window, this begins one. Returns how many bytes
    /// were copied; 0 if the write must wait.
    pub(super) fn fill(
        &mut self,
        slices: &[IoSlice<'_>],
        len: usize,
        cx: &mut Context<'_>,
    ) -> Result<usize, JobError> {
        let mut flow = self.flow;
        let mut left = flow.fill(len);
        if left == 0 || (self.begun.is_none() && !self.begin_frame(cx)) {
            return Ok(0);
        }
        let (taken, begun) = (left, self.begun.as_ref().expect("there is one"));
        for slice in slices {
            let piece = &slice[..slice.len().min(left)];
            begun.extend_from_slice(piece)?;
            left -= piece.len();
        }
        self.flow = flow;
        self.count_accepted(taken);
        Ok(taken)
    }

    /// Takes a Buf for a frame that waits for credits or for the window, if a Buf is free and no
    /// task is in line for one.
    fn begin_frame(&mut self, cx: &mut Context<'_>) -> bool {
        let waits = !self.flow.may_send() || self.sends.in_flight() >= self.send_window;
        if self.eager || !waits {
            return false;
        }
        let Some(buf) = self.bufs.as_mut().poll(cx.waker()) else {
            self.bufs.as_mut().stop();
            return false;
        };
        // `poll_begun` writes the header once it is known.
        let begins = buf
            .set_data(0, 0)
            .and_then(|()| buf.extend_from_slice(&[0; HEAD]));
        self.begun = begins.is_ok().then_some(buf);
        self.begun.is_some()
    }

    /// Fills the frame that was begun, as `fill` does. Returns `None` if there is no such frame.
    pub(in crate::stream) fn try_fill(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Option<usize> {
        if self.closed || self.begun.is_none() || self.check().is_err() {
            return None;
        }
        let len = slices.iter().map(|slice| slice.len()).sum();
        self.fill(slices, len, cx).ok().filter(|&taken| taken > 0)
    }
}
