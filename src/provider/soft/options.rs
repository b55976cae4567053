//! The settings of a provider, which its devices and engines read.

use std::time::Duration;

use super::topology::View;

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) inline_limit: usize,
    pub(super) defer: bool,
    pub(super) engine_spin: Duration,
    pub(super) engines: usize,
    /// The CPUs of the engines; `None` for the CPUs of the main thread.
    pub(super) engine_cpus: Option<Vec<usize>>,
    pub(super) view: View,
}
