//! Tests `tokio-doca send` and `tokio-doca serve`.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Stdio};
use std::thread;

use crate::support::{Folder, Ran, Server, TOKEN, bytes, limited};

/// Starts a receiver that serves the folder `out`.
fn serve(folder: &Folder, args: &[&str]) -> Server {
    let _ = fs::create_dir(folder.path("out"));
    Server::new(folder, &[&["serve", "--out", "out"], args].concat())
}

/// Returns the names of the files in `out`.
fn stored(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path("out")).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|it| name(it).into_string().unwrap()).collect();
    names.sort();
    names
}

/// Starts a sender of stdin, and waits until it has sent its first bytes.
fn half_sent(folder: &Folder, server: &Server) -> Child {
    let mut command = folder.command(["send", "-", &server.addr, "--name", "half"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(&bytes(1 << 20))
        .unwrap();
    let has_bytes = || {
        let mut entries = fs::read_dir(folder.path("out")).unwrap();
        entries.any(|it| it.unwrap().metadata().is_ok_and(|meta| meta.len() > 0))
    };
    while !has_bytes() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        thread::yield_now();
    }
    let names = stored(folder);
    assert!(
        names.iter().all(|name| name.starts_with(".tokio-doca.")),
        "{names:?}"
    );
    child
}

#[test]
fn files_arrive_whole_and_their_sums_are_told() {
    let folder = Folder::new();
    let mut server = serve(&folder, &[]);
    for (name, size) in [("large", 5_000_001), ("empty", 0), ("one", 1)] {
        folder.write(name, bytes(size));
        let said = folder.run(["send", name, &server.addr]).done();
        let sum = folder.run(["hash", name]).done();
        let sum = format!("SHA-256 {}", &sum[..64]);
        let way = format!("{size} bytes by RDMA in ");
        let line = server.line();
        for text in [&said, &line] {
            assert!(text.contains(&sum) && text.contains(&way), "{text}");
        }
        assert!(said.starts_with("ok: 127.0.0.1:"), "{said}");
        assert!(
            line.starts_with(&format!("stored {name} from 127.0.0.1:")),
            "{line}"
        );
        assert!(folder.read(&format!("out/{name}")) == bytes(size), "{name}");
        let mode = fs::metadata(folder.path("out").join(name)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(stored(&folder), ["empty", "large", "one"]);
    server.stop().done();
}

#[test]
fn sides_without_rdma_in_common_use_tcp_and_say_so() {
    // A software device whose socket has no folder cannot connect.
    let folder = Folder::new();
    let server = serve(&folder, &["--once"]);
    folder.write("a", bytes(3_000_000));
    let mut command = folder.command(["send", "a", &server.addr]);
    let sent = command.env("TOKIO_DOCA_SOFT_SOCKET", folder.path("nowhere"));
    let sent = sent.output().unwrap();
    let said = Ran::of(sent).done();
    let out = server.ended().done();
    for text in [said, out] {
        assert!(text.contains("3000000 bytes by TCP in "), "{text}");
    }
    assert!(folder.read("out/a") == bytes(3_000_000));
}

#[test]
fn stdin_is_sent_under_a_name() {
    let folder = Folder::new();
    let server = serve(&folder, &["--once"]);
    let mut command = folder.command(["send", "-", &server.addr, "--name", "piped"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&bytes(700_000))
        .unwrap();
    let said = Ran::of(child.wait_with_output().unwrap()).done();
    assert!(said.contains("stored piped: 700000 bytes"), "{said}");
    let out = server.ended().done();
    assert!(out.starts_with("stored piped from"), "{out}");
    assert!(folder.read("out/piped") == bytes(700_000));
}

#[test]
fn an_existing_file_is_kept_and_both_sides_say_so() {
    let folder = Folder::new();
    let server = serve(&folder, &["--once"]);
    folder.write("a", "new");
    folder.write("out/a", "old");
    let part = "a exists and is kept: send the file by another --name";
    folder.run(["send", "a", &server.addr]).refused(1, &[part]);
    let ran = server.ended();
    assert!(ran.err.contains(part), "{}", ran.err);
    assert_eq!(ran.code, Some(1));
    assert_eq!(folder.read("out/a"), b"old");
    assert_eq!(stored(&folder), ["a"]);
}

#[test]
fn both_sides_must_have_the_same_token() {
    let folder = Folder::new();
    folder.write("a", "bytes");
    folder.write("token", format!("{TOKEN}\n"));
    let chmod = |mode| fs::set_permissions(folder.path("token"), PermissionsExt::from_mode(mode));
    chmod(0o600).unwrap();
    let server = serve(&folder, &["--token-file", "token"]);
    let send = |more: &[&str]| folder.run([&["send", "a", &server.addr], more].concat());
    send(&[]).refused(1, &["this receiver demands a token"]);
    send(&["--token", "another token of sixteen"]).refused(1, &["its token is another one"]);
    assert!(stored(&folder).is_empty());
    send(&["--token", "short"]).refused(2, &["has 5 bytes", "openssl rand"]);
    let mut command = folder.command(["send", "a", &server.addr]);
    Ran::of(command.env("TOKIO_DOCA_TOKEN", TOKEN).output().unwrap()).done();
    assert_eq!(folder.read("out/a"), b"bytes");
    chmod(0o644).unwrap();
    send(&["--token-file", "token"]).refused(1, &["chmod 600 token"]);
    server.stop_after_another_token();

    let server = serve(&folder, &[]);
    let ran = folder.run(["send", "a", &server.addr, "--token", TOKEN]);
    ran.refused(1, &["this receiver has no token"]);
}

#[test]
fn other_hosts_demand_a_token() {
    let folder = Folder::new();
    folder.write("a", "bytes");
    let ran = folder.run(["serve", "--out", ".", "--bind", "0.0.0.0:0"]);
    ran.refused(2, &["--bind 0.0.0.0:0", "give both sides a token"]);
    for addr in ["192.0.2.1", "[2001:db8::1]:4792", "host.invalid"] {
        let ran = folder.run(["send", "a", addr]);
        ran.refused(2, &[addr, "give both sides a token"]);
    }
    let server = serve(&folder, &["--bind", "0.0.0.0:0", "--token", TOKEN]);
    let addr = server.addr.replace("0.0.0.0", "127.0.0.1");
    folder.run(["send", "a", &addr, "--token", TOKEN]).done();
}

#[test]
fn names_that_are_not_plain_are_refused_before_a_connection() {
    let folder = Folder::new();
    folder.write("a", "bytes");
    for name in ["../a", "/etc/a", ".a", "..", "", "-a", "a\nb"] {
        let ran = folder.run(["send", "a", "127.0.0.1:1", "--name", name]);
        ran.refused(2, &["the name", "give another by --name"]);
    }
}

#[test]
fn too_much_is_refused_at_once_or_once_it_comes() {
    let folder = Folder::new();
    let server = serve(&folder, &["--max-size", "1K"]);
    folder.write("a", bytes(1025));
    folder
        .run(["send", "a", &server.addr])
        .refused(1, &["--max-size"]);
    let mut command = folder.command(["send", "-", &server.addr, "--name", "b"]);
    command.stdin(fs::File::open("/dev/zero").unwrap());
    Ran::of(command.output().unwrap()).refused(1, &["--max-size"]);
    assert!(stored(&folder).is_empty());
}

/// Tests the limit of a file's size, at which the kernel sends SIGXFSZ to the receiver.
#[test]
fn a_file_beyond_the_limit_of_files_ends_no_other_transfer() {
    let folder = Folder::new();
    fs::create_dir(folder.path("out")).unwrap();
    let command = folder.command(["serve", "--out", "out", "--bind", "127.0.0.1:0"]);
    // The limit is in the shell's blocks, of 512 or 1,024 bytes.
    let server = Server::start(limited("-f 20000", &command));
    let other = half_sent(&folder, &server);
    folder.write("large", bytes(24_000_000));
    let parts = ["the receiver cannot write: File too large", "ulimit -f"];
    folder
        .run(["send", "large", &server.addr])
        .refused(1, &parts);
    Ran::of(other.wait_with_output().unwrap()).done();
    assert_eq!(stored(&folder), ["half"]);
    assert!(folder.read("out/half") == bytes(1 << 20));
    let ran = server.stop();
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(parts.iter().all(|it| ran.err.contains(it)), "{}", ran.err);
}

#[test]
fn a_sender_that_dies_leaves_nothing() {
    let folder = Folder::new();
    let server = serve(&folder, &["--once"]);
    let mut child = half_sent(&folder, &server);
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = server.ended();
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the sender ended early"), "{}", ran.err);
    assert!(stored(&folder).is_empty());
}

#[test]
fn a_receiver_that_dies_or_is_stopped_fails_the_sender() {
    let folder = Folder::new();
    for signal in ["-TERM", "-KILL"] {
        let server = serve(&folder, &[]);
        let mut child = half_sent(&folder, &server);
        let stdin = child.stdin.take();
        server.signal(signal);
        let ran = Ran::of(child.wait_with_output().unwrap());
        drop(stdin);
        ran.refused(1, &["did not store the file"]);
        let ran = server.ended();
        if signal == "-TERM" {
            assert_eq!(ran.code, Some(1));
            assert!(
                ran.err.contains("interrupted: 1 connections"),
                "{}",
                ran.err
            );
            assert!(stored(&folder).is_empty());
        }
    }
}

#[test]
fn strangers_keep_nobody_out() {
    let folder = Folder::new();
    let server = serve(&folder, &["--once", "--token", TOKEN]);
    let silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(&server.addr).unwrap())
        .collect();
    let mut loud = TcpStream::connect(&server.addr).unwrap();
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    folder.write("a", "bytes");
    folder
        .run(["send", "a", &server.addr, "--token", TOKEN])
        .done();
    server.ended().done();
    drop((silent, loud));
}
