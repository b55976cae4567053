//! Memory that a peer may write at any time: it lends no slices, copies of it may be torn, and
//! atomics are not.
#![expect(unsafe_code, reason = "takes slices on its own word")]

use support::*;
use tokio_doca::{
    Buf, ErrorKind, Mmap,
    error::Reason,
    mem::{Access, BufInventory},
};

const ATOMIC: Access = Access::LOCAL_READ_WRITE.union(Access::RDMA_ATOMIC);

fn buf(mmap: &Mmap, range: std::ops::Range<usize>) -> Buf {
    BufInventory::with_capacity(1)
        .buf_filled(mmap, range)
        .unwrap()
}

#[test]
fn an_mmap_says_whether_it_lends_slices() {
    let bench = Bench::new(configs()[0]);
    for flag in [
        Access::RDMA_WRITE,
        Access::RDMA_ATOMIC,
        Access::DPU_READ_WRITE,
    ] {
        let mmap = bench.mmap_with(4096, flag | Access::LOCAL_READ_WRITE);
        assert!(!mmap.lends_slices());
        let buf = buf(&mmap, 0..8);
        let text = refused(buf.data(), ErrorKind::NotPermitted);
        for way in ["copy_in", "copy_out", "load", "compare_exchange"] {
            assert!(text.contains(way), "{way} is not in {text}");
        }
    }
    for flag in [
        Access::RDMA_READ,
        Access::DPU_READ_ONLY,
        Access::LOCAL_READ_WRITE,
    ] {
        assert!(
            bench
                .mmap_with(4096, flag | Access::LOCAL_READ_WRITE)
                .lends_slices()
        );
    }
}

#[test]
fn atomics_answer_as_those_of_the_language() {
    let bench = Bench::new(configs()[0]);
    for mmap in [bench.mmap(4096), bench.mmap_with(4096, ATOMIC)] {
        let buf = buf(&mmap, 16..40);
        buf.store(8, u64::MAX).unwrap();
        assert_eq!(buf.fetch_add(8, 3), Ok(u64::MAX));
        assert_eq!(buf.load(8), Ok(2));
        assert_eq!(buf.compare_exchange(8, 1, 9).unwrap(), Err(2));
        assert_eq!(buf.compare_exchange(8, 2, 9).unwrap(), Ok(2));
        let expected: Vec<u8> = [0_u64, 9, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        assert_eq!(bytes(&buf), expected);
    }
}

#[test]
fn an_atomic_past_the_data_or_across_a_boundary_is_refused_with_the_numbers() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap_with(4096, ATOMIC);
    let (even, odd) = (buf(&mmap, 0..24), buf(&mmap, 4..28));
    even.set_data(8, 12).unwrap();
    let invalid = ErrorKind::InvalidValue;
    mentions(&refused(even.load(8), invalid), &[16, 12]);
    refused(even.store(usize::MAX, 1), invalid);
    mentions(&refused(even.fetch_add(1, 1), invalid), &[1, 8]);
    assert_eq!(even.load(4).unwrap_err().reason(), Reason::Misaligned);
    assert_eq!(odd.load(0).unwrap_err().reason(), Reason::Misaligned);
    assert_eq!((even.load(0), odd.load(4)), (Ok(0), Ok(0)));
    even.reset_data_len().unwrap();
    refused(even.compare_exchange(0, 0, 1), invalid);
}

#[test]
fn atomics_of_many_threads_lose_nothing() {
    let bench = Bench::new(configs()[0]);
    let buf = buf(&bench.mmap_with(4096, ATOMIC), 0..64);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    buf.fetch_add(0, 1).unwrap();
                    let mut seen = buf.load(8).unwrap();
                    while let Err(now) = buf.compare_exchange(8, seen, seen + 2).unwrap() {
                        seen = now;
                    }
                }
            });
        }
    });
    assert_eq!((buf.load(0), buf.load(8)), (Ok(20_000), Ok(40_000)));
}

// Where peers may write anyway, atomics need not exclude readers of this process; elsewhere a
// reader has a slice, so they do.
#[test]
fn atomics_and_readers_share_only_what_others_write_anyway() {
    each(async |bench| {
        for shared in [true, false] {
            let mmap = match shared {
                true => bench.mmap_with(4096, ATOMIC),
                false => bench.mmap(4096),
            };
            let (src, dst) = (buf(&mmap, 0..64), bench.empty());
            let hold = bench.hold();
            let mut copy = Box::pin(bench.dma.copy(&src, &dst));
            poll_pending(copy.as_mut());
            assert_eq!(src.load(0), Ok(0));
            match shared {
                true => assert_eq!(src.fetch_add(8, 1), Ok(0)),
                false => assert_eq!(src.fetch_add(8, 1).unwrap_err().reason(), Reason::BufInUse),
            }
            drop(hold);
            assert_eq!(copy.await, Ok(64));
            if shared {
                assert_eq!(bytes(&dst)[8..16], 1_u64.to_ne_bytes());
            }
        }
    });
}

#[test]
fn a_job_that_writes_keeps_atomics_and_copies_away() {
    each(async |bench| {
        for mmap in [bench.mmap_with(4096, ATOMIC), bench.mmap(4096)] {
            let dst = buf(&mmap, 0..64);
            dst.set_data(0, 16).unwrap();
            let hold = bench.hold();
            let src = bench.filled(&[1; 40]);
            let mut copy = Box::pin(bench.dma.copy(&src, &dst));
            poll_pending(copy.as_mut());
            for error in [
                dst.load(0).unwrap_err(),
                dst.store(0, 1).unwrap_err(),
                dst.fetch_add(0, 1).unwrap_err(),
                dst.compare_exchange(0, 0, 1).unwrap_err(),
                dst.copy_in(0, b"x").unwrap_err(),
                dst.copy_out(0, &mut [0]).unwrap_err(),
            ] {
                assert_eq!(error.reason(), Reason::BufInUse);
            }
            drop(hold);
            assert_eq!(copy.await, Ok(40));
            assert_eq!(dst.load(16), Ok(0x0101_0101_0101_0101));
        }
    });
}

#[test]
fn copies_in_and_out_and_appends_meet_every_byte() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap_with(64 << 10, ATOMIC);
    let inventory = BufInventory::with_capacity(1);
    for (start, len) in [(0, 1), (1, 7), (3, 8), (7, 65), (5, 4099), (1, 60_001)] {
        let buf = inventory.buf(&mmap, start..start + len).unwrap();
        let (first, second) = (pattern(1, len), pattern(2, len));
        buf.extend_from_slice(&first).unwrap();
        assert_eq!(bytes(&buf), first);
        buf.copy_in(0, &second).unwrap();
        let mut part = vec![0; len / 2];
        buf.copy_out(len - part.len(), &mut part).unwrap();
        assert_eq!(part, second[len - part.len()..]);
    }
}

#[test]
fn a_slice_on_the_callers_word_is_a_lease_like_any_other() {
    each(async |bench| {
        let mmap = bench.mmap_with(4096, ATOMIC);
        let buf = buf(&mmap, 0..64);
        buf.set_data(0, 8).unwrap();
        {
            // SAFETY: no peer has access to the memory.
            let mut data = unsafe { buf.data_mut_unchecked() }.unwrap();
            data.copy_from_slice(&pattern(1, 8));
            bytes::BufMut::put_slice(&mut data, b"more");
            refused(buf.load(0), ErrorKind::InUse);
            // SAFETY: the call is refused.
            refused(unsafe { buf.data_unchecked() }, ErrorKind::InUse);
        }
        // SAFETY: no peer has access to the memory, and no atomic is in flight.
        let data = unsafe { buf.data_unchecked() }.unwrap();
        assert_eq!((&data[..8], &data[8..]), (&pattern(1, 8)[..], &b"more"[..]));
        let error = bench.dma.copy(&bench.filled(b"x"), &buf).await.unwrap_err();
        assert_eq!(error.reason(), Reason::DestinationInUse);
        // SAFETY: the call is refused.
        refused(unsafe { buf.data_mut_unchecked() }, ErrorKind::InUse);
        drop(data);
        let fixed = bench.mmap_with(4096, Access::LOCAL_READ_ONLY);
        let fixed = BufInventory::with_capacity(1)
            .buf_filled(&fixed, ..)
            .unwrap();
        // SAFETY: the call is refused.
        refused(
            unsafe { fixed.data_mut_unchecked() },
            ErrorKind::NotPermitted,
        );
    });
}
