//! Deadlines: a check that hangs fails, and so does a check that waits for an event in vain.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a check waits for an expected event by default: 30 s.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Runs a check on a thread of its own, so that a blocking call or a lost wake-up fails the check
/// instead of hanging the suite.
pub(crate) fn watched_for<T: Send + 'static>(
    what: &str,
    deadline: Duration,
    check: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let checker = thread::spawn(move || {
        let _done = done;
        check()
    });
    // The sender is dropped when the check ends or panics; nothing is ever sent.
    if is_done.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
        panic!(
            "{what}: not complete within {deadline:?}: a call blocked (duty 7), or a Job did not complete (duties 1 and 5)"
        );
    }
    match checker.join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Waits until `came` returns true. Panics with `what` after the deadline.
pub(crate) fn wait_for(deadline: Duration, what: &str, mut came: impl FnMut() -> bool) {
    /// The number of polls before the thread sleeps between them.
    const YIELDS: u32 = 32;
    let (start, mut checks) = (Instant::now(), 0);
    while !came() {
        assert!(
            start.elapsed() < deadline,
            "{what}: not within {deadline:?}"
        );
        // The device's own threads need the CPU too. Under load, a thread that only yields waits
        // for a whole time slice at each hand-over, but a thread that sleeps is scheduled at once.
        match checks < YIELDS {
            true => thread::yield_now(),
            false => thread::sleep(Duration::from_micros(100)),
        }
        checks += 1;
    }
}
