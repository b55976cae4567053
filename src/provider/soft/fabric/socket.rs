//! Sockets of the fabric: one message in each direction, with descriptors in one of them.
//!
//! No call of this file waits, but [`connect`] and [`wait`], which have a deadline.
#![expect(unsafe_code, reason = "system calls that nix does not wrap")]

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    self, AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// The longest name: `sun_path` without a zero.
pub(super) const NAME_MAX: usize = 107;

/// The descriptors that come with an answer: the memory and the control page, or the memory of link and channel.
pub(super) const DESCRIPTORS: usize = 2;

/// Where an exporter listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A name in the network namespace, without its first zero. It goes with the last descriptor.
    Abstract(Vec<u8>),
    /// A path.
    Path(PathBuf),
}

impl Address {
    pub(super) fn resolve(&self) -> nix::Result<UnixAddr> {
        match self {
            Address::Abstract(name) => UnixAddr::new_abstract(name),
            Address::Path(path) => UnixAddr::new(path),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => write!(f, "@{}", name.escape_ascii()),
            Address::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

fn new(flags: SockFlag) -> nix::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// A socket that listens.
pub(super) fn listen(address: &Address) -> nix::Result<UnixListener> {
    let socket = new(SockFlag::SOCK_NONBLOCK)?;
    refuse_descriptors(socket.as_fd());
    socket::bind(socket.as_raw_fd(), &address.resolve()?)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(UnixListener::from(socket))
}

/// Connects. Where others stand in line as well it waits until the deadline: `EAGAIN` then.
pub(super) fn connect(address: &Address, deadline: Instant) -> nix::Result<OwnedFd> {
    let socket = new(SockFlag::empty())?;
    let address = address.resolve()?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::EAGAIN);
        }
        // A limit of 0 would be none.
        let micros = i64::try_from(left.as_micros()).unwrap_or(i64::MAX).max(1);
        let limit = TimeVal::microseconds(micros.min(1 << 40));
        socket::setsockopt(&socket, sockopt::SendTimeout, &limit)?;
        match socket::connect(socket.as_raw_fd(), &address) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(()) => return Ok(socket),
        }
    }
}

/// Waits until one of the descriptors has something, and says for each whether it has: none at the deadline.
pub(super) fn wait<const N: usize>(
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
pub(super) fn send(to: BorrowedFd<'_>, message: &[u8], with: &[RawFd]) -> nix::Result<()> {
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let rights = [ControlMessage::ScmRights(with)];
    let control = if with.is_empty() { &[][..] } else { &rights };
    let message = [IoSlice::new(message)];
    socket::sendmsg::<()>(to.as_raw_fd(), &message, control, flags, None).map(drop)
}

/// Takes one message, and no descriptors: the kernel closes what comes along.
pub(super) fn receive(from: BorrowedFd<'_>, into: &mut [u8]) -> nix::Result<usize> {
    socket::recv(from.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)
}

/// Takes one message with its descriptors.
///
/// More than there is room for are closed by the kernel, and it is an error, `EBADMSG`, which closes the others.
pub(super) fn receive_with(
    from: BorrowedFd<'_>,
    into: &mut [u8],
) -> nix::Result<(usize, ArrayVec<OwnedFd, DESCRIPTORS>)> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    /// A header, and room for the descriptors alone: the kernel puts no more of them into it.
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        descriptors: [RawFd; DESCRIPTORS],
    }
    // SAFETY: integers, of which all may be 0.
    let mut control: Control = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: integers and pointers, of which all may be 0.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points to a buffer and to room for control messages, each with its length, which outlive the call.
    let len = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, flags) };
    let len = Errno::result(len)? as usize;
    let mut descriptors = ArrayVec::new();
    let rights = header.msg_controllen as usize >= HEADER
        && control.header.cmsg_level == libc::SOL_SOCKET
        && control.header.cmsg_type == libc::SCM_RIGHTS;
    if rights {
        let bytes = (control.header.cmsg_len as usize).saturating_sub(HEADER);
        let count = (bytes / size_of::<RawFd>()).min(DESCRIPTORS);
        for &descriptor in &control.descriptors[..count] {
            // SAFETY: the kernel opened it for this message, and said so: it is nobody else's.
            descriptors.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
    match header.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) {
        0 => Ok((len, descriptors)),
        _ => Err(Errno::EBADMSG),
    }
}

/// Ends a connection, or listening, also where a child of fork(2) has a copy of the descriptor.
pub(super) fn hang_up(socket: impl AsFd) {
    let _ = socket::shutdown(socket.as_fd().as_raw_fd(), Shutdown::Both);
}

/// A descriptor of the process at the other end, which listened, or connected, and is readable once that has ended.
///
/// `None` if there is no such thing here; `ESRCH` if the process has ended.
pub(super) fn pidfd(connection: &OwnedFd) -> nix::Result<Option<OwnedFd>> {
    // Linux 6.5. Before 6.16 it fails with EINVAL or ESRCH for a process that was waited for.
    match socket::getsockopt(connection, sockopt::PeerPidfd) {
        Ok(pidfd) => return Ok(Some(pidfd)),
        Err(errno @ Errno::EMFILE) => return Err(errno),
        Err(_) => {}
    }
    // The number is right if the process still lives after this: who listened answers afterwards, and who connected must have the
    // connection still for an answer to be sent.
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

/// Another descriptor of the same connection.
pub(super) fn duplicate(connection: &OwnedFd) -> nix::Result<OwnedFd> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    connection.try_clone().map_err(errno)
}

/// The number of the process at the other end; 0 if that is not seen from here.
pub(super) fn pid(connection: &OwnedFd) -> nix::Result<i32> {
    Ok(socket::getsockopt(connection, sockopt::PeerCredentials)?.pid())
}

/// Whoever sends descriptors to it gets `EPERM`: closing a stranger's descriptor may take as long as the stranger likes.
///
/// Linux 6.16; before, it changes nothing. Connections inherit it.
fn refuse_descriptors(socket: BorrowedFd<'_>) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (fd, no) = (socket.as_raw_fd(), 0 as libc::c_int);
    let (at, len) = ((&raw const no).cast(), size_of::<libc::c_int>() as _);
    // SAFETY: a pointer to an integer, with its length.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    fn open() -> usize {
        std::fs::read_dir("/proc/thread-self/fd").unwrap().count()
    }

    #[test]
    fn descriptors_arrive_and_too_many_are_closed() {
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
            send(one.as_fd(), b"longer than the room", &[raw]).unwrap();
            assert_eq!(
                receive_with(other.as_fd(), &mut into).unwrap_err(),
                Errno::EBADMSG
            );
            send(one.as_fd(), b"hello", &[raw; 2]).unwrap();
            assert_eq!(receive(other.as_fd(), &mut into), Ok(5));
        }
        assert!(open() < before + 400);
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
        let id = super::super::place::random("test").unwrap();
        let address = Address::Abstract(id.to_vec());
        let listener = listen(&address).unwrap();
        let soon = Instant::now() + Duration::from_secs(5);
        let connection = connect(&address, soon).unwrap();
        let raw = connection.as_raw_fd();
        match send(connection.as_fd(), b"x", &[raw]) {
            // Before Linux 6.16: they are closed as they come.
            Ok(()) => {
                let (accepted, _) = listener.accept().unwrap();
                assert_eq!(receive(accepted.as_fd(), &mut [0; 4]), Ok(1));
            }
            Err(errno) => assert_eq!(errno, Errno::EPERM),
        }
        assert!(pidfd(&connection).unwrap().is_some());
        hang_up(&listener);
        assert_eq!(connect(&address, soon).unwrap_err(), Errno::ECONNREFUSED);
    }
}
