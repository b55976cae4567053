//! The socket of a connection: Unix or TCP.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use nix::errno::Errno;
use nix::sys::socket::{SockType, UnixAddr};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::runtime::{self, Handle};

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::peer::Peer;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Guarded};
use crate::sync::{Blocking, deadline, for_peers};

/// How long a client waits while a service's backlog is full.
const PATIENCE: Duration = Duration::from_secs(5);

// It is const and has no destructor, so that it can be used while a thread ends.
thread_local! {
    /// The id of the runtime that this thread last found to have I/O and time.
    static CHECKED: Cell<Option<runtime::Id>> = const { Cell::new(None) };
}

/// A connected socket. Its calls take `&self`, so that both directions can be used at once.
pub(crate) struct Socket {
    pub(super) stream: Stream,
    peer: Peer,
    local: Option<SocketAddr>,
}

pub(super) enum Stream {
    Unix(ClosedElsewhere<UnixStream>),
    Tcp(TcpStream),
}

/// A Unix socket of Tokio. Unless it refuses descriptors, it may hold some whose closing takes
/// time; then a thread other than the runtime's closes it.
pub(crate) struct ClosedElsewhere<T> {
    /// `None` while this is being dropped.
    socket: Option<T>,
    pub(super) refuses: bool,
    /// Converts the socket to its descriptor.
    into: fn(T) -> io::Result<OwnedFd>,
}

impl ClosedElsewhere<UnixStream> {
    pub(super) fn stream(socket: UnixStream, refuses: bool) -> ClosedElsewhere<UnixStream> {
        ClosedElsewhere {
            socket: Some(socket),
            refuses,
            into: |socket| Ok(socket.into_std()?.into()),
        }
    }
}

impl ClosedElsewhere<UnixListener> {
    pub(super) fn listener(socket: UnixListener, refuses: bool) -> ClosedElsewhere<UnixListener> {
        ClosedElsewhere {
            socket: Some(socket),
            refuses,
            into: |socket| Ok(socket.into_std()?.into()),
        }
    }
}

impl<T> Deref for ClosedElsewhere<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.socket.as_ref().expect("drop alone takes it out")
    }
}

impl<T> Drop for ClosedElsewhere<T> {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.refuses
            && let Ok(socket) = (self.into)(socket)
        {
            drop(Guarded::new(socket, false));
        }
    }
}

/// Makes a call on the stream, of either kind.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &$socket.stream {
            Stream::Unix($stream) => $call,
            Stream::Tcp($stream) => $call,
        }
    };
}

impl Socket {
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    pub(crate) fn try_read(&self, into: &mut impl BufMut) -> io::Result<usize> {
        match &self.stream {
            Stream::Unix(stream) if stream.refuses => stream.try_read_buf(into),
            Stream::Unix(stream) => stream.try_io(Interest::READABLE, || {
                let mut bytes = [0; 4096];
                let free = bytes.len().min(into.remaining_mut());
                let (len, _) = process::receive_with::<0>(stream.as_fd(), &mut bytes[..free])?;
                into.put_slice(&bytes[..len]);
                Ok(len)
            }),
            Stream::Tcp(stream) => stream.try_read_buf(into),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        either!(self, stream => stream.writable().await)
    }

    /// Polls whether the socket is writable. The last task that polled is woken once it is.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(cx))
    }

    /// Polls whether the socket is readable. The last task that polled is woken once it is.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(cx))
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    /// Writes a greeting as one frame.
    pub(crate) async fn write_frame(&self, message: &[u8]) -> io::Result<()> {
        let mut outbox = Outbox::new(message.len());
        outbox.push(message);
        self.write_all(outbox.bytes()).await
    }

    /// Writes all of these bytes.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            match self.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads a greeting, which is one frame.
    pub(crate) async fn read_frame(&self, inbox: &mut Inbox) -> io::Result<Bytes> {
        loop {
            if let Some(message) = inbox.next()? {
                return Ok(message);
            }
            self.readable().await?;
            match self.try_read(&mut inbox.free()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends both directions, which wakes the tasks that wait on either side.
    pub(crate) fn hang_up(&self) {
        either!(self, stream => process::hang_up(stream.as_fd()));
    }

    /// Returns the TCP address of this end.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Returns the peer at the other end.
    pub(crate) fn peer(&self) -> Peer {
        self.peer.clone()
    }

    /// Returns true if the other end of a Unix socket is a process of this user: the one that
    /// connected, or the one that listened.
    pub(super) fn is_of_this_user(&self) -> bool {
        self.peer.user_id().is_some_and(process::is_own_user)
    }

    pub(super) fn unix(stream: ClosedElsewhere<UnixStream>) -> Socket {
        let cred = stream.peer_cred().ok();
        let peer = Peer::of_process(cred.and_then(|cred| cred.pid()));
        Socket {
            stream: Stream::Unix(stream),
            peer: peer.with_user(cred.map(|cred| cred.uid())),
            local: None,
        }
    }

    fn unix_of(socket: Guarded) -> io::Result<Socket> {
        let (socket, refuses) = socket.into_parts();
        let stream = UnixStream::from_std(socket.into())?;
        Ok(Socket::unix(ClosedElsewhere::stream(stream, refuses)))
    }
}

/// Returns the current runtime, after checking that it has I/O and time.
///
/// # Panics
///
/// As Tokio does, if the runtime has no I/O or no time, before anything is begun.
pub(crate) fn runtime(op: &'static str) -> Result<Handle> {
    let text = "a Channel or a stream needs a Tokio runtime with I/O and time: call it there";
    let runtime = Handle::try_current();
    let runtime = runtime.map_err(|_| Error::new(ErrorKind::BadState, op, text))?;
    // A runtime that had I/O still has it. The check opens two sockets.
    if CHECKED.get() != Some(runtime.id()) {
        drop(UnixStream::pair());
        drop(tokio::time::sleep(Duration::ZERO));
        CHECKED.set(Some(runtime.id()));
    }
    Ok(runtime)
}

/// Returns the name of a service's socket, for the processes of this user.
///
/// # Errors
///
/// `NotPermitted` if this user cannot be distinguished from others.
pub(super) fn name(op: &'static str, domain: &str, service: &str) -> Result<String> {
    let wrong = |text| Error::new(ErrorKind::NotPermitted, op, text);
    process::check_own_user().map_err(wrong)?;
    let user = nix::unistd::geteuid();
    Ok(format!("tokio-doca/{user}/{domain}/{service}"))
}

/// Connects to the socket of that name. While the service's backlog is full, waits at most 5 s.
pub(super) async fn connect(op: &'static str, name: &str) -> Result<Socket> {
    let os = |errno: Errno| Error::os(op, name, errno.into());
    let address = UnixAddr::new_abstract(name.as_bytes()).map_err(os)?;
    let socket = connect_unix(op, address, name).await?;
    match socket.is_of_this_user() {
        true => Ok(socket),
        false => {
            let text = format!("another user listens at {name}");
            Err(Error::new(ErrorKind::NotPermitted, op, text))
        }
    }
}

/// Connects to a Unix socket. `name` is the address as text, for errors.
async fn connect_unix(op: &'static str, address: UnixAddr, name: &str) -> Result<Socket> {
    let socket = match process::connect(SockType::Stream, &address, false, None) {
        Err(Errno::EAGAIN) => wait_for_backlog(op, address).await?,
        done => done,
    };
    let socket = match socket {
        Ok(socket) => socket,
        Err(errno @ (Errno::ECONNREFUSED | Errno::ENOENT)) => {
            return Err(not_listening(op, name, errno.into()));
        }
        Err(Errno::EAGAIN) => {
            let text = format!(
                "the line of the service at {name} was full for {PATIENCE:?}: it does not accept, \
                 or others connect all the time"
            );
            return Err(Error::new(ErrorKind::TimedOut, op, text));
        }
        Err(errno) => return Err(Error::os(op, name, errno.into())),
    };
    Socket::unix_of(socket).map_err(|error| Error::os(op, name, error))
}

fn not_listening(op: &'static str, addr: impl std::fmt::Display, error: io::Error) -> Error {
    let text = format!("no service listens at {addr}");
    Error::new(ErrorKind::ConnectionAborted, op, text).with_source(error)
}

/// Waits until the service's backlog takes the connection, on another thread, since no event
/// notifies a runtime of that.
async fn wait_for_backlog(op: &'static str, address: UnixAddr) -> Result<nix::Result<Guarded>> {
    let mut call = Blocking::new();
    let deadline = deadline(PATIENCE);
    call.begin(for_peers(), op, move || {
        Ok(process::connect(
            SockType::Stream,
            &address,
            false,
            Some(deadline),
        ))
    })?;
    poll_fn(|cx| call.poll(op, cx)).await
}

impl Socket {
    /// Connects to a TCP address.
    pub(crate) async fn connect_tcp(op: &'static str, addr: SocketAddr) -> Result<Socket> {
        match TcpStream::connect(addr).await {
            Ok(stream) => {
                // For an unspecified address, which means this host, the kernel uses another one.
                let peer = match addr.ip().is_unspecified() {
                    true => stream.peer_addr().ok(),
                    false => Some(addr),
                };
                // Messages are small, and peers wait for them.
                let _ = stream.set_nodelay(true);
                Ok(Socket::tcp(stream, peer, None))
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(not_listening(op, addr, error))
            }
            Err(error) => Err(Error::os(op, addr, error)),
        }
    }

    /// Connects to a Unix socket in the file system, whichever user owns it.
    pub(crate) async fn connect_path(op: &'static str, path: &Path) -> Result<Socket> {
        let name = path.display().to_string();
        let address = UnixAddr::new(path);
        let address = address.map_err(|errno| Error::os(op, &name, errno.into()))?;
        connect_unix(op, address, &name).await
    }

    /// Returns the socket of a TCP connection. `local` is this side's address, if that is known.
    pub(super) fn tcp(
        stream: TcpStream,
        peer: Option<SocketAddr>,
        local: Option<SocketAddr>,
    ) -> Socket {
        Socket {
            local: local.or_else(|| stream.local_addr().ok()),
            stream: Stream::Tcp(stream),
            peer: Peer::at(peer),
        }
    }
}
