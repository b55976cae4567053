//! The io_uring baseline: reads of a file that is in memory, awaited through `AsyncFd`. All lanes
//! of a thread share a ring, as in a typical Tokio program. If a read cannot complete inside the
//! system call, a worker thread of the kernel does it.
#![expect(unsafe_code, reason = "the kernel gets addresses of buffers")]

use std::cell::RefCell;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use io_uring::{IoUring, opcode, types};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use super::{Failed, Lanes, Plan, Result};

pub(super) struct Lane {
    ring: Rc<Ring>,
    at: usize,
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    let ring = Rc::new(Ring::new(plan.size, plan.depth, plan.kind.copies())?);
    let lane = |at| Lane {
        ring: Rc::clone(&ring),
        at,
    };
    let lanes = (0..plan.depth).map(lane);
    Ok(Lanes::by_runtime(lanes.collect()))
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        for nth in 0..self.ring.reads_of_a_lane {
            self.ring.begin(self.at, nth);
            if self.ring.is_shared {
                // Lets the other lanes begin their reads, so that one system call submits all of
                // them.
                yield_now().await;
            }
            self.ring.ended(self.at).await?;
        }
        Ok(())
    }
}

struct Ring {
    reads: RefCell<Reads>,
    /// A duplicate of the ring's descriptor. It is readable once a read has completed.
    readable: AsyncFd<OwnedFd>,
    reads_of_a_lane: usize,
    is_shared: bool,
}

/// The reads of all lanes. Each lane has at most one in flight.
struct Reads {
    uring: IoUring,
    lanes: Vec<Read>,
    /// The lane that waits for the ring, and reaps the completions of all lanes.
    reaper: Option<usize>,
    /// How many reads were begun, submitted and completed.
    begun: u64,
    submitted: u64,
    ended: u64,
}

struct Read {
    dsts: Vec<Vec<u8>>,
    /// The number of reads of all lanes that were begun before this read.
    number: u64,
    /// What the kernel returned for the read; `None` until it has completed.
    ended: Option<i32>,
    /// The waker of the waiting lane: called once its read has completed, or to make it the reaper.
    waker: Option<Waker>,
}

/// Returns why the system refuses a ring: the name of the error number, and its text.
fn refused(error: io::Error) -> Failed {
    match error.raw_os_error() {
        Some(number) => Failed::Said(Errno::from_raw(number).to_string()),
        None => error.into(),
    }
}

impl Ring {
    fn new(size: usize, depth: usize, reads_of_a_lane: usize) -> Result<Ring> {
        let file = memfd_create(c"bench", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?;
        let mut file = File::from(file);
        for _ in 0..depth * reads_of_a_lane {
            file.write_all(&vec![7; size])?;
        }
        let entries = depth.next_power_of_two();
        let uring = IoUring::new(entries.try_into().unwrap_or(u32::MAX)).map_err(refused)?;
        uring.submitter().register_files(&[file.as_raw_fd()])?;
        // SAFETY: the ring keeps its descriptor open, and the borrow ends with this statement.
        let ended = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) }.try_clone_to_owned()?;
        // SAFETY: the `OwnedFd` stays open, with the same descriptor, until the `AsyncFd` drops it.
        let readable = unsafe { AsyncFd::register(ended) }.map_err(io::Error::from)?;
        let read = |_| Read {
            dsts: vec![vec![7; size]; reads_of_a_lane],
            number: 0,
            ended: None,
            waker: None,
        };
        let reads = Reads {
            uring,
            lanes: (0..depth).map(read).collect(),
            reaper: None,
            begun: 0,
            submitted: 0,
            ended: 0,
        };
        Ok(Ring {
            reads: RefCell::new(reads),
            readable,
            reads_of_a_lane,
            is_shared: depth > 1,
        })
    }

    /// Queues a read of lane `at` into its buffer `nth`. The lane has no other read in flight.
    fn begin(&self, at: usize, nth: usize) {
        let reads = &mut *self.reads.borrow_mut();
        let read = &mut reads.lanes[at];
        read.ended = None;
        read.number = reads.begun;
        let dst = &mut read.dsts[nth];
        let len = dst.len();
        let entry = opcode::Read::new(types::Fixed(0), dst.as_mut_ptr(), len as u32);
        let entry = entry.offset(((at * self.reads_of_a_lane + nth) * len) as u64);
        let entry = entry.build().user_data(at as u64);
        // SAFETY: the buffer has this length. It is neither moved nor used until the read has
        // completed, for which `Reads::drop` waits too.
        let pushed = unsafe { reads.uring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each lane");
        reads.begun += 1;
    }

    /// Waits until the read of lane `at` has completed.
    async fn ended(&self, at: usize) -> Result {
        let ended = poll_fn(|cx| self.poll_ended(at, cx)).await;
        let reads = &mut *self.reads.borrow_mut();
        reads.lanes[at].waker = None;
        if reads.reaper.is_none_or(|reaper| reaper == at) {
            reads.reaper = None;
            // Wake one waiting lane, which becomes the reaper.
            let next = reads.lanes.iter_mut().find_map(|read| read.waker.take());
            next.into_iter().for_each(Waker::wake);
        }
        let len = reads.lanes[at].dsts[0].len();
        match ended? {
            error @ ..0 => Err(io::Error::from_raw_os_error(-error).into()),
            read if read as usize == len => Ok(()),
            read => Err(Failed::Said(format!("it read {read} bytes of {len}"))),
        }
    }

    /// Submits the read of lane `at` unless another lane has done so, and polls for its result.
    fn poll_ended(&self, at: usize, cx: &mut Context<'_>) -> Poll<Result<i32>> {
        let reads = &mut *self.reads.borrow_mut();
        reads.submit(at)?;
        loop {
            if let Some(ended) = reads.reap(at) {
                return Poll::Ready(Ok(ended));
            }
            reads.lanes[at].waker = Some(cx.waker().clone());
            if *reads.reaper.get_or_insert(at) != at {
                return Poll::Pending;
            }
            let mut readable = ready!(self.readable.poll_read_ready(cx))?;
            if reads.uring.completion().is_empty() {
                readable.clear_ready();
            }
        }
    }
}

impl Reads {
    /// Submits all reads that were begun, unless the read of lane `at` has been submitted.
    fn submit(&mut self, at: usize) -> Result {
        while self.lanes[at].number >= self.submitted {
            self.submitted += self.uring.submit()? as u64;
        }
        Ok(())
    }

    /// Reaps completed reads, and wakes their lanes. Returns the result of lane `at` if its read
    /// has completed.
    fn reap(&mut self, at: usize) -> Option<i32> {
        for ended in self.uring.completion() {
            self.ended += 1;
            let read = &mut self.lanes[ended.user_data() as usize];
            read.ended = Some(ended.result());
            read.waker.take().into_iter().for_each(Waker::wake);
        }
        self.lanes[at].ended.take()
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        // The kernel writes to the buffers of submitted reads until these have completed.
        while self.submitted > self.ended {
            match self.uring.submitter().submit_and_wait(1) {
                Ok(submitted) => {
                    self.submitted += submitted as u64;
                    self.ended += self.uring.completion().count() as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.lanes.drain(..).for_each(mem::forget),
            }
        }
    }
}
