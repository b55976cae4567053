//! An axum service that shows the figures of a WorkQ, an Rdma and a pool while a small load runs:
//! as a Prometheus page at `/metrics`, and as live charts at `/`.
//!
//! ```text
//! $ cargo run --release --bin metrics_page                       # http://127.0.0.1:8080/
//! $ cargo run --release --bin metrics_page 0.0.0.0:9000          # another TCP address
//! $ cargo run --release --bin metrics_page 127.0.0.1:8080 127.0.0.1:8000   # over RDMA too
//! ```

mod load;
mod text;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use services::idle::IdleListener;
use services::{Result, listen, open, uri};
use tokio::net::TcpListener;

use load::Load;

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(args: &[&str]) -> Result {
    let addr = |at: usize| args.get(at).map(|addr| addr.parse::<SocketAddr>());
    let tcp = addr(0).unwrap_or(Ok(SocketAddr::from(([127, 0, 0, 1], 8080))))?;
    let rdma = addr(1).transpose()?;

    let load = Arc::new(Load::new(&open()?.0)?);
    let app = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(&load));
    if let Some(addr) = rdma {
        let listener = listen(addr).await?;
        println!("By RDMA on {}", uri(&listener));
        tokio::spawn(axum::serve(IdleListener(listener), app.clone()).into_future());
    }
    let listener = TcpListener::bind(tcp).await?;
    println!("Listening on http://{}/", listener.local_addr()?);
    tokio::select! {
        served = axum::serve(listener, app) => Ok(served?),
        ended = load.run() => ended,
    }
}

async fn metrics(State(load): State<Arc<Load>>) -> impl IntoResponse {
    let page = text::page(
        &load.workq().stats(),
        &load.rdma().stats(),
        &load.pool().stats(),
    );
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}
