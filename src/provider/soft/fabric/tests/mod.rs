//! Tests of the fabric: [memory], other [services], and the helpers of both.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::current;
use super::protocol::{
    Address, DESCRIPTORS, Kind, Netns, PAYLOAD, Payload, REQUEST_LEN, Reply, Request, Ticket,
    netns, socket,
};
use super::watch::Process;
use crate::error::{ErrorKind, Result};
use crate::process::Guarded;

mod memory;
mod services;

const ROLE: &str = "TOKIO_DOCA_TEST_ROLE";

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(300)
}

/// Waits until `holds` returns true.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = soon();
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the command that runs a test of a module in a separate process, which plays a role.
fn again(module: &str, test: &str, role: &str) -> Command {
    let (_, module) = module.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{module}::{test}");
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role);
    command
}

/// Runs the body in a separate process, in which no other test runs.
fn alone_in(module: &str, test: &str, body: impl FnOnce()) {
    if std::env::var(ROLE).is_ok() {
        return body();
    }
    let out = again(module, test, "alone").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let counted = String::from_utf8_lossy(&out.stdout).contains("1 passed");
    assert!(
        out.status.success() && counted,
        "{}\n{said}",
        String::from_utf8_lossy(&out.stdout)
    );
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    let error = result.err().expect("it is refused");
    assert_eq!(error.call(), None);
    error.kind()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns a changed copy of a ticket.
fn with(ticket: &Ticket, change: impl FnOnce(&mut Ticket)) -> Ticket {
    let mut ticket = ticket.clone();
    change(&mut ticket);
    ticket
}

/// Starts a server of instance `[5; 16]` that answers one client by `play`. Returns its ticket,
/// with the key `[6; 16]`.
fn hostile_server(
    kind: &'static Kind,
    payload: Payload,
    play: impl FnOnce(OwnedFd, Request) + Send + 'static,
) -> (Ticket, JoinHandle<()>) {
    let name = netns::hex(&netns::random().unwrap()).into_bytes();
    let address = Address::Abstract(name);
    let listener = socket::listen(&address).unwrap().try_clone().unwrap();
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false).unwrap();
    let ticket = Ticket {
        kind,
        slot: 0,
        generation: 1,
        netns: Netns::here().unwrap(),
        instance: [5; 16],
        key: [6; 16],
        address,
        payload,
    };
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let socket = OwnedFd::from(socket);
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
        let mut message = [0; REQUEST_LEN];
        socket::receive(socket.as_fd(), &mut message).unwrap();
        play(socket, Request::parse(&message).unwrap());
    });
    (ticket, thread)
}

/// Sends a reply with descriptors.
fn send(to: &OwnedFd, reply: &Reply, files: &[OwnedFd]) {
    let raw: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
    socket::send(to.as_fd(), reply.as_bytes(), &raw).unwrap();
}

/// A separate process that runs a test, exports, and does what it reads.
struct Other {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(module: &str, test: &str) -> Other {
        let mut command = again(module, test, "exporter");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        Other { process, said }
    }

    /// Makes the process do something, and returns its answer. The answer follows a mark, since the
    /// test harness prints other lines as well.
    fn ask(&mut self, what: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
        let marked = |line: std::io::Result<String>| {
            line.unwrap()
                .split_once("SAYS ")
                .map(|(_, said)| said.to_owned())
        };
        self.said
            .by_ref()
            .find_map(marked)
            .expect("it says something")
    }

    fn ticket(&mut self, kind: &'static Kind) -> Ticket {
        let digits = self.ask("export");
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        Ticket::parse(kind, &bytes).unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads lines from the standard input, and prints the answer to each.
fn play(mut answer: impl FnMut(&str) -> String) {
    for line in std::io::stdin().lines() {
        println!("SAYS {}", answer(&line.unwrap()));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
