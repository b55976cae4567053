//! Other processes that this process watches, and whether they still run.
//!
//! There is one [`Process`] for each other process, whatever connects this process to it. It
//! watches a pidfd, which becomes readable once the process has ended, even if a child of that
//! process holds copies of all its sockets. If there is no pidfd, the connection stays open, and
//! its end is watched.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, fstatfs};

use super::control::Words;
use super::ended::{Ended, ProcessState};
use super::peer::{Page, Pages, Peer};
use super::process::{Fabric, PROCESS};
use super::protocol::{Id, Line, socket};
use crate::error::Result;
use crate::process::Guarded;
use crate::sync::lock;

/// Another process. It is watched until this value is dropped.
pub(in super::super) struct Process {
    number: u64,
    pub(super) watched: Arc<ProcessState>,
    watch: Watch,
    pages: Pages,
    fabric: Arc<Fabric>,
}

/// The descriptor by which the end of a process is noticed.
pub(super) enum Watch {
    Pidfd(OwnedFd),
    Connection(Arc<Guarded>),
}

impl Watch {
    fn descriptor(&self) -> &OwnedFd {
        match self {
            Watch::Pidfd(pidfd) => pidfd,
            Watch::Connection(connection) => connection,
        }
    }

    /// Returns the event to register. It is reported once only, since the descriptor stays readable
    /// forever.
    fn event(&self, number: u64) -> EpollEvent {
        let events = match self {
            Watch::Pidfd(_) => EpollFlags::EPOLLIN,
            Watch::Connection(_) => EpollFlags::EPOLLRDHUP,
        };
        EpollEvent::new(events | EpollFlags::EPOLLONESHOT, number)
    }
}

/// The identity of a process. The instance is stated by that process or by a ticket, and any
/// process that knows an instance can state it; the other fields come from the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    instance: Id,
    /// The process's number; 0 if this process cannot see it.
    pid: i32,
    /// The device and the inode of the pidfd, which are unique to a process since Linux 6.9; `None`
    /// before.
    pidfd: Option<(u64, u64)>,
}

const PIDFS: FsType = FsType(0x5049_4446);

impl Identity {
    pub(super) fn of(instance: Id, pid: i32, watch: &Watch) -> nix::Result<Identity> {
        let pidfd = match watch {
            Watch::Pidfd(pidfd) if are_told_apart(pidfd)? => {
                let stat = fstat(pidfd)?;
                Some((stat.st_dev, stat.st_ino))
            }
            Watch::Pidfd(_) | Watch::Connection(_) => None,
        };
        Ok(Identity {
            instance,
            pid,
            pidfd,
        })
    }

    /// Returns true if the kernel identifies the process. Otherwise it could be any process, so
    /// each connection gets a separate watch.
    fn is_known(&self) -> bool {
        self.pid > 0 || self.pidfd.is_some()
    }
}

/// Returns true if each process's pidfds have a unique inode. This depends only on the kernel.
fn are_told_apart(pidfd: &OwnedFd) -> nix::Result<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let told_apart = fstatfs(pidfd)?.filesystem_type() == PIDFS;
    Ok(*KNOWN.get_or_init(|| told_apart))
}

/// Returns another descriptor of the same connection.
fn duplicate(connection: &Guarded) -> nix::Result<Guarded> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    connection.duplicate().map_err(errno)
}

/// All processes that are watched.
#[derive(Default)]
pub(super) struct Processes {
    next: u64,
    known: Vec<Known>,
}

struct Known {
    number: u64,
    identity: Identity,
    watched: Arc<ProcessState>,
    process: Weak<Process>,
}

impl Processes {
    /// Returns the process with this number, if it is still watched.
    pub(super) fn watched(&self, number: u64) -> Option<Arc<ProcessState>> {
        let of = |known: &&Known| known.number == number;
        let known = self.known.iter().find(of)?;
        Some(Arc::clone(&known.watched))
    }

    /// Returns a live process with this identity. A process that has ended is not confused with a
    /// later process that has the same number.
    fn find(&self, identity: &Identity) -> Option<Arc<Process>> {
        let of = |known: &&Known| {
            identity.is_known() && known.identity == *identity && !known.watched.is_dead()
        };
        self.known
            .iter()
            .filter(of)
            .find_map(|known| known.process.upgrade())
    }
}

impl Process {
    /// Returns the process at the other end of a connection, and watches it from now on.
    ///
    /// Without a pidfd, the end of the connection counts as the end of the process. With `shared`,
    /// the connection is kept for this purpose only, so one connection serves for the whole process
    /// if this process can see the other one's number. Without `shared`, either side may end the
    /// connection at any time, so each connection counts as a separate process.
    pub(super) fn across(
        fabric: &Arc<Fabric>,
        instance: Id,
        connection: &Guarded,
        pidfd: Option<OwnedFd>,
        shared: bool,
    ) -> nix::Result<Arc<Process>> {
        let pid = match pidfd.is_some() || shared {
            true => socket::pid(connection)?,
            false => 0,
        };
        let watch = match pidfd {
            Some(pidfd) => Watch::Pidfd(pidfd),
            None => Watch::Connection(Arc::new(duplicate(connection)?)),
        };
        let identity = Identity::of(instance, pid, &watch)?;
        Process::watched(fabric, identity, watch)
    }

    /// Watches the program at the other end of a connection. The program counts as ended once the
    /// connection ends.
    ///
    /// The process may continue without the connection. After execve(2) it runs another program,
    /// which does not know what the earlier program shared with this one.
    pub(in super::super) fn at_the_end_of(
        &self,
        connection: &Arc<Guarded>,
    ) -> nix::Result<Arc<Process>> {
        let identity = Identity {
            instance: Id::default(),
            pid: 0,
            pidfd: None,
        };
        let watch = Watch::Connection(Arc::clone(connection));
        Process::watched(&self.fabric, identity, watch)
    }

    /// Returns the process with this identity, and watches it from now on.
    pub(super) fn watched(
        fabric: &Arc<Fabric>,
        identity: Identity,
        watch: Watch,
    ) -> nix::Result<Arc<Process>> {
        let mut processes = lock(&fabric.processes);
        if let Some(process) = processes.find(&identity) {
            drop(processes);
            return Ok(process);
        }
        processes.next += 1;
        let number = PROCESS | processes.next;
        // This is done under the lock: an event that comes at once must find the entry.
        fabric.epoll.add(watch.descriptor(), watch.event(number))?;
        let process = Arc::new(Process {
            number,
            watched: Arc::new(ProcessState::new(identity.pid)),
            watch,
            pages: Pages::default(),
            fabric: Arc::clone(fabric),
        });
        processes.known.push(Known {
            number,
            identity,
            watched: Arc::clone(&process.watched),
            process: Arc::downgrade(&process),
        });
        Ok(process)
    }

    /// Keeps a connection for the next request. The caller must be its only owner.
    pub(in super::super) fn keep_line(self: &Arc<Self>, line: Line) {
        // In a child of fork(2) the connection belongs to the parent.
        if !self.fabric.is_inherited() {
            self.fabric.lines.keep(self, line);
        }
    }

    /// Returns the descriptor by which the process is watched.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.descriptor().as_fd()
    }

    /// Returns the exporter with this page. Maps the page by `map` unless it is mapped already.
    pub(super) fn exporter(
        self: &Arc<Self>,
        page: Page,
        map: impl FnOnce() -> Result<Words>,
    ) -> Result<Arc<Peer>> {
        let keep = Arc::clone(self);
        self.pages.peer(page, map, &self.watched, keep)
    }

    /// Returns true if the fabric's thread has noticed that the process has ended.
    #[inline]
    pub(in super::super) fn is_dead(&self) -> bool {
        self.watched.is_dead()
    }

    /// Asks the kernel whether the process has ended. In contrast, [`Process::is_dead`] makes no
    /// system call, and returns what the fabric's thread has noticed.
    pub(in super::super) fn has_ended(&self) -> bool {
        let events = match self.watch {
            Watch::Pidfd(_) => PollFlags::POLLIN,
            Watch::Connection(_) => PollFlags::POLLHUP,
        };
        let mut asked = [PollFd::new(self.watch.descriptor().as_fd(), events)];
        self.is_dead() || poll(&mut asked, PollTimeout::ZERO).is_ok_and(|ended| ended > 0)
    }

    /// Makes the fabric's thread notify `who` when the process ends, or if it has ended already. A
    /// party that registers repeatedly may be notified as often.
    pub(in super::super) fn on_end(&self, who: Weak<dyn Ended>) {
        // A child of fork(2) may have inherited a held lock, and its parent's epoll descriptor.
        if self.fabric.is_inherited() {
            return;
        }
        let mut to_tell = lock(&self.watched.to_tell);
        if to_tell.len() == to_tell.capacity() {
            // The list is full: this removes parties that are gone, and repeated registrations.
            let mut known = HashSet::new();
            to_tell.retain(|who| who.strong_count() > 0 && known.insert(who.as_ptr().addr()));
        }
        to_tell.push(who);
        if self.is_dead() {
            // This makes the thread check the process again. It cannot fail: the descriptor is
            // registered, and nothing is allocated.
            let mut event = self.watch.event(self.number);
            let _ = self
                .fabric
                .epoll
                .modify(self.watch.descriptor(), &mut event);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // In a child of fork(2) the epoll descriptor belongs to the parent.
        if self.fabric.is_inherited() {
            return;
        }
        let _ = self.fabric.epoll.delete(self.watch.descriptor().as_fd());
        self.fabric.lines.let_go_of(self);
        let mut processes = lock(&self.fabric.processes);
        processes.known.retain(|known| known.number != self.number);
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::super::current;
    use super::*;

    struct Nobody;

    impl Ended for Nobody {
        fn ended(&self) {}
    }

    #[test]
    fn who_asks_again_and_again_takes_no_more_room() {
        let fabric = current::fabric().unwrap();
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        let identity = Identity {
            instance: Id::default(),
            pid: 0,
            pidfd: None,
        };
        let watch = Watch::Connection(Arc::new(Guarded::new(here, true)));
        let process = Process::watched(&fabric, identity, watch).unwrap();
        let one: [Arc<dyn Ended>; 2] = [Arc::new(Nobody), Arc::new(Nobody)];
        for who in one.iter().cycle().take(1000) {
            process.on_end(Arc::downgrade(who));
        }
        let told = lock(&process.watched.to_tell);
        assert!((2..=8).contains(&told.len()), "{}", told.len());
        for who in &one {
            assert!(told.iter().any(|told| told.ptr_eq(&Arc::downgrade(who))));
        }
    }
}
