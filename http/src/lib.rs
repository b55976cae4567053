#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::unwrap_used)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
mod axum;
#[cfg(any(feature = "hyper", feature = "tonic"))]
mod connector;
mod listener;
mod stream;
#[cfg(feature = "rustls")]
mod tls;

#[cfg(feature = "axum")]
pub use self::axum::RemotePeer;
#[cfg(any(feature = "hyper", feature = "tonic"))]
pub use connector::Connector;
pub use listener::Listener;
pub use stream::Stream;
#[cfg(feature = "rustls")]
pub use tls::TlsListener;
#[cfg(all(feature = "rustls", any(feature = "hyper", feature = "tonic")))]
pub use tls::{TlsClientStream, TlsConnector};
