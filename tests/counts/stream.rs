//! Tests the cost of streams.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::StreamOptions;

use super::for_each_way;

#[test]
fn a_stream_allocates_nothing_per_read_and_write() {
    for_each_way(|mode, rig, times| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let allocated = runtime.block_on(async {
            let addr: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
            let options = StreamOptions::new().timeout(support::LIMIT);
            let listener = options.bind(&rig.device, &rig.workq, addr).await;
            let listener = listener.unwrap();
            let connector = options.connector(&rig.device, &rig.workq).unwrap();
            let connect = connector.connect(listener.tcp_addr().unwrap());
            let accept = async { listener.accept().await?.accept(b"").await };
            let both = futures::future::try_join(connect, accept).await;
            let (mut here, mut there) = both.unwrap();
            let (data, mut came) = ([7; 100], [0; 3000]);
            rig.allocated_by(times, async || {
                let sends = async {
                    for _ in 0..30 {
                        here.write_all(&data).await.unwrap();
                    }
                    here.flush().await.unwrap();
                    here.read_u8().await.unwrap();
                };
                let receives = async {
                    there.read_exact(&mut came).await.unwrap();
                    there.write_u8(1).await.unwrap();
                };
                tokio::join!(sends, receives);
            })
            .await
        });
        assert_eq!(allocated, 0, "{mode:?}");
    });
}
