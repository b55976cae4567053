//! Jobs that the CPU does for a device that has nothing better, a part at a time: a provider needs
//! to know nothing else of their kinds.
#![expect(unsafe_code, reason = "reaches memory that was lent to a device")]

use crate::error::JobError;

/// A kind of job that the CPU can do.
pub(crate) trait OnCpu {
    /// How far the CPU is with a job. What it holds before the first part does not matter.
    type State: Default;

    /// How many bytes are copied in the time that one byte of the job takes.
    const COST: usize;

    /// Returns how many bytes the job reads.
    fn len(&self) -> usize;

    /// Does a part of the job: at most `most` bytes after the first `from`. Returns how many bytes
    /// it was. The job has completed when that reaches [`OnCpu::len`].
    ///
    /// # Safety
    ///
    /// As for `CpuState::work`.
    unsafe fn work(&self, state: &mut Self::State, from: usize, most: usize) -> usize;

    /// Returns how the job ends, once its last part was done by this state.
    fn outcome(&self, state: &Self::State) -> Result<u64, JobError>;
}

/// Defines `CpuJob`, a job of any kind that the CPU can do, and `CpuState`, how far the CPU is with
/// one: each kind by its name, the name of its state, and the type of its jobs.
macro_rules! on_cpu {
    ($($kind:ident $state:ident: $job:ident,)*) => {
        /// A job that the CPU does.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum CpuJob {
            $($kind($job),)*
        }

        /// How far the CPU is with a job that it does in parts.
        #[derive(Default)]
        pub(crate) struct CpuState {
            $($state: <$job as OnCpu>::State,)*
        }

        impl CpuJob {
            /// Returns the job if the CPU can do it.
            #[inline(always)]
            pub(crate) fn of(job: Job<'_>) -> Option<CpuJob> {
                match job {
                    $(Job::$kind(job) => Some(CpuJob::$kind(*job)),)*
                    _ => None,
                }
            }

            /// Returns how many bytes it reads.
            pub(crate) fn len(&self) -> usize {
                match self {
                    $(CpuJob::$kind(job) => OnCpu::len(job),)*
                }
            }

            /// Returns how many bytes are copied in the time that a byte of it takes.
            fn byte_cost(&self) -> usize {
                match self {
                    $(CpuJob::$kind(_) => <$job as OnCpu>::COST,)*
                }
            }

            /// Returns how many bytes are copied in the time that it takes.
            pub(crate) fn cost(&self) -> usize {
                self.len().saturating_mul(self.byte_cost())
            }
        }

        impl CpuState {
            /// Does a part of a job, after the first `from` bytes: for as long as a copy of `time`
            /// bytes takes. Returns how many bytes it was. The job has completed when
            /// [`CpuJob::len`] is reached.
            ///
            /// The parts of a job are done in order, by the same state, which does none of another
            /// job in between. What it held before the part at 0 does not matter. A job without
            /// data is one part of no bytes.
            ///
            /// # Safety
            ///
            /// The job was given to a provider, which may touch its memory and its session: they
            /// are valid, and leased, during the call.
            pub(crate) unsafe fn work(&mut self, job: &CpuJob, from: usize, time: usize) -> usize {
                let most = (time / job.byte_cost()).max(1);
                match job {
                    // SAFETY: as the caller promises.
                    $(CpuJob::$kind(job) => unsafe { OnCpu::work(job, &mut self.$state, from, most) },)*
                }
            }

            /// Returns how a job ends whose last part was just done.
            pub(crate) fn outcome(&self, job: &CpuJob) -> Result<u64, JobError> {
                match job {
                    $(CpuJob::$kind(job) => OnCpu::outcome(job, &self.$state),)*
                }
            }

            /// Does all of a job at once, if that takes no longer than a copy of `time` bytes.
            ///
            /// # Safety
            ///
            /// As for `work`.
            pub(crate) unsafe fn now(job: &CpuJob, time: usize) -> Option<Result<u64, JobError>> {
                // What has no data takes time too.
                if job.cost().max(job.byte_cost()) > time {
                    return None;
                }
                let mut state = CpuState::default();
                // SAFETY: as the caller promises.
                unsafe { state.work(job, 0, usize::MAX) };
                Some(state.outcome(job))
            }
        }
    };
}

pub(super) use on_cpu;
