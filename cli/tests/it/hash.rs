//! Tests `tokio-doca hash`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

use crate::support::{Folder, bytes};

/// Returns the output of a program of coreutils; `None` if it is not installed.
fn judge(folder: &Folder, program: &str, names: &[&OsStr]) -> Option<Output> {
    let judged = Command::new(program)
        .args(names)
        .current_dir(folder.path(""))
        .output();
    if judged.is_err() {
        println!("not run: there is no {program}");
    }
    judged.ok()
}

#[test]
fn sums_are_those_of_coreutils_byte_by_byte() {
    let folder = Folder::new();
    let part = 1 << 20;
    let names = ["empty", "a b", "back\\slash", "new\nline", "part", "more"].map(OsStr::new);
    let names = [&names[..], &[OsStr::from_bytes(b"no\xffutf8")]].concat();
    let sizes = [0, 1, 63, 64, part, part * 2 + 1, 4097];
    for (name, size) in names.iter().zip(sizes) {
        folder.write(name, bytes(size));
    }
    for algorithm in ["sha1", "sha256", "sha512"] {
        let args = [OsStr::new("hash"), OsStr::new("-a"), OsStr::new(algorithm)];
        let args = args.iter().chain(&names);
        let ours = folder.command(args).output().unwrap();
        assert!(ours.status.success() && ours.stderr.is_empty());
        if let Some(theirs) = judge(&folder, &format!("{algorithm}sum"), &names) {
            assert!(theirs.status.success());
            assert_eq!(ours.stdout, theirs.stdout, "{algorithm}");
        }
    }
}

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn a_dash_is_stdin() {
    let folder = Folder::new();
    folder.write("abc", "abc");
    let mut command = folder.command(["hash", "-"]);
    let output = command
        .stdin(File::open(folder.path("abc")).unwrap())
        .output();
    assert_eq!(output.unwrap().stdout, format!("{ABC}  -\n").as_bytes());
}

#[test]
fn what_is_missing_is_said_and_the_others_are_hashed() {
    let folder = Folder::new();
    folder.write("a", "abc");
    folder.write("z", "abc");
    let ran = folder.run(["hash", "a", "missing", "z"]);
    assert_eq!(ran.out, format!("{ABC}  a\n{ABC}  z\n"));
    ran.refused(1, &["cannot read missing: No such file"]);
    folder
        .run(["hash", "."])
        .refused(1, &["cannot hash .: it is a directory: name a file"]);
    folder
        .run(["hash", "new\nline"])
        .refused(1, &["\"new\\nline\""]);
}

#[test]
fn a_device_with_small_limits_hashes_large_files() {
    let folder = Folder::new();
    folder.write("a", bytes(3 << 20));
    let whole = folder.run(["hash", "a"]).done();
    let mut command = folder.command(["hash", "a", "--device", "pf1"]);
    let output = command.env("TOKIO_DOCA_SOFT_LIMITS", "bluefield2").output();
    assert_eq!(output.unwrap().stdout, whole.as_bytes());
}
