//! Connects HTTP clients by RDMA streams.

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio_doca::stream::{RdmaConnector, StreamAddr};
use tower_service::Service;

use crate::Stream;

/// The future that a connector returns as a tower `Service`.
pub(crate) type Connecting<T> = Pin<Box<dyn Future<Output = Result<TokioIo<T>>> + Send>>;

/// Connects hyper-util's `Client` and tonic's `Endpoint` to the host and port of a URI.
///
/// The server must listen with `tokio-doca`: the two sides meet at the host and port by TCP, and
/// the stream then runs over RDMA. The port defaults to 80, and to 443 if the scheme is `https`. If
/// the host has several addresses, the connector tries them in order until one accepts. Clones
/// share the memory of their streams.
///
/// ```no_run
/// # use tokio_doca::{Device, WorkQ, stream::RdmaConnector};
/// use bytes::Bytes;
/// use http_body_util::Empty;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tokio_doca_http::Connector;
///
/// # async fn get(device: &Device, workq: &WorkQ) -> Result<(), Box<dyn std::error::Error>> {
/// let connector = Connector::new(RdmaConnector::new(device, workq)?);
/// let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector.clone());
/// let response = client.get("http://storage-7:8000/".parse()?).await?;
///
/// // tonic's, with the feature `tonic`:
/// let endpoint = tonic::transport::Endpoint::from_static("http://storage-7:50051");
/// let channel = endpoint.connect_with_connector(connector).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A connect fails with an [`io::Error`](std::io::Error):
///
/// - `InvalidInput` if the URI has no host, or if its scheme is `https` and
///   [`enforce_http`](Connector::enforce_http) is on;
/// - otherwise an error whose source is the [`tokio_doca::Error`] of
///   [`RdmaConnector::connect`](tokio_doca::stream::RdmaConnector::connect): `NotFound` if the host
///   does not resolve, `ConnectionRefused` if no server listens there, for instance.
///
/// # Cancel safety
///
/// Dropping the future cancels the connect and releases its resources.
#[derive(Clone, Debug)]
pub struct Connector {
    rdma: RdmaConnector,
    addr: Option<StreamAddr>,
    enforce_http: bool,
}

impl Connector {
    /// Makes a connector whose streams use the memory, device and WorkQ of `rdma`.
    pub fn new(rdma: RdmaConnector) -> Connector {
        Connector {
            rdma,
            addr: None,
            enforce_http: true,
        }
    }

    /// Connects to `addr` instead of the URI's host and port. Use it for a Unix socket, which a URI
    /// cannot name, or if the URI's host does not resolve. Requests still carry the URI's host.
    #[must_use]
    pub fn with_addr(mut self, addr: impl Into<StreamAddr>) -> Connector {
        self.addr = Some(addr.into());
        self
    }

    /// Sets whether the connector refuses `https` URIs, because it does not encrypt. Defaults to
    /// `true`. Set it to `false` if a layer above encrypts, as tonic's `ClientTlsConfig` does.
    #[must_use]
    pub fn enforce_http(mut self, enforce: bool) -> Connector {
        self.enforce_http = enforce;
        self
    }

    /// Connects a stream to the host and port of a URI.
    ///
    /// # Errors
    ///
    /// Fails as described at [`Connector`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the connect.
    pub async fn connect_to(&self, uri: &Uri) -> Result<Stream> {
        let is_https = uri.scheme_str() == Some("https");
        if is_https && self.enforce_http {
            let text = format!("{uri}: this connector does not encrypt; use TlsConnector");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        if let Some(addr) = &self.addr {
            return Ok(self.rdma.connect(addr.clone()).await?.into());
        }
        let host = host(uri)?;
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(self.rdma.connect(format!("{host}:{port}")).await?.into())
    }
}

/// Returns the host of a URI. An IPv6 address keeps its brackets.
pub(crate) fn host(uri: &Uri) -> Result<&str> {
    let host = uri.host().filter(|host| !host.is_empty());
    host.ok_or_else(|| Error::new(ErrorKind::InvalidInput, format!("{uri} has no host")))
}

impl From<RdmaConnector> for Connector {
    fn from(rdma: RdmaConnector) -> Connector {
        Connector::new(rdma)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = Error;
    type Future = Connecting<Stream>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { Ok(TokioIo::new(connector.connect_to(&uri).await?)) })
    }
}
