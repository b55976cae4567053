//! What the server has of a connection: its part in the operations of the other side.

use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_doca::mem::Access;
use tokio_doca::stream::RdmaStream;
use tokio_doca::{Buf, Device, Mmap, Rdma, WorkQ};

use super::Asked;
use crate::bench::load::memory::{LINE, filled, pool, touched};
use crate::bench::load::pair::{ALL, context};
use crate::bench::load::{Kind, Result, rdma_send, stream};
use crate::transfer::ANSWER;

pub(super) enum Part {
    /// It sends the bytes of the stream back.
    Stream { size: usize },
    /// It lends memory.
    Memory { rdma: Rdma, _lent: Mmap },
    /// It answers messages.
    Messages {
        rdma: Rdma,
        answer: Buf,
        bufs: Vec<Buf>,
    },
}

/// Memory for `depth` operations in flight, each at lines of its own, which a peer may reach.
pub(in crate::bench) fn lent(device: &Device, size: usize, depth: usize) -> Result<Mmap> {
    let mmap = Mmap::builder().device(device);
    let mmap = mmap.access(Access::LOCAL_READ_WRITE | ALL);
    Ok(mmap.alloc(size.next_multiple_of(LINE) * depth)?)
}

impl Part {
    /// Makes what the other side asks for. Also returns the blob of the memory that is lent.
    pub(super) fn of(device: &Device, asked: Asked) -> Result<(Part, Vec<u8>)> {
        let (size, depth) = (asked.size as usize, asked.depth as usize);
        if asked.kind == Kind::Stream {
            return Ok((Part::Stream { size }, Vec::new()));
        }
        let workq = WorkQ::builder().depth(2 * asked.depth).build()?;
        let rdma = context(device, &workq, depth)?;
        if asked.kind != Kind::RdmaSend {
            let mmap = lent(device, size, depth)?;
            let blob = mmap.export_rdma(device)?;
            return Ok((Part::Memory { rdma, _lent: mmap }, blob));
        }
        let pool = pool(device, size, depth + 1)?;
        let bufs = (0..depth).map(|_| touched(&pool));
        let part = Part::Messages {
            rdma,
            answer: filled(&pool, size)?,
            bufs: bufs.collect::<Result<_>>()?,
        };
        Ok((part, Vec::new()))
    }

    /// Plays it until the other side ends the stream.
    pub(super) async fn play(self, stream: &mut RdmaStream) -> Result<(), String> {
        match &self {
            Part::Stream { size } => stream::echo(stream, *size).await,
            Part::Memory { rdma, .. } => {
                accept(rdma, stream).await?;
                // The other side works there meanwhile.
                ended(stream).await;
            }
            Part::Messages { rdma, answer, bufs } => {
                accept(rdma, stream).await?;
                tokio::select! {
                    // It ends when the connection does.
                    _ = rdma_send::echo(rdma, answer, bufs) => {}
                    () = ended(stream) => {}
                }
            }
        }
        Ok(())
    }
}

/// Lets the other side connect, which may be hostile.
async fn accept(rdma: &Rdma, stream: &mut RdmaStream) -> Result<(), String> {
    let accepted = timeout(ANSWER, rdma.handshake_accept(stream)).await;
    let late = |_| format!("it did not connect within {} s", ANSWER.as_secs());
    accepted
        .map_err(late)?
        .map_err(|error| crate::failure::text(&error))
}

/// Waits until the other side ends the stream, or breaks the protocol by a byte.
async fn ended(stream: &mut RdmaStream) {
    let _ = stream.read(&mut [0]).await;
}
