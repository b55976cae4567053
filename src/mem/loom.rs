//! Loom models of memory: the Lease word, the free list, and a whole pool with the tasks that wait
//! for its elements.
//!
//! Each model has twins that do one thing wrong and must fail.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(unsafe_code, reason = "is queued")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Tally;
use std::task::{Context, Poll, Waker};

use super::element::{FreeList, Pushed, Watches};
use super::mmap::{KeyEntry, Keys, Mmap, Registrations, register};
use super::operand::Session;
use super::ranges::{LeaseWord, Left, Ranges, Stage};
use super::{Buf, BufPool};
use crate::device::{
    Access, Adapter, Algorithm, Caps, DevInfo, Device, PciAddr, PciFunction, Queue, QueueConfig,
    Region, Registrar, Registration, RegistrationUse,
};
use crate::error::Result;
use crate::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use crate::sync::loom::{Task, TrackedCell, block_on, check, mutant, spawn};
use crate::sync::{Mutex, WaitNode, Waiters, lock};

/// The operations of a Lease word, implemented by the real one and by twins that do one thing
/// wrong.
trait Word: Send + Sync + 'static {
    fn retain(&self);
    fn release(&self) -> bool;
    fn read(&self) -> bool;
    fn end_read(&self) -> bool;
    fn write(&self) -> bool;
    fn end_write(&self) -> bool;
}

impl Word for LeaseWord {
    fn retain(&self) {
        LeaseWord::retain(self);
    }

    fn release(&self) -> bool {
        LeaseWord::release(self) == Left::Nothing
    }

    fn read(&self) -> bool {
        LeaseWord::read(self).is_ok()
    }

    fn end_read(&self) -> bool {
        LeaseWord::end_read(self) == Left::Nothing
    }

    fn write(&self) -> bool {
        LeaseWord::write(self).is_ok()
    }

    fn end_write(&self) -> bool {
        LeaseWord::end_write(self) == Left::Nothing
    }
}

fn real() -> LeaseWord {
    let word = LeaseWord::new();
    word.begin();
    word
}

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// A Lease is given back with Relaxed.
    RelaxedReturn,
    /// The thread that makes the word 0 does not acquire.
    RelaxedLast,
    /// A Lease is taken by a check and an add.
    LookAndAdd,
    /// The word is read after the decrement to find whether a count is left.
    LookForLast,
}

/// A Lease word in a few lines that does one thing wrong, which its `Wrong` names.
struct Toy(AtomicU64, Wrong);

const WRITER: u64 = 1 << 63;
const READER: u64 = 1 << 32;

impl Toy {
    fn new(wrong: Wrong) -> Toy {
        Toy(AtomicU64::new(1), wrong)
    }

    fn take(&self, excluded: u64, what: u64) -> bool {
        if self.1 == Wrong::LookAndAdd {
            let free = self.0.load(Acquire) & excluded == 0;
            if free {
                self.0.fetch_add(what, Acquire);
            }
            return free;
        }
        let add = |now: u64| (now & excluded == 0).then_some(now + what);
        self.0.fetch_update(Acquire, Relaxed, add).is_ok()
    }

    fn give_back(&self, what: u64) -> bool {
        let order = match self.1 {
            Wrong::RelaxedReturn => Relaxed,
            _ => Release,
        };
        let before = self.0.fetch_sub(what, order);
        match self.1 {
            Wrong::LookForLast => return self.0.load(Acquire) == 0,
            Wrong::RelaxedLast => {}
            _ => drop(self.0.load(Acquire)),
        }
        before == what
    }
}

impl Word for Toy {
    fn retain(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn release(&self) -> bool {
        self.give_back(1)
    }

    fn read(&self) -> bool {
        self.take(WRITER, READER)
    }

    fn end_read(&self) -> bool {
        self.give_back(READER)
    }

    fn write(&self) -> bool {
        self.take(WRITER | (WRITER - READER), WRITER)
    }

    fn end_write(&self) -> bool {
        self.give_back(WRITER)
    }
}

/// A model of an element: the word, its bytes, and how often it was brought home.
struct Guarded<W> {
    word: W,
    bytes: TrackedCell,
    homes: Tally,
}

impl<W: Word> Guarded<W> {
    fn after(&self, last: bool) {
        if last {
            self.bytes.write();
            self.homes
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Reads the bytes if it gets a read Lease, and gives up the handle.
    fn read(&self) {
        if self.word.read() {
            self.bytes.read();
            self.after(self.word.end_read());
        }
        self.after(self.word.release());
    }

    /// Writes the bytes if it gets the write Lease. Gives up the handle before the Lease if
    /// `handle_first`.
    fn write(&self, handle_first: bool) {
        if self.word.write() {
            if handle_first {
                self.after(self.word.release());
            }
            self.bytes.write();
            self.after(self.word.end_write());
            if handle_first {
                return;
            }
        }
        self.after(self.word.release());
    }
}

fn leases<W: Word>(word: fn() -> W) {
    check(3, move || {
        let element = Arc::new(Guarded {
            word: word(),
            bytes: TrackedCell::new(),
            homes: Tally::new(0),
        });
        element.word.retain();
        element.word.retain();
        let spawn = |work: fn(&Guarded<W>)| {
            let element = Arc::clone(&element);
            spawn(move || work(&element))
        };
        let threads = [spawn(Guarded::read), spawn(|element| element.write(true))];
        element.write(false);
        for thread in threads {
            thread.join().unwrap();
        }
        let homes = element.homes.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(homes, 1, "brought home exactly once");
    });
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn many_read_or_one_writes_and_one_brings_home() {
    leases(real);
    leases(|| Toy::new(Wrong::Nothing));
}

#[test]
fn mutant_that_gives_a_lease_back_relaxed_is_found() {
    mutant("Causality violation", || {
        leases(|| Toy::new(Wrong::RelaxedReturn))
    });
}

#[test]
fn mutant_that_brings_home_without_acquire_is_found() {
    mutant("Causality violation", || {
        leases(|| Toy::new(Wrong::RelaxedLast))
    });
}

#[test]
fn mutant_that_leases_by_look_and_add_is_found() {
    mutant("Causality violation", || {
        leases(|| Toy::new(Wrong::LookAndAdd))
    });
}

#[test]
fn mutant_that_looks_whether_it_was_the_last_is_found() {
    mutant("Causality violation", || {
        leases(|| Toy::new(Wrong::LookForLast))
    });
}

/// Models futures that wait until no Lease is held. `poll` polls one of them, by its number.
fn released(poll: fn(&Watches, &LeaseWord, &mut u64, &Waker) -> bool) {
    check(3, move || {
        let (watches, word) = (Arc::new(Watches::new()), Arc::new(real()));
        word.write().unwrap();
        let other = {
            let (watches, word) = (Arc::clone(&watches), Arc::clone(&word));
            spawn(move || {
                if word.end_write() == Left::Watchers {
                    watches.released(ELEMENT);
                }
            })
        };
        // A future that gives up: the mark of the other future stays.
        let mut gone = 0;
        watches.poll(ELEMENT, &word, &mut gone, Waker::noop());
        let mut future = 0;
        let mut gives_up = true;
        block_on(pin!(poll_fn(|cx| {
            let is_released = poll(&watches, &word, &mut future, cx.waker());
            if std::mem::take(&mut gives_up) {
                watches.leave(ELEMENT, &word, gone);
            }
            match is_released {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })));
        assert!(word.write().is_ok());
        other.join().unwrap();
        assert_eq!(word.end_write(), Left::Counts, "no future watches any more");
    });
}

const ELEMENT: usize = 1;

#[test]
fn who_waits_for_the_last_lease_is_woken() {
    released(|watches, word, future, waker| watches.poll(ELEMENT, word, future, waker));
}

#[test]
fn mutant_that_marks_the_word_before_it_can_be_found_is_found() {
    mutant("deadlock", || {
        released(|watches, word, future, waker| {
            if !word.watch() {
                word.unwatch();
                return true;
            }
            watches.enter(ELEMENT, future, waker);
            false
        })
    });
}

/// The operations of a free list, implemented by the real one and by one that has no tag.
trait List: Send + Sync + 'static {
    fn pop(&self) -> Option<u32>;
    fn push(&self, index: u32);
}

impl List for FreeList {
    fn pop(&self) -> Option<u32> {
        FreeList::pop(self)
    }

    fn push(&self, index: u32) {
        assert_eq!(FreeList::push(self, index, false), Pushed::Home);
    }
}

/// A free list of two indices whose head has no tag. The value 2 marks the end.
struct Untagged(AtomicU32, [AtomicU32; 2]);

impl List for Untagged {
    fn pop(&self) -> Option<u32> {
        let head = self.0.load(Acquire);
        let next = self.1.get(head as usize)?.load(Acquire);
        let popped = self.0.compare_exchange(head, next, SeqCst, SeqCst);
        popped.ok()
    }

    fn push(&self, index: u32) {
        let mut head = self.0.load(Acquire);
        loop {
            self.1[index as usize].store(head, Release);
            match self.0.compare_exchange(head, index, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }
}

/// One thread takes two indices and brings the first back, while another takes one and brings it
/// back.
fn take_and_bring_back<L: List>(list: fn() -> L) {
    check(3, move || {
        let list = Arc::new(list());
        let out = Arc::new([TrackedCell::new(), TrackedCell::new()]);
        let other = {
            let (list, out) = (Arc::clone(&list), Arc::clone(&out));
            spawn(move || {
                if let Some(index) = list.pop() {
                    out[index as usize].write();
                    list.push(index);
                }
            })
        };
        let mine = [list.pop(), list.pop()];
        for index in mine.into_iter().flatten() {
            out[index as usize].write();
        }
        if let Some(first) = mine[0] {
            list.push(first);
        }
        other.join().unwrap();
        let mut left: Vec<u32> = std::iter::from_fn(|| list.pop()).take(3).collect();
        left.extend(mine[1]);
        left.sort_unstable();
        assert_eq!(left, [0, 1], "each is there once");
    });
}

#[test]
fn an_index_is_out_once_and_none_is_lost() {
    take_and_bring_back(|| FreeList::new(2));
}

#[test]
fn mutant_without_a_tag_is_found() {
    mutant("each is there once", || {
        take_and_bring_back(|| Untagged(AtomicU32::new(0), [AtomicU32::new(1), AtomicU32::new(2)]));
    });
}

/// Two threads bring the last indices back while a third one closes the list. Exactly one of them
/// learns that the list ends.
fn ends(close: fn(&FreeList) -> bool) {
    check(3, move || {
        let list = Arc::new(FreeList::new(2));
        let out = [list.pop().unwrap(), list.pop().unwrap()];
        let threads = out.map(|index| {
            let list = Arc::clone(&list);
            spawn(move || list.push(index, false) == Pushed::Last)
        });
        let mut told = usize::from(close(&list));
        for thread in threads {
            told += usize::from(thread.join().unwrap());
        }
        assert_eq!(told, 1, "exactly one ends it");
        assert!(list.pop().is_none());
    });
}

#[test]
fn exactly_one_is_told_that_a_closed_list_ends() {
    ends(FreeList::close);
}

#[test]
fn mutant_whose_close_ends_what_others_brought_home_is_found() {
    mutant("exactly one", || {
        ends(|list| {
            let none_home = list.is_empty();
            list.close() || none_home
        });
    });
}

type Line = (FreeList, Waiters);

/// One thread waits for the only index, another one brings it back as `Slab::bring_home` does.
fn one_waits(wait: fn(&Line, &Task)) {
    check(3, move || {
        let line = Arc::new((FreeList::new(1), Waiters::new()));
        let index = line.0.pop().unwrap();
        let giver = {
            let line = Arc::clone(&line);
            spawn(move || {
                if line.0.push(index, false) == Pushed::Waited {
                    assert_eq!(line.0.push(index, true), Pushed::Home);
                    line.1.notify_and_wake(|_| 1);
                }
            })
        };
        wait(&line, &Task::new());
        giver.join().unwrap();
    });
}

/// Waits as `Slab::poll_take` does: enqueues, marks the list, then tries to take; or in another
/// order, or without the mark.
fn wait(line: &Line, task: &Task, mark_first: bool, mark: bool) {
    let node = pin!(WaitNode::new());
    loop {
        // SAFETY: the caller's list outlives the node.
        unsafe { line.1.enqueue(node.as_ref(), &task.waker()) };
        if mark && mark_first {
            line.0.set_waited(true);
        }
        if line.0.pop().is_some() {
            return line.1.leave(node.as_ref());
        }
        if mark && !mark_first {
            line.0.set_waited(true);
        }
        task.sleep();
    }
}

#[test]
fn who_brings_an_index_back_sees_that_somebody_waits() {
    one_waits(|line, task| wait(line, task, true, true));
}

#[test]
fn mutant_that_waits_without_saying_so_is_found() {
    mutant("deadlock", || {
        one_waits(|line, task| wait(line, task, true, false))
    });
}

#[test]
fn mutant_that_looks_before_it_says_that_it_waits_is_found() {
    mutant("deadlock", || {
        one_waits(|line, task| wait(line, task, false, true))
    });
}

/// A device that only registers memory, under a key.
struct Holder(DevInfo, u64);

// SAFETY: it opens no queue.
unsafe impl Adapter for Holder {
    fn info(&self) -> &DevInfo {
        &self.0
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, _: QueueConfig) -> Result<Arc<dyn Queue>> {
        unreachable!("these models have no WorkQ")
    }
}

// SAFETY: no queue uses the keys, and nothing is exported or imported.
unsafe impl Registrar for Holder {
    fn register(&self, _: &Region, _: RegistrationUse) -> Result<Registration> {
        Ok(Registration::new(self.1, None))
    }
}

fn device(key: u64) -> Device {
    let (addr, caps) = (PciAddr::new(0, 0, 0), Caps::for_dma(1, 1, 1));
    let info = DevInfo::new("fake", "fake", addr, PciFunction::Pf, caps);
    Device::from_adapter(Arc::new(Holder(info, key)))
}

/// Returns a real pool of one element, which is in use.
fn pool() -> (Mmap, BufPool, Buf) {
    let device = device(0);
    let mmap = Mmap::builder().device(&device).alloc(4096).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    let buf = pool.try_alloc().unwrap();
    (mmap, pool, buf)
}

#[test]
fn who_waits_for_a_buf_gets_the_one_that_is_dropped() {
    check(3, || {
        let (_mmap, pool, buf) = pool();
        let waiter = {
            let pool = pool.clone();
            spawn(move || drop(block_on(pin!(pool.alloc()))))
        };
        drop(buf);
        waiter.join().unwrap();
        assert!(pool.try_alloc().is_ok());
    });
}

#[test]
fn who_waits_for_a_buf_gets_it_though_another_one_gives_up() {
    check(2, || {
        let (_mmap, pool, buf) = pool();
        let waiter = {
            let pool = pool.clone();
            spawn(move || drop(block_on(pin!(pool.alloc()))))
        };
        let impatient = {
            let pool = pool.clone();
            spawn(move || {
                let alloc = pin!(pool.alloc());
                let _ = alloc.poll(&mut Context::from_waker(Waker::noop()));
            })
        };
        drop(buf);
        waiter.join().unwrap();
        impatient.join().unwrap();
        assert!(pool.try_alloc().is_ok());
    });
}

#[test]
fn a_pool_and_its_last_buf_that_go_at_once_leave_nothing_behind() {
    check(3, || {
        let (mmap, pool, buf) = pool();
        let last = spawn(move || drop(buf));
        drop(pool);
        last.join().unwrap();
        // The claim goes with the pool's last element.
        assert!(BufPool::builder(&mmap).build().is_ok());
    });
}

/// The parts of an Mmap that stopping and starting change, and the registrations that replace the
/// first ones.
struct Holding {
    ranges: Mutex<Ranges>,
    keys: Keys,
    next: Vec<Registrations>,
}

impl Holding {
    fn new() -> Holding {
        // SAFETY: no code reaches the memory.
        let region = unsafe { Region::new(NonNull::dangling(), 1, Access::LOCAL_READ_WRITE) };
        let held = |key| register(vec![device(key)], &region, Some(RegistrationUse::Dma)).unwrap();
        let keys = Keys::new();
        keys.set(&held(1));
        Holding {
            ranges: Mutex::new(Ranges::new()),
            keys,
            next: held(2),
        }
    }

    /// Models a pool that exists for a moment: its elements keep the device and key of that moment.
    fn use_it(&self) {
        if lock(&self.ranges).claim(0..1).is_err() {
            return;
        }
        let first = || self.keys.iter().next().map(KeyEntry::get);
        let (one, other) = (first(), first());
        assert_eq!(one, other, "the keys change under a user");
        assert_ne!(one, Some((0, 0)));
        lock(&self.ranges).unclaim(&(0..1));
    }
}

fn restarts(change: fn(&Holding)) {
    check(3, move || {
        let holding = Arc::new(Holding::new());
        let user = {
            let holding = Arc::clone(&holding);
            spawn(move || holding.use_it())
        };
        change(&holding);
        user.join().unwrap();
    });
}

#[test]
fn the_keys_change_only_while_nobody_uses_them() {
    restarts(|holding| {
        if lock(&holding.ranges).begin_stop().is_err() {
            return;
        }
        lock(&holding.ranges).set_stage(Stage::Stopped);
        lock(&holding.ranges).begin_start().unwrap();
        holding.keys.set(&holding.next);
        lock(&holding.ranges).set_stage(Stage::Started);
    });
}

#[test]
fn mutant_that_starts_before_the_keys_are_written_is_found() {
    mutant("the keys change under a user", || {
        restarts(|holding| {
            if lock(&holding.ranges).begin_stop().is_ok() {
                lock(&holding.ranges).set_stage(Stage::Started);
                holding.keys.set(&holding.next);
            }
        })
    });
}

#[test]
fn mutant_that_looks_whether_it_is_used_and_stops_later_is_found() {
    mutant("the keys change under a user", || {
        restarts(|holding| {
            let used = lock(&holding.ranges).is_used();
            if !used {
                holding.keys.set(&holding.next);
            }
        })
    });
}

/// The operation of a hash session, implemented by the real one and by twins whose Lease is wrong.
/// It hashes a part, unless another party does so now.
trait Parts: Send + Sync + 'static {
    fn part(self: Arc<Self>) -> bool;
}

impl Parts for Session {
    fn part(self: Arc<Self>) -> bool {
        let Ok(mut lease) = self.lease() else {
            return false;
        };
        let hasher = lease.get();
        lease.set(hasher);
        true
    }
}

/// A session that checks and sets its Lease in two steps, or one that gives the Lease back with
/// Relaxed.
struct Careless {
    looks: bool,
    leased: AtomicBool,
    state: TrackedCell,
}

impl Parts for Careless {
    fn part(self: Arc<Self>) -> bool {
        let free = match self.looks {
            true => {
                let free = !self.leased.load(Acquire);
                self.leased.store(true, Relaxed);
                free
            }
            false => {
                let leased = self.leased.compare_exchange(false, true, Acquire, Relaxed);
                leased.is_ok()
            }
        };
        if free {
            self.state.write();
            let order = if self.looks { Release } else { Relaxed };
            self.leased.store(false, order);
        }
        free
    }
}

fn parts<P: Parts>(session: impl Fn() -> Arc<P> + Send + Sync + 'static) {
    check(3, move || {
        let session = session();
        let other = Arc::clone(&session);
        let other = spawn(move || other.part());
        let mine = Arc::clone(&session).part();
        let others = other.join().unwrap();
        assert!(mine || others, "one of them has the Lease");
        assert!(session.part(), "it was given back");
    });
}

#[test]
fn one_job_at_a_time_has_a_session() {
    parts(|| Session::new(Algorithm::Sha1));
}

fn careless(looks: bool) -> Arc<Careless> {
    Arc::new(Careless {
        looks,
        leased: AtomicBool::new(false),
        state: TrackedCell::new(),
    })
}

#[test]
fn mutant_that_looks_whether_a_session_is_leased_is_found() {
    mutant("Causality violation", || parts(|| careless(true)));
}

#[test]
fn mutant_that_gives_a_session_back_relaxed_is_found() {
    mutant("Causality violation", || parts(|| careless(false)));
}
