//! Counts the system calls per operation: this program measures a point once more under strace, and
//! counts the lines of the trace between two calls that [`mark`] makes.

use std::fs;
use std::io;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::kind::{MODES, name};
use super::load::Plan;
use super::peer::Peer;
use crate::failure::reason;

/// The paths that mark the begin and the end of a round in a trace. Such files do not exist.
pub(super) const BEGIN: &str = "/tokio-doca/bench/begin";
pub(super) const END: &str = "/tokio-doca/bench/end";

/// The seconds for which the traced point is measured: long enough for some operations, since
/// strace slows each call.
const SECONDS: &str = "0.05";

/// Makes a system call with the path `file`, which shows in a trace.
pub(super) fn mark(file: &str) {
    let _ = fs::metadata(file);
}

/// Measures a point under strace, and returns the number of system calls per operation.
///
/// # Errors
///
/// Returns why the calls were not counted, in a sentence.
pub(super) fn calls(plan: &Plan, peer: Option<&Peer>) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| reason(&error))?;
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "signal=none", "--"]);
    command.arg(program).args(["bench", plan.kind.name()]);
    command.args(["--duration", SECONDS, "--json"]);
    command.args(["--mode", name(&MODES, &plan.mode)]);
    command.args(["--device", plan.device.info().name()]);
    command.args(["--depth", &plan.depth.to_string()]);
    command.args(["--threads", &plan.threads.to_string()]);
    if !plan.kind.has_one_size() {
        command.args(["--size", &plan.size.to_string()]);
    }
    if let Some(peer) = peer {
        peer.give(&mut command);
    }
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "strace is not installed".to_owned(),
        _ => format!("strace does not start: {}", reason(&error)),
    })?;
    let trace = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice::<Value>(&output.stdout).ok();
    let operations = report.and_then(|it| it["points"][0]["operations"].as_u64());
    match (between(&trace), operations) {
        (Some(calls), Some(operations @ 1..)) => Ok(calls as f64 / operations as f64),
        _ => Err(refusal(&trace)),
    }
}

/// Returns the number of calls between the last two marks.
fn between(trace: &str) -> Option<usize> {
    // The rounds before the last one are warm-ups.
    let (_, round) = trace.rsplit_once(BEGIN)?;
    let (round, _) = round.split_once(END)?;
    // The last call is that of the second mark, which does not count.
    let calls = round.lines().skip(1).filter(|line| is_call(line)).count();
    Some(calls.saturating_sub(1))
}

/// Returns true if the line shows the begin of a call: `[pid 7] read(3, ..`, not `<... read
/// resumed>`.
fn is_call(line: &str) -> bool {
    let line = line.strip_prefix("[pid").and_then(|it| it.split_once("] "));
    let line = line.map_or("", |(_, call)| call);
    line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains('(')
}

/// Returns why there is no count: what strace, or this program under it, has printed.
fn refusal(trace: &str) -> String {
    let said = |prefix| trace.lines().find_map(|line| line.strip_prefix(prefix));
    match (said("strace: "), said("tokio-doca: ")) {
        (Some(why), _) => format!("strace is refused: {why}"),
        (None, Some(why)) => format!("the run under strace failed: {why}"),
        (None, None) => "strace shows no round".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_last_round_are_counted_where_they_begin() {
        let trace = format!(
            "[pid 8] statx(AT_FDCWD, \"{BEGIN}\", ..) = -1 ENOENT\n\
             [pid 8] read(3, .., 8) = 8\n\
             [pid 8] statx(AT_FDCWD, \"{END}\", ..) = -1 ENOENT\n\
             [pid 8] statx(AT_FDCWD, \"{BEGIN}\", .. <unfinished ...>\n\
             [pid 9] epoll_wait(4,  <unfinished ...>\n\
             [pid 8] <... statx resumed>) = -1 ENOENT\n\
             [pid 9] <... epoll_wait resumed>, [], 8, 0) = 0\n\
             [pid 8] write(3, .., 8) = 8\n\
             [pid 8] statx(AT_FDCWD, \"{END}\", ..) = -1 ENOENT\n\
             [pid 8] read(3, .., 8) = 8\n"
        );
        assert_eq!(between(&trace), Some(2));
        assert_eq!(between("[pid 8] read(3, .., 8) = 8\n"), None);
        let why = refusal("strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted\n");
        assert!(why.starts_with("strace is refused: ptrace"), "{why}");
        assert_eq!(
            refusal("tokio-doca: it was lost\n"),
            "the run under strace failed: it was lost"
        );
    }
}
