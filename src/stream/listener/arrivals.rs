//! Peers that have connected to the socket of a listener, until they have sent their hello.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use super::ACCEPT;
use crate::channel::{Listener, PatientListener, Peer, is_full};
use crate::error::{Error, ErrorKind, Result};
use crate::stream::incoming::{Incoming, read_hello};
use crate::stream::side::Net;

/// How long a peer may be silent while others wait for its slot.
const SILENCE: Duration = Duration::from_millis(100);

/// The maximum number of peers that are taken in one poll.
const TURN: usize = 64;

pub(super) struct Arrivals {
    /// `None` if peers come only by rdma_cm.
    listener: Option<PatientListener>,
    /// Peers that have not become an `Incoming`, and the reasons. They are not in the log and the
    /// statistics yet.
    pub(super) lost: Vec<(Peer, Error)>,
    /// Peers that have not sent their hello, with the time when they came; the oldest comes first.
    pub(super) silent: VecDeque<(Instant, Peer, Greeting)>,
    /// Ends when the oldest of them may lose its slot.
    patience: Pin<Box<Sleep>>,
}

type Heard = std::result::Result<Incoming, (Peer, Error)>;
type Greeting = Pin<Box<dyn Future<Output = Heard> + Send>>;

impl Arrivals {
    pub(super) fn new(listener: Option<Listener>) -> Arrivals {
        Arrivals {
            listener: listener.map(|it| PatientListener::new(it, Handle::current())),
            lost: Vec::new(),
            silent: VecDeque::new(),
            patience: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    /// Takes the error because of which peers wait, if it is not in the log yet.
    pub(super) fn unlogged(&mut self) -> Option<io::Error> {
        self.listener.as_mut()?.unlogged.take()
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        net: &Arc<Net>,
        runtime: &Handle,
    ) -> Poll<Result<Incoming>> {
        for _ in 0..TURN {
            if let Some(incoming) = self.greeted(cx) {
                return Poll::Ready(Ok(incoming));
            }
            let no_room = self.silent.len() >= net.options.half_open;
            if no_room && !self.is_silent(cx) {
                return Poll::Pending;
            }
            let Some(listener) = &mut self.listener else {
                return Poll::Pending;
            };
            match listener.poll_accept(cx, self.silent.is_empty()) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(Some(socket))) => {
                    if no_room {
                        self.drop_oldest("another peer needed its place");
                    }
                    let peer = socket.peer();
                    let greeting = read_hello(socket, Arc::clone(net), runtime.clone());
                    let greeting = (Instant::now(), peer, Box::pin(greeting) as Greeting);
                    self.silent.push_back(greeting);
                }
                // A silent peer has the descriptor that another peer needs.
                Poll::Ready(Err(error)) if is_full(&error) => {
                    self.drop_oldest("another peer needed its descriptor");
                }
                Poll::Ready(Err(error)) => {
                    let text = format!("the listening socket: {error}");
                    return Poll::Ready(Err(Error::new(ErrorKind::IoFailed, ACCEPT, text)));
                }
            }
        }
        // The other tasks of this thread run first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Polls all silent peers, and returns one that has sent its hello.
    fn greeted(&mut self, cx: &mut Context<'_>) -> Option<Incoming> {
        let mut at = 0;
        while let Some((_, _, greeting)) = self.silent.get_mut(at) {
            match greeting.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(heard) => {
                    self.silent.remove(at);
                    match heard {
                        Ok(incoming) => return Some(incoming),
                        Err(lost) => self.lost.push(lost),
                    }
                }
            }
        }
        None
    }

    /// Drops the oldest silent peer, since another peer needs its slot or its descriptor.
    fn drop_oldest(&mut self, why: &str) {
        if let Some((since, peer, _)) = self.silent.pop_front() {
            let text = format!("it was silent for {:?}, and {why}", since.elapsed());
            self.lost
                .push((peer, Error::new(ErrorKind::TimedOut, ACCEPT, text)));
        }
    }

    /// Returns true once the oldest peer has been silent for [`SILENCE`], so that the next peer may
    /// have its slot. Otherwise it registers the task for that time.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((since, ..)) = self.silent.front() else {
            return true;
        };
        self.patience.as_mut().reset(*since + SILENCE);
        self.patience.as_mut().poll(cx).is_ready()
    }
}
