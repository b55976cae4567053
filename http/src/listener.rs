//! Accepts RDMA streams for HTTP servers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use futures::Stream as Incoming;
use tokio::task::JoinSet;
use tokio_doca::stream::{RdmaListener, RdmaStream, StreamAddr};
use tokio_doca::{Device, Error, WorkQ};
use tracing::{debug, error};

use crate::Stream;

/// Pause before `accept` is retried after the listening socket has failed, as long as axum's for
/// TCP.
const PAUSE: Duration = Duration::from_secs(1);

/// Accepts every peer that asks for a stream.
///
/// Streams are set up concurrently, so that a slow peer delays no other peer. At most
/// [`StreamOptions::connections`](tokio_doca::stream::StreamOptions::connections) streams exist at
/// once; further peers are refused.
///
/// With the feature `axum`, the listener implements `axum::serve::Listener`, so that you can call
/// `axum::serve(listener, app)`. For tonic, pass [`into_incoming`](Listener::into_incoming) to
/// `serve_with_incoming`. A hyper server calls [`accept`](Listener::accept):
///
/// ```no_run
/// use hyper::service::service_fn;
/// use hyper::{Request, Response, body::Incoming};
/// use hyper_util::rt::{TokioExecutor, TokioIo};
/// use hyper_util::server::conn::auto;
/// use tokio_doca_http::Listener;
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<String>, std::convert::Infallible> {
///     Ok(Response::new("hello\n".into()))
/// }
///
/// async fn serve(mut listener: Listener) -> tokio_doca::Result<()> {
///     loop {
///         let stream = TokioIo::new(listener.accept().await?);
///         tokio::spawn(async move {
///             let http = auto::Builder::new(TokioExecutor::new());
///             http.serve_connection(stream, service_fn(hello)).await
///         });
///     }
/// }
/// ```
///
/// # Drop
///
/// Dropping the listener refuses the peers whose streams are still being set up. Streams that
/// `accept` has returned outlive it. The path of a Unix socket stays in the file system: remove it
/// before you bind it again.
#[derive(Debug)]
pub struct Listener {
    rdma: RdmaListener,
    connecting: JoinSet<Result<RdmaStream, Error>>,
}

impl Listener {
    /// Listens at a TCP address, a Unix socket or an address of rdma_cm, with the default options.
    ///
    /// To set options, bind an [`RdmaListener`] with
    /// [`StreamOptions::bind`](tokio_doca::stream::StreamOptions::bind) and convert it with `from`.
    ///
    /// # Errors
    ///
    /// Fails as [`RdmaListener::bind`] does: for instance with `AlreadyExist` if the address is in
    /// use.
    pub async fn bind(
        device: &Device,
        workq: &WorkQ,
        addr: impl Into<StreamAddr>,
    ) -> Result<Listener, Error> {
        Ok(RdmaListener::bind(device, workq, addr).await?.into())
    }

    /// Waits for the next stream.
    ///
    /// If a peer fails while its stream is set up, the call continues with the next peer and writes
    /// a `tracing` event at the level `DEBUG`.
    ///
    /// # Errors
    ///
    /// - `IoFailed` if the listening socket has failed. Later calls fail too.
    /// - `Driver` if the adapter of a listener by rdma_cm was removed.
    /// - `BadState` without a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no stream: the next call to `accept` returns it.
    pub async fn accept(&mut self) -> Result<Stream, Error> {
        loop {
            tokio::select! {
                incoming = self.rdma.accept() => {
                    let incoming = incoming?;
                    self.connecting.spawn(async { incoming.accept(b"").await });
                }
                Some(connected) = self.connecting.join_next() => match connected {
                    Ok(Ok(stream)) => return Ok(stream.into()),
                    Ok(Err(error)) => debug!(%error, "a peer got no stream"),
                    Err(error) => error!(%error, "a peer got no stream"),
                },
            }
        }
    }

    /// Turns the listener into the `futures::Stream` that tonic's `serve_with_incoming` takes.
    ///
    /// The stream never ends and yields no error. If the listening socket has failed, it writes a
    /// `tracing` event at the level `ERROR` and retries every second.
    ///
    /// ```no_run
    /// # use tokio_doca_http::Listener;
    /// # async fn serve<S, B>(listener: Listener, service: S) -> Result<(), tonic::transport::Error>
    /// # where
    /// #     S: tonic::server::NamedService
    /// #         + tower_service::Service<
    /// #             http::Request<tonic::body::Body>,
    /// #             Response = http::Response<tonic::body::Body>,
    /// #             Error = std::convert::Infallible,
    /// #             Future: Send,
    /// #         > + Clone + Send + Sync + 'static,
    /// # {
    /// tonic::transport::Server::builder()
    ///     .serve_with_incoming(service, listener.into_incoming())
    ///     .await
    /// # }
    /// ```
    pub fn into_incoming(
        self,
    ) -> impl Incoming<Item = Result<Stream, Infallible>> + Send + Unpin + 'static {
        Box::pin(futures::stream::unfold(self, |mut listener| async {
            Some((Ok(listener.next().await), listener))
        }))
    }

    /// Waits for the next stream, and tries again if the listening socket has failed.
    pub(crate) async fn next(&mut self) -> Stream {
        loop {
            match self.accept().await {
                Ok(stream) => return stream,
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Returns the listening address, with the port that the system has chosen.
    pub fn local_addr(&self) -> &StreamAddr {
        self.rdma.local_addr()
    }

    /// Returns the TCP address of the listener, or `None` if it does not listen by TCP.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.rdma.tcp_addr()
    }

    /// Unwraps the inner listener, for example to call [`RdmaListener::drain`]. Peers whose streams
    /// are being set up are refused.
    pub fn into_inner(self) -> RdmaListener {
        self.rdma
    }
}

impl From<RdmaListener> for Listener {
    fn from(rdma: RdmaListener) -> Listener {
        let connecting = JoinSet::new();
        Listener { rdma, connecting }
    }
}

/// Logs that the listening socket has failed, and waits.
pub(crate) async fn pause(error: &Error) {
    error!(%error, "no peer is accepted for {PAUSE:?}");
    tokio::time::sleep(PAUSE).await;
}
