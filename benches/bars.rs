//! The bars: performance targets that the library must meet. Each prints a line, `NAME measured bar
//! ok|MISS`, and a text that says what was measured.
//!
//! Each bar is one of three: a ratio within one run to a bare baseline in this folder, a count or
//! the difference of two counts, or the minimum of several rounds in nanoseconds. Rounds of
//! compared cases are interleaved, so that a busy machine slows both.
//!
//! ```text
//! cargo bench --bench bars                 all of them, about a minute
//! cargo bench --bench bars -- B6 B12       some
//! cargo bench --bench bars -- V2
//! cargo bench --bench bars -- --strict     exit status 1 if one is missed
//! cargo bench --bench bars -- --steady     what is the same on any machine, as TOML (.ci/ratchet)
//! cargo bench --bench bars -- --page       all of them three times, and docs/benchmarks.md anew
//! ```
//!
//! Bars that time two CPUs at once, such as B5, N1 and R2, need both to themselves. Most of their
//! lines say so if the CPUs were not free.

#[path = "bars/bench.rs"]
mod bench;
#[path = "bars/bind.rs"]
mod bind;
#[path = "bars/cancel.rs"]
mod cancel;
#[path = "bars/channel.rs"]
mod channel;
#[path = "bars/counts.rs"]
mod counts;
#[path = "bars/crc.rs"]
mod crc;
#[path = "bars/crowd.rs"]
mod crowd;
#[path = "bars/devices.rs"]
mod devices;
#[path = "bars/echo.rs"]
mod echo;
#[path = "bars/engine.rs"]
mod engine;
#[path = "bars/event.rs"]
mod event;
#[path = "bars/fairness.rs"]
mod fairness;
#[path = "bars/graph.rs"]
mod graph;
#[path = "bars/hash.rs"]
mod hash;
#[path = "bars/idle.rs"]
mod idle;
#[path = "bars/inline.rs"]
mod inline;
#[path = "bars/join.rs"]
mod join;
#[path = "bars/large.rs"]
mod large;
#[path = "bars/locked.rs"]
mod locked;
#[path = "bars/many.rs"]
mod many;
#[path = "bars/measure.rs"]
mod measure;
#[path = "bars/memory.rs"]
mod memory;
#[path = "bars/modes.rs"]
mod modes;
#[path = "bars/page.rs"]
mod page;
#[path = "bars/pipe.rs"]
mod pipe;
#[path = "bars/raw.rs"]
mod raw;
#[path = "bars/rdma.rs"]
mod rdma;
#[path = "bars/report.rs"]
mod report;
#[path = "bars/rig.rs"]
mod rig;
#[path = "bars/scenario.rs"]
mod scenario;
#[path = "bars/share.rs"]
mod share;
#[path = "bars/stream.rs"]
mod stream;
#[path = "bars/sync_event.rs"]
mod sync_event;
#[path = "bars/sys.rs"]
mod sys;
#[path = "bars/tool.rs"]
mod tool;
#[path = "bars/two.rs"]
mod two;
#[path = "bars/ucx.rs"]
mod ucx;
#[cfg(feature = "verbs")]
#[path = "bars/verbs.rs"]
mod verbs;

use std::process::ExitCode;

use support::counting;

use report::Report;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

type Bar = fn(&mut Report);

const BARS: &[(&str, Bar)] = &[
    ("B1", inline::b1),
    ("B3", counts::b3),
    ("B4", event::b4),
    ("B5", event::b5),
    ("B6", inline::b6),
    ("B7", engine::b7),
    ("B8", engine::b8),
    ("B10", large::b10),
    ("B11", inline::b11),
    ("B12", memory::b12),
    ("B13", cancel::b13),
    ("B14", fairness::b14),
    ("B15", modes::b15),
    ("B16", modes::b16),
    ("B17", large::b17),
    ("G1", graph::g1),
    ("G2", join::g2),
    ("G3", graph::g3),
    ("G4", graph::g4),
    ("G5", hash::g5),
    ("G6", crc::g6),
    ("N2", many::n2),
    ("F1", share::f1),
    ("F2", share::f2),
    ("F3", share::f3),
    ("F4", share::f4),
    ("N1", echo::n1),
    ("N2.busy", echo::n2),
    ("N3", echo::n3),
    ("N4", idle::n4),
    ("N5", ucx::n5),
    ("N6", stream::n6),
    ("N7", two::n7),
    ("N8.asleep", crowd::n8_asleep),
    ("N8.flight", crowd::n8_flight),
    ("N8.peers", crowd::n8_peers),
    ("N9", bind::n9),
    ("N10", two::n10),
    ("P8", tool::p8),
    ("R1", rdma::r1),
    ("R2", rdma::r2),
    ("R3", rdma::r3),
    ("R4", rdma::r4),
    ("R5", stream::r5),
    ("R6", rdma::r6),
    ("R7", rdma::r7),
    ("R8", rdma::r8),
    ("R9", stream::r9),
    ("R11", stream::r11),
    ("S1", sync_event::s1),
    ("S2", sync_event::s2),
    ("S3", share::s3),
    ("S4", sync_event::s4),
    ("S5", channel::s5),
    #[cfg(feature = "verbs")]
    ("V2", verbs::v2),
    #[cfg(feature = "verbs")]
    ("V7", verbs::v7),
    #[cfg(feature = "verbs")]
    ("V8", verbs::v8),
    ("V10", rdma::v10),
    #[cfg(feature = "verbs")]
    ("V11", verbs::v11),
    #[cfg(feature = "verbs")]
    ("V12", verbs::v12),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, scenario, jobs] = &args[..]
        && mode == "scenario"
    {
        // This process is the child of a bar that counts or measures a scenario.
        scenario::run(scenario, jobs.parse().expect("a number of jobs"));
        return ExitCode::SUCCESS;
    }
    if let [mode, len, count] = &args[..]
        && mode == "peer"
    {
        // This process is a child of the bars of exports.
        let number = |text: &String| text.parse().expect("a number");
        share::peer(number(len), number(count));
        return ExitCode::SUCCESS;
    }
    if let [mode, transport, connections, size] = &args[..]
        && mode == "echo"
    {
        // This process is a child of the bars of echoes.
        let number = |text: &String| text.parse().expect("a number");
        echo::peer(transport, number(connections), number(size));
        return ExitCode::SUCCESS;
    }
    if let [mode, ..] = &args[..]
        && mode == "idle"
    {
        // This process is the peer that the bar of idle connections has started.
        idle::peer();
        return ExitCode::SUCCESS;
    }
    if let [mode, _, messages] = &args[..]
        && mode == "take"
    {
        // This process is a child of the bar of messages one way.
        ucx::peer(messages.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    if let [mode, role, number] = &args[..]
        && mode == "rdma"
    {
        // This process is a child of the bars of remote operations.
        rdma::peer(role, number.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    if let [mode, role, _] = &args[..]
        && mode == "sync"
    {
        // This process is a child of the bars of sync events.
        sync_event::peer(role);
        return ExitCode::SUCCESS;
    }
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let names: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| BARS.iter().all(|bar| bar.0 != name.as_str()))
    {
        let known: Vec<&str> = BARS.iter().map(|bar| bar.0).collect();
        let known = known.join(" ");
        eprintln!("no bar {unknown}; there are: {known}");
        return ExitCode::FAILURE;
    }
    if has("--steady") {
        return match counts::steady() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    if names.is_empty() && !has("--bench") {
        // `cargo test --all-targets` runs this program without `--bench`: then there is nothing to
        // measure.
        println!("bars: run by cargo bench");
        return ExitCode::SUCCESS;
    }
    if has("--page") && names.is_empty() {
        return match page::write() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let measure = || {
        let mut report = Report::begin();
        for &(name, bar) in BARS {
            if names.is_empty() || names.iter().any(|wanted| *wanted == name) {
                bar(&mut report);
            }
        }
        report.end()
    };
    if measure().iter().any(|line| !line.met) && has("--strict") {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
