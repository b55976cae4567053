//! Sockets of the fabric: one message in each direction, with descriptors in one of them.
//!
//! No call of this file waits, but [`connect`] and [`wait`], which have a deadline.
#![expect(unsafe_code, reason = "system calls that nix does not wrap")]

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, ControlMessage, MsgFlags, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, SFlag, fstat};

use crate::process::{self, Guarded};

/// The longest name: `sun_path` without a zero.
pub(in super::super) const NAME_MAX: usize = 107;

/// The descriptors that come with an answer: the memory and the control page, or the memory of link
/// and channel.
pub(in super::super) const DESCRIPTORS: usize = 2;

/// Where an exporter listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Address {
    /// A name in the network namespace, without its first zero. It goes with the last descriptor.
    Abstract(Vec<u8>),
    /// A path.
    Path(PathBuf),
    /// The path of a socket, and of no link to one.
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

/// Returns a socket that listens. It takes no descriptors.
pub(in super::super) fn listen(address: &Address) -> nix::Result<Guarded> {
    process::listen(SockType::SeqPacket, &address.resolve()?)
}

/// Connects. Where others wait in line as well it waits until the deadline: `EAGAIN` then.
///
/// It takes descriptors until the answer has come: [`process::refuse`] comes then.
///
/// `ENOTSOCK` for an address that is to be a socket itself, and is a link to something. That needs
/// /proc: `ENOSYS` without it.
pub(in super::super) fn connect(address: &Address, deadline: Instant) -> nix::Result<Guarded> {
    let connect = |to: &UnixAddr| process::connect(SockType::SeqPacket, to, true, Some(deadline));
    let Address::NoLink(path) = address else {
        return connect(&address.resolve()?);
    };
    // What is opened so is what is looked at, and what is connected to.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let place = open(path, flags, Mode::empty())?;
    let kind = SFlag::from_bits_truncate(fstat(&place)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFSOCK {
        return Err(Errno::ENOTSOCK);
    }
    let place_path = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    connect(&UnixAddr::new(&*place_path)?).map_err(|errno| match errno {
        // The socket is there: its descriptor is not, where /proc is not mounted.
        Errno::ENOENT => Errno::ENOSYS,
        errno => errno,
    })
}

/// Waits until one of the descriptors has something, and says for each whether it has: none at the
/// deadline.
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
        // Rounded up, or the last millisecond would be spun away.
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
/// `EBADMSG` if more came along.
pub(in super::super) fn receive_with(
    from: BorrowedFd<'_>,
    into: &mut [u8],
) -> nix::Result<(usize, ArrayVec<Guarded, DESCRIPTORS>)> {
    process::receive_with(from, into)
}

/// Returns a descriptor of the process at the other end, which listened, or connected, and is
/// readable once that has ended.
///
/// `None` if there is no such thing here; `ESRCH` if the process has ended.
pub(in super::super) fn pidfd(connection: &OwnedFd) -> nix::Result<Option<OwnedFd>> {
    // Linux 6.5. Before 6.16 it fails with EINVAL or ESRCH for a process that was waited for.
    match socket::getsockopt(connection, sockopt::PeerPidfd) {
        Ok(pidfd) => return Ok(Some(pidfd)),
        Err(errno @ Errno::EMFILE) => return Err(errno),
        Err(_) => {}
    }
    // The number is right if the process still lives after this: who listened answers afterwards,
    // and who connected must have the connection still for an answer to be sent.
    let pid = pid(connection)?;
    if pid <= 0 {
        // Of a namespace that is not seen from here.
        return Ok(None);
    }
    // SAFETY: no pointers.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match Errno::result(pidfd) {
        // SAFETY: the call made it, so that it is nobody else's.
        Ok(pidfd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) })),
        Err(errno @ (Errno::ESRCH | Errno::EMFILE)) => Err(errno),
        Err(_) => Ok(None),
    }
}

/// Returns the number of the process at the other end; 0 if that is not seen from here.
pub(in super::super) fn pid(connection: &OwnedFd) -> nix::Result<i32> {
    Ok(socket::getsockopt(connection, sockopt::PeerCredentials)?.pid())
}

/// Returns the user of the process at the other end.
pub(in super::super) fn user(connection: &OwnedFd) -> nix::Result<u32> {
    Ok(socket::getsockopt(connection, sockopt::PeerCredentials)?.uid())
}

/// Returns whether the other side has not read all that was sent.
pub(in super::super) fn has_unread(connection: &OwnedFd) -> bool {
    let mut unread: libc::c_int = 0;
    let (fd, at) = (connection.as_raw_fd(), &raw mut unread);
    // SAFETY: `SIOCOUTQ`, which is this number, writes an integer there.
    let done = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, at) };
    // The kernel holds 1 back while it says that the rest was read (`sock_wfree`).
    done == 0 && unread > 1
}

/// Takes one message, for what tests play.
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
        let raw = one.as_raw_fd();
        let mut into = [0; 8];
        for count in 0..=DESCRIPTORS {
            send(one.as_fd(), b"hello", &vec![raw; count]).unwrap();
            let (len, descriptors) = receive_with(other.as_fd(), &mut into).unwrap();
            assert_eq!((len, descriptors.len()), (5, count));
        }
        // Other tests open and close some as well: a leak of each message would be seen.
        let before = open();
        for _ in 0..500 {
            send(one.as_fd(), b"hello", &[raw; 7]).unwrap();
            assert_eq!(
                receive_with(other.as_fd(), &mut into).unwrap_err(),
                Errno::EBADMSG
            );
            assert_eq!(receive(other.as_fd(), &mut into), Ok(5));
            send(one.as_fd(), b"longer than the room", &[raw]).unwrap();
            assert_eq!(
                receive_with(other.as_fd(), &mut into).unwrap_err(),
                Errno::EBADMSG
            );
            send(one.as_fd(), b"hello", &[raw; 2]).unwrap();
            assert_eq!(receive(other.as_fd(), &mut into), Ok(5));
        }
        let end = Instant::now() + Duration::from_secs(20);
        while open() >= before + 400 {
            assert!(Instant::now() < end, "they are closed");
        }
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
        let id = super::super::place::random().unwrap();
        let address = Address::Abstract(id.to_vec());
        let listener = listen(&address).unwrap();
        let soon = Instant::now() + Duration::from_secs(5);
        let connection = connect(&address, soon).unwrap();
        let raw = connection.as_raw_fd();
        match send(connection.as_fd(), b"x", &[raw]) {
            // Before Linux 6.16: they are closed as they come.
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
