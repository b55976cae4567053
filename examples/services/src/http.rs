//! A server and a client of hyper's own, for streams of any kind.

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

/// Bytes of a part of a body.
const PART: u64 = 16 << 10;

/// Serves HTTP/1 and HTTP/2 without end, on a [`Listener`](tokio_doca_http::Listener) or on a
/// `TcpListener`. A client that says nothing for [`IDLE`], or takes longer for the head of an
/// HTTP/1 request, loses its connection.
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
            // A client may go away, or talk nonsense: a service may log that.
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

/// Where a pattern begins anew: no power of two, so that bytes at a wrong place differ.
const PERIOD: u64 = 251;

/// Returns the bytes from one place of a body to another.
pub fn bytes(range: std::ops::Range<u64>) -> Bytes {
    range.map(|at| (at % PERIOD) as u8).collect()
}

/// Returns a body that is there already.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// Returns a part of a body, of at most [`PART`] bytes, without a copy.
fn part(from: u64, len: u64) -> Bytes {
    static PATTERN: LazyLock<Bytes> = LazyLock::new(|| bytes(0..PART + PERIOD));
    let from = (from % PERIOD) as usize;
    PATTERN.slice(from..from + len as usize)
}

/// Returns a body of `len` bytes, whose parts are made while it is sent.
fn parts(len: u64) -> Body {
    let parts = stream::unfold(0, move |from| async move {
        let next = PART.min(len - from);
        (next > 0).then(|| (Ok(Frame::data(part(from, next))), from + next))
    });
    BoxBody::new(StreamBody::new(parts))
}

/// A client on one connection.
pub enum Client {
    /// One request at a time.
    Http1(http1::SendRequest<Body>),
    /// Many at once.
    Http2(http2::SendRequest<Body>),
}

impl Client {
    /// Begins to speak on a connected stream.
    ///
    /// # Errors
    ///
    /// What hyper says if the stream ends.
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

    /// Sends a request to this path. HTTP/1 needs the answer to the one before to have been read.
    ///
    /// # Errors
    ///
    /// What hyper says if the stream ends.
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

    /// Returns the whole body at this path.
    ///
    /// # Errors
    ///
    /// As [`Client::send`].
    pub async fn get(&mut self, path: &str) -> Result<Bytes, hyper::Error> {
        let response = self.send(Method::GET, path, whole("")).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    /// Returns the whole answer to this body.
    ///
    /// # Errors
    ///
    /// As [`Client::send`].
    pub async fn post(&mut self, path: &str, body: Bytes) -> Result<Bytes, hyper::Error> {
        let response = self.send(Method::POST, path, whole(body)).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }
}
