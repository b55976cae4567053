//! The peer at the other end of a connection.

use std::fmt;
use std::net::SocketAddr;

/// The peer at the other end of a [`Channel`](crate::channel::Channel) or a
/// [`RdmaStream`](crate::stream::RdmaStream).
///
/// ```
/// # use std::path::PathBuf;
/// # use tokio_doca::{Device, WorkQ, stream::StreamOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let options = StreamOptions::new().connections(1);
/// # let path = std::env::temp_dir().join(format!("tokio-doca-peer-{}", std::process::id()));
/// # let listener = options.bind(&device, &workq, path.clone()).await?;
/// # let connector = options.connector(&device, &workq)?;
/// # let accept = async { listener.accept().await?.accept(b"").await };
/// # let (_stream, accepted) = tokio::try_join!(connector.connect(path.clone()), accept)?;
/// # std::fs::remove_file(path)?;
/// let peer = accepted.peer();                         // of a stream over a Unix socket
/// let process = peer.process_id().expect("the socket is local");
/// println!("user {:?} has connected, by process {process}", peer.user_id());
/// assert!(peer.tcp_addr().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_comm_channel_addr_t")]
pub struct Peer {
    process: Option<i32>,
    user: Option<u32>,
    addr: Option<SocketAddr>,
}

impl Peer {
    /// Returns the peer with this process id, as the kernel reports it: 0 means a process that is
    /// not visible from here (pid_namespaces(7)).
    pub(super) fn of_process(process: Option<i32>) -> Peer {
        Peer {
            process: process.filter(|&process| process > 0),
            user: None,
            addr: None,
        }
    }

    /// Returns this peer with the user of its process, if the kernel reports it.
    pub(super) fn with_user(self, user: Option<u32>) -> Peer {
        Peer { user, ..self }
    }

    pub(crate) fn at(addr: Option<SocketAddr>) -> Peer {
        Peer {
            process: None,
            user: None,
            addr,
        }
    }

    /// Returns the id of the peer's process, if that process is on this machine and visible from
    /// this process.
    pub fn process_id(&self) -> Option<i32> {
        self.process
    }

    /// Returns the id of the peer's user if the connection uses a Unix socket: the user of the
    /// process that connected or listened.
    pub fn user_id(&self) -> Option<u32> {
        self.user
    }

    /// Returns the peer's address, if the connection was made by TCP or rdma_cm.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.addr
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.process, self.addr) {
            (Some(process), _) => write!(f, "process {process}"),
            (None, Some(addr)) => write!(f, "{addr}"),
            (None, None) => f.write_str("a peer that is not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_seen_from_here_has_no_number() {
        assert_eq!(Peer::of_process(Some(7)).process_id(), Some(7));
        for unseen in [Some(0), None] {
            let peer = Peer::of_process(unseen);
            assert_eq!(peer.process_id(), None);
            assert_eq!(peer.to_string(), "a peer that is not known");
        }
    }
}
