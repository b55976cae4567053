//! Checks of the kernel's version, the features that it lacks, and namespaces.

use super::row::{Finding, Found};
use super::view::{View, few};

const RELEASE: &str = "proc/sys/kernel/osrelease";

/// Returns the first two numbers of a release such as `6.12.4-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    next().zip(next())
}

fn release(view: &View) -> Result<(String, (u32, u32)), String> {
    let text = view.text(RELEASE)?;
    let version = version(&text).filter(|_| text.len() <= 64);
    let version = version.ok_or_else(|| view.odd(RELEASE, "the release of a kernel"))?;
    Ok((text, version))
}

pub(super) fn kernel(view: &View) -> Found {
    let (text, version) = release(view)?;
    if version >= (5, 12) {
        return Ok(Finding::ok(text));
    }
    // If the environment cannot be read, the variable is taken as not set.
    let environment = view.lossy("proc/self/environ").unwrap_or_default();
    let mut variables = environment.split('\0');
    if variables.any(|it| it.starts_with("RDMAV_FORK_SAFE=")) {
        return Ok(Finding::ok(format!("{text}, and RDMAV_FORK_SAFE is set")));
    }
    Ok(Finding::note(
        text,
        "Before Linux 5.12 a process that forks, or starts another program, moves pages away from \
         the adapter that reaches them: data is corrupted.",
        "export RDMAV_FORK_SAFE=1, or a newer kernel",
    )
    .or_problem(view.has_adapter()))
}

/// Features by the kernel version that introduced them, with the effect on the library without
/// each.
const FEATURES: [((u32, u32), &str, &str); 3] = [
    (
        (5, 14),
        "MADV_POPULATE_WRITE (5.14)",
        "an import of memory may take longer than its time limit",
    ),
    (
        (6, 5),
        "SO_PEERPIDFD (6.5)",
        "an exporter watches peers of other pid namespaces by connections, of which it keeps 256",
    ),
    (
        (6, 16),
        "SO_PASSRIGHTS (6.16)",
        "other users of the machine can make a process keep descriptors open, up to its limit",
    ),
];

pub(super) fn features(view: &View) -> Found {
    let (_, version) = release(view)?;
    let missing = FEATURES.iter().filter(|(since, ..)| version < *since);
    let (names, effects): (Vec<_>, Vec<_>) = missing
        .map(|(_, name, effect)| ((*name).to_owned(), *effect))
        .unzip();
    if names.is_empty() {
        return Ok(Finding::ok("all that the library uses, by the version"));
    }
    Ok(Finding::note(
        format!("by the version there is no {}", few(&names)),
        format!(
            "The software device works, but: {}. SECURITY.md says more.",
            effects.join("; ")
        ),
        "a newer kernel, where users who are strangers to each other share the machine",
    ))
}

/// The first pid namespace of a system, as the kernel names it.
const FIRST_PIDS: &str = "pid:[4026531836]";

pub(super) fn namespaces(view: &View) -> Found {
    let link = view.path("proc/self/ns/pid");
    let pids = std::fs::read_link(link).ok();
    let pids = pids.map(|pids| match pids.as_os_str() == FIRST_PIDS {
        true => "pid: the first",
        false => "pid: its own",
    });
    let is_first = view.is_first_user_namespace()?;
    let user = if is_first {
        "user: the first"
    } else {
        "user: its own"
    };
    let found = format!("{user}, {}", pids.unwrap_or("pid: unknown"));
    if is_first {
        return Ok(Finding::ok(found));
    }
    Ok(Finding::note(
        found,
        "Capabilities of a user namespace of its own do not lift the limit of locked memory. Users \
         without a number in it cannot be told from each other.",
        "docker run --userns=host, if the limit of locked memory cannot be raised",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        let known = ["6.12.4-amd64", "5.4", "5.12-rc1+"].map(version);
        assert_eq!(known, [(6, 12), (5, 4), (5, 12)].map(Some));
        let odd = ["", "6", "v6.1", "99999999999.1"].map(version);
        assert_eq!(odd, [None; 4]);
    }
}
