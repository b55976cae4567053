//! System calls for the bars and their baselines: CPU affinity, epoll and the load.

use std::os::fd::AsFd;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::Pid;

/// Restricts this thread, and the threads that it starts from now on, to a CPU. `None`: any CPU.
pub(crate) fn pin(cpu: Option<usize>) {
    let mut set = CpuSet::new();
    for at in 0..CpuSet::count() {
        if cpu.is_none_or(|cpu| cpu == at) {
            let _ = set.set(at);
        }
    }
    // A machine with one CPU has no other CPU: the figures are then reported as they are.
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

/// An epoll instance with one descriptor, edge-triggered as in Tokio.
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

/// Returns an error, as a note for the report, if two CPUs were not free in the last minute.
pub(crate) fn both_cpus() -> Result<(), String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let load: f64 = std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0.0);
    // The load includes the threads of the bars before.
    if cpus < 2 || load > cpus as f64 + 0.5 {
        return Err(format!(" [needs both CPUs free: {cpus} CPUs, load {load}]"));
    }
    Ok(())
}
