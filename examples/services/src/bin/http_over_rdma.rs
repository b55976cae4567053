//! A hyper HTTP server and client, over RDMA.
//!
//! ```text
//! $ cargo run --bin http_over_rdma                    # both, which checks what comes
//! $ cargo run --bin http_over_rdma serve 127.0.0.1:8000
//! $ cargo run --bin http_over_rdma get 127.0.0.1:8000 /bytes/10
//! ```
//!
//! The server speaks HTTP/1 and HTTP/2; `get` speaks HTTP/2 if `--http2` follows the path.
//! `tcp_proxy` connects other clients to the server. The server disconnects a client that is silent
//! for 10 s.

use std::net::SocketAddr;
use std::process::ExitCode;

use http_body_util::BodyExt;
use hyper::Method;
use services::http::{Client, bytes, serve, whole};
use services::{Result, listen, open, options, uri};
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(args: &[&str]) -> Result {
    match *args {
        [] => both().await,
        ["serve", addr] => {
            let listener = listen(addr.parse()?).await?;
            println!("Listening on {}", uri(&listener));
            serve(listener).await;
            Ok(())
        }
        ["get", addr, path] => get(addr.parse()?, path, false).await,
        ["get", addr, path, "--http2"] => get(addr.parse()?, path, true).await,
        _ => Err("usage: http_over_rdma [serve ADDR | get ADDR PATH [--http2]]".into()),
    }
}

/// Writes the server's answer to the standard output while it arrives.
async fn get(addr: SocketAddr, path: &str, http2: bool) -> Result {
    let (device, workq) = open()?;
    let connector = options().connections(1).connector(&device, &workq)?;
    let mut client = Client::new(connector.connect(addr).await?, http2).await?;
    let mut response = client.send(Method::GET, path, whole("")).await?;
    let mut out = tokio::io::stdout();
    while let Some(frame) = response.frame().await {
        if let Ok(data) = frame?.into_data() {
            out.write_all(&data).await?;
        }
    }
    out.flush().await?;
    match response.status() {
        status if status.is_success() => Ok(()),
        status => Err(status.to_string().into()),
    }
}

/// Runs a server and its clients in one process.
async fn both() -> Result {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let addr = listener.tcp_addr().ok_or("it listens by TCP")?;
    tokio::spawn(serve(listener));

    let (device, workq) = open()?;
    let connector = options().connector(&device, &workq)?;
    for http2 in [false, true] {
        let mut client = Client::new(connector.connect(addr).await?, http2).await?;
        let hello = client.get("/").await?;
        let sent = bytes(0..1 << 20);
        let echo = client.post("/echo", sent.clone()).await?;
        if hello != "hello\n" || echo != sent {
            return Err("something else came back than was sent".into());
        }
        let version = if http2 { "HTTP/2" } else { "HTTP/1.1" };
        println!(
            "{version}: a greeting, and {} bytes there and back",
            echo.len()
        );
    }
    Ok(())
}
