//! An exporter that this process imports from: its control page, and whether it still lives.
//!
//! There is one for each process, however many imports there are. It watches a pidfd, which is readable once the process has
//! ended, also if a child of it holds copies of all its sockets. Where there is none, the connection stays, and its end is watched.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, fstatfs};

use super::control::Words;
use super::place::Id;
use super::process::{Fabric, lock};
use super::thread::PEER;
use crate::error::{Error, Result};

pub(super) struct Peer {
    number: u64,
    dead: Arc<AtomicBool>,
    words: Words,
    /// `None` for this process itself.
    watch: Option<OwnedFd>,
    fabric: Arc<Fabric>,
}

/// How the end of an exporter shows.
pub(super) enum Watch {
    Pidfd(OwnedFd),
    Connection(OwnedFd),
}

/// Which exporter it is. Its instance is what a blob says, and whoever knows it can say it in a blob of his own: only who has the same
/// control page and is the same process is the same exporter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    instance: Id,
    /// Device and inode.
    control: (u64, u64),
    /// 0 if it is not seen from here.
    pid: i32,
    /// Device and inode of the pidfd: since Linux 6.9 each process has its own. `None` before.
    pidfd: Option<(u64, u64)>,
}

const PIDFS: FsType = FsType(0x5049_4446);

impl Identity {
    pub(super) fn of(
        instance: Id,
        control: (u64, u64),
        pid: i32,
        watch: &Watch,
    ) -> nix::Result<Identity> {
        let pidfd = match watch {
            Watch::Pidfd(pidfd) if fstatfs(pidfd)?.filesystem_type() == PIDFS => {
                let stat = fstat(pidfd)?;
                Some((stat.st_dev, stat.st_ino))
            }
            Watch::Pidfd(_) | Watch::Connection(_) => None,
        };
        Ok(Identity {
            instance,
            control,
            pid,
            pidfd,
        })
    }

    /// Whether the kernel says which process it is. Where it does not, whoever has the control page of another can send that one on, and
    /// each import has a watch of its own.
    fn is_known(&self) -> bool {
        self.pid > 0 || self.pidfd.is_some()
    }
}

/// The exporters that this process imports from.
#[derive(Default)]
pub(super) struct Peers {
    next: u64,
    known: Vec<Known>,
}

struct Known {
    number: u64,
    identity: Identity,
    /// Apart, so that the thread never owns a Peer, and never drops one.
    dead: Arc<AtomicBool>,
    peer: Weak<Peer>,
}

impl Peers {
    /// The thread says that the process has ended.
    pub(super) fn ended(&mut self, number: u64) {
        let of = |known: &&Known| known.number == number;
        if let Some(known) = self.known.iter().find(of) {
            // Memory is not ordered by it: operations that began before may be doing something still.
            known.dead.store(true, Relaxed);
        }
    }

    fn find(&self, identity: &Identity) -> Option<Arc<Peer>> {
        let of = |known: &&Known| identity.is_known() && known.identity == *identity;
        self.known
            .iter()
            .filter(of)
            .find_map(|known| known.peer.upgrade())
    }
}

impl Peer {
    /// This process, which imports what it exports itself.
    pub(super) fn own(fabric: Arc<Fabric>, words: Words) -> Arc<Peer> {
        Arc::new(Peer {
            number: 0,
            dead: Arc::default(),
            words,
            watch: None,
            fabric,
        })
    }

    /// The one of this identity, if something is imported from it already.
    pub(super) fn known(fabric: &Fabric, identity: &Identity) -> Option<Arc<Peer>> {
        lock(&fabric.peers).find(identity)
    }

    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Watches another process.
    pub(super) fn watched(
        fabric: &Arc<Fabric>,
        identity: Identity,
        words: Words,
        watch: Watch,
    ) -> Result<Arc<Peer>> {
        let (watch, events) = match watch {
            Watch::Pidfd(pidfd) => (pidfd, EpollFlags::EPOLLIN),
            Watch::Connection(socket) => (socket, EpollFlags::EPOLLRDHUP),
        };
        let mut peers = lock(&fabric.peers);
        if let Some(peer) = peers.find(&identity) {
            return Ok(peer);
        }
        peers.next += 1;
        let number = PEER | peers.next;
        // Under the lock: what it says at once finds the entry. Once, as it stays readable for ever.
        let event = EpollEvent::new(events | EpollFlags::EPOLLONESHOT, number);
        let added = fabric.epoll.add(&watch, event);
        added.map_err(|errno| Error::os("import", "epoll_ctl", errno.into()))?;
        let peer = Arc::new(Peer {
            number,
            dead: Arc::default(),
            words,
            watch: Some(watch),
            fabric: Arc::clone(fabric),
        });
        peers.known.push(Known {
            number,
            identity,
            dead: Arc::clone(&peer.dead),
            peer: Arc::downgrade(&peer),
        });
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let Some(watch) = &self.watch else {
            return;
        };
        // The epoll descriptor of a child of fork(2) is its parent's.
        if self.fabric.is_inherited() {
            return;
        }
        let _ = self.fabric.epoll.delete(watch.as_fd());
        let mut peers = lock(&self.fabric.peers);
        peers.known.retain(|known| known.number != self.number);
    }
}
