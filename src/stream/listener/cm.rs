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

/// How often another port is tried if rdma_cm cannot have the one that goes with TCP's.
const TRIES: usize = 16;

impl RdmaListener {
    /// Listens by rdma_cm, and also by TCP if `or_tcp` is set.
    pub(super) async fn by_cm(net: Net, addr: SocketAddr) -> Result<RdmaListener> {
        let mut tries = 0;
        loop {
            let tcp = match net.options.or_tcp {
                true => Some(Listener::tcp(BIND, addr).await?),
                false => None,
            };
            let again = tcp.is_some() && addr.port() == 0 && tries < TRIES;
            let met = tcp.as_ref().and_then(Listener::local_addr);
            let at = net.cm_addr(BIND, met.unwrap_or(addr));
            let cm = match at.and_then(|at| CmListener::bind(&net.device, at)) {
                Ok(cm) => Some(cm),
                Err(error) => match error.kind() {
                    ErrorKind::NotSupported if tcp.is_some() => {
                        no_rdma(&error);
                        None
                    }
                    // The system has chosen TCP's port, and rdma_cm cannot have the one that goes
                    // with it.
                    ErrorKind::AlreadyExist | ErrorKind::InvalidValue if again => {
                        tries += 1;
                        continue;
                    }
                    _ => return Err(error.with_call(BIND)),
                },
            };
            let met = met.or(cm.as_ref().map(CmListener::local_addr));
            let at = StreamAddr::Cm(met.unwrap_or(addr));
            return Ok(RdmaListener::new(net, tcp, cm, at));
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
