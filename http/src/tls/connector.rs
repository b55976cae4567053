//! Connects HTTP clients by RDMA streams with TLS.

use std::fmt;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_doca::channel::Peer;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

use super::{HANDSHAKE, in_time};
use crate::connector::{Connecting, host};
use crate::stream::delegate_io;
use crate::{Connector, Stream};

/// Connects hyper-util's `Client` to the host and port of a URI, and encrypts the stream by TLS.
///
/// The connector encrypts every stream, also for a URI whose scheme is `http`. The server must have
/// a certificate for the host of the URI, or for the name that
/// [`server_name`](TlsConnector::server_name) sets. The client speaks HTTP/2 if its configuration
/// offers `h2` by ALPN and the server agrees.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tokio_doca::stream::RdmaConnector;
/// # use tokio_rustls::rustls::ClientConfig;
/// use bytes::Bytes;
/// use http_body_util::Empty;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tokio_doca_http::{Connector, TlsConnector};
///
/// # async fn get(
/// #     rdma: RdmaConnector,
/// #     mut config: ClientConfig,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
/// let connector = TlsConnector::new(Connector::new(rdma), Arc::new(config));
/// let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
/// let response = client.get("https://storage-7/".parse()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// For tonic, set its `ClientTlsConfig` on the `Endpoint`, and pass a [`Connector`] without
/// [`enforce_http`](Connector::enforce_http). tonic refuses `https` URIs without its own
/// configuration.
///
/// # Errors
///
/// A connect fails as a connect of [`Connector`] does. In addition:
///
/// - `InvalidData` with the error of rustls if the handshake fails, for instance because the
///   certificate is not trusted;
/// - `TimedOut` if the handshake exceeds its time limit;
/// - `InvalidInput` if the host of the URI is not a valid server name.
///
/// # Cancel safety
///
/// Dropping the future of a connect ends it, and leaves nothing behind.
#[derive(Clone)]
pub struct TlsConnector {
    connector: Connector,
    tls: tokio_rustls::TlsConnector,
    name: Option<ServerName<'static>>,
    handshake_timeout: Duration,
}

impl TlsConnector {
    /// Makes a connector that encrypts the streams of `connector`. `tls` is a
    /// [`tokio_rustls::TlsConnector`] or an `Arc<rustls::ClientConfig>`.
    pub fn new(connector: Connector, tls: impl Into<tokio_rustls::TlsConnector>) -> TlsConnector {
        TlsConnector {
            connector: connector.enforce_http(false),
            tls: tls.into(),
            name: None,
            handshake_timeout: HANDSHAKE,
        }
    }

    /// Sets the name for which the server must have a certificate. Defaults to the host of the URI.
    #[must_use]
    pub fn server_name(mut self, name: ServerName<'static>) -> TlsConnector {
        self.name = Some(name);
        self
    }

    /// Sets the time limit of a handshake. Defaults to 10 s. The connect itself has the
    /// [`timeout`](tokio_doca::stream::StreamOptions::timeout) of the RDMA connector.
    #[must_use]
    pub fn handshake_timeout(mut self, limit: Duration) -> TlsConnector {
        self.handshake_timeout = limit;
        self
    }

    /// Connects a stream to the host and port of a URI, and encrypts it.
    ///
    /// # Errors
    ///
    /// Fails as described at [`TlsConnector`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the connect.
    pub async fn connect_to(&self, uri: &Uri) -> Result<TlsClientStream> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                let host = host(uri)?.trim_matches(['[', ']']);
                ServerName::try_from(host.to_owned())
                    .map_err(|error| Error::new(ErrorKind::InvalidInput, error))?
            }
        };
        let stream = self.connector.connect_to(uri).await?;
        let handshake = self.tls.connect(name, stream);
        Ok(TlsClientStream(
            in_time(self.handshake_timeout, handshake).await?,
        ))
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector")
            .field("connector", &self.connector)
            .field("name", &self.name)
            .field("handshake_timeout", &self.handshake_timeout)
            .finish_non_exhaustive()
    }
}

impl Service<Uri> for TlsConnector {
    type Response = TokioIo<TlsClientStream>;
    type Error = Error;
    type Future = Connecting<TlsClientStream>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { Ok(TokioIo::new(connector.connect_to(&uri).await?)) })
    }
}

/// A client's RDMA stream with TLS, made by [`TlsConnector`].
///
/// Writes are encrypted and reads are decrypted by rustls. The stream implements hyper-util's
/// `Connection`, which puts the [`Peer`] into the extensions of each response.
///
/// ```no_run
/// # use tokio_doca_http::TlsConnector;
/// # async fn connect(connector: TlsConnector) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = connector.connect_to(&"https://storage-7".parse()?).await?;
/// let (_, session) = stream.get_ref().get_ref();
/// println!("{} speaks {:?}", stream.peer(), session.protocol_version());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TlsClientStream(TlsStream<Stream>);

impl TlsClientStream {
    /// Returns the peer, as [`Stream::peer`] does.
    pub fn peer(&self) -> &Peer {
        self.0.get_ref().0.peer()
    }

    /// Returns the inner stream of rustls, for example to read the session or the server's
    /// certificates.
    pub fn get_ref(&self) -> &TlsStream<Stream> {
        &self.0
    }

    /// Unwraps the inner stream of rustls.
    pub fn into_inner(self) -> TlsStream<Stream> {
        self.0
    }
}

delegate_io!(TlsClientStream);

impl Connection for TlsClientStream {
    fn connected(&self) -> Connected {
        let (stream, session) = self.0.get_ref();
        let connected = stream.connected();
        match session.alpn_protocol() {
            Some(b"h2") => connected.negotiated_h2(),
            _ => connected,
        }
    }
}
