//! The CPUs that the engine threads of a device may run on.
//!
//! A new thread inherits the CPUs of the thread that starts it. An engine must not inherit them: it
//! would share the one CPU of a pinned runtime worker with that worker. So an engine gets the CPUs
//! that `SoftBuilder::engine_cpus` names, or the CPUs of the main thread.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, ErrorKind, Result};

#[derive(Clone, Copy)]
pub(in super::super) enum Affinity {
    /// The CPUs of the main thread. `taskset` and the cpuset set them, unless the main thread has
    /// changed its own.
    MainThread,
    /// The CPUs that `SoftBuilder::engine_cpus` names.
    Chosen(CpuSet),
}

impl Affinity {
    /// Checks the CPUs that `SoftBuilder::engine_cpus` names, as far as that is possible before the
    /// thread runs.
    pub(in super::super) fn new(cpus: Option<&[usize]>) -> Result<Affinity> {
        let Some(cpus) = cpus else {
            return Ok(Affinity::MainThread);
        };
        if cpus.is_empty() {
            let text = "engine_cpus is empty: name at least one CPU, or leave it out";
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        let mut set = CpuSet::new();
        match cpus.iter().find(|&&cpu| set.set(cpu).is_err()) {
            Some(&cpu) => Err(unusable(cpu)),
            None => Ok(Affinity::Chosen(set)),
        }
    }

    /// Restricts this thread to the CPUs.
    pub(super) fn apply(&self) -> Result<()> {
        let this = Pid::from_raw(0);
        match self {
            Affinity::MainThread => {
                // This is best effort: the kernel may know more CPUs than fit into a `CpuSet`, and
                // a sandbox may forbid the calls. The inherited CPUs are usable even if they are
                // fewer. A thread that has inherited the main thread's mask keeps it: a mask that
                // is set explicitly does not follow later changes of the cpuset, but an inherited
                // mask does.
                if let Ok(set) = sched_getaffinity(Pid::this())
                    && sched_getaffinity(this).ok() != Some(set)
                {
                    let _ = sched_setaffinity(this, &set);
                }
                Ok(())
            }
            Affinity::Chosen(set) => {
                let os = |errno: Errno| Error::os(None, "the engine's CPUs", errno.into());
                // The kernel ignores CPUs that cannot be used, and refuses the call if none can.
                match sched_setaffinity(this, set) {
                    Ok(()) | Err(Errno::EINVAL) => {}
                    Err(errno) => return Err(os(errno)),
                }
                let got = sched_getaffinity(this).map_err(os)?;
                let is_missing = |&cpu: &usize| has(set, cpu) && !has(&got, cpu);
                (0..CpuSet::count())
                    .find(is_missing)
                    .map_or(Ok(()), |cpu| Err(unusable(cpu)))
            }
        }
    }
}

fn has(set: &CpuSet, cpu: usize) -> bool {
    set.is_set(cpu).is_ok_and(|is_set| is_set)
}

fn unusable(cpu: usize) -> Error {
    let text = format!(
        "engine_cpus names CPU {cpu}, which does not exist, is offline, or is not in the \
         process's cpuset: Cpus_allowed_list in /proc/self/status lists those that can be used"
    );
    Error::new(ErrorKind::InvalidValue, None, text)
}
