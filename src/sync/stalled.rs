//! Lines that no loop attends to: a moment after somebody in them was told, a thread looks whether
//! those took what there is. If they did not, nobody may poll them, and others are told.
//!
//! There is one thread for all lines of the process, which ends when no line has needed it for
//! [`LINGER`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::{Process, lock};

/// How long those who were told have to be polled: some turns of a runtime.
const PAUSE: Duration = Duration::from_millis(10);

const LINGER: Duration = Duration::from_secs(1);

pub(crate) trait Line: Send + Sync {
    /// Tells some more, if there still is something to take.
    fn pass_over(&self);
}

struct Stalled {
    /// Of which process the thread is, if there is one: a child of fork(2) has none.
    thread: Option<Process>,
    lines: Vec<Weak<dyn Line>>,
}

static STALLED: Mutex<Stalled> = Mutex::new(Stalled {
    thread: None,
    lines: Vec::new(),
});

/// Wakes the thread.
static ADDED: Condvar = Condvar::new();

/// Has [`Line::pass_over`] called soon, once. Returns false if there is no thread to do that.
pub(crate) fn pass_over_soon(line: Weak<dyn Line>) -> bool {
    // A model has no time.
    if cfg!(tokio_doca_loom) {
        return false;
    }
    let mut stalled = lock(&STALLED);
    if !stalled.thread.is_some_and(Process::is_current) {
        let named = thread::Builder::new().name("doca-lines".to_owned());
        if named.spawn(attend).is_err() {
            return false;
        }
        stalled.thread = Some(Process::current());
    }
    stalled.lines.push(line);
    ADDED.notify_one();
    true
}

fn attend() {
    // Handlers of the application run on the application's threads.
    let _ = SigSet::all().thread_block();
    let mut lines = Vec::new();
    loop {
        {
            let none = |stalled: &mut Stalled| stalled.lines.is_empty();
            let waited = ADDED.wait_timeout_while(lock(&STALLED), LINGER, none);
            let mut stalled = waited.unwrap_or_else(PoisonError::into_inner).0;
            if stalled.lines.is_empty() {
                stalled.thread = None;
                return;
            }
        }
        thread::sleep(PAUSE);
        std::mem::swap(&mut lines, &mut lock(&STALLED).lines);
        for line in lines.drain(..) {
            // Its last handle may be this one, and what it ends may be the application's.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                line.upgrade().inspect(|line| line.pass_over());
            }));
        }
    }
}
