//! Other processes, and whether they still live.
//!
//! There is one [`Process`] for each, whatever joins this process to it. It watches a pidfd, which
//! is readable once the process has ended, also if a child of it holds copies of all its sockets.
//! Where there is no pidfd, the connection stays open, and its end is watched.

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

/// Another process, which is watched until this is dropped.
pub(in super::super) struct Process {
    number: u64,
    pub(super) watched: Arc<ProcessState>,
    watch: Watch,
    pages: Pages,
    fabric: Arc<Fabric>,
}

/// How the end of a process shows.
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

    /// Once, as it stays readable for ever.
    fn event(&self, number: u64) -> EpollEvent {
        let events = match self {
            Watch::Pidfd(_) => EpollFlags::EPOLLIN,
            Watch::Connection(_) => EpollFlags::EPOLLRDHUP,
        };
        EpollEvent::new(events | EpollFlags::EPOLLONESHOT, number)
    }
}

/// Which process it is. The instance is the word of that process, or of a ticket, and anybody who
/// knows it can say it; the rest is the kernel's word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    instance: Id,
    /// 0 if it is not seen from here.
    pid: i32,
    /// Device and inode of the pidfd: since Linux 6.9 each process has its own. `None` before.
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

    /// Returns whether the kernel says which process it is. If it does not, the process could be
    /// any, and each connection has a watch of its own.
    fn is_known(&self) -> bool {
        self.pid > 0 || self.pidfd.is_some()
    }
}

/// Returns whether each process's pidfds have an inode of their own, which this kernel's have or
/// have not.
fn are_told_apart(pidfd: &OwnedFd) -> nix::Result<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let told_apart = fstatfs(pidfd)?.filesystem_type() == PIDFS;
    Ok(*KNOWN.get_or_init(|| told_apart))
}

/// Another descriptor of the same connection.
fn duplicate(connection: &Guarded) -> nix::Result<Guarded> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    connection.duplicate().map_err(errno)
}

/// The processes that are watched.
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
    /// Returns the one that has this number, if it is watched still.
    pub(super) fn watched(&self, number: u64) -> Option<Arc<ProcessState>> {
        let of = |known: &&Known| known.number == number;
        let known = self.known.iter().find(of)?;
        Some(Arc::clone(&known.watched))
    }

    /// Finds a process that lives: one that has ended is not taken for the next with its number.
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
    /// Returns the process at the other end of a connection, which is watched from now on.
    ///
    /// Without a pidfd the end of the connection is the end of the process. `shared` says that the
    /// connection is kept for that alone, so that one of them will do for the process, as far as
    /// its number is seen from here. If it is not, either side may end it as soon as it likes, and
    /// each connection stands for a process by itself.
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

    /// Watches the program at the other end of a connection, which ends with the connection.
    ///
    /// The process may continue without it. After execve(2) it is another program, which knows
    /// nothing of what its predecessor had in common with this one.
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

    /// Returns the process of this identity, which is watched from now on.
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
        // Under the lock: what it says at once finds the entry.
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

    /// Keeps a connection for the next request. No service has it.
    pub(in super::super) fn keep_line(self: &Arc<Self>, line: Line) {
        // In a child of fork(2) it is its parent's.
        if !self.fabric.is_inherited() {
            self.fabric.lines.keep(self, line);
        }
    }

    /// Returns what ends with it.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.descriptor().as_fd()
    }

    /// Returns the exporter of this page, which is mapped if it is not already.
    pub(super) fn exporter(
        self: &Arc<Self>,
        page: Page,
        map: impl FnOnce() -> Result<Words>,
    ) -> Result<Arc<Peer>> {
        let keep = Arc::clone(self);
        self.pages.peer(page, map, &self.watched, keep)
    }

    /// Returns whether it has ended, as far as the thread knows.
    #[inline]
    pub(in super::super) fn is_dead(&self) -> bool {
        self.watched.is_dead()
    }

    /// Asks the kernel whether it has ended. [`Process::is_dead`] costs no system call, and knows
    /// what the thread was told.
    pub(in super::super) fn has_ended(&self) -> bool {
        let events = match self.watch {
            Watch::Pidfd(_) => PollFlags::POLLIN,
            Watch::Connection(_) => PollFlags::POLLHUP,
        };
        let mut asked = [PollFd::new(self.watch.descriptor().as_fd(), events)];
        self.is_dead() || poll(&mut asked, PollTimeout::ZERO).is_ok_and(|ended| ended > 0)
    }

    /// Has the fabric's thread notify `who` once when the process ends, or has ended.
    pub(in super::super) fn on_end(&self, who: Weak<dyn Ended>) {
        // A child of fork(2) may have inherited a locked lock, and its parent's epoll descriptor.
        if self.fabric.is_inherited() {
            return;
        }
        let mut to_tell = lock(&self.watched.to_tell);
        if to_tell.len() == to_tell.capacity() {
            // One that comes to a process again and again is notified once.
            let mut known = HashSet::new();
            to_tell.retain(|who| who.strong_count() > 0 && known.insert(who.as_ptr().addr()));
        }
        to_tell.push(who);
        if self.is_dead() {
            // The thread looks again. It cannot fail: the descriptor was added, and nothing is
            // allocated.
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
        // The epoll descriptor of a child of fork(2) is its parent's.
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
