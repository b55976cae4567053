//! Writes docs/benchmarks.md: the table of bars, measured in three runs, with the machine and the
//! tools.

use std::process::Command;

use super::report::{Line, figure};

/// The environment variable with the file to which a run writes its lines, for [`run`].
pub(crate) const LINES: &str = "TOKIO_DOCA_BARS_LINES";

/// The table is written between these marks; all other text of the page is kept.
const MARKS: [&str; 2] = ["<!-- bars -->", "<!-- /bars -->"];

/// Why bars are missed, each in a sentence. `V7#2` is the second line of `V7`.
const WHY: &[(&[&str], &str)] = &[
    (
        &["B1"],
        "Checks, leases and a budget are in it, and none of them can be left out (ADR 0009)",
    ),
    (
        &["B4.time", "B4.instr"],
        "Arming, a turn of the reactor and Tokio's own wake-up stand beside the bare read",
    ),
    (
        &["B6.4k", "B6.tasks"],
        "The 22 ns of B1, over a copy that this CPU does in 38 ns",
    ),
    (
        &["B6.64k"],
        "The 22 ns of B1 and what the bare copy does with its cache",
    ),
    (
        &[
            "B7.busy",
            "B7.event",
            "B8.mpsc.event",
            "B8.mpsc.busy",
            "B8.uring.busy",
        ],
        "A job through the engine's rings would have to take less than half as long",
    ),
    (
        &["N2.shared.cpu"],
        "A side that polls takes from the one CPU what its peer needs",
    ),
    (&["B10.16M", "B10.64M"], "A wake-up is on top of the copy"),
    (
        &["G1.instr"],
        "One type for all operands costs 30 instructions more than twins for local ones did",
    ),
    (
        &["G6.4k", "G6.4k.copy"],
        "A job costs about 80 ns beside the bare crate",
    ),
    (
        &["F1.4k"],
        "Leases of both sides and the opaque copy cost 30 ns over a copy of 27",
    ),
    (
        &["F1.1m"],
        "The opaque copy is no memcpy: a peer may write what it reads",
    ),
    (
        &["N1.one", "N1.one.cpu", "R9.one"],
        "Both sides sleep and wake as TCP's do",
    ),
    (
        &["N1.one.hybrid", "N1.one.hybrid.cpu"],
        "Each side works on half a burst at a time: c871153, which took no lists, made 2.9x on the same machine",
    ),
    (&["N1.4K"], "Each byte is copied twice, as by TCP"),
    (
        &["N8.flight"],
        "Slots, Leases and Bufs of 32,768 jobs are larger than the caches near a CPU",
    ),
    (
        &["N10"],
        "A round trip takes more system calls than a Unix socket's, whose wake-up takes 14 us here, and 44 us on the machine before",
    ),
    (
        &["N10.64"],
        "It varies by a quarter from run to run: the page before had 0.67x to 0.92x",
    ),
    (
        &["R3"],
        "A wake-up passes two epoll descriptors, and the socket's takes 20 to 24 us here",
    ),
    (&["S1.socket"], "The Unix socket takes 18 us here"),
    (
        &["N2", "N2.cpu"],
        "16 connections with 32 echoes under way miss it, and no others",
    ),
    (&["N2.busy"], "TCP sends 32 echoes with one system call"),
    (
        &["R1.write", "R1.read"],
        "Leases, a rule and the opaque copy cost 35 ns over a copy of 27",
    ),
    (
        &["R2", "R2.socket"],
        "A message takes eight locks and 17 locked instructions",
    ),
    (
        &["R4"],
        "A message is copied into a ring and out of it, between two CPUs",
    ),
    (
        &["R5", "R5.unix", "R5.1M", "R5.1M.unix", "R5.cpu"],
        "A window of 384 KiB is sent from one wake-up to the next",
    ),
    (
        &["N4.fds"],
        "Both processes keep the one connection on which they ask each other again",
    ),
    (
        &["N7", "N7.cpu"],
        "Both sides exchange blobs by TCP, and the fabric is asked: 9 switches of threads for TCP's 4 (ADR 0049)",
    ),
    (
        &["R8.rate"],
        "The two CPUs hardly contend for the bare atomic",
    ),
    (
        &["R11"],
        "Each side sets a connection up on threads that may block",
    ),
    (
        &["R11.descriptors", "R11.memory"],
        "Memory of as many streams as there were at once stays: a part of 8 MiB",
    ),
    (
        &["V11"],
        "Each write of a batch has a future of its own, and its Leases, its Slot and its poll",
    ),
    (
        &["V8"],
        "The Slot and the Lease are taken and given back, the endpoint is locked twice; the rest are the gate, the phase and the locks of the poll",
    ),
    (
        &["V10"],
        "The table of receives is locked thrice, the registry and the gate once each, beside the Leases",
    ),
    (
        &["V12.calls"],
        "A few calls at the beginning and the end of the run are counted in",
    ),
    (
        &["V12"],
        "A sleep takes a poll, an arm and a poll again, and the event a turn of its own",
    ),
    (
        &["V2", "V7", "V7#2"],
        "Leases, a Slot, a turn and a poll of the queue stand beside the bare loop",
    ),
    (
        &[
            "B5.10us",
            "B5.100us",
            "B8.uring.event",
            "B12.remote",
            "B12.inventory",
            "G4",
            "G6.1m.copy",
            "F1.vm",
            "N1",
            "N1.cpu",
            "N2.busy.cpu",
            "N10.512",
            "R9",
            "R9.busy",
            "S5",
        ],
        "01ebcaaa met it on another EPYC; of the rows of B12, F1, N1, N2 and S5 a build of before is as far off here",
    ),
];

/// Measures all bars in three runs, and writes the page.
///
/// # Errors
///
/// Returns an error if a bar that was missed in all runs has no reason in [`WHY`]. The page is
/// written all the same.
pub(crate) fn write() -> Result<(), String> {
    // Each run is a process of its own, since some baselines are measured only once per process.
    let runs: Vec<Vec<Line>> = (0..3).map(run).collect::<Result<_, _>>()?;
    let mut bars: Vec<Bar> = Vec::new();
    for line in runs.iter().flatten() {
        match bars.iter_mut().find(|bar| bar.0[0].name == line.name) {
            Some(bar) => bar.0.push(line),
            None => bars.push(Bar(vec![line])),
        }
    }
    let page = support::programs::root().join("docs/benchmarks.md");
    let text = std::fs::read_to_string(&page).map_err(|error| error.to_string())?;
    let [begin, end] = MARKS;
    let (head, rest) = text.split_once(begin).ok_or("the page has no table")?;
    let (_, tail) = rest.split_once(end).ok_or("the table has no end")?;
    let (on, rows): (String, String) = (ran_on(), bars.iter().map(Bar::row).collect());
    let table = format!("{on}\n\n| | three runs | bar | what |\n|---|---|---|---|\n{rows}");
    let written = std::fs::write(&page, format!("{head}{begin}\n\n{table}\n{end}{tail}"));
    written.map_err(|error| error.to_string())?;
    let unexplained = bars
        .iter()
        .filter(|bar| bar.met() == 0 && bar.why().is_none());
    let unexplained: Vec<&str> = unexplained.map(|bar| bar.0[0].name.as_str()).collect();
    match unexplained.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "say in page.rs why these are missed: {}",
            unexplained.join(" ")
        )),
    }
}

/// Measures all bars once, in a child process.
fn run(number: u32) -> Result<Vec<Line>, String> {
    let file = std::env::temp_dir().join(format!("bars-{}-{number}", std::process::id()));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let ended = Command::new(program)
        .arg("--bench")
        .env(LINES, &file)
        .status();
    let ended = ended.map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{ended}: {error}"))?;
    let _ = std::fs::remove_file(&file);
    let lines = text.lines().map(Line::parse).collect::<Option<_>>();
    lines.ok_or_else(|| format!("these are no lines:\n{text}"))
}

/// The lines of one bar, one for each run.
struct Bar<'a>(Vec<&'a Line>);

impl Bar<'_> {
    /// Returns the number of runs that met the bar.
    fn met(&self) -> usize {
        self.0.iter().filter(|line| line.met).count()
    }

    fn why(&self) -> Option<&'static str> {
        let is_it = |(names, _): &&(&[&str], _)| names.contains(&self.0[0].name.as_str());
        WHY.iter().find(is_it).map(|(_, why)| *why)
    }

    fn row(&self) -> String {
        let Line {
            name, unit, bar, ..
        } = self.0[0];
        let measured = self.0.iter().map(|line| line.measured);
        let least = figure(measured.clone().fold(f64::INFINITY, f64::min), unit);
        let most = figure(measured.fold(f64::NEG_INFINITY, f64::max), unit);
        let range = match least == most {
            true => least,
            false => format!("{least} to {most}"),
        };
        let (met, runs) = (self.met(), self.0.len());
        let verdict = match met {
            0 => "missed".to_owned(),
            _ if met == runs => "met".to_owned(),
            _ => format!("met in {met} of {runs}"),
        };
        let why = self.why().filter(|_| met < runs);
        let why = why.map_or(String::new(), |why| format!(". {why}"));
        let escape = |text: &str| {
            let text = text.replace('<', "&lt;").replace('>', "&gt;");
            text.replace('|', "\\|")
        };
        let (bar, what) = (escape(bar), escape(&self.0[runs - 1].what));
        format!("| {name} | {range} | {bar}, {verdict} | {what}{why} |\n")
    }
}

/// Returns a sentence with the commit, the machine and the tools that were measured.
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
