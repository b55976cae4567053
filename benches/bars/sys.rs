//! What the baselines ask of the system.

use std::os::fd::AsFd;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::Pid;

/// Where this thread, and those it starts from now on, may run. `None`: anywhere.
pub(crate) fn pin(cpu: Option<usize>) {
    let mut set = CpuSet::new();
    for at in 0..CpuSet::count() {
        if cpu.is_none_or(|cpu| cpu == at) {
            let _ = set.set(at);
        }
    }
    // A machine with one CPU has no other: what is measured then is reported as it is.
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

/// One descriptor in an epoll, edge-triggered, as Tokio has it.
pub(crate) struct Edge(Epoll);

impl Edge {
    pub(crate) fn on(fd: impl AsFd) -> Edge {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll descriptor");
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll
            .add(fd, EpollEvent::new(flags, 0))
            .expect("an eventfd can be waited for");
        Edge(epoll)
    }

    pub(crate) fn wait(&self) {
        let mut events = [EpollEvent::empty()];
        let _ = self.0.wait(&mut events, EpollTimeout::NONE);
    }
}

/// The load of the last minute, and whether two CPUs were free for us.
pub(crate) fn both_cpus() -> Result<(), String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let load: f64 = std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0.0);
    // Our own threads of the bars before are in it.
    if cpus < 2 || load > cpus as f64 + 0.5 {
        return Err(format!(" [needs both CPUs free: {cpus} CPUs, load {load}]"));
    }
    Ok(())
}
