//! A fake of libibverbs and of adapters behind it, for the table that the provider calls.
//!
//! It is what the man pages have, to the letter, and no more than they promise:
//!
//! - A queue pair reaches those that its path leads to, of any adapter here. Requests are carried
//!   out in order; keys, ranges, protection domains and permissions are checked; the first that
//!   fails takes its queue pair to the state Error, and, if the peer refused it, the peer's too.
//! - Fields of completions that are not valid are spoilt, limits are not rounded up, lkey and rkey
//!   are two numbers.
//! - A place in a queue is free again when the completion of its request, or of a later one, was
//!   polled.
//! - A completion queue notifies once per request, for completions that come after it. Overrun
//!   kills it.
//! - What no caller may do is a sin, and fails the test at its end: destroying what is in use,
//!   using what was destroyed, overrun, what the library would wait for without end.
//!
//! A test has a [`World`], and there is one at a time.
#![expect(unsafe_code, reason = "it is C in shape")]
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses its own part"
)]

mod cm;
mod completion;
mod control;
mod describe;
mod events;
mod fabric;
mod faults;
mod memory;
mod modify;
mod pair;
mod shared;
mod wire;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use support::LIMIT;
use support::block_until;
use tokio_doca::verbs::ffi::Table;

pub use describe::{Description, Gid, Link};
use fabric::{Adapter, BELL, lock};
pub use faults::{Fake, Faults, HeldCalls, Hold, Region};

static ONE: Mutex<()> = Mutex::new(());

/// The adapters of a test. When it is dropped nothing of them may be left, and nobody may have
/// sinned.
pub struct World {
    threads: Vec<JoinHandle<()>>,
    leaks: bool,
    _one: MutexGuard<'static, ()>,
}

impl World {
    pub fn new(adapters: impl IntoIterator<Item = Description>) -> World {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fabric = lock();
        for description in adapters {
            let device = fabric.make(control::device_head(&description)) as usize;
            fabric.adapters.push(Adapter {
                description,
                device,
                work: Arc::new(Condvar::new()),
                run: VecDeque::new(),
                timers: Vec::new(),
                holds: 0,
                removed: false,
                ports_down: [false; 2],
                stop: false,
            });
        }
        let threads = 0..fabric.adapters.len();
        drop(fabric);
        World {
            threads: threads
                .map(|adapter| std::thread::spawn(move || wire::run(adapter)))
                .collect(),
            leaks: false,
            _one: one,
        }
    }

    /// Something is left at the end, since it could not be destroyed.
    pub fn expect_leaks(&mut self) {
        self.leaks = true;
    }

    pub fn table(&self) -> Table {
        control::TABLE
    }

    pub fn faults(&self) -> Faults {
        Faults
    }

    /// The adapter of this name.
    pub fn fake(&self, name: &str) -> Fake {
        let fabric = lock();
        let found = fabric
            .adapters
            .iter()
            .position(|adapter| adapter.description.name == name);
        Fake(found.expect("an adapter of this name"))
    }

    /// How often this was called.
    pub fn calls(&self, name: &str) -> u64 {
        lock().calls.get(name).copied().unwrap_or(0)
    }

    /// How often completion queues were polled.
    pub fn polls(&self) -> u64 {
        fabric::POLLS.load(Relaxed)
    }

    /// How many work requests were carried out.
    pub fn carried_out(&self) -> u64 {
        lock().carried_out
    }

    /// What nobody may do and somebody did; it does not fail the test any more.
    pub fn sins(&self) -> Vec<String> {
        std::mem::take(&mut lock().sins)
    }

    /// Forks while no other thread of the fake's does anything, so that the child can ask it.
    pub fn fork(&self) -> libc::pid_t {
        let _fabric = lock();
        // SAFETY: what the child may do is the caller's duty.
        unsafe { libc::fork() }
    }

    /// How many objects nobody destroyed yet.
    pub fn live_objects(&self) -> usize {
        lock().live().iter().map(|(_, count)| count).sum()
    }

    /// Waits until nothing is left.
    pub fn wait_until_empty(&self) {
        let left = self.left_after(LIMIT);
        assert!(left.is_empty(), "these were not destroyed: {left:?}");
    }

    /// Waits until all that is posted to a device has been carried out, or waits for the peer.
    pub fn wait_until_posted(&self, fake: Fake, sends: usize) {
        block_until("all requests are posted", || fake.posted().0 >= sends);
    }

    /// What is left when nothing is, or after so long.
    fn left_after(&self, limit: Duration) -> Vec<(&'static str, usize)> {
        let end = Instant::now() + limit;
        let mut fabric = lock();
        loop {
            let (live, left) = (fabric.live(), end.saturating_duration_since(Instant::now()));
            if live.is_empty() || left.is_zero() {
                return live;
            }
            let waited = BELL.wait_timeout(fabric, left);
            fabric = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let limit = if failed || self.leaks {
            Duration::ZERO
        } else {
            LIMIT
        };
        let left = self.left_after(limit);
        let mut fabric = lock();
        for adapter in &mut fabric.adapters {
            adapter.stop = true;
            adapter.work.notify_all();
        }
        drop(fabric);
        let threads = self.threads.drain(..);
        let ended: Vec<bool> = threads.map(|thread| thread.join().is_ok()).collect();
        self.faults().clear();
        if failed || !left.is_empty() {
            // Somebody may still use the objects: they are leaked, with what the test had.
            lock().abandon();
            assert!(failed || self.leaks, "these were not destroyed: {left:?}");
            return;
        }
        assert!(!self.leaks, "nothing was left, and something should be");
        let sins = lock().clear().sins;
        assert_eq!(sins, Vec::<String>::new(), "what nobody may do");
        assert!(!ended.contains(&false), "an adapter's thread has panicked");
    }
}
