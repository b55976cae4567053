//! Lines of waiters that no WorkQ serves, such as the line of a pool. A moment after waiters in
//! such a line were notified, a thread checks whether they took what there is. If they did not,
//! they may never be polled, and others are notified.
//!
//! One thread serves all lines of the process. It ends when no line has needed it for [`LINGER`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::{EachProcess, lock};

/// The time in which waiters that were notified are expected to be polled: some turns of a runtime.
const PAUSE: Duration = Duration::from_millis(10);

const LINGER: Duration = Duration::from_secs(1);

pub(crate) trait Line: Send + Sync {
    /// Notifies some more waiters, if there still is something to take.
    fn pass_over(&self);
}

#[derive(Default)]
struct Stalled {
    has_thread: bool,
    lines: Vec<Weak<dyn Line>>,
}

/// The lines, and the condition that wakes the thread.
static STALLED: EachProcess<(Mutex<Stalled>, Condvar)> = EachProcess::new(Default::default);

/// Arranges that a thread calls [`Line::pass_over`] once, soon. Returns false if no thread can do
/// that.
pub(crate) fn pass_over_soon(line: Weak<dyn Line>) -> bool {
    // Loom models have no clock.
    if cfg!(tokio_doca_loom) {
        return false;
    }
    let (stalled, added) = STALLED.get();
    let mut stalled = lock(stalled);
    if !stalled.has_thread {
        let named = thread::Builder::new().name("doca-lines".to_owned());
        if named.spawn(attend).is_err() {
            return false;
        }
        stalled.has_thread = true;
    }
    stalled.lines.push(line);
    added.notify_one();
    true
}

fn attend() {
    // Signal handlers of the application run on the application's threads.
    let _ = SigSet::all().thread_block();
    let (shared, added) = STALLED.get();
    let mut lines = Vec::new();
    loop {
        {
            let none = |stalled: &mut Stalled| stalled.lines.is_empty();
            let waited = added.wait_timeout_while(lock(shared), LINGER, none);
            let mut stalled = waited.unwrap_or_else(PoisonError::into_inner).0;
            if stalled.lines.is_empty() {
                stalled.has_thread = false;
                return;
            }
        }
        thread::sleep(PAUSE);
        std::mem::swap(&mut lines, &mut lock(shared).lines);
        for line in lines.drain(..) {
            // This may be the line's last handle, and its drop may run code of the application.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                line.upgrade().inspect(|line| line.pass_over());
            }));
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    #![expect(unsafe_code, reason = "forks")]

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::*;

    struct Never;

    impl Line for Never {
        fn pass_over(&self) {}
    }

    /// The lock is held as if another thread had it at the fork.
    #[test]
    fn a_child_of_fork_waits_for_no_lock_of_its_parent() {
        let held = lock(&STALLED.get().0);
        // SAFETY: the child allocates and starts a thread, which glibc allows.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child if it hangs.
            unsafe { libc::alarm(60) };
            let attended = pass_over_soon(Weak::<Never>::new());
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(if attended { 7 } else { 8 }) };
        }
        drop(held);
        let ended = waitpid(Pid::from_raw(pid), None).unwrap();
        assert_eq!(ended, WaitStatus::Exited(Pid::from_raw(pid), 7));
    }
}
