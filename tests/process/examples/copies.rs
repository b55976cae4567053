//! Tests of the copying and hashing examples: exit codes, messages, and the bytes that they write.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use sha2::Digest;
use support::crc::bitwise;
use support::device::adapter;
use support::programs::*;

const MIB: usize = 1 << 20;

fn dma_copy(src: &Path, dst: &Path) -> Output {
    run(example("dma_copy").args([src, dst]))
}

/// Asserts that `dma_copy` failed: status 1, nothing on stdout, and one line on stderr that
/// contains all of `parts`.
fn assert_refused(output: &Output, parts: &[&str]) {
    assert_refused_by("dma_copy", output, parts);
}

/// Asserts the same of the example `name`.
fn assert_refused_by(name: &str, output: &Output, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(text(&output.stdout), "");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with(&format!("{name}: ")), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
}

fn files_of_all_sizes_are_copied(defer: &str) {
    let adapter = adapter();
    let device = adapter.as_deref().unwrap_or("pf0");
    let folder = Folder::new();
    let mut sizes = vec![0, 1, MIB - 1, MIB, 3 * MIB + 17];
    // An emulated adapter takes a minute for this size.
    if adapter.is_none() {
        sizes.push(19 * MIB + 1);
    }
    for len in sizes {
        let (src, bytes) = folder.file("src", len);
        let dst = folder.path("dst");
        // The old content is longer than any source, and must disappear.
        fs::write(&dst, vec![0xee; 20 * MIB]).unwrap();
        let mut command = example("dma_copy");
        command
            .env("TOKIO_DOCA_SOFT_DEFER", defer)
            .args([&src, &dst])
            .arg(device);
        let output = run(&mut command);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""), "{len} bytes");
        assert!(fs::read(&dst).unwrap() == bytes, "{len} bytes: DST differs");
        assert!(
            fs::read(&src).unwrap() == bytes,
            "{len} bytes: SRC was changed"
        );
        let jobs = len.div_ceil(MIB);
        for part in [
            format!("copied {len} bytes "),
            format!(" {jobs} DMA jobs on {device}"),
            "verified: ".to_owned(),
        ] {
            assert!(out.contains(&part), "{part:?} is not in {out}");
        }
    }
}

#[test]
fn files_of_all_sizes_are_copied_by_jobs_of_the_device() {
    files_of_all_sizes_are_copied("0");
}

#[test]
fn files_of_all_sizes_are_copied_when_nothing_completes_inline() {
    files_of_all_sizes_are_copied("1");
}

#[test]
fn a_new_file_is_made_with_the_mode_of_the_source() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let (src, bytes) = folder.file("src", 5);
    fs::set_permissions(&src, fs::Permissions::from_mode(0o700)).unwrap();
    let dst = folder.path("dst");
    assert_eq!(dma_copy(&src, &dst).status.code(), Some(0));
    assert_eq!(fs::read(&dst).unwrap(), bytes);
    assert_eq!(
        fs::metadata(&dst).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn a_link_to_another_file_is_followed() {
    let folder = Folder::new();
    let (src, bytes) = folder.file("src", 5);
    let (other, _) = folder.file("other", 7);
    symlink(&other, folder.path("link")).unwrap();
    assert_eq!(dma_copy(&src, &folder.path("link")).status.code(), Some(0));
    assert_eq!(fs::read(&other).unwrap(), bytes);
    assert!(folder.path("link").is_symlink());
}

#[test]
fn a_missing_source_is_an_error_and_makes_no_destination() {
    let folder = Folder::new();
    let output = dma_copy(&folder.path("none"), &folder.path("dst"));
    assert_refused(&output, &["none", "No such file"]);
    assert!(!folder.path("dst").exists());
}

#[test]
fn a_missing_folder_of_the_destination_is_an_error() {
    let folder = Folder::new();
    let (src, _) = folder.file("src", 5);
    assert_refused(
        &dma_copy(&src, &folder.path("none/dst")),
        &["none/dst", "No such file"],
    );
}

#[test]
fn a_directory_is_refused_on_either_side() {
    let folder = Folder::new();
    let (src, _) = folder.file("src", 5);
    let output = dma_copy(&folder.0, &folder.path("dst"));
    assert_refused(&output, &[folder.0.to_str().unwrap(), "is a directory"]);
    assert!(!folder.path("dst").exists());
    let output = dma_copy(&src, &folder.0);
    assert_refused(&output, &[folder.0.to_str().unwrap(), "is a directory"]);
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_other_end() {
    let folder = Folder::new();
    let (src, _) = folder.file("src", 5);
    let pipe = folder.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_refused(&dma_copy(&pipe, &folder.path("dst")), &["no regular file"]);
    assert_refused(&dma_copy(&src, &pipe), &["no regular file"]);
}

#[test]
fn a_full_disk_is_reported() {
    let folder = Folder::new();
    for len in [1, 3 * MIB + 17] {
        let (src, bytes) = folder.file("src", len);
        let output = dma_copy(&src, Path::new("/dev/full"));
        assert_refused(
            &output,
            &["cannot write /dev/full", "No space left on device"],
        );
        assert!(fs::read(&src).unwrap() == bytes);
    }
}

#[test]
fn a_failed_copy_says_that_the_destination_is_none() {
    let folder = Folder::new();
    let (src, _) = folder.file("src", 40 * MIB);
    let dst = folder.path("dst");
    // The shell's file size limit is 18 or 36 MB, since its blocks have 512 or 1,024 bytes; either
    // is more than the 16 MiB of buffers. The signal is ignored, so that writes fail instead.
    let script = "trap '' XFSZ; ulimit -f 36000; exec \"$0\" \"$@\"";
    let copy = example("dma_copy");
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(copy.get_program());
    shell.args(copy.get_args()).args([&src, &dst]);
    let output = run(&mut shell);
    let says = format!("{} is no complete copy", dst.display());
    assert_refused(&output, &["cannot write", "File too large", &says]);
}

#[test]
fn a_device_that_cannot_be_read_back_is_not_said_to_be_verified() {
    let folder = Folder::new();
    let (src, _) = folder.file("src", 5);
    let output = dma_copy(&src, Path::new("/dev/null"));
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("not verified"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_source_that_reads_differently_afterwards_fails_the_verification() {
    let folder = Folder::new();
    // The file's reported length is 0, but it has content.
    let output = dma_copy(Path::new("/proc/self/status"), &folder.path("dst"));
    assert_refused(&output, &["CRC-32C", "is no complete copy"]);
}

#[test]
fn the_same_file_by_whatever_name_is_refused_and_intact() {
    let folder = Folder::new();
    let (src, bytes) = folder.file("src", MIB + 5);
    let (symbolic, hard) = (folder.path("symbolic"), folder.path("hard"));
    symlink(&src, &symbolic).unwrap();
    fs::hard_link(&src, &hard).unwrap();
    let dotted = folder
        .path("../")
        .join(folder.0.file_name().unwrap())
        .join("src");
    for other in [&src, &symbolic, &hard, &dotted] {
        for (from, to) in [(&src, other), (other, &src)] {
            assert_refused(&dma_copy(from, to), &["is SRC itself", "nothing was done"]);
            assert!(
                fs::read(&src).unwrap() == bytes,
                "{} was changed",
                src.display()
            );
        }
    }
}

#[test]
fn an_unknown_device_is_an_error_before_any_file_is_touched() {
    let folder = Folder::new();
    let (src, _) = folder.file("src", 5);
    let mut command = example("dma_copy");
    command.args([src, folder.path("dst")]).arg("pf9");
    assert_refused(&run(&mut command), &["no device \"pf9\"", "pf0"]);
    assert!(!folder.path("dst").exists());
}

#[test]
fn wrong_arguments_answer_with_the_usage() {
    for arguments in [&[][..], &["one"], &["1", "2", "3", "4"]] {
        let output = run(example("dma_copy").args(arguments));
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output.stderr), "usage: dma_copy SRC DST [DEVICE]\n");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn custom_provider_has_its_own_jobs_done() {
    for defer in ["0", "1"] {
        let output = run(example("custom_provider").env("TOKIO_DOCA_SOFT_DEFER", defer));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""), "{out}");
        for part in [
            "accelerators accel0: opcodes Some([1, 2])",
            "soft pf0: opcodes None",
            "CRC-32 of 123456789: 0xcbf43926",
            "XOR there and back with 8 keys",
            "does not know opcode 0x63",
            "device pf0 has no accelerator",
        ] {
            assert!(out.contains(part), "{part:?} is not in {out}");
        }
    }
}

#[test]
fn busy_poll_prints_the_figures_of_both_modes() {
    let output = run(&mut example("busy_poll"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<&str> = text(&output.stdout).lines().map(str::trim).collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("busy-poll: ") && lines[1].starts_with("event: ")
    );
    assert!(
        lines
            .iter()
            .all(|line| line.contains("p50") && line.contains("p99")),
        "{lines:?}"
    );
}

#[test]
fn cancel_and_timeout_keeps_what_it_claims() {
    let output = run(&mut example("cancel_and_timeout"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("shut down: nothing in flight"));
}

#[test]
fn zero_copy_bytes_sends_files_of_all_sizes_and_verifies_what_arrived() {
    let folder = Folder::new();
    for len in [0, 1, 65_535, 65_536, 65_537, 9 * MIB + 17] {
        let (file, bytes) = folder.file("file", len);
        let output = run(example("zero_copy_bytes").arg(&file));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""), "{len} bytes");
        let crc = format!(
            "verified: FILE, and what arrived, have the CRC-32C {:08x}",
            crc32c::crc32c(&bytes)
        );
        for part in [format!("sent {len} bytes "), crc] {
            assert!(out.contains(&part), "{part:?} is not in {out}");
        }
    }
}

#[test]
fn zero_copy_bytes_sends_to_another_process_what_the_file_holds() {
    use std::io::Read;
    let folder = Folder::new();
    let (file, bytes) = folder.file("file", 3 * MIB + 5);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let mut arrived = Vec::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_end(&mut arrived)
            .unwrap();
        arrived
    });
    let output = run(example("zero_copy_bytes").arg(&file).arg(address));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("not verified"));
    assert!(other.join().unwrap() == bytes);
}

#[test]
fn zero_copy_bytes_refuses_what_it_cannot_send() {
    let folder = Folder::new();
    let (file, _) = folder.file("file", 5 * MIB);
    let pipe = folder.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sent = |file: &Path| run(example("zero_copy_bytes").arg(file));
    for (file, part) in [
        (folder.path("none"), "No such file"),
        (folder.0.clone(), "is a directory"),
        (pipe, "no regular file"),
    ] {
        assert_refused_by(
            "zero_copy_bytes",
            &sent(&file),
            &[file.to_str().unwrap(), part],
        );
    }
    // Nothing listens at this address any more.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    for address in [&*address, "no address"] {
        let output = run(example("zero_copy_bytes").arg(&file).arg(address));
        assert_refused_by("zero_copy_bytes", &output, &["cannot connect to", address]);
    }
    // A peer that reads nothing and disconnects.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let rude = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let output = run(example("zero_copy_bytes").arg(&file).arg(address));
    assert_refused_by("zero_copy_bytes", &output, &["cannot write to the socket"]);
    rude.join().unwrap();
    let output = run(&mut example("zero_copy_bytes"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stderr),
        "usage: zero_copy_bytes FILE [ADDRESS]\n"
    );
}

#[test]
fn crc32c_prints_crcs_and_copies_what_has_the_right_one() {
    let folder = Folder::new();
    let (known, large) = (folder.path("known"), folder.file("large", 2 * MIB + 17));
    fs::write(&known, "123456789").unwrap();
    for defer in ["0", "1"] {
        let crc32c = |args: &[&str]| {
            let mut command = example("crc32c");
            command.env("TOKIO_DOCA_SOFT_DEFER", defer);
            command.args(args).current_dir(&folder.0);
            run(&mut command)
        };
        let output = crc32c(&["known", "large"]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        let printed = text(&output.stdout).to_owned();
        let (first, second) = printed.split_once('\n').unwrap();
        assert_eq!(first, "e3069283  known");
        let crc = second.split_once(' ').unwrap().0;
        // `crc32c` computes this in three parts, each of which starts with the CRC of the parts
        // before.
        assert_eq!(crc, format!("{:08x}", bitwise(0, &large.1)));
        let output = crc32c(&["-c", crc, "large", "copy"]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        assert!(fs::read(folder.path("copy")).unwrap() == large.1);
        fs::remove_file(folder.path("copy")).unwrap();
        let output = crc32c(&["-c", "0xe3069283", "large", "copy"]);
        assert_eq!(output.status.code(), Some(1));
        let message = text(&output.stderr);
        let says = message.contains(&format!("is 0x{crc}, and 0xe3069283 was expected"));
        assert!(says, "{message}");
        assert!(!folder.path("copy").exists() && !folder.path("copy.part").exists());
    }
    let output = run(example("crc32c").arg("-c"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn sha_file_prints_what_sha256sum_prints_and_checks_it() {
    let folder = Folder::new();
    let sums = folder.path("sums");
    let lens = [0, 1, 64, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 17];
    let files = lens.map(|len| folder.file(&format!("file {len}"), len));
    for (defer, name) in [
        ("0", "sha1"),
        ("0", "sha256"),
        ("1", "sha256"),
        ("1", "sha512"),
    ] {
        let sha_file = |args: &[&str]| {
            let mut command = example("sha_file");
            command.env("TOKIO_DOCA_SOFT_DEFER", defer);
            command.args(["-a", name]).args(args).current_dir(&folder.0);
            command
        };
        let names = lens.map(|len| format!("file {len}"));
        let output = run(&mut sha_file(&names.each_ref().map(|name| &name[..])));
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        let expected: String = files
            .iter()
            .zip(&names)
            .map(|((_, bytes), file)| format!("{}  {file}\n", hex_digest(name, bytes)))
            .collect();
        assert_eq!(text(&output.stdout), expected);
        fs::write(&sums, expected.replacen("  ", " *", 1)).unwrap();
        let output = run(&mut sha_file(&["-c", "sums"]));
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        assert_eq!(text(&output.stdout).matches(": OK\n").count(), lens.len());
        // Changes the last byte of the last file.
        let (last, mut bytes) = files[lens.len() - 1].clone();
        *bytes.last_mut().unwrap() ^= 1;
        let whole = fs::read(&last).unwrap();
        fs::write(&last, bytes).unwrap();
        let output = run(&mut sha_file(&["-c", "sums"]));
        fs::write(&last, whole).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(text(&output.stdout).matches(": FAILED\n").count(), 1);
        let message = "sha_file: 1 of 8 files differ from their sums\n";
        assert_eq!(text(&output.stderr), message);
    }
}

fn hex_digest(name: &str, bytes: &[u8]) -> String {
    let digest = match name {
        "sha1" => sha1::Sha1::digest(bytes).to_vec(),
        "sha256" => sha2::Sha256::digest(bytes).to_vec(),
        _ => sha2::Sha512::digest(bytes).to_vec(),
    };
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sha_file_hashes_its_input() {
    let folder = Folder::new();
    let (path, bytes) = folder.file("file", 2 * MIB + 5);
    let mut command = example("sha_file");
    command.stdin(fs::File::open(path).unwrap()).arg("-");
    let output = run(&mut command);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let expected = format!("{}  -\n", hex_digest("sha256", &bytes));
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn sha_file_says_what_it_cannot_read() {
    let folder = Folder::new();
    let (file, bytes) = folder.file("file", 100);
    let none = folder.path("none");
    let refused = |args: &[&Path], parts: &[&str]| {
        let output = run(example("sha_file").args(args));
        assert_refused_by("sha_file", &output, parts);
    };
    let (file_name, none_name) = (file.to_str().unwrap(), none.to_str().unwrap());
    refused(&[&none], &[none_name, "No such file"]);
    refused(
        &[&folder.0],
        &[folder.0.to_str().unwrap(), "is a directory"],
    );
    refused(&[Path::new("-c"), &none], &[none_name, "No such file"]);
    refused(
        &[Path::new("-a"), Path::new("md5"), &file],
        &["\"md5\"", "sha512"],
    );
    let sums = folder.path("sums");
    for (text, parts) in [
        ("", &["no sums"][..]),
        ("nonsense\n", &["line 1", "SHA-256"]),
        ("\n00\u{e9}\n", &["line 2", "SHA-256"]),
        (
            &format!("{}  {none_name}\n", "0".repeat(64)),
            &[none_name, "No such file"],
        ),
        (
            &format!("{}  {file_name}\n", hex_digest("sha512", &bytes)),
            &["line 1"],
        ),
    ] {
        fs::write(&sums, text).unwrap();
        refused(&[Path::new("-c"), &sums], parts);
    }
    // The other files are hashed all the same.
    let output = run(example("sha_file").args([&none, &file]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).starts_with(&hex_digest("sha256", &bytes)));
    let output = run(&mut example("sha_file"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("usage: sha_file "));
}

fn crate_file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn epoll_rdma_posts_all_kinds_of_operations() {
    for defer in ["0", "1"] {
        let mut command = example("epoll_rdma");
        let output = run(command.env("TOKIO_DOCA_SOFT_DEFER", defer).arg("30"));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""));
        let told = "30 messages were answered, the event is 1, and a graph copied and hashed the last one\n";
        assert_eq!(out, told);
    }
    for args in [&["0"][..], &["100001"], &["many"], &["1", "2"]] {
        let output = run(example("epoll_rdma").args(args));
        let parts = ["usage: epoll_rdma [MESSAGES]", "1 to 100000"];
        assert_refused_by("epoll_rdma", &output, &parts);
    }
}

#[test]
fn own_epoll_loop_is_told_of_each_copy_once() {
    for defer in ["0", "1"] {
        let mut command = example("own_epoll_loop");
        let output = run(command.env("TOKIO_DOCA_SOFT_DEFER", defer).arg("3"));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""));
        let told = "48 copies of 4096 bytes by pf0, each told once";
        assert!(out.starts_with(told), "{out}");
    }
    for args in [&["0"][..], &["10001"], &["many"], &["1", "2"]] {
        let output = run(example("own_epoll_loop").args(args));
        let parts = ["usage: own_epoll_loop [TICKS]", "1 to 10000"];
        assert_refused_by("own_epoll_loop", &output, &parts);
    }
}

#[test]
fn hybrid_shows_the_three_modes_and_sleeps_while_it_waits() {
    let output = run(&mut example("hybrid"));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), err), (Some(0), ""));
    let lines: Vec<&str> = out.lines().map(str::trim_start).collect();
    let cpu = |line: &str| -> f64 {
        let share = line.split("waiting takes ").nth(1).unwrap();
        share.split(' ').next().unwrap().parse().unwrap()
    };
    for (line, name) in lines.iter().zip(["event: ", "hybrid: ", "busy-poll: "]) {
        assert!(line.starts_with(name) && line.contains(" events"), "{out}");
    }
    // The CPU time of busy-polling depends on other programs.
    assert!(cpu(lines[0]) < 20.0 && cpu(lines[1]) < 20.0, "{out}");
    for args in [&["much"][..], &["-1"], &["30", "40"]] {
        let output = run(example("hybrid").args(args));
        assert_refused_by("hybrid", &output, &["usage: hybrid [SPIN_MICROSECONDS]"]);
    }
    // The error message comes from the library.
    let output = run(example("hybrid").arg("1000001"));
    assert_refused_by("hybrid", &output, &["1.000001s", "1s", "BusyPoll"]);
}

#[test]
fn the_page_of_examples_names_each() {
    let page = crate_file("examples/README.md");
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "README.md"
                || ["(", "`"]
                    .iter()
                    .any(|begin| page.contains(&format!("{begin}{name}"))),
            "{name} is not in examples/README.md"
        );
    }
}

#[test]
fn graph_runs_ten_instances_and_draws_on_request() {
    for defer in ["0", "1"] {
        let mut command = example("graph");
        let output = run(command.env("TOKIO_DOCA_SOFT_DEFER", defer));
        let out = text(&output.stdout);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        assert_eq!(out.lines().count(), 11, "{out}");
        for number in 0..10_u8 {
            let digest = sha2::Sha256::digest(vec![number; 64 << 10]);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("block {number}: SHA-256 {digest}\n");
            assert!(out.contains(&line), "{line} in {out}");
        }
        assert!(out.ends_with("10 instances verified\n"), "{out}");
    }
    let output = run(example("graph").arg("--dot"));
    let out = text(&output.stdout);
    assert!(
        out.starts_with("digraph {") && out.contains("label=\"report\""),
        "{out}"
    );
    assert!(!out.contains("verified"), "nothing ran");
    let output = run(example("graph").arg("x"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("usage: graph"));
}

#[test]
fn graph_pipeline_writes_replicas_that_are_the_source() {
    let folder = Folder::new();
    for (defer, len) in [("0", 0), ("1", 1), ("0", 65_536), ("1", 9 * MIB + 17)] {
        let (file, bytes) = folder.file(&format!("file {len}"), len);
        let replicas = ["left", "right"].map(|side| folder.path(&format!("{side} {len}")));
        let mut command = example("graph_pipeline");
        command.env("TOKIO_DOCA_SOFT_DEFER", defer).arg(&file);
        let output = run(command.args(&replicas));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""), "{len} bytes");
        let says = format!("{} blocks, {len} bytes in ", len.div_ceil(65_536));
        assert!(out.starts_with(&says), "{out}");
        assert!(out.ends_with("verify failures: 0\n"), "{out}");
        for replica in &replicas {
            let same = fs::read(replica).unwrap() == bytes;
            assert!(same, "{} differs", replica.display());
        }
        // Existing files are not overwritten.
        let parts = [replicas[0].to_str().unwrap(), "File exists"];
        assert_refused_by("graph_pipeline", &run(&mut command), &parts);
    }
}

#[test]
fn graph_pipeline_names_the_block_whose_replica_is_torn() {
    let folder = Folder::new();
    // All bytes are equal, so that a missing byte is detected only by the length.
    let file = folder.path("zeros");
    fs::write(&file, vec![0; 20 * 65_536 + 5]).unwrap();
    for (defer, block) in [("0", "0"), ("1", "13"), ("0", "20")] {
        let replicas = ["left", "right"].map(|side| folder.path(&format!("{side} {block}")));
        let mut command = example("graph_pipeline");
        command.env("TOKIO_DOCA_SOFT_DEFER", defer);
        command.args(["--corrupt", block]).arg(&file);
        let output = run(command.args(&replicas));
        assert_eq!(output.status.code(), Some(1));
        let message = format!(
            "graph_pipeline: block {block}: verify: the right replica has another digest\n"
        );
        assert_eq!(text(&output.stderr), message);
        let out = text(&output.stdout);
        assert!(out.starts_with("21 blocks, ") && out.ends_with("verify failures: 1\n"));
    }
    let mut command = example("graph_pipeline");
    let output = run(command.args(["--corrupt", "21"]).arg(&file));
    assert_refused_by("graph_pipeline", &output, &["no block 21", "there are 21"]);
}

#[test]
fn graph_pipeline_draws_on_request_and_says_what_it_cannot_read() {
    let folder = Folder::new();
    // Without a file argument the program uses its own executable.
    let output = run(&mut example("graph_pipeline"));
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let output = run(example("graph_pipeline").arg("--dot"));
    let out = text(&output.stdout);
    assert!(out.starts_with("digraph {") && out.contains("label=\"verify\""));
    assert_eq!(
        (out.matches(" -> ").count(), out.matches("blocks").count()),
        (8, 0)
    );
    let pipe = folder.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, part) in [
        (folder.path("none"), "No such file"),
        (folder.0.clone(), "no regular file"),
        (pipe, "no regular file"),
    ] {
        let output = run(example("graph_pipeline").arg(&path));
        let parts = [path.to_str().unwrap(), part];
        assert_refused_by("graph_pipeline", &output, &parts);
    }
    for wrong in [&["--corrupt", "x"][..], &["--x"], &["a", "b"]] {
        let output = run(example("graph_pipeline").args(wrong));
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).starts_with("usage: graph_pipeline "));
    }
}

#[test]
fn the_dpu_fetches_what_the_host_exports() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let folder = Folder::new();
    let (desc, info) = (folder.path("export_desc"), folder.path("buffer_info"));
    let dpu = |view: &str| {
        let mut command = example("dma_copy_dpu");
        command.env("TOKIO_DOCA_SOFT", view);
        run(command.arg("-d").arg(&desc).arg("-b").arg(&info))
    };
    assert_refused_by("dma_copy_dpu", &dpu("dpu"), &["export_desc"]);
    let mut host = example("dma_copy_host")
        .args(["-t", "from the host"])
        .arg("-d")
        .arg(&desc)
        .arg("-b")
        .arg(&info)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(host.stdout.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    assert!(line.starts_with("Please copy"), "{line}");
    let output = dpu("dpu");
    assert_eq!(text(&output.stderr), "");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines[0], "Remote DMA copy was done Successfully");
    assert_eq!(lines[1], "Memory content: from the host");
    let mut faulty = example("dma_copy_dpu");
    faulty
        .env("TOKIO_DOCA_SOFT", "dpu")
        .env("TOKIO_DOCA_SOFT_FAULTS", "error:IoFailed");
    let output = run(faulty.arg("-d").arg(&desc).arg("-b").arg(&info));
    assert_refused_by("dma_copy_dpu", &output, &["input/output operation failed"]);
    // A process that plays the host has other devices.
    assert_refused_by("dma_copy_dpu", &dpu("host"), &["03:00.0", "pf0"]);
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
    assert_refused_by("dma_copy_dpu", &dpu("dpu"), &["has ended"]);
}
