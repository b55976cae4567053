//! Tests of the adapters: the peer's identity, the URIs that connect, and TLS. The other tests of
//! `examples/services` put load on the adapters.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Router, serve};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Response, Version, body::Incoming};
use hyper_util::client::legacy::connect::Connect;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use support::programs::Folder;
use support::{LIMIT, in_time, workers};
use tokio::io::AsyncReadExt;
use tokio_doca::channel::Peer;
use tokio_doca::stream::{RdmaConnector, StreamAddr, StreamOptions};
use tokio_doca::{Device, WorkQ};
use tokio_doca_http::{Connector, Listener, RemotePeer, Stream, TlsConnector, TlsListener};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tonic::transport::server::Connected;

const NAME: &str = "a.name";

async fn listener(addr: impl Into<StreamAddr>) -> Listener {
    let (device, workq) = open();
    Listener::bind(&device, &workq, addr).await.unwrap()
}

fn rdma() -> RdmaConnector {
    let (device, workq) = open();
    RdmaConnector::new(&device, &workq).unwrap()
}

fn open() -> (Device, WorkQ) {
    let workq = WorkQ::builder().depth(1024).build().unwrap();
    (Device::open_default().unwrap(), workq)
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A service that returns the identity of its client.
fn app() -> Router {
    let peer = async |ConnectInfo(RemotePeer(peer)): ConnectInfo<RemotePeer>| format!("{peer:?}");
    Router::new().route("/", get(peer))
}

async fn ask<C>(connector: C, uri: &str) -> Result<Response<Incoming>, Error>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
    in_time("the answer", client.get(uri.parse().unwrap())).await
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn both_sides_learn_who_the_peer_is() {
    workers().block_on(async {
        let folder = Folder::new();
        let path = StreamAddr::from(folder.path("socket"));
        let (by_tcp, by_path) = (listener(local()).await, listener(path.clone()).await);
        let tapped = listener(local()).await;
        let (addr, other) = (by_tcp.tcp_addr().unwrap(), tapped.tcp_addr().unwrap());
        assert_eq!((by_path.tcp_addr(), by_path.local_addr()), (None, &path));
        let app = app().into_make_service_with_connect_info::<RemotePeer>();
        tokio::spawn(serve(by_tcp, app.clone()).into_future());
        tokio::spawn(serve(by_path, app.clone()).into_future());
        tokio::spawn(serve(tapped.tap_io(|_: &mut Stream| ()), app).into_future());

        let connector = Connector::new(rdma());
        for addr in [addr, other] {
            let answer = ask(connector.clone(), &format!("http://{addr}/")).await;
            let answer = answer.unwrap();
            let peer: &Peer = answer.extensions().get().unwrap();
            assert_eq!(peer.tcp_addr(), Some(addr));
            assert!(text(answer).await.contains("addr: Some(127.0.0.1:"));
        }
        // A URI cannot name a Unix socket.
        let connector = connector.with_addr(path);
        let answer = ask(connector, "http://any.host/").await.unwrap();
        let peer: &Peer = answer.extensions().get().unwrap();
        assert!(peer.user_id().is_some() && peer.tcp_addr().is_none());
        let user = format!("user: Some({})", peer.user_id().unwrap());
        assert!(text(answer).await.contains(&user));
    });
}

#[test]
fn the_peer_is_the_connect_info_of_tonic() {
    workers().block_on(async {
        let mut listener = listener(local()).await;
        let uri = format!("http://{}", listener.local_addr()).parse().unwrap();
        let client = tokio::spawn(async move { Connector::new(rdma()).connect_to(&uri).await });
        let stream = in_time("the stream", listener.accept()).await.unwrap();
        let peer: Peer = stream.connect_info();
        assert_eq!(&peer, stream.peer());
        assert_eq!(peer.tcp_addr().unwrap().ip(), local().ip());
        client.await.unwrap().unwrap();
    });
}

#[test]
fn uris_connect_by_name_and_never_without_encryption_if_they_ask_for_it() {
    workers().block_on(async {
        let mut listener = listener(local()).await;
        let port = listener.tcp_addr().unwrap().port();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let connector = Connector::new(rdma());
        let connect = async |connector: &Connector, uri: &str| {
            let uri = uri.parse().unwrap();
            let connected = connector.connect_to(&uri);
            let connected = in_time("the stream", connected).await;
            connected.map(drop).map_err(|error| error.kind())
        };
        for host in ["127.0.0.1", "localhost"] {
            let uri = format!("http://{host}:{port}/");
            assert_eq!(connect(&connector, &uri).await, Ok(()), "{uri}");
        }
        let nobody = connect(&connector, &format!("http://[::1]:{port}/")).await;
        assert_eq!(nobody, Err(ErrorKind::ConnectionRefused));
        let refused = Err(ErrorKind::InvalidInput);
        let encrypted = format!("https://127.0.0.1:{port}/");
        assert_eq!(connect(&connector, &encrypted).await, refused);
        assert_eq!(connect(&connector, "/no/host").await, refused);
        let below_tls = connector.enforce_http(false);
        assert_eq!(connect(&below_tls, &encrypted).await, Ok(()));
    });
}

/// Returns the configurations of both sides, with a certificate for [`NAME`].
fn configs() -> (ServerConfig, ClientConfig) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate.clone()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key).unwrap();
    let client = ClientConfig::builder().with_root_certificates(trusted);
    (server, client.with_no_client_auth())
}

#[test]
fn tls_checks_the_name_and_agrees_on_the_version_of_http() {
    workers().block_on(async {
        let listener = listener(local()).await;
        let uri = format!("https://{}/", listener.local_addr());
        let (mut server, mut client) = configs();
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TlsListener::new(listener, Arc::new(server));
        let app = app().into_make_service_with_connect_info::<RemotePeer>();
        tokio::spawn(serve(listener, app).into_future());

        let rdma = Connector::new(rdma());
        // The certificate does not include the address.
        let unnamed = TlsConnector::new(rdma.clone(), Arc::new(client.clone()));
        let error = unnamed.connect_to(&uri.parse().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        for (protocol, version) in [("http/1.1", Version::HTTP_11), ("h2", Version::HTTP_2)] {
            client.alpn_protocols = vec![protocol.into()];
            let connector = TlsConnector::new(rdma.clone(), Arc::new(client.clone()));
            let connector = connector.server_name(ServerName::try_from(NAME).unwrap());
            let answer = ask(connector, &uri).await.unwrap();
            assert_eq!(answer.version(), version);
            assert!(answer.extensions().get::<Peer>().is_some());
            assert!(text(answer).await.contains("addr: Some(127.0.0.1:"));
        }
    });
}

/// Returns a TLS listener with memory for 128 streams, a client for it, and that client's RDMA
/// connector.
async fn tls(handshake: Duration) -> (TlsListener, TlsConnector, RdmaConnector) {
    let (device, workq) = open();
    let options = StreamOptions::new().connections(128);
    let listener = Listener::from(options.bind(&device, &workq, local()).await.unwrap());
    let (server, client) = configs();
    let listener = TlsListener::new(listener, Arc::new(server)).handshake_timeout(handshake);
    let rdma = options.connector(&device, &workq).unwrap();
    let tls = TlsConnector::new(Connector::new(rdma.clone()), Arc::new(client));
    let tls = tls.server_name(ServerName::try_from(NAME).unwrap());
    (listener, tls, rdma)
}

#[test]
fn a_hundred_silent_peers_of_tls_delay_nobody() {
    workers().block_on(async {
        // These clients stay silent for longer than the test may take.
        let (mut listener, tls, rdma) = tls(2 * LIMIT).await;
        let addr = listener.tcp_addr().unwrap();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(in_time("a stream", rdma.connect(addr)).await.unwrap());
        }
        let uri = format!("https://{addr}/").parse().unwrap();
        let connected = in_time("the handshake", tls.connect_to(&uri)).await;
        assert_eq!(connected.unwrap().peer().tcp_addr(), Some(addr));
    });
}

#[test]
fn a_silent_peer_of_tls_loses_its_stream() {
    workers().block_on(async {
        let (mut listener, _, rdma) = tls(Duration::from_millis(10)).await;
        let addr = listener.tcp_addr().unwrap();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let mut stream = in_time("the stream", rdma.connect(addr)).await.unwrap();
        let read = in_time("the end", stream.read(&mut [0; 1])).await;
        assert_eq!(read.unwrap(), 0);
    });
}
