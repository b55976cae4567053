//! P8: `tokio-doca bench` measures by the loops of this bench, so both must agree. The variable
//! `TOKIO_DOCA_TOOL` is the path of a release build of the tool; nothing is built here.

use std::process::Command;
use std::time::Duration;

use tokio_doca::{Device, Mode};

use super::bench::Turns;
use super::bench::load::Kind;
use super::measure::Samples;
use super::report::Goal::AtMost;
use super::report::Report;
use super::scenario::{collected, output};

const TOOL: &str = "TOKIO_DOCA_TOOL";
const SIZE: usize = 64;
const ROUNDS: usize = 5;
/// The milliseconds of a round, and of the two runs whose difference gives the instructions of an
/// operation.
const ROUND: u64 = 200;
const FEW: u64 = 1000;
const MANY: u64 = 3000;
const WARM_UP: Duration = Duration::from_millis(20);

/// What is measured, by the names that the tool has.
const KINDS: [(&str, Kind); 3] = [
    ("dma", Kind::Dma),
    ("rdma-write", Kind::RdmaWrite),
    ("stream", Kind::Stream),
];

pub(crate) fn p8(report: &mut Report) {
    let Ok(tool) = std::env::var(TOOL) else {
        report.skip("P8", &format!("{TOOL} names no release build of the tool"));
        return;
    };
    for (name, _) in KINDS {
        let what =
            format!("{name} of {SIZE} bytes, the tool and this bench, the larger over the smaller");
        let time = format!("time of a {what}");
        line(
            report,
            &format!("P8.{name}.time"),
            rates(&tool, name),
            1.3,
            &time,
        );
        let count = format!("instructions of a {what}");
        line(
            report,
            &format!("P8.{name}.instructions"),
            instructions(&tool, name),
            1.1,
            &count,
        );
    }
}

/// One bar of what the tool and this bench have measured.
fn line(report: &mut Report, name: &str, both: Result<[f64; 2], String>, most: f64, what: &str) {
    match both {
        Ok([tool, bench]) => {
            let ratio = (tool / bench).max(bench / tool);
            report.line(
                name,
                ratio,
                AtMost(most),
                "x",
                &format!("{what} ({tool:.0}, {bench:.0})"),
            );
        }
        Err(why) => report.skip(name, &why),
    }
}

/// Returns the operations per second of the tool and of this bench.
fn rates(tool: &str, name: &str) -> Result<[f64; 2], String> {
    let mut samples = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (mut command, samples) in both(tool, name, ROUND, &[])?.into_iter().zip(&mut samples) {
            let [out, _] = output(&mut command)?;
            samples.push(number(&out, "operations_per_second")?);
        }
    }
    Ok(samples.map(|samples| Samples::of(samples).median()))
}

/// Returns the instructions of an operation in the tool and in this bench.
fn instructions(tool: &str, name: &str) -> Result<[f64; 2], String> {
    let options = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
    ];
    let counts = |milliseconds| -> Result<Vec<[f64; 2]>, String> {
        let commands = both(tool, name, milliseconds, &options)?;
        let count = |mut command: Command| {
            let [out, err] = output(&mut command)?;
            Ok([collected(&err)? as f64, number(&out, "operations")?])
        };
        commands.into_iter().map(count).collect()
    };
    let (few, many) = (counts(FEW)?, counts(MANY)?);
    let per = |at: usize| (many[at][0] - few[at][0]) / (many[at][1] - few[at][1]);
    Ok([per(0), per(1)])
}

/// Returns the commands of the tool and of this bench that measure for this time. Each runs under
/// the command `before`, if that is not empty.
fn both(
    tool: &str,
    name: &str,
    milliseconds: u64,
    before: &[&str],
) -> Result<[Command; 2], String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let seconds = format!("{}", milliseconds as f64 / 1e3);
    let size = SIZE.to_string();
    let begin = |program: &str| {
        let mut words = before.iter().copied().chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        command
    };
    let mut theirs = begin(tool);
    theirs.args([
        "bench",
        name,
        "--size",
        &size,
        "--duration",
        &seconds,
        "--json",
    ]);
    let mut ours = begin(&this.to_string_lossy());
    ours.args([
        "scenario",
        &format!("tool-{name}"),
        &milliseconds.to_string(),
    ]);
    Ok([theirs, ours])
}

/// The first number with this key, in JSON.
fn number(json: &str, key: &str) -> Result<f64, String> {
    let rest = json
        .split_once(&format!("\"{key}\": "))
        .map(|(_, rest)| rest);
    let number = rest.and_then(|it| it.split([',', '\n', ' ']).next()?.parse().ok());
    number.ok_or_else(|| format!("no {key} in {json}"))
}

/// Measures for a number of milliseconds, in a child of the bar, and prints what the tool prints of
/// it.
pub(crate) fn run(scenario: &str, milliseconds: u64) {
    let mut kinds = KINDS.into_iter();
    let kind = kinds.find(|(name, _)| scenario == format!("tool-{name}"));
    let kind = kind.unwrap_or_else(|| panic!("no scenario {scenario}")).1;
    let device = Device::open_default().expect("the device that the tool takes");
    let turns = Turns::start(&device, Mode::EventDriven, (kind, None), (SIZE, 1));
    let mut turns = turns.expect("operations");
    turns.round_of(WARM_UP);
    turns.operations = 0;
    let each = turns.round_of(Duration::from_millis(milliseconds));
    let (operations, rate) = (turns.operations, 1e9 / each);
    turns.end();
    println!("\"operations\": {operations}, \"operations_per_second\": {rate}");
}
