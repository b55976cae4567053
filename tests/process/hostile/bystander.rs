//! An honest client beside an attack: how often it is served and how long it waits, in the same
//! time without the attack and with it.
//!
//! `TOKIO_DOCA_HOSTILE_SECONDS` sets how long the client watches at least, without the attack and
//! with it (0.3 s).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::random::setting;
use support::{in_time, run, until};
use tokio::time::timeout;

/// How often the client is served at least while it watches without the attack.
const LEAST: usize = 10;
/// Beside the attack the longest gap is at most this many times the one without it, and this much
/// longer, and the rate at which the client is served is at most this many times lower: the attack
/// takes CPUs as well.
pub(crate) const TIMES: u32 = 5;
/// Longer than the 100 ms for which listeners of streams and the services of the examples turn
/// away none that has just come.
const SLACK: Duration = Duration::from_millis(150);
/// If other programs run on this machine (`TOKIO_DOCA_TEST_QUIET` is not set), the gap may be this
/// many times the one without the attack, or this long, and the rate says nothing.
const LOADED: (u32, Duration) = (20, Duration::from_millis(1500));
/// How often both are compared, until they agree once: a machine may be busy during one of them.
const ROUNDS: usize = 5;

/// Returns how long the client watches at least without the attack.
fn span() -> Duration {
    let seconds = setting("TOKIO_DOCA_HOSTILE_SECONDS").map(Duration::from_secs);
    seconds.unwrap_or(Duration::from_millis(300))
}

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

/// What a client sees of a service.
#[derive(Debug)]
struct Seen {
    longest_gap: Duration,
    served: u32,
    took: Duration,
}

impl Seen {
    /// Has the client visit the service for so long, and until it was served `least` times.
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

    /// Returns how often the client was served in a second.
    fn rate(&self) -> f64 {
        f64::from(self.served) / self.took.as_secs_f64()
    }
}

/// Compares what an honest client sees of a service without an attack and beside it. The attack has
/// begun once it has struck `strikes` times, and begins anew in each round.
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

/// The same, if the service has as much to do for each of the attackers as for the client, which
/// then has one share of `times`.
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
