//! The io_uring baseline: reads of a memfd, 32 a submission, awaited through `AsyncFd`.
#![expect(unsafe_code, reason = "a ring is told addresses")]

use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::io::unix::AsyncFd;

use super::engine::{LANES, LEN};
use super::measure::per_op;

/// Nanoseconds per read; `None` where rings are forbidden.
pub(crate) fn batches(batches: u64) -> Option<f64> {
    let file = memfd_create(c"bars", MFdFlags::MFD_CLOEXEC).ok()?;
    nix::unistd::write(&file, &[7; LEN]).ok()?;
    let mut ring = IoUring::new(2 * LANES as u32).ok()?;
    ring.submitter().register_files(&[file.as_raw_fd()]).ok()?;
    let mut lanes = vec![[0u8; LEN]; LANES];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    Some(runtime.block_on(async {
        // A duplicate of the descriptor, so that the ring can be borrowed meanwhile.
        let fd = ring.as_raw_fd();
        // SAFETY: the ring, and so its descriptor, outlives this block.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let fd = fd.try_clone_to_owned().expect("a descriptor");
        // SAFETY: an OwnedFd stays open and the same until the AsyncFd drops it.
        let fd = unsafe { AsyncFd::register(fd) }.expect("a ring can be waited for");
        let start = Instant::now();
        for _ in 0..batches {
            for lane in &mut lanes {
                let read = opcode::Read::new(types::Fixed(0), lane.as_mut_ptr(), LEN as u32);
                let entry = read.offset(0).build();
                // SAFETY: the lane is valid until the read has completed, which is awaited below.
                unsafe { ring.submission().push(&entry) }.expect("there is room");
            }
            ring.submit().expect("a submission");
            let mut left = LANES;
            loop {
                left -= ring.completion().count();
                if left == 0 {
                    break;
                }
                let mut guard = fd.readable().await.expect("the runtime is alive");
                let more = ring.completion().count();
                left -= more;
                if more == 0 {
                    guard.clear_ready();
                }
                if left == 0 {
                    break;
                }
            }
        }
        per_op(start, batches * LANES as u64)
    }))
}
