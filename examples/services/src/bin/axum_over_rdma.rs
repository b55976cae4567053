//! An axum service over RDMA, and a hyper-util client with its pool of connections.
//!
//! ```text
//! $ cargo run --bin axum_over_rdma
//! GET /square/12: 144
//! ```
//!
//! The server disconnects a client that is silent for 10 s, which axum does not do by itself.

use std::net::SocketAddr;
use std::process::ExitCode;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use services::idle::IdleListener;
use services::{Result, listen, open, options, uri};
use tokio_doca_http::Connector;

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(_: &[&str]) -> Result {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let uri = format!("{}/square/12", uri(&listener));
    let square = |Path(number): Path<u32>| async move { number.saturating_mul(number).to_string() };
    let app = Router::new().route("/square/{number}", get(square));
    tokio::spawn(axum::serve(IdleListener(listener), app).into_future());

    let (device, workq) = open()?;
    let connector = Connector::new(options().connector(&device, &workq)?);
    let client = Client::builder(TokioExecutor::new());
    let client: Client<_, Empty<Bytes>> = client.build(connector);
    let response = client.get(uri.parse()?).await?;
    let body = response.into_body().collect().await?.to_bytes();
    println!("GET /square/12: {}", std::str::from_utf8(&body)?);
    Ok(())
}
