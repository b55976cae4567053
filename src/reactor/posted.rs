//! What is posted to a loop of the caller's own and takes no Slot: receives, waits, and runs of
//! graphs.
//!
//! A job that is posted lies in its Slot until [`WorkQ::collect`](super::WorkQ) hands it out (see
//! [`super::own_loop`]). A receive and a wait have places in tables of their own, and a run has
//! none. Each of them is an *entry* here. Its waker puts the entry's number into the list of those
//! that are ready, and rings for a loop that has armed. `collect` polls the entries that are ready,
//! and no others.
//!
//! ```text
//!   post --> entry, polled once --> (asleep) --- waker --> ready --- collect --> polled --> handed
//! out
//!                                      ^                                |
//!                                      +--------------- Pending --------+
//! ```
//!
//! The entry of a receive or a wait keeps its table, and not its context. So the context can go
//! while something is posted, and its connection ends; the entry is over then, with an error. A run
//! has its instance, and that has the WorkQ, which is kept until the run is handed out.

use std::any::Any;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::unconstrained;

use super::driven::Driven;
use super::held::Outcome;
use super::received::Received;
use super::recv::PostedRecv;
use super::target::Meaning;
use super::wait_flight::PostedWait;
use super::workq::{Shared, WorkQ};
use crate::error::JobError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

/// A run of a graph that was posted. The reactor does not know what it answers.
pub(crate) trait PostedRun: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Box<dyn Any + Send>>;
}

/// How something ended that was posted.
pub(crate) enum End {
    /// A job: the meaning of the number that it ends with.
    Job(Meaning, Outcome),
    Received(Result<Received, JobError>),
    Waited(Outcome),
    Run(Box<dyn Any + Send>),
}

/// What is polled until it is over.
pub(super) enum Entry {
    Recv(PostedRecv),
    Wait(PostedWait),
    Run(Pin<Box<dyn PostedRun>>),
}

impl Entry {
    fn poll(&mut self, shared: &Arc<Shared>, cx: &mut Context<'_>) -> Poll<End> {
        match self {
            Entry::Recv(recv) => recv.poll(shared, cx.waker()).map(End::Received),
            Entry::Wait(wait) => wait.poll(shared, cx.waker()).map(End::Waited),
            Entry::Run(run) => {
                let _driven = Driven::enter(&**shared);
                // The loop may be a task's. Where that one's budget is spent, it is the loop that
                // goes on.
                let run = pin!(unconstrained(poll_fn(|cx| run.as_mut().poll(cx))));
                run.poll(cx).map(End::Run)
            }
        }
    }
}

impl WorkQ {
    /// Posts a run: the next `collect` begins it.
    pub(crate) fn post_run(&self, user_data: u64, run: Pin<Box<dyn PostedRun>>) {
        self.0.posted().add(&self.0, user_data, Entry::Run(run));
    }
}

impl Shared {
    /// What was posted. The WorkQ itself does not know what it keeps.
    pub(super) fn posted(&self) -> &Entries {
        let posted = self.posted.get_or_init(|| Box::<Entries>::default());
        posted.downcast_ref().expect("nothing else is put there")
    }

    /// Whether nothing that was posted is to be polled.
    pub(super) fn none_posted_is_ready(&self) -> bool {
        self.posted.get().is_none() || self.posted().none_ready()
    }
}

/// The entries of a WorkQ.
#[derive(Default)]
pub(super) struct Entries {
    places: Mutex<Places>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
}

struct Place {
    user_data: u64,
    state: State,
    bell: Arc<Bell>,
}

enum State {
    Free,
    Waiting(Entry),
    /// A thread polls it.
    Polled,
    /// As `Polled`, and it was woken meanwhile.
    PolledAgain,
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<u32>>);

/// The waker of an entry. One is made for each place, and used again.
struct Bell {
    index: u32,
    /// Its number is in the list.
    queued: AtomicBool,
    ready: Arc<Ready>,
    shared: Weak<Shared>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        lock(&self.ready.0).push_back(self.index);
        // After it can be found: pairs with `arm`.
        if let Some(shared) = self.shared.upgrade() {
            shared.fire();
        }
    }
}

impl Entries {
    /// Whether no entry is to be polled.
    fn none_ready(&self) -> bool {
        lock(&self.ready.0).is_empty()
    }

    /// Puts an entry in, and has it polled by the next `collect`.
    pub(super) fn add(&self, shared: &Arc<Shared>, user_data: u64, entry: Entry) {
        let mut places = lock(&self.places);
        let index = places.free.pop().unwrap_or_else(|| {
            let index = places.places.len() as u32;
            let bell = Arc::new(Bell {
                index,
                queued: AtomicBool::new(false),
                ready: Arc::clone(&self.ready),
                shared: Arc::downgrade(shared),
            });
            places.places.push(Place {
                user_data,
                state: State::Free,
                bell,
            });
            index
        });
        let place = &mut places.places[index as usize];
        (place.user_data, place.state) = (user_data, State::Waiting(entry));
        let bell = Arc::clone(&place.bell);
        drop(places);
        bell.wake();
    }

    /// Polls what is ready, at most once each, and hands out what is over. Returns how many.
    pub(super) fn poll(&self, shared: &Arc<Shared>, mut handle: impl FnMut(u64, End)) -> usize {
        let (mut handed, mut left) = (0, lock(&self.ready.0).len());
        while left > 0
            && let Some(index) = self.next()
        {
            left -= 1;
            let Some((mut entry, waker)) = self.take(index) else {
                continue;
            };
            // If the poll panics, in a provider or in a drop of the application's, the place is
            // free.
            let place = Held(self, index);
            let polled = entry.poll(shared, &mut Context::from_waker(&waker));
            match polled {
                Poll::Pending => {
                    std::mem::forget(place);
                    self.put_back(index, entry);
                }
                Poll::Ready(end) => {
                    std::mem::forget(place);
                    let user_data = self.end(index);
                    drop(entry);
                    handed += 1;
                    handle(user_data, end);
                }
            }
        }
        handed
    }

    fn next(&self) -> Option<u32> {
        lock(&self.ready.0).pop_front()
    }

    /// Takes the entry out to be polled.
    fn take(&self, index: u32) -> Option<(Entry, Waker)> {
        let mut places = lock(&self.places);
        let place = &mut places.places[index as usize];
        // From here on a wake-up counts again. A swap: what was done before a wake-up that was
        // folded into an earlier one is seen by the poll.
        place.bell.queued.swap(false, Ordering::SeqCst);
        match std::mem::replace(&mut place.state, State::Polled) {
            State::Waiting(entry) => Some((entry, Waker::from(Arc::clone(&place.bell)))),
            State::Polled | State::PolledAgain => {
                place.state = State::PolledAgain;
                None
            }
            // It was woken for an entry that has ended.
            State::Free => {
                place.state = State::Free;
                None
            }
        }
    }

    fn put_back(&self, index: u32, entry: Entry) {
        let mut places = lock(&self.places);
        let place = &mut places.places[index as usize];
        let again = matches!(place.state, State::PolledAgain);
        place.state = State::Waiting(entry);
        let bell = again.then(|| Arc::clone(&place.bell));
        drop(places);
        bell.into_iter().for_each(Bell::wake);
    }

    /// The place is free. Returns the word.
    fn end(&self, index: u32) -> u64 {
        let mut places = lock(&self.places);
        let place = &mut places.places[index as usize];
        place.state = State::Free;
        let user_data = place.user_data;
        places.free.push(index);
        user_data
    }
}

/// The place of an entry that is polled.
struct Held<'a>(&'a Entries, u32);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}
