//! Programs that tests start: themselves once more, and the examples; on another machine's
//! architecture through an emulator.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What cargo starts programs of this architecture with, if that is not the machine's own.
fn runner() -> Option<String> {
    let arch = std::env::consts::ARCH.to_uppercase();
    let name = format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_RUNNER");
    std::env::var(name).ok()
}

/// Whether programs run without an emulator.
pub fn is_native() -> bool {
    runner().is_none()
}

/// A program that was built with this one.
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

/// How much longer something may take here: an emulator is slow, and so is an emulated machine,
/// which says so.
pub fn slowdown() -> u32 {
    let said = std::env::var("TOKIO_DOCA_TEST_SLOWDOWN");
    let said = said.ok().and_then(|times| times.parse().ok());
    said.unwrap_or(if runner().is_some() { 10 } else { 1 })
}

/// The full name of a test of the module that says it, for a second process that runs that test
/// alone.
#[macro_export]
macro_rules! test_name {
    ($test:ident) => {{
        // A test that was renamed does not compile here.
        let _ = $test;
        $crate::programs::within_crate(concat!(module_path!(), "::", stringify!($test)))
    }};
}

/// The path without the name of the crate, which the test harness leaves out.
pub const fn within_crate(path: &str) -> &str {
    let mut at = 0;
    while path.as_bytes()[at] != b':' {
        at += 1;
    }
    path.split_at(at + 2).1
}

/// This test binary once more.
pub fn this_program() -> Command {
    program(std::env::current_exe().unwrap())
}

/// Whether programs run in an emulator, which does not do `what`: the test says so, and is not run.
pub fn is_emulated(what: &str) -> bool {
    let runner = runner();
    if let Some(runner) = &runner {
        println!("not run: {runner} does not {what}");
    }
    runner.is_some()
}

/// Fails unless root runs the test. Tests that need root are in modules named `needs_root`, and are
/// ignored unless they are asked for.
pub fn assert_root() {
    let is_root = nix::unistd::geteuid().is_root();
    assert!(is_root, "this test needs root");
}

/// Whether every thread of this process but the calling one sleeps. A thread that is about to run
/// and has no CPU yet does not.
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

/// The project's folder.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Where cargo puts what it builds with this program.
fn profile() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.parent().and_then(Path::parent).unwrap().to_path_buf()
}

/// An example, which `cargo test` builds beside this one.
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

/// The same program under a limit of the shell: `limit` has the arguments of `ulimit`. It inherits
/// none of the descriptors that whoever started the tests left open, which would count.
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

/// A new folder, which is removed when this is dropped.
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

    /// A file of `len` bytes that do not repeat with any period that a chunk could hide.
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

/// A program that goes on, and does not outlive its test.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (out, (said, lines)) = (child.stdout.take().unwrap(), channel());
        // Ends with the program.
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines();
            lines
                .map_while(Result::ok)
                .all(|line| said.send(line).is_ok())
        });
        Running { child, lines }
    }

    /// The next line that it writes. It must come soon.
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

/// Runs it to its end, which must come soon.
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
