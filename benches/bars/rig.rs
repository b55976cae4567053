//! The parts that most bars need: a device, a pool, a WorkQ and a context, and a Tokio task to run
//! in.
#![expect(
    unsafe_code,
    reason = "the baselines copy between the same bytes, by address"
)]

use std::future::Future;

use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, Mode, WorkQ};

use super::raw::Descriptor;

pub(crate) struct Rig {
    pub(crate) device: Device,
    pub(crate) pool: BufPool,
    pub(crate) workq: WorkQ,
    pub(crate) dma: Dma,
}

impl Rig {
    /// Makes a rig on a device of the provider `soft`.
    pub(crate) fn soft(soft: &Soft, mode: Mode, element: usize, count: usize) -> Rig {
        let device = soft.open("pf0").expect("the software device has a pf0");
        Rig::on(device, mode, 256, element, count)
    }

    pub(crate) fn on(device: Device, mode: Mode, depth: u32, element: usize, count: usize) -> Rig {
        let mmap = Mmap::builder().device(&device).alloc(element * count);
        let pool = BufPool::builder(&mmap.expect("memory"))
            .element_size(element)
            .alignment(64)
            .build()
            .expect("a pool");
        let workq = WorkQ::builder().depth(depth).mode(mode).build();
        let workq = workq.expect("a WorkQ");
        let dma = Dma::builder(&device).attach(&workq).expect("a context");
        Rig {
            device,
            pool,
            workq,
            dma,
        }
    }

    /// Allocates a source with `len` bytes of data, and an empty destination.
    pub(crate) fn pair(&self, len: usize) -> (Buf, Buf) {
        let alloc = || self.pool.try_alloc().expect("the pool is large enough");
        let (src, dst) = (alloc(), alloc());
        src.set_data(0, len).expect("the element is long enough");
        (src, dst)
    }
}

/// Returns a descriptor of the copy from `src` to the start of `dst`, to be done without the crate.
pub(crate) fn bare(src: &Buf, dst: &Buf) -> Descriptor {
    let len = src.data_len();
    let from = src.data().expect("no job writes it").as_ptr();
    dst.set_data(0, dst.capacity()).expect("all of it");
    let to = dst.data_mut().expect("no job has it").as_mut_ptr();
    dst.set_data(0, 0).expect("empty again");
    // SAFETY: both are elements of a pool, valid while the Bufs are alive. The bars use a
    // descriptor and its Bufs in turn, not at once.
    unsafe { Descriptor::new(from, to, len) }
}

/// Runs `body` as a task of a `current_thread` runtime.
pub(crate) fn on_task<T: Send + 'static>(body: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let task = runtime.spawn(body);
    let ended = runtime.block_on(async {
        // The runtime allocates its list of yielded tasks at the first yield. Yield here, so that
        // no job that spends its budget is charged for that list.
        tokio::task::yield_now().await;
        task.await
    });
    ended.expect("the task did not panic")
}

/// Fills `dst` with copies of `src`, `fillings` times. After each filling, `dst` is emptied.
pub(crate) async fn fill(dma: &Dma, src: &Buf, dst: &Buf, fillings: u64) {
    let times = dst.capacity() / src.data_len();
    for _ in 0..fillings {
        for _ in 0..times {
            dma.copy(src, dst).await.expect("a copy");
        }
        dst.reset_data_len().expect("no job has it");
    }
}
