//! TLS for RDMA streams, by rustls.

#[cfg(any(feature = "hyper", feature = "tonic"))]
mod connector;
mod listener;

#[cfg(any(feature = "hyper", feature = "tonic"))]
pub use connector::{TlsClientStream, TlsConnector};
pub use listener::TlsListener;

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// The default time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Waits for a handshake for at most `limit`, and then returns `TimedOut`.
async fn in_time<T>(limit: Duration, handshake: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = tokio::time::timeout(limit, handshake).await;
    ended.unwrap_or_else(|_| {
        let text = format!("the TLS handshake has not ended within {limit:?}");
        Err(Error::new(ErrorKind::TimedOut, text))
    })
}
