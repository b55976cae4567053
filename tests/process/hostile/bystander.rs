//! An honest client beside an attack: compares how often the client is served, and how long it
//! waits, in equal times without the attack and with it.
//!
//! `TOKIO_DOCA_HOSTILE_SECONDS` sets the minimum duration of each of the two measurements (default:
//! 0.3 s).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::random::setting;
use support::{in_time, run, until};
use tokio::time::timeout;

/// How often the client must be served in the measurement without the attack.
const LEAST: usize = 10;
/// Factor between the measurements: beside the attack the longest gap may be this many times
/// longer, plus `SLACK`, and the service rate this many times lower, since the attack takes CPU
/// time too.
pub(crate) const TIMES: u32 = 5;
/// Extra time for the longest gap. Listeners of streams and the services of the examples keep each
/// newcomer for 100 ms before they turn it away.
const SLACK: Duration = Duration::from_millis(150);
/// Limits for a loaded machine (`TOKIO_DOCA_TEST_QUIET` is not set): the gap may be this many times
/// longer, or this long, and the rate is not compared.
const LOADED: (u32, Duration) = (20, Duration::from_millis(1500));
/// How many comparisons are made until one succeeds, since the machine may be busy during one.
const ROUNDS: usize = 5;

/// Returns the minimum duration of the measurement without the attack.
fn span() -> Duration {
    let seconds = setting("TOKIO_DOCA_HOSTILE_SECONDS").map(Duration::from_secs);
    seconds.unwrap_or(Duration::from_millis(300))
}

/// The state of an attack, which continues until the measurement is done.
#[derive(Default)]
pub(crate) struct Attack {
    over: AtomicBool,
    strikes: AtomicUsize,
}

impl Attack {
    pub(crate) fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Counts one more strike against the service.
    pub(crate) fn strikes(&self) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.strikes.load(Ordering::Relaxed)
    }
}

/// The measurement of a service by a client.
#[derive(Debug)]
struct Seen {
    longest_gap: Duration,
    served: u32,
    took: Duration,
}

impl Seen {
    /// Visits the service for `span`, and until it was served `least` times.
    async fn by(visit: &mut impl AsyncFnMut(), span: Duration, least: usize) -> Seen {
        let begun = Instant::now();
        let (mut last, mut longest_gap, mut served) = (begun, Duration::ZERO, 0);
        while served < least as u32 || begun.elapsed() < span {
            visit().await;
            let now = Instant::now();
            longest_gap = longest_gap.max(now - last);
            (last, served) = (now, served + 1);
        }
        Seen {
            longest_gap,
            served,
            took: last - begun,
        }
    }

    /// Returns the number of visits per second.
    fn rate(&self) -> f64 {
        f64::from(self.served) / self.took.as_secs_f64()
    }
}

/// Compares an honest client's view of a service without an attack and beside it. Measures after
/// the attack has struck `strikes` times; it starts anew in each round.
///
/// # Panics
///
/// If in each round the client waits much longer beside the attack, or is served much less often.
pub(crate) async fn is_served_beside(
    name: &str,
    strikes: usize,
    visit: impl AsyncFnMut(),
    attack: impl AsyncFn(&Attack) + Send + Sync + 'static,
) {
    is_served_among(name, TIMES, strikes, visit, attack).await;
}

/// Compares a client's view as `is_served_beside` does, for a service that must do as much for each
/// attacker as for the client, which therefore gets one share of `times`.
pub(crate) async fn is_served_among(
    name: &str,
    times: u32,
    strikes: usize,
    mut visit: impl AsyncFnMut(),
    attack: impl AsyncFn(&Attack) + Send + Sync + 'static,
) {
    let attack = Arc::new(attack);
    for round in 1..=ROUNDS {
        let alone = Seen::by(&mut visit, span(), LEAST).await;
        let state = Arc::new(Attack::default());
        let attacker = std::thread::spawn({
            let (attack, state) = (Arc::clone(&attack), Arc::clone(&state));
            move || run(attack(&state))
        });
        let has_begun = || state.count() >= strikes || attacker.is_finished();
        until("the attack has begun", has_begun).await;
        let mut watches = pin!(Seen::by(&mut visit, alone.took, 1));
        let is_quiet = std::env::var_os("TOKIO_DOCA_TEST_QUIET").is_some();
        let most = match is_quiet {
            true => times * alone.longest_gap + SLACK,
            false => (LOADED.0 * alone.longest_gap).max(LOADED.1),
        };
        let in_bounds = timeout(alone.took + most, &mut watches).await;
        let goes_on = !attacker.is_finished();
        state.over.store(true, Ordering::Relaxed);
        let beside = match in_bounds {
            Ok(seen) => seen,
            Err(_) => in_time("the client is served after the attack", watches).await,
        };
        until("the attack is over", || attacker.is_finished()).await;
        attacker.join().unwrap();
        let count = state.count();
        println!("{name}, round {round}: {alone:?}, and beside {count} strikes {beside:?}");
        assert!(goes_on, "{name}: the attack goes on meanwhile");
        let often = !is_quiet || f64::from(times) * beside.rate() >= alone.rate();
        if often && beside.longest_gap <= most {
            return;
        }
    }
    panic!("{name}: in none of {ROUNDS} rounds is the client served as without the attack");
}
