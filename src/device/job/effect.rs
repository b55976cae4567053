//! The effects of a job: how many bytes it wrote, and how much CPU time it took.

/// The effects of one kind of job.
pub(crate) trait Effect {
    /// Returns how many bytes a job has appended to its destination if its result is `answer`.
    #[inline(always)]
    fn written(answer: u64) -> usize {
        usize::try_from(answer).unwrap_or(usize::MAX)
    }

    /// Returns the cost of the job: the number of bytes that the CPU could copy in the same time.
    fn cost(&self) -> usize;
}
