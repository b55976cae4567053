//! `tokio-doca check`: tries every operation of a device, by the self-test of the contract suite.
//! With `--peer` it tries the connection to another host that runs `check serve` (`peer`).

mod peer;
mod report;
mod row;
mod view;

use std::panic;
use std::thread;
use std::time::Instant;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use indicatif::{ProgressBar, ProgressStyle};
use tokio_doca_contract::{Outcome, SelfTest, selftest};

use crate::about::About;
use crate::failure::{Failure, Result, cannot};
use crate::open;
use crate::output::{print, print_json};
use crate::signals::Signals;
use crate::transfer::TokenArgs;
use report::Report;
use row::{Row, words};

const AFTER: &str = "\
Exit codes: 0 none failed, 1 a check failed or a signal ended it, 2 wrong usage.
The end of the output is a block to paste into a report. With --peer it tries
the connection to a host, not the operations of a device: at most 10 s for each
step, and 60 s for 16 MiB each way. Nothing is encrypted. Hosts beyond the
loopback demand a token.";

#[derive(clap::Args)]
#[command(after_help = AFTER, args_conflicts_with_subcommands = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The device's name or PCI address [default: the first that copies]
    device: Option<String>,
    /// The host where check serve runs, HOST or HOST:PORT
    #[arg(long, value_name = "ADDR")]
    peer: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Answer check --peer of other hosts
    Serve(peer::ServeArgs),
}

pub(crate) fn run(args: &Args) -> Result {
    match (&args.command, &args.peer) {
        (Some(Command::Serve(args)), _) => peer::serve(args),
        (None, Some(peer)) => peer::run(args, peer),
        (None, None) => {
            args.token.unused()?;
            of_device(args)
        }
    }
}

fn of_device(args: &Args) -> Result {
    let device = open::device(args.device.as_deref())?;
    let about = About::of(device.info(), args.device.is_none());
    let begun = Instant::now();
    let test = selftest(&device);
    let checks = test.len();
    let rows = open::runtime()?.block_on(rows(test))?;
    finish(
        &Report::new(about, rows, checks, begun.elapsed()),
        args.json,
    )
}

/// Prints a report, and fails if one of its checks failed.
fn finish(report: &Report, json: bool) -> Result {
    match json {
        true => print_json(report)?,
        false => print(&report.text())?,
    }
    report
        .failure()
        .map_or(Ok(()), |why| Err(Failure::Failed(why)))
}

/// A message from the thread that runs the checks.
enum Step {
    /// The check with this name begins.
    Begun(String),
    Ended(Outcome),
}

/// Runs the checks, and returns their rows. If a signal interrupts them, returns the rows of the
/// checks that have ended.
async fn rows(test: SelfTest) -> Result<Vec<Row>> {
    let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
    let bar = bar(test.len() as u64);
    let (mut steps, mut rows) = (steps(test)?, Vec::new());
    loop {
        let step = tokio::select! {
            step = steps.next() => step,
            () = signals.recv() => None,
        };
        match step {
            Some(Step::Begun(name)) => bar.set_message(name),
            Some(Step::Ended(outcome)) => {
                rows.push(Row::of(outcome));
                bar.inc(1);
            }
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Starts a thread that runs the checks one after the other. The process does not wait for the
/// thread.
fn steps(mut test: SelfTest) -> Result<UnboundedReceiver<Step>> {
    let main = thread::current().id();
    let usual = panic::take_hook();
    // A check that fails panics on a thread of its own. Its row has the reason, so nothing is
    // printed here.
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() == main {
            usual(info);
        }
    }));
    let (step, steps) = unbounded();
    let run = move || {
        while let Some((subject, check)) = test.upcoming() {
            let begun = Step::Begun(format!("{subject}: {}", words(check)));
            let ended = match step.unbounded_send(begun) {
                Ok(()) => test.next().map(Step::Ended),
                Err(_) => return,
            };
            let _ = ended.map(|ended| step.unbounded_send(ended));
        }
    };
    let thread = thread::Builder::new().name("self-test".to_owned());
    thread
        .spawn(run)
        .map_err(cannot("start", "a thread".as_ref()))?;
    Ok(steps)
}

/// Makes a progress line on stderr, which is shown only if stderr is a terminal.
fn bar(checks: u64) -> ProgressBar {
    let template = "checking {pos:>3} of {len} {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is right");
    ProgressBar::new(checks).with_style(style)
}
