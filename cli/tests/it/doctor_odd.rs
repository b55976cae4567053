//! Tests `tokio-doca doctor` with files that are missing or malformed, and with roots that are not
//! a system.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::Folder;
use crate::system::{CLOCK, RELEASE, System};

/// Files, each with a row that depends on this file alone.
const ODD: [(&str, &str); 10] = [
    ("proc/self/limits", "memlock"),
    ("proc/self/status", "CPUs"),
    ("proc/self/status", "memfd_create"),
    (
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "huge pages",
    ),
    ("sys/devices/system/cpu/isolated", "isolated CPUs"),
    (CLOCK, "clock source"),
    (RELEASE, "kernel"),
    (RELEASE, "kernel features"),
    (
        "sys/class/infiniband/mlx5_0/ports/1/link_layer",
        "RDMA ports",
    ),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "RDMA ports"),
];

#[test]
fn odd_files_are_unknown_and_nothing_fails() {
    for (path, name) in ODD {
        let system = System::new();
        let is_port = name == "RDMA ports";
        let mut odd: Vec<(Vec<u8>, &str)> = vec![
            (b"\xff\xfe\n".to_vec(), "UTF-8"),
            (vec![b'9'; 3 << 20], "longer than 1 MiB"),
        ];
        // An empty file is valid here: no CPU is isolated.
        if name != "isolated CPUs" && !is_port {
            odd.push((Vec::new(), "does not have"));
        }
        if !is_port {
            odd.push((b"no number - at all\n".to_vec(), "does not have"));
        }
        for (bytes, why) in odd {
            system.set(path, bytes);
            // `status` may have program names in it that are not UTF-8.
            let why = match (path, why) {
                ("proc/self/status", "UTF-8") => "does not have",
                _ if is_port => "does not say",
                _ => why,
            };
            system.unknown(name, why);
        }
        system.remove(path);
        let why = if is_port {
            "does not say"
        } else {
            "No such file"
        };
        system.unknown(name, why);
        fs::create_dir(system.0.path(path)).unwrap();
        let why = if is_port {
            "does not say"
        } else {
            "not a regular file"
        };
        system.unknown(name, why);
    }
}

#[test]
fn a_root_without_files_is_all_unknown() {
    let folder = Folder::new();
    fs::create_dir(folder.path("proc")).unwrap();
    let report = folder.run(["doctor", "--root", ".", "--json"]).done();
    let report: Value = serde_json::from_str(&report).unwrap();
    for row in report["rows"].as_array().unwrap() {
        assert!(
            row["found"].as_str().unwrap().starts_with("unknown: "),
            "{row}"
        );
    }
}

#[test]
fn a_pipe_instead_of_a_file_does_not_block() {
    let system = System::new();
    system.remove(RELEASE);
    let made = Command::new("mkfifo").arg(system.0.path(RELEASE)).status();
    assert!(made.unwrap().success());
    system.unknown("kernel", "not a regular file");
}

#[test]
fn a_root_that_is_none_is_wrong_usage() {
    let folder = Folder::new();
    folder.write("file", "");
    fs::create_dir(folder.path("empty")).unwrap();
    for (root, part) in [
        ("nothing", "cannot read nothing: No such file or directory"),
        ("file", "file is not a folder"),
        ("empty", "empty has neither proc nor sys"),
    ] {
        let ran = folder.run(["doctor", "--root", root]);
        assert_eq!(ran.out, "");
        ran.refused(2, &[part]);
    }
}
