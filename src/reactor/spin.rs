//! Decides how long a future polls (spins) in Hybrid mode, which future of a WorkQ spins, and how
//! long a polling thread continues while it has nothing to do.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::mode::{LOOKS, Policy};

/// The spin of one future: counts its turns, and measures how long it has polled. It reads the
/// clock rarely, since a reading costs as much as a poll.
///
/// After each reading, the turn of the next reading is computed from the time that the turns have
/// taken so far. That turn's number is at most twice the number of the present turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spin {
    /// The nanoseconds on the WorkQ's clock at the first reading, or 0.
    since: u64,
    turns: u32,
    /// The turn of the next reading of the clock; `OVER` once the spin has ended.
    next: u32,
    /// The number of this future's last turn, among the turns of all futures.
    number: u32,
}

/// The turn of the second reading of the clock. `APART` is the maximum number of turns between two
/// readings.
const FIRST: u32 = 4;
const APART: u32 = 64;
const OVER: u32 = u32::MAX;

impl Spin {
    /// Returns true if the future shall stop spinning and sleep: the time has passed, another
    /// future spins, many wait, or spins are in vain. Returns true from then on. Otherwise begins
    /// one more turn. `asleep` returns the number of receives and waits that sleep.
    pub(super) fn is_over(
        &mut self,
        policy: Policy,
        spins: &Spins,
        asleep: impl FnOnce() -> usize,
        now: impl Fn() -> u64,
    ) -> bool {
        let others = spins.turns_since(self.number);
        let goes_on = match self.turns {
            _ if self.next == OVER => return true,
            0 => asleep() <= CROWD && spins.may_begin(&now),
            _ => others == 0,
        };
        if !goes_on {
            if self.turns > 0 && others as usize >= CROWD {
                spins.was_in_vain(policy, now());
            }
            self.next = OVER;
            return true;
        }
        self.number = spins.turn();
        let is_over = self.is_time_over(policy.spin(), &now);
        if is_over {
            spins.was_in_vain(policy, now());
        }
        is_over
    }

    /// Returns the number of polls in this turn: one in the first turn, in which other futures may
    /// begin to spin as well, and then `LOOKS`.
    pub(super) fn looks(&self) -> usize {
        if self.turns > 1 { LOOKS } else { 1 }
    }

    /// Notes that the future has found what it waits for. Any find within the time of the spin
    /// counts as in time: if both sides of a connection sleep, each answer is late by a wake-up,
    /// and if late finds did not count, neither side would spin again.
    pub(super) fn found(&self, policy: Policy, spins: &Spins, now: impl Fn() -> u64) {
        if self.turns <= 1 || self.next == OVER {
            return;
        }
        let now = now();
        if now.saturating_sub(self.since) < policy.spin() {
            spins.was_in_time();
        } else {
            spins.was_in_vain(policy, now);
        }
    }

    /// Returns a spin whose time is counted only after some turns, so that a thread that soon finds
    /// something to do reads no clock.
    pub(super) fn counted_late() -> Spin {
        Spin {
            next: APART,
            ..Spin::default()
        }
    }

    /// Returns true once the time of `spin` nanoseconds has passed, and from then on.
    pub(super) fn is_time_over(&mut self, spin: u64, now: impl FnOnce() -> u64) -> bool {
        if self.next == OVER || spin == 0 {
            return true;
        }
        if self.turns < self.next {
            self.turns += 1;
            return false;
        }
        let now = now();
        if self.since == 0 {
            (self.since, self.turns, self.next) = (now.max(1), 1, FIRST);
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

/// The state of spinning that all futures of a WorkQ share.
///
/// All of it is a hint. A future that does not spin waits for an event, as in event mode, whatever
/// other futures do. So no wake-up depends on a future that spins, or that was dropped or
/// forgotten.
pub(super) struct Spins {
    /// The number of turns of all futures that spin. A future that finds that another future took a
    /// turn after its own turn goes to sleep. So of many waiting futures the last to begin spins,
    /// and it has nothing to give back when it ends.
    turns: AtomicU32,
    /// The number of spins in vain, less the number that were in time; at most `MOST`.
    in_vain: AtomicU32,
    /// The number of waits to come that shall not spin. `until` is the time until which no wait
    /// shall spin; 0 if waits may spin.
    skip: AtomicU32,
    until: AtomicU64,
}

/// The value of `in_vain` up to which waits still spin.
const SPARE: u32 = 2;
/// The maximum of `in_vain`. At this value, the next wait to spin comes after 64 waits that do not,
/// and after 128 times the spin.
const MOST: u32 = SPARE + 7;
/// The maximum number of waiting futures with which a future still spins. With more, spins are in
/// vain: one event completes many waits.
const CROWD: usize = 16;
/// The number of waits between two readings of the clock, to find out whether spins may begin
/// again.
const BETWEEN: u32 = 8;

impl Spins {
    pub(super) fn new() -> Spins {
        Spins {
            turns: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            skip: AtomicU32::new(0),
            until: AtomicU64::new(0),
        }
    }

    /// Returns true if a future that begins to wait shall spin.
    fn may_begin(&self, now: impl Fn() -> u64) -> bool {
        let (skip, until) = (self.skip.load(Relaxed), self.until.load(Relaxed));
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
        } else if until == 0 {
            return true;
        } else if now() >= until {
            self.until.store(0, Relaxed);
            return true;
        } else {
            self.skip.store(BETWEEN, Relaxed);
        }
        false
    }

    /// Begins one more turn, and returns the turn's number.
    fn turn(&self) -> u32 {
        let turn = self.turns.load(Relaxed).wrapping_add(1);
        self.turns.store(turn, Relaxed);
        turn
    }

    /// Returns the number of turns that other futures have taken since `turn`.
    fn turns_since(&self, turn: u32) -> u32 {
        self.turns.load(Relaxed).wrapping_sub(turn)
    }

    fn was_in_time(&self) {
        let in_vain = self.in_vain.load(Relaxed);
        self.in_vain.store(in_vain.saturating_sub(1), Relaxed);
    }

    /// Counts a spin that has ended in a sleep, or was no faster than a sleep. If most spins are in
    /// vain, the next ones are refused.
    fn was_in_vain(&self, policy: Policy, now: u64) {
        let in_vain = (self.in_vain.load(Relaxed) + 1).min(MOST);
        self.in_vain.store(in_vain, Relaxed);
        if in_vain > SPARE {
            let times = 1 << (in_vain - SPARE);
            self.skip.store(times / 2, Relaxed);
            let pause = policy.spin() * u64::from(times);
            self.until.store(now + pause, Relaxed);
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::reactor::mode::Mode;
    use std::cell::Cell;
    use std::time::Duration;

    /// Returns how long a future spins, and how often it reads the clock, if each turn takes `turn`
    /// nanoseconds.
    fn spun(spin: u64, turn: u64) -> (u64, u32) {
        let spin = Mode::Hybrid {
            spin: Duration::from_nanos(spin),
        };
        let policy = Policy::of(spin, "test").expect("in bounds");
        let (mut time, readings) = (1_000_000, Cell::new(0));
        let mut spin = Spin::default();
        while !spin.is_time_over(policy.spin(), || {
            readings.set(readings.get() + 1);
            time
        }) {
            time += turn;
        }
        assert!(spin.is_time_over(policy.spin(), || panic!("it is over")));
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
        // A clock that does not advance for a while.
        let (took, _) = spun(50_000, 1);
        assert!((50_000..50_100).contains(&took), "{took}");
        assert_eq!(spun(0, 1), (0, 0));
    }

    const POLICY_SPIN: u64 = 30_000;

    /// A WorkQ without devices: the time in nanoseconds, the shared state of its futures, and its
    /// mode.
    struct Model(Cell<u64>, Spins, Policy);

    impl Model {
        fn new() -> Model {
            let spin = Duration::from_nanos(POLICY_SPIN);
            let policy = Policy::of(Mode::Hybrid { spin }, "test").expect("in bounds");
            Model(Cell::new(0), Spins::new(), policy)
        }

        fn is_over(&self, spin: &mut Spin, asleep: usize) -> bool {
            let Model(time, spins, policy) = self;
            time.set(time.get() + 200);
            spin.is_over(*policy, spins, || asleep, || time.get())
        }

        /// Waits for a job that takes `takes` nanoseconds: spins, and then sleeps. Returns true if
        /// the wait spun.
        fn wait(&self, takes: u64) -> bool {
            let Model(time, spins, policy) = self;
            let (mut spin, since) = (Spin::default(), time.get());
            let mut spun = false;
            while !self.is_over(&mut spin, 0) {
                spun = true;
                if time.get() - since > takes {
                    spin.found(*policy, spins, || time.get());
                    return true;
                }
            }
            time.set(time.get().max(since + takes));
            spun
        }
    }

    #[test]
    fn long_waits_rarely_spin_and_short_ones_do_again() {
        let model = Model::new();
        for takes in [40_000, 100_000, 10_000_000] {
            let spun = (0..1_000).filter(|_| model.wait(takes)).count();
            assert!((10..50).contains(&spun), "{spun} of {takes} ns");
        }
        // Short waits, once the waits that may not spin have passed.
        let left_out = (0..2_000).take_while(|_| !model.wait(5_000)).count();
        assert!(left_out < 1_000, "{left_out}");
        assert!((0..1_000).all(|_| model.wait(5_000)));
        // Every second wait is long, and yet each wait spins.
        assert!((0..1_000).all(|at| model.wait([5_000, 100_000][at % 2])));
    }

    /// A side that sleeps answers only after its wake-up, and this is still within the peer's spin.
    #[test]
    fn two_sides_that_sleep_spin_again_together() {
        let sides = [Model::new(), Model::new()];
        for side in &sides {
            (0..100).for_each(|_| _ = side.wait(100_000));
        }
        let mut asleep = [true; 2];
        let mut round = || {
            for at in [0, 1] {
                let takes = if asleep[1 - at] { 20_000 } else { 5_000 };
                let now = sides[1 - at].0.get();
                sides[at].0.set(sides[at].0.get().max(now));
                asleep[at] = !sides[at].wait(takes);
            }
            asleep
        };
        (0..2_000).for_each(|_| _ = round());
        assert!((0..100).all(|_| round() == [false; 2]));
    }

    /// Many short waits whose peer has no CPU while they spin.
    #[test]
    fn spins_in_vain_take_little_of_the_time() {
        let model = Model::new();
        let (mut in_spins, since) = (0, model.0.get());
        for _ in 0..100_000 {
            let begun = model.0.get();
            let mut spin = Spin::default();
            while !model.is_over(&mut spin, 0) {}
            if spin.turns > 0 {
                in_spins += model.0.get() - begun;
            }
            model.0.set(model.0.get() + 1_000);
        }
        let share = in_spins as f64 / (model.0.get() - since) as f64;
        assert!(share < 0.02, "{share}");
    }

    #[test]
    fn the_last_to_begin_spins_and_none_among_many() {
        let model = Model::new();
        let mut spins = [Spin::default(); 8];
        let mut round = || spins.each_mut().map(|spin| !model.is_over(spin, 7));
        assert_eq!(round(), [true; 8]);
        for _ in 0..3 {
            let mut last = [false; 8];
            last[7] = true;
            assert_eq!(round(), last);
        }
        assert!(model.is_over(&mut Spin::default(), CROWD + 1));
        assert!(!model.is_over(&mut Spin::default(), CROWD));
        // Futures that begin together count as many even before they sleep.
        let mut spins = [Spin::default(); 64];
        for _ in 0..2 {
            for spin in &mut spins {
                model.is_over(spin, 0);
            }
        }
        assert!(model.is_over(&mut Spin::default(), 0));
    }
}
