//! The commands of `block_store`.

use std::path::Path;

use support::programs::*;

use super::chaos::Pair;
use crate::hostile::handshakes::{ghost, nobodies};

const STARTS: &str = "start what a program starts itself";

fn on_primary(pair: &Pair, words: &[&str]) -> (i32, Vec<u8>, String) {
    let mut command = example("block_store");
    command.arg(words[0]).arg(pair.addrs[0].to_string());
    // It ends when its patience does, and writes more than a pipe holds.
    let ended = command.args(&words[1..]).output().unwrap();
    let error = text(&ended.stderr).to_owned();
    (ended.status.code().unwrap(), ended.stdout, error)
}

fn reads(pair: &Pair, bytes: &[u8]) {
    let read = on_primary(pair, &["read", &bytes.len().to_string()]);
    assert!(read == (0, bytes.to_vec(), String::new()), "{}", read.2);
}

fn writes(pair: &Pair, file: &Path) {
    let written = on_primary(pair, &["write", file.to_str().unwrap()]);
    assert_eq!((written.0, &*written.2), (0, ""));
}

#[test]
fn a_file_is_read_as_it_was_written_whichever_side_was_killed_since() {
    if is_emulated(STARTS) {
        return;
    }
    let (folder, mut pair) = (Folder::new(), Pair::start());
    let (one, first) = folder.file("one", 1_000_000);
    let (other, second) = folder.file("other", 700_001);
    writes(&pair, &one);
    reads(&pair, &first);
    pair.kill_primary();
    reads(&pair, &first);
    // Without a replica.
    pair.kill_replica();
    writes(&pair, &other);
    reads(&pair, &second);
    pair.start_replica();
    pair.kill_primary();
    reads(&pair, &second);
}

/// More of them than it has places.
#[test]
fn clients_that_connect_to_nobody_take_no_place() {
    if is_emulated(STARTS) {
        return;
    }
    let (folder, pair) = (Folder::new(), Pair::start());
    for blob in nobodies().iter().cycle().take(100) {
        assert_eq!(ghost(pair.addrs[0], b"", blob).unwrap(), 0);
    }
    let (file, written) = folder.file("one", 1000);
    writes(&pair, &file);
    reads(&pair, &written);
}

#[test]
fn wrong_arguments_are_named_in_one_line() {
    if is_emulated(STARTS) {
        return;
    }
    let pair = Pair::start();
    for (words, part) in [
        (&["read", "1"][..], "block 0 was never written"),
        (&["read", "some"], "invalid digit"),
        (&["write", "/nowhere"], "No such file"),
        (&["read", "1", "--fast", "x"], "there is no flag --fast"),
        (&["read", "1", "--blocks", "0"], "there are 1 to 1048576"),
        (&["erase", "1"], "what? replica, serve, write or read"),
    ] {
        let (code, out, error) = on_primary(&pair, words);
        assert_eq!((code, &out[..]), (1, &b""[..]), "{words:?}: {error}");
        let lines = error.lines().count();
        assert!(error.contains(part) && lines == 1, "{words:?}: {error}");
    }
    let (folder, mut other) = (Folder::new(), example("block_store"));
    let (large, _) = folder.file("large", 65 * 65_536);
    let (code, _, error) = on_primary(&pair, &["write", large.to_str().unwrap()]);
    assert!(
        code == 1 && error.contains("there are 64 blocks"),
        "{error}"
    );
    // Another primary, and one of another size, have to wait.
    let there = pair.addrs[1].to_string();
    other.args([
        "serve",
        "127.0.0.1:0",
        "--blocks",
        "64",
        "--replica",
        &there,
    ]);
    let other = Running::start(other);
    assert!(other.line().contains("another primary is connected"));
}
