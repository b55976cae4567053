//! Listening by rdma_cm.

use std::net::SocketAddr;

use tokio::runtime::Handle;

use super::{ACCEPT, BIND, RdmaListener};
use crate::channel::Listener;
use crate::error::{ErrorKind, Result};
use crate::ops::CmListener;
use crate::stream::incoming::{Incoming, asked};
use crate::stream::options::StreamAddr;
use crate::stream::side::{Net, no_rdma};

/// How often another port is tried if the port that rdma_cm has chosen is in use by TCP.
const TRIES: usize = 16;

impl RdmaListener {
    /// Listens by rdma_cm, and by TCP at the same port if `or_tcp` is set.
    pub(super) async fn by_cm(net: Net, addr: SocketAddr) -> Result<RdmaListener> {
        let mut tries = 0;
        loop {
            let cm = match CmListener::bind(&net.device, addr) {
                Ok(cm) => Some(cm),
                Err(error) if net.options.or_tcp && error.kind() == ErrorKind::NotSupported => {
                    no_rdma(&error);
                    None
                }
                Err(error) => return Err(error.with_call(BIND)),
            };
            let at = cm.as_ref().map_or(addr, CmListener::local_addr);
            if !net.options.or_tcp {
                return Ok(RdmaListener::new(net, None, cm, StreamAddr::Cm(at)));
            }
            match Listener::tcp(BIND, at).await {
                Ok(listener) => {
                    let at = listener.local_addr().unwrap_or(at);
                    let listener = Some(listener);
                    return Ok(RdmaListener::new(net, listener, cm, StreamAddr::Cm(at)));
                }
                // TCP may use the port that rdma_cm has chosen: try another one.
                Err(error)
                    if error.kind() == ErrorKind::AlreadyExist
                        && addr.port() == 0
                        && tries < TRIES =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next peer that asks by rdma_cm, as `accept` does.
    pub(super) async fn accept_by_cm(&self, cm: &CmListener, runtime: &Handle) -> Result<Incoming> {
        loop {
            let request = match cm.accept().await {
                Ok(request) => request,
                // The adapter has gone: the listener continues by TCP.
                Err(error) if self.tcp.is_some() => {
                    self.cm_over.call_once(|| no_rdma(&error));
                    std::future::pending().await
                }
                Err(error) => return Err(error.with_call(ACCEPT)),
            };
            match asked(request, &self.net, runtime.clone()) {
                Ok(incoming) => return Ok(incoming),
                Err((peer, error)) => self.lost(&peer, &error),
            }
            tokio::task::yield_now().await;
        }
    }
}
