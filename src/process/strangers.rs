//! Unix sockets that strangers may send to, and how what they send is kept away.
//!
//! A message can carry descriptors (`SCM_RIGHTS`). The party that reads it closes those that it has
//! no room for, and whoever closes the socket closes those that nobody has read; either can take as
//! long as the sender likes ([`closing`](super::closing)). So no thread of an application's and no
//! service thread may do it:
//!
//! | | Linux 6.16 (`SO_PASSRIGHTS`) | before |
//! |---|---|---|
//! | a socket that expects none | refuses them: the sender gets `EPERM` | reads with room for all, and a thread closes them; it closes the socket too |
//! | a client's, until its reply has come | reads nothing if more came than it expects; else a thread closes what is no memory, or much | the same |
//!
//! Before Linux 6.16 a stranger can still have this process keep descriptors open, up to its limit:
//! those that a thread is closing. If there is no room left for descriptors, the kernel closes
//! them on the thread that reads.
#![expect(unsafe_code, reason = "system calls that nix does not wrap")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::socket::{
    self, AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, sockopt,
};
use nix::sys::stat::{Mode, fstat};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::read;

use super::closing::Guarded;

/// The most descriptors that one message carries (`SCM_MAX_FD`, unix(7)).
const MOST: usize = 253;

fn new(kind: SockType, flags: SockFlag) -> nix::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, kind, flags, None)
}

/// Returns a socket that listens, and does not block. It and its connections take no descriptors.
pub(crate) fn listen(kind: SockType, address: &UnixAddr) -> nix::Result<Guarded> {
    let socket = new(kind, SockFlag::SOCK_NONBLOCK)?;
    let refuses = refuses(socket.as_fd());
    socket::bind(socket.as_raw_fd(), address)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(Guarded::new(socket, refuses))
}

/// Returns the next connection; it blocks, whatever the listener does, and takes descriptors if
/// that does.
pub(crate) fn accept(listener: &Guarded) -> nix::Result<Guarded> {
    let accepted = socket::accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: the call opened it: no other party has it.
    let socket = unsafe { OwnedFd::from_raw_fd(accepted) };
    Ok(Guarded::new(socket, listener.is_quick()))
}

/// Connects to where somebody listens. While others wait in line, waits until the deadline; without
/// one, it does not wait. The connection does not block.
///
/// `answered` says that an answer with descriptors is expected: [`refuse`] comes after it.
///
/// # Errors
///
/// `EAGAIN` if the line was full until the deadline.
pub(crate) fn connect(
    kind: SockType,
    address: &UnixAddr,
    answered: bool,
    deadline: Option<Instant>,
) -> nix::Result<Guarded> {
    let flags = match deadline {
        Some(_) => SockFlag::empty(),
        None => SockFlag::SOCK_NONBLOCK,
    };
    let socket = new(kind, flags)?;
    let refuses = !answered && refuses(socket.as_fd());
    let socket = Guarded::new(socket, refuses);
    loop {
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::EAGAIN);
            }
            // A limit of 0 would be none.
            let micros = i64::try_from(left.as_micros()).unwrap_or(i64::MAX).max(1);
            let limit = TimeVal::microseconds(micros.min(1 << 40));
            socket::setsockopt(&*socket, sockopt::SendTimeout, &limit)?;
        }
        match socket::connect(socket.as_raw_fd(), address) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(()) => {
                fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
                return Ok(socket);
            }
        }
    }
}

/// The answer has come: from now on the connection takes no descriptors.
///
/// If some have come behind the answer, it stays one whose closing may take time.
pub(crate) fn refuse(socket: &mut Guarded) {
    if socket.is_quick() || !refuses(socket.as_fd()) {
        return;
    }
    if queued(socket.as_fd()) == Some(0) {
        socket.set_quick(true);
    }
}

/// Returns how many descriptors lie in a socket's queue; `None` if the kernel does not say so.
///
/// It takes the lock under which a sender that was not refused puts its own there
/// (`unix_show_fdinfo`).
fn queued(socket: BorrowedFd<'_>) -> Option<usize> {
    let path = format!("/proc/thread-self/fdinfo/{}", socket.as_raw_fd());
    let file = open(&*path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    // It has some 60 bytes, which one read gets.
    let mut info = [0; 256];
    let len = read(&file, &mut info)
        .ok()
        .filter(|&len| len < info.len())?;
    let info = std::str::from_utf8(&info[..len]).ok()?;
    info.lines()
        .find_map(|line| line.strip_prefix("scm_fds: "))
        .and_then(|count| count.parse().ok())
}

/// Has a socket take no descriptors: whoever sends some gets `EPERM`. Connections inherit it.
///
/// Returns `false` before Linux 6.16, which knows no such thing.
fn refuses(socket: BorrowedFd<'_>) -> bool {
    set_rights(socket, 0)
}

/// The next answer may bring descriptors.
pub(crate) fn expect(socket: &mut Guarded) {
    socket.set_quick(false);
    // One that is not quick may refuse them as well, if `refuse` could not ask what has come.
    set_rights(socket.as_fd(), 1);
}

fn set_rights(socket: BorrowedFd<'_>, pass: libc::c_int) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (fd, at) = (socket.as_raw_fd(), (&raw const pass).cast());
    let len = size_of::<libc::c_int>() as _;
    // SAFETY: a pointer to an integer, with its length.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) };
    set == 0
}

/// Reads what has come, without descriptors.
///
/// # Errors
///
/// `EBADMSG` if descriptors came along.
pub(crate) fn receive(from: &Guarded, into: &mut [u8]) -> nix::Result<usize> {
    match from.is_quick() {
        true => socket::recv(from.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT),
        false => receive_with::<0>(from.as_fd(), into).map(|(len, _)| len),
    }
}

/// Takes one message with its descriptors, of which closing those is quick that are memory.
///
/// # Errors
///
/// `EBADMSG` if more than `N` came along, or the message is longer than the room for it. If the
/// kernel says that more than `N` are in the queue, nothing is taken: each of them would stay open
/// until the thread has closed those before it.
pub(crate) fn receive_with<const N: usize>(
    from: BorrowedFd<'_>,
    into: &mut [u8],
) -> nix::Result<(usize, ArrayVec<Guarded, N>)> {
    if N > 0 && queued(from).is_some_and(|count| count > N) {
        return Err(Errno::EBADMSG);
    }
    const HEADER: usize = size_of::<libc::cmsghdr>();
    /// A header, and room for the descriptors.
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        descriptors: [RawFd; MOST],
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
    // SAFETY: the header points to a buffer and to room for control messages, each with its length,
    // which outlive the call.
    let len = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, flags) };
    let len = Errno::result(len)? as usize;
    let mut descriptors = ArrayVec::new();
    let mut right = header.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) == 0;
    let rights = header.msg_controllen as usize >= HEADER
        && control.header.cmsg_level == libc::SOL_SOCKET
        && control.header.cmsg_type == libc::SCM_RIGHTS;
    if rights {
        let bytes = (control.header.cmsg_len as usize).saturating_sub(HEADER);
        let count = (bytes / size_of::<RawFd>()).min(MOST);
        for &descriptor in &control.descriptors[..count] {
            // SAFETY: the kernel opened it for this message, and said so: it is nobody else's.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            let is_expected = !descriptors.is_full();
            right &= is_expected;
            // One that is not expected is handed to the thread here.
            let _ = descriptors.try_push(guarded(descriptor, is_expected));
        }
    }
    match right {
        true => Ok((len, descriptors)),
        false => Err(Errno::EBADMSG),
    }
}

/// The most memory, in units of 512 bytes, that is quick to close: 64 MiB.
const QUICK: i64 = 64 << 11;

/// Closing the last descriptor of memory frees it, which takes 0.3 s for a GiB. It is quick for a
/// little memory, of which there are as many as are expected.
fn guarded(descriptor: OwnedFd, is_expected: bool) -> Guarded {
    // Only memory has seals.
    let is_memory = fcntl(&descriptor, FcntlArg::F_GET_SEALS).is_ok();
    let is_little = || fstat(&descriptor).is_ok_and(|stat| stat.st_blocks <= QUICK);
    let quick = is_expected && is_memory && is_little();
    Guarded::new(descriptor, quick)
}

/// Returns how many bytes of what was written to a TCP socket the peer's host has not acknowledged
/// (tcp(7): SIOCOUTQ).
pub(crate) fn unacknowledged(socket: impl AsFd) -> nix::Result<usize> {
    let (fd, mut len) = (socket.as_fd().as_raw_fd(), 0 as libc::c_int);
    // SAFETY: the request writes one integer, to which this points.
    let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut len) };
    Errno::result(asked).map(|_| len as usize)
}

/// Ends a connection, or listening, also where a child of fork(2) has a copy of the descriptor.
pub(crate) fn hang_up(socket: impl AsFd) {
    let _ = socket::shutdown(socket.as_fd().as_raw_fd(), Shutdown::Both);
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use nix::fcntl::{FallocateFlags, fallocate};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_little_memory_is_closed_at_once_where_it_is_expected_and_nothing_else_is() {
        let memory = || memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(guarded(memory(), true).is_quick());
        assert!(!guarded(memory(), false).is_quick());
        let much = memory();
        fallocate(&much, FallocateFlags::empty(), 0, (QUICK + 8) * 512).unwrap();
        assert!(!guarded(much, true).is_quick());
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        assert!(!guarded(null(), true).is_quick());
        assert!(!guarded(null(), false).is_quick());
    }
}
