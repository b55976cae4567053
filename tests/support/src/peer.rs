//! A second process, which runs the test's own program and the same test in another role.
//!
//! ```text
//! parent: Peer::start("name of the test", "role")   child: peer::role() == Some("role")
//!         say(line), hear() <------- lines ------->        hear(), say(line)
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::{LIMIT, programs};

const ROLE: &str = "TOKIO_DOCA_TEST_ROLE";
/// The mark of lines from the child to the parent. Other lines are output of the test harness.
const MARK: &str = "@@ ";

pub struct Peer {
    child: Child,
    /// `None` once the input was closed.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts the test with this name in a process of its own.
    pub fn start(test: &str, role: &str) -> Peer {
        Peer::start_with(test, role, |_| {})
    }

    /// As [`Peer::start`], after `prepare` has changed the command.
    pub fn start_with(test: &str, role: &str, prepare: impl FnOnce(&mut Command)) -> Peer {
        let mut command = again(test, role);
        prepare(&mut command);
        Peer::spawn(command)
    }

    /// Starts the test as an unprivileged user, if this process is root. That user need not have
    /// access to the program's folder: the command names the program by a link that the kernel
    /// follows.
    pub fn start_as_nobody(test: &str, role: &str) -> Peer {
        use std::os::unix::process::CommandExt;
        let mut command = again(test, role);
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not root: the other process is of the same user");
            return Peer::spawn(command);
        }
        if programs::is_native() {
            let mut linked = Command::new("/proc/self/exe");
            linked.args(command.get_args());
            let changed = command.get_envs();
            linked.envs(changed.filter_map(|(name, value)| Some((name, value?))));
            command = linked;
        }
        command.uid(65534).gid(65534);
        Peer::spawn(command)
    }

    /// Starts a command whose program talks by [`say`] and [`hear`].
    pub fn spawn(mut command: Command) -> Peer {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        // This thread ends with the child.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK)
                    && send.send(said.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Peer {
            child,
            input,
            lines,
        }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Returns the next line. Panics if the other process is silent for too long, or ends.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        self.lines
            .recv_timeout(LIMIT * programs::slowdown())
            .expect("the other process says something")
    }

    /// Exchanges a line between two processes: each gets the next line of the other one.
    #[track_caller]
    pub fn swap(&mut self, other: &mut Peer) {
        let (ours, theirs) = (self.hear(), other.hear());
        self.say(&theirs);
        other.say(&ours);
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Returns true if every thread of the process is stopped.
    pub fn is_stopped(&self) -> bool {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        })
    }

    /// Kills the process, and waits until it is dead.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has killed itself by signal 9.
    pub fn dies(mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "the other process: {status}");
    }

    /// Closes its input, waits until the process has ended, and checks that its test passed.
    pub fn ends(mut self) {
        self.input = None;
        let status = self.child.wait().unwrap();
        assert!(
            status.success(),
            "the other process: {status}, signal {:?}",
            status.signal()
        );
    }
}

impl Drop for Peer {
    /// Kills the process, so that a failed test leaves no process behind, running or stopped, that
    /// keeps its output open.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command that runs a test in a process of its own, for tests that need more control
/// than [`Peer`] gives.
pub fn again(test: &str, role: &str) -> Command {
    let mut command = programs::this_program();
    command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(ROLE, role);
    command
}

/// Returns the role of this process in the test; `None` in the process that was started first.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs in the child: sends a line to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// Runs in the child: returns the parent's next line; `None` once the parent has closed the input.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim_end().to_owned())
}

/// Returns bytes in hexadecimal, as a word of a line.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

pub fn unhex(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    text.as_bytes().chunks(2).map(byte).collect()
}

/// Waits until a process has no more descriptors, memfds and threads than `before`. It may have
/// fewer: resources of an earlier peer may still have been open when `before` was counted.
pub fn is_as_before(pid: i32, before: (usize, usize, usize), what: &str) {
    let end = Instant::now() + LIMIT * programs::slowdown();
    loop {
        let now = footprint(pid);
        if now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2 {
            return;
        }
        assert!(
            Instant::now() < end,
            "{what}: {before:?} before, {now:?} now"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of open descriptors, mapped memfds and threads of a process.
pub fn footprint(pid: i32) -> (usize, usize, usize) {
    let count = |folder: &str| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/{folder}"));
        entries.unwrap().count()
    };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (count("fd"), maps.matches("memfd:").count(), count("task"))
}
