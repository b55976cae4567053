//! Tests `tokio-doca bench compare` with reports that a device has made, and with files that are no
//! reports.

use serde_json::{Value, json};

use crate::support::{Folder, Ran};

fn compare(folder: &Folder, args: &[&str]) -> Ran {
    folder.run([&["bench", "compare"], args].concat())
}

fn point(size: u64, p50: u64, rate: f64) -> Value {
    json!({
        "size": size, "depth": 1, "mode": "event", "operations_per_second": rate,
        "latency_ns": { "p50": p50, "p99": p50.saturating_mul(2) },
        "vs": [
            { "name": "memcpy", "operations_per_second": 1e6, "latency_ns": { "p50": 1, "p99": 2 } },
            { "name": "spawn_blocking", "not_measured": "EPERM" },
        ],
    })
}

fn report(points: &[Value]) -> Value {
    json!({
        "kind": "dma", "device": "pf0", "provider": "soft", "threads": 1, "points": points,
        "run": { "date": "2026-01-02T03:04:05Z" },
    })
}

/// Makes a folder with the reports `a.json` and `b.json`.
fn folder(a: &Value, b: &Value) -> Folder {
    let folder = Folder::new();
    folder.write("a.json", a.to_string());
    folder.write("b.json", b.to_string());
    folder
}

#[test]
fn what_bench_prints_is_compared_with_itself() {
    let folder = Folder::new();
    let args = [
        "bench",
        "stream",
        "--depth",
        "1,2",
        "--vs",
        "tcp",
        "--json",
        "--duration",
        "0.01",
    ];
    folder.write("a.json", folder.run(args).done());
    let json = compare(
        &folder,
        &["a.json", "a.json", "--json", "--fail-above", "0"],
    )
    .done();
    let comparison: Value = serde_json::from_str(&json).unwrap();
    let points = comparison["points"].as_array().unwrap();
    assert_eq!((points.len(), &comparison["only_in_a"]), (2, &json!([])));
    for row in points {
        for row in [row, &row["vs"][0]] {
            for name in ["p50_ns", "p99_ns", "operations_per_second"] {
                assert_eq!(row[name]["percent"], 0.0, "{row}");
                assert!(row[name]["a"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
}

#[test]
fn changes_are_a_table_and_points_of_one_run_are_named() {
    let (a, b) = (point(64, 1000, 1e6), point(64, 1100, 8e5));
    let folder = folder(
        &report(&[a, point(4096, 1, 1.0)]),
        &report(&[point(8, 1, 1.0), b]),
    );
    let text = compare(&folder, &["a.json", "b.json"]).done();
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let words: Vec<Vec<&str>> = text
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    let row = "64 1 1us 1.10us +10.0% 2us 2.20us +10.0% 1M 800k -20.0%";
    let row: Vec<&str> = row.split(' ').collect();
    assert!(words.contains(&row), "{text}");
    assert!(text.contains("A: a.json, by pf0 (soft), 2026-01-02T03:04:05Z\n"));
    assert!(text.contains("\ndma, event, 1 thread\n"), "{text}");
    assert!(
        text.contains("only in A: 4K bytes, depth 1, event\n"),
        "{text}"
    );
    assert!(
        text.contains("only in B: 8 bytes, depth 1, event\n"),
        "{text}"
    );
    assert_eq!(text.matches("\n  memcpy ").count(), 1, "{text}");
    assert!(!text.contains("spawn_blocking"), "{text}");
}

#[test]
fn a_rate_that_fell_by_more_than_the_limit_fails() {
    let of = |rates: [f64; 2]| report(&[point(64, 1, rates[0]), point(128, 1, rates[1])]);
    let folder = folder(&of([1e6, 1e6]), &of([2e6, 8e5]));
    for limit in ["20", "100"] {
        compare(&folder, &["a.json", "b.json", "--fail-above", limit]).done();
    }
    let ran = compare(&folder, &["a.json", "b.json", "--fail-above", "19.9"]);
    assert!(ran.out.contains("-20.0%"), "{}", ran.out);
    let parts = [
        "1 of 2 rates fell by more than 19.9 %",
        "128 bytes, depth 1, event: 1M to 800k",
    ];
    ran.refused(1, &parts);
    let limit = ["a.json", "b.json", "--fail-above", "101"];
    compare(&folder, &limit).refused(2, &["0 to 100"]);
}

#[test]
fn runs_that_have_nothing_in_common_are_refused() {
    let mut other = report(&[point(64, 1, 1.0)]);
    let folder = folder(&other, &report(&[point(128, 1, 1.0)]));
    let both = ["a.json", "b.json"];
    compare(&folder, &both).refused(1, &["no point in common", "equal sizes"]);
    other["threads"] = json!(2);
    folder.write("b.json", other.to_string());
    let parts = ["a.json has dma by 1 thread", "b.json has dma by 2 threads"];
    compare(&folder, &both).refused(1, &parts);
    other["kind"] = json!("sha");
    folder.write("b.json", other.to_string());
    compare(&folder, &both).refused(1, &["sha by 2 threads", "of one kind"]);
}

#[test]
fn a_file_that_is_no_report_is_refused_in_one_sentence() {
    let good = report(&[point(64, 1, 1.0)]);
    let folder = folder(&good, &good);
    let with = |pointer: &str, value: Value| {
        let mut report = good.clone();
        *report.pointer_mut(pointer).unwrap() = value;
        report.to_string().into_bytes()
    };
    let many = vec![point(64, 1, 1.0); 257];
    for (bytes, part) in [
        (b"".to_vec(), "line 1 is no JSON"),
        (b"\xff\xfe".to_vec(), "no JSON"),
        (vec![b'['; 1 << 20], "line 1 "),
        (br#"{"rows":[]}"#.to_vec(), "something else"),
        (b"\n[1,2]".to_vec(), "line 2 has something else"),
        (with("/points/0/size", json!(-1)), "something else"),
        (with("/points/0/size", json!(1.5)), "something else"),
        (
            with("/points/0/operations_per_second", json!(-1)),
            "none that bench measures",
        ),
        (
            with("/points/0/mode", json!("\u{1b}[31m")),
            "a mode that bench has not",
        ),
        (
            with("/points/0/vs/0/name", json!("x")),
            "a baseline that bench has not",
        ),
        (with("/kind", json!("x")), "a kind that bench has not"),
        (
            with("/points", json!(many)),
            "257 points, and a run 256 at most",
        ),
        (
            good.to_string().replace("1.0,", "1e999,").into_bytes(),
            "no JSON",
        ),
        (vec![b' '; (16 << 20) + 1], "longer than 16 MiB"),
    ] {
        folder.write("b.json", bytes);
        for names in [["a.json", "b.json"], ["b.json", "a.json"]] {
            compare(&folder, &names).refused(1, &["b.json", part]);
        }
    }
    compare(&folder, &["a.json", "none"]).refused(1, &["cannot read none: No such file"]);
    compare(&folder, &["a.json", "/dev/zero"]).refused(1, &["/dev/zero is not a regular file"]);
    compare(&folder, &["a.json"]).refused(2, &["<B.json>"]);
}

#[test]
fn the_widest_rows_fit_and_a_text_of_the_file_does_nothing_to_a_terminal() {
    let hour = 3_600_000_000_000;
    let mut widest = report(&[point(134_217_727, hour / 2, 1e12), point(1, 0, 0.0)]);
    widest["points"][0]["depth"] = json!(4096);
    widest["device"] = json!("\u{1b}[31m ".repeat(1000));
    let mut other = widest.clone();
    other["points"][0]["operations_per_second"] = json!(1);
    other["points"][0]["latency_ns"]["p50"] = json!(1);
    let folder = folder(&widest, &other);
    for names in [["a.json", "b.json"], ["b.json", "a.json"]] {
        let text = compare(&folder, &names).done();
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains("134217727   4096"), "{text}");
    }
}
