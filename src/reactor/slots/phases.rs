//! The phases of a slot, and sets of them. DESIGN.md ("A slot") draws their transitions, and
//! names the party that makes each.

pub(in crate::reactor) const FREE: u64 = 0;
pub(in crate::reactor) const PENDING: u64 = 1;
pub(in crate::reactor) const REGISTERING: u64 = 2;
pub(in crate::reactor) const ORPHAN: u64 = 3;
pub(in crate::reactor) const COMPLETING: u64 = 4;
pub(super) const COMPLETING_ORPHAN: u64 = 5;
pub(in crate::reactor) const DONE: u64 = 6;
pub(super) const WAITING: u64 = 7;
pub(super) const POSTED: u64 = 8;
pub(super) const RUNNING: u64 = 9;
pub(super) const PHASE: u64 = u32::MAX as u64;

/// A set of phases, one bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::reactor) struct Phases(u32);

const fn bit(phase: u64) -> u32 {
    1 << phase
}

impl Phases {
    /// Returns the phase of a slot with this `state` word, as a set of one.
    pub(in crate::reactor) fn of(state: u64) -> Phases {
        Phases(1 << (state & PHASE))
    }

    /// Returns the set of these phases.
    pub(in crate::reactor) const fn any<const N: usize>(phases: [u64; N]) -> Phases {
        let (mut all, mut at) = (0, 0);
        while at < N {
            all |= bit(phases[at]);
            at += 1;
        }
        Phases(all)
    }

    /// Returns true if all phases of this set are also in `others`.
    pub(super) fn is_in(self, others: Phases) -> bool {
        self.0 & !others.0 == 0
    }

    /// Returns true if a device may have the job of a slot in one of these phases.
    pub(in crate::reactor) fn any_in_flight(self) -> bool {
        self.0 & !(bit(FREE) | bit(DONE)) != 0
    }

    /// Returns true if a slot is `DONE`: its result was not fetched yet.
    pub(super) fn is_done(self) -> bool {
        self.0 & bit(DONE) != 0
    }

    /// Returns true if a device may have a job of an operation (dropped or not) or of a `Run`, as
    /// opposed to one that the caller's own loop has posted.
    pub(in crate::reactor) fn any_op(self) -> bool {
        self.0 & !(bit(FREE) | bit(DONE) | bit(POSTED)) != 0
    }

    /// Returns true if a device may have a job whose completion no future polls for by itself: its
    /// operation sleeps or was dropped, or the job belongs to a `Run`.
    pub(in crate::reactor) fn any_asleep(self) -> bool {
        self.0 & (bit(WAITING) | bit(ORPHAN) | bit(RUNNING)) != 0
    }
}

/// The phases in which a slot's job may complete.
pub(super) const IN_FLIGHT: Phases =
    Phases::any([PENDING, REGISTERING, WAITING, ORPHAN, POSTED, RUNNING]);

/// Returns true if the job of a slot with this `state` word may complete.
#[inline(always)]
pub(in crate::reactor) fn in_flight(state: u64) -> bool {
    Phases::of(state).is_in(IN_FLIGHT)
}

/// The phase of a slot that was not filled.
pub(super) const EMPTY: Phases = Phases::any([FREE]);
/// The phases of a filled slot whose job the device may not have accepted yet.
pub(super) const SUBMITTING: Phases = Phases::any([PENDING, POSTED, RUNNING]);
/// The phase of a slot whose job has completed.
pub(super) const OVER: Phases = Phases::any([DONE]);
/// The phases in which the operation writes its waker, and a reaper leaves the cell alone.
pub(super) const REGISTERS: Phases = Phases::any([REGISTERING, DONE]);
/// The phases in which `take_waker` takes the waker. The operation may be dropped meanwhile.
pub(super) const TAKES_WAKER: Phases = Phases::any([REGISTERING, ORPHAN]);
/// The phases in which the reaper takes a completed job's waker. The operation may be dropped then.
pub(super) const COMPLETES: Phases = Phases::any([COMPLETING, COMPLETING_ORPHAN]);
