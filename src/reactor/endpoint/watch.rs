//! The state of an Rdma ([`RdmaState`]), and watches that wait until it changes ([`RdmaWatch`]).
//!
//! A watcher gets the state by value, so that no lock of this module is held while code of the
//! application runs: a watcher may reset or connect the Rdma from the state that it has just read.
#![expect(unsafe_code, reason = "pins nodes of the list of watchers")]

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;

use tracing::field::{DisplayValue, display};
use tracing::{debug, warn};

use crate::device::{Endpoint, EndpointState};
use crate::error::{JobError, Reason};
use crate::reactor::tables::Watching;
use crate::reactor::workq::Shared;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Mutex, WaitNode, Waiters, contain, lock, log};

/// The state of an [`Rdma`](crate::Rdma) (section 4.3 of NVIDIA's DOCA RDMA guide).
///
/// ```
/// use tokio_doca::rdma::RdmaState;
/// # use tokio_doca::{Device, Rdma, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// assert_eq!(a.state(), RdmaState::Connected);
/// drop(b);
/// let ended = a.watch().wait_for(|state| state != RdmaState::Connected).await;
/// match ended {
///     Some(RdmaState::Error(cause)) => assert!(cause.is_disconnect()),
///     other => unreachable!("{other:?}"),
/// }
/// a.reset()?;                                         // export and connect anew
/// assert_eq!(a.state(), RdmaState::Init);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "doca_rdma_state")]
pub enum RdmaState {
    /// The WorkQ of the Rdma was shut down.
    #[doc(alias = "DOCA_RDMA_STATE_RESET")]
    Reset,
    /// The Rdma can be exported and connected, and takes receives.
    #[doc(alias = "DOCA_RDMA_STATE_INIT")]
    Init,
    /// The Rdma is connected to its peer.
    #[doc(alias = "DOCA_RDMA_STATE_CONNECTED")]
    Connected,
    /// A job has failed, or the peer is gone. Every operation is refused until
    /// [`Rdma::reset`](crate::Rdma::reset) is called. The field is the error that came first.
    #[doc(alias = "DOCA_RDMA_STATE_ERROR")]
    Error(JobError),
}

/// The state of one Rdma as it was last seen, shared with its watchers.
pub(in crate::reactor) struct WatchState {
    /// The number by which the log names the Rdma. It is unique in this process.
    pub(super) id: u64,
    /// The name of the peer, for the log, if the Rdma belongs to a stream.
    peer: OnceLock<String>,
    known: Mutex<Known>,
    /// Watchers that wait for the next change, and streams without a posted receive, which wait for
    /// the end of the connection or for a message to take.
    pub(in crate::reactor) waiting: Waiters,
    endpoint: OnceLock<Weak<dyn Endpoint>>,
    /// 0 at first, 1 once the WorkQ was shut down, and 2 once this side has disconnected because of
    /// that.
    closed: AtomicU8,
}

struct Known {
    state: RdmaState,
    /// How often the state became Connected, and how often it became Error.
    transitions: (u64, u64),
    /// The number of changes, by which a watcher can tell whether it has seen the last one.
    changes: u64,
    /// The Rdma was dropped, so the state will not change any more.
    gone: bool,
    /// The peer's stream has ended in order, so a disconnect by the peer is not logged as a fault.
    ended: bool,
}

impl WatchState {
    pub(in crate::reactor) fn new() -> WatchState {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        WatchState {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            peer: OnceLock::new(),
            known: Mutex::new(Known {
                state: RdmaState::Init,
                transitions: (0, 0),
                changes: 0,
                gone: false,
                ended: false,
            }),
            waiting: Waiters::new(),
            endpoint: OnceLock::new(),
            closed: AtomicU8::new(0),
        }
    }

    /// Stores a weak reference to the endpoint whose state this is.
    pub(super) fn set_endpoint(&self, endpoint: &Arc<dyn Endpoint>) {
        let _ = self.endpoint.set(Arc::downgrade(endpoint));
    }

    /// Makes the log name the peer from now on.
    pub(super) fn set_peer(&self, peer: String) {
        _ = self.peer.set(peer);
    }

    /// Notes that the peer's stream has ended in order.
    pub(super) fn set_ended(&self) {
        lock(&self.known).ended = true;
    }

    pub(super) fn peer(&self) -> Option<DisplayValue<&String>> {
        self.peer.get().map(display)
    }

    /// Makes the state Reset from now on, since the WorkQ was shut down. If `leaves` is true, also
    /// disconnects from the peer, once.
    pub(in crate::reactor) fn close(&self, leaves: bool) {
        let before = self
            .closed
            .fetch_max(1 + u8::from(leaves), Ordering::SeqCst);
        if let Some(endpoint) = self.endpoint().filter(|_| leaves && before < 2) {
            contain("a device", || endpoint.reset());
        }
    }

    fn endpoint(&self) -> Option<Arc<dyn Endpoint>> {
        self.endpoint.get().and_then(Weak::upgrade)
    }

    fn state_of(&self, endpoint: Option<&dyn Endpoint>) -> RdmaState {
        if self.closed.load(Ordering::SeqCst) > 0 {
            return RdmaState::Reset;
        }
        match endpoint.map_or(EndpointState::Init, Endpoint::state) {
            EndpointState::Init => RdmaState::Init,
            EndpointState::Connected => RdmaState::Connected,
            EndpointState::Error(cause) => RdmaState::Error(cause),
        }
    }

    /// Asks the endpoint for its state, and returns it.
    pub(in crate::reactor) fn now(&self) -> RdmaState {
        self.state_of(self.endpoint().as_deref())
    }

    /// Asks the endpoint for its state. If the state has changed, wakes the watchers.
    pub(in crate::reactor) fn update(&self) {
        // Declared before the lock, so that it is dropped after it: this may be the last reference
        // to the endpoint.
        let endpoint = self.endpoint();
        let mut known = lock(&self.known);
        // The endpoint is asked while the lock is held, so that the last caller stores the last
        // state.
        let state = self.state_of(endpoint.as_deref());
        if state == known.state {
            return;
        }
        known.state = state;
        known.changes += 1;
        match state {
            RdmaState::Connected => known.transitions.0 += 1,
            RdmaState::Error(_) => known.transitions.1 += 1,
            RdmaState::Init | RdmaState::Reset => {}
        }
        let ended = known.ended;
        drop(known);
        self.waiting.wake_all();
        self.log(state, ended);
    }

    /// Writes the new state to the log. The caller holds no locks. A failure is logged as a
    /// warning, but a disconnect by the peer only as a debug message.
    fn log(&self, state: RdmaState, ended: bool) {
        let (rdma, peer) = (self.id, self.peer());
        let leaves = |cause: JobError| {
            cause.reason() == Reason::PeerClosed || ended && cause.is_disconnect()
        };
        log(|| match state {
            RdmaState::Error(cause) if leaves(cause) => {
                debug!(target: "tokio_doca::rdma", rdma, peer, state = "Error", %cause, "state");
            }
            RdmaState::Error(cause) => {
                warn!(target: "tokio_doca::rdma", rdma, peer, state = "Error", %cause, "state");
            }
            state => debug!(target: "tokio_doca::rdma", rdma, peer, ?state, "state"),
        });
    }

    /// Marks the Rdma as dropped, and wakes the watchers.
    pub(in crate::reactor) fn end(&self) {
        lock(&self.known).gone = true;
        self.waiting.wake_all();
        let (rdma, peer) = (self.id, self.peer());
        log(|| debug!(target: "tokio_doca::rdma", rdma, peer, "closed"));
    }

    /// Returns how often the state became Connected, and how often it became Error.
    pub(super) fn transitions(&self) -> (u64, u64) {
        lock(&self.known).transitions
    }

    fn known(&self) -> (RdmaState, u64) {
        let known = lock(&self.known);
        (known.state, known.changes)
    }

    /// Returns the state and the number of changes if that number differs from `seen`: the watcher
    /// has not seen the last change. Returns `None` once the Rdma was dropped.
    pub(in crate::reactor) fn changed_since(&self, seen: u64) -> Poll<Option<(RdmaState, u64)>> {
        let known = lock(&self.known);
        match known.changes {
            changes if changes != seen => Poll::Ready(Some((known.state, changes))),
            _ if known.gone => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}

/// A watch of the state of an [`Rdma`](crate::Rdma): see [`Rdma::watch`](crate::Rdma::watch). A
/// clone is a watch of its own, which has seen the same changes as the original.
///
/// ```
/// # use tokio_doca::{rdma::RdmaState, Rdma};
/// /// Resets `rdma` whenever it fails.
/// async fn keep_alive(rdma: &Rdma) -> Result<(), tokio_doca::Error> {
///     let mut watch = rdma.watch();
///     loop {
///         if let RdmaState::Error(cause) = watch.state() {
///             println!("{cause}");
///             rdma.reset()?;
///         }
///         if watch.changed().await.is_none() {
///             return Ok(());
///         }
///     }
/// }
/// ```
#[derive(Clone)]
#[must_use = "a watch tells nothing unless it is asked"]
pub struct RdmaWatch {
    watched: Arc<WatchState>,
    seen: u64,
    /// While this lives, the device signals changes.
    _watching: Watching,
    shared: Weak<Shared>,
}

impl RdmaWatch {
    pub(in crate::reactor) fn new(watched: &Arc<WatchState>, shared: &Arc<Shared>) -> RdmaWatch {
        let watch = RdmaWatch {
            watched: Arc::clone(watched),
            seen: watched.known().1,
            _watching: shared.core.registry.watch(),
            shared: Arc::downgrade(shared),
        };
        shared.arm_for_changes();
        watch
    }

    /// Returns the state that was last reported, without asking the device.
    /// [`Rdma::state`](crate::Rdma::state) asks it.
    pub fn state(&self) -> RdmaState {
        self.watched.known().0
    }

    /// Waits until the state has changed since this watch was made, or since the last call, and
    /// returns the state. Changes in quick succession count as one. Returns `None` once the Rdma
    /// was dropped and its last change was returned.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no change is lost: the next call returns it.
    pub async fn changed(&mut self) -> Option<RdmaState> {
        let node = pin!(WaitNode::new());
        let node = node.into_ref();
        let RdmaWatch {
            watched,
            seen,
            shared,
            ..
        } = self;
        let changed = poll_fn(|cx| {
            if let Poll::Ready(changed) = watched.changed_since(*seen) {
                return Poll::Ready(changed);
            }
            // SAFETY: the list is in an Arc of this watch, which the future borrows until after it
            // has dropped the node.
            unsafe { watched.waiting.enqueue(node, cx.waker()) };
            if let Some(shared) = shared.upgrade() {
                // The watch may have been made on another runtime, so this arms here too.
                shared.arm_for_changes();
            }
            watched.changed_since(*seen)
        });
        let (state, changes) = changed.await?;
        *seen = changes;
        Some(state)
    }

    /// Waits until `right` returns true for the state, beginning with the present one, and returns
    /// that state. Returns `None` if the Rdma is dropped before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses only the changes for which `right` has returned false.
    pub async fn wait_for(
        &mut self,
        mut right: impl FnMut(RdmaState) -> bool,
    ) -> Option<RdmaState> {
        let mut state;
        (state, self.seen) = self.watched.known();
        while !right(state) {
            state = self.changed().await?;
        }
        Some(state)
    }
}

impl fmt::Debug for RdmaWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaWatch")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
