//! Tests of the examples for a host and its DPU: each runs two processes on its own simulated card.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use support::programs::*;
use support::{block_until, run as run_async};
use tokio_doca::soft::{Soft, Topology};
use tokio_doca::{ErrorKind, Mmap, channel::Channel, mem::Access};

/// A card that no other test uses, so that its Channels meet no others, and a folder.
struct Card {
    folder: Folder,
    serial: String,
}

impl Card {
    fn new() -> Card {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Card {
            folder: Folder::new(),
            serial: format!("T{}X{number}", std::process::id()),
        }
    }

    fn side(&self, view: &str, name: &str) -> Command {
        let mut command = example(name);
        command
            .env("TOKIO_DOCA_SOFT", view)
            .env("TOKIO_DOCA_SOFT_CARD", &self.serial);
        command
    }

    fn host(&self, name: &str) -> Command {
        self.side("host", name)
    }

    fn dpu(&self, name: &str) -> Command {
        self.side("dpu", name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}

/// A process that is killed at the end of its test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// Returns the next line of the process.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, out)
            .read_line(&mut line)
            .unwrap();
        line
    }

    /// Waits until the process ends. Returns its status and the rest of its output.
    fn ends(mut self) -> (Option<i32>, String, String) {
        let mut status = None;
        block_until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        let out = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        let err = std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap();
        (status.unwrap().code(), out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn assert_good((status, out, err): (Option<i32>, String, String)) -> String {
    assert_eq!((status, &err[..]), (Some(0), ""), "{out}");
    out
}

/// Asserts that an example ended with status 1 and one line on stderr that contains all of `parts`.
#[track_caller]
fn assert_failed(name: &str, (status, _, err): (Option<i32>, String, String), parts: &[&str]) {
    assert_eq!((status, err.lines().count()), (Some(1), 1), "{name}: {err}");
    assert!(err.starts_with(&format!("{name}: ")), "{err}");
    for part in parts {
        assert!(err.contains(part), "{part:?} is not in {err}");
    }
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let texts = [&output.stdout, &output.stderr].map(|bytes| text(bytes).to_owned());
    let [out, err] = texts;
    (output.status.code(), out, err)
}

const LISTENS: &str = "Started Listening, waiting for new connection\n";

#[test]
fn client_and_server_exchange_their_texts_on_the_function_that_is_named() {
    for (function, texts) in [
        (None, None),
        (Some("0b:00.2"), Some(("ein Gruß\n", "zurück \u{1b}"))),
    ] {
        let card = Card::new();
        let (mut server, mut client) = (card.dpu("cc_server"), card.host("cc_client"));
        if let Some(function) = function {
            server.args(["--rep-pci", function, "-l", "50"]);
            client.args(["-p", function]);
        }
        if let Some((asked, answered)) = texts {
            server.args(["-t", answered]);
            client.args(["--text", asked]);
        }
        let mut server = Running::start(&mut server);
        assert_eq!(server.line(), LISTENS);
        let said = assert_good(ended(run(&mut client)));
        let heard = assert_good(server.ends());
        match texts {
            None => {
                assert_eq!(said, "Server response: Message from the server\n");
                assert_eq!(heard, "Received message: Message from the client\n");
            }
            // Control characters are escaped, so that the text cannot control a terminal.
            Some(_) => {
                assert_eq!(said, "Server response: zurück \\u{1b}\n");
                assert_eq!(heard, "Received message: ein Gruß\\n\n");
            }
        }
    }
}

#[test]
fn a_client_that_finds_no_server_and_a_side_that_is_the_other_say_so() {
    let card = Card::new();
    let alone = ended(run(&mut card.host("cc_client")));
    assert_failed("cc_client", alone, &["no service listens"]);
    let mut server = Running::start(&mut card.dpu("cc_server"));
    assert_eq!(server.line(), LISTENS);
    let other = ended(run(card.host("cc_client").args(["-p", "0b:00.2"])));
    assert_failed("cc_client", other, &["no service listens"]);
    let second = ended(run(&mut card.dpu("cc_server")));
    assert_failed("cc_server", second, &["listens", "already"]);
    let on_the_dpu = ended(run(card.dpu("cc_client").args(["-p", "03:00.0"])));
    assert_failed("cc_client", on_the_dpu, &["port of the DPU"]);
    let on_the_host = ended(run(card.host("cc_server").args(["-p", "0b:00.0"])));
    assert_failed("cc_server", on_the_host, &["lists no representors"]);
    let nobody = ended(run(card.dpu("cc_server").args(["-r", "0b:00.7"])));
    assert_failed("cc_server", nobody, &["0b:00.7", "hpf0vf0"]);
    let long = ended(run(card.host("cc_client").args(["-t", &"x".repeat(4081)])));
    assert_failed("cc_client", long, &["4081", "4080"]);
    let out = server.ends();
    assert_failed("cc_server", out, &["the peer has disconnected"]);
}

#[test]
fn every_flag_is_in_the_help_and_what_is_no_flag_is_refused() {
    for (name, flags) in [
        ("cc_client", &["-p", "--pci-addr", "-t", "--text"][..]),
        ("cc_server", &["-p", "-r", "--rep-pci", "-t"]),
        ("file_transfer_host", &["-f", "--file", "-p", "--progress"]),
        ("file_transfer_dpu", &["-f", "-p", "-r", "--progress"]),
    ] {
        let help = assert_good(ended(run(example(name).arg("-h"))));
        for flag in flags.iter().chain(&["-l", "-v", "-h", "usage: "]) {
            assert!(help.contains(flag), "{flag} is not in the help of {name}");
        }
        let version = assert_good(ended(run(example(name).arg("--version"))));
        assert_eq!(version, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        for wrong in [&["--nonsense"][..], &["-p"], &["-p", ""], &["-l", "loud"]] {
            let (status, out, err) = ended(run(example(name).args(wrong)));
            assert_eq!((status, &out[..], err.lines().count()), (Some(2), "", 1));
            assert!(
                err.contains(wrong[0]) && err.contains(&format!("{name} -h")),
                "{err}"
            );
        }
    }
    for name in ["file_transfer_host", "file_transfer_dpu"] {
        assert_failed(name, ended(run(&mut example(name))), &["which file?"]);
    }
}

/// Runs both sides of a transfer to their ends, starting with the host or with the DPU.
fn transfer(card: &Card, files: [&Path; 2], defer: &str, host_first: bool) -> [Output; 2] {
    let sides = [
        card.host("file_transfer_host"),
        card.dpu("file_transfer_dpu"),
    ];
    let [mut host, mut dpu] = sides;
    host.arg("-f").arg(files[0]);
    dpu.arg("-f")
        .arg(files[1])
        .env("TOKIO_DOCA_SOFT_DEFER", defer);
    thread::scope(|scope| {
        let (first, last) = if host_first {
            (&mut host, &mut dpu)
        } else {
            (&mut dpu, &mut host)
        };
        let first = scope.spawn(|| run(first));
        let last = run(last);
        let first = first.join().unwrap();
        if host_first {
            [first, last]
        } else {
            [last, first]
        }
    })
}

#[test]
fn files_of_all_sizes_go_both_ways_and_have_the_sum_that_is_said() {
    const MIB: usize = 1 << 20;
    for (number, len) in [0, 1, MIB, MIB + 1, 9 * MIB + 17].into_iter().enumerate() {
        for to_the_dpu in [true, false] {
            let card = Card::new();
            let (src, bytes) = card.folder.file("src", len);
            let dst = card.path("dst");
            let files = match to_the_dpu {
                true => [&src, &dst],
                false => [&dst, &src],
            };
            let defer = ["0", "1"][number % 2];
            let outputs = transfer(&card, files.map(|file| &**file), defer, number % 2 == 0);
            let [host, dpu] = outputs.map(|output| assert_good(ended(output)));
            let says = format!("{len} bytes in ");
            let sum = format!("CRC-32C {:08x}\n", crc32c::crc32c(&bytes));
            for (out, sends) in [(host, to_the_dpu), (dpu, !to_the_dpu)] {
                let what = if sends { "sent: " } else { "received: " };
                let right = out.starts_with(&format!("{what}{says}")) && out.ends_with(&sum);
                assert!(right, "{out}");
            }
            assert!(fs::read(&dst).unwrap() == bytes, "{len} bytes differ");
            let left = fs::read_dir(&card.folder.0).unwrap().count();
            assert_eq!(left, 2, "the two files");
        }
    }
}

#[test]
fn a_bar_is_drawn_where_it_is_wanted() {
    let card = Card::new();
    let (src, _) = card.folder.file("src", 3 << 20);
    let mut dpu = card.dpu("file_transfer_dpu");
    let dpu = Running::start(dpu.arg("-f").arg(card.path("dst")));
    let mut host = card.host("file_transfer_host");
    let out = assert_good(ended(run(host.arg("--progress").arg("-f").arg(&src))));
    assert!(out.contains("] 100 %\nsent: "), "{out:?}");
    assert!(
        out.contains("\r[#############") && out.contains("33 %"),
        "{out:?}"
    );
    assert!(!assert_good(dpu.ends()).contains('\r'));
}

#[test]
fn what_cannot_be_transferred_is_said_on_both_sides_and_leaves_nothing() {
    let card = Card::new();
    let (src, _) = card.folder.file("src", 100);
    let (other, theirs) = card.folder.file("other", 200);
    let (none, nowhere) = (card.path("none"), card.path("no/folder"));
    for (files, at_fault, part) in [
        ([&src, &other], 1, "other: it is there already"),
        ([&none, &nowhere], 1, "folder: no such file"),
        ([&src, &nowhere], 1, "folder: No such file"),
    ] {
        let outputs = transfer(&card, files.map(|file| &**file), "0", false);
        let names = ["file_transfer_host", "file_transfer_dpu"];
        for (side, (name, output)) in names.into_iter().zip(outputs).enumerate() {
            let whose = if side == at_fault {
                ": "
            } else {
                ": the other side: "
            };
            assert_failed(name, ended(output), &[whose, part]);
        }
    }
    assert!(fs::read(&other).unwrap() == theirs, "it was written over");
    assert_eq!(fs::read_dir(&card.folder.0).unwrap().count(), 2);
}

#[test]
fn a_transfer_that_breaks_off_leaves_no_file() {
    let card = Card::new();
    let (src, _) = card.folder.file("src", 9 << 20);
    let dst = card.path("dst");
    let host = || {
        let mut host = card.host("file_transfer_host");
        host.arg("-f").arg(&src);
        host
    };
    let dpu = |script: &str| {
        let mut dpu = card.dpu("file_transfer_dpu");
        dpu.arg("-f")
            .arg(&dst)
            .env("TOKIO_DOCA_SOFT_FAULTS", script);
        Running::start(&mut dpu)
    };
    let is_clean = || {
        let names = fs::read_dir(&card.folder.0).unwrap();
        assert_eq!(names.count(), 1, "what is sent");
    };
    for (script, part) in [
        ("pass*4 error:IoFailed:0x88", "vendor code 0x88"),
        ("pass*2 queue", "queue of this WorkQ"),
    ] {
        let dpu = dpu(script);
        let told = ended(run(&mut host()));
        assert_failed("file_transfer_host", told, &["the other side: ", part]);
        assert_failed("file_transfer_dpu", dpu.ends(), &[part]);
        is_clean();
    }
    // Kills the host during a slow copy.
    let dpu = dpu("pass*2 delay:500ms");
    let part = |name: &str| name.ends_with(".part");
    let mut host = Running::start(&mut host());
    block_until("it has begun", || {
        let mut names = fs::read_dir(&card.folder.0).unwrap();
        names.any(|name| {
            let name = name.unwrap();
            part(name.file_name().to_str().unwrap())
                && name.metadata().is_ok_and(|file| file.len() > 0)
        })
    });
    host.0.kill().unwrap();
    assert_failed("file_transfer_dpu", dpu.ends(), &[]);
    is_clean();
}

#[test]
fn a_host_that_sends_more_than_it_offered_is_told_so() {
    const MIB: usize = 1 << 20;
    let card = Card::new();
    let mut dpu = card.dpu("file_transfer_dpu");
    dpu.arg("--progress").arg("-f").arg(card.path("dst"));
    let dpu = Running::start(&mut dpu);
    let topology = Topology::default().with_card(&card.serial).unwrap();
    let pf0 = Soft::builder()
        .topology(topology)
        .build()
        .open("pf0")
        .unwrap();
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_ONLY;
    let mmap = Mmap::builder().device(&pf0).access(access);
    let mmap = mmap.alloc(3 * MIB).unwrap();
    let said = |kind: u8, first: u64, second: u64, rest: &[u8]| {
        let (first, second) = (first.to_be_bytes(), second.to_be_bytes());
        [&[kind], &first[..], &second, rest].concat()
    };
    run_async(async {
        let channel = loop {
            match Channel::builder().connect(&pf0, "file transfer").await {
                Ok(channel) => break channel,
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionAborted),
            }
            tokio::task::yield_now().await;
        };
        let blob = mmap.export_dpu(&pf0).unwrap();
        channel.send(&said(b'O', 10, 0, &blob)).await.unwrap();
        assert_eq!(channel.recv().await.unwrap()[0], b'A');
        let full = said(b'F', 0, MIB as u64, &[]);
        channel.send(&full).await.unwrap();
        assert_eq!(channel.recv().await.unwrap()[0], b'R');
    });
    let (status, out, err) = dpu.ends();
    assert_eq!((status, out), (Some(1), String::new()));
    assert!(err.contains("more than the 10 bytes"), "{err}");
    assert!(!card.path("dst").exists());
}

#[test]
fn the_dpu_finds_a_text_wherever_in_the_hosts_memory_it_is() {
    let card = Card::new();
    let (desc, info) = (card.path("desc"), card.path("info"));
    // Positions at the start, across the border of two pieces, and far behind it.
    for at in [0, (1 << 20) - 3, (3 << 20) + 5] {
        let mut host = card.host("dma_copy_host");
        host.args(["-t", "a needle a"]).arg("-d").arg(&desc);
        host.arg("-b").arg(&info).args(["--at", &at.to_string()]);
        let mut host = Running::start(&mut host);
        assert!(host.line().starts_with("Please copy"));
        let dpu = |words: &[&str]| {
            let mut dpu = card.dpu("dma_copy_dpu");
            dpu.arg("-d").arg(&desc).arg("-b").arg(&info).args(words);
            ended(run(&mut dpu))
        };
        let closes = "Host sample can be closed, DMA copy ended\n";
        let found = |at: usize| format!("Found at byte {at} of the host's memory\n");
        let out = assert_good(dpu(&["--find", "needle"]));
        assert_eq!(out, found(at + 2) + closes);
        let out = assert_good(dpu(&["--find", "a"]));
        assert_eq!(out, found(at) + &found(at + 9) + closes);
        let failed = dpu(&["--find", "haystack"]);
        let len = (at + 10).to_string();
        assert_failed("dma_copy_dpu", failed, &["\"haystack\" is not in", &len]);
        let out = assert_good(dpu(&[]));
        assert!(out.contains("Memory content: a needle a\n"), "{out}");
        drop(host.0.stdin.take());
        assert_good(host.ends());
    }
    for wrong in [&["--find"][..], &["--find", ""]] {
        let (status, _, err) = ended(run(card.dpu("dma_copy_dpu").args(wrong)));
        assert!(
            status == Some(2) && err.starts_with("usage: dma_copy_dpu"),
            "{err}"
        );
    }
    for (wrong, part) in [("x", "--at x"), ("18446744073709551615", "too far")] {
        let out = ended(run(card.host("dma_copy_host").args(["--at", wrong])));
        assert_failed("dma_copy_host", out, &[part]);
    }
}

#[test]
fn the_log_level_shows_what_happens() {
    let card = Card::new();
    let (mut server, mut client) = (card.dpu("cc_server"), card.host("cc_client"));
    let mut server = Running::start(server.args(["-l", "60"]));
    assert_eq!(server.line(), LISTENS);
    let (_, _, quiet) = ended(run(&mut client));
    assert_eq!(quiet, "");
    let (status, _, log) = server.ends();
    assert_eq!(status, Some(0), "{log}");
    for line in [
        "DEBUG tokio_doca::device: device opened",
        "DEBUG tokio_doca::channel: accepted",
    ] {
        assert!(log.contains(line), "no {line:?} in:\n{log}");
    }
}
