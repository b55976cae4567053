//! Makes files of proc, sys and dev for `tokio-doca doctor`.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::support::{Folder, Ran};

/// The files of a system that has an adapter and no faults.
const FILES: [(&str, &str); 32] = [
    ("proc/self/limits", LIMITS),
    (
        "proc/self/status",
        "Name:\ttokio-doca\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\n\
         Cpus_allowed_list:\t0-3\n",
    ),
    ("proc/self/environ", "HOME=/root\0"),
    ("proc/self/uid_map", "         0          0 4294967295\n"),
    (
        "proc/self/mountinfo",
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
         25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=65536k\n\
         30 25 0:27 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=4194304k\n",
    ),
    ("proc/sys/kernel/osrelease", "6.18.1-amd64\n"),
    (
        "proc/modules",
        "ib_uverbs 1 0 - Live 0x0\nmlx5_ib 1 0 - Live 0x0\n",
    ),
    (
        "proc/net/dev",
        "Inter-|   Receive\n face |bytes\n    lo: 1 2\n  eth0: 3 4\n",
    ),
    ("proc/net/fib_trie", ROUTES),
    (
        "proc/net/if_inet6",
        "00000000000000000000000000000001 01 80 10 80       lo\n\
         fe800000000000000202c9fffe000001 04 40 20 80     eth0\n",
    ),
    ("sys/module/ib_core/refcnt", "1\n"),
    (
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "64\n",
    ),
    (
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
        "60\n",
    ),
    (
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
        "0\n",
    ),
    (
        "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages",
        "0\n",
    ),
    ("sys/devices/system/cpu/isolated", "2-3\n"),
    (CLOCK, "tsc\n"),
    (
        "sys/devices/system/clocksource/clocksource0/available_clocksource",
        "tsc hpet acpi_pm\n",
    ),
    ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
    ("sys/class/infiniband_verbs/abi_version", "6\n"),
    ("dev/infiniband/uverbs0", ""),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    (
        "sys/class/infiniband/mlx5_0/ports/1/link_layer",
        "Ethernet\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/rate",
        "100 Gb/sec (4X EDR)\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gids/0",
        "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gids/1",
        "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gids/2",
        "0000:0000:0000:0000:0000:0000:0000:0000\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0",
        "RoCE v2\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1",
        "RoCE v2\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
        "eth0\n",
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1",
        "eth0\n",
    ),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", ""),
];

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         unlimited            unlimited            bytes\n\
                      Max file locks            unlimited            unlimited            locks\n";

const ROUTES: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                      Local:\n     |-- 10.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.255\n        \
                      /32 link BROADCAST\n";

pub(crate) const CLOCK: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
pub(crate) const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";
pub(crate) const RELEASE: &str = "proc/sys/kernel/osrelease";

/// A folder with the files of a system, which `doctor` reads.
pub(crate) struct System(pub(crate) Folder);

impl System {
    pub(crate) fn new() -> System {
        let system = System(Folder::new());
        for (path, text) in FILES {
            system.set(path, text);
        }
        let pids = system.0.path("proc/self/ns/pid");
        fs::create_dir(pids.parent().unwrap()).unwrap();
        symlink("pid:[4026531836]", pids).unwrap();
        system
    }

    pub(crate) fn set(&self, path: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.0.path(path).parent().unwrap()).unwrap();
        self.0.write(path, bytes);
    }

    /// Replaces a part of a file.
    #[track_caller]
    pub(crate) fn change(&self, path: &str, from: &str, to: &str) {
        let text = String::from_utf8(self.0.read(path)).unwrap();
        assert!(text.contains(from), "{text}");
        self.set(path, text.replace(from, to));
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.0.path(path);
        match path.is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    pub(crate) fn no_adapter(&self) {
        self.remove("sys/class/infiniband");
        self.remove("sys/class/infiniband_verbs");
    }

    pub(crate) fn run(&self, more: &[&str]) -> Ran {
        let args = [&["doctor", "--root", "."][..], more].concat();
        self.0.run(args)
    }

    pub(crate) fn row(&self, name: &str) -> Value {
        let report: Value = serde_json::from_str(&self.run(&["--json"]).out).unwrap();
        let mut rows = report["rows"].as_array().unwrap().iter();
        rows.find(|row| row["name"] == name).unwrap().clone()
    }

    /// Checks that a row is ok.
    #[track_caller]
    pub(crate) fn ok(&self, name: &str) {
        let row = self.row(name);
        assert_eq!(row["state"], "ok", "{row}");
        assert!(row["means"].is_null() && row["mend"].is_null(), "{row}");
    }

    /// Checks a row's state, and the parts of its texts: what was found, what that means, and the
    /// remedy. If the state is a problem, checks that the command fails.
    #[track_caller]
    pub(crate) fn finds(&self, name: &str, state: &str, parts: [&str; 3]) {
        let row = self.row(name);
        assert_eq!(row["state"], state, "{row}");
        for (key, part) in ["found", "means", "mend"].into_iter().zip(parts) {
            let text = row[key].as_str().unwrap();
            assert!(text.contains(part), "{part:?} is missing: {row}");
        }
        let ran = self.run(&[]);
        match state {
            "problem" => ran.refused(1, &["problem", name]),
            _ => assert_eq!((ran.code, &*ran.err), (Some(0), "")),
        }
    }

    /// Checks that a row is unknown, and gives `why` as the reason.
    #[track_caller]
    pub(crate) fn unknown(&self, name: &str, why: &str) {
        let row = self.row(name);
        let found = row["found"].as_str().unwrap();
        assert!(found.starts_with("unknown: "), "{row}");
        assert!(found.contains(why), "{why:?} is missing: {row}");
        assert_eq!(row["state"], "note", "{row}");
    }
}
