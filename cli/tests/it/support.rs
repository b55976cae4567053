//! Runs the binary in a folder that is deleted at the end.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tokio-doca-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Returns the names of the files in the folder, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Returns the command of the tool with these arguments, to be run in the folder.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokio-doca"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOKIO_DOCA_") {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "CLICOLOR"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Returns the command under a limit that the shell's `ulimit` sets, for example `-n 64`.
pub(crate) fn limited(limit: &str, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(Stdio::null());
    limited
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Checks that the command succeeded, and returns its stdout.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    /// Checks the exit code, and that stderr is one line with these parts.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(self.err.starts_with("tokio-doca: "), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is missing: {}", self.err);
        }
    }
}

/// Starts a command, and waits until `has_begun` returns true. `has_begun` gets the folder of the
/// command's threads in `/proc`.
pub(crate) fn begun(mut command: Command, mut has_begun: impl FnMut(&str) -> bool) -> Child {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let threads = format!("/proc/{}/task", child.id());
    while !has_begun(&threads) {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        thread::yield_now();
    }
    child
}

/// Interrupts a command once it has [`begun`], and returns its exit code and output.
pub(crate) fn interrupted(command: Command, has_begun: impl FnMut(&str) -> bool) -> Ran {
    let child = begun(command, has_begun);
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &id]).status();
    assert!(killed.unwrap().success());
    Ran::of(child.wait_with_output().unwrap())
}

/// Returns the threads with this name, from the folder of a process's threads in `/proc`.
pub(crate) fn threads_named(threads: &str, name: &str) -> Vec<PathBuf> {
    let threads = fs::read_dir(threads).into_iter().flatten().flatten();
    let named = threads.filter(|it| {
        let comm = fs::read_to_string(it.path().join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    named.map(|it| it.path()).collect()
}

/// The token of a server and its peers.
pub(crate) const TOKEN: &str = "a token of sixteen and more";

/// A running command that listens. Its first line of output ends with its address.
pub(crate) struct Server {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) addr: String,
}

impl Server {
    pub(crate) fn new(folder: &Folder, args: &[&str]) -> Server {
        let mut command = folder.command(args);
        if !args.contains(&"--bind") {
            command.args(["--bind", "127.0.0.1:0"]);
        }
        Server::start(command)
    }

    pub(crate) fn start(mut command: Command) -> Server {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let (_, addr) = line.trim().split_once(" at ").unwrap();
        Server {
            child,
            out,
            addr: addr.to_owned(),
        }
    }

    /// Returns the next line of the server's stdout.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.unwrap().success());
    }

    /// Waits until the server has ended, and returns what it has printed since.
    pub(crate) fn ended(mut self) -> Ran {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut err).unwrap();
        let code = self.child.wait().unwrap().code();
        Ran { code, out, err }
    }

    pub(crate) fn stop(self) -> Ran {
        self.signal("-TERM");
        self.ended()
    }

    /// Stops the server, and checks that it refused a peer with another token.
    #[track_caller]
    pub(crate) fn stop_after_another_token(self) {
        let ran = self.stop();
        assert_eq!(ran.code, Some(0));
        let refused = "refused: its token is another one";
        assert!(ran.err.contains(refused), "{}", ran.err);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that a command with `--peer` and its server demand a token for other hosts, and that a
/// token without `--peer` is refused.
#[track_caller]
pub(crate) fn demand_tokens(folder: &Folder, measures: &[&str]) {
    let command = measures[0];
    let demanded = "give both sides a token";
    let far = folder.run([measures, &["--peer", "192.0.2.1"]].concat());
    far.refused(2, &["192.0.2.1 is not of the", demanded]);
    let open = folder.run([command, "serve", "--bind", "0.0.0.0:0"]);
    open.refused(2, &["--bind 0.0.0.0:0", demanded]);
    let ran = folder.run([measures, &["--token", TOKEN]].concat());
    ran.refused(2, &["a token is for --peer alone"]);
}

/// Returns bytes with a period of 251, not a power of two, so that a chunk at a wrong offset is
/// found.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    (0..count)
        .map(|at| (at % 251) as u8 ^ (at >> 16) as u8)
        .collect()
}
