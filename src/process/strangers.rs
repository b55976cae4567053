//! Unix sockets that strangers may send to, and the defence against descriptors that they send.
//!
//! A message can carry descriptors (`SCM_RIGHTS`). Reading the message closes the descriptors for
//! which the reader has no buffer, and closing the socket closes those that were not read. Either
//! can take as long as the sender likes ([`closing`](super::closing)), so threads of the
//! application and service threads must not do it:
//!
//! | | Linux 6.16 (`SO_PASSRIGHTS`) | before |
//! |---|---|---|
//! | a socket that expects none | refuses them: the sender gets `EPERM` | reads all of them, and a thread closes them; it closes the socket too |
//! | a client's socket, until its reply has come | reads nothing if more descriptors came than it expects; otherwise a thread closes those that are no memory, or much memory | the same |
//!
//! Before Linux 6.16 a stranger can still make this process keep descriptors open, up to its limit,
//! while a thread is closing them. If the process can have no more descriptors, the kernel closes
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

/// The maximum number of descriptors in one message (`SCM_MAX_FD`, unix(7)).
const MOST: usize = 253;

fn new(kind: SockType, flags: SockFlag) -> nix::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, kind, flags, None)
}

/// Returns a listening socket that does not block. The socket and its connections refuse
/// descriptors, if the kernel can do so.
pub(crate) fn listen(kind: SockType, address: &UnixAddr) -> nix::Result<Guarded> {
    let socket = new(kind, SockFlag::SOCK_NONBLOCK)?;
    let refuses = refuses(socket.as_fd());
    socket::bind(socket.as_raw_fd(), address)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(Guarded::new(socket, refuses))
}

/// Returns the next connection, as a socket that blocks even if the listener does not. The socket
/// refuses descriptors if the listener does.
pub(crate) fn accept(listener: &Guarded) -> nix::Result<Guarded> {
    let accepted = socket::accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: the call opened it: no other party has it.
    let socket = unsafe { OwnedFd::from_raw_fd(accepted) };
    Ok(Guarded::new(socket, listener.is_quick()))
}

/// Connects to a listening socket. While its backlog is full, waits until the deadline; without a
/// deadline, does not wait. The returned socket does not block.
///
/// `answered` says that an answer with descriptors is expected; the caller calls [`refuse`] after
/// the answer.
///
/// # Errors
///
/// `EAGAIN` if the backlog was full until the deadline.
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
            // A timeout of 0 would mean no timeout.
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

/// Makes the connection refuse descriptors from now on, since the answer has come.
///
/// If descriptors have come behind the answer, closing the connection may still take time.
pub(crate) fn refuse(socket: &mut Guarded) {
    if socket.is_quick() || !refuses(socket.as_fd()) {
        return;
    }
    if queued(socket.as_fd()) == Some(0) {
        socket.set_quick(true);
    }
}

/// Returns how many descriptors lie in a socket's queue; `None` if the kernel does not report it.
///
/// The kernel counts under the lock under which a sender that was not refused queues its
/// descriptors (`unix_show_fdinfo`).
fn queued(socket: BorrowedFd<'_>) -> Option<usize> {
    let path = format!("/proc/thread-self/fdinfo/{}", socket.as_raw_fd());
    let file = open(&*path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    // The file has about 60 bytes, which one read returns.
    let mut info = [0; 256];
    let len = read(&file, &mut info)
        .ok()
        .filter(|&len| len < info.len())?;
    let info = std::str::from_utf8(&info[..len]).ok()?;
    info.lines()
        .find_map(|line| line.strip_prefix("scm_fds: "))
        .and_then(|count| count.parse().ok())
}

/// Makes a socket refuse descriptors: sending some fails with `EPERM`. Accepted connections inherit
/// this.
///
/// Returns `false` before Linux 6.16, which cannot do this.
fn refuses(socket: BorrowedFd<'_>) -> bool {
    set_rights(socket, 0)
}

/// Makes the connection accept descriptors, since the next answer may bring some.
pub(crate) fn expect(socket: &mut Guarded) {
    socket.set_quick(false);
    // A socket that is not quick may refuse descriptors too, if `refuse` could not find out how
    // many have come.
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

/// Reads bytes that have come, without descriptors.
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

/// Reads one message with its descriptors. Descriptors of memory, up to 64 MiB, are marked as quick
/// to close.
///
/// # Errors
///
/// `EBADMSG` if more than `N` descriptors came along, or the message is longer than `into`. If the
/// kernel reports more than `N` descriptors in the queue, nothing is read: each of them would stay
/// open until the thread has closed those before it.
pub(crate) fn receive_with<const N: usize>(
    from: BorrowedFd<'_>,
    into: &mut [u8],
) -> nix::Result<(usize, ArrayVec<Guarded, N>)> {
    if N > 0 && queued(from).is_some_and(|count| count > N) {
        return Err(Errno::EBADMSG);
    }
    const HEADER: usize = size_of::<libc::cmsghdr>();
    /// The header and the descriptors of a control message.
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
    // SAFETY: the header points to one buffer for bytes and one for control messages, each with its
    // length. Both outlive the call.
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
            // SAFETY: the kernel has reported that it opened this descriptor for the message, so no
            // other code owns it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            let is_expected = !descriptors.is_full();
            right &= is_expected;
            // A descriptor that is not expected is dropped here, and so passed to the thread.
            let _ = descriptors.try_push(guarded(descriptor, is_expected));
        }
    }
    match right {
        true => Ok((len, descriptors)),
        false => Err(Errno::EBADMSG),
    }
}

/// The maximum size of memory that is quick to close, in units of 512 bytes: 64 MiB.
const QUICK: i64 = 64 << 11;

/// Guards a received descriptor. Closing the last descriptor of memory frees the memory, which
/// takes 0.3 s for a GiB. Closing is quick only for an expected descriptor of memory up to 64 MiB.
fn guarded(descriptor: OwnedFd, is_expected: bool) -> Guarded {
    // Only memory has seals.
    let is_memory = fcntl(&descriptor, FcntlArg::F_GET_SEALS).is_ok();
    let is_little = || fstat(&descriptor).is_ok_and(|stat| stat.st_blocks <= QUICK);
    let quick = is_expected && is_memory && is_little();
    Guarded::new(descriptor, quick)
}

/// Returns how many of the bytes written to a TCP socket the peer's host has not acknowledged
/// (tcp(7): SIOCOUTQ).
pub(crate) fn unacknowledged(socket: impl AsFd) -> nix::Result<usize> {
    let (fd, mut len) = (socket.as_fd().as_raw_fd(), 0 as libc::c_int);
    // SAFETY: the request writes one integer, to which this points.
    let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut len) };
    Errno::result(asked).map(|_| len as usize)
}

/// Shuts down a connection or a listening socket, even if a child of fork(2) has a copy of the
/// descriptor.
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
