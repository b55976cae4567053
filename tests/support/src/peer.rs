//! A second process: the test's own program once more, which runs the same test in another role.
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
/// What the child says to the parent begins with this; the rest is the test harness's.
const MARK: &str = "@@ ";

pub struct Peer {
    child: Child,
    /// `None` once it was closed.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts the test of this name in a process of its own.
    pub fn start(test: &str, role: &str) -> Peer {
        Peer::start_with(test, role, |_| {})
    }

    /// The same, with what `prepare` adds to the command.
    pub fn start_with(test: &str, role: &str, prepare: impl FnOnce(&mut Command)) -> Peer {
        let mut command = again(test, role);
        prepare(&mut command);
        Peer::spawn(command)
    }

    /// Starts the test as a user without rights, if this process is root. That user need not be
    /// able to enter the folder of the program, which is named by a link that the kernel follows.
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
        // Ends with the child.
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

    /// The next line; it fails if the other process says nothing for too long, or ends.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        self.lines
            .recv_timeout(LIMIT * programs::slowdown())
            .expect("the other process says something")
    }

    /// Gives each of the two processes the next line of the other one.
    #[track_caller]
    pub fn swap(&mut self, other: &mut Peer) {
        let (ours, theirs) = (self.hear(), other.hear());
        self.say(&theirs);
        other.say(&ours);
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Whether every thread of it has stopped.
    pub fn is_stopped(&self) -> bool {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        })
    }

    /// Kills it, and waits until it is dead.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It kills itself.
    pub fn dies(mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "the other process: {status}");
    }

    /// It ends by itself, and its test passed.
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
    /// A test that failed leaves nobody behind, stopped or not, who would keep its output open.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The test of this name in a process of its own, for those that need more of it than a [`Peer`].
pub fn again(test: &str, role: &str) -> Command {
    let mut command = programs::this_program();
    command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(ROLE, role);
    command
}

/// What this process is in the test, if it is not the one that was started first.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// In the child: says something to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// In the child: what the parent says; `None` once it has closed.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim_end().to_owned())
}

/// Bytes as a word of a line.
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

/// Waits until a process has no more than before. It may have less: what an earlier peer left was
/// perhaps not closed yet when it was counted.
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

/// Descriptors, memfds that are mapped, and threads of a process.
pub fn footprint(pid: i32) -> (usize, usize, usize) {
    let count = |folder: &str| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/{folder}"));
        entries.unwrap().count()
    };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (count("fd"), maps.matches("memfd:").count(), count("task"))
}
