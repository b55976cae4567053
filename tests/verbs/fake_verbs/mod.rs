//! A fake of libibverbs with adapters behind it, for the function table that the provider calls.
//!
//! It behaves exactly as the man pages say, and promises no more than they do:
//!
//! - A queue pair reaches the queue pairs that its path leads to, on any adapter of the world.
//!   Requests are carried out in order; keys, ranges, protection domains and permissions are
//!   checked. The first request that fails takes its queue pair to the state Error and, if the peer
//!   refused the request, the peer's queue pair too.
//! - Invalid fields of completions hold garbage, limits are not rounded up, and lkey and rkey
//!   differ.
//! - A queue entry is free again once the completion of its request, or of a later one, was polled.
//! - A completion queue notifies once per request, for completions that come after the request. An
//!   overrun breaks it.
//! - A call that no caller may make is a sin, which fails the test at its end: destroying an object
//!   in use, using a destroyed object, an overrun, or a call that would block for ever in the real
//!   library.
//!
//! A test has a [`World`]; only one exists at a time.
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

/// The adapters of a test. Dropping it fails the test if an object was not destroyed or a sin was
/// recorded.
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

    /// Expects that some objects cannot be destroyed, and are left at the end.
    pub fn expect_leaks(&mut self) {
        self.leaks = true;
    }

    pub fn table(&self) -> Table {
        control::TABLE
    }

    pub fn faults(&self) -> Faults {
        Faults
    }

    /// Returns the adapter of this name.
    pub fn fake(&self, name: &str) -> Fake {
        let fabric = lock();
        let found = fabric
            .adapters
            .iter()
            .position(|adapter| adapter.description.name == name);
        Fake(found.expect("an adapter of this name"))
    }

    /// Returns how often this function was called.
    pub fn calls(&self, name: &str) -> u64 {
        lock().calls.get(name).copied().unwrap_or(0)
    }

    /// Returns how often completion queues were polled.
    pub fn polls(&self) -> u64 {
        fabric::POLLS.load(Relaxed)
    }

    /// Returns how many work requests were carried out.
    pub fn carried_out(&self) -> u64 {
        lock().carried_out
    }

    /// Returns the recorded sins, and clears them, so that they no longer fail the test.
    pub fn sins(&self) -> Vec<String> {
        std::mem::take(&mut lock().sins)
    }

    /// Forks while all other threads of the fake are idle, so that the child can use the fake.
    pub fn fork(&self) -> libc::pid_t {
        let _fabric = lock();
        // SAFETY: the caller makes sure that the child only does what it may.
        unsafe { libc::fork() }
    }

    /// Returns how many objects are not destroyed yet.
    pub fn live_objects(&self) -> usize {
        lock().live().iter().map(|(_, count)| count).sum()
    }

    /// Waits until all objects are destroyed.
    pub fn wait_until_empty(&self) {
        let left = self.left_after(LIMIT);
        assert!(left.is_empty(), "these were not destroyed: {left:?}");
    }

    /// Waits until at least `sends` requests are posted to a device and not yet carried out.
    pub fn wait_until_posted(&self, fake: Fake, sends: usize) {
        block_until("all requests are posted", || fake.posted().0 >= sends);
    }

    /// Waits until all objects are destroyed, at most for `limit`. Returns those that are left.
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
            // A thread may still use the objects, so they are leaked.
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
