//! Jobs that the CPU does, a part at a time, for devices without hardware for them. A provider
//! needs to know nothing else about these kinds of jobs.
#![expect(unsafe_code, reason = "reaches memory that was lent to a device")]

use crate::error::JobError;

/// A kind of job that the CPU can do.
pub(crate) trait OnCpu {
    /// The progress of a job. Its value before the first part does not matter.
    type State: Default;

    /// The cost of one byte of the job: the number of bytes that could be copied in the same time.
    const COST: usize;

    /// Returns how many bytes the job reads.
    fn len(&self) -> usize;

    /// Does a part of the job: at most `most` bytes after the first `from`. Returns the number of
    /// bytes done. The job has completed once `from` plus that number reaches [`OnCpu::len`].
    ///
    /// # Safety
    ///
    /// As for `CpuState::work`.
    unsafe fn work(&self, state: &mut Self::State, from: usize, most: usize) -> usize;

    /// Returns the job's result, once `work` has done its last part with this state.
    fn outcome(&self, state: &Self::State) -> Result<u64, JobError>;
}

/// Defines `CpuJob`, a job of any kind that the CPU can do, and `CpuState`, the progress of such a
/// job. The arguments for each kind are its name, the name of its state, and the type of its jobs.
macro_rules! on_cpu {
    ($($kind:ident $state:ident: $job:ident,)*) => {
        /// A job that the CPU does.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum CpuJob {
            $($kind($job),)*
        }

        /// The progress of a job that the CPU does in parts.
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

            /// Returns how many bytes the job reads.
            pub(crate) fn len(&self) -> usize {
                match self {
                    $(CpuJob::$kind(job) => OnCpu::len(job),)*
                }
            }

            /// Returns the cost of one byte of the job: the number of bytes that could be copied in
            /// the same time.
            fn byte_cost(&self) -> usize {
                match self {
                    $(CpuJob::$kind(_) => <$job as OnCpu>::COST,)*
                }
            }

            /// Returns the cost of the job: the number of bytes that could be copied in the same
            /// time.
            pub(crate) fn cost(&self) -> usize {
                self.len().saturating_mul(self.byte_cost())
            }
        }

        impl CpuState {
            /// Does a part of a job, after the first `from` bytes: for as long as a copy of `time`
            /// bytes takes. Returns the number of bytes done. The job has completed once `from`
            /// plus that number reaches [`CpuJob::len`].
            ///
            /// The caller does the parts of a job in order, with one state that no other job uses
            /// in between. The state's value before the part at 0 does not matter. A job without
            /// data has one part, of 0 bytes.
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

            /// Returns the result of `job`, whose last part was just done.
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
                // A job without data takes time too.
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
