//! Tests `tokio-doca check`.

use serde_json::Value;

use crate::support::{Folder, Ran, interrupted, threads_named};

const GROUPS: [&str; 6] = [
    "Copies (DMA)",
    "Hashes (SHA)",
    "CRC-32C",
    "RDMA",
    "Sync events",
    "Jobs of its own (accel)",
];

/// Runs the tool with these environment variables.
fn run(args: &[&str], variables: &[(&str, &str)]) -> Ran {
    let folder = Folder::new();
    let mut command = folder.command(args);
    command.envs(variables.iter().copied());
    Ran::of(command.output().unwrap())
}

/// Returns the counts of the summary line: checks, passed, not supported, failed.
#[track_caller]
fn counts(text: &str) -> [usize; 4] {
    let line = text.lines().find(|line| line.contains(" checks in "));
    let line = line.unwrap_or_else(|| panic!("no line has the counts: {text}"));
    let count = |words: &str| {
        let (before, _) = line.split_once(words).unwrap();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    [" checks in ", " passed", " not supported", " failed"].map(count)
}

/// Returns the block of lines that users paste into a report.
#[track_caller]
fn block(text: &str) -> &str {
    let (_, block) = text.split_once("\n```text\n").unwrap();
    block.strip_suffix("```\n").unwrap()
}

#[test]
fn the_software_device_fails_no_check() {
    let ran = run(&["check"], &[]);
    assert_eq!(ran.err, "");
    let text = ran.done();
    for group in GROUPS {
        assert!(text.contains(&format!("{group}\n")), "{group}: {text}");
    }
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let [checks, passed, lacking, failed] = counts(&text);
    assert_eq!((passed + 1, lacking, failed), (checks, 1, 0), "{text}");
    let lacks = "\n  not supported  device pf0 has no accelerator ";
    assert!(text.contains(lacks), "{text}");
    let block = block(&text);
    assert!(
        block.contains("\ndevice       pf0, the default\n"),
        "{block}"
    );
    assert!(block.contains("\nprovider     soft\n"), "{block}");
    assert!(block.contains(&format!("{passed} passed")), "{block}");
    assert!(!text.contains("FAILED"), "{text}");
}

#[test]
fn json_has_a_row_for_each_check_and_their_counts() {
    let limits = [("TOKIO_DOCA_SOFT_LIMITS", "bluefield3")];
    let ran = run(&["check", "pf1", "--json"], &limits);
    assert_eq!(ran.err, "");
    let report: Value = serde_json::from_str(&ran.done()).unwrap();
    assert_eq!(
        (&report["device"], &report["default"]),
        (&"pf1".into(), &false.into())
    );
    assert_eq!(report["settings"][0], "TOKIO_DOCA_SOFT_LIMITS=bluefield3");
    let rows = report["rows"].as_array().unwrap();
    let summary = &report["summary"];
    assert_eq!(summary["checks"], rows.len());
    for state in ["passed", "not_supported", "failed"] {
        let count = rows.iter().filter(|row| row["state"] == state).count();
        assert_eq!(summary[state], count, "{state}");
    }
    assert_eq!(
        (&summary["failed"], &summary["not_run"]),
        (&0.into(), &0.into())
    );
    let seconds: f64 = rows
        .iter()
        .map(|row| row["seconds"].as_f64().unwrap())
        .sum();
    assert!(seconds > 0.0 && seconds <= summary["seconds"].as_f64().unwrap());
    for group in GROUPS {
        assert!(rows.iter().any(|row| row["group"] == group), "{group}");
    }
    for row in rows {
        let has_why = row["why"].is_string();
        assert_eq!(has_why, row["state"] != "passed", "{row}");
    }
}

// The first job of the first check, a copy, fails. The waits are not supported: a BlueField-2 does
// not wait for sync events.
#[test]
fn a_failed_check_is_told_and_the_others_are_made() {
    let ran = run(
        &["check", "pf0"],
        &[
            ("TOKIO_DOCA_SOFT_LIMITS", "bluefield2"),
            ("TOKIO_DOCA_SOFT_FAULTS", "error:IoFailed"),
        ],
    );
    let text = ran.out.clone();
    let [checks, passed, lacking, failed] = counts(&text);
    assert_eq!((failed, passed + lacking), (1, checks - 1), "{text}");
    assert!(lacking > 1 && checks > 100, "{text}");
    let lacks = "waits end once and not before: no waits by the device";
    assert!(text.contains(lacks), "{text}");
    for group in GROUPS {
        assert!(text.contains(&format!("{group}\n")), "{group}: {text}");
    }
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let block = block(&text);
    let failure = "\nFAILED       copies: a device says the same of itself: duty 1: ";
    assert!(block.contains(failure), "{block}");
    assert!(block.contains("\ndevice       pf0\n"), "{block}");
    // stderr has a single sentence, without the panic of the check.
    ran.refused(1, &["a check failed: copies: a device says the same"]);
}

#[test]
fn a_signal_ends_it_and_the_report_says_what_is_missing() {
    let folder = Folder::new();
    let mut command = folder.command(["check"]);
    // The first check waits for a job that never ends.
    command.env("TOKIO_DOCA_SOFT_FAULTS", "lost");
    let ran = interrupted(command, |threads| {
        !threads_named(threads, "self-test").is_empty()
    });
    let [checks, ..] = counts(&ran.out);
    let left = format!("{checks} not made");
    assert!(ran.out.contains(&left), "{}", ran.out);
    let said = format!("interrupted: {checks} of {checks} checks were not made");
    ran.refused(1, &[&said]);
}
