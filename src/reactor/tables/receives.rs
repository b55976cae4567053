//! The receives of one Rdma: a table of their own, apart from the depth of the WorkQ.
//!
//! A receive cannot be recalled, so an Op that is dropped leaves an *orphan*: it stays posted, and
//! its memory leased. The next Op that begins *adopts* the oldest orphan and posts nothing; its
//! message is copied to where the adopter wants it.
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
//! All of it is under one lock, in which no code of the user's runs: wakers are cloned, woken and
//! dropped, and Leases given back, outside.

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
use crate::reactor::places;
use crate::reactor::places::{Ended, Ends, Wanted};
use crate::reactor::slots::keeps_memory;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use crate::sync::{BriefMutex, Order, Waiters, discard, lock, wake};

/// Which place an Op has, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(in crate::reactor) index: u32,
    generation: u32,
    /// It was posted by an Op that was dropped, for memory of its own.
    pub(in crate::reactor) adopted: bool,
}

impl Receipt {
    /// Returns true if its receive was posted before the other one.
    pub(crate) fn is_older_than(self, other: Receipt) -> bool {
        // They wrap.
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
    /// Counts the receives that were posted before it. The lower half is its generation.
    posted: u64,
    /// In which life of the endpoint it was posted; `OVER` if it has a message of a life before.
    life: u32,
    /// An Op has it. Without one it stands among the orphans.
    owned: bool,
    /// The Op that has it has adopted it: the memory is another one's.
    adopted: bool,
    room: RecvBuf,
    outcome: Result<Received, JobError>,
    waker: Option<Waker>,
}

impl RecvSlot {
    fn generation(&self) -> u32 {
        self.posted as u32
    }
}

struct Places {
    places: Box<[RecvSlot]>,
    free: Vec<u32>,
    orphans: Orphans,
    /// Receives posted, ever. The lower half is the generation of the next.
    posted: u64,
    /// How many threads reset the endpoint just now. A message that comes meanwhile is of the life
    /// before, whenever its receive was posted.
    resetting: u32,
}

/// The receives of one Rdma.
pub(crate) struct RecvTable {
    number: u32,
    /// What `posted` was when it was new: those of tables before, of the same number.
    first: u64,
    /// Ops of all tables of the WorkQ that sleep.
    asleep: Arc<AtomicUsize>,
    /// Which receives have completed: for the Op, to look without the lock.
    completed: Box<[AtomicBool]>,
    orphans: AtomicUsize,
    free: AtomicUsize,
    /// The life of the endpoint. Written under the lock of the table.
    life: AtomicU32,
    /// Who waits for a place.
    pub(crate) line: Waiters,
    /// Of all in that line.
    pub(in crate::reactor) order: Arc<Order>,
    table: BriefMutex<Places>,
}

impl RecvTable {
    pub(in crate::reactor) fn new(size: u32, numbered: Numbered) -> RecvTable {
        let Numbered {
            number,
            posted,
            asleep,
        } = numbered;
        let place = |_| RecvSlot {
            phase: Phase::Free,
            posted: 0,
            life: lives::OVER,
            owned: false,
            adopted: false,
            room: nowhere(),
            outcome: Err(JobError::device(ErrorKind::Empty, 0)),
            waker: None,
        };
        let table = Places {
            places: (0..size).map(place).collect(),
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

    /// Returns whether a receive that does not wait may take a place.
    pub(crate) fn lets_pass(&self) -> bool {
        let is_free = || self.available() > 0;
        self.line.lets_pass(Some(&self.order), is_free)
    }

    /// Returns the name that a device knows a receive by.
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

    /// The oldest orphan is the caller's now.
    pub(crate) fn adopt(&self) -> Option<Receipt> {
        if !self.any_orphan() {
            return None;
        }
        let mut table = lock(&self.table);
        let index = table.orphans.oldest()?;
        self.unorphan(&mut table, index);
        let place = &mut table.places[index as usize];
        (place.owned, place.adopted) = (true, true);
        Some(Receipt {
            index,
            generation: place.generation(),
            adopted: true,
        })
    }

    /// Returns true if the memory of a receive is that of a Lease. `is_for` runs under the lock.
    pub(in crate::reactor) fn is_leased(
        &self,
        receipt: Receipt,
        is_for: impl FnOnce(&Writing) -> bool,
    ) -> bool {
        let table = lock(&self.table);
        let lease = table.places[receipt.index as usize].room.lease();
        lease.is_some_and(is_for)
    }

    /// Fills as many free places as there are with the first of the rooms, and calls `each` with
    /// them, under the lock. The device may see the receives from here on.
    #[inline]
    pub(in crate::reactor) fn fill<const N: usize>(
        &self,
        rooms: &mut ArrayVec<RecvBuf, N>,
        mut each: impl FnMut(Receipt, &RecvBuf),
    ) {
        let mut guard = lock(&self.table);
        let table = &mut *guard;
        let count = rooms.len().min(table.free.len());
        if count == 0 {
            return;
        }
        // Written under the lock alone, and nobody waits for there to be fewer: no exchange.
        self.free.store(table.free.len() - count, Ordering::Release);
        // Popped from behind: most often it is one, and a drain costs more than posting it.
        rooms.reverse();
        let taken = std::iter::from_fn(|| rooms.pop().zip(table.free.pop()));
        for (room, index) in taken.take(count) {
            self.completed[index as usize].store(false, Ordering::Relaxed);
            let place = &mut table.places[index as usize];
            debug_assert_eq!(place.phase, Phase::Free);
            (place.phase, place.owned) = (Phase::Posted, true);
            (place.posted, place.life) = (table.posted, self.life());
            table.posted += 1;
            // A free place has nothing, and to drop that would be a call.
            std::mem::forget(std::mem::replace(&mut place.room, room));
            let receipt = Receipt {
                index,
                generation: place.generation(),
                adopted: false,
            };
            each(receipt, &place.room);
        }
        rooms.reverse();
    }

    /// The device refused it: the place is free again, and the memory the caller's.
    pub(in crate::reactor) fn undo(&self, receipt: Receipt) -> RecvBuf {
        let mut table = lock(&self.table);
        self.free(&mut table, receipt.index)
    }

    /// Makes a place free. The party that is in line is to be notified.
    fn free(&self, table: &mut Places, index: u32) -> RecvBuf {
        let place = &mut table.places[index as usize];
        debug_assert!(place.waker.is_none());
        (place.phase, place.owned, place.adopted) = (Phase::Free, false, false);
        let room = std::mem::replace(&mut place.room, nowhere());
        table.free.push(index);
        self.free.fetch_add(1, Ordering::SeqCst);
        room
    }

    /// Op: how the receive that has completed ended, and the Lease on its memory. The place is
    /// free.
    #[inline]
    pub(in crate::reactor) fn finish(
        &self,
        receipt: Receipt,
    ) -> (Result<Received, JobError>, Option<Writing>) {
        let mut guard = lock(&self.table);
        let table = &mut *guard;
        let place = &mut table.places[receipt.index as usize];
        debug_assert!(place.phase == Phase::Done && place.owned && place.waker.is_none());
        (place.phase, place.owned) = (Phase::Free, false);
        let ended = (place.outcome, place.room.lease.take());
        table.free.push(receipt.index);
        self.free.fetch_add(1, Ordering::SeqCst);
        ended
    }

    /// Op: how the adopted receive that has completed ended, and its memory, which is the caller's
    /// until `settle` or `put_back`.
    pub(in crate::reactor) fn take_adopted(&self, receipt: Receipt) -> RecvCompletion {
        let mut table = lock(&self.table);
        let place = &mut table.places[receipt.index as usize];
        debug_assert!(place.phase == Phase::Done && place.adopted);
        RecvCompletion {
            outcome: place.outcome,
            room: std::mem::replace(&mut place.room, nowhere()),
        }
    }

    /// Op: an adopted receive was seen to.
    pub(in crate::reactor) fn settle(&self, receipt: Receipt) {
        self.free(&mut lock(&self.table), receipt.index);
    }

    /// Op: the message could not be had, and stays for the next.
    pub(in crate::reactor) fn put_back(&self, receipt: Receipt, room: RecvBuf) -> Ended {
        let mut table = lock(&self.table);
        table.places[receipt.index as usize].room = room;
        self.leave(&mut table, receipt.index)
    }

    /// Op: stores the waker to be woken at the end. `is_over` must be asked once more afterwards.
    pub(in crate::reactor) fn register(&self, receipt: Receipt, waker: &Waker) {
        let waker = waker.clone();
        let mut table = lock(&self.table);
        let place = &mut table.places[receipt.index as usize];
        let old = if place.phase == Phase::Done {
            Some(waker)
        } else {
            place.waker.replace(waker)
        };
        if place.phase != Phase::Done && old.is_none() {
            self.asleep.fetch_add(1, Ordering::SeqCst);
        }
        drop(table);
        discard(old);
    }

    /// Op: it is dropped.
    pub(in crate::reactor) fn abandon(&self, receipt: Receipt) -> Ended {
        let mut table = lock(&self.table);
        self.leave(&mut table, receipt.index)
    }

    /// A place has no Op any more: an orphan, or free if there is nothing to wait for.
    fn leave(&self, table: &mut Places, index: u32) -> Ended {
        let life = self.life();
        let place = &mut table.places[index as usize];
        (place.owned, place.adopted) = (false, false);
        let (waker, posted) = (self.wakened(place), place.posted);
        let completed = place.phase == Phase::Done;
        if completed && (place.outcome.is_err() || place.life != life) {
            return Ended {
                waker,
                lease: self.free(table, index).lease,
                freed: true,
            };
        }
        table.orphans.insert(index, posted);
        self.orphans.fetch_add(1, Ordering::SeqCst);
        // The party that is in line can adopt it.
        Ended {
            waker,
            lease: None,
            freed: true,
        }
    }

    /// Its Op sleeps no more.
    fn wakened(&self, place: &mut RecvSlot) -> Option<Waker> {
        let waker = place.waker.take();
        if waker.is_some() {
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
        waker
    }

    /// Reaper: a receive has completed.
    fn complete_one(&self, table: &mut Places, completion: &Completion) -> Option<Ended> {
        let (index, generation) = (completion.token.index(), completion.token.generation());
        let (life, resetting) = (self.life(), table.resetting > 0);
        let place = table.places.get_mut(index as usize)?;
        if place.phase != Phase::Posted || place.generation() != generation {
            return None;
        }
        place.phase = Phase::Done;
        if resetting {
            place.life = lives::OVER;
        }
        place.outcome = received(completion, place.room.len);
        let failed = place.outcome.is_err();
        if place.outcome.is_err_and(|error| keeps_memory(&error)) {
            // The device may write it at any time.
            std::mem::forget(place.room.lease.take());
        }
        if !place.owned && (failed || place.life != life) {
            self.unorphan(table, index);
            return Some(Ended {
                waker: None,
                lease: self.free(table, index).lease,
                freed: true,
            });
        }
        let waker = self.wakened(place);
        let lease = if failed {
            place.room.lease.take()
        } else {
            None
        };
        self.completed[index as usize].store(true, Ordering::Release);
        Some(Ended {
            waker,
            lease,
            freed: false,
        })
    }

    /// A place is no orphan any more.
    fn unorphan(&self, table: &mut Places, index: u32) {
        table.orphans.remove(index);
        self.orphans.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wanted for RecvTable {
    fn line(&self) -> &Waiters {
        &self.line
    }

    /// Free ones, and orphans.
    fn available(&self) -> usize {
        self.free.load(Ordering::SeqCst) + self.orphans.load(Ordering::SeqCst)
    }
}

impl places::Places for RecvTable {
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
            let waker = self.wakened(&mut lock(&self.table).places[index]);
            waker.into_iter().for_each(wake);
        }
        self.line.wake_all();
    }
}
