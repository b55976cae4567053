//! A keeper and its server, which end with their test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::LIMIT;
use support::device::adapter;
use support::programs::example;

pub(crate) fn on_device() -> Vec<String> {
    let adapter = adapter().map(|name| ["--device".to_owned(), name]);
    adapter.into_iter().flatten().collect()
}

pub(crate) struct Service {
    pub(crate) keeper: Child,
    pub(crate) server: Pid,
    pub(crate) address: String,
    lines: Receiver<String>,
}

impl Service {
    pub(crate) fn start(flags: &[&str]) -> Service {
        Service::start_with(flags, Stdio::inherit())
    }

    pub(crate) fn start_with(flags: &[&str], stderr: Stdio) -> Service {
        let mut command = example("kv_store");
        command
            .args(["serve", "127.0.0.1:0"])
            .args(flags)
            .args(on_device());
        let piped = command.stdout(Stdio::piped()).stderr(stderr);
        let mut keeper = piped.spawn().unwrap();
        let (out, (said, lines)) = (keeper.stdout.take().unwrap(), channel());
        thread::spawn(move || {
            let lines = BufReader::new(out).lines();
            lines
                .map_while(Result::ok)
                .all(|line| said.send(line).is_ok())
        });
        let mut service = Service {
            keeper,
            server: Pid::from_raw(0),
            address: String::new(),
            lines,
        };
        service.wait();
        service
    }

    /// Waits until a server listens.
    pub(crate) fn wait(&mut self) {
        let line = self.lines.recv_timeout(LIMIT).unwrap();
        let words = line.strip_prefix("Listening on ").unwrap();
        let (address, pid) = words.split_once(" as process ").unwrap();
        self.address = address.to_owned();
        self.server = Pid::from_raw(pid.parse().unwrap());
    }

    /// Kills the server. The next one listens where it did.
    pub(crate) fn kill_server(&mut self) {
        kill(self.server, Signal::SIGKILL).unwrap();
        let address = self.address.clone();
        self.wait();
        assert_eq!(self.address, address);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        let _ = kill(self.server, Signal::SIGKILL);
    }
}
