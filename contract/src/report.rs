//! The suite as a report, which lists the checks that a device passes and those that it fails.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::vec;

use super::check::{Check, Fits};
use super::rig::{DEADLINE, Subject, watched_for};
use super::{Events, Peers, rdma, suite, sync_event};
use tokio_doca::accel::Accel;
use tokio_doca::crc::Crc;
use tokio_doca::device::{Caps, Device, RdmaKind};
use tokio_doca::error::{ErrorKind, Result};
use tokio_doca::sha::Sha;
use tokio_doca::sync_event::{Location, SyncEvent};
use tokio_doca::{Dma, Mode, Rdma, WorkQ};

/// The maximum of [`SelfTest::deadline`].
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs the contract suite on `device`, and reports instead of panicking.
///
/// Returns an iterator that runs one check each time it is advanced. Advancing blocks for as long
/// as the check takes. For each kind of job that the device has, the report runs the checks of the
/// suite. For each other kind, it tries to attach a context, which must be refused. Remote
/// operations run between two endpoints of the device. Two groups of checks are left out: jobs of
/// accelerators, which need a [`Sample`](super::Sample) ([`accel`](super::accel)), and checks that
/// need a second device or help.
///
/// A check that fails panics on a thread of its own, which calls the panic hook of the process.
/// Such a check leaks the memory that the device may still touch. A check that hangs leaves its
/// thread behind. In programs that are built with `panic = "abort"`, the first failure ends the
/// process.
///
/// ```
/// use tokio_doca::Device;
/// use tokio_doca_contract::selftest;
///
/// # fn main() -> Result<(), tokio_doca::Error> {
/// let device = Device::open_default()?;
/// # let mut left = 3;
/// for outcome in selftest(&device) {
///     println!("{outcome}");
///     assert!(!outcome.verdict.is_failure());
/// #   left -= 1;
/// #   if left == 0 { break }
/// }
/// # Ok(())
/// # }
/// ```
pub fn selftest(device: &Device) -> SelfTest {
    SelfTest::new(device, DEADLINE)
}

/// The remaining checks of a [`selftest`], as a lazy `Iterator`.
#[must_use = "an iterator does nothing until it is advanced"]
pub struct SelfTest {
    device: Device,
    trials: vec::IntoIter<Trial>,
}

/// The result of one check of a [`selftest`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The kind of job that was tried: `copies`, `SHA-256 in parts`, `rdma`, and so on.
    pub subject: String,
    /// The name of the check: that of a function of this crate, or `attach` if the device lacks the
    /// kind of job that was tried.
    pub check: &'static str,
    /// The verdict of the check.
    pub verdict: Verdict,
    /// How long the check took.
    pub took: Duration,
}

/// The verdict of a check on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The device fulfills the duties that were checked.
    Passed,
    /// The device declares that it lacks a feature that the check needs; the text names the
    /// feature. If the check is `attach`, it has tried to open a context for that feature, which
    /// was refused. Any other check with this verdict was not run.
    Refused(String),
    /// The device violates a duty. The text begins with the duty's number if the check tests one.
    Failed(String),
}

impl Verdict {
    /// Returns true if the device violates a duty.
    pub fn is_failure(&self) -> bool {
        matches!(self, Verdict::Failed(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.subject, self.check)?;
        match &self.verdict {
            Verdict::Passed => write!(f, "passed")?,
            Verdict::Refused(why) => write!(f, "refused: {why}")?,
            Verdict::Failed(why) => write!(f, "FAILED: {why}")?,
        }
        write!(f, " ({} ms)", self.took.as_millis())
    }
}

impl fmt::Debug for SelfTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelfTest")
            .field("device", &self.device)
            .field("left", &self.trials.len())
            .finish()
    }
}

impl SelfTest {
    fn new(device: &Device, deadline: Duration) -> SelfTest {
        SelfTest {
            device: device.clone(),
            trials: trials(device, deadline).into_iter(),
        }
    }

    /// Returns the subject and the name of the check that [`next`](Iterator::next) will run, so
    /// that a program can show its progress. The [`Outcome`] of the check has the same subject and
    /// name.
    pub fn upcoming(&self) -> Option<(&str, &'static str)> {
        let trial = self.trials.as_slice().first()?;
        Some((&trial.subject, trial.check))
    }

    /// Starts the checks from the beginning, and sets how long each waits for an expected event.
    /// Defaults to [`DEADLINE`]; at most a day. A check in which a call blocks fails after at most
    /// four times as long.
    pub fn deadline(self, deadline: Duration) -> SelfTest {
        // Some checks add to the deadline or multiply it, which must not overflow.
        SelfTest::new(&self.device, deadline.min(DAY))
    }
}

impl Iterator for SelfTest {
    type Item = Outcome;

    fn next(&mut self) -> Option<Outcome> {
        self.trials.next().map(Trial::run)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.trials.size_hint()
    }
}

impl ExactSizeIterator for SelfTest {}

/// One check that is still to be run.
struct Trial {
    subject: String,
    check: &'static str,
    /// Longer than the check itself waits for anything.
    limit: Duration,
    run: Box<dyn FnOnce() -> Verdict + Send>,
}

impl Trial {
    fn run(self) -> Outcome {
        let start = Instant::now();
        let (check, limit, run) = (self.check, self.limit, self.run);
        let watched = AssertUnwindSafe(move || watched_for(check, limit, run));
        let verdict = catch_unwind(watched).unwrap_or_else(|panic| Verdict::Failed(text(&*panic)));
        Outcome {
            subject: self.subject,
            check,
            verdict,
            took: start.elapsed(),
        }
    }
}

/// Returns the message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the check panicked without a text").into()
}

/// Returns all checks, in order.
fn trials(device: &Device, deadline: Duration) -> Vec<Trial> {
    let (limit, all) = (4 * deadline, Vec::new());
    let mut trials = Trials { limit, all };
    for (name, subject) in subjects(device) {
        trials.of(suite::CHECKS, &name, subject.deadline(deadline));
    }
    let caps = device.info().caps();
    if let Some(rdma) = &caps.rdma {
        let peers = Peers::from(device).deadline(deadline);
        trials.of(rdma::CHECKS, "rdma", peers);
        for kind in RdmaKind::ALL {
            if !rdma.supports(kind) {
                trials.lacking("rdma", "rdma_caps_are_kept", format!("no {kind:?}"));
            }
        }
    }
    if caps.sync_event.is_some() {
        let events = Events::from(device).deadline(deadline);
        trials.of(sync_event::CHECKS, "sync events", events);
    }
    for (name, has, attach) in contexts(caps) {
        if !has {
            trials.lacks(device, name, attach);
        }
    }
    trials.all
}

/// Returns the kinds of queue jobs that the device has, with a subject for each.
fn subjects(device: &Device) -> Vec<(String, Subject)> {
    let caps = device.info().caps();
    let mut subjects = Vec::new();
    if caps.dma.is_some() {
        subjects.push(("copies".into(), Subject::copies(device)));
    }
    if let Some(sha) = &caps.sha {
        for &algorithm in &sha.algorithms {
            subjects.push((algorithm.to_string(), Subject::sha(device, algorithm)));
            if sha.sessions {
                let parts = Subject::sha_parts(device, algorithm);
                subjects.push((format!("{algorithm} in parts"), parts));
            }
        }
    }
    if caps.crc.is_some() {
        subjects.push(("CRC-32C".into(), Subject::crc(device)));
        subjects.push(("CRC-32C of copies".into(), Subject::copy_crc(device)));
    }
    subjects
}

type Attach = fn(&Device, &WorkQ) -> Result<()>;

/// Returns all kinds of contexts, and for each whether the device has it and how to attach it.
fn contexts(caps: &Caps) -> [(&'static str, bool, Attach); 6] {
    [
        ("copies", caps.dma.is_some(), |device, workq| {
            Dma::builder(device).attach(workq).map(drop)
        }),
        ("hashes", caps.sha.is_some(), |device, workq| {
            Sha::builder(device).attach(workq).map(drop)
        }),
        ("CRC-32C", caps.crc.is_some(), |device, workq| {
            Crc::builder(device).attach(workq).map(drop)
        }),
        ("accelerator", caps.accel.is_some(), |device, workq| {
            Accel::builder(device).attach(workq).map(drop)
        }),
        ("rdma", caps.rdma.is_some(), |device, workq| {
            Rdma::builder(device).attach(workq).map(drop)
        }),
        ("sync events", caps.sync_event.is_some(), |device, workq| {
            let cpu = Location::Cpu(device);
            let event = SyncEvent::builder().publisher(cpu).subscriber(cpu);
            event.attach(workq).map(drop)
        }),
    ]
}

struct Trials {
    limit: Duration,
    all: Vec<Trial>,
}

impl Trials {
    fn push(
        &mut self,
        subject: &str,
        check: &'static str,
        run: impl FnOnce() -> Verdict + Send + 'static,
    ) {
        self.all.push(Trial {
            subject: subject.into(),
            check,
            limit: self.limit,
            run: Box::new(run),
        });
    }

    /// Adds the checks that fit a subject.
    fn of<S: Clone + Send + 'static>(&mut self, checks: &[Check<S>], name: &str, subject: S) {
        for &Check {
            name: check,
            fits,
            run,
        } in checks
        {
            match fits(&subject) {
                Fits::Yes => {
                    let subject = subject.clone();
                    self.push(name, check, move || {
                        run(subject);
                        Verdict::Passed
                    });
                }
                Fits::No => {}
                Fits::Lacks(what) => self.lacking(name, check, format!("no {what}")),
            }
        }
    }

    /// Adds a check that is not run, because the device lacks the feature that it tests.
    fn lacking(&mut self, subject: &str, check: &'static str, what: String) {
        self.push(subject, check, move || Verdict::Refused(what));
    }

    /// Adds a check that the context for a kind of job that the device lacks is refused.
    fn lacks(&mut self, device: &Device, subject: &str, attach: fn(&Device, &WorkQ) -> Result<()>) {
        let device = device.clone();
        self.push(subject, "attach", move || {
            let workq = WorkQ::builder().mode(Mode::BusyPoll).depth(1).build();
            match attach(&device, &workq.expect("a WorkQ of a legal depth")) {
                Err(error) if error.kind() == ErrorKind::NotSupported => {
                    Verdict::Refused(error.to_string())
                }
                other => Verdict::Failed(format!(
                    "what the capabilities lack must be refused with NotSupported, and not {other:?}"
                )),
            }
        });
    }
}
