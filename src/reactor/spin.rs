//! How long a future polls in Hybrid mode.

use super::mode::Policy;

/// How long a Hybrid Op has polled, by few readings of the clock: one costs as much as a poll.
///
/// After each reading the turn of the next is reckoned from the time that the turns took so far, at
/// most twice as many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spin {
    /// Nanoseconds on the WorkQ's clock at the first turn.
    since: u64,
    turns: u32,
    /// The turn of the next reading.
    next: u32,
}

/// The turn of the second reading, and the most turns between two.
const FIRST: u32 = 4;
const APART: u32 = 64;
const OVER: u32 = u32::MAX;

impl Spin {
    /// One more turn found nothing: whether it was the last. Once the time is over it stays so.
    pub(super) fn is_over(&mut self, policy: Policy, now: impl FnOnce() -> u64) -> bool {
        let spin = policy.spin();
        if self.next == OVER || spin == 0 {
            return true;
        }
        if self.turns < self.next {
            self.turns += 1;
            return false;
        }
        let now = now();
        if self.turns == 0 {
            *self = Spin {
                since: now,
                turns: 1,
                next: FIRST,
            };
            return false;
        }
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= spin {
            self.next = OVER;
            return true;
        }
        let left = u128::from(spin - elapsed) * u128::from(self.turns) / u128::from(elapsed.max(1));
        let most = self.turns.min(APART);
        let ahead = u32::try_from(left).unwrap_or(most).clamp(1, most);
        self.turns = self.turns.saturating_add(1).min(OVER - 1 - APART);
        self.next = self.turns + ahead - 1;
        false
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::reactor::mode::Mode;
    use std::cell::Cell;
    use std::time::Duration;

    /// How long it spins, and how often it looks at the clock, if each turn takes so long.
    fn spun(spin: u64, turn: u64) -> (u64, u32) {
        let spin = Mode::Hybrid {
            spin: Duration::from_nanos(spin),
        };
        let policy = Policy::of(spin, "test").expect("in bounds");
        let (mut time, readings) = (1_000_000, Cell::new(0));
        let mut spin = Spin::default();
        while !spin.is_over(policy, || {
            readings.set(readings.get() + 1);
            time
        }) {
            time += turn;
        }
        assert!(spin.is_over(policy, || panic!("it is over")));
        (time - 1_000_000, readings.get())
    }

    #[test]
    fn a_spin_is_bounded_with_few_readings_of_the_clock() {
        // Alone, 200 ns a turn.
        let (took, readings) = spun(30_000, 200);
        assert!((30_000..33_000).contains(&took), "{took}");
        assert!(readings <= 10, "{readings}");
        // Among many tasks, a turn that takes longer than the whole spin.
        let (took, readings) = spun(30_000, 100_000);
        assert!(took <= 400_000, "{took}");
        assert!(readings <= 2, "{readings}");
        // A clock that stands still for a while.
        let (took, _) = spun(50_000, 1);
        assert!((50_000..50_100).contains(&took), "{took}");
        assert_eq!(spun(0, 1), (0, 0));
    }
}
