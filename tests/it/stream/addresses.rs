//! The addresses at which streams connect: host names, sockets that listen already, and the
//! addresses of both ends.

use support::device::under_test;
use support::stream::small;
use support::*;
use tokio_doca::stream::{RdmaListener, StreamAddr};
use tokio_doca::{Device, ErrorKind, WorkQ};

fn base() -> (Device, WorkQ) {
    (under_test(false), WorkQ::builder().build().unwrap())
}

/// Connects a stream by this address, and checks that each end knows the address of the other.
async fn meets(listener: &RdmaListener, device: &Device, workq: &WorkQ, addr: StreamAddr) {
    let connector = small().connector(device, workq).unwrap();
    let accept = async { listener.accept().await?.accept(b"").await };
    let both = futures::future::try_join(connector.connect(addr), accept);
    let (here, there) = in_time("the connection", both).await.unwrap();
    let tcp = listener.tcp_addr();
    assert_eq!((here.peer_addr(), there.local_addr()), (tcp, tcp));
    assert_eq!(here.local_addr(), there.peer_addr());
    assert_eq!(here.local_addr().is_some(), tcp.is_some());
}

#[test]
fn a_host_is_found_by_its_name() {
    run(async {
        let (device, workq) = base();
        let listener = small().bind(&device, &workq, "localhost:0").await.unwrap();
        let port = listener.tcp_addr().expect("a TCP address").port();
        assert!(matches!(listener.local_addr(), StreamAddr::Tcp(_)));
        for name in [
            format!("localhost:{port}"),
            listener.local_addr().to_string(),
        ] {
            meets(&listener, &device, &workq, name.into()).await;
        }
        for name in [
            "localhost",
            "localhost:a-port",
            "no-such-host.invalid:1",
            "",
        ] {
            let connector = small().connector(&device, &workq).unwrap();
            let text = rejected(connector.connect(name).await, ErrorKind::NotFound);
            assert!(text.contains("write a name, a colon and a port"), "{text}");
            let bound = small().bind(&device, &workq, name).await;
            rejected(bound, ErrorKind::NotFound);
        }
    });
}

/// All addresses are tried, and the error is that of the last one.
#[test]
fn a_host_where_nobody_listens_is_told_with_its_address() {
    run(async {
        let (device, workq) = base();
        let connector = small().connector(&device, &workq).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let connected = connector.connect(format!("localhost:{port}")).await;
        let error = connected.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        let error = std::io::Error::from(error);
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        assert!(text.contains("no service listens at"), "{text}");
        assert!(text.ends_with(&format!(":{port}")), "{text}");
    });
}

#[test]
fn a_socket_that_listens_already_is_taken_over() {
    run(async {
        let (device, workq) = base();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let listener = small().from_std(&device, &workq, socket).unwrap();
        assert_eq!(listener.tcp_addr(), Some(addr));
        meets(&listener, &device, &workq, addr.into()).await;
    });
}

#[test]
fn a_unix_socket_has_no_addresses() {
    run(async {
        let (device, workq) = base();
        let folder = programs::Folder::new();
        let path = folder.path("socket");
        let listener = small().bind(&device, &workq, &*path).await.unwrap();
        meets(&listener, &device, &workq, (&*path).into()).await;
    });
}
