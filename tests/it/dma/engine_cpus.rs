//! Engine threads may run on all CPUs of the process, even if the thread that attaches is pinned.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tokio_doca::soft::{Function, Port, Soft, SoftBuilder, Topology};
use tokio_doca::{Dma, Error, ErrorKind, WorkQ, device::PciAddr};

/// Returns the CPUs of the main thread.
fn all() -> Vec<usize> {
    list(&sched_getaffinity(Pid::this()).unwrap())
}

fn list(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap())
        .collect()
}

/// Attaches a context of a device called `name`, a name that no other test uses, and returns the
/// CPUs of each of its engine threads.
fn engines_of(name: &str, soft: SoftBuilder) -> Result<Vec<Vec<usize>>, Error> {
    let addr = PciAddr::new(0, 0, 0);
    let port = Port::new("p0", addr).function(Function::pf(name, addr));
    let soft = soft.topology(Topology::new([port]).unwrap()).build();
    let device = soft.open(name).unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let dma = Dma::builder(&device).attach(&workq)?;
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_engine = |name_of: String| name_of.trim_end().starts_with(&format!("doca-{name}"));
    let engines = tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(is_engine))
        .map(|task| {
            let tid = task.file_name().to_str().unwrap().parse().unwrap();
            list(&sched_getaffinity(Pid::from_raw(tid)).unwrap())
        })
        .collect();
    drop(dma);
    Ok(engines)
}

/// Runs `f` on a thread that is pinned to one CPU.
fn pinned<T: Send>(cpu: usize, f: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let mut set = CpuSet::new();
        set.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &set).unwrap();
        f()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn engines_run_on_the_cpus_of_the_process_and_not_on_that_of_a_pinned_caller() {
    let all = all();
    if all.len() < 2 {
        return eprintln!("not shown: this machine has one CPU");
    }
    let soft = || Soft::builder().engines(2);
    let engines = pinned(all[0], || engines_of("inherits", soft())).unwrap();
    assert_eq!(engines, [all.clone(), all.clone()]);

    let last = *all.last().unwrap();
    let engines = pinned(all[0], || engines_of("chooses", soft().engine_cpus([last]))).unwrap();
    assert_eq!(engines, [[last], [last]]);
}

#[test]
fn cpus_that_engines_cannot_use_are_refused_by_number() {
    let all = all();
    let soft = || Soft::builder().engines(1);
    let missing = CpuSet::count() - 1;
    for (cpus, part) in [
        (vec![], "engine_cpus is empty"),
        (vec![missing], &format!("CPU {missing},")[..]),
        (vec![all[0], missing], &format!("CPU {missing},")),
        (vec![usize::MAX], &format!("CPU {},", usize::MAX)),
    ] {
        let error = engines_of("refused", soft().engine_cpus(cpus)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        assert!(error.to_string().contains(part), "{part:?}: {error}");
        assert_eq!(error.call(), Some("DmaBuilder::attach"));
    }
}
