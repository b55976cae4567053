//! Brings clients that know TCP alone to a server over RDMA.
//!
//! ```text
//! $ cargo run --bin http_over_rdma serve 127.0.0.1:8000
//! $ cargo run --bin tcp_proxy 127.0.0.1:8080 127.0.0.1:8000
//! $ curl http://127.0.0.1:8080/
//! hello
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use services::{Result, open, options};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_doca::stream::RdmaConnector;

/// Bytes of a buffer: a frame of a stream.
const BUFFER: usize = 32 << 10;

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(args: &[&str]) -> Result {
    let &[listen, server] = args else {
        return Err("usage: tcp_proxy LISTEN_ADDR RDMA_ADDR".into());
    };
    let server: SocketAddr = server.parse()?;
    let (device, workq) = open()?;
    let connector = options().connector(&device, &workq)?;
    let listener = TcpListener::bind(listen).await?;
    println!("Listening on {}", listener.local_addr()?);
    loop {
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // No descriptor for instance: it may have one later.
                eprintln!("no client is accepted for a second: {error}");
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let connector = connector.clone();
        tokio::spawn(async move {
            if let Err(error) = carry(client, &connector, server).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Copies both ways, until both sides have ended.
async fn carry(mut client: TcpStream, connector: &RdmaConnector, server: SocketAddr) -> Result {
    client.set_nodelay(true)?;
    let mut stream = connector.connect(server).await?;
    copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER).await?;
    Ok(())
}
