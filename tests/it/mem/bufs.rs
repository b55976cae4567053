//! Headroom, data and tailroom of a Buf, and the bytes that a copy accesses: the data of the source
//! and the tailroom of the destination, and no others.

use support::*;
use tokio_doca::soft::Fault;
use tokio_doca::{
    BufPool, ErrorKind,
    mem::{Access, BufInventory},
};

#[test]
fn rooms_add_up_to_the_capacity() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.empty();
    assert_eq!((buf.capacity(), rooms(&buf)), (ELEMENT, (0, 0, ELEMENT)));
    buf.set_data(100, 50).unwrap();
    assert_eq!(rooms(&buf), (100, 50, ELEMENT - 150));
    buf.extend_from_slice(&[7; 10]).unwrap();
    assert_eq!(rooms(&buf), (100, 60, ELEMENT - 160));
    assert_eq!(&buf.data().unwrap()[50..], [7; 10]);
    buf.reset_data_len().unwrap();
    assert_eq!(rooms(&buf), (100, 0, ELEMENT - 100));
    buf.set_data(0, ELEMENT).unwrap();
    assert_eq!(rooms(&buf), (0, ELEMENT, 0));
    buf.set_data(ELEMENT, 0).unwrap();
    assert_eq!(rooms(&buf), (ELEMENT, 0, 0));
    buf.extend_from_slice(&[]).unwrap();
    assert!(buf.data().unwrap().is_empty());
}

#[test]
fn set_data_names_bytes_and_changes_none() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(&pattern(3, 100));
    buf.set_data(10, 20).unwrap();
    assert_eq!(&buf.data().unwrap()[..], &pattern(3, 100)[10..30]);
    buf.data_mut().unwrap().fill(0xee);
    buf.set_data(0, 100).unwrap();
    let mut expected = pattern(3, 100);
    expected[10..30].fill(0xee);
    assert_eq!(bytes(&buf), expected);
}

#[test]
fn a_buf_from_a_pool_comes_empty_whatever_it_was_before() {
    let bench = Bench::new(configs()[0]);
    let pool = BufPool::builder(&bench.mmap(64)).element_size(64).build();
    let pool = pool.unwrap();
    let buf = pool.try_alloc().unwrap();
    buf.set_data(20, 30).unwrap();
    drop(buf);
    assert_eq!(rooms(&pool.try_alloc().unwrap()), (0, 0, 64));
}

#[test]
fn clones_share_their_rooms() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.empty();
    let clone = buf.clone();
    buf.extend_from_slice(b"abc").unwrap();
    clone.extend_from_slice(b"def").unwrap();
    assert_eq!(bytes(&buf), b"abcdef");
    drop(buf);
    assert_eq!(bytes(&clone), b"abcdef");
    drop(clone);
    assert_eq!(bench.free_bufs(), bench.pool.elements());
}

#[test]
fn output_is_appended_to_the_tailroom() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"world"), bench.empty());
        dst.set_data(8, 0).unwrap();
        dst.extend_from_slice(b"hello ").unwrap();
        for _ in 0..2 {
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(5));
        }
        assert_eq!(bytes(&dst), b"hello worldworld");
        assert_eq!(dst.headroom(), 8);
        dst.reset_data_len().unwrap();
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(5));
        assert_eq!((bytes(&dst), dst.headroom()), (b"world".to_vec(), 8));
        assert_eq!(rooms(&src), (0, 5, ELEMENT - 5), "a source stays as it was");
        bench.works().await;
    });
}

/// Checks every byte of the whole `Mmap` after every copy: headroom, existing data, the bytes
/// behind, and neighbors.
#[test]
fn copies_touch_only_the_tailroom_they_fill() {
    each(async |bench| {
        const LEN: usize = 8192;
        const MID: std::ops::Range<usize> = 2000..6000;
        let mmap = bench.mmap(LEN);
        let inventory = BufInventory::with_capacity(4);
        let source = bench.empty();
        let sizes = [1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129];
        let large = [255, 256, 511, 1000, 1024, 2049, 3000, 3999, 4000];
        for size in sizes.into_iter().chain(large) {
            for (headroom, before) in [(0, 0), (1, 0), (0, 1), (3, 5), (64, 64), (1000, 1)] {
                let room = MID.len() - headroom - before.min(MID.len() - headroom);
                let size = size.min(room);
                let before_all = pattern(17, LEN);
                {
                    let all = inventory.buf_filled(&mmap, ..).unwrap();
                    all.data_mut().unwrap().copy_from_slice(&before_all);
                }
                let offset = (size * 7 + headroom) % (ELEMENT - size + 1);
                source.set_data(0, ELEMENT).unwrap();
                source
                    .data_mut()
                    .unwrap()
                    .copy_from_slice(&pattern(90, ELEMENT));
                source.set_data(offset, size).unwrap();
                let dst = inventory.buf(&mmap, MID).unwrap();
                dst.set_data(headroom, before).unwrap();
                assert_eq!(bench.dma.copy(&source, &dst).await, Ok(size));
                assert_eq!(
                    rooms(&dst),
                    (
                        headroom,
                        before + size,
                        MID.len() - headroom - before - size
                    )
                );
                drop(dst);
                let mut expected = before_all;
                let at = MID.start + headroom + before;
                expected[at..at + size].copy_from_slice(&pattern(90, ELEMENT)[offset..][..size]);
                let all = inventory.buf_filled(&mmap, ..).unwrap();
                assert_eq!(
                    &all.data().unwrap()[..],
                    &expected[..],
                    "{size} bytes behind {headroom} + {before}"
                );
                source.set_data(0, ELEMENT).unwrap();
                assert_eq!(bytes(&source), pattern(90, ELEMENT), "the source");
            }
        }
    });
}

#[test]
fn neighbours_in_a_pool_are_not_touched() {
    each(async |bench| {
        const SIZE: usize = 100;
        let mmap = bench.mmap(30 * SIZE);
        let pool = BufPool::builder(&mmap).element_size(SIZE).build().unwrap();
        let bufs: Vec<_> = (0..pool.elements())
            .map(|i| {
                let buf = pool.try_alloc().unwrap();
                buf.extend_from_slice(&pattern(i as u8, SIZE)).unwrap();
                buf
            })
            .collect();
        let src = bench.filled(&[0xff; SIZE]);
        for (i, dst) in bufs.iter().enumerate() {
            dst.reset_data_len().unwrap();
            assert_eq!(bench.dma.copy(&src, dst).await, Ok(SIZE));
            for (j, other) in bufs.iter().enumerate() {
                let expected = match j <= i {
                    true => vec![0xff; SIZE],
                    false => pattern(j as u8, SIZE),
                };
                assert_eq!(bytes(other), expected, "element {j} after the copy to {i}");
            }
        }
    });
}

#[test]
fn elements_are_aligned_and_do_not_overlap() {
    let bench = Bench::new(configs()[0]);
    for (range, size, alignment) in [
        (0..4096, 100, 64),
        (1..4096, 64, 64),
        (3..4000, 33, 1),
        (5..4096, 1, 256),
        (0..4096, 4096, 4096),
    ] {
        let mmap = bench.mmap(4096);
        let builder = BufPool::builder(&mmap).range(range.clone());
        let pool = builder.element_size(size).alignment(alignment).build();
        let pool = pool.unwrap();
        let mut spans = Vec::new();
        let mut bufs = Vec::new();
        while let Ok(buf) = pool.try_alloc() {
            buf.set_data(0, size).unwrap();
            let data = buf.data().unwrap();
            assert_eq!(data.as_ptr().addr() % alignment, 0);
            spans.push(data.as_ptr().addr());
            drop(data);
            bufs.push(buf);
        }
        spans.sort_unstable();
        assert_eq!(bufs.len(), pool.elements());
        assert!(spans.windows(2).all(|pair| pair[1] - pair[0] >= size));
        assert!(spans[spans.len() - 1] + size - spans[0] <= range.len());
    }
}

#[test]
fn a_failed_job_leaves_the_rooms_as_they_were() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"0123456789"), bench.empty());
        dst.set_data(4, 4).unwrap();
        let fault = Fault::Error(ErrorKind::IoFailed, 5);
        bench.soft.faults().push(fault);
        let error = bench.dma.copy(&src, &dst).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IoFailed);
        assert_eq!(rooms(&src), (0, 10, ELEMENT - 10));
        assert_eq!(rooms(&dst), (4, 4, ELEMENT - 8));
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(10));
        assert_eq!(rooms(&dst), (4, 14, ELEMENT - 18));
    });
}

#[test]
fn a_slice_copies_a_part_of_the_data() {
    each(async |bench| {
        let src = bench.empty();
        src.set_data(3, 0).unwrap();
        src.extend_from_slice(&pattern(1, 100)).unwrap();
        let dst = bench.empty();
        for range in [0..100, 0..1, 99..100, 10..20] {
            dst.reset_data_len().unwrap();
            let slice = src.slice(range.clone()).unwrap();
            assert_eq!(slice.len(), range.len());
            assert_eq!(bench.dma.copy(&slice, &dst).await, Ok(range.len()));
            assert_eq!(bytes(&dst), &pattern(1, 100)[range]);
        }
        dst.reset_data_len().unwrap();
        assert_eq!(
            bench.dma.copy(&src.slice(..).unwrap(), &dst).await,
            Ok(100),
            "all of it"
        );
        let text = refused(src.slice(90..101), ErrorKind::InvalidValue);
        mentions(&text, &[101, 100]);
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        refused(src.slice(5..4), ErrorKind::InvalidValue);
        assert!(src.slice(5..5).unwrap().is_empty());
    });
}

#[test]
fn a_slice_keeps_its_buf_and_notices_that_the_data_was_shortened() {
    each(async |bench| {
        let src = bench.filled(&pattern(1, 100));
        let slice = src.slice(50..100).unwrap();
        drop(src);
        let dst = bench.empty();
        assert_eq!(bench.dma.copy(&slice, &dst).await, Ok(50));
        slice.buf().set_data(0, 70).unwrap();
        let text = refused(bench.dma.copy(&slice, &dst).await, ErrorKind::InvalidValue);
        mentions(&text, &[100, 70]);
        assert_eq!(dst.data_len(), 50);
        drop((slice, dst));
        bench.all_back().await;
    });
}

#[test]
fn copy_in_and_copy_out_stay_within_the_data() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(&[1; 10]);
    buf.copy_in(4, &[2; 6]).unwrap();
    assert_eq!(bytes(&buf), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    mentions(
        &refused(buf.copy_in(5, &[3; 6]), ErrorKind::InvalidValue),
        &[11, 10],
    );
    mentions(
        &refused(buf.copy_out(10, &mut [0]), ErrorKind::InvalidValue),
        &[11, 10],
    );
    refused(
        buf.copy_out(usize::MAX, &mut [0; 2]),
        ErrorKind::InvalidValue,
    );
    buf.copy_in(10, &[]).unwrap();
    buf.copy_out(10, &mut []).unwrap();
    assert_eq!(bytes(&buf), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn peer_writable_memory_lends_no_slices_but_is_copied_in_and_out() {
    each(async |bench| {
        for access in [
            Access::RDMA_WRITE,
            Access::RDMA_ATOMIC,
            Access::DPU_READ_WRITE,
        ] {
            let mmap = bench.mmap_with(8192, access | Access::LOCAL_READ_WRITE);
            let inventory = BufInventory::with_capacity(2);
            let shared = inventory.buf(&mmap, 0..4096).unwrap();
            shared.extend_from_slice(b"from here").unwrap();
            refused(shared.data(), ErrorKind::NotPermitted);
            refused(shared.data_mut(), ErrorKind::NotPermitted);
            shared.copy_in(5, b"herd").unwrap();
            assert_eq!(bytes(&shared), b"from herd");
            let dst = bench.empty();
            assert_eq!(bench.dma.copy(&shared, &dst).await, Ok(9));
            assert_eq!(bench.dma.copy(&dst, &shared).await, Ok(9));
            assert_eq!(bytes(&shared), b"from herdfrom herd");
        }
    });
}

#[test]
fn a_read_only_mmap_is_a_source_and_never_a_destination() {
    each(async |bench| {
        let mmap = bench.mmap_with(4096, Access::LOCAL_READ_ONLY);
        let inventory = BufInventory::with_capacity(2);
        let fixed = inventory.buf_filled(&mmap, 0..100).unwrap();
        let room = inventory.buf(&mmap, 200..300).unwrap();
        let dst = bench.empty();
        assert_eq!(bench.dma.copy(&fixed, &dst).await, Ok(100));
        assert_eq!(bytes(&dst), [0; 100]);
        let result = bench.dma.copy(&dst, &room).await;
        assert!(refused(result, ErrorKind::NotPermitted).contains("LOCAL_READ_ONLY"));
        refused(fixed.data_mut(), ErrorKind::NotPermitted);
        refused(fixed.copy_in(0, &[1]), ErrorKind::NotPermitted);
        refused(room.extend_from_slice(&[1]), ErrorKind::NotPermitted);
        assert_eq!(rooms(&room), (0, 0, 100));
        // A refused operation leases nothing.
        assert_eq!(&fixed.data().unwrap()[..], [0; 100]);
        bench.works().await;
    });
}

// Setting the data range changes no byte; otherwise a pool on read-only memory could never hold
// data.
#[test]
fn the_rooms_of_read_only_memory_can_be_set() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap_with(4096, Access::LOCAL_READ_ONLY);
    let pool = BufPool::builder(&mmap).build().unwrap();
    let buf = pool.try_alloc().unwrap();
    buf.set_data(0, 100).unwrap();
    assert_eq!(buf.data().unwrap().len(), 100);
    buf.reset_data_len().unwrap();
}

#[test]
fn more_than_the_tailroom_is_not_appended() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(&[1; 4000]);
    let text = refused(buf.extend_from_slice(&[2; 97]), ErrorKind::InvalidValue);
    mentions(&text, &[96, 97]);
    assert_eq!(rooms(&buf), (0, 4000, 96));
    buf.set_data(0, 4096).unwrap();
    assert_eq!(&bytes(&buf)[4000..], [0; 96]);
}

#[test]
fn rooms_out_of_range_are_refused() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(&[1; 10]);
    mentions(
        &refused(buf.set_data(4000, 97), ErrorKind::InvalidValue),
        &[4097, 4096],
    );
    refused(buf.set_data(usize::MAX, 1), ErrorKind::InvalidValue);
    refused(buf.set_data(1, usize::MAX), ErrorKind::InvalidValue);
    refused(
        buf.set_data(usize::MAX, usize::MAX),
        ErrorKind::InvalidValue,
    );
    assert_eq!(rooms(&buf), (0, 10, 4086));
}
