//! hyper, axum, tonic, rustls and curl over RDMA streams: judges that are not ours.

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

/// A listener, and what connects to it from a WorkQ of its own.
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

    /// For hyper-util's client and tonic's.
    fn service(&self) -> Connector {
        Connector::new(self.connector.clone())
    }

    fn uri(&self) -> String {
        format!("http://{}", self.addr)
    }
}

/// What the stream below has said, if that is why a call has failed.
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
