//! Programs that tests start: the test program itself and the examples. Programs of another
//! architecture run in an emulator.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Returns the emulator with which cargo starts programs of this architecture; `None` if they run
/// natively.
fn runner() -> Option<String> {
    let arch = std::env::consts::ARCH.to_uppercase();
    let name = format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_RUNNER");
    std::env::var(name).ok()
}

/// Returns true if programs run without an emulator.
pub fn is_native() -> bool {
    runner().is_none()
}

/// Returns the command that runs a program built together with this one.
pub fn program(path: impl AsRef<Path>) -> Command {
    let runner = runner().unwrap_or_default();
    let mut words = runner.split_whitespace();
    match words.next() {
        None => Command::new(path.as_ref()),
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(path.as_ref());
            command
        }
    }
}

/// Returns the factor by which things may take longer here: 10 in an emulator, or
/// `TOKIO_DOCA_TEST_SLOWDOWN`, which an emulated machine sets. Defaults to 1.
pub fn slowdown() -> u32 {
    let said = std::env::var("TOKIO_DOCA_TEST_SLOWDOWN");
    let said = said.ok().and_then(|times| times.parse().ok());
    said.unwrap_or(if runner().is_some() { 10 } else { 1 })
}

/// Expands to the full name of a test in the calling module, for a second process that runs only
/// that test.
#[macro_export]
macro_rules! test_name {
    ($test:ident) => {{
        // After a rename of the test, this does not compile.
        let _ = $test;
        $crate::programs::within_crate(concat!(module_path!(), "::", stringify!($test)))
    }};
}

/// Returns the path without the name of the crate, which the test harness omits.
pub const fn within_crate(path: &str) -> &str {
    let mut at = 0;
    while path.as_bytes()[at] != b':' {
        at += 1;
    }
    path.split_at(at + 2).1
}

/// Returns the command that runs this test binary again.
pub fn this_program() -> Command {
    program(std::env::current_exe().unwrap())
}

/// Returns true if programs run in an emulator, which cannot do `what`, and prints that the test is
/// skipped.
pub fn is_emulated(what: &str) -> bool {
    let runner = runner();
    if let Some(runner) = &runner {
        println!("not run: {runner} does not {what}");
    }
    runner.is_some()
}

/// Panics unless root runs the test. Tests that need root are in modules named `needs_root`, and
/// are ignored unless requested.
pub fn assert_root() {
    let is_root = nix::unistd::geteuid().is_root();
    assert!(is_root, "this test needs root");
}

/// Returns true if every thread of this process except the calling one sleeps. A thread that is
/// runnable but waits for a CPU does not sleep.
pub fn others_sleep() -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let here = nix::unistd::gettid().to_string();
    let sleeps = |task: fs::DirEntry| {
        // proc_pid_stat(5): `1234 (name) S ...`.
        let stat = fs::read_to_string(task.path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").unwrap().1.starts_with('S'))
    };
    tasks.filter(|task| task.file_name() != *here).all(sleeps)
}

/// Returns the project's folder.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the folder of cargo's profile, where the programs built with this one are.
fn profile() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.parent().and_then(Path::parent).unwrap().to_path_buf()
}

/// Returns the command of an example, which `cargo test` builds too. Panics if the example is
/// missing or older than its source.
pub fn example(name: &str) -> Command {
    let binary = profile().join("examples").join(name);
    let hint = "`cargo test` and `cargo build --examples` build it, `cargo test --test` does not";
    let built = fs::metadata(&binary).unwrap_or_else(|_| panic!("no example {name}: {hint}"));
    let one = vec![root().join(format!("examples/{name}.rs"))];
    let sources = fs::read_dir(root().join("examples").join(name));
    let sources = sources.map_or(one, |files| {
        files.map(|file| file.unwrap().path()).collect()
    });
    for source in sources
        .iter()
        .filter_map(|source| fs::metadata(source).ok())
    {
        let stale = source.modified().unwrap() > built.modified().unwrap();
        assert!(
            !stale,
            "the example {name} is older than its source: {hint}"
        );
    }
    let mut command = program(&binary);
    command
        .stdin(Stdio::null())
        .env_remove("TOKIO_DOCA_SOFT_DEFER")
        .env_remove("TOKIO_DOCA_SOFT_FAULTS");
    command
}

/// Returns a command that runs `program` under a limit of the shell. `limit` has the arguments of
/// `ulimit`. Descriptors 3 to 9 are closed, since those left open by the process that started the
/// tests would count.
pub fn limited(limit: &str, program: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit {limit} && exec \"$0\" \"$@\""),
    ]);
    shell.arg(program.get_program()).args(program.get_args());
    shell.stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// A new folder, which is removed when the value is dropped.
pub struct Folder(pub PathBuf);

impl Default for Folder {
    fn default() -> Folder {
        Folder::new()
    }
}

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("examples-{}-{number}", std::process::id());
        let path = profile().join("tmp").join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file of `len` pseudo-random bytes, which do not repeat with the size of any chunk.
    /// Returns its path and bytes.
    pub fn file(&self, name: &str, len: usize) -> (PathBuf, Vec<u8>) {
        let mut state = len as u64 + 1;
        let next = |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..len).map(next).collect();
        fs::write(self.path(name), &bytes).unwrap();
        (self.path(name), bytes)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running program, which is killed at the end of its test.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (out, (said, lines)) = (child.stdout.take().unwrap(), channel());
        // This thread ends with the program.
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines();
            lines
                .map_while(Result::ok)
                .all(|line| said.send(line).is_ok())
        });
        Running { child, lines }
    }

    /// Returns the next line that the program writes. Panics if it does not come in time.
    #[track_caller]
    pub fn line(&self) -> String {
        self.lines
            .recv_timeout(super::LIMIT * slowdown())
            .expect("it says something")
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command to its end, and returns its output. Panics if it does not end in time.
pub fn run(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + super::LIMIT * slowdown();
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it did not end: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
