//! Tests of the RDMA examples: two processes that meet by files or by TCP, their output, and the
//! error of each side if it fails.

#[path = "../../../examples/rdma_sample/mod.rs"]
mod rdma_sample;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use rdma_sample::{Args, Digest, IMMEDIATE, Meeting};
use support::block_until;
use support::device::{adapter, defers, needs_soft};
use support::programs::*;
use tokio_doca::{Rdma, WorkQ, mem::Access};

/// A pair of programs as in DOCA's samples: `roles` lists the caller and the listener, `text` the
/// short and the long flag for the text.
struct Sample {
    name: &'static str,
    roles: [&'static str; 2],
    text: [&'static str; 2],
    /// The index of the role that has the flag for the text.
    giver: usize,
    /// The line that the other role prints for a text.
    says: fn(&str) -> String,
}

const PEERS: [&str; 2] = ["requester", "responder"];
const SENDERS: [&str; 2] = ["send", "receive"];
const WRITE: [&str; 2] = ["-w", "--write-string"];
const SEND: [&str; 2] = ["-s", "--send-string"];

const SAMPLES: [Sample; 5] = [
    Sample {
        name: "rdma_read",
        roles: PEERS,
        text: ["-r", "--read-string"],
        giver: 1,
        says: |text| format!("Read from responder: {text}"),
    },
    Sample {
        name: "rdma_write",
        roles: PEERS,
        text: WRITE,
        giver: 0,
        says: |text| format!("Requester has written: {text}"),
    },
    Sample {
        name: "rdma_write_immediate",
        roles: PEERS,
        text: WRITE,
        giver: 0,
        says: |text| format!("Requester has written: {text} with immediate data: 43981"),
    },
    Sample {
        name: "rdma_send_receive",
        roles: SENDERS,
        text: SEND,
        giver: 0,
        says: |text| format!("Got from sender: {text}"),
    },
    Sample {
        name: "rdma_send_receive_immediate",
        roles: SENDERS,
        text: SEND,
        giver: 0,
        says: |text| format!("Got from sender: {text} with immediate data: 43981"),
    },
];

/// Returns flags that put a side on the device under test; a later flag can name another device.
fn on_device() -> Vec<String> {
    let adapter = adapter().map(|name| ["--device".to_owned(), name]);
    adapter.into_iter().flatten().collect()
}

impl Sample {
    /// Returns the command of one side.
    fn side(&self, role: usize) -> Command {
        let mut command = example(self.name);
        command.arg(self.roles[role]).args(on_device());
        command
    }

    /// Returns the command of one side of a pair that meets by files in the folder.
    fn by_files(&self, role: usize, folder: &Folder) -> Command {
        let [local, remote] = [role, 1 - role].map(|role| folder.path(self.roles[role]));
        let mut command = self.side(role);
        command.arg("-ld").arg(local).arg("-re").arg(remote);
        command.arg("-m").arg(folder.path("mmap"));
        command
    }

    /// Runs both sides, the caller first or last, and checks their output.
    fn exchange(&self, sides: [&mut Command; 2], first: usize, text_of: &str) {
        let name = self.name;
        let [caller, listener] = together(sides, first);
        for output in [&caller, &listener] {
            let (status, err) = (output.status.code(), text(&output.stderr));
            assert_eq!((status, err), (Some(0), ""), "{name}");
        }
        let taker = [&listener, &caller][self.giver];
        let says = (self.says)(text_of);
        let said = text(&taker.stdout);
        assert!(said.lines().any(|line| line == says), "{name}: {said}");
        assert!(
            text(&caller.stdout).contains("Retrieved results successfully\n"),
            "{name}"
        );
    }
}

/// Runs both sides to their ends; the side with the index `first` starts first.
fn together(sides: [&mut Command; 2], first: usize) -> [Output; 2] {
    let [caller, listener] = sides;
    thread::scope(|scope| {
        let (early, late) = match first {
            0 => (caller, listener),
            _ => (listener, caller),
        };
        let early = scope.spawn(|| run(early));
        let late = run(late);
        let early = early.join().unwrap();
        match first {
            0 => [early, late],
            _ => [late, early],
        }
    })
}

/// Returns an address of this machine that no other test uses.
fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(18515);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{b}.{c}:{port}", a + 1)
}

/// A process that is killed at the end of its test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
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

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until the process ends. Returns its status and its error output.
    fn ended(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        block_until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        let says = std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap();
        (status.unwrap().code(), says)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asserts that an example ended with status 1 and one line on stderr that contains all of `parts`.
#[track_caller]
fn assert_failed(name: &str, (status, says): (Option<i32>, &str), parts: &[&str]) {
    assert_eq!((status, says.lines().count()), (Some(1), 1), "{says}");
    assert!(says.starts_with(&format!("{name}: ")), "{says}");
    for part in parts {
        assert!(says.contains(part), "{part:?} is not in {says}");
    }
}

#[track_caller]
fn assert_refused(name: &str, output: &Output, parts: &[&str]) {
    let status = output.status.code();
    assert_failed(name, (status, text(&output.stderr)), parts);
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn pairs_that_meet_by_files_exchange_their_texts() {
    for (first, sample) in SAMPLES.iter().enumerate() {
        let folder = Folder::new();
        // Without a text the example sends DOCA's text. Other bytes than text are escaped, so that
        // they cannot control a terminal.
        let long = ("x".repeat(4000), format!("\"{}\"", "x".repeat(4000)));
        for (given, says) in [
            (None, "\"Hi DOCA RDMA!\""),
            (
                Some("ein Gruß, \"hier\"\u{1b}[2J\n"),
                r#""ein Gruß, \"hier\"\u{1b}[2J\n""#,
            ),
            (Some(&long.0[..]), &long.1),
        ] {
            let mut sides = [0, 1].map(|role| sample.by_files(role, &folder));
            if let Some(given) = given {
                sides[sample.giver].args([sample.text[0], given]);
            }
            let [caller, listener] = &mut sides;
            sample.exchange([caller, listener], first % 2, says);
        }
        let left = fs::read_dir(&folder.0).unwrap().count();
        assert_eq!(left, 0, "{}: its files are removed", sample.name);
    }
}

#[test]
fn pairs_that_meet_by_tcp_wait_for_each_other() {
    for (number, sample) in SAMPLES.iter().enumerate() {
        for first in [0, 1] {
            let address = address();
            let mut sides = [0, 1].map(|role| sample.side(role));
            for side in &mut sides {
                let defer = ["0", "1"][(number + first) % 2];
                side.env("TOKIO_DOCA_SOFT_DEFER", defer);
                if adapter().is_none() {
                    side.args(["--device", "pf0", "-g", "0"]);
                }
                side.arg(format!("--tcp={address}"));
            }
            sides[sample.giver].args([sample.text[1], "by TCP"]);
            let [caller, listener] = &mut sides;
            sample.exchange([caller, listener], first, "\"by TCP\"");
        }
    }
}

/// The views that two processes on one card may have, with the first device of each.
const VIEWS: [[(&str, &str); 2]; 3] = [
    [("dpu", "p0"), ("dpu", "p0")],
    [("host", "pf0"), ("dpu", "p0")],
    [("dpu", "p0"), ("host", "pf0")],
];

/// Runs one side in a view; the device of that name exists in this view only.
fn in_view(command: &mut Command, (view, device): (&str, &str)) {
    command.env("TOKIO_DOCA_SOFT", view);
    command.args(["--device", device]);
}

#[test]
fn pairs_meet_in_the_dpus_view_and_between_the_views() {
    if needs_soft("an adapter has no views") {
        return;
    }
    for sample in &SAMPLES {
        for (number, views) in VIEWS.into_iter().enumerate() {
            let folder = Folder::new();
            let by_files = [0, 1].map(|role| sample.by_files(role, &folder));
            let tcp = format!("--tcp={}", address());
            let by_tcp = [0, 1].map(|role| {
                let mut side = sample.side(role);
                side.arg(&tcp);
                side
            });
            for mut sides in [by_files, by_tcp] {
                for (side, view) in sides.iter_mut().zip(views) {
                    in_view(side, view);
                }
                let [caller, listener] = &mut sides;
                sample.exchange([caller, listener], number % 2, "\"Hi DOCA RDMA!\"");
            }
        }
    }
}

#[test]
fn what_killed_processes_have_left_does_not_mislead_the_next_pair() {
    if needs_soft("nobody is asked by connect whether the peer of a file is still there") {
        return;
    }
    for sample in &SAMPLES {
        let folder = Folder::new();
        for role in [0, 1] {
            let mut killed = Running::start(&mut sample.by_files(role, &folder));
            let local = folder.path(sample.roles[role]);
            block_until("it has written its file", || local.exists());
            let mode = fs::metadata(&local).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "who can read it can use it");
            killed.kill();
        }
        let mut sides = [0, 1].map(|role| sample.by_files(role, &folder));
        let [caller, listener] = &mut sides;
        sample.exchange([caller, listener], 0, "\"Hi DOCA RDMA!\"");
    }
}

#[test]
fn a_text_that_is_too_large_for_the_peer_fails_on_both_sides() {
    for sample in SAMPLES.iter().filter(|sample| sample.giver == 0) {
        let folder = Folder::new();
        let mut sides = [0, 1].map(|role| sample.by_files(role, &folder));
        sides[0].arg(sample.text[0]).arg("x".repeat(4097));
        let [caller, listener] = &mut sides;
        for output in together([caller, listener], 0) {
            let says = text(&output.stderr);
            assert_failed(sample.name, (output.status.code(), says), &[]);
            let said = text(&output.stdout);
            assert!(!said.contains("xxx"), "{}: {said}", sample.name);
        }
    }
}

/// A fault of a peer of a sample.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    Digest,
    Immediate,
}

/// Plays the giver of a sample with a wrong digest or a wrong immediate value.
async fn lie(sample: &Sample, address: &str, lie: Lie) -> rdma_sample::Result<()> {
    let script = rdma_sample::Sample {
        name: sample.name,
        about: "",
        roles: sample.roles,
        alone: false,
        flags: &[],
    };
    let words = [sample.roles[sample.giver], "--tcp", address].map(Into::into);
    let words = words
        .into_iter()
        .chain(on_device().into_iter().map(Into::into));
    let args = Args::parse(&script, words)?.unwrap();
    let device = rdma_sample::device(&args)?;
    let permissions = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
    let (mmap, src) = rdma_sample::holding(&device, permissions, b"truth")?;
    let workq = WorkQ::builder().build()?;
    let rdma: Rdma = rdma_sample::rdma(&args, &device, Access::RDMA_READ, &workq)?;
    let mut meeting = Meeting::connect(&args, &rdma).await?;
    let immediate = match lie {
        Lie::Immediate => 7,
        Lie::Digest => IMMEDIATE,
    };
    match sample.name {
        "rdma_read" => meeting.offer(&mmap, &device).await?,
        "rdma_write" => {
            let remote = meeting.import(&device).await?.buf(..)?;
            _ = rdma.write(&src, &remote).await?;
        }
        "rdma_write_immediate" => {
            let remote = meeting.import(&device).await?.buf(..)?;
            _ = rdma.write_imm(&src, &remote, immediate).await?;
        }
        "rdma_send_receive" if lie == Lie::Immediate => _ = rdma.send_imm(&src, 7).await?,
        "rdma_send_receive" => _ = rdma.send(&src).await?,
        _ => _ = rdma.send_imm(&src, immediate).await?,
    }
    // In `rdma_read` the taker sends its digest first. A taker that has noticed a wrong immediate
    // has exited; the calls below then fail, which the test ignores.
    if sample.giver == 1 {
        Digest::receive(&rdma).await?.check(b"truth")?;
    }
    Digest::of(b"lies!").send(&rdma).await?;
    // Stays until the peer has received this digest.
    if sample.giver == 0 {
        Digest::receive(&rdma).await?.check(b"truth")?;
    }
    Ok(())
}

#[test]
fn who_receives_something_else_than_was_said_fails() {
    for sample in &SAMPLES {
        for what in [Lie::Digest, Lie::Immediate] {
            let immediate = sample.name.ends_with("_immediate");
            if what == Lie::Immediate && !immediate && sample.name != "rdma_send_receive" {
                continue;
            }
            let address = address();
            let mut taker = sample.side(1 - sample.giver);
            let mut taker = Running::start(taker.args(["--tcp", &address]));
            let lied = support::run(lie(sample, &address, what));
            let (status, says) = taker.ended();
            let part = match what {
                Lie::Digest => lied.map(|()| "CRC-32").unwrap(),
                Lie::Immediate => "immediate data Some(7)",
            };
            assert_failed(sample.name, (status, &says), &[part]);
            let said = std::io::read_to_string(taker.0.stdout.take().unwrap()).unwrap();
            assert!(!said.contains("truth"), "{}: {said}", sample.name);
        }
    }
}

#[test]
fn who_waits_in_vain_says_what_for_and_leaves_nothing() {
    thread::scope(|scope| {
        for sample in &SAMPLES {
            for role in [0, 1] {
                scope.spawn(move || {
                    let folder = Folder::new();
                    let output = run(sample.by_files(role, &folder).args(["--timeout", "1"]));
                    let remote = folder.path(sample.roles[1 - role]);
                    let parts = [remote.to_str().unwrap(), "no peer has written it", "1s"];
                    assert_refused(sample.name, &output, &parts);
                    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);

                    let address = address();
                    let output = run(sample
                        .side(role)
                        .args(["--tcp", &address, "--timeout", "1"]));
                    let says = text(&output.stderr);
                    let parts = [&address[..], "no peer", "1s"];
                    assert_failed(sample.name, (output.status.code(), says), &parts);
                });
            }
        }
    });
}

#[test]
fn what_a_peer_cannot_have_written_is_refused_at_once() {
    let sample = &SAMPLES[0];
    let folder = Folder::new();
    let remote = folder.path(sample.roles[1]);
    let refused = |parts: &[&str]| {
        let output = run(&mut sample.by_files(0, &folder));
        assert_refused(sample.name, &output, parts);
        assert!(
            !folder.path(sample.roles[0]).exists(),
            "its file is removed"
        );
    };
    let name = remote.to_str().unwrap();
    for nonsense in [vec![], vec![0xee; 40], vec![b'x'; 1 << 20]] {
        fs::write(&remote, nonsense).unwrap();
        refused(&[name, "Rdma::connect"]);
    }
    fs::remove_file(&remote).unwrap();
    nix::unistd::mkfifo(&remote, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(&[name, "no regular file"]);
    fs::remove_file(&remote).unwrap();
    fs::create_dir(&remote).unwrap();
    refused(&[name, "no regular file"]);

    let mut nowhere = sample.side(0);
    let output = run(nowhere.arg("-ld").arg(folder.path("none/local")));
    assert_refused(sample.name, &output, &["none/local", "No such file"]);
}

#[test]
fn a_tcp_peer_that_talks_nonsense_is_refused() {
    for sample in &SAMPLES {
        // A caller meets a peer that answers; a listener meets a peer that hangs up.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut caller = Running::start(sample.side(0).args(["--tcp", &address]));
        listener.set_nonblocking(true).unwrap();
        let mut accepted = None;
        block_until("it calls", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (mut stream, _) = accepted.unwrap();
        stream.write_all(&[0xee; 4096]).unwrap();
        let (status, says) = caller.ended();
        assert_failed(sample.name, (status, &says), &["Rdma::handshake"]);

        let mut listens = Running::start(sample.side(1).args(["--tcp", "127.0.0.1:0"]));
        let line = listens.line();
        let address = line.trim().strip_prefix("Listening on ").unwrap();
        drop(TcpStream::connect(address).unwrap());
        let (status, says) = listens.ended();
        assert_failed(sample.name, (status, &says), &["Rdma::handshake"]);
    }
}

#[test]
fn what_cannot_be_opened_or_set_up_is_named() {
    for sample in &SAMPLES {
        for role in [0, 1] {
            let output = run(sample.side(role).args(["-d", "pf9"]));
            assert_refused(sample.name, &output, &["no device \"pf9\"", "pf0"]);
            let output = run(sample.side(role).args(["-g", "4000000000"]));
            assert_refused(sample.name, &output, &["4000000000"]);
        }
    }
    let output = run(example("rdma_read").args(["requester", "--tcp", "nowhere"]));
    assert_refused("rdma_read", &output, &["nowhere"]);
}

#[test]
fn help_has_every_flag() {
    let pingpong = (
        "rdma_pingpong",
        ["client", "server"],
        ["-n", "--iterations"],
    );
    let samples = SAMPLES.map(|sample| (sample.name, sample.roles, sample.text));
    for (name, roles, own) in samples.into_iter().chain([pingpong]) {
        for words in [&["-h"][..], &["--help"], &[roles[0], "-g", "1", "-h"]] {
            let output = run(example(name).args(words));
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert_eq!((output.status.code(), err), (Some(0), ""), "{name}");
            let both = [
                "-d, --device ",
                "-ld, --local-descriptor-path ",
                "-re, --remote-descriptor-path ",
                "-m, --mmap-descriptor-path ",
                "-g, --gid-index ",
                "-h, --help",
                "/tmp/local_connection_desc_path.txt",
                "/tmp/remote_connection_desc_path.txt",
                "/tmp/mmap_connection_desc_path.txt",
            ];
            let own = own.join(", ");
            for part in both.into_iter().chain([roles[0], roles[1], name, &own]) {
                assert!(out.contains(part), "{name}: {part:?} is not in {out}");
            }
        }
    }
}

#[test]
fn wrong_arguments_are_named_in_one_line() {
    for sample in &SAMPLES {
        let [caller, _] = sample.roles;
        let ([short, long], giver) = (sample.text, sample.roles[sample.giver]);
        let taker = sample.roles[1 - sample.giver];
        for (words, part) in [
            (&[][..], "the first word is"),
            (&["-d", "pf0"], "the first word is"),
            (&["both"], "the first word is"),
            (&[caller, "-x", "1"], "\"-x\""),
            (&[caller, "-l", "1"], "\"-l\""),
            (&[caller, "--", "1"], "\"--\""),
            (&[caller, "-", "1"], "\"-\""),
            (&[caller, "more"], "\"more\""),
            (&[caller, ""], "\"\""),
            (&[caller, "-ld"], "-ld needs a value"),
            (&[caller, "--gid-index="], "--gid-index needs a value"),
            (&[caller, "-g", "x"], "--gid-index \"x\": invalid digit"),
            (&[caller, "-g", "-1"], "--gid-index \"-1\": invalid digit"),
            (&[caller, "--timeout", "1e9"], "--timeout \"1e9\": invalid"),
            (&[caller, "--timeout", "0"], "--timeout is not 0"),
            (&[giver, short, ""], "needs a value"),
            (&[giver, long], "needs a value"),
            (&[taker, short, "x"], giver),
        ] {
            let output = run(example(sample.name).args(words));
            assert_refused(sample.name, &output, &[part]);
        }
        let mut command = example(sample.name);
        command.arg(giver).arg(short);
        command.arg(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff"));
        assert_refused(sample.name, &run(&mut command), &["\\xFF", "UTF-8"]);
    }
}

/// Asserts that a pingpong has printed its two lines.
#[track_caller]
fn assert_measured(output: &Output, size: usize) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), err), (Some(0), ""), "{out}");
    let lines: Vec<&str> = out.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 2, "{out}");
    let of = format!(" round trips of {size} bytes, p50 ");
    for (line, mode) in lines.into_iter().zip(["busy-poll: ", "event: "]) {
        assert!(line.starts_with(mode) && line.contains(&of), "{line}");
        let (_, rate) = line.split_once("; ").unwrap();
        let rate = rate.trim().split(' ').next().unwrap();
        assert!(rate.parse::<u64>().unwrap() > 0, "{line}");
    }
}

#[test]
fn pingpong_starts_its_server_and_measures_both_modes() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    for &defer in defers() {
        let defer = if defer { "1" } else { "0" };
        let mut command = example("rdma_pingpong");
        command
            .env("TOKIO_DOCA_SOFT_DEFER", defer)
            .args(on_device());
        assert_measured(&run(command.args(["-n", "300"])), 64);
    }
}

/// Returns the client and the server of a pingpong that meet by files in the folder.
fn pingpong(folder: &Folder, size: usize) -> [Command; 2] {
    let mut sides = [("client", "server"), ("server", "client")].map(|(local, remote)| {
        let mut command = example("rdma_pingpong");
        command.arg(local).args(on_device());
        command.arg("-ld").arg(folder.path(local));
        command.arg("-re").arg(folder.path(remote));
        command
    });
    sides[0].arg(format!("--size={size}")).args(["-n", "100"]);
    sides
}

/// Runs both sides of a pingpong, the server first.
#[track_caller]
fn assert_plays(mut sides: [Command; 2], size: usize) {
    let [client, server] = &mut sides;
    let [called, served] = together([client, server], 1);
    assert_measured(&called, size);
    assert_eq!((served.status.code(), text(&served.stderr)), (Some(0), ""));
}

#[test]
fn pingpong_goes_between_two_that_meet_by_files() {
    for size in [1, 65_536] {
        let folder = Folder::new();
        assert_plays(pingpong(&folder, size), size);
    }
}

#[test]
fn pingpong_goes_on_in_the_dpus_view_and_between_the_views() {
    if needs_soft("an adapter has no views") {
        return;
    }
    for views in VIEWS {
        let folder = Folder::new();
        let mut sides = pingpong(&folder, 64);
        for (side, view) in sides.iter_mut().zip(views) {
            in_view(side, view);
        }
        assert_plays(sides, 64);
    }
    if is_emulated("start what a program starts itself") {
        return;
    }
    // The server that this process starts has the same view.
    let mut command = example("rdma_pingpong");
    in_view(&mut command, VIEWS[0][0]);
    assert_measured(&run(command.args(["-n", "100"])), 64);
}

#[test]
fn pingpong_notices_that_its_client_was_killed() {
    let mut server = example("rdma_pingpong");
    server.arg("server").args(on_device());
    let mut server = Running::start(server.arg("--tcp=127.0.0.1:0"));
    let line = server.line();
    let address = line.trim().strip_prefix("Listening on ").unwrap();
    let mut client = example("rdma_pingpong");
    client.arg("client").args(on_device());
    let mut client = Running::start(client.args(["--tcp", address]));
    assert!(client.line().contains("busy-poll: "));
    client.kill();
    let (status, says) = server.ended();
    assert_failed("rdma_pingpong", (status, &says), &[]);
}

#[test]
fn pingpong_refuses_what_it_cannot_measure() {
    for (words, part) in [
        (&["--size", "0"][..], "--size is 1 to 65536"),
        (&["--size", "65537"], "--size is 1 to 65536"),
        (&["-n", "0"], "-n is not 0"),
        (&["client", "-n", "x"], "--iterations \"x\""),
        (&["server", "-n", "1"], "-n is for the client"),
        (&["peer"], "\"peer\""),
        (&["-d", "pf9"], "no device \"pf9\""),
    ] {
        let output = run(example("rdma_pingpong").args(words));
        assert_refused("rdma_pingpong", &output, &[part]);
    }
}
