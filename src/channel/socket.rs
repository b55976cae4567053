//! The socket of a connection, of either family, and where a service listens.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixName, UnixListener as StdListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, Shutdown, SockFlag, SockType, UnixAddr};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;

use super::Peer;
use super::inbox::Inbox;
use super::outbox::Outbox;
use crate::error::{Error, ErrorKind, Result};

/// A connected socket. What it does is asked for by `&self`, so that both directions go on at once.
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Calls the method of whichever it is.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Unix($stream) => $call,
            Socket::Tcp($stream) => $call,
        }
    };
}

impl Socket {
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    pub(super) fn try_read(&self, into: &mut impl BufMut) -> io::Result<usize> {
        either!(self, stream => stream.try_read_buf(into))
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        either!(self, stream => stream.writable().await)
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    /// Writes one frame, of a greeting.
    pub(super) async fn write_frame(&self, message: &[u8]) -> io::Result<()> {
        let mut outbox = Outbox::new(message.len());
        outbox.push(message);
        while !outbox.bytes().is_empty() {
            self.writable().await?;
            match self.try_write(outbox.bytes()) {
                Ok(written) => _ = outbox.wrote(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads one frame, of a greeting.
    pub(super) async fn read_frame(&self, inbox: &mut Inbox) -> io::Result<Bytes> {
        loop {
            if let Some(message) = inbox.next()? {
                return Ok(message);
            }
            self.readable().await?;
            match self.try_read(&mut inbox.room()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends both directions: who waits here or there is woken.
    pub(super) fn hang_up(&self) {
        let fd: RawFd = either!(self, stream => stream.as_raw_fd());
        let _ = socket::shutdown(fd, Shutdown::Both);
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Peer {
        match self {
            Socket::Unix(stream) => Peer::of_process(stream.peer_cred().ok().and_then(|c| c.pid())),
            Socket::Tcp(stream) => Peer::at(stream.peer_addr().ok()),
        }
    }

    /// Whether the other end of a Unix socket is a process of this user: who connected, or who listened.
    fn is_of_this_user(stream: &UnixStream) -> bool {
        let us = nix::unistd::geteuid().as_raw();
        stream.peer_cred().is_ok_and(|cred| cred.uid() == us)
    }
}

/// The runtime that polls, which must have I/O.
pub(super) fn runtime(op: &'static str) -> Result<Handle> {
    // Tokio panics if the runtime was built without I/O.
    let has_io = || catch_unwind(AssertUnwindSafe(UnixStream::pair)).is_ok();
    match Handle::try_current() {
        Ok(handle) if has_io() => Ok(handle),
        _ => {
            let text = "a Channel needs a Tokio runtime with I/O: call it there";
            Err(Error::new(ErrorKind::BadState, op, text))
        }
    }
}

/// The name of a service's socket.
pub(super) fn name(domain: &str, service: &str) -> String {
    let user = nix::unistd::geteuid();
    format!("tokio-doca/{user}/{domain}/{service}")
}

/// Connects to the socket of that name.
pub(super) fn connect(op: &'static str, name: &str) -> Result<Socket> {
    let connected = || -> nix::Result<std::os::unix::net::UnixStream> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        socket::connect(
            socket.as_raw_fd(),
            &UnixAddr::new_abstract(name.as_bytes())?,
        )?;
        Ok(socket.into())
    };
    let stream = match connected() {
        Ok(stream) => stream,
        Err(Errno::ECONNREFUSED) => {
            let text = format!("no service listens at {name}");
            return Err(Error::new(ErrorKind::ConnectionAborted, op, text));
        }
        Err(Errno::EAGAIN) => {
            let text = format!("too many wait already for the service at {name} to accept them");
            return Err(Error::new(ErrorKind::Again, op, text));
        }
        Err(errno) => return Err(Error::os(op, name, errno.into())),
    };
    let stream = UnixStream::from_std(stream).map_err(|error| Error::os(op, name, error))?;
    if !Socket::is_of_this_user(&stream) {
        let text = format!("another user listens at {name}");
        return Err(Error::new(ErrorKind::NotPermitted, op, text));
    }
    Ok(Socket::Unix(stream))
}

/// Connects to a TCP address.
pub(super) async fn connect_tcp(op: &'static str, addr: SocketAddr) -> Result<Socket> {
    match TcpStream::connect(addr).await {
        Ok(stream) => Ok(Socket::tcp(stream)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let text = format!("no service listens at {addr}");
            Err(Error::new(ErrorKind::ConnectionAborted, op, text))
        }
        Err(error) => Err(Error::os(op, addr, error)),
    }
}

impl Socket {
    fn tcp(stream: TcpStream) -> Socket {
        // Messages are small and waited for; a peer whose machine has gone is noticed at last.
        let _ = stream.set_nodelay(true);
        let _ = socket::setsockopt(&stream, socket::sockopt::KeepAlive, &true);
        Socket::Tcp(stream)
    }
}

/// Where a service listens.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// At the name; nobody else has it.
    pub(super) fn unix(op: &'static str, name: &str) -> Result<Listener> {
        let bind = || {
            let listener = StdListener::bind_addr(&UnixName::from_abstract_name(name)?)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        bind()
            .map(Listener::Unix)
            .map_err(|error| taken(op, name, error))
    }

    /// At the address.
    pub(super) async fn tcp(op: &'static str, addr: SocketAddr) -> Result<Listener> {
        let listener = TcpListener::bind(addr).await;
        listener
            .map(Listener::Tcp)
            .map_err(|error| taken(op, addr, error))
    }

    /// The next that is let in; strangers are turned away.
    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Socket>> {
        loop {
            let accepted = match self {
                Listener::Unix(listener) => {
                    std::task::ready!(listener.poll_accept(cx)).map(|(stream, _)| {
                        Socket::is_of_this_user(&stream).then(|| Socket::Unix(stream))
                    })
                }
                Listener::Tcp(listener) => std::task::ready!(listener.poll_accept(cx))
                    .map(|(stream, _)| Some(Socket::tcp(stream))),
            };
            match accepted {
                Ok(Some(socket)) => return Poll::Ready(Ok(socket)),
                Ok(None) => {}
                // Who was waiting has gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The TCP address.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Unix(_) => None,
            Listener::Tcp(listener) => listener.local_addr().ok(),
        }
    }
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
