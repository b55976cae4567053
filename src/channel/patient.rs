//! A listener that waits while this process has no descriptor or memory for a peer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::libc;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::listener::Listener;
use super::socket::Socket;

/// Between tries to accept.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct PatientListener {
    listener: Listener,
    /// It keeps the time of the pauses.
    runtime: Handle,
    /// There is one if the last peer was not accepted.
    pause: Option<Pin<Box<Sleep>>>,
    /// Why, if the log does not say it yet.
    pub(crate) unlogged: Option<io::Error>,
}

impl PatientListener {
    pub(crate) fn new(listener: Listener, runtime: Handle) -> PatientListener {
        PatientListener {
            listener,
            runtime,
            pause: None,
            unlogged: None,
        }
    }

    /// Returns the next peer; `None` for one that is not let in, or has gone again. If there is no
    /// socket to spare ([`is_full`]), waits and tries again, or fails if it may not wait.
    pub(crate) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
        may_wait: bool,
    ) -> Poll<io::Result<Option<Socket>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
            }
            match ready!(self.listener.poll_accept(cx)) {
                Err(error) if may_wait && is_full(&error) => {
                    let _time = self.runtime.enter();
                    if self.pause.replace(Box::pin(sleep(PAUSE))).is_none() {
                        self.unlogged = Some(error);
                    }
                }
                accepted => {
                    if let Ok(Some(_)) = accepted {
                        self.pause = None;
                    }
                    return Poll::Ready(accepted);
                }
            }
        }
    }
}

/// Returns true if this process or the system cannot have another socket.
pub(crate) fn is_full(error: &io::Error) -> bool {
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error
        .raw_os_error()
        .is_some_and(|errno| full.contains(&errno))
}
