//! Signals that end a command, so that it can delete what is half done, and one that must not.

use std::io;

use nix::libc::SIGXFSZ;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Result, cannot};
use crate::open;

/// Has writes beyond the limit for files (`ulimit -f`) fail, where SIGXFSZ would end the process.
/// A handler does this, since children would inherit a signal that is ignored.
pub(crate) fn outlive_file_limit() -> Result {
    let runtime = open::runtime()?;
    let _inside = runtime.enter();
    // The handler stays when the runtime and the `Signal` are dropped.
    let caught = signal(SignalKind::from_raw(SIGXFSZ)).map(drop);
    Ok(caught.map_err(cannot("catch", "SIGXFSZ".as_ref()))?)
}

pub(crate) struct Signals([Signal; 3]);

impl Signals {
    /// From now on these signals do not end the process.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for one of them.
    pub(crate) async fn recv(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
