//! The list of checks, as values that both the suite and the self-test run.

/// One check for subjects of type `S`.
pub(super) struct Check<S> {
    pub(super) name: &'static str,
    pub(super) fits: fn(&S) -> Fits,
    pub(super) run: fn(S),
}

/// Tells whether a check applies to a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fits {
    Yes,
    /// The check is for other kinds of subject.
    No,
    /// The device declares that it lacks this feature. Other checks test that declaration.
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

/// Runs all checks that fit the subject, until one panics.
pub(super) fn run_all<S: Clone>(checks: &[Check<S>], subject: &S) {
    for check in checks {
        if (check.fits)(subject) == Fits::Yes {
            (check.run)(subject.clone());
        }
    }
}

/// Builds a list of checks, in groups that need the same features.
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
