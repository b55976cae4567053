//! The side of servers.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::Stream;
use tokio::task::JoinSet;
use tokio_doca::error::Error;
use tokio_doca::stream::{RdmaListener, RdmaStream, StreamAddr};

use crate::RdmaIo;

/// How many peers are granted a stream at once.
const GRANTING: usize = 64;

/// Accepts streams from everybody who asks. Peers are granted theirs side by side, so that a slow
/// one holds up no other.
pub struct Listener {
    rdma: RdmaListener,
    granting: JoinSet<Result<RdmaStream, Error>>,
}

impl From<RdmaListener> for Listener {
    fn from(rdma: RdmaListener) -> Listener {
        let granting = JoinSet::new();
        Listener { rdma, granting }
    }
}

impl Listener {
    /// Waits for the next stream.
    ///
    /// # Cancel safety
    ///
    /// No stream is lost: the next call returns it.
    pub async fn accept(&mut self) -> RdmaIo {
        loop {
            let has_room = self.granting.len() < GRANTING;
            tokio::select! {
                incoming = self.rdma.accept(), if has_room => match incoming {
                    Ok(peer) => drop(self.granting.spawn(async { peer.accept(b"").await })),
                    Err(error) => {
                        // The listening socket: other streams go on.
                        eprintln!("no peer is accepted for a second: {error}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                },
                // One that has failed has told its peer why.
                Some(granted) = self.granting.join_next() => if let Ok(Ok(stream)) = granted {
                    return RdmaIo(stream);
                },
            }
        }
    }

    /// Returns the URI of this server, for clients of this machine.
    pub fn uri(&self) -> String {
        format!("http://{}", self.rdma.local_addr())
    }

    /// Returns the TCP address at which it listens, if it does.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.rdma.tcp_addr()
    }

    /// Turns it into what tonic's `serve_with_incoming` takes.
    pub fn into_stream(self) -> impl Stream<Item = Result<RdmaIo, Infallible>> {
        futures::stream::unfold(self, |mut listener| async {
            Some((Ok(listener.accept().await), listener))
        })
    }
}

impl axum::serve::Listener for Listener {
    type Io = RdmaIo;
    type Addr = StreamAddr;

    async fn accept(&mut self) -> (RdmaIo, StreamAddr) {
        let stream = Listener::accept(self).await;
        // The peer of a Unix socket has no name.
        let addr = match stream.0.peer().tcp_addr() {
            Some(addr) => StreamAddr::Tcp(addr),
            None => StreamAddr::Unix(PathBuf::new()),
        };
        (stream, addr)
    }

    fn local_addr(&self) -> io::Result<StreamAddr> {
        Ok(self.rdma.local_addr().clone())
    }
}
