//! `tokio-doca doctor`: finds what in this system keeps the library or its adapters from working
//! well.
//!
//! A check is a function of a [`View`], which reads files below a root. Only without `--root` may a
//! check also ask the running system for information that is in no file.

mod cpu;
mod kernel;
mod memory;
mod rdma;
mod row;
mod view;

use std::path::PathBuf;

use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output::{print, print_json};
use row::{Found, Row, State};
use view::View;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read proc, sys and dev below this folder instead of /
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The name of a row, and the function that checks it.
type Check = (&'static str, fn(&View) -> Found);

const CHECKS: [Check; 16] = [
    ("memlock", memory::memlock),
    ("huge pages", memory::huge_pages),
    ("CPUs", cpu::cpus),
    ("isolated CPUs", cpu::isolated),
    ("clock source", cpu::clock),
    ("kernel", kernel::kernel),
    ("kernel features", kernel::features),
    ("RDMA modules", rdma::modules),
    ("RDMA devices", rdma::devices),
    ("RDMA files", rdma::files),
    ("RDMA ports", rdma::ports),
    ("RDMA addresses", rdma::addresses),
    ("other namespaces", rdma::namespace),
    ("/dev/shm", memory::shm),
    ("namespaces", kernel::namespaces),
    ("memfd_create", memory::memfd),
];

/// The whole output.
#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
}

pub(crate) fn run(args: &Args) -> Result {
    let view = View::new(args.root.as_deref())?;
    let rows = CHECKS.map(|(name, check)| Row::new(name, check(&view)));
    let report = Report { rows: rows.into() };
    match args.json {
        true => print_json(&report)?,
        false => print(&report.text())?,
    }
    match &*report.named(State::Problem) {
        [] => Ok(()),
        [one] => Err(Failure::Failed(format!("there is a problem: {one}"))),
        many => Err(Failure::Failed(format!(
            "there are {} problems: {}",
            many.len(),
            many.join(", ")
        ))),
    }
}

impl Report {
    /// Returns the names of the rows with this state.
    fn named(&self, state: State) -> Vec<&str> {
        let rows = self.rows.iter().filter(|row| row.finding.state == state);
        rows.map(|row| row.name).collect()
    }

    fn text(&self) -> String {
        self.rows.iter().map(Row::text).collect()
    }
}
