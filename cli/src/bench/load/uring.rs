//! The baseline by io_uring: reads of a file that is in memory, awaited through `AsyncFd`. All
//! lanes of a thread share a ring, as a Tokio program would have it.
#![expect(unsafe_code, reason = "the kernel gets addresses of buffers")]

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use io_uring::{IoUring, opcode, types};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::{Failed, Kind, Lanes, NODES, Plan, Result};

pub(super) struct Lane {
    ring: Rc<Ring>,
    at: usize,
    /// The reads of an operation, one after the other: of a graph, one for each node.
    reads: usize,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let reads = if plan.kind == Kind::Graph { NODES } else { 1 };
    let ring = Rc::new(Ring::new(plan.size, plan.depth)?);
    let lane = |at| Lane {
        ring: Rc::clone(&ring),
        at,
        reads,
    };
    Ok(Lanes {
        lanes: (0..plan.depth).map(lane).collect(),
        spins: None,
        other: None,
    })
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        for _ in 0..self.reads {
            self.ring.begin(self.at);
            if self.ring.is_shared {
                // The other lanes begin theirs too, and one system call submits all of them.
                yield_now().await;
            }
            self.ring.ended(self.at).await?;
        }
        Ok(())
    }
}

struct Ring {
    reads: RefCell<Reads>,
    /// A duplicate of the ring's descriptor, which is readable when a read has ended.
    ended: AsyncFd<OwnedFd>,
    /// A lane has taken the ends of reads.
    taken: Notify,
    is_shared: bool,
}

/// The reads of all lanes, one of each.
struct Reads {
    uring: IoUring,
    lanes: Vec<Read>,
    /// The reads that were begun and not submitted, and those that have not ended.
    begun: usize,
    running: usize,
}

struct Read {
    dst: Vec<u8>,
    /// What the kernel has returned.
    ended: Option<i32>,
}

impl Ring {
    fn new(size: usize, depth: usize) -> Result<Ring> {
        let mut file =
            File::from(memfd_create(c"bench", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
        for _ in 0..depth {
            file.write_all(&vec![7; size])?;
        }
        let entries = depth.next_power_of_two();
        let uring = IoUring::new(entries.try_into().unwrap_or(u32::MAX))?;
        uring.submitter().register_files(&[file.as_raw_fd()])?;
        // SAFETY: the ring has its descriptor open, and the borrow ends with this statement.
        let ended = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) }.try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` stays open, and the same one, until the `AsyncFd` drops it.
        let ended = unsafe { AsyncFd::register(ended) }.map_err(io::Error::from)?;
        let read = |_| Read {
            dst: vec![7; size],
            ended: None,
        };
        let reads = Reads {
            uring,
            lanes: (0..depth).map(read).collect(),
            begun: 0,
            running: 0,
        };
        Ok(Ring {
            reads: RefCell::new(reads),
            ended,
            taken: Notify::new(),
            is_shared: depth > 1,
        })
    }

    /// Begins the read of a lane, which has no other one.
    fn begin(&self, at: usize) {
        let reads = &mut *self.reads.borrow_mut();
        let read = &mut reads.lanes[at];
        let len = read.dst.len();
        read.ended = None;
        let entry = opcode::Read::new(types::Fixed(0), read.dst.as_mut_ptr(), len as u32);
        let entry = entry.offset((at * len) as u64);
        let entry = entry.build().user_data(at as u64);
        // SAFETY: the buffer has this length. It is neither moved nor used until the read has
        // ended, for which `Reads::drop` waits too.
        let pushed = unsafe { reads.uring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each lane");
        reads.begun += 1;
    }

    /// Waits until the read of a lane has ended.
    async fn ended(&self, at: usize) -> Result {
        loop {
            // Another lane may take the end of this read, and find the ring empty then.
            let taken = self.taken.notified();
            if let Some(ended) = self.turn(at)? {
                return ended;
            }
            let mut readable = tokio::select! {
                readable = self.ended.readable() => readable?,
                () = taken => continue,
            };
            if let Some(ended) = self.turn(at)? {
                return ended;
            }
            readable.clear_ready();
        }
    }

    /// Submits and takes what there is, and returns how the read of a lane has ended.
    fn turn(&self, at: usize) -> Result<Option<Result>> {
        let reads = &mut *self.reads.borrow_mut();
        if reads.turn()? > 0 {
            self.taken.notify_waiters();
        }
        Ok(reads.lanes[at].take())
    }
}

impl Read {
    fn take(&mut self) -> Option<Result> {
        let len = self.dst.len();
        self.ended.take().map(|ended| match ended {
            error @ ..0 => Err(io::Error::from_raw_os_error(-error).into()),
            read if read as usize == len => Ok(()),
            read => Err(Failed::Said(format!("it read {read} bytes of {len}"))),
        })
    }
}

impl Reads {
    /// Submits what was begun, and takes what has ended. Returns the number of the latter.
    fn turn(&mut self) -> Result<usize> {
        if self.begun > 0 {
            let submitted = self.uring.submit()?;
            self.begun -= submitted;
            self.running += submitted;
        }
        let mut taken = 0;
        for ended in self.uring.completion() {
            taken += 1;
            self.lanes[ended.user_data() as usize].ended = Some(ended.result());
        }
        self.running -= taken;
        Ok(taken)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        if self.running > 0 {
            self.running += self.begun;
        }
        while self.running > 0 {
            // The kernel writes to the buffers until then.
            match self.uring.submitter().submit_and_wait(1) {
                Ok(_) => self.running -= self.uring.completion().count(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.lanes.drain(..).for_each(std::mem::forget);
                    return;
                }
            }
        }
    }
}
