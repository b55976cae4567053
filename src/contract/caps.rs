//! What a device says that it can, and what attaching says.

use crate::device::Device;
use crate::error::ErrorKind;
use crate::{BufPool, Dma, Mmap, Mode, WorkQ};

/// The deepest WorkQ that can be built.
const DEEPEST: u32 = 1 << 20;

/// A context attaches to a WorkQ that the capabilities allow, and to no other.
///
/// # Panics
///
/// If the device copies nothing, or if a limit is not kept.
pub fn caps_are_kept(device: &Device) {
    let info = device.info();
    let caps = info.caps();
    let dma = caps.dma.as_ref();
    assert!(dma.is_some(), "the device {} does not copy", info.name());
    assert!(caps.max_depth >= 1, "a queue takes at least one Job");
    assert!(
        dma.is_some_and(|dma| dma.max_list_len >= 1 && dma.max_buf_size >= 1),
        "one piece of one byte is the least"
    );
    if caps.max_depth < DEEPEST {
        refused(
            device,
            caps.max_depth + 1,
            Mode::BusyPoll,
            ErrorKind::InvalidValue,
        );
    }
    if !caps.event_driven {
        refused(device, 1, Mode::EventDriven, ErrorKind::NotSupported);
    }
    // As deep as is allowed, within reason for a test.
    let workq = workq(caps.max_depth.min(4096), Mode::BusyPoll);
    let dma_context = Dma::builder(device)
        .attach(&workq)
        .expect("within the capabilities");
    assert_eq!(Some(dma_context.caps()), dma);
    too_large(device, &workq, &dma_context);
}

fn workq(depth: u32, mode: Mode) -> WorkQ {
    WorkQ::builder()
        .depth(depth)
        .mode(mode)
        .build()
        .expect("a WorkQ of a legal depth")
}

fn refused(device: &Device, depth: u32, mode: Mode, want: ErrorKind) {
    let attached = Dma::builder(device).attach(&workq(depth, mode));
    let kind = attached.err().map(|error| error.kind());
    assert_eq!(
        kind,
        Some(want),
        "depth {depth}, {mode:?}: attaching must be refused"
    );
}

/// One byte more than a Job may have is refused, if that much memory can be had in a test.
fn too_large(device: &Device, workq: &WorkQ, dma: &Dma) {
    let limit = dma.caps().max_buf_size;
    if limit >= 1 << 24 {
        return;
    }
    let size = limit as usize + 1;
    let mmap = Mmap::builder()
        .device(device)
        .alloc(size * 2 + 64)
        .expect("memory");
    let pool = BufPool::builder(&mmap)
        .element_size(size)
        .alignment(1)
        .build()
        .expect("a pool");
    let (src, dst) = (
        pool.try_alloc().expect("two"),
        pool.try_alloc().expect("two"),
    );
    src.set_data(0, size).expect("all of it");
    let copied = workq.block_on(async { dma.copy(&src, &dst).await });
    assert_eq!(
        copied.map_err(|error| error.kind()),
        Err(ErrorKind::InvalidValue)
    );
}
