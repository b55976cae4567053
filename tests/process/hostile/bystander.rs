//! An honest client beside an attack: how long it waits for an answer, without the attack and with
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{run, until};
use tokio::time::timeout;

/// How long the client watches, each time, and how often it is served at least.
const SPAN: Duration = Duration::from_millis(300);
const LEAST: usize = 10;
/// The client may wait this many times as long as without the attack, and always this long: the
/// machine may be busy.
const TIMES: u32 = 20;
const SLACK: Duration = Duration::from_millis(1500);
/// A client that is not served for this long is not served at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// An attack that goes on until the client has watched it.
#[derive(Default)]
pub(crate) struct Attack {
    over: AtomicBool,
    strikes: AtomicUsize,
}

impl Attack {
    pub(crate) fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Counts one more thing that was done to the service.
    pub(crate) fn strikes(&self) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.strikes.load(Ordering::Relaxed)
    }
}

/// The longest time between two answers to the client.
async fn longest_gap(visit: &mut impl AsyncFnMut()) -> Duration {
    let begun = Instant::now();
    let (mut last, mut longest, mut answers) = (begun, Duration::ZERO, 0);
    while answers < LEAST || begun.elapsed() < SPAN {
        let visited = timeout(PATIENCE, visit()).await;
        visited.expect("the honest client is served");
        longest = longest.max(last.elapsed());
        (last, answers) = (Instant::now(), answers + 1);
    }
    longest
}

/// Runs an honest client for a while, and once more for as long beside an attack, which has begun
/// once it has struck `strikes` times. Fails if the client then waits much longer.
pub(crate) async fn is_served_beside(
    name: &str,
    strikes: usize,
    mut visit: impl AsyncFnMut(),
    attack: impl AsyncFnOnce(&Attack) + Send + 'static,
) {
    let alone = longest_gap(&mut visit).await;
    let state = Arc::new(Attack::default());
    let attacker = std::thread::spawn({
        let state = Arc::clone(&state);
        move || run(attack(&state))
    });
    let has_begun = || state.count() >= strikes || attacker.is_finished();
    until("the attack has begun", has_begun).await;
    let beside = longest_gap(&mut visit).await;
    let goes_on = !attacker.is_finished();
    state.over.store(true, Ordering::Relaxed);
    until("the attack is over", || attacker.is_finished()).await;
    attacker.join().unwrap();
    let count = state.count();
    println!("{name}: {alone:?} at most, and {beside:?} beside {count} strikes");
    assert!(goes_on, "{name}: the attack goes on meanwhile");
    let most = (TIMES * alone).max(SLACK);
    assert!(beside <= most, "{name}: {beside:?}, and {alone:?} without");
}
