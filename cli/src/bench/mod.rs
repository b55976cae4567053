//! `tokio-doca bench`: measures latency, rate and CPU time of operations. Both sides are in this
//! process, or the other side is where `bench serve` runs (module `peer`).
//!
//! The module `load` has the measuring loops. A thread measures point after point, while the
//! runtime of the main thread waits for its results and for signals.

mod about;
mod compare;
mod html;
mod kind;
mod limits;
mod load;
mod measure;
mod peer;
mod range;
mod report;
mod short;
mod trace;
mod view;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use indicatif::{ProgressBar, ProgressStyle};
use tokio_doca::Mode;

use crate::failure::{Failure, Result, cannot};
use crate::open;
use crate::output::{print, print_json};
use crate::signals::Signals;
use crate::target::Target;
use crate::transfer::TokenArgs;
use about::Run;
use kind::{BASELINES, KINDS, MODES, named};
use load::far::Meet;
use load::{Baseline, Kind, Plan};
use measure::Point;
use peer::Peer;
use range::{Numbers, depths, sizes};
use report::{Report, Row};

const AFTER: &str = "\
Kinds: dma sha crc rdma-send rdma-read rdma-write rdma-atomic sync-event channel
stream, and graph, which is 4 copies in a row. Of rdma-send, channel and stream
an operation is a message and its answer; of sync-event, a set that ends a wait,
and one back. The rdma kinds and stream can have a --peer.

A range doubles. Each size, depth and mode is a point. --vs measures in turn
with it memcpy, spawn_blocking, io_uring (of dma, sha, crc, graph), or the same
messages by tcp, unix (of rdma-send, channel, stream; with a --peer tcp alone).
B/s counts one way; cpu/op is of all threads; alloc is allocations of each;
ratio is op/s over those of that row: above 1 the kind is faster.
Limits: 256 points, 1 GiB of memory. hybrid polls for 50 us before it sleeps.";

#[derive(clap::Args)]
#[command(after_help = AFTER, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// What is measured: see below
    #[arg(hide_possible_values = true, value_parser = named(&KINDS), required = true)]
    kind: Option<Kind>,
    /// Bytes: 64, 64,4K or 64..1M [default: by kind]
    #[arg(short, long, value_name = "SIZES", value_parser = sizes)]
    size: Option<Numbers>,
    /// Jobs in flight a thread: 1,8 or 1..256
    #[arg(long, value_name = "DEPTHS", value_parser = depths, default_value = "1")]
    depth: Numbers,
    /// event, busy-poll, hybrid, or a list
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "event"
    )]
    #[arg(hide_possible_values = true, value_parser = named(&MODES))]
    mode: Vec<Mode>,
    /// Threads, each with a runtime and WorkQ
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = threads)]
    threads: usize,
    /// Time of each point, 0.01 to 60
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    duration: Duration,
    /// What to compare with: see below
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[arg(hide_possible_values = true, value_parser = named(&BASELINES))]
    vs: Vec<Baseline>,
    /// Where bench serve runs, HOST[:PORT]
    #[arg(long, value_name = "ADDR", default_value = SELF)]
    peer: String,
    #[command(flatten)]
    token: TokenArgs,
    /// Count system calls too, under strace
    #[arg(long)]
    trace: bool,
    /// The device [default: the first that copies]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with charts, for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(short, long, requires = "html")]
    force: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Compare what --json has printed of two runs
    Compare(compare::Args),
    /// Be the other side for --peer of other hosts
    Serve(peer::ServeArgs),
}

/// The value of `--peer` if the other side is in this process.
const SELF: &str = "self";

/// The most threads of a run.
const THREADS: usize = 64;
/// The most points of a run.
const POINTS: usize = 256;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|it| (0.01..=60.0).contains(it));
    let wrong = || "write 0.01 to 60, for example 0.5".to_owned();
    Ok(Duration::from_secs_f64(seconds.ok_or_else(wrong)?))
}

fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|it| (1..=THREADS).contains(it));
    threads.ok_or_else(|| format!("write 1 to {THREADS}"))
}

pub(crate) fn run(args: &Args) -> Result {
    match (&args.command, args.kind) {
        (Some(Command::Compare(args)), _) => compare::run(args),
        (Some(Command::Serve(args)), _) => peer::serve(args),
        (None, Some(kind)) => of_kind(args, kind),
        (None, None) => Err(Failure::Usage("name a kind, for example dma".to_owned())),
    }
}

fn of_kind(args: &Args, kind: Kind) -> Result {
    let vs = unique(&args.vs);
    limits::comparable(kind, &vs)?;
    let threads = args.threads;
    let peer = args.peer(kind, &vs, threads)?;
    let sizes = args.sizes(kind)?;
    let device = open::device(args.device.as_deref())?;
    limits::check(kind, device.info(), (&sizes, &args.depth.0), threads)?;
    let mut plans = Vec::new();
    for mode in unique(&args.mode) {
        for &size in &sizes {
            plans.extend(args.depth.0.iter().map(|&depth| Plan {
                kind,
                baseline: None,
                peer: peer.clone().map(|it| it as Arc<dyn Meet>),
                device: device.clone(),
                mode,
                size,
                depth,
                threads,
            }));
        }
    }
    let all = plans.len();
    if all > POINTS {
        let text = format!("{all} points, and bench measures {POINTS} at most: name fewer");
        return Err(Failure::Usage(text));
    }
    let mut run = Run::of(device.info(), args.device.is_none());
    let (target, points, failed) =
        open::runtime()?.block_on(measured(args, (plans, vs, peer.clone())))?;
    let cannot = |why, peer: &Peer| format!("cannot measure with {}: {why}", peer.host);
    let failed = failed.map(|why| peer.as_deref().map_or(why.clone(), |it| cannot(why, it)));
    run.about.peer = peer.and_then(|it| it.about.get().cloned());
    let report = Report {
        kind: kind.name(),
        device: device.info().name().to_owned(),
        provider: device.info().provider(),
        threads,
        seconds: args.duration.as_secs_f64(),
        not_run: all - points.len(),
        points: points.iter().map(|it| Row::of(kind, it)).collect(),
        run,
    };
    let failed = failed.or_else(|| report.interrupted());
    // A page without points is not written.
    let target = target.filter(|_| !report.points.is_empty());
    let written = target.map_or(Ok(()), |it| {
        write(it, &html::page(&report, failed.as_deref()))
    });
    match args.json {
        true => print_json(&report)?,
        false => print(&report.text())?,
    }
    written?;
    failed.map_or(Ok(()), |why| Err(Failure::Failed(why)))
}

fn write(target: Target, page: &str) -> Result {
    let written = (&*target.file).write_all(page.as_bytes());
    written.map_err(cannot("write", &target.dst))?;
    target.publish()
}

/// Returns the values of `list` in order, without duplicates.
fn unique<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut unique = Vec::new();
    for it in list {
        if !unique.contains(it) {
            unique.push(*it);
        }
    }
    unique
}

impl Args {
    /// Returns the peer that `--peer` names; `None` if the other side is in this process.
    fn peer(&self, kind: Kind, vs: &[Baseline], threads: usize) -> Result<Option<Arc<Peer>>> {
        if self.peer != SELF {
            limits::with_peer(kind, vs, &self.depth.0, threads)?;
            let peer = Peer::new(&self.peer, self.token.read()?)?;
            return Ok(Some(Arc::new(peer)));
        }
        self.token.unused()?;
        Ok(None)
    }

    fn sizes(&self, kind: Kind) -> Result<Vec<usize>> {
        let (name, usual) = (kind.name(), kind.usual_size());
        match &self.size {
            Some(_) if kind.has_one_size() => Err(Failure::Usage(format!(
                "{name} always has {usual} bytes: leave --size out"
            ))),
            Some(sizes) => Ok(sizes.0.clone()),
            None => Ok(vec![usual]),
        }
    }
}

/// A report of the measuring thread.
enum Step {
    /// The point of this name has begun.
    Begun(String),
    /// A round of the current point has ended.
    Round,
    Ended(Box<Result<Point, String>>),
}

/// What to measure: the points, the baselines of each point, and the peer of all points.
type What = (Vec<Plan>, Vec<Baseline>, Option<Arc<Peer>>);

/// The results of a run: the file for its page, its points, and why a point has failed.
type Measured = (Option<Target>, Vec<Point>, Option<String>);

/// Measures the points, until a signal comes or a point fails.
async fn measured(args: &Args, what: What) -> Result<Measured> {
    // Catch signals first, so that none leaves the temporary file of the page behind.
    let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
    let target = args.html.as_ref();
    let target = target.map(|dst| Target::create_made(dst, args.force));
    let target = target.transpose()?;
    let (plans, vs, _) = &what;
    let bar = bar(plans.len(), !vs.is_empty());
    let mut steps = steps(what, args.duration, args.trace)?;
    let (mut points, mut failed) = (Vec::new(), None);
    while failed.is_none() {
        let step = tokio::select! {
            // Results that came before a signal are kept.
            biased;
            step = steps.next() => step,
            () = signals.recv() => None,
        };
        match step {
            Some(Step::Begun(name)) => bar.set_message(name),
            Some(Step::Round) => bar.inc(1),
            Some(Step::Ended(ended)) => match *ended {
                Ok(point) => points.push(point),
                Err(why) => failed = Some(why),
            },
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok((target, points, failed))
}

/// Starts the measuring thread, and returns its reports. The process does not wait for it to end.
fn steps(
    (plans, vs, peer): What,
    length: Duration,
    traces: bool,
) -> Result<UnboundedReceiver<Step>> {
    let (step, steps) = unbounded();
    let run = move || {
        for plan in &plans {
            let name = format!("{} bytes, depth {}", plan.size, plan.depth);
            // After a signal the receiver is gone.
            if step.unbounded_send(Step::Begun(name)).is_err() {
                return;
            }
            let mut point = measure::point(plan, &vs, length, || {
                let _ = step.unbounded_send(Step::Round);
            });
            if let (Ok(point), true) = (&mut point, traces) {
                point.calls = Some(trace::calls(plan, peer.as_deref()));
            }
            let ends = point.is_err();
            let _ = step.unbounded_send(Step::Ended(Box::new(point)));
            if ends {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("measures".to_owned());
    thread
        .spawn(run)
        .map_err(cannot("start", "a thread".as_ref()))?;
    Ok(steps)
}

/// Makes a progress bar of rounds, shown if stderr is a terminal.
fn bar(points: usize, compares: bool) -> ProgressBar {
    let rounds = if compares { measure::ROUNDS.into() } else { 1 };
    let template = "measuring {bar:30} {percent:>3} % {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is right");
    let bar = ProgressBar::new(points as u64 * rounds);
    bar.with_style(style.progress_chars("#>-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_bounded() {
        assert_eq!(seconds("0.05"), Ok(Duration::from_millis(50)));
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        for text in ["", "0", "-1", "61", "nan", "inf", "1s", "1e9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
