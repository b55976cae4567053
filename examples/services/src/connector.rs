//! The side of clients.

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio_doca::stream::RdmaConnector;
use tower::Service;

use crate::RdmaIo;

/// Connects to the host and port of a URI, for hyper-util's `Client` and tonic's `Endpoint`. Port
/// 80 if the URI has none.
#[derive(Clone, Debug)]
pub struct Connector(pub RdmaConnector);

impl Service<Uri> for Connector {
    type Response = TokioIo<RdmaIo>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move {
            let stream = connector.connect(resolve(&uri).await?).await?;
            Ok(TokioIo::new(RdmaIo(stream)))
        })
    }
}

async fn resolve(uri: &Uri) -> Result<SocketAddr> {
    let nobody = || Error::new(ErrorKind::InvalidInput, format!("{uri} names no host"));
    let host = uri.host().ok_or_else(nobody)?;
    // An IPv6 address has brackets in a URI.
    let host = host.trim_matches(['[', ']']);
    let found = tokio::net::lookup_host((host, uri.port_u16().unwrap_or(80))).await;
    found?.next().ok_or_else(nobody)
}
