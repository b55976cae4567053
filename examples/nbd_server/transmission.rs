//! The requests of a client, one after the other, in the order in which they come.

use std::future::Future;
use std::io::{self, IoSlice};

use bytes::BufMut;
use tokio::io::{AsyncBufRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_doca::Buf;

use super::STALLED;
use super::disk::{Disk, PART};
use super::handshake::Agreed;
use super::wire::*;

/// A client that has the export.
struct Client<'a, S> {
    disk: &'a Disk,
    stream: &'a mut S,
    agreed: Agreed,
}

/// Serves a client until it leaves.
///
/// # Errors
///
/// If it breaks the protocol, stalls or ends amid a request.
pub(crate) async fn serve<S>(disk: &Disk, stream: &mut S, agreed: Agreed) -> io::Result<()>
where
    S: AsyncBufRead + AsyncWrite + Unpin,
{
    let mut client = Client {
        disk,
        stream,
        agreed,
    };
    while let Some(request) = Request::read(client.stream).await? {
        match request.command {
            CMD_DISC => return Ok(()),
            CMD_READ => client.read(request).await?,
            CMD_WRITE => client.write(request).await?,
            _ => client.other(request).await?,
        }
    }
    Ok(())
}

/// Ends a step of a client that has stalled.
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALLED, step).await?
}

/// What the client is told of an error of this side.
fn failed(error: io::Error) -> u32 {
    eprintln!("nbd_server: the disk: {error}");
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
            return self.send(&done, &[]).await;
        }
        let disk = self.disk;
        let part = match disk.part(range) {
            Ok(part) => part,
            Err(error) => return self.refuse(request, failed(error)).await,
        };
        let _returned = disk.returned();
        let data = match disk.lend(&part).await {
            Ok(data) => data,
            Err(error) => return self.refuse(request, failed(error)).await,
        };
        let head = match self.agreed.structured {
            true => {
                let mut head = chunk(cookie, CHUNK_DATA, 8 + len);
                head.put_u64(at);
                head
            }
            false => simple(cookie, 0),
        };
        self.send(&head, &data).await
    }

    async fn write(&mut self, request: Request) -> io::Result<()> {
        let Request { at, len, flags, .. } = request;
        let (disk, range) = (self.disk, self.disk.range(at, len));
        let mut error = match range {
            _ if disk.read_only => EPERM,
            _ if len > MAX_PAYLOAD || flags & !FLAG_FUA != 0 => EINVAL,
            None => ENOSPC,
            Some(_) => 0,
        };
        // What is refused comes all the same.
        let buf = disk.pool.alloc().await;
        for from in (0..len as usize).step_by(PART) {
            self.receive(&buf, PART.min(len as usize - from)).await?;
            if let (0, Some(range)) = (error, &range) {
                let written = disk.write(&buf, range.start + from).await;
                error = written.map_or_else(failed, |()| 0);
            }
        }
        self.finish(request, error).await
    }

    /// A request without data.
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
            // A trimmed part reads as zeroes.
            Some(range) => disk.zero(range).await.map_or_else(failed, |()| 0),
        };
        self.finish(request, error).await
    }

    /// Answers a request that was not a read. One that shall be safe is flushed first.
    async fn finish(&mut self, request: Request, mut error: u32) -> io::Result<()> {
        if error == 0 && request.flags & FLAG_FUA != 0 {
            error = self.disk.flush().await.map_or_else(failed, |()| 0);
        }
        self.send(&simple(request.cookie, error), &[]).await
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
        self.send(&reply, &[]).await
    }

    /// Receives so many bytes into an empty Buf.
    async fn receive(&mut self, buf: &Buf, len: usize) -> io::Result<()> {
        buf.reset_data_len()?;
        let mut room = buf.data_mut()?.limit(len);
        while room.has_remaining_mut() {
            if in_time(self.stream.read_buf(&mut room)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    async fn send(&mut self, head: &[u8], data: &[u8]) -> io::Result<()> {
        let mut parts = [IoSlice::new(head), IoSlice::new(data)];
        let mut left = &mut parts[..];
        while !left.is_empty() {
            let sent = in_time(self.stream.write_vectored(left)).await?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, sent);
        }
        Ok(())
    }
}
