//! Whether a runtime has an I/O driver. Tokio 1.54 has no query for it: `AsyncFd::new` panics in a
//! runtime without one.
//!
//! The panic is caught, and it is silent. Nothing but the panic hook can make it so. The hook
//! belongs to the application, so it is wrapped once per process, before the first registration,
//! and stays in place: the wrapper swallows what this module expects on its own thread, and passes
//! everything else on. To put a hook in and take it out again for each registration would race with
//! every other thread that sets one. What remains is one moment: a hook that another thread sets
//! between the two calls of [`wrap`] is lost. [`Mode::EventDriven`](crate::Mode::EventDriven) says
//! so.
//!
//! With `panic = "abort"` there is nothing to catch. Tokio's message is not swallowed then.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

// Const and without a destructor: it allocates nothing and outlives nothing.
thread_local!(static EXPECTS_PANIC: Cell<bool> = const { Cell::new(false) });

/// Calls what registers a descriptor with the runtime of this thread. `None`: it has no I/O driver.
pub(in crate::reactor) fn register<T>(register: impl FnOnce() -> T) -> Option<T> {
    static WRAPPED: Once = Once::new();
    // An Op that a panic drops may come here, and a thread that panics may not change the hook: it
    // panics for that, which nothing would catch.
    if cfg!(panic = "unwind") && !std::thread::panicking() {
        WRAPPED.call_once(wrap);
    }
    let _expecting = Expecting::begin();
    match panic::catch_unwind(AssertUnwindSafe(register)) {
        Ok(registered) => Some(registered),
        Err(payload) => {
            std::mem::forget(payload);
            None
        }
    }
}

/// Wraps the panic hook.
fn wrap() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if !EXPECTS_PANIC.get() {
            hook(info);
        }
    }));
}

struct Expecting(bool);

impl Expecting {
    fn begin() -> Expecting {
        Expecting(EXPECTS_PANIC.replace(cfg!(panic = "unwind")))
    }
}

impl Drop for Expecting {
    fn drop(&mut self) {
        EXPECTS_PANIC.set(self.0);
    }
}
