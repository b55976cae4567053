//! Tests `tokio-doca copy`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::thread;

use crate::support::{Folder, Ran, bytes, limited};

#[test]
fn a_copy_has_the_same_bytes() {
    let folder = Folder::new();
    for (size, chunk) in [
        (0, "1M"),
        (1, "1M"),
        (4097, "7"),
        (1 << 20, "64K"),
        (2_500_001, "1M"),
    ] {
        folder.write("src", bytes(size));
        let ran = folder.run([
            "copy", "src", "dst", "--verify", "--chunk", chunk, "--force",
        ]);
        assert!(
            ran.err.contains(&format!("copied {size} bytes by pf0")),
            "{}",
            ran.err
        );
        assert!(ran.err.ends_with(", verified\n"), "{}", ran.err);
        assert_eq!(ran.done(), "");
        assert!(
            folder.read("dst") == bytes(size),
            "{size} bytes in chunks of {chunk}"
        );
        assert_eq!(folder.names(), ["dst", "src"]);
    }
}

#[test]
fn the_sum_of_the_copy_is_printed_as_sha256sum_does() {
    let folder = Folder::new();
    folder.write("src", bytes(1_234_567));
    let line = folder.run(["copy", "src", "dst", "--hash"]).done();
    assert_eq!(line, folder.run(["hash", "dst"]).done());
}

#[test]
fn an_existing_file_is_replaced_by_force_only() {
    let folder = Folder::new();
    folder.write("src", "new");
    folder.write("dst", "old");
    let ran = folder.run(["copy", "src", "dst"]);
    ran.refused(1, &["dst exists", "--force"]);
    assert_eq!(folder.read("dst"), b"old");
    folder.run(["copy", "src", "dst", "--force"]).done();
    assert_eq!(folder.read("dst"), b"new");

    symlink("nowhere", folder.path("link")).unwrap();
    folder
        .run(["copy", "src", "link"])
        .refused(1, &["link exists"]);
    fs::remove_file(folder.path("link")).unwrap();
    symlink("dst", folder.path("link")).unwrap();
    folder.write("src", "newer");
    folder.run(["copy", "src", "link", "--force"]).done();
    assert_eq!(folder.read("dst"), b"newer");
    assert!(
        fs::symlink_metadata(folder.path("link"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let folder = Folder::new();
    folder.write("src", "bytes");
    fs::hard_link(folder.path("src"), folder.path("same")).unwrap();
    for dst in ["src", "./src", "same"] {
        let ran = folder.run(["copy", "src", dst, "--force"]);
        ran.refused(1, &["is SRC itself"]);
    }
    assert_eq!(folder.read("src"), b"bytes");
}

#[test]
fn the_copy_has_the_permissions_and_may_be_of_a_file_that_is_read_only() {
    let folder = Folder::new();
    folder.write("src", "bytes");
    fs::set_permissions(folder.path("src"), PermissionsExt::from_mode(0o400)).unwrap();
    folder.run(["copy", "src", "dst", "--verify"]).done();
    assert_eq!(
        fs::metadata(folder.path("dst")).unwrap().mode() & 0o777,
        0o400
    );
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = Folder::new();
    folder.write("src", "bytes");
    for (src, dst, part) in [
        ("nothing", "dst", "cannot read nothing: No such file"),
        (".", "dst", "it is a directory"),
        ("/dev/zero", "dst", "no regular file"),
        ("src", ".", "is a directory"),
        ("src", "/dev/null", "no regular file"),
        (
            "src",
            "nowhere/dst",
            "cannot create nowhere/dst: No such file",
        ),
    ] {
        folder
            .run(["copy", src, dst, "--force"])
            .refused(1, &[part]);
    }
    assert_eq!(folder.names(), ["src"]);
}

#[test]
fn a_device_that_fails_leaves_no_half_file() {
    let folder = Folder::new();
    folder.write("src", bytes(3 << 20));
    let faults = "pass*1 error:IoFailed";
    let run = |args: &[&str]| {
        let mut command = folder.command(args);
        Ran::of(
            command
                .env("TOKIO_DOCA_SOFT_FAULTS", faults)
                .output()
                .unwrap(),
        )
    };
    run(&["copy", "src", "dst"]).refused(1, &["the device did not copy byte"]);
    assert_eq!(folder.names(), ["src"]);
    folder.write("dst", "old");
    run(&["copy", "src", "dst", "--force"]).refused(1, &["the device did not copy byte"]);
    assert_eq!(folder.names(), ["dst", "src"]);
    assert_eq!(folder.read("dst"), b"old");
}

/// Tests the limit of a file's size, at which the kernel sends SIGXFSZ.
#[test]
fn a_copy_beyond_the_limit_of_files_names_it_and_leaves_no_half_file() {
    let folder = Folder::new();
    folder.write("src", bytes(24_000_000));
    // Larger chunks would take a memory file beyond the limit.
    let command = folder.command(["copy", "src", "dst", "--chunk", "64K"]);
    let mut command = limited("-f 20000", &command);
    let ran = Ran::of(command.output().unwrap());
    ran.refused(1, &["cannot write dst: File too large", "ulimit -f"]);
    assert_eq!(folder.names(), ["src"]);
}

#[test]
fn a_signal_leaves_no_half_file() {
    let folder = Folder::new();
    folder.write("src", bytes(3 << 20));
    let mut command = folder.command(["copy", "src", "dst"]);
    // The device never completes the second job.
    command.env("TOKIO_DOCA_SOFT_FAULTS", "pass*1 lost");
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    while folder.names().len() == 1 {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        thread::yield_now();
    }
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.refused(1, &["interrupted: dst is what it was before"]);
    assert_eq!(folder.names(), ["src"]);
}

#[test]
fn a_chunk_that_the_device_refuses_is_wrong_usage() {
    let folder = Folder::new();
    folder.write("src", "bytes");
    for size in ["0", "x", "2G", "-1"] {
        let ran = folder.run(["copy", "src", "dst", &format!("--chunk={size}")]);
        ran.refused(2, &["--chunk", "64K"]);
    }
    let mut command = folder.command(["copy", "src", "dst", "--chunk", "2M"]);
    let output = command.env("TOKIO_DOCA_SOFT_LIMITS", "bluefield2").output();
    let parts = ["2097152 bytes", "at most 1048576"];
    Ran::of(output.unwrap()).refused(2, &parts);
    assert_eq!(folder.names(), ["src"]);
}
