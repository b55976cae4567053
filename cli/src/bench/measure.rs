//! Measures one kind of operation with one size, depth and mode (a [`Point`]), in rounds that
//! alternate with those of its baselines.

use std::time::Duration;

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio_doca::Mode;

use super::load::{Baseline, Failed, Load, Plan};
use super::trace::{self, BEGIN, END};
use crate::failure::{reason, text};

/// The number of rounds of the operation and of each baseline; without baselines, one round. The
/// rounds alternate, so that a busy machine slows all of them.
pub(super) const ROUNDS: u32 = 5;
/// The longest warm-up round, which does not count.
const WARM_UP: Duration = Duration::from_millis(50);

/// What the operations of all rounds took: latency, time, CPU time and allocations.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) latency: Histogram<u64>,
    pub(super) took: Duration,
    pub(super) cpu: Duration,
    pub(super) allocations: u64,
    /// The operations per second of each round.
    rates: Vec<f64>,
}

/// A baseline of a point, which was measured in turn with the kind.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) baseline: Baseline,
    /// The baseline's figures, or why it was not measured.
    pub(super) figures: Result<Figures, String>,
    /// The kind's operations per second divided by the baseline's: the median over the rounds.
    pub(super) ratio: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Point {
    pub(super) size: usize,
    pub(super) depth: usize,
    pub(super) mode: Mode,
    pub(super) figures: Figures,
    pub(super) vs: Vec<Compared>,
    /// The system calls per operation, or why they were not counted. `None` without `--trace`.
    pub(super) calls: Option<Result<f64, String>>,
}

/// Measures a kind and each of its baselines for `length`. A baseline that fails has a row that
/// says why.
pub(super) fn point(
    plan: &Plan,
    vs: &[Baseline],
    length: Duration,
    mut step: impl FnMut(),
) -> Result<Point, String> {
    let rounds = if vs.is_empty() { 1 } else { ROUNDS };
    // If the other side polls in this process, it would take a CPU from the baseline whose turn it
    // is.
    let polls = plan.mode != Mode::EventDriven && plan.peer.is_none();
    let anew = polls && !vs.is_empty();
    let mut kind = Entry::start(plan, length, anew);
    if let Err(why) = &kind.0 {
        return Err(why.clone());
    }
    let with = |&baseline: &Baseline| Plan {
        baseline: Some(baseline),
        ..plan.clone()
    };
    let plans: Vec<Plan> = vs.iter().map(with).collect();
    let others = plans.iter().map(|plan| Entry::start(plan, length, false));
    let mut others: Vec<Entry> = others.collect();
    for _ in 0..rounds {
        kind.round(length / rounds);
        if kind.0.is_err() {
            break;
        }
        for other in &mut others {
            other.round(length / rounds);
        }
        step();
    }
    let figures = kind.end().map_err(|why| match plan.peer {
        Some(_) => format!("it was lost: if bench serve has ended there, start it again ({why})"),
        None => why,
    })?;
    let compared = vs.iter().zip(others).map(|(&baseline, other)| {
        let theirs = other.end();
        let ratio = theirs.as_ref().ok().and_then(|it| ratio(&figures, it));
        Compared {
            baseline,
            figures: theirs,
            ratio,
        }
    });
    let vs = compared.collect();
    Ok(Point {
        size: plan.size,
        depth: plan.depth,
        mode: plan.mode,
        figures,
        vs,
        calls: None,
    })
}

/// The kind or a baseline as one of the entries that take turns, or why it failed.
struct Entry<'a>(Result<(Started<'a>, Figures), String>);

/// What an entry measures its rounds with.
enum Started<'a> {
    Load(Load),
    /// Each round starts a load of its own, after a warm-up round of this duration.
    Anew(&'a Plan, Duration),
}

impl<'a> Entry<'a> {
    fn start(plan: &'a Plan, length: Duration, anew: bool) -> Entry<'a> {
        let warm_up = WARM_UP.min(length / 10);
        let started = match anew {
            true => Ok(Started::Anew(plan, warm_up)),
            false => warm(plan, warm_up).map(Started::Load),
        };
        Entry(started.map(|it| (it, Figures::new())).map_err(why))
    }

    fn round(&mut self, length: Duration) {
        let Ok((started, figures)) = &mut self.0 else {
            return;
        };
        let measured = match started {
            Started::Load(load) => figures.round(load, length),
            Started::Anew(plan, warm_up) => warm(plan, *warm_up).and_then(|load| {
                figures.round(&load, length)?;
                load.end()
            }),
        };
        if let Err(failed) = measured {
            self.0 = Err(why(failed));
        }
    }

    fn end(self) -> Result<Figures, String> {
        let (started, figures) = self.0?;
        if let Started::Load(load) = started {
            load.end().map_err(why)?;
        }
        Ok(figures)
    }
}

/// Starts a load, and runs a warm-up round, which does not count.
fn warm(plan: &Plan, length: Duration) -> Result<Load, Failed> {
    let load = Load::start(plan)?;
    load.round(length)?;
    Ok(load)
}

impl Figures {
    fn new() -> Figures {
        Figures {
            latency: Histogram::new(3).expect("three digits are right"),
            took: Duration::ZERO,
            cpu: Duration::ZERO,
            allocations: 0,
            rates: Vec::new(),
        }
    }

    fn round(&mut self, load: &Load, length: Duration) -> Result<(), Failed> {
        let (cpu, allocations) = (cpu(), allocations());
        trace::mark(BEGIN);
        let round = load.round(length)?;
        trace::mark(END);
        self.cpu += self::cpu().saturating_sub(cpu);
        self.allocations += self::allocations() - allocations;
        self.took += round.took;
        self.rates.push(per(round.latency.len(), round.took));
        let added = self.latency.add(round.latency);
        added.expect("it grows by itself");
        Ok(())
    }

    pub(super) fn operations(&self) -> u64 {
        self.latency.len()
    }

    /// Returns shares of the operations with the nanoseconds within which they ended, from the
    /// fastest to the slowest. The steps get finer towards a share of 1.
    pub(super) fn cdf(&self) -> Vec<(f64, u64)> {
        let mut pairs: Vec<(f64, u64)> = Vec::new();
        for it in self.latency.iter_quantiles(4) {
            let (share, ns) = ((it.quantile() * 1e8).round() / 1e8, it.value_iterated_to());
            match pairs.last_mut() {
                Some(last) if last.1 == ns => last.0 = share,
                _ => pairs.push((share, ns)),
            }
        }
        pairs
    }

    pub(super) fn rate(&self) -> f64 {
        per(self.operations(), self.took)
    }

    pub(super) fn cpu_per_operation(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.operations().max(1) as f64
    }

    pub(super) fn allocations_per_operation(&self) -> f64 {
        self.allocations as f64 / self.operations().max(1) as f64
    }
}

fn per(operations: u64, took: Duration) -> f64 {
    operations as f64 / took.as_secs_f64().max(1e-9)
}

/// Returns the median over the rounds of the rate of `one` divided by that of `other`.
fn ratio(one: &Figures, other: &Figures) -> Option<f64> {
    let rounds = one.rates.iter().zip(&other.rates);
    let mut ratios: Vec<f64> = rounds.map(|(one, other)| one / other).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

pub(super) fn why(failed: Failed) -> String {
    match failed {
        Failed::Device(error) => text(&error),
        Failed::System(error) => reason(&error),
        Failed::Said(text) => text,
    }
}

/// Returns the CPU time of this process, in user mode and in the kernel.
fn cpu() -> Duration {
    let time = |it: TimeVal| {
        let (seconds, micros) = (it.tv_sec().try_into(), it.tv_usec().try_into());
        Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    usage.map_or(Duration::ZERO, |it| {
        time(it.user_time()) + time(it.system_time())
    })
}

/// Counts the allocations of the program. Only `bench` reads the counts.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

fn allocations() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations) as u64
}
