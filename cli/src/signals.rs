//! Signals that end a command after it has deleted incomplete files, and SIGXFSZ, which must not
//! end it.

use std::io;

use nix::libc::SIGXFSZ;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Result, cannot};
use crate::open;

/// Makes writes beyond the limit for files (`ulimit -f`) fail, instead of SIGXFSZ ending the
/// process. Uses a handler, because children would inherit an ignored signal.
pub(crate) fn outlive_file_limit() -> Result {
    let runtime = open::runtime()?;
    let _inside = runtime.enter();
    // The handler stays when the runtime and the `Signal` are dropped.
    let caught = signal(SignalKind::from_raw(SIGXFSZ)).map(drop);
    Ok(caught.map_err(cannot("catch", "SIGXFSZ".as_ref()))?)
}

pub(crate) struct Signals([Signal; 3]);

impl Signals {
    /// Catches the signals: from now on they do not end the process.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for one of the signals.
    pub(crate) async fn recv(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
