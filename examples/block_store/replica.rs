//! A replica lends memory, which one primary at a time reads and writes. The replica itself never
//! uses it.

use std::io::Write;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_doca::mem::Access;
use tokio_doca::stream::{Incoming, StreamAddr, StreamOptions};
use tokio_doca::{Device, Mmap, WorkQ};

use super::Result;
use super::layout::Layout;

/// Lends the memory until the process ends. The memory keeps its contents when a primary is killed.
pub(crate) async fn serve(addr: StreamAddr, device: &Device, layout: Layout) -> Result<()> {
    let workq = WorkQ::builder().build()?;
    let peers = Access::RDMA_READ | Access::RDMA_WRITE;
    let memory = Mmap::builder()
        .device(device)
        .access(Access::LOCAL_READ_WRITE | peers);
    let memory = memory.alloc(layout.bytes())?;
    let blob: Arc<[u8]> = memory.export_rdma(device)?.into();
    // Streams carry only the export blob, so small frames are enough. A peer that the replica
    // refuses holds a stream for a moment.
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
        // Each peer has its own task, so that one that is slow or never completes delays no other.
        tokio::spawn(async move {
            if let Err(error) = lend(incoming, &place, &blob).await {
                let _ = writeln!(std::io::stderr(), "block_store: a primary: {error}");
            }
        });
    }
}

/// Lends the memory to a primary until its connection ends. Refuses the primary if another one has
/// the memory. The connection itself detects that a silent primary has died.
async fn lend(incoming: Incoming, place: &Semaphore, blob: &[u8]) -> Result<()> {
    const TAKEN: &str = "another primary is connected";
    if place.available_permits() == 0 {
        return Ok(incoming.refuse(TAKEN).await?);
    }
    // The stream is accepted first: a peer that does not complete its connection takes no place.
    let mut stream = incoming.accept(b"").await?;
    let _place = place.try_acquire().map_err(|_| TAKEN)?;
    // The blob has the key to the memory, so that a peer without the place cannot write.
    stream.write_u32(blob.len() as u32).await?;
    stream.write_all(blob).await?;
    let _ = stream.read(&mut [0]).await;
    Ok(())
}
