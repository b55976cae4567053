//! A context of the crate with memory for its jobs, for checks of what jobs compute.

use super::subject::Subject;
use tokio_doca::error::Result;
use tokio_doca::{Buf, BufPool, Mmap, Mode, WorkQ};

/// The size of a Buf in bytes: more than a device may process inline.
pub(crate) const ELEMENT: usize = 64 << 10;
/// The maximum number of Bufs in a list.
const PIECES: u32 = 5;

pub(crate) struct Bench<C> {
    pub(crate) context: C,
    pub(crate) subject: Subject,
    pool: BufPool,
    /// The maximum size of a job in bytes.
    pub(crate) limit: usize,
    /// The maximum number of Bufs in a list.
    pub(crate) pieces: usize,
}

impl<C> Bench<C> {
    /// Runs a check in both modes, or only by busy-polling if the subject is not event-driven.
    ///
    /// # Panics
    ///
    /// Panics if the context does not attach, or if the WorkQ does not shut down.
    pub(crate) fn each_mode(
        subject: &Subject,
        attach: impl Fn(&WorkQ) -> Result<C>,
        check: impl AsyncFn(&Bench<C>),
    ) {
        for mode in [Mode::BusyPoll, Mode::EventDriven] {
            if mode == Mode::EventDriven && !subject.event_driven() {
                continue;
            }
            let depth = subject.max_depth().min(16);
            let workq = WorkQ::builder().depth(depth).mode(mode).build();
            let workq = workq.expect("a WorkQ");
            let mmap = Mmap::builder().device(&subject.device);
            let mmap = mmap.alloc(32 * ELEMENT).expect("memory");
            let pool = BufPool::builder(&mmap).element_size(ELEMENT).build();
            let bench = Bench {
                context: attach(&workq).expect("within the capabilities"),
                subject: subject.clone(),
                pool: pool.expect("a pool"),
                limit: subject.within(ELEMENT - 64),
                pieces: PIECES.min(subject.max_list_len()) as usize,
            };
            workq.block_on(check(&bench));
            let over = workq.block_on(workq.shutdown());
            over.expect("nothing hinders it");
        }
    }

    /// Returns a Buf whose data is `bytes`, at the offset `at`.
    pub(crate) fn buf_at(&self, at: usize, bytes: &[u8]) -> Buf {
        let buf = self.pool.try_alloc().expect("the pool is large enough");
        buf.set_data(at, 0).expect("no job has it");
        buf.extend_from_slice(bytes).expect("it fits");
        buf
    }
}
