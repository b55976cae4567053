//! Tests of hyper's servers and clients, over HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join_all, try_join_all};
use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::client::conn::http2;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use services::http::{Body, Client, bytes, serve, whole};
use services::options;
use support::{in_time, until, workers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Barrier, mpsc};
use tokio::time::sleep;
use tokio_doca::Mode;
use tokio_doca_http::{Listener, Stream};

use super::programs::{Server, services};
use super::{Net, cause};

const MIB: u64 = 1 << 20;
/// The path of a body that no test reads to its end.
const ENDLESS: &str = "/bytes/1000000000000";

async fn serving() -> Net {
    let (net, listener) = Net::new(options()).await;
    tokio::spawn(serve(listener));
    net
}

impl Net {
    async fn client(&self, http2: bool) -> Client {
        let stream = self.connector.connect(self.addr).await.unwrap();
        Client::new(stream, http2).await.unwrap()
    }
}

#[test]
fn a_client_that_closes_first_is_no_error_for_the_server() {
    workers().block_on(async {
        let (net, mut listener) = Net::new(options()).await;
        for http2 in [false, true] {
            let served = async {
                let stream = TokioIo::new(listener.accept().await.unwrap());
                let answer = async |_| Ok::<_, Infallible>(Response::new(whole("hello")));
                let http = auto::Builder::new(TokioExecutor::new());
                http.serve_connection(stream, service_fn(answer)).await
            };
            let asked = async {
                let mut client = net.client(http2).await;
                assert_eq!(client.get("/").await.unwrap(), "hello");
            };
            let (served, ()) = in_time("the end", join(served, asked)).await;
            // An HTTP/2 server says goodbye twice. If the client has gone before the second one,
            // the stream reports that.
            let lost = |error| http2 && cause(error) == Some(ErrorKind::ConnectionReset);
            let in_order = served
                .as_ref()
                .map_or_else(|error| lost(&**error), |()| true);
            assert!(in_order, "http2 {http2}: {served:?}");
        }
    });
}

/// The server closes the connection in order. The client may notice that before it reads.
#[test]
fn a_server_that_closes_first_is_no_error_for_the_client() {
    workers().block_on(async {
        let (net, mut listener) = Net::new(options()).await;
        for _ in 0..20 {
            let served = async {
                let stream = TokioIo::new(listener.accept().await.unwrap());
                let answer = async |_| {
                    let answer = Response::builder().header("connection", "close");
                    Ok::<_, Infallible>(answer.body(whole("hello")).unwrap())
                };
                let http = http1::Builder::new();
                http.serve_connection(stream, service_fn(answer)).await
            };
            let asked = async {
                let stream = net.connector.connect(net.addr).await.unwrap();
                let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
                let connection = tokio::spawn(connection);
                let answer = sender.send_request(Request::new(whole(""))).await.unwrap();
                assert_eq!(answer.collect().await.unwrap().to_bytes(), "hello");
                connection.await.unwrap()
            };
            let (served, asked) = in_time("the end", join(served, asked)).await;
            served.unwrap();
            asked.unwrap();
        }
    });
}

/// Reads at least `most` bytes of a body, and returns their number.
async fn read(body: &mut Incoming, most: u64) -> Result<u64, hyper::Error> {
    let mut came = 0;
    while came < most {
        let frame = in_time("a part", body.frame()).await;
        let data = frame.expect("it has no end")?.into_data().unwrap();
        came += data.len() as u64;
    }
    Ok(came)
}

#[test]
fn sixty_four_connections_at_once_get_what_they_ask_for() {
    workers().block_on(async {
        for http2 in [false, true] {
            let net = Arc::new(serving().await);
            let connected = Arc::new(Barrier::new(64));
            let client = async |number: u64, net: Arc<Net>, connected: Arc<Barrier>| {
                let mut client = net.client(http2).await;
                connected.wait().await;
                for round in 0..8 {
                    let len = 64 << ((number + round) % 12);
                    let body = client.get(&format!("/bytes/{len}")).await.unwrap();
                    assert!(body == bytes(0..len), "{len} bytes for {number}");
                }
            };
            let all = (0..64).map(|number| client(number, net.clone(), connected.clone()));
            in_time("all answers", join_all(all)).await;
        }
    });
}

#[test]
fn bodies_of_a_mebibyte_go_both_ways_at_once() {
    workers().block_on(async {
        let net = serving().await;
        let sent = bytes(0..MIB);
        let mut client = net.client(false).await;
        for _ in 0..4 {
            let came = in_time("the body", client.post("/echo", sent.clone())).await;
            assert!(came.unwrap() == sent);
        }
        // Makes eight requests on one connection.
        let Client::Http2(sender) = net.client(true).await else {
            unreachable!()
        };
        let post = async || {
            let mut client = Client::Http2(sender.clone());
            client.post("/echo", sent.clone()).await
        };
        let came = in_time("the bodies", try_join_all((0..8).map(|_| post()))).await;
        assert!(came.unwrap().iter().all(|body| *body == sent));
    });
}

#[test]
fn polling_workqs_serve_as_well() {
    let spin = Duration::from_micros(30);
    for mode in [Mode::BusyPoll, Mode::Hybrid { spin }] {
        workers().block_on(async {
            let (net, listener) = Net::with_mode(mode, options()).await;
            tokio::spawn(serve(listener));
            for http2 in [false, true] {
                let mut client = net.client(http2).await;
                let sent = bytes(0..MIB);
                let came = in_time("the body", client.post("/echo", sent.clone())).await;
                assert!(came.unwrap() == sent);
            }
        });
    }
}

/// Both sides have memory for two streams, so that a stream that is not returned would be missed
/// later.
#[test]
fn clients_that_go_away_in_the_middle_leave_nothing_behind() {
    workers().block_on(async {
        let (net, listener) = Net::new(options().connections(2)).await;
        tokio::spawn(serve(listener));
        for round in 0..24 {
            let mut client = connected(&net, round % 2 == 0).await;
            if round % 4 < 2 {
                let gets = client.send(Method::GET, ENDLESS, whole("")).await;
                read(gets.unwrap().body_mut(), 100_000).await.unwrap();
            } else {
                // The client announces a body, and sends only a part of it.
                let (parts, body) = channel();
                parts.send(bytes(0..100_000)).unwrap();
                let post = client.send(Method::POST, "/echo", body).await;
                read(post.unwrap().body_mut(), 100_000).await.unwrap();
            }
        }
        let mut client = connected(&net, false).await;
        assert_eq!(client.get("/").await.unwrap(), "hello\n");
    });
}

/// Each client has the only stream of a server.
#[test]
fn clients_that_fall_silent_lose_their_streams() {
    const ASK: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const UNREAD: &str = "GET /bytes/1000000000000 HTTP/1.1\r\nhost: a\r\n\r\n";
    const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    workers().block_on(async {
        let connector = &Net::new(options()).await.0.connector;
        let beside = async |said: &str| {
            let (net, listener) = Net::new(options().connections(1)).await;
            tokio::spawn(serve(listener));
            let mut silent = connector.connect(net.addr).await.unwrap();
            silent.write_all(said.as_bytes()).await.unwrap();
            if said == ASK || said == PREFACE {
                silent.read_exact(&mut [0; 9]).await.unwrap();
            }
            let honest = async {
                loop {
                    match connector.connect(net.addr).await {
                        Ok(stream) => break stream,
                        Err(_) => sleep(Duration::from_millis(50)).await,
                    }
                }
            };
            let honest = in_time(&format!("the stream after {said:?}"), honest).await;
            let mut client = Client::new(honest, false).await.unwrap();
            assert_eq!(client.get("/").await.unwrap(), "hello\n");
        };
        join_all(["", "G", &PREFACE[..20], PREFACE, ASK, UNREAD].map(beside)).await;
    });
}

/// Connects, as soon as an ended stream has been returned.
async fn connected(net: &Net, http2: bool) -> Client {
    let mut stream = None;
    let connect = async {
        while stream.is_none() {
            stream = net.connector.connect(net.addr).await.ok();
            tokio::task::yield_now().await;
        }
    };
    in_time("a stream is free", connect).await;
    Client::new(stream.unwrap(), http2).await.unwrap()
}

/// Returns a sender, and a body of the bytes sent to it. The body ends when the sender is dropped.
fn channel() -> (mpsc::UnboundedSender<Bytes>, Body) {
    let (parts, received) = mpsc::unbounded_channel();
    let body = stream::unfold(received, |mut parts| async {
        let part: Bytes = parts.recv().await?;
        Some((Ok(Frame::data(part)), parts))
    });
    (parts, BoxBody::new(StreamBody::new(body)))
}

/// Runs a server with endless bodies, which counts the bytes that it has made of a body.
async fn endless(mut listener: Listener, made: Arc<AtomicU64>) {
    loop {
        let (stream, made) = (TokioIo::new(listener.accept().await.unwrap()), made.clone());
        let answer = service_fn(move |request: Request<Incoming>| {
            let counted = (request.uri().path() == "/counted").then(|| made.clone());
            let part = move || {
                let part = Bytes::from_static(&[b'x'; 1000]);
                if let Some(made) = &counted {
                    made.fetch_add(part.len() as u64, Ordering::Relaxed);
                }
                Ok::<_, hyper::Error>(Frame::data(part))
            };
            let body = StreamBody::new(stream::repeat_with(part));
            async { Ok::<_, Infallible>(Response::new(body)) }
        });
        tokio::spawn(async move {
            let http = auto::Builder::new(TokioExecutor::new());
            _ = http.serve_connection(stream, answer).await;
        });
    }
}

#[test]
fn an_answer_that_nobody_reads_waits_and_holds_up_no_other() {
    // The maximum bytes that hyper and h2 buffer for a stream, with the windows of both sides.
    const KEPT: u64 = 3 * MIB;
    workers().block_on(async {
        for http2 in [false, true] {
            let (net, listener) = Net::new(options()).await;
            let made = Arc::new(AtomicU64::new(0));
            tokio::spawn(endless(listener, made.clone()));
            let mut client = net.client(http2).await;
            let unread = client.send(Method::GET, "/counted", whole("")).await;
            let mut unread = unread.unwrap();
            until("it has begun", || made.load(Ordering::Relaxed) > 0).await;
            // Uses the same connection, if it can carry several requests.
            let mut other = match &client {
                Client::Http2(sender) => Client::Http2(sender.clone()),
                Client::Http1(_) => net.client(false).await,
            };
            let mut reads = other.send(Method::GET, "/", whole("")).await.unwrap();
            read(reads.body_mut(), 16 * MIB).await.unwrap();
            let before = made.load(Ordering::Relaxed);
            assert!(before < KEPT, "{before} bytes were made");
            let came = read(unread.body_mut(), 2 * KEPT).await.unwrap();
            assert!(made.load(Ordering::Relaxed) >= came);
        }
    });
}

#[test]
fn a_small_window_of_http2_is_filled_and_opened_again() {
    workers().block_on(async {
        let net = serving().await;
        let stream = net.connector.connect(net.addr).await.unwrap();
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.initial_stream_window_size(1000)
            .initial_connection_window_size(1500)
            .max_frame_size(Some(16 << 10));
        let (sender, connection) = http
            .handshake(TokioIo::new(Stream::from(stream)))
            .await
            .unwrap();
        tokio::spawn(connection);
        let get = async || Client::Http2(sender.clone()).get("/bytes/100000").await;
        let came = in_time("all", try_join_all((0..4).map(|_| get()))).await;
        assert!(came.unwrap().iter().all(|body| *body == bytes(0..100_000)));
    });
}

#[test]
fn a_server_that_is_killed_is_an_error_that_hyper_reports() {
    workers().block_on(async {
        for http2 in [false, true] {
            let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
            let (net, _) = Net::new(options()).await;
            let connect = async || {
                let stream = net.connector.connect(server.addr()).await.unwrap();
                Client::new(stream, http2).await.unwrap()
            };
            let (mut idle, mut client) = (connect().await, connect().await);
            assert_eq!(idle.get("/").await.unwrap(), "hello\n");
            let answer = client.send(Method::GET, ENDLESS, whole("")).await;
            let mut answer = answer.unwrap();
            read(answer.body_mut(), MIB).await.unwrap();
            server.kill();
            let error = read(answer.body_mut(), u64::MAX).await.unwrap_err();
            // hyper's HTTP/1 hides the cause if it writes before it reads.
            let cause = cause(&error).or((!http2).then_some(ErrorKind::ConnectionReset));
            assert_eq!(cause, Some(ErrorKind::ConnectionReset), "{error:?}");
            let error = in_time("the error", idle.get("/")).await.unwrap_err();
            assert!(!error.is_user(), "{error:?}");
        }
    });
}

#[test]
fn a_client_that_is_killed_ends_its_connection_and_no_other() {
    workers().block_on(async {
        for http2 in [false, true] {
            let (net, mut listener) = Net::new(options()).await;
            let uri = net.addr.to_string();
            let mut get = services("http_over_rdma");
            get.args(["get", &uri, ENDLESS]);
            get.args(http2.then_some("--http2"));
            let mut child = get.stdout(std::process::Stdio::null()).spawn().unwrap();
            let killed = in_time("the child", listener.accept()).await.unwrap();
            let (began, mut begun) = mpsc::unbounded_channel();
            let answer = service_fn(move |_| {
                began.send(()).unwrap();
                let part = || Ok::<_, hyper::Error>(Frame::data(Bytes::from_static(&[b'x'; 1000])));
                let body = StreamBody::new(stream::repeat_with(part));
                async { Ok::<_, Infallible>(Response::new(body)) }
            });
            let served = tokio::spawn(async move {
                let http = auto::Builder::new(TokioExecutor::new());
                http.serve_connection(TokioIo::new(killed), answer).await
            });
            begun.recv().await.unwrap();
            tokio::spawn(serve(listener));
            let mut other = net.client(http2).await;
            child.kill().unwrap();
            child.wait().unwrap();
            let ended = in_time("the connection's end", served).await.unwrap();
            let error = ended.unwrap_err();
            assert_eq!(
                cause(&*error),
                Some(ErrorKind::ConnectionReset),
                "{error:?}"
            );
            assert_eq!(other.get("/").await.unwrap(), "hello\n");
        }
    });
}
