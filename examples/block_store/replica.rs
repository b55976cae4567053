//! A replica: memory that one primary at a time writes and reads. It does nothing with it itself.

use std::io::Write;

use tokio::io::AsyncReadExt;
use tokio::task::JoinHandle;
use tokio_doca::mem::Access;
use tokio_doca::stream::{RdmaStream, StreamAddr, StreamOptions};
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
    let blob = memory.export_rdma(device)?;
    let options = StreamOptions::new().connections(4).permissions(peers);
    let listener = options.bind(device, &workq, addr).await?;
    super::say(&format!("Listening on {}", listener.local_addr()));
    let mut primary: Option<JoinHandle<()>> = None;
    loop {
        let incoming = listener.accept().await?;
        // Whether a primary that says nothing lives is for its connection to find out.
        let met = match &primary {
            Some(primary) if !primary.is_finished() => {
                incoming.refuse("another primary is connected").await
            }
            _ => incoming.accept(&blob).await.map(|stream| {
                primary = Some(tokio::spawn(until_it_ends(stream)));
            }),
        };
        if let Err(error) = met {
            let _ = writeln!(std::io::stderr(), "block_store: a primary: {error}");
        }
    }
}

async fn until_it_ends(mut stream: RdmaStream) {
    let _ = stream.read(&mut [0]).await;
}
