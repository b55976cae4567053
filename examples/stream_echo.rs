//! An echo service on a stream over RDMA, and a client that sends it a line. The code is that of a
//! TCP service with another listener and another connector.
//!
//! ```text
//! $ cargo run --example stream_echo -- 127.0.0.1:4791 "a line"
//! a line
//! ```
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_doca::stream::{RdmaConnector, RdmaListener};
use tokio_doca::{Device, WorkQ};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream_echo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let addr: SocketAddr = args.next().as_deref().unwrap_or("127.0.0.1:0").parse()?;
    let line = args.next().unwrap_or_else(|| "hello".to_owned());

    let device = Device::open_default()?;
    let workq = WorkQ::builder().build()?;
    let listener = RdmaListener::bind(&device, &workq, addr).await?;
    let addr = listener.tcp_addr().ok_or("a TCP address")?;
    tokio::spawn(serve(listener));

    let mut stream = RdmaConnector::new(&device, &workq)?.connect(addr).await?;
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("{answer}");
    Ok(())
}

/// How long a peer may send or read nothing before its stream is ended, so that others can have it.
const IDLE: Duration = Duration::from_secs(60);

/// Returns each peer's data to it, until its stream ends.
async fn serve(listener: RdmaListener) -> Result<()> {
    loop {
        let incoming = listener.accept().await?;
        tokio::spawn(async move {
            let mut stream = incoming.accept(b"").await?;
            let mut data = vec![0; 16 << 10];
            loop {
                match timeout(IDLE, stream.read(&mut data)).await?? {
                    0 => return timeout(IDLE, stream.shutdown()).await?,
                    len => timeout(IDLE, stream.write_all(&data[..len])).await??,
                }
            }
        });
    }
}
