//! Accepts RDMA streams with TLS for HTTP servers.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::Stream as Incoming;
use tokio::task::JoinSet;
use tokio_doca::Error;
use tokio_doca::stream::StreamAddr;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, error};

use super::{HANDSHAKE, in_time};
use crate::listener::pause;
use crate::{Listener, Stream};

/// Accepts every peer that asks for a stream, and encrypts the stream by TLS.
///
/// The handshakes run concurrently, so that a silent peer delays no other peer. Each handshake has
/// a time limit and counts as one of at most
/// [`StreamOptions::connections`](tokio_doca::stream::StreamOptions::connections) streams.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use axum::Router;
/// # use tokio_rustls::rustls::ServerConfig;
/// use tokio_doca_http::{Listener, TlsListener};
///
/// # async fn serve(
/// #     listener: Listener,
/// #     mut config: ServerConfig,
/// #     app: Router,
/// # ) -> std::io::Result<()> {
/// config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
/// let listener = TlsListener::new(listener, Arc::new(config));
/// axum::serve(listener, app).await
/// # }
/// ```
///
/// A tonic service finds a `TlsConnectInfo<Peer>`, with the client's certificates, in the
/// extensions of a request. tonic's own `ServerTlsConfig` works on a plain [`Listener`] as well.
///
/// # Drop
///
/// Dropping the listener cancels handshakes in progress. Streams that it has returned outlive it.
pub struct TlsListener {
    listener: Listener,
    acceptor: TlsAcceptor,
    handshake_timeout: Duration,
    handshakes: JoinSet<io::Result<TlsStream<Stream>>>,
}

impl TlsListener {
    /// Makes a listener that encrypts the streams of `listener`. `acceptor` is a [`TlsAcceptor`] or
    /// an `Arc<rustls::ServerConfig>`.
    pub fn new(listener: Listener, acceptor: impl Into<TlsAcceptor>) -> TlsListener {
        TlsListener {
            listener,
            acceptor: acceptor.into(),
            handshake_timeout: HANDSHAKE,
            handshakes: JoinSet::new(),
        }
    }

    /// Sets the time limit of a handshake, after which the stream is dropped. Defaults to 10 s.
    #[must_use]
    pub fn handshake_timeout(mut self, limit: Duration) -> TlsListener {
        self.handshake_timeout = limit;
        self
    }

    /// Waits for the next stream whose handshake has succeeded.
    ///
    /// If a handshake fails, the call continues with the next peer and writes a `tracing` event at
    /// the level `DEBUG`.
    ///
    /// # Errors
    ///
    /// Fails as [`Listener::accept`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no stream: the next call to `accept` returns it.
    pub async fn accept(&mut self) -> Result<TlsStream<Stream>, Error> {
        loop {
            tokio::select! {
                stream = self.listener.accept() => {
                    let handshake = self.acceptor.accept(stream?);
                    self.handshakes.spawn(in_time(self.handshake_timeout, handshake));
                }
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
                    Err(error) => error!(%error, "a TLS handshake failed"),
                },
            }
        }
    }

    /// Turns the listener into the `futures::Stream` that tonic's `serve_with_incoming` takes.
    ///
    /// The stream never ends and yields no error, as that of [`Listener::into_incoming`].
    pub fn into_incoming(
        self,
    ) -> impl Incoming<Item = Result<TlsStream<Stream>, Infallible>> + Send + Unpin + 'static {
        Box::pin(futures::stream::unfold(self, |mut listener| async {
            Some((Ok(listener.next().await), listener))
        }))
    }

    /// Waits for the next stream, and tries again if the listening socket has failed.
    pub(crate) async fn next(&mut self) -> TlsStream<Stream> {
        loop {
            match self.accept().await {
                Ok(stream) => return stream,
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Returns the listening address, with the port that the system has chosen.
    pub fn local_addr(&self) -> &StreamAddr {
        self.listener.local_addr()
    }

    /// Returns the TCP address of the listener, or `None` if it does not listen by TCP.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.listener.tcp_addr()
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener")
            .field("listener", &self.listener)
            .field("handshake_timeout", &self.handshake_timeout)
            .finish_non_exhaustive()
    }
}
