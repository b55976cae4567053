//! Tests the page of `tokio-doca bench --html`. Its texts and numbers are checked by unit tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use roxmltree::{Document, ParsingOptions};

use crate::support::{Folder, Ran, interrupted, threads_named};

const SHORT: [&str; 2] = ["--duration", "0.01"];

fn run(folder: &Folder, args: &[&str]) -> Ran {
    folder.run([&["bench"], args, &SHORT].concat())
}

/// Returns the texts of a page, after a check that the page is well-formed.
#[track_caller]
fn texts(folder: &Folder, name: &str) -> Vec<String> {
    let page = String::from_utf8(folder.read(name)).unwrap();
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(&page, options).unwrap();
    let texts = document.descendants().filter_map(|it| it.text());
    texts.map(str::to_owned).collect()
}

#[test]
fn the_page_says_what_was_measured_where() {
    let folder = Folder::new();
    let args = [
        "stream", "--size", "64,4K", "--depth", "1,2", "--vs", "unix",
    ];
    let out = run(&folder, &[&args[..], &["--html", "a.html"]].concat());
    assert_eq!(out.err, "");
    assert!(out.done().starts_with("stream by pf0 (soft), event"));
    let texts = texts(&folder, "a.html");
    let has = |wanted: &str| texts.iter().any(|it| it.contains(wanted));
    for wanted in [
        "stream by pf0 (soft)",
        "tokio-doca 0.1.0",
        " s each, 20",
        "tokio-doca bench stream --size 64,4K --depth 1,2 --vs unix --html a.html",
        "Operations per second by size",
        "Latency of 99%, p99 by depth",
        "not measured: system calls",
    ] {
        assert!(has(wanted), "{wanted}");
    }
    assert_eq!(folder.names(), ["a.html"]);
}

#[test]
fn the_arguments_stay_text() {
    let folder = Folder::new();
    let name = "<img src=x onerror=alert(1)>'&.html";
    run(&folder, &["dma", "--html", name]).done();
    let shown = "'<img src=x onerror=alert(1)>'\\''&.html'";
    assert!(texts(&folder, name).iter().any(|it| it.contains(shown)));
}

#[test]
fn no_file_is_replaced_unless_it_is_wanted() {
    let folder = Folder::new();
    folder.write("a", "mine");
    fs::create_dir(folder.path("folder")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path("link")).unwrap();
    for (name, part) in [
        ("a", "a exists: --force replaces it"),
        ("link", "link exists: --force replaces it"),
        ("folder", "folder is a directory"),
        ("/dev/null", "no regular file"),
        ("none/a", "No such file or directory"),
    ] {
        let ran = run(&folder, &["dma", "--html", name]);
        // It fails before anything is measured.
        assert_eq!(ran.out, "");
        ran.refused(1, &[part]);
    }
    assert_eq!(folder.read("a"), b"mine");
    run(&folder, &["dma", "--html", "a", "--force"]).done();
    assert!(folder.read("a").starts_with(b"<!DOCTYPE html>"));
    run(&folder, &["dma", "--force"]).refused(2, &["--html"]);
    assert_eq!(folder.names(), ["a", "folder", "link"]);
}

#[test]
fn a_run_without_points_leaves_no_file() {
    let folder = Folder::new();
    let mut command = folder.command(["bench", "dma", "--html", "a.html"]);
    command
        .args(SHORT)
        .env("TOKIO_DOCA_SOFT_FAULTS", "error:IoFailed");
    Ran::of(command.output().unwrap()).refused(1, &["input/output operation failed"]);
    assert!(folder.names().is_empty());
}

#[test]
fn a_signal_ends_it_with_a_page_of_the_points_that_have_ended() {
    let folder = Folder::new();
    let args = ["bench", "dma", "--size", "1..128M", "--duration", "1"];
    let mut command = folder.command(args);
    command.args(["--html", "a.html"]);
    // Each point has a thread named `bench`. Once there is another such thread, the first point has
    // ended. A new thread at first has the name of the thread that started it.
    let mut first: Option<PathBuf> = None;
    let ran = interrupted(command, |threads| {
        let benches = || threads_named(threads, "bench").into_iter().min();
        let ended = first.as_ref().is_some_and(|it| !it.exists());
        let another = ended && benches().is_some();
        first = first.take().or_else(benches);
        another
    });
    ran.refused(1, &["interrupted: "]);
    let texts = texts(&folder, "a.html");
    assert!(
        texts
            .iter()
            .any(|it| it.contains("The run ended early: interrupted: "))
    );
    assert_eq!(folder.names(), ["a.html"]);
}

/// Opens a page in a browser, and returns the messages on its console.
fn console(folder: &Folder, page: &str, width: u32, dark: bool) -> Vec<String> {
    let scheme = if dark { 0 } else { 1 };
    let profile = folder.path("profile");
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--window-size={width},2400"))
        .arg(format!(
            "--screenshot={}",
            folder.path("page.png").display()
        ))
        .arg(format!("file://{}", folder.path(page).display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let png = folder.read("page.png");
    // The width in the header of the PNG.
    assert_eq!(png[16..20], width.to_be_bytes());
    fs::remove_file(folder.path("page.png")).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let console = said.lines().filter(|line| line.contains("CONSOLE"));
    console.map(str::to_owned).collect()
}

#[test]
#[ignore = "needs chromium"]
fn needs_chromium_the_page_opens_without_a_word_on_the_console() {
    let folder = Folder::new();
    folder.write("bad.html", "<script>nothing()</script>");
    assert_ne!(console(&folder, "bad.html", 360, false), [""; 0]);
    let args = [
        "dma", "--size", "64..1M", "--depth", "1,8", "--vs", "memcpy",
    ];
    run(&folder, &[&args[..], &["--html", "a.html"]].concat()).done();
    for (width, dark) in [(360, false), (360, true), (1200, false), (1200, true)] {
        assert_eq!(console(&folder, "a.html", width, dark), [""; 0]);
    }
}
