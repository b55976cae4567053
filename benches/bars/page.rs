//! docs/benchmarks.md: the table of bars, of three runs, with what they ran on.

use std::path::Path;
use std::process::Command;

use super::report::{Line, figure};

/// Between these the page is written, and all else in it is kept.
const MARKS: [&str; 2] = ["<!-- bars -->", "<!-- /bars -->"];

/// Why a bar is missed, in a sentence: what was learned.
const WHY: &[(&str, &str)] = &[];

/// Writes the page.
///
/// # Errors
///
/// If a bar that was missed has no reason: the page was written all the same.
pub(crate) fn write(runs: &[Vec<Line>; 3]) -> Result<(), String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md");
    let text = std::fs::read_to_string(&page).map_err(|error| error.to_string())?;
    let (head, rest) = text.split_once(MARKS[0]).ok_or("the page has no table")?;
    let (_, tail) = rest.split_once(MARKS[1]).ok_or("the table has no end")?;
    let mut table = format!(
        "{}\n\n{}\n\n| | three runs | bar | what |\n|---|---|---|---|\n",
        MARKS[0],
        ran_on()
    );
    let mut unexplained = Vec::new();
    for line in &runs[0] {
        let same: Vec<&Line> = runs
            .iter()
            .flatten()
            .filter(|it| it.name == line.name)
            .collect();
        let (row, is_explained) = row(&same);
        table += &row;
        if !is_explained {
            unexplained.push(line.name.as_str());
        }
    }
    let written = std::fs::write(&page, format!("{head}{table}\n{}{tail}", MARKS[1]));
    written.map_err(|error| error.to_string())?;
    match unexplained.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "say in page.rs why these are missed: {}",
            unexplained.join(" ")
        )),
    }
}

/// The row of a bar, and whether it says why if it is missed.
fn row(runs: &[&Line]) -> (String, bool) {
    let Line {
        name, unit, bar, ..
    } = runs[0];
    let ends = runs.iter().map(|line| line.measured);
    let least = figure(ends.clone().fold(f64::INFINITY, f64::min), unit);
    let most = figure(ends.fold(f64::NEG_INFINITY, f64::max), unit);
    let range = match least == most {
        true => least,
        false => format!("{least} to {most}"),
    };
    let why = WHY
        .iter()
        .find(|(missed, _)| missed == name)
        .map(|(_, why)| *why);
    let met = runs.iter().filter(|line| line.met).count();
    let (verdict, why, is_explained) = match met {
        met if met == runs.len() => ("met".to_owned(), "", true),
        0 => ("missed".to_owned(), why.unwrap_or(""), why.is_some()),
        met => (
            format!("met in {met} of {}", runs.len()),
            why.unwrap_or(""),
            true,
        ),
    };
    let what = &runs[runs.len() - 1].what;
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(". {why}")
    };
    let escape = |text: &str| {
        text.replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('|', "\\|")
    };
    let (bar, what) = (escape(bar), escape(what));
    (
        format!("| {name} | {range} | {bar}, {verdict} | {what}{why} |\n"),
        is_explained,
    )
}

/// The commit, the machine and the tools that were measured.
fn ran_on() -> String {
    let ask = |program: &str, args: &[&str]| {
        let said = Command::new(program).args(args).output();
        let said = said.ok().filter(|said| said.status.success());
        said.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    let commit = ask("git", &["rev-parse", "--short", "HEAD"]).unwrap_or("unknown".to_owned());
    let clean = ask("git", &["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    let state = if clean { "" } else { ", with changes" };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu.map_or("an unknown CPU", |name| {
        name.trim_start_matches([' ', '\t', ':'])
    });
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = ask("uname", &["-sr"]).unwrap_or_default();
    let rustc = ask("rustc", &["--version"]).unwrap_or_default();
    let rustc = rustc.split(" (").next().unwrap_or_default();
    format!("Measured of {commit}{state}, on {cpus} CPUs of {cpu}, {kernel}, {rustc}.")
}
