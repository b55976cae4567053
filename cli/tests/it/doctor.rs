//! Tests `tokio-doca doctor`. Most tests build the files of a system without faults, and change one
//! file.

use std::process::Command;

use serde_json::Value;

use crate::support::{Folder, Ran};
use crate::system::{CLOCK, PORT, RELEASE, System};

const NAMES: [&str; 16] = [
    "memlock",
    "huge pages",
    "CPUs",
    "isolated CPUs",
    "clock source",
    "kernel",
    "kernel features",
    "RDMA modules",
    "RDMA devices",
    "RDMA files",
    "RDMA ports",
    "RDMA addresses",
    "other namespaces",
    "/dev/shm",
    "namespaces",
    "memfd_create",
];

#[test]
fn a_system_without_faults_has_rows_that_are_ok() {
    let system = System::new();
    NAMES.iter().for_each(|name| system.ok(name));
    let text = system.run(&[]).done();
    assert_eq!(text.lines().filter(|it| it.starts_with("ok ")).count(), 16);
    assert!(
        text.contains("\nok       RDMA devices       mlx5_0\n"),
        "{text}"
    );
    assert!(text.contains("mlx5_0/1 10.0.0.1\n"), "{text}");
    assert!(text.contains("60 of 64 of 2 MiB are free\n"), "{text}");
}

#[test]
fn a_low_memlock_is_found() {
    let system = System::new();
    system.ok("memlock");
    let set = |soft: u64, hard: &str| {
        let line = format!("Max locked memory         {soft}  {hard}    bytes\n");
        system.set("proc/self/limits", line);
    };
    let parts = [
        "64 KiB; a listener takes 8 MiB at first and 34.1 MiB",
        "NoMemory",
        "ulimit -l",
    ];
    set(64 << 10, "65536");
    system.finds("memlock", "problem", parts);
    set(16 << 20, "unlimited");
    system.finds("memlock", "note", ["16 MiB", "NoMemory", "ulimit -l 71680"]);
    set(35 << 20, "36700160");
    system.ok("memlock");
    // The software device locks no memory.
    set(64 << 10, "65536");
    system.no_adapter();
    system.finds("memlock", "note", ["64 KiB", "software device", "as root"]);
}

#[test]
fn cap_ipc_lock_lifts_memlock_in_the_first_user_namespace_alone() {
    let system = System::new();
    system.change(
        "proc/self/limits",
        "unlimited            unlimited            bytes",
        "0 0 bytes",
    );
    system.finds("memlock", "problem", ["0 bytes", "", ""]);
    let status = "proc/self/status";
    system.change(
        status,
        "CapEff:\t0000000000000000",
        "CapEff:\t0000000000004000",
    );
    system.ok("memlock");
    system.set("proc/self/uid_map", "0 100000 65536\n");
    system.finds("memlock", "problem", ["0 bytes", "", ""]);
    let row = system.row("namespaces");
    assert_eq!(
        (&row["state"], &row["found"]),
        (&"note".into(), &"user: its own, pid: the first".into())
    );
}

#[test]
fn missing_huge_pages_are_found() {
    let system = System::new();
    system.ok("huge pages");
    let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let parts = ["0 of 64 of 2 MiB are free", "NoMemory", "vm.nr_hugepages"];
    system.set(&format!("{pool}/free_hugepages"), "0\n");
    system.finds("huge pages", "note", parts);
    system.set(&format!("{pool}/nr_hugepages"), "0\n");
    system.finds("huge pages", "note", ["none", "NoMemory", "sysctl"]);
    system.remove("sys/kernel/mm/hugepages");
    system.finds("huge pages", "note", ["none", "Transparent", "sysctl"]);
}

#[test]
fn a_missing_isolated_cpu_is_found() {
    let system = System::new();
    system.ok("isolated CPUs");
    system.set("sys/devices/system/cpu/isolated", "\n");
    system.finds("isolated CPUs", "note", ["none", "busy-poll", "isolcpus="]);
    system.change("proc/self/status", "0-3", "2");
    system.finds("CPUs", "note", ["one: 2", "busy-polls", "taskset"]);
}

#[test]
fn a_slow_clock_source_is_found() {
    let system = System::new();
    for fast in ["tsc", "kvm-clock", "arch_sys_counter"] {
        system.set(CLOCK, fast);
        system.ok("clock source");
    }
    for slow in ["hpet", "acpi_pm"] {
        system.set(CLOCK, slow);
        system.finds(
            "clock source",
            "note",
            [slow, "system call", "echo tsc >/sys/devices"],
        );
    }
    let available = CLOCK.replace("current", "available");
    system.set(&available, "hpet acpi_pm\n");
    system.finds(
        "clock source",
        "note",
        ["acpi_pm", "system call", "tsc=reliable"],
    );
}

#[test]
fn missing_rdma_modules_are_found() {
    let system = System::new();
    system.ok("RDMA modules");
    system.no_adapter();
    // Without an adapter, the lists of modules alone decide.
    system.ok("RDMA modules");
    system.set("proc/modules", "ext4 1 0 - Live 0x0\n");
    let parts = [
        "ib_core, but not ib_uverbs",
        "adapter",
        "modprobe ib_uverbs",
    ];
    system.finds("RDMA modules", "note", parts);
    system.remove("sys/module/ib_core");
    system.finds(
        "RDMA modules",
        "note",
        ["none", "software device", "modprobe"],
    );
}

#[test]
fn an_adapter_without_ib_uverbs_is_a_problem() {
    let system = System::new();
    system.set("proc/modules", "ib_core 1 0 - Live 0x0\n");
    system.ok("RDMA modules");
    system.remove("sys/class/infiniband_verbs");
    system.finds(
        "RDMA modules",
        "problem",
        ["not ib_uverbs", "adapter", "modprobe"],
    );
}

#[test]
fn modules_without_a_device_are_found() {
    let system = System::new();
    system.ok("RDMA devices");
    system.no_adapter();
    let parts = [
        "though there are modules",
        "software device",
        "rdma link add",
    ];
    system.finds("RDMA devices", "note", parts);
}

#[test]
fn a_device_without_its_file_is_found() {
    let system = System::new();
    system.ok("RDMA files");
    system.remove("dev/infiniband/uverbs0");
    let parts = [
        "/dev/infiniband/uverbs0: No such file",
        "Device::open",
        "--device",
    ];
    system.finds("RDMA files", "problem", parts);
    system.remove("dev");
    assert_eq!(system.row("RDMA files")["found"], "not asked: --root");
}

#[test]
fn a_port_that_is_down_is_found() {
    let system = System::new();
    system.ok("RDMA ports");
    let state = format!("{PORT}/state");
    system.set(&state, "1: DOWN\n");
    let parts = ["mlx5_0/1 down", "PortDown", "ip link set eth0 up"];
    system.finds("RDMA ports", "problem", parts);
    system.set(&format!("{PORT}/link_layer"), "InfiniBand\n");
    system.set(&state, "2: INIT\n");
    system.finds(
        "RDMA ports",
        "problem",
        ["mlx5_0/1 init", "PortDown", "opensm"],
    );
    // Another port is active.
    let second = "sys/class/infiniband/mlx5_1/ports/1";
    system.set(&format!("{second}/state"), "4: ACTIVE\n");
    system.set(&format!("{second}/link_layer"), "InfiniBand\n");
    let found = "mlx5_0/1 init, mlx5_1/1 active";
    system.finds("RDMA ports", "note", [found, "PortDown", "opensm"]);
}

#[test]
fn a_port_with_link_local_addresses_alone_is_found() {
    let system = System::new();
    system.ok("RDMA addresses");
    let gid = format!("{PORT}/gids/1");
    for local in ["0000:0000:0000:0000:0000:ffff:a9fe:0001\n", "::\n"] {
        system.set(&gid, local);
        let parts = [
            "mlx5_0/1 has only link-local ones",
            "link",
            "ip address add",
        ];
        system.finds("RDMA addresses", "note", parts);
    }
    // On InfiniBand, all addresses of a subnet have this prefix.
    system.set(&format!("{PORT}/link_layer"), "InfiniBand\n");
    system.ok("RDMA addresses");
}

#[test]
fn addresses_of_another_namespace_are_found() {
    let system = System::new();
    system.ok("other namespaces");
    // Another namespace has an interface of that name as well, and the port has its address too.
    let gid = "0000:0000:0000:0000:0000:ffff:0a00:0002\n";
    system.set(&format!("{PORT}/gids/3"), gid);
    system.set(&format!("{PORT}/gid_attrs/types/3"), "RoCE v2\n");
    system.set(&format!("{PORT}/gid_attrs/ndevs/3"), "eth0\n");
    let parts = [
        "mlx5_0/1 10.0.0.2 (eth0)",
        "takes one of this namespace",
        "ip netns exec",
    ];
    system.finds("other namespaces", "note", parts);
    // A broadcast address does not count as an address of this namespace.
    system.set(&format!("{PORT}/gids/3"), gid.replace("0002", "00ff"));
    system.finds("other namespaces", "note", ["10.0.0.255", "", ""]);
}

#[test]
fn a_port_without_an_address_of_this_namespace_is_a_problem() {
    let system = System::new();
    system.change("proc/net/dev", "eth0", "eth7");
    let parts = [
        "mlx5_0/1 10.0.0.1 (eth0)",
        "peers cannot reach",
        "ip netns exec",
    ];
    system.finds("other namespaces", "problem", parts);
    // If the addresses are not known, the names of interfaces decide.
    system.remove("proc/net/fib_trie");
    system.finds("other namespaces", "problem", parts);
    system.change("proc/net/dev", "eth7", "eth0");
    system.ok("other namespaces");
}

#[test]
fn a_small_dev_shm_is_found() {
    let system = System::new();
    let mounts = "proc/self/mountinfo";
    system.ok("/dev/shm");
    system.change(mounts, "size=4194304k", "size=65536k");
    system.finds("/dev/shm", "note", ["64 MiB", "shm_open", "--shm-size=1g"]);
    system.change(mounts, ",size=65536k", "");
    system.ok("/dev/shm");
    system.change(mounts, "/dev/shm", "/dev/pts");
    system.finds(
        "/dev/shm",
        "note",
        ["not mounted", "shm_open", "mount -t tmpfs"],
    );
}

#[test]
fn an_old_kernel_is_found() {
    let system = System::new();
    system.set(RELEASE, "5.12.0\n");
    system.ok("kernel");
    system.set(RELEASE, "5.11.22-generic\n");
    system.finds(
        "kernel",
        "problem",
        ["5.11.22", "forks", "RDMAV_FORK_SAFE=1"],
    );
    system.set("proc/self/environ", b"A=\xff\0RDMAV_FORK_SAFE=1\0");
    system.ok("kernel");
    system.set("proc/self/environ", "");
    system.no_adapter();
    system.finds("kernel", "note", ["5.11.22", "forks", "RDMAV_FORK_SAFE=1"]);
}

#[test]
fn what_a_kernel_lacks_is_found() {
    let system = System::new();
    for (release, has, lacks) in [
        ("6.16.0", "", None),
        ("6.15.9", "6.16", Some("6.5)")),
        ("6.4.0", "6.5)", Some("5.14")),
        ("5.13.0", "5.14", None),
    ] {
        system.set(RELEASE, release);
        if has.is_empty() {
            system.ok("kernel features");
            continue;
        }
        system.finds("kernel features", "note", [has, "SECURITY.md", "newer"]);
        let found = system.row("kernel features")["found"].to_string();
        assert!(lacks.is_none_or(|it| !found.contains(it)), "{found}");
    }
}

#[test]
fn a_seccomp_filter_is_not_tried_below_a_root() {
    let system = System::new();
    system.ok("memfd_create");
    system.change("proc/self/status", "Seccomp:\t0", "Seccomp:\t2");
    let row = system.row("memfd_create");
    assert_eq!(row["state"], "note");
    let found = row["found"].as_str().unwrap();
    assert!(
        found.ends_with("permits memfd_create: not asked: --root"),
        "{row}"
    );
}

#[test]
fn memfds_that_this_system_refuses_are_found() {
    let folder = Folder::new();
    let run = |inject: &str| {
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null", "-e", inject]);
        let command = command.args([env!("CARGO_BIN_EXE_tokio-doca"), "doctor"]);
        Some(Ran::of(command.current_dir(folder.path("")).output().ok()?))
    };
    let Some(ran) = run("inject=memfd_create:error=EPERM") else {
        return println!("not run: there is no strace");
    };
    let refused = "problem  memfd_create       refused: Operation not permitted";
    assert!(ran.out.contains(refused), "{}", ran.out);
    ran.refused(1, &["problem", "memfd_create"]);
    let ran = run("trace=memfd_create").unwrap();
    assert!(ran.out.contains("\nok       memfd_create "), "{}", ran.out);
}

#[test]
fn this_system_has_each_row_in_80_columns() {
    let folder = Folder::new();
    let ran = folder.run(["doctor"]);
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.err);
    assert!(!ran.out.contains('\x1b'), "{}", ran.out);
    let rows = ran.out.lines().filter(|line| !line.starts_with(' '));
    let names: Vec<&str> = rows.map(|line| line[9..28].trim()).collect();
    assert_eq!(names, NAMES);
    for line in ran.out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line.trim_end(), line);
    }
    let json: Value = serde_json::from_str(&folder.run(["doctor", "--json"]).out).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.iter().map(|row| &row["name"]).eq(&NAMES));
    let states = ["ok", "note", "problem"];
    assert!(
        rows.iter()
            .all(|row| states.iter().any(|it| row["state"] == *it))
    );
    let is_problem = rows.iter().any(|row| row["state"] == "problem");
    assert_eq!(is_problem, ran.code == Some(1));
}
