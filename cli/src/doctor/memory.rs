//! Checks of memory: the limit for locked memory, huge pages, `/dev/shm`, and memfds.

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statvfs::statvfs;

use super::row::{Finding, Found};
use super::view::{View, few, size};

/// The bytes of a stream's memory with the default `StreamOptions`.
pub(super) const STREAM: u64 = 17 * 32832 + 128;
/// The bytes that a listener or connector allocates first: the memory of as many streams as fit
/// into 8 MiB.
const FIRST: u64 = STREAM * ((8 << 20) / STREAM);
const CONNECTIONS: u64 = 64;
const ALL: u64 = STREAM * CONNECTIONS;

/// Twice `ALL`, which leaves memory for queues and for the program.
const ENOUGH: u64 = ALL.next_multiple_of(1 << 20) * 2;

/// The number of the capability CAP_IPC_LOCK.
const IPC_LOCK: u32 = 14;

pub(super) fn memlock(view: &View) -> Found {
    const LIMITS: &str = "proc/self/limits";
    let text = view.text(LIMITS)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let mut words = line.unwrap_or_default().split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(u64::MAX),
        word => word.parse().ok(),
    };
    let odd = || view.odd(LIMITS, "the limit of locked memory");
    let (soft, hard) = limit().zip(limit()).ok_or_else(odd)?;
    let there = match soft {
        u64::MAX => "unlimited".to_owned(),
        soft => size(soft),
    };
    let found = format!(
        "{there}; a listener takes {} at first and {} with all its {CONNECTIONS} connections",
        size(FIRST),
        size(ALL)
    );
    let caps = view.status("CapEff").unwrap_or_default();
    let caps = u64::from_str_radix(&caps, 16).unwrap_or_default();
    // In a user namespace of a container, the capability does not apply.
    if caps >> IPC_LOCK & 1 == 1 && view.is_first_user_namespace() == Ok(true) {
        return Ok(Finding::ok(format!(
            "{found}; CAP_IPC_LOCK lifts the limit for this process"
        )));
    }
    if soft >= ALL {
        return Ok(Finding::ok(found));
    }
    let adapters = view.has_adapter();
    let mut means = "Adapters lock the memory that they reach, and their queues beside what a \
                     listener takes by default. What exceeds the limit fails with NoMemory."
        .to_owned();
    if !adapters {
        means += " The software device locks nothing.";
    }
    let shell = match hard >= ENOUGH {
        true => format!("ulimit -l {}", ENOUGH >> 10),
        false => "as root, ulimit -l unlimited".to_owned(),
    };
    let mend = format!(
        "{shell}; LimitMEMLOCK=infinity in the unit of a service; docker run --ulimit memlock=-1"
    );
    Ok(Finding::note(found, means, mend).or_problem(adapters && soft < FIRST))
}

pub(super) fn huge_pages(view: &View) -> Found {
    const POOLS: &str = "sys/kernel/mm/hugepages";
    let (mut pools, mut free) = (Vec::new(), 0);
    for name in view.names(POOLS)? {
        let kib = name.strip_prefix("hugepages-");
        let Some(kib) = kib.and_then(|it| it.strip_suffix("kB")?.parse::<u64>().ok()) else {
            continue;
        };
        let all = view.number(&format!("{POOLS}/{name}/nr_hugepages"))?;
        let left = view.number(&format!("{POOLS}/{name}/free_hugepages"))?;
        free += left;
        if all > 0 {
            let size = size(kib.saturating_mul(1 << 10));
            pools.push(format!("{left} of {all} of {size} are free"));
        }
    }
    let found = match pools.is_empty() {
        true => "none in the pools".to_owned(),
        false => few(&pools),
    };
    if free > 0 {
        return Ok(Finding::ok(found));
    }
    Ok(Finding::note(
        found,
        "An Mmap of HugePages::Size2MiB or Size1GiB fails with NoMemory. They pay where an adapter \
         reaches many MiB at random; HugePages::Transparent needs no pool.",
        "sysctl vm.nr_hugepages=64 (128 MiB in pages of 2 MiB)",
    ))
}

/// The size of `/dev/shm` that Docker gives a container, in bytes.
const SMALL: u64 = 64 << 20;

/// Returns the options of the topmost mount of `/dev/shm`, which have its size. Returns `None` if
/// nothing is mounted there.
fn shm_of(mounts: &str) -> Option<&str> {
    let on = |line: &&str| line.split(' ').nth(4) == Some("/dev/shm");
    let mount = mounts.lines().rev().find(on)?;
    let options = mount.split_once(" - ")?.1.split(' ').nth(2)?;
    Some(options)
}

fn parsed(size: &str) -> Option<u64> {
    let unit = match size.chars().last()? {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        _ => return size.parse().ok(),
    };
    let number: u64 = size[..size.len() - 1].parse().ok()?;
    number.checked_mul(1 << unit)
}

pub(super) fn shm(view: &View) -> Found {
    const MOUNTS: &str = "proc/self/mountinfo";
    let text = view.lossy(MOUNTS)?;
    let none = "Programs that share memory by shm_open(3) fail. The library's memory is memfds, \
                which need no /dev/shm.";
    let mount = "mount -t tmpfs -o size=1g tmpfs /dev/shm";
    let Some(options) = shm_of(&text) else {
        return Ok(Finding::note("not mounted", none, mount));
    };
    let all = if view.live {
        let stat = statvfs("/dev/shm").map_err(|it| format!("statvfs: {}", it.desc()))?;
        stat.blocks().saturating_mul(stat.fragment_size())
    } else {
        let mut sizes = options.split(',').filter_map(|it| it.strip_prefix("size="));
        let Some(size) = sizes.next() else {
            return Ok(Finding::ok("the kernel's default, half of the memory"));
        };
        parsed(size).ok_or_else(|| view.odd(MOUNTS, "a size of /dev/shm that is a number"))?
    };
    if all > SMALL {
        return Ok(Finding::ok(size(all)));
    }
    Ok(Finding::note(
        size(all),
        "The library's memory is memfds, which this size does not limit. Programs that share \
         memory by shm_open(3), such as UCX and MPI, end with SIGBUS once it is full.",
        "mount -o remount,size=1g /dev/shm; docker run --shm-size=1g",
    ))
}

pub(super) fn memfd(view: &View) -> Found {
    let mode = view.status("Seccomp")?;
    let filtered = match &*mode {
        "0" => "no seccomp filter",
        "2" => "a seccomp filter is there",
        _ => return Err(view.odd("proc/self/status", "a mode of seccomp that is 0 or 2")),
    };
    if view.live {
        // Uses the same flags as the library.
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let tried = memfd_create(c"tokio-doca-doctor", flags);
        return Ok(memfd_of(tried.map(drop), filtered));
    }
    Ok(match &*mode {
        "0" => Finding::ok(filtered),
        _ => Finding::not_asked(&format!("{filtered}; whether it permits memfd_create: ")),
    })
}

/// Returns the finding for the result of an attempt to make a memfd.
fn memfd_of(tried: Result<(), Errno>, filtered: &str) -> Finding {
    let Err(errno) = tried else {
        return Finding::ok(format!("permitted; {filtered}"));
    };
    let mend = match errno {
        Errno::EACCES => "sysctl vm.memfd_noexec=1",
        Errno::EMFILE | Errno::ENFILE => "ulimit -n 65536",
        _ => {
            "docker run --security-opt seccomp=PROFILE, with memfd_create among the calls that \
             PROFILE permits; SystemCallFilter=@system-service in the unit of a service"
        }
    };
    let means = match errno {
        Errno::EPERM | Errno::ENOSYS => {
            "Memory of the library is memfds, and something refuses to make them, as a rule a \
             seccomp filter of the container or the service: no Mmap can be allocated."
        }
        _ => "Memory of the library is memfds: no Mmap can be allocated.",
    };
    let found = format!("refused: {}; {filtered}", errno.desc());
    Finding::note(found, means, mend).or_problem(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::row::State;

    #[test]
    fn a_refused_memfd_is_a_problem() {
        assert_eq!(memfd_of(Ok(()), "no seccomp filter").state, State::Ok);
        for (errno, mend) in [
            (Errno::EPERM, "seccomp=PROFILE"),
            (Errno::ENOSYS, "seccomp=PROFILE"),
            (Errno::EACCES, "vm.memfd_noexec"),
            (Errno::EMFILE, "ulimit -n"),
        ] {
            let finding = memfd_of(Err(errno), "a seccomp filter is there");
            assert_eq!(finding.state, State::Problem);
            assert!(finding.found.contains(errno.desc()), "{finding:?}");
            assert!(finding.mend.unwrap().contains(mend), "{errno}");
        }
    }

    #[test]
    fn a_listener_takes_what_the_library_documents() {
        assert_eq!(STREAM >> 10, 545);
        assert_eq!([FIRST, ALL].map(size), ["8 MiB", "34.1 MiB"]);
    }

    #[test]
    fn sizes_of_mounts_have_units() {
        let sizes = ["65536k", "1g", "64m", "512", "50%", "", "k"].map(parsed);
        let expected = [64 << 20, 1 << 30, 64 << 20, 512].map(Some);
        assert_eq!(sizes[..4], expected);
        assert_eq!(sizes[4..], [None; 3]);
        let odd = "18446744073709551615g";
        assert_eq!(parsed(odd), None);
    }
}
