//! A keeper and its server, which end with their test.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::device::adapter;
use support::programs::{Running, example};

pub(crate) fn on_device() -> Vec<String> {
    let adapter = adapter().map(|name| ["--device".to_owned(), name]);
    adapter.into_iter().flatten().collect()
}

pub(crate) struct Service {
    pub(crate) keeper: Running,
    pub(crate) server: Pid,
    pub(crate) address: String,
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
        command.stderr(stderr);
        let mut service = Service {
            keeper: Running::start(command),
            server: Pid::from_raw(0),
            address: String::new(),
        };
        service.wait();
        service
    }

    /// Waits until a server listens.
    pub(crate) fn wait(&mut self) {
        let line = self.keeper.line();
        let words = line.strip_prefix("Listening on ").unwrap();
        let (address, pid) = words.split_once(" as process ").unwrap();
        self.address = address.to_owned();
        self.server = Pid::from_raw(pid.parse().unwrap());
    }

    /// Kills the server. The next server listens at the same address.
    pub(crate) fn kill_server(&mut self) {
        kill(self.server, Signal::SIGKILL).unwrap();
        let address = self.address.clone();
        self.wait();
        assert_eq!(self.address, address);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.keeper.kill();
        let _ = kill(self.server, Signal::SIGKILL);
    }
}
