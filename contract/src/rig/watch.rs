//! Deadlines: a check that hangs fails, and so does one that waits in vain.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a check waits for something that must come.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Runs a check on a thread of its own: a call that blocks, or a wake-up that is lost, must fail
/// and not hang.
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
    // It says nothing, and hangs up at its end, or when it panics.
    if is_done.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
        panic!(
            "{what}: not over within {deadline:?}: a call blocked (duty 7), or a Job's end was not heard of (duties 1 and 5)"
        );
    }
    match checker.join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Waits for what must come; `what` says what did not.
pub(crate) fn wait_for(deadline: Duration, what: &str, mut came: impl FnMut() -> bool) {
    /// Checks before the thread sleeps between them.
    const YIELDS: u32 = 32;
    let (start, mut checks) = (Instant::now(), 0);
    while !came() {
        assert!(
            start.elapsed() < deadline,
            "{what}: not within {deadline:?}"
        );
        // The device's own threads need the CPU too. Beside a load, a thread that only yields waits
        // for its whole turn at each hand-over; one that sleeps is scheduled at once.
        match checks < YIELDS {
            true => thread::yield_now(),
            false => thread::sleep(Duration::from_micros(100)),
        }
        checks += 1;
    }
}
