//! [`RecvTable`], the receives of one Rdma. Receives do not count against the depth of the WorkQ.
//!
//! A receive cannot be recalled from the device. So an operation that is dropped leaves its receive
//! as an *orphan*, which stays posted and keeps its memory leased. The next operation that begins
//! *adopts* the oldest orphan instead of posting a receive; the message is copied to the memory of
//! the adopter.
//!
//! ```text
//!          fill              complete            take, free
//!   Free ------> Posted ----------------> Done -------------> Free
//!                 |  ^                    |  ^
//!   Op dropped    |  | adopt   dropped    |  | adopt     (an orphan that ends with an error, or is from before
//!                 v  |                    v  |            a reset, is freed by the reaper)
//!              orphan: Posted -------> orphan: Done
//! ```
//!
//! One lock guards the table. No code of the application runs while it is held: wakers are cloned,
//! woken and dropped, and Leases are given back, outside of it.

mod counts;
mod lives;

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::orphans::Orphans;
use super::received::{Received, RecvBuf, RecvCompletion, nowhere, received};
use super::registry::Numbered;
use crate::device::{Completion, Token};
use crate::error::{ErrorKind, JobError};
use crate::mem::Writing;
use crate::reactor::entry_table::EntryTable;
use crate::reactor::entry_table::{Ended, Ends, Wanted};
use crate::reactor::slots::keeps_memory;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use crate::sync::{BriefMutex, Order, Waiters, discard, lock, wake};

/// An operation's hold on a receive: the index of its entry, and the generation of the entry's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(in crate::reactor) index: u32,
    generation: u32,
    /// An operation that was dropped has posted the receive, for its own memory.
    pub(in crate::reactor) adopted: bool,
}

impl Receipt {
    /// Returns true if this receive was posted before the other one.
    pub(crate) fn is_older_than(self, other: Receipt) -> bool {
        // The generations wrap.
        (self.generation.wrapping_sub(other.generation) as i32) < 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Posted,
    Done,
}

struct RecvSlot {
    phase: Phase,
    /// The number of receives that were posted before this one. The lower half is the generation.
    posted: u64,
    /// The life of the endpoint in which the receive was posted; `OVER` if its message belongs to
    /// an earlier life.
    life: u32,
    /// An operation has the receive. Without one it is an orphan.
    owned: bool,
    /// The operation that has the receive has adopted it: the memory is the dropped operation's.
    adopted: bool,
    buf: RecvBuf,
    outcome: Result<Received, JobError>,
    waker: Option<Waker>,
}

impl RecvSlot {
    fn generation(&self) -> u32 {
        self.posted as u32
    }
}

struct Slots {
    slots: Box<[RecvSlot]>,
    free: Vec<u32>,
    orphans: Orphans,
    /// The number of receives ever posted. The lower half is the next one's generation.
    posted: u64,
    /// The number of threads that reset the endpoint just now. A message that comes meanwhile
    /// belongs to the previous life, whenever its receive was posted.
    resetting: u32,
}

/// The receives of one Rdma.
pub(crate) struct RecvTable {
    number: u32,
    /// The value of `posted` when the table was made: the number of receives of earlier tables with
    /// the same number.
    first: u64,
    /// The number of operations that sleep, of all tables of the WorkQ.
    asleep: Arc<AtomicUsize>,
    /// `completed[i]` is set once receive `i` has completed, so that its operation can check
    /// without the lock.
    completed: Box<[AtomicBool]>,
    orphans: AtomicUsize,
    free: AtomicUsize,
    /// The number of the endpoint's present life. Written under the lock of `table`.
    life: AtomicU32,
    /// The operations that wait for an entry.
    pub(crate) line: Waiters,
    /// The order in which all waiters of `line` take their entries.
    pub(in crate::reactor) order: Arc<Order>,
    table: BriefMutex<Slots>,
}

impl RecvTable {
    pub(in crate::reactor) fn new(size: u32, numbered: Numbered) -> RecvTable {
        let Numbered {
            number,
            posted,
            asleep,
        } = numbered;
        let slot = |_| RecvSlot {
            phase: Phase::Free,
            posted: 0,
            life: lives::OVER,
            owned: false,
            adopted: false,
            buf: nowhere(),
            outcome: Err(JobError::device(ErrorKind::Empty, 0)),
            waker: None,
        };
        let table = Slots {
            slots: (0..size).map(slot).collect(),
            free: (0..size).rev().collect(),
            orphans: Orphans::new(size),
            posted,
            resetting: 0,
        };
        RecvTable {
            number,
            first: posted,
            asleep,
            completed: (0..size).map(|_| AtomicBool::new(false)).collect(),
            orphans: AtomicUsize::new(0),
            free: AtomicUsize::new(size as usize),
            life: AtomicU32::new(lives::FIRST),
            line: Waiters::new(),
            order: Order::new(),
            table: BriefMutex::new(table),
        }
    }

    pub(in crate::reactor) fn size(&self) -> usize {
        self.completed.len()
    }

    /// Returns true if a receive that does not wait may take an entry now.
    pub(crate) fn lets_pass(&self) -> bool {
        let is_free = || self.available() > 0;
        self.line.lets_pass(Some(&self.order), is_free)
    }

    /// Returns the Token by which a device knows a receive.
    pub(in crate::reactor) fn token(&self, receipt: Receipt) -> Token {
        Token::new(self.number, receipt.index, receipt.generation)
    }

    /// Returns true if there are orphans.
    #[inline]
    pub(crate) fn any_orphan(&self) -> bool {
        self.orphans.load(Ordering::SeqCst) > 0
    }

    /// Returns true if a receive has completed.
    #[inline]
    pub(crate) fn is_over(&self, receipt: Receipt) -> bool {
        self.completed[receipt.index as usize].load(Ordering::Acquire)
    }

    /// Adopts the oldest orphan for the caller.
    pub(crate) fn adopt(&self) -> Option<Receipt> {
        if !self.any_orphan() {
            return None;
        }
        let mut table = lock(&self.table);
        let index = table.orphans.oldest()?;
        self.unorphan(&mut table, index);
        let slot = &mut table.slots[index as usize];
        (slot.owned, slot.adopted) = (true, true);
        Some(Receipt {
            index,
            generation: slot.generation(),
            adopted: true,
        })
    }

    /// Returns true if the receive has a Lease for which `is_for` returns true. `is_for` is called
    /// with the table's lock held.
    pub(in crate::reactor) fn is_leased(
        &self,
        receipt: Receipt,
        is_for: impl FnOnce(&Writing) -> bool,
    ) -> bool {
        let table = lock(&self.table);
        let lease = table.slots[receipt.index as usize].buf.lease();
        lease.is_some_and(is_for)
    }

    /// Moves receive buffers from the front of `bufs` into free entries, until either runs out.
    /// Calls `each` for each under the lock. The device may see the receives from here on.
    #[inline]
    pub(in crate::reactor) fn fill<const N: usize>(
        &self,
        bufs: &mut ArrayVec<RecvBuf, N>,
        mut each: impl FnMut(Receipt, &RecvBuf),
    ) {
        let mut guard = lock(&self.table);
        let table = &mut *guard;
        let count = bufs.len().min(table.free.len());
        if count == 0 {
            return;
        }
        // A store suffices: the number is written under the lock, and no thread waits for its fall.
        self.free.store(table.free.len() - count, Ordering::Release);
        // Popped from the back: most often there is one, and a drain costs more than posting it.
        bufs.reverse();
        let taken = std::iter::from_fn(|| bufs.pop().zip(table.free.pop()));
        for (buf, index) in taken.take(count) {
            self.completed[index as usize].store(false, Ordering::Relaxed);
            let slot = &mut table.slots[index as usize];
            debug_assert_eq!(slot.phase, Phase::Free);
            (slot.phase, slot.owned) = (Phase::Posted, true);
            (slot.posted, slot.life) = (table.posted, self.life());
            table.posted += 1;
            // The receive buffer of a free entry is empty, and dropping it would cost a call.
            std::mem::forget(std::mem::replace(&mut slot.buf, buf));
            let receipt = Receipt {
                index,
                generation: slot.generation(),
                adopted: false,
            };
            each(receipt, &slot.buf);
        }
        bufs.reverse();
    }

    /// Frees the entry of a receive that the device has refused. Returns its memory.
    pub(in crate::reactor) fn undo(&self, receipt: Receipt) -> RecvBuf {
        let mut table = lock(&self.table);
        self.free(&mut table, receipt.index)
    }

    /// Frees an entry, and returns its memory. The caller notifies the next waiter in line.
    fn free(&self, table: &mut Slots, index: u32) -> RecvBuf {
        let slot = &mut table.slots[index as usize];
        debug_assert!(slot.waker.is_none());
        (slot.phase, slot.owned, slot.adopted) = (Phase::Free, false, false);
        let buf = std::mem::replace(&mut slot.buf, nowhere());
        table.free.push(index);
        self.free.fetch_add(1, Ordering::SeqCst);
        buf
    }

    /// Frees the entry of a receive that has completed. Returns the outcome and the Lease on the
    /// memory, to the operation.
    #[inline]
    pub(in crate::reactor) fn finish(
        &self,
        receipt: Receipt,
    ) -> (Result<Received, JobError>, Option<Writing>) {
        let mut guard = lock(&self.table);
        let table = &mut *guard;
        let slot = &mut table.slots[receipt.index as usize];
        debug_assert!(slot.phase == Phase::Done && slot.owned && slot.waker.is_none());
        (slot.phase, slot.owned) = (Phase::Free, false);
        let ended = (slot.outcome, slot.buf.lease.take());
        table.free.push(receipt.index);
        self.free.fetch_add(1, Ordering::SeqCst);
        ended
    }

    /// Returns the outcome and the memory of a completed receive that an operation has adopted. The
    /// caller owns the memory until it calls `settle` or `put_back`.
    pub(in crate::reactor) fn take_adopted(&self, receipt: Receipt) -> RecvCompletion {
        let mut table = lock(&self.table);
        let slot = &mut table.slots[receipt.index as usize];
        debug_assert!(slot.phase == Phase::Done && slot.adopted);
        RecvCompletion {
            outcome: slot.outcome,
            buf: std::mem::replace(&mut slot.buf, nowhere()),
        }
    }

    /// Frees the entry of an adopted receive whose message was copied.
    pub(in crate::reactor) fn settle(&self, receipt: Receipt) {
        self.free(&mut lock(&self.table), receipt.index);
    }

    /// Puts back the memory of an adopted receive whose message could not be copied, so that the
    /// message stays for the next operation.
    pub(in crate::reactor) fn put_back(&self, receipt: Receipt, buf: RecvBuf) -> Ended {
        let mut table = lock(&self.table);
        table.slots[receipt.index as usize].buf = buf;
        self.leave(&mut table, receipt.index)
    }

    /// Stores the waker for the end of the receive. The operation must check `is_over` afterwards.
    pub(in crate::reactor) fn register(&self, receipt: Receipt, waker: &Waker) {
        let waker = waker.clone();
        let mut table = lock(&self.table);
        let slot = &mut table.slots[receipt.index as usize];
        let old = if slot.phase == Phase::Done {
            Some(waker)
        } else {
            slot.waker.replace(waker)
        };
        if slot.phase != Phase::Done && old.is_none() {
            self.asleep.fetch_add(1, Ordering::SeqCst);
        }
        drop(table);
        discard(old);
    }

    /// Abandons the receive of an operation that is dropped.
    pub(in crate::reactor) fn abandon(&self, receipt: Receipt) -> Ended {
        let mut table = lock(&self.table);
        self.leave(&mut table, receipt.index)
    }

    /// Takes a receive from its operation. The receive becomes an orphan. If it has failed, or has
    /// a message of an earlier life, its entry is freed instead.
    fn leave(&self, table: &mut Slots, index: u32) -> Ended {
        let life = self.life();
        let slot = &mut table.slots[index as usize];
        (slot.owned, slot.adopted) = (false, false);
        let (waker, posted) = (self.wakened(slot), slot.posted);
        let completed = slot.phase == Phase::Done;
        if completed && (slot.outcome.is_err() || slot.life != life) {
            return Ended {
                waker,
                lease: self.free(table, index).lease,
                freed: true,
            };
        }
        table.orphans.insert(index, posted);
        self.orphans.fetch_add(1, Ordering::SeqCst);
        // The next waiter in line can adopt it.
        Ended {
            waker,
            lease: None,
            freed: true,
        }
    }

    /// Takes the waker of an entry, whose operation then no longer counts as asleep.
    fn wakened(&self, slot: &mut RecvSlot) -> Option<Waker> {
        let waker = slot.waker.take();
        if waker.is_some() {
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
        waker
    }

    /// Stores the outcome of one receive, for the reaper. Returns the work that follows, or `None`
    /// if the completion names no receive.
    fn complete_one(&self, table: &mut Slots, completion: &Completion) -> Option<Ended> {
        let (index, generation) = (completion.token.index(), completion.token.generation());
        let (life, resetting) = (self.life(), table.resetting > 0);
        let slot = table.slots.get_mut(index as usize)?;
        if slot.phase != Phase::Posted || slot.generation() != generation {
            return None;
        }
        slot.phase = Phase::Done;
        if resetting {
            slot.life = lives::OVER;
        }
        slot.outcome = received(completion, slot.buf.len);
        let failed = slot.outcome.is_err();
        if slot.outcome.is_err_and(|error| keeps_memory(&error)) {
            // The device may write to the memory at any time.
            std::mem::forget(slot.buf.lease.take());
        }
        if !slot.owned && (failed || slot.life != life) {
            self.unorphan(table, index);
            return Some(Ended {
                waker: None,
                lease: self.free(table, index).lease,
                freed: true,
            });
        }
        let waker = self.wakened(slot);
        let lease = if failed { slot.buf.lease.take() } else { None };
        self.completed[index as usize].store(true, Ordering::Release);
        Some(Ended {
            waker,
            lease,
            freed: false,
        })
    }

    /// Removes an entry from the orphans.
    fn unorphan(&self, table: &mut Slots, index: u32) {
        table.orphans.remove(index);
        self.orphans.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wanted for RecvTable {
    fn line(&self) -> &Waiters {
        &self.line
    }

    /// Returns the number of free entries and of orphans.
    fn available(&self) -> usize {
        self.free.load(Ordering::SeqCst) + self.orphans.load(Ordering::SeqCst)
    }
}

impl EntryTable for RecvTable {
    fn number(&self) -> u32 {
        self.number
    }

    fn posted(&self) -> u64 {
        lock(&self.table).posted
    }

    fn complete(&self, completions: &[Completion], ends: &mut Ends<'_>) {
        let mut table = lock(&self.table);
        for completion in completions {
            ends.add(completion, self.complete_one(&mut table, completion));
        }
    }

    fn wake_all(&self) {
        for index in 0..self.size() {
            let waker = self.wakened(&mut lock(&self.table).slots[index]);
            waker.into_iter().for_each(wake);
        }
        self.line.wake_all();
    }
}
