//! Peers that have connected to a listening socket, until they have sent their greeting.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::libc;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::listener::Listener;
use super::peer::Peer;
use super::socket::Socket;
use crate::error::{Error, ErrorKind};

/// The time between two tries to accept a peer, while this process has no descriptor or memory.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of peers that are accepted in one poll.
const TURN: usize = 32;

/// The future that reads a peer's greeting. It fails with an error for the log, or with `None` if
/// there is nothing to log.
pub(crate) type Greeting<T> = Pin<Box<dyn Future<Output = Result<T, Option<Error>>> + Send>>;

/// The peers that have connected to a socket but not yet sent their greeting.
pub(crate) struct Arrivals<T> {
    op: &'static str,
    /// `None` if no peer comes by a listening socket.
    listener: Option<Listener>,
    /// The runtime whose timers are used.
    runtime: Handle,
    /// The maximum number of silent peers.
    most: usize,
    /// How long a peer may be silent while others wait for its slot. Even a peer that greets at
    /// once may lose the processor for a while.
    spare: Duration,
    /// The silent peers, oldest first, each with the time when it connected.
    silent: VecDeque<(Instant, Peer, Greeting<T>)>,
    /// The timer that ends when the oldest silent peer may lose its slot.
    patience: Option<Pin<Box<Sleep>>>,
    /// The timer until the next try to accept, if the last try failed.
    pause: Option<Pin<Box<Sleep>>>,
    /// The error because of which peers wait, if it was not logged yet.
    pub(crate) unlogged: Option<io::Error>,
    /// Peers that were dropped, and the reasons.
    pub(crate) lost: Vec<(Peer, Error)>,
}

impl<T> Arrivals<T> {
    pub(crate) fn new(
        op: &'static str,
        listener: Option<Listener>,
        runtime: Handle,
        (most, spare): (usize, Duration),
    ) -> Arrivals<T> {
        Arrivals {
            op,
            listener,
            runtime,
            most,
            spare,
            silent: VecDeque::new(),
            patience: None,
            pause: None,
            unlogged: None,
            lost: Vec::new(),
        }
    }

    /// Returns the number of silent peers.
    pub(crate) fn silent(&self) -> usize {
        self.silent.len()
    }

    /// Polls for a peer that has greeted.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        greet: impl Fn(Socket) -> Greeting<T>,
    ) -> Poll<io::Result<T>> {
        for _ in 0..TURN {
            // This comes first, since this process itself may have been busy for as long as the
            // oldest peer was silent.
            let is_silent = self.silent.len() >= self.most && self.is_silent(cx);
            if let Some(greeted) = self.greeted(cx) {
                return Poll::Ready(Ok(greeted));
            }
            if self.silent.len() >= self.most && !is_silent {
                return Poll::Pending;
            }
            match ready!(self.poll_accept(cx)) {
                Ok(None) => {}
                Ok(Some(socket)) => {
                    if self.silent.len() >= self.most {
                        self.drop_oldest("another peer needed its slot");
                    }
                    let (peer, greeting) = (socket.peer(), greet(socket));
                    self.silent.push_back((Instant::now(), peer, greeting));
                }
                // A silent peer has the descriptor that another peer needs.
                Err(error) if is_full(&error) => {
                    self.drop_oldest("another peer needed its descriptor");
                    break;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        // Lets the other tasks of this thread run, and the runtime poll for events.
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Returns the next peer, or `None` if that peer is not admitted or has gone again. If there
    /// can be no more sockets ([`is_full`]), fails if a silent peer has one, and otherwise waits
    /// and tries again.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Socket>>> {
        let Some(listener) = &mut self.listener else {
            return Poll::Pending;
        };
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
            }
            match ready!(listener.poll_accept(cx)) {
                Err(error) if self.silent.is_empty() && is_full(&error) => {
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

    /// Polls all silent peers, and returns one that has greeted.
    fn greeted(&mut self, cx: &mut Context<'_>) -> Option<T> {
        let mut at = 0;
        while let Some((_, _, greeting)) = self.silent.get_mut(at) {
            let Poll::Ready(heard) = greeting.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            let (_, peer, _) = self.silent.remove(at)?;
            match heard {
                Ok(greeted) => return Some(greeted),
                Err(error) => self.lost.extend(error.map(|error| (peer, error))),
            }
        }
        None
    }

    /// Drops the oldest silent peer, since another peer needs its slot or its descriptor.
    fn drop_oldest(&mut self, why: &str) {
        if let Some((since, peer, _)) = self.silent.pop_front() {
            let text = format!("it was silent for {:?}, and {why}", since.elapsed());
            let error = Error::new(ErrorKind::TimedOut, self.op, text);
            self.lost.push((peer, error));
        }
    }

    /// Returns true if the oldest peer has been silent for `spare`, or if there is no silent peer.
    /// Otherwise registers the task for that time. Once that timer completes, the runtime has
    /// polled for events too, since it does so before it completes a timer.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((since, ..)) = self.silent.front() else {
            return true;
        };
        let until = *since + self.spare;
        let _time = self.runtime.enter();
        let patience = self
            .patience
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        patience.as_mut().reset(until);
        patience.as_mut().poll(cx).is_ready()
    }
}

/// Returns true if this process or the system cannot have another socket.
fn is_full(error: &io::Error) -> bool {
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error
        .raw_os_error()
        .is_some_and(|errno| full.contains(&errno))
}
