//! A replica: memory that one primary at a time writes and reads. It does nothing with it itself.

use std::io::Write;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_doca::mem::Access;
use tokio_doca::stream::{Incoming, StreamAddr, StreamOptions};
use tokio_doca::{Device, Mmap, WorkQ};

use super::Result;
use super::layout::Layout;

/// Lends the memory as long as the process lives. A primary that is killed leaves it as it was.
pub(crate) async fn serve(addr: StreamAddr, device: &Device, layout: Layout) -> Result<()> {
    let workq = WorkQ::builder().build()?;
    let peers = Access::RDMA_READ | Access::RDMA_WRITE;
    let memory = Mmap::builder()
        .device(device)
        .access(Access::LOCAL_READ_WRITE | peers);
    let memory = memory.alloc(layout.bytes())?;
    let blob: Arc<[u8]> = memory.export_rdma(device)?.into();
    // Nothing is said on the streams, and strangers have one for a moment.
    let options = StreamOptions::new().frame_size(64).recv_window(1);
    let listener = options
        .permissions(peers)
        .bind(device, &workq, addr)
        .await?;
    super::say(&format!("Listening on {}", listener.local_addr()));
    let place = Arc::new(Semaphore::new(1));
    loop {
        let incoming = listener.accept().await?;
        let (place, blob) = (Arc::clone(&place), Arc::clone(&blob));
        // One that is slow, or says that it comes and does not, holds up no other.
        tokio::spawn(async move {
            if let Err(error) = lend(incoming, &place, &blob).await {
                let _ = writeln!(std::io::stderr(), "block_store: a primary: {error}");
            }
        });
    }
}

/// Lends the memory to a primary until it ends, if no other one has it. Whether a primary that says
/// nothing lives is for its connection to find out.
async fn lend(incoming: Incoming, place: &Semaphore, blob: &[u8]) -> Result<()> {
    const TAKEN: &str = "another primary is connected";
    if place.available_permits() == 0 {
        return Ok(incoming.refuse(TAKEN).await?);
    }
    // First: who has not come has no place.
    let mut stream = incoming.accept(b"").await?;
    let _place = place.try_acquire().map_err(|_| TAKEN)?;
    // And who has no place cannot write: the blob has the key.
    stream.write_u32(blob.len() as u32).await?;
    stream.write_all(blob).await?;
    let _ = stream.read(&mut [0]).await;
    Ok(())
}
