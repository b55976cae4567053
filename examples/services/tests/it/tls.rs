//! Tests of rustls on both sides.

use services::http::{Client, bytes, serve};
use services::options;
use services::tls::{identity, trusting};
use support::programs::{Folder, run, text};
use support::{in_time, workers};
use tokio::io::AsyncReadExt;
use tokio_doca_http::TlsListener;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Net;
use super::programs::{Server, services};

const NAME: &str = "a.name";
const UNTRUSTED: &str = "invalid peer certificate";

fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).unwrap()
}

#[test]
fn bodies_go_both_ways_through_tls() {
    workers().block_on(async {
        let (net, listener) = Net::new(options()).await;
        let (acceptor, certificate) = identity(NAME).unwrap();
        tokio::spawn(serve(TlsListener::new(listener, acceptor)));
        let tls = trusting(certificate).unwrap();
        for http2 in [false, true] {
            let stream = net.connector.connect(net.addr).await.unwrap();
            let stream = in_time("the keys", tls.connect(name(), stream)).await;
            let mut client = Client::new(stream.unwrap(), http2).await.unwrap();
            let sent = bytes(0..1 << 20);
            let came = in_time("the body", client.post("/echo", sent.clone())).await;
            assert!(came.unwrap() == sent);
        }
    });
}

/// Strangers are clients that do not encrypt and clients that are silent.
#[test]
fn strangers_get_nothing_and_hold_up_nobody() {
    workers().block_on(async {
        let (net, listener) = Net::new(options()).await;
        let (acceptor, certificate) = identity(NAME).unwrap();
        tokio::spawn(serve(TlsListener::new(listener, acceptor)));
        let _silent = net.connector.connect(net.addr).await.unwrap();
        let stream = net.connector.connect(net.addr).await.unwrap();
        let mut plain = Client::new(stream, false).await.unwrap();
        in_time("the refusal", plain.get("/")).await.unwrap_err();
        // A client that trusts another certificate refuses this server.
        let (_, other) = identity(NAME).unwrap();
        let stream = net.connector.connect(net.addr).await.unwrap();
        let refused = trusting(other).unwrap().connect(name(), stream);
        let error = in_time("the refusal", refused).await.unwrap_err();
        assert!(error.to_string().contains(UNTRUSTED), "{error}");
        let stream = net.connector.connect(net.addr).await.unwrap();
        let agreed = trusting(certificate).unwrap().connect(name(), stream);
        let stream = in_time("the keys", agreed).await.unwrap();
        let mut client = Client::new(stream, false).await.unwrap();
        assert_eq!(client.get("/").await.unwrap(), "hello\n");
    });
}

/// The first bytes on the stream are a TLS handshake, and contain nothing of the request.
#[test]
fn the_stream_carries_no_plain_text() {
    workers().block_on(async {
        let (net, mut listener) = Net::new(options()).await;
        let (_, certificate) = identity(NAME).unwrap();
        let tls = trusting(certificate).unwrap();
        tokio::spawn(async move {
            let stream = net.connector.connect(net.addr).await.unwrap();
            tls.connect(name(), stream).await.map(drop)
        });
        let mut stream = in_time("the stream", listener.accept()).await.unwrap();
        let mut hello = [0; 3];
        in_time("the hello", stream.read_exact(&mut hello))
            .await
            .unwrap();
        // RFC 8446, 5.1: a handshake, of version 0x0301.
        assert_eq!(hello, [22, 3, 1]);
    });
}

#[test]
fn the_program_trusts_the_certificate_of_its_server_alone() {
    let folder = Folder::new();
    let file = |name: &str| folder.path(name).display().to_string();
    let (ours, other) = (file("ours"), file("other"));
    let server = Server::start("tls_over_rdma", &["serve", "127.0.0.1:0", &ours]);
    let _second = Server::start("tls_over_rdma", &["serve", "127.0.0.1:0", &other]);
    let addr = server.addr().to_string();
    let get = |file: &str| run(services("tls_over_rdma").args(["get", &addr, file, "/"]));
    assert_eq!(text(&get(&ours).stdout), "hello\n");
    let refused = get(&other);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains(UNTRUSTED));
}
