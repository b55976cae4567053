//! HTTP over TLS over RDMA, because RDMA does not encrypt. The server makes a self-signed
//! certificate when it starts.
//!
//! ```text
//! $ cargo run --bin tls_over_rdma                     # both sides
//! $ cargo run --bin tls_over_rdma serve 127.0.0.1:8000 /tmp/certificate
//! $ cargo run --bin tls_over_rdma get 127.0.0.1:8000 /tmp/certificate /bytes/10
//! ```
//!
//! The server disconnects a client that is silent for 10 s.
//!
//! The client trusts only this certificate. The data of the stream is protected from others who
//! could read or change it on the network. One-sided operations and messages on `RdmaStream::rdma`
//! are not protected.

use std::net::SocketAddr;
use std::process::ExitCode;

use services::http::{self, Client};
use services::tls::{identity, trusting};
use services::{Result, open, options};
use tokio::io::AsyncWriteExt;
use tokio_doca_http::TlsListener;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

/// The name that the certificate is for.
const NAME: &str = "rdma.example";

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(args: &[&str]) -> Result {
    match *args {
        [] => {
            let (listener, addr, certificate) = listen(([127, 0, 0, 1], 0).into()).await?;
            tokio::spawn(http::serve(listener));
            get(addr, certificate, "/").await
        }
        ["serve", addr, path] => {
            let (listener, addr, certificate) = listen(addr.parse()?).await?;
            std::fs::write(path, certificate)?;
            println!("Listening on {addr}");
            http::serve(listener).await;
            Ok(())
        }
        ["get", addr, certificate, path] => {
            let certificate = std::fs::read(certificate)?;
            get(addr.parse()?, certificate.into(), path).await
        }
        _ => Err("usage: tls_over_rdma [serve ADDR FILE | get ADDR FILE PATH]".into()),
    }
}

async fn listen(addr: SocketAddr) -> Result<(TlsListener, SocketAddr, CertificateDer<'static>)> {
    let listener = services::listen(addr).await?;
    let addr = listener.tcp_addr().ok_or("it listens by TCP")?;
    let (acceptor, certificate) = identity(NAME)?;
    let listener = TlsListener::new(listener, acceptor);
    Ok((listener, addr, certificate))
}

async fn get(addr: SocketAddr, certificate: CertificateDer<'static>, path: &str) -> Result {
    let (device, workq) = open()?;
    let connector = options().connections(1).connector(&device, &workq)?;
    let stream = connector.connect(addr).await?;
    let name = ServerName::try_from(NAME)?;
    let stream = trusting(certificate)?.connect(name, stream).await?;
    let body = Client::new(stream, false).await?.get(path).await?;
    let mut out = tokio::io::stdout();
    out.write_all(&body).await?;
    Ok(out.flush().await?)
}
