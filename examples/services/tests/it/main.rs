//! Tests with independent implementations over RDMA streams: hyper, axum, tonic, rustls and curl.

mod adapters;
mod grpc;
mod http;
mod metrics;
mod programs;
mod readme;
mod tls;

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use tokio_doca::stream::{RdmaConnector, StreamOptions};
use tokio_doca::{Device, Mode, WorkQ};
use tokio_doca_http::{Connector, Listener};

/// A listener, and a connector to it on a WorkQ of its own.
struct Net {
    addr: SocketAddr,
    connector: RdmaConnector,
}

impl Net {
    async fn new(options: StreamOptions) -> (Net, Listener) {
        Net::with_mode(Mode::EventDriven, options).await
    }

    async fn with_mode(mode: Mode, options: StreamOptions) -> (Net, Listener) {
        let device = Device::open_default().unwrap();
        let workq = || WorkQ::builder().depth(1024).mode(mode).build().unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = options.bind(&device, &workq(), addr).await.unwrap();
        let net = Net {
            addr: listener.tcp_addr().unwrap(),
            connector: options.connector(&device, &workq()).unwrap(),
        };
        (net, listener.into())
    }

    /// Returns a connector for hyper-util's client and for tonic's.
    fn service(&self) -> Connector {
        Connector::new(self.connector.clone())
    }

    fn uri(&self) -> String {
        format!("http://{}", self.addr)
    }
}

/// Returns the kind of the stream's error, if that error has made a call fail.
fn cause(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        if let Some(error) = error.downcast_ref::<h2::Error>().and_then(|it| it.get_io()) {
            return Some(error.kind());
        }
        next = error.source();
    }
    None
}
