//! Checks of the CPUs, the CPUs that the scheduler leaves alone, and the clock.

use super::row::{Finding, Found};
use super::view::View;

/// Returns the number of CPUs in a list of the kernel, such as `0-3,8`. Returns `None` if the text
/// is not such a list.
fn count(list: &str) -> Option<u64> {
    let mut count: u64 = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

pub(super) fn cpus(view: &View) -> Found {
    let list = view.status("Cpus_allowed_list")?;
    let all = count(&list).ok_or_else(|| view.odd("proc/self/status", "a list of CPUs"))?;
    if all > 1 {
        return Ok(Finding::ok(format!("{all}: {list}")));
    }
    Ok(Finding::note(
        format!("one: {list}"),
        "A thread that busy-polls takes the only CPU from what it waits for.",
        "taskset -a -p -c 0-3 PID; docker run --cpuset-cpus=0-3; a larger virtual machine",
    ))
}

pub(super) fn isolated(view: &View) -> Found {
    const ISOLATED: &str = "sys/devices/system/cpu/isolated";
    let list = view.text(ISOLATED)?;
    if !list.is_empty() {
        count(&list).ok_or_else(|| view.odd(ISOLATED, "a list of CPUs"))?;
        return Ok(Finding::ok(list));
    }
    Ok(Finding::note(
        "none",
        "The scheduler runs other tasks on the CPUs of threads that busy-poll, which delays the \
         slowest of their answers. Pin such a thread to an isolated CPU (PollThread::cpu).",
        "boot with isolcpus=LIST nohz_full=LIST on the command line of the kernel, where LIST \
         names some of several CPUs, as 2-3 of four",
    ))
}

/// Clock sources that a program can read without a system call.
const FAST: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "riscv_clocksource",
];

pub(super) fn clock(view: &View) -> Found {
    const FOLDER: &str = "sys/devices/system/clocksource/clocksource0";
    let current = format!("{FOLDER}/current_clocksource");
    let name = view.text(&current)?;
    if name.is_empty() || name.len() > 64 || name.contains(char::is_whitespace) {
        return Err(view.odd(&current, "the name of a clock"));
    }
    if FAST.contains(&&*name) {
        return Ok(Finding::ok(name));
    }
    let there = view.text(&format!("{FOLDER}/available_clocksource"));
    let there = there.unwrap_or_default();
    let other = FAST
        .iter()
        .find(|it| there.split_whitespace().any(|word| word == **it));
    let mend = match other {
        Some(other) => format!("echo {other} >/{current}"),
        None => "boot with tsc=reliable on the command line of the kernel, if dmesg says that it \
                 gave up the TSC and the machine's TSC is stable"
            .to_owned(),
    };
    Ok(Finding::note(
        name,
        "Each reading of this clock is a system call. Threads that busy-poll read it, and so do \
         all time limits: answers take longer.",
        mend,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        let odd = ["", "a", "3-1", "1-", "0-18446744073709551615"];
        assert_eq!(["0", "0-3,8", "1,3"].map(count), [1, 5, 2].map(Some));
        assert_eq!(odd.map(count), [None; 5]);
    }
}
