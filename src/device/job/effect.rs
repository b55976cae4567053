//! What a job leaves behind: what it wrote, and the time that it took.

/// What is known of a job of one kind that was done.
pub(crate) trait Effect {
    /// Returns how many bytes a job has appended to its destination that ended with this answer.
    #[inline(always)]
    fn written(answer: u64) -> usize {
        usize::try_from(answer).unwrap_or(usize::MAX)
    }

    /// Returns how many bytes are copied in the time that the job takes the CPU.
    fn cost(&self) -> usize;
}
