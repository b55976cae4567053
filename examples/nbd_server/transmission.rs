//! Serves the requests of a client one after the other, in the order in which they arrive.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::BufMut;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tokio_doca::Buf;

use super::complain;
use super::disk::{Disk, parts};
use super::handshake::Agreed;
use super::wire::*;

/// The minimum rate at which a client must send or receive within a request, in bytes per second.
const RATE: u32 = 1 << 20;

/// A client that has chosen an export.
struct Client<'a, S> {
    disk: &'a Disk,
    stream: &'a mut S,
    agreed: Agreed,
    /// How much longer the client may keep the server waiting within the current request.
    left: Duration,
}

/// Serves a client until it leaves.
///
/// # Errors
///
/// Fails if the client breaks the protocol, stalls, or disconnects within a request.
pub(crate) async fn serve<S>(disk: &Disk, stream: &mut S, agreed: Agreed) -> io::Result<()>
where
    S: AsyncBufRead + AsyncWrite + Unpin,
{
    let mut client = Client {
        disk,
        stream,
        agreed,
        left: Duration::ZERO,
    };
    // Between two requests a client may be idle for any time.
    while !client.stream.fill_buf().await?.is_empty() {
        client.left = disk.stall;
        let request = in_time(&mut client.left, Request::read(client.stream)).await?;
        client.left = disk.stall + Duration::from_secs(1) * request.len / RATE;
        match request.command {
            CMD_DISC => return Ok(()),
            CMD_READ => client.read(request).await?,
            CMD_WRITE => client.write(request).await?,
            _ => client.other(request).await?,
        }
    }
    Ok(())
}

/// Waits for one step of the client. `left` is the time for this and all later steps of its
/// request. Time in which the client waits for the disk does not count.
async fn in_time<T>(
    left: &mut Duration,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let begun = Instant::now();
    let done = timeout(*left, step).await?;
    let rest = left.checked_sub(begun.elapsed());
    *left = rest.ok_or(io::ErrorKind::TimedOut)?;
    done
}

/// Waits until something wakes the task.
async fn woken() -> io::Result<()> {
    let mut slept = false;
    poll_fn(|_| match mem::replace(&mut slept, true) {
        true => Poll::Ready(Ok(())),
        false => Poll::Pending,
    })
    .await
}

/// Logs an error of the server, and returns the code that the client gets.
fn failed(error: io::Error) -> u32 {
    complain("the disk", &error);
    EIO
}

impl<S: AsyncBufRead + AsyncWrite + Unpin> Client<'_, S> {
    async fn read(&mut self, request: Request) -> io::Result<()> {
        let Request {
            cookie, at, len, ..
        } = request;
        let allowed = match self.agreed.structured {
            true => FLAG_DF | FLAG_FUA,
            false => FLAG_FUA,
        };
        let range = match self.disk.range(at, len) {
            Some(range) if len <= MAX_PAYLOAD && request.flags & !allowed == 0 => range,
            _ => return self.refuse(request, EINVAL).await,
        };
        if range.is_empty() {
            let done = match self.agreed.structured {
                true => chunk(cookie, CHUNK_NONE, 0),
                false => simple(cookie, 0),
            };
            return self.send(&done).await;
        }
        let mut head = match self.agreed.structured {
            true => {
                let mut head = chunk(cookie, CHUNK_DATA, 8 + len);
                head.put_u64(at);
                head
            }
            false => simple(cookie, 0),
        };
        for part in parts(range) {
            self.send_part(&head, part).await?;
            head.clear();
        }
        Ok(())
    }

    async fn write(&mut self, request: Request) -> io::Result<()> {
        let Request { at, len, flags, .. } = request;
        let disk = self.disk;
        let (mut error, range) = match disk.range(at, len) {
            _ if disk.read_only => (EPERM, None),
            _ if len > MAX_PAYLOAD || flags & !FLAG_FUA != 0 => (EINVAL, None),
            None => (ENOSPC, None),
            range => (0, range),
        };
        // The client sends the data of a refused write too. The data is received and dropped.
        let buf = disk.pool.alloc().await;
        for part in parts(range.unwrap_or(0..len as usize)) {
            self.receive(&buf, part.len()).await?;
            if error == 0 {
                let written = disk.write(&buf, part).await;
                error = written.map_or_else(failed, |()| 0);
            }
        }
        self.finish(request, error).await
    }

    /// Executes a request without data.
    async fn other(&mut self, request: Request) -> io::Result<()> {
        let Request {
            at, len, command, ..
        } = request;
        let disk = self.disk;
        let (known, allowed) = match command {
            CMD_FLUSH => (true, FLAG_FUA),
            CMD_TRIM => (!disk.read_only, FLAG_FUA),
            CMD_WRITE_ZEROES => (!disk.read_only, FLAG_FUA | FLAG_NO_HOLE),
            _ => return self.finish(request, EINVAL).await,
        };
        let error = match disk.range(at, len) {
            _ if !known => EPERM,
            _ if request.flags & !allowed != 0 => EINVAL,
            _ if command == CMD_FLUSH => disk.flush().await.map_or_else(failed, |()| 0),
            None => ENOSPC,
            // A trimmed range reads as zeroes.
            Some(range) => disk.zero(range).await.map_or_else(failed, |()| 0),
        };
        self.finish(request, error).await
    }

    /// Answers a request other than a read. If the request has `FLAG_FUA`, flushes the disk first.
    async fn finish(&mut self, request: Request, mut error: u32) -> io::Result<()> {
        if error == 0 && request.flags & FLAG_FUA != 0 {
            error = self.disk.flush().await.map_or_else(failed, |()| 0);
        }
        self.send(&simple(request.cookie, error)).await
    }

    /// Answers a read that fails.
    async fn refuse(&mut self, request: Request, error: u32) -> io::Result<()> {
        let mut reply = match self.agreed.structured {
            true => chunk(request.cookie, CHUNK_ERROR, 6),
            false => simple(request.cookie, error),
        };
        if self.agreed.structured {
            reply.put_u32(error);
            reply.put_u16(0);
        }
        self.send(&reply).await
    }

    /// Empties the Buf, and receives `len` bytes into it.
    async fn receive(&mut self, buf: &Buf, len: usize) -> io::Result<()> {
        buf.reset_data_len()?;
        let mut room = buf.data_mut()?.limit(len);
        while room.has_remaining_mut() {
            if in_time(&mut self.left, self.stream.read_buf(&mut room)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    async fn send(&mut self, reply: &[u8]) -> io::Result<()> {
        in_time(&mut self.left, self.stream.write_all(reply)).await
    }

    /// Sends the head of a reply, if any, and a part of the disk. The part is locked only while the
    /// socket accepts bytes, so that a client that reads nothing does not block writers.
    async fn send_part(&mut self, head: &[u8], part: Range<usize>) -> io::Result<()> {
        let (disk, mut sent) = (self.disk, 0);
        let (len, buf) = (head.len() + part.len(), disk.part(part.clone())?);
        while sent < len {
            let held = disk.lock(&part).read().await;
            let tried = {
                let data = buf.data()?;
                let mut slices = [IoSlice::new(head), IoSlice::new(&data)];
                let mut slices = &mut slices[..];
                IoSlice::advance_slices(&mut slices, sent);
                let socket = &mut *self.stream;
                poll_fn(|cx| Poll::Ready(Pin::new(&mut *socket).poll_write_vectored(cx, slices)))
                    .await
            };
            drop(held);
            match tried {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(done) => sent += done?,
                // The socket wakes this task, which then tries again.
                Poll::Pending => in_time(&mut self.left, woken()).await?,
            }
        }
        Ok(())
    }
}
