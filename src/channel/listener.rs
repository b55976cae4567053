//! Listening sockets of services: Unix or TCP.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll};

use nix::sys::socket::sockopt::TcpNoDelay;
use nix::sys::socket::{SockType, UnixAddr, setsockopt};
use tokio::net::{TcpListener, UnixListener};

use super::socket::{ClosedElsewhere, Socket};
use crate::error::{Error, ErrorKind, Result};
use crate::process;

/// The listening socket of a service.
pub(crate) enum Listener {
    /// A Unix socket with an abstract name, for clients of this user.
    Unix(ClosedElsewhere<UnixListener>),
    /// A Unix socket in the file system, for clients of any user.
    Path(ClosedElsewhere<UnixListener>),
    /// The second field is the local address of the sockets that it accepts, unless it listens at
    /// all addresses.
    Tcp(TcpListener, Option<SocketAddr>),
}

impl Listener {
    /// Listens at an abstract name, which no other service may have.
    pub(super) fn unix(op: &'static str, name: &str) -> Result<Listener> {
        let address = UnixAddr::new_abstract(name.as_bytes());
        let listener = listen(address).map_err(|error| taken(op, name, error));
        listener.map(Listener::Unix)
    }

    /// Listens at a path in the file system, which must not exist yet.
    pub(crate) fn path(op: &'static str, path: &Path) -> Result<Listener> {
        let listener = listen(UnixAddr::new(path));
        let listener = listener.map_err(|error| taken(op, path.display(), error));
        listener.map(Listener::Path)
    }

    /// Listens at a TCP address.
    pub(crate) async fn tcp(op: &'static str, addr: SocketAddr) -> Result<Listener> {
        let listener = TcpListener::bind(addr).await;
        listener
            .map(Listener::of_tcp)
            .map_err(|error| taken(op, addr, error))
    }

    /// Returns a listener with a socket that listens already.
    pub(crate) fn from_std(socket: std::net::TcpListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket).map(Listener::of_tcp)
    }

    fn of_tcp(listener: TcpListener) -> Listener {
        // Accepted connections inherit this option.
        let _ = setsockopt(&listener, TcpNoDelay, &true);
        let local = listener.local_addr().ok();
        let local = local.filter(|it| !it.ip().to_canonical().is_unspecified());
        Listener::Tcp(listener, local)
    }

    /// Returns the next connection, or `None` if that one is not admitted or has gone again.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Socket>>> {
        let accepted = match self {
            Listener::Unix(listener) | Listener::Path(listener) => {
                let any_user = matches!(self, Listener::Path(_));
                std::task::ready!(listener.poll_accept(cx)).map(|(stream, _)| {
                    let stream = ClosedElsewhere::stream(stream, listener.refuses);
                    let socket = Socket::unix(stream);
                    (any_user || socket.is_of_this_user()).then_some(socket)
                })
            }
            Listener::Tcp(listener, local) => std::task::ready!(listener.poll_accept(cx))
                .map(|(stream, peer)| Some(Socket::tcp(stream, Some(peer), *local))),
        };
        Poll::Ready(match accepted {
            Err(error) if is_of_the_peer(&error) => Ok(None),
            accepted => accepted,
        })
    }

    /// Returns the address, if this is a TCP socket.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Unix(..) | Listener::Path(..) => None,
            Listener::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }
}

/// Returns true if an error of accept(2) concerns the connection to be accepted, and not the
/// listening socket. The manual page says to treat such errors like EAGAIN; EPERM comes from a
/// firewall.
fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::ENETDOWN
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
                | libc::EPERM
                | libc::ETIMEDOUT
        )
    )
}

fn listen(address: nix::Result<UnixAddr>) -> io::Result<ClosedElsewhere<UnixListener>> {
    let (socket, refuses) = process::listen(SockType::Stream, &address?)?.into_parts();
    let listener = UnixListener::from_std(socket.into())?;
    Ok(ClosedElsewhere::listener(listener, refuses))
}

fn taken(op: &'static str, at: impl std::fmt::Display, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let text = format!("a service listens at {at} already");
            Error::new(ErrorKind::AlreadyExist, op, text)
        }
        _ => Error::os(op, at, error),
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::future::poll_fn;
    use std::net::{Ipv4Addr, TcpStream};

    use nix::sys::socket::getsockopt;

    use super::super::socket::Stream;
    use super::*;

    /// The listener sets the option once, and the kernel sets it for each connection.
    #[tokio::test]
    async fn what_is_accepted_sends_small_messages_at_once_and_knows_its_address() {
        for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let listener = Listener::tcp("test", (ip, 0).into()).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let accepted = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
            let accepted = accepted.unwrap();
            assert_eq!(accepted.local_addr(), client.peer_addr().ok());
            let Stream::Tcp(stream) = &accepted.stream else {
                panic!("it is of TCP");
            };
            assert!(getsockopt(stream, TcpNoDelay).unwrap());
        }
    }
}
