//! The sockets of the fabric. Each carries messages in both directions, and descriptors in one of
//! them.
//!
//! Only [`connect`] and [`wait`] may wait, until a deadline; no other call of this file does.
#![expect(unsafe_code, reason = "system calls that nix does not wrap")]

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, ControlMessage, MsgFlags, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, SFlag, fstat};

use crate::process::{self, Guarded};

/// The maximum length of a socket's name, in bytes: `sun_path` without a zero.
pub(in super::super) const NAME_MAX: usize = 107;

/// The number of descriptors of a reply: for example the memory and the control page.
pub(in super::super) const DESCRIPTORS: usize = 2;

/// The address at which an exporter listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Address {
    /// A name in the network namespace, without its first zero byte. The kernel removes the name
    /// with the last descriptor.
    Abstract(Vec<u8>),
    /// The path of a socket.
    Path(PathBuf),
    /// The path of a socket, which must not be a symbolic link.
    NoLink(PathBuf),
}

impl Address {
    pub(in super::super) fn resolve(&self) -> nix::Result<UnixAddr> {
        match self {
            Address::Abstract(name) => UnixAddr::new_abstract(name),
            Address::Path(path) | Address::NoLink(path) => UnixAddr::new(path),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => write!(f, "@{}", name.escape_ascii()),
            Address::Path(path) | Address::NoLink(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Returns a listening socket, which accepts no descriptors.
pub(in super::super) fn listen(address: &Address) -> nix::Result<Guarded> {
    process::listen(SockType::SeqPacket, &address.resolve()?)
}

/// Connects to a listener. If the listener's queue is full, waits until the deadline, and then
/// returns `EAGAIN`.
///
/// The socket accepts descriptors, for the reply. The caller must call [`process::refuse`] once the
/// reply has come.
///
/// With [`Address::NoLink`] the path must be a socket itself: returns `ENOTSOCK` for anything else,
/// such as a symbolic link. This needs /proc: without it, returns `ENOSYS`.
pub(in super::super) fn connect(address: &Address, deadline: Instant) -> nix::Result<Guarded> {
    let connect = |to: &UnixAddr| process::connect(SockType::SeqPacket, to, true, Some(deadline));
    let Address::NoLink(path) = address else {
        return connect(&address.resolve()?);
    };
    // The descriptor pins the file, so that the file that is checked is the one to connect to.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = open(path, flags, Mode::empty())?;
    let kind = SFlag::from_bits_truncate(fstat(&opened)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFSOCK {
        return Err(Errno::ENOTSOCK);
    }
    let opened_path = format!("/proc/thread-self/fd/{}", opened.as_raw_fd());
    connect(&UnixAddr::new(&*opened_path)?).map_err(|errno| match errno {
        // The socket exists, but its descriptor is not visible, since /proc is not mounted.
        Errno::ENOENT => Errno::ENOSYS,
        errno => errno,
    })
}

/// Waits until one of the descriptors is ready, or until the deadline. Returns for each descriptor
/// whether it is ready; at the deadline none is.
pub(in super::super) fn wait<const N: usize>(
    descriptors: [Option<BorrowedFd<'_>>; N],
    deadline: Instant,
) -> nix::Result<[bool; N]> {
    let mut polled: ArrayVec<PollFd<'_>, N> = ArrayVec::new();
    for descriptor in descriptors.iter().flatten() {
        polled.push(PollFd::new(*descriptor, PollFlags::POLLIN));
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The time is rounded up, since otherwise the last millisecond would be spent spinning.
        let millis = left.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(0) if Instant::now() < deadline => {}
            Ok(_) => break,
        }
    }
    let mut answers = polled.iter().map(|fd| fd.any().unwrap_or(true));
    Ok(descriptors.map(|descriptor| descriptor.is_some() && answers.next().unwrap_or(false)))
}

/// Sends one message.
pub(in super::super) fn send(
    to: BorrowedFd<'_>,
    message: &[u8],
    with: &[RawFd],
) -> nix::Result<()> {
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let rights = [ControlMessage::ScmRights(with)];
    let control = if with.is_empty() { &[][..] } else { &rights };
    let message = [IoSlice::new(message)];
    socket::sendmsg::<()>(to.as_raw_fd(), &message, control, flags, None).map(drop)
}

/// Takes one message with its descriptors.
///
/// # Errors
///
/// `EBADMSG` if more than [`DESCRIPTORS`] descriptors came along, or the message is longer than
/// `into`.
pub(in super::super) fn receive_with(
    from: &Guarded,
    into: &mut [u8],
) -> nix::Result<(usize, ArrayVec<Guarded, DESCRIPTORS>)> {
    if !from.is_quick() {
        return process::receive_with(from.as_fd(), into);
    }
    // This socket refuses descriptors, so none can have come.
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
    let len = socket::recv(from.as_raw_fd(), into, flags)?;
    match len > into.len() {
        true => Err(Errno::EBADMSG),
        false => Ok((len, ArrayVec::new())),
    }
}

/// Returns a pidfd of the process at the other end (the one that listened or connected). The pidfd
/// is readable once that process has ended.
///
/// Returns `None` if the kernel provides none, and `ESRCH` if the process has ended.
pub(in super::super) fn pidfd(connection: &OwnedFd) -> nix::Result<Option<OwnedFd>> {
    // This needs Linux 6.5. Before 6.16 it fails with EINVAL or ESRCH for a process whose parent
    // has waited for it.
    match socket::getsockopt(connection, sockopt::PeerPidfd) {
        Ok(pidfd) => return Ok(Some(pidfd)),
        Err(errno @ Errno::EMFILE) => return Err(errno),
        Err(_) => {}
    }
    // The process's number may be reused once the process ends. The number is right if the process
    // is alive after this call. A server is: it sends its reply afterwards. A client must still
    // have the connection for the reply to be sent.
    let pid = pid(connection)?;
    if pid <= 0 {
        // The process is in a namespace that this process cannot see.
        return Ok(None);
    }
    // SAFETY: the call takes no pointers.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match Errno::result(pidfd) {
        // SAFETY: the call has just made the descriptor, so that no other value owns it.
        Ok(pidfd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) })),
        Err(errno @ (Errno::ESRCH | Errno::EMFILE)) => Err(errno),
        Err(_) => Ok(None),
    }
}

/// Returns the id of the process at the other end, or 0 if this process cannot see it.
pub(in super::super) fn pid(connection: &OwnedFd) -> nix::Result<i32> {
    Ok(socket::getsockopt(connection, sockopt::PeerCredentials)?.pid())
}

/// Returns the user of the process at the other end.
pub(in super::super) fn user(connection: &OwnedFd) -> nix::Result<u32> {
    Ok(socket::getsockopt(connection, sockopt::PeerCredentials)?.uid())
}

/// Returns true if the other side has not read everything that was sent.
pub(in super::super) fn has_unread(connection: &OwnedFd) -> bool {
    let mut unread: libc::c_int = 0;
    let (fd, at) = (connection.as_raw_fd(), &raw mut unread);
    // SAFETY: `SIOCOUTQ`, which has the same number, writes an integer at the pointer.
    let done = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, at) };
    // The kernel counts 1 more while it reports that everything was read (`sock_wfree`).
    done == 0 && unread > 1
}

/// Takes one message, for tests that act as a peer.
#[cfg(test)]
pub(in super::super) fn receive(from: BorrowedFd<'_>, into: &mut [u8]) -> nix::Result<usize> {
    socket::recv(from.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use nix::sys::socket::{AddressFamily, SockFlag};

    use super::*;
    use crate::process::hang_up;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    fn open() -> usize {
        std::fs::read_dir("/proc/thread-self/fd").unwrap().count()
    }

    #[test]
    fn descriptors_arrive_and_too_many_are_not_taken() {
        let (one, other) = pair();
        let other = Guarded::new(other, false);
        let raw = one.as_raw_fd();
        let mut into = [0; 8];
        for count in 0..=DESCRIPTORS {
            send(one.as_fd(), b"hello", &vec![raw; count]).unwrap();
            let (len, descriptors) = receive_with(&other, &mut into).unwrap();
            assert_eq!((len, descriptors.len()), (5, count));
        }
        // Other tests open and close descriptors as well; a leak with each message would still
        // show.
        let before = open();
        for _ in 0..500 {
            send(one.as_fd(), b"hello", &[raw; 7]).unwrap();
            assert_eq!(receive_with(&other, &mut into).unwrap_err(), Errno::EBADMSG);
            assert_eq!(receive(other.as_fd(), &mut into), Ok(5));
            send(one.as_fd(), b"longer than the room", &[raw]).unwrap();
            assert_eq!(receive_with(&other, &mut into).unwrap_err(), Errno::EBADMSG);
            send(one.as_fd(), b"hello", &[raw; 2]).unwrap();
            assert_eq!(receive(other.as_fd(), &mut into), Ok(5));
        }
        let end = Instant::now() + Duration::from_secs(20);
        while open() >= before + 400 {
            assert!(Instant::now() < end, "they are closed");
        }
    }

    #[test]
    fn a_socket_that_refuses_descriptors_can_expect_them_again() {
        let (one, other) = pair();
        let (mut other, raw) = (Guarded::new(other, false), one.as_raw_fd());
        process::refuse(&mut other);
        if !other.is_quick() {
            // This is a kernel before Linux 6.16.
            return;
        }
        let mut into = [0; 8];
        let mut say = |with: &[RawFd], text: &[u8], other: &Guarded| {
            send(one.as_fd(), text, with)?;
            receive_with(other, &mut into).map(|(len, descriptors)| (len, descriptors.len()))
        };
        assert_eq!(say(&[raw], b"hello", &other), Err(Errno::EPERM));
        assert_eq!(say(&[], b"hello", &other), Ok((5, 0)));
        let long = say(&[], b"longer than the room", &other);
        assert_eq!(long, Err(Errno::EBADMSG));
        process::expect(&mut other);
        assert_eq!(say(&[raw], b"hello", &other), Ok((5, 1)));
    }

    #[test]
    fn waiting_ends_at_the_deadline_or_with_what_comes() {
        let (one, other) = pair();
        let soon = || Instant::now() + Duration::from_millis(5);
        let fds = || [Some(one.as_fd()), None, Some(other.as_fd())];
        assert_eq!(wait(fds(), soon()), Ok([false; 3]));
        send(one.as_fd(), b"x", &[]).unwrap();
        assert_eq!(wait(fds(), soon()), Ok([false, false, true]));
        hang_up(&other);
        assert_eq!(wait(fds(), soon()), Ok([true, false, true]));
    }

    #[test]
    fn a_listener_takes_no_descriptors_where_the_kernel_can_refuse_them() {
        let id = super::super::netns::random().unwrap();
        let address = Address::Abstract(id.to_vec());
        let listener = listen(&address).unwrap();
        let soon = Instant::now() + Duration::from_secs(5);
        let connection = connect(&address, soon).unwrap();
        let raw = connection.as_raw_fd();
        match send(connection.as_fd(), b"x", &[raw]) {
            // Before Linux 6.16, descriptors are closed as they arrive.
            Ok(()) => {
                let accepted = process::accept(&listener).unwrap();
                let received = process::receive(&accepted, &mut [0; 4]);
                assert_eq!(received, Err(Errno::EBADMSG));
            }
            Err(errno) => assert_eq!(errno, Errno::EPERM),
        }
        assert!(pidfd(&connection).unwrap().is_some());
        hang_up(&listener);
        assert_eq!(connect(&address, soon).unwrap_err(), Errno::ECONNREFUSED);
    }
}
