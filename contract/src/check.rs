//! A check as a value, so that the suite and the self-test run the same list.

/// One check of subjects of type `S`.
pub(super) struct Check<S> {
    pub(super) name: &'static str,
    pub(super) fits: fn(&S) -> Fits,
    pub(super) run: fn(S),
}

/// Whether a check is of use for a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fits {
    Yes,
    /// It is of other subjects.
    No,
    /// The device says that it lacks this, and what it says is checked elsewhere.
    Lacks(&'static str),
}

impl Fits {
    pub(super) fn needs(has: bool, what: &'static str) -> Fits {
        if has { Fits::Yes } else { Fits::Lacks(what) }
    }

    pub(super) fn only(of: bool) -> Fits {
        if of { Fits::Yes } else { Fits::No }
    }
}

/// Runs all that fit, until one panics.
pub(super) fn run_all<S: Clone>(checks: &[Check<S>], subject: &S) {
    for check in checks {
        if (check.fits)(subject) == Fits::Yes {
            (check.run)(subject.clone());
        }
    }
}

/// A list of checks: of those that need the same, in groups.
macro_rules! checks {
    ($($fits:expr => $($name:ident),+;)+) => {
        &[$($($crate::check::Check {
            name: stringify!($name),
            fits: $fits,
            run: $name,
        },)+)+]
    };
}
pub(super) use checks;
