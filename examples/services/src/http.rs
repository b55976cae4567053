//! A server and a client made with hyper, for streams of any kind.

use std::convert::Infallible;
use std::sync::LazyLock;

use axum::serve::Listener;
use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Result;
use crate::idle::{IDLE, IdleListener};

/// The body of a request or of a response.
pub type Body = BoxBody<Bytes, hyper::Error>;

/// The maximum size of a part of a body, in bytes.
const PART: u64 = 16 << 10;

/// Serves HTTP/1 and HTTP/2 without end, on a [`Listener`](tokio_doca_http::Listener) or a
/// `TcpListener`. A client loses its connection if it is silent for [`IDLE`], or takes longer than
/// that for the head of an HTTP/1 request.
pub async fn serve(listener: impl Listener) {
    let mut listener = IdleListener(listener);
    let mut http = auto::Builder::new(TokioExecutor::new());
    let http1 = &mut http.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(IDLE);
    loop {
        let (stream, _) = listener.accept().await;
        let http = http.clone();
        tokio::spawn(async move {
            let served = http.serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client may disconnect or send invalid data. A real service may log that.
            _ = served.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path();
    let len = path.strip_prefix("/bytes/");
    let len: Option<u64> = len.and_then(|len| len.parse().ok());
    let mut status = StatusCode::OK;
    let body = match (request.method(), path, len) {
        (&Method::GET, "/", _) => whole("hello\n"),
        (&Method::GET, _, Some(len)) if len <= PART => whole(part(0, len)),
        (&Method::GET, _, Some(len)) => parts(len),
        (&Method::POST, "/echo", _) => request.into_body().boxed(),
        _ => {
            status = StatusCode::NOT_FOUND;
            whole("GET /, GET /bytes/LEN or POST /echo\n")
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    Ok(response)
}

/// The length after which the pattern repeats. It is not a power of two, so that misplaced bytes
/// differ.
const PERIOD: u64 = 251;

/// Returns a range of the pattern's bytes.
pub fn bytes(range: std::ops::Range<u64>) -> Bytes {
    range.map(|at| (at % PERIOD) as u8).collect()
}

/// Returns a body that consists of the given bytes.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// Returns a part of a body, of at most [`PART`] bytes, without copying.
fn part(from: u64, len: u64) -> Bytes {
    static PATTERN: LazyLock<Bytes> = LazyLock::new(|| bytes(0..PART + PERIOD));
    let from = (from % PERIOD) as usize;
    PATTERN.slice(from..from + len as usize)
}

/// Returns a body of `len` bytes, whose parts are made while they are sent.
fn parts(len: u64) -> Body {
    let parts = stream::unfold(0, move |from| async move {
        let next = PART.min(len - from);
        (next > 0).then(|| (Ok(Frame::data(part(from, next))), from + next))
    });
    BoxBody::new(StreamBody::new(parts))
}

/// A client with one connection.
pub enum Client {
    /// HTTP/1: one request at a time.
    Http1(http1::SendRequest<Body>),
    /// HTTP/2: many requests at once.
    Http2(http2::SendRequest<Body>),
}

impl Client {
    /// Starts a client on a connected stream.
    ///
    /// # Errors
    ///
    /// Fails with hyper's error if the stream ends.
    pub async fn new<S>(stream: S, http2: bool) -> Result<Client, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stream = TokioIo::new(stream);
        Ok(if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Client::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Client::Http1(sender)
        })
    }

    /// Sends a request to `path`. With HTTP/1, the previous answer must have been read.
    ///
    /// # Errors
    ///
    /// Fails with hyper's error if the stream ends.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let request = Request::builder().method(method).header("host", "rdma");
        let request = match self {
            Client::Http1(_) => request.uri(path),
            Client::Http2(_) => request.uri(format!("http://rdma{path}")),
        };
        let request = request.body(body).expect("a path is a URI");
        match self {
            Client::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Client::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends a GET, and returns the whole body of the answer.
    ///
    /// # Errors
    ///
    /// Fails as [`Client::send`] does.
    pub async fn get(&mut self, path: &str) -> Result<Bytes, hyper::Error> {
        let response = self.send(Method::GET, path, whole("")).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    /// Sends a POST with `body`, and returns the whole body of the answer.
    ///
    /// # Errors
    ///
    /// Fails as [`Client::send`] does.
    pub async fn post(&mut self, path: &str, body: Bytes) -> Result<Bytes, hyper::Error> {
        let response = self.send(Method::POST, path, whole(body)).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }
}
