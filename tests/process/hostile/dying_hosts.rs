//! Servers that are killed at each step of an exchange: the honest client is notified at once.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use support::device::needs_soft;
use support::peer::{Peer, hear, hex, role, say as tell};
use support::stream::{self, offer, small};
use support::{test_name, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_doca::soft::Soft;
use tokio_doca::{ErrorKind, Rdma, WorkQ};

use super::beside_streams::WELCOME;
use crate::forged::rdma::Endpoint;
use crate::forged::{self, listen};

/// The flag for acceptance, in the length that a side sends before its blob.
const ACCEPTS: u32 = 1 << 31;
/// The number of steps of each server, after each of which it may die.
const STEPS: usize = 6;
/// A time limit that no exchange reaches.
const LONG: Duration = Duration::from_secs(3600);

/// A server process that serves one client by hand, and dies after the given number of steps.
fn dies(serve: impl AsyncFnOnce(TcpStream, &Endpoint, &mut dyn FnMut()) -> io::Result<()>) {
    let mut steps: usize = hear().unwrap().parse().unwrap();
    let mut step = || match steps {
        0 => forged::die(),
        _ => steps -= 1,
    };
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        tell(&listener.local_addr().unwrap().to_string());
        let mut host = Endpoint::hostile(true, 1);
        host.instance[..4].copy_from_slice(&std::process::id().to_be_bytes());
        host.name = format!("tokio-doca-{}", hex(&host.instance)).into();
        let (socket, _) = listener.accept().await.unwrap();
        step();
        serve(socket, &host, &mut step).await.unwrap();
        unreachable!("it has made all its steps");
    });
}

/// Plays an `RdmaListener`.
async fn listener(
    mut socket: TcpStream,
    host: &Endpoint,
    step: &mut dyn FnMut(),
) -> io::Result<()> {
    stream::hear(&mut socket).await;
    step();
    let there = listen(&host.name);
    stream::say(&mut socket, &offer(WELCOME, 8, &host.format())).await?;
    step();
    let knocked = host.knocked(&there);
    step();
    let _hold = host.welcome(knocked, 1, 0);
    step();
    stream::hear(&mut socket).await;
    step();
    Ok(())
}

/// Plays `Rdma::handshake_accept`.
async fn accepting(
    mut socket: TcpStream,
    host: &Endpoint,
    step: &mut dyn FnMut(),
) -> io::Result<()> {
    let len = socket.read_u32().await?;
    socket.read_exact(&mut vec![0; len as usize]).await?;
    step();
    let (there, blob) = (listen(&host.name), host.format());
    socket.write_u32(blob.len() as u32 | ACCEPTS).await?;
    socket.write_all(&blob).await?;
    step();
    let knocked = host.knocked(&there);
    step();
    let _hold = host.welcome(knocked, 1, 0);
    step();
    assert_eq!(socket.read_u8().await?, 1, "the client has come");
    step();
    Ok(())
}

/// Runs `asks` once for each step after which the server dies, and checks the kind of its error.
async fn are_told<E: Debug + PartialEq>(
    test: &str,
    asks: impl AsyncFn(SocketAddr) -> (E, String),
    kinds: &[E],
) {
    for step in 0..STEPS {
        let mut server = Peer::start(test, "server");
        server.say(&step.to_string());
        let addr = server.hear().parse().unwrap();
        let begun = Instant::now();
        let (kind, text) = in_time("the error", asks(addr)).await;
        println!("step {step}, {:?}: {kind:?}, {text}", begun.elapsed());
        assert!(kinds.contains(&kind), "step {step}: {kind:?}, {text}");
        server.dies();
    }
}

#[test]
fn a_connector_whose_listener_is_killed_at_any_step_is_told() {
    const TEST: &str = test_name!(a_connector_whose_listener_is_killed_at_any_step_is_told);
    if role().is_some() {
        return dies(listener);
    }
    if needs_soft("an adapter shares no memory with its peer's process") {
        return;
    }
    run(async {
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let connector = small().timeout(LONG).connector(&device, &workq).unwrap();
        let asks = async |addr| {
            let uses = async { connector.connect(addr).await?.read_u8().await };
            let error = uses.await.unwrap_err();
            (error.kind(), error.to_string())
        };
        use io::ErrorKind::{ConnectionAborted, ConnectionReset};
        are_told(TEST, asks, &[ConnectionAborted, ConnectionReset]).await;
    });
}

#[test]
fn a_client_whose_accepting_server_is_killed_at_any_step_is_told() {
    const TEST: &str = test_name!(a_client_whose_accepting_server_is_killed_at_any_step_is_told);
    if role().is_some() {
        return dies(accepting);
    }
    if needs_soft("an adapter shares no memory with its peer's process") {
        return;
    }
    run(async {
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let asks = async |addr| {
            let rdma = Rdma::builder(&device).attach(&workq).unwrap();
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let error = rdma.handshake_connect(&mut stream).await.unwrap_err();
            (error.kind(), error.to_string())
        };
        // The error is that of the stream or that of the connection.
        use ErrorKind::{ConnectionReset, IoFailed};
        are_told(TEST, asks, &[IoFailed, ConnectionReset]).await;
    });
}
