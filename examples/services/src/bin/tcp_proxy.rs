//! Brings clients that know TCP alone to a server over RDMA.
//!
//! A client must say something within 10 s: then it has a stream to the server, which it loses when
//! neither side says anything for a minute. There are not as many streams as there may be idle
//! clients; clients that say a byte once in a while can still take all of them. Protocols in which
//! the server speaks first need another proxy.
//!
//! ```text
//! $ cargo run --bin http_over_rdma serve 127.0.0.1:8000
//! $ cargo run --bin tcp_proxy 127.0.0.1:8080 127.0.0.1:8000
//! $ curl http://127.0.0.1:8080/
//! hello
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use services::{Result, open, options};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_doca::stream::RdmaConnector;
use tokio_util::io::InspectReader;

/// Bytes of a buffer: a frame of a stream.
const BUFFER: usize = 32 << 10;
/// How long a client may say nothing at first, and both sides later.
const FIRST: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);

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

/// Copies both ways, until both sides have ended or are idle.
async fn carry(client: TcpStream, connector: &RdmaConnector, server: SocketAddr) -> Result {
    client.set_nodelay(true)?;
    let said = timeout(FIRST, client.peek(&mut [0])).await;
    if said.map_err(|_| "it says nothing")?? == 0 {
        return Ok(());
    }
    let stream = connector.connect(server).await?;
    // Milliseconds until something was said.
    let (begun, said) = (Instant::now(), AtomicU64::new(0));
    let now = |_: &[u8]| said.store(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    let mut client = InspectReader::new(client, now);
    let mut stream = InspectReader::new(stream, now);
    let idle = async {
        loop {
            let until = begun + Duration::from_millis(said.load(Ordering::Relaxed)) + IDLE;
            if until <= Instant::now() {
                break;
            }
            sleep_until(until).await;
        }
    };
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER) => {
            copied?;
            Ok(())
        }
        () = idle => Err("nothing was said for a minute".into()),
    }
}
