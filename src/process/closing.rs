//! Descriptors whose closing may take time: a separate thread closes them.
//!
//! Closing the last descriptor of a file takes as long as the file's maker likes: a TCP socket with
//! unsent data and `SO_LINGER` waits for its peer, and a user's file system (FUSE) answers when it
//! likes. Descriptors that a stranger sent are therefore closed on a thread that nothing waits for.
//! So are sockets that may hold descriptors which were not read yet, since closing the socket
//! closes those.

use std::mem::take;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;

use crate::sync::{EachProcess, lock};
use nix::sys::signal::SigSet;

/// A descriptor, and whether closing it may take time.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// `None` once it was taken out, which ends the guard.
    descriptor: Option<OwnedFd>,
    quick: bool,
}

impl Guarded {
    /// Guards a descriptor. `quick` says that closing it takes no time; otherwise a thread closes
    /// it.
    pub(crate) fn new(descriptor: impl Into<OwnedFd>, quick: bool) -> Guarded {
        Guarded {
            descriptor: Some(descriptor.into()),
            quick,
        }
    }

    /// Returns true if closing the descriptor takes no time. A socket for which this is true
    /// refuses descriptors that are sent to it.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    pub(super) fn set_quick(&mut self, quick: bool) {
        self.quick = quick;
    }

    /// Returns another descriptor of the same file, with the same guard.
    pub(crate) fn duplicate(&self) -> std::io::Result<Guarded> {
        Ok(Guarded::new(self.try_clone()?, self.quick))
    }

    /// Returns the descriptor without its guard, and true if closing it takes no time.
    pub(crate) fn into_parts(mut self) -> (OwnedFd, bool) {
        let descriptor = self.descriptor.take();
        let descriptor = descriptor.expect("the method that takes it out consumes the guard");
        (descriptor, self.quick)
    }
}

impl Deref for Guarded {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        let descriptor = self.descriptor.as_ref();
        descriptor.expect("the method that takes it out consumes the guard")
    }
}

impl AsFd for Guarded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl AsRawFd for Guarded {
    fn as_raw_fd(&self) -> RawFd {
        self.deref().as_raw_fd()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        match self.descriptor.take() {
            Some(descriptor) if !self.quick => close(descriptor),
            _ => {}
        }
    }
}

/// The descriptors that the thread is to close.
#[derive(Default)]
struct Queue {
    has_thread: bool,
    waiting: Vec<OwnedFd>,
}

static QUEUE: EachProcess<Mutex<Queue>> = EachProcess::new(Mutex::default);

/// Passes a descriptor to the thread, which closes it. The thread starts if none runs, and ends
/// when no descriptor is left.
///
/// If no thread can be started, the descriptor stays open until one can.
fn close(descriptor: OwnedFd) {
    let mut queue = lock(QUEUE.get());
    queue.waiting.push(descriptor);
    if queue.has_thread {
        return;
    }
    let run = || {
        // Signal handlers of the application run only on the application's threads.
        let _ = SigSet::all().thread_block();
        loop {
            let mut queue = lock(QUEUE.get());
            let waiting = take(&mut queue.waiting);
            if waiting.is_empty() {
                queue.has_thread = false;
                return;
            }
            drop(queue);
            drop(waiting);
        }
    };
    let thread = std::thread::Builder::new().name("doca-close".to_owned());
    let started = thread.stack_size(64 << 10).spawn(run);
    queue.has_thread = started.is_ok();
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn what_is_not_quick_is_closed_elsewhere_and_at_last() {
        let pair = || {
            let flags = SockFlag::SOCK_CLOEXEC;
            socketpair(AddressFamily::Unix, SockType::Stream, None, flags).unwrap()
        };
        for quick in [true, false] {
            let (guarded, there) = pair();
            let again = Guarded::new(guarded, quick).duplicate().unwrap();
            assert_eq!(again.is_quick(), quick);
            drop(again);
            let end = Instant::now() + Duration::from_secs(30);
            while nix::unistd::write(&there, b"x").is_ok() {
                assert!(!quick && Instant::now() < end);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (one, other) = pair();
        assert!(Guarded::new(one, true).into_parts().1);
        assert!(!Guarded::new(other, false).into_parts().1);
    }
}
