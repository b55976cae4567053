//! Tests of the programs with independent clients.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use services::http::bytes;
use services::options;
use support::programs::{Folder, limited, program, run, text};
use support::{LIMIT, workers};
use tokio::io::{copy, split};

use super::Net;

/// Returns a command for a program of this package.
pub(crate) fn services(name: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let folder = this.parent().and_then(Path::parent).unwrap();
    program(folder.join(name))
}

/// A server process that ends with its test.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    addr: SocketAddr,
}

impl Server {
    pub(crate) fn start(name: &str, args: &[&str]) -> Server {
        Server::start_by(services(name).args(args))
    }

    fn start_by(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (out, (said, lines)) = (child.stdout.take().unwrap(), channel());
        thread::spawn(move || {
            let mut lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.all(|line| said.send(line).is_ok())
        });
        let mut server = Server {
            child,
            lines,
            addr: SocketAddr::from(([0; 4], 0)),
        };
        server.addr = server.next_addr();
        server
    }

    /// Returns the address at the end of the next line that the server prints.
    pub(crate) fn next_addr(&self) -> SocketAddr {
        let line = self.lines.recv_timeout(LIMIT).unwrap();
        let word = line.rsplit(' ').next().unwrap().trim_end_matches('/');
        word.trim_start_matches("http://").parse().unwrap()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a URI of this server.
    pub(crate) fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Kills the server by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the output of a program that must succeed.
pub(crate) fn said(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    assert_eq!(errors, "", "{command:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn each_program_checks_both_sides_by_itself() {
    let http = "HTTP/1.1: a greeting, and 1048576 bytes there and back\n\
        HTTP/2: a greeting, and 1048576 bytes there and back\n";
    assert_eq!(said(&mut services("http_over_rdma")), http);
    assert_eq!(
        said(&mut services("axum_over_rdma")),
        "GET /square/12: 144\n"
    );
    let grpc = "Say: hello\nRepeat: 100 times b\"again\"\nChat: 100 answers\n";
    assert_eq!(said(&mut services("grpc_over_rdma")), grpc);
    assert_eq!(said(&mut services("tls_over_rdma")), "hello\n");
}

#[test]
fn each_program_says_how_it_is_called() {
    for name in [
        "http_over_rdma",
        "grpc_over_rdma",
        "tls_over_rdma",
        "tcp_proxy",
    ] {
        let output = run(services(name).arg("--help"));
        assert!(!output.status.success());
        let usage = format!("usage: {name} ");
        assert!(text(&output.stderr).starts_with(&usage), "{name}");
    }
}

#[test]
fn servers_and_clients_are_programs_of_their_own() {
    let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
    let addr = server.addr.to_string();
    for http2 in [None, Some("--http2")] {
        let mut get = services("http_over_rdma");
        assert_eq!(said(get.args(["get", &addr, "/"]).args(http2)), "hello\n");
        let missing = run(services("http_over_rdma")
            .args(["get", &addr, "/no"])
            .args(http2));
        assert_eq!(text(&missing.stderr), "404 Not Found\n");
    }
    let server = Server::start("grpc_over_rdma", &["serve", "127.0.0.1:0"]);
    let mut say = services("grpc_over_rdma");
    assert_eq!(said(say.args(["say", &server.uri(""), "words"])), "words\n");
}

/// Runs one short round, whose ratios are not representative.
#[test]
fn the_bar_measures_each_case_on_each_transport() {
    let printed = said(services("r10").args(["1", "10"]));
    let cases = printed.lines().skip(1);
    assert!(cases.clone().count() == 8, "{printed}");
    for case in cases {
        assert!(case.contains("event ") && case.contains("busy "), "{case}");
        assert!(!case.contains("NaN") && !case.contains('-'), "{case}");
    }
}

/// Returns a curl command with time limits, and without output of its own.
fn curl() -> Command {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*"]);
    curl.args(["--max-time", &LIMIT.as_secs().to_string()]);
    curl
}

#[test]
#[ignore = "needs curl"]
fn curl_reads_and_writes_through_the_proxy() {
    let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
    let addr = server.addr.to_string();
    let proxy = Server::start("tcp_proxy", &["127.0.0.1:0", &addr]);
    // Makes several requests on one connection. With HTTP/2, curl 7.88 fails at that over TCP too.
    let mut curl = curl();
    let uri = proxy.uri("/bytes/[1000-1010]");
    assert_eq!(
        said(curl.args(["--http1.1", &uri, "--output", "/dev/null"])),
        ""
    );
    let folder = Folder::new();
    let (up, down) = (folder.path("up"), folder.path("down"));
    fs::write(&up, bytes(0..1 << 20)).unwrap();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let mut curl = self::curl();
        assert_eq!(said(curl.args([version, &proxy.uri("/")])), "hello\n");
        let mut post = self::curl();
        post.args([
            version,
            "--header",
            "content-type: application/octet-stream",
        ]);
        post.arg("--data-binary").arg(format!("@{}", up.display()));
        said(post.arg(proxy.uri("/echo")).arg("--output").arg(&down));
        assert!(fs::read(&down).unwrap() == bytes(0..1 << 20));
        let missing = run(self::curl().args([version, &proxy.uri("/no")]));
        assert_eq!(missing.status.code(), Some(22), "an error of HTTP");
    }
}

/// There are more such clients than streams.
#[test]
fn clients_that_say_nothing_have_no_stream_behind_the_proxy() {
    let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
    let proxy = Server::start("tcp_proxy", &["127.0.0.1:0", &server.addr.to_string()]);
    let connect = |_| TcpStream::connect(proxy.addr).unwrap();
    let _idle: Vec<TcpStream> = (0..140).map(connect).collect();
    let mut get = services("http_over_rdma");
    assert_eq!(
        said(get.args(["get", &server.addr.to_string(), "/"])),
        "hello\n"
    );
    let mut client = connect(0);
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("hello\n"), "{answer}");
}

/// There are more such clients than the proxy has descriptors.
#[test]
fn clients_that_say_nothing_leave_descriptors_to_the_proxy() {
    let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
    let mut command = services("tcp_proxy");
    command.args(["127.0.0.1:0", &server.addr.to_string()]);
    let mut command = limited("-n 128", &command);
    let mut proxy = Server::start_by(command.stderr(Stdio::piped()));
    let connect = |_| TcpStream::connect(proxy.addr).unwrap();
    let _silent: Vec<TcpStream> = (0..200).map(connect).collect();
    let answer = asks(proxy.addr);
    assert!(answer.ends_with("hello\n"), "{answer}");
    let (mut errors, mut said) = (proxy.child.stderr.take().unwrap(), String::new());
    proxy.kill();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.contains("newer clients arrive"), "{said}");
}

/// Sends one request to the proxy, and returns the answer.
fn asks(proxy: SocketAddr) -> String {
    let mut client = TcpStream::connect(proxy).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let ask = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    client.write_all(ask).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

/// There are more such clients than streams. They reconnect when they are disconnected.
#[test]
fn clients_that_say_a_byte_now_and_then_keep_nobody_out_behind_the_proxy() {
    let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
    let proxy = Server::start("tcp_proxy", &["127.0.0.1:0", &server.addr.to_string()]);
    let come = || {
        let mut client = TcpStream::connect(proxy.addr).unwrap();
        client.write_all(b"G").unwrap();
        client.set_nonblocking(true).unwrap();
        client
    };
    // This faster client stays connected beside them.
    let mut honest = TcpStream::connect(proxy.addr).unwrap();
    honest.set_read_timeout(Some(LIMIT)).unwrap();
    let greeted = |honest: &mut TcpStream| {
        honest
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello\n") {
            let mut some = [0; 512];
            let len = honest.read(&mut some).unwrap();
            assert!(len > 0, "it is served");
            answer.extend(&some[..len]);
        }
    };
    greeted(&mut honest);
    let mut slow: Vec<TcpStream> = (0..150).map(|_| come()).collect();
    let begun = Instant::now();
    let mut answers = 0;
    while answers < 4 || begun.elapsed() < Duration::from_secs(2) {
        for client in &mut slow {
            if client.write_all(b"E").is_err() || matches!(client.read(&mut [0; 1]), Ok(0)) {
                *client = come();
            }
        }
        let answer = asks(proxy.addr);
        assert!(answer.ends_with("hello\n"), "{answer}");
        greeted(&mut honest);
        answers += 1;
    }
}

/// There are as many such clients as the proxy has streams. The server behind it never disconnects.
#[test]
fn clients_that_were_served_once_keep_no_other_out_behind_the_proxy() {
    let runtime = workers();
    let (net, mut listener) = runtime.block_on(Net::new(options()));
    runtime.spawn(async move {
        loop {
            let (mut reads, mut writes) = split(listener.accept().await.unwrap());
            tokio::spawn(async move { copy(&mut reads, &mut writes).await });
        }
    });
    let proxy = Server::start("tcp_proxy", &["127.0.0.1:0", &net.addr.to_string()]);
    let served = || {
        let mut client = TcpStream::connect(proxy.addr).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        client.write_all(&[1; 10_000]).unwrap();
        client.read_exact(&mut [0; 10_000]).unwrap();
        client
    };
    let _idle: Vec<TcpStream> = (0..120).map(|_| served()).collect();
    for _ in 0..2 {
        served();
    }
}

#[test]
fn curl_notices_that_the_server_behind_the_proxy_is_killed() {
    let server = Server::start("http_over_rdma", &["serve", "127.0.0.1:0"]);
    let proxy = Server::start("tcp_proxy", &["127.0.0.1:0", &server.addr.to_string()]);
    let mut curl = curl();
    let uri = proxy.uri("/bytes/1000000000000");
    let mut child = curl.arg(uri).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut out, &mut [0; 100_000]).unwrap();
    server.kill();
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    let code = child.wait().unwrap().code();
    // curl's exit code: CURLE_PARTIAL_FILE or CURLE_RECV_ERROR. The code 28 would be the time
    // limit.
    assert!(matches!(code, Some(18 | 56)), "{code:?}");
}
