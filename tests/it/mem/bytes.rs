//! Bufs and the `bytes` crate: Bufs become `Bytes` without a copy, their data is a `bytes::Buf`,
//! and their tailroom a `BufMut`.
#![expect(unsafe_code, reason = "advance_mut is unsafe to call")]

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Buf as _, BufMut, Bytes};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::{
    ErrorKind,
    error::Reason,
    mem::{Access, BufInventory},
};

#[test]
fn bytes_are_the_bufs_own_and_lease_it_until_the_last_slice_has_gone() {
    each(async |bench| {
        let buf = bench.filled(&pattern(3, 1000));
        buf.set_data(10, 900).unwrap();
        let (free, other) = (bench.free_bufs(), buf.clone());
        let at = buf.data().unwrap().as_ptr();
        let bytes = buf.into_bytes().unwrap();
        assert_eq!(bytes.as_ptr(), at, "no copy");
        assert_eq!(bytes, pattern(3, 1000)[10..910]);
        refused(other.data_mut(), ErrorKind::InUse);
        refused(other.reset_data_len(), ErrorKind::InUse);
        let error = bench
            .dma
            .copy(&bench.filled(b"x"), &other)
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Reason::DestinationInUse);
        // Other readers are allowed.
        assert_eq!(bench.dma.copy(&other, &bench.empty()).await, Ok(900));
        let slice = bytes.clone().slice(100..101);
        drop(bytes);
        refused(other.data_mut(), ErrorKind::InUse);
        drop(other);
        assert_eq!(bench.free_bufs(), free);
        let last = std::thread::spawn(move || slice[0]).join().unwrap();
        assert_eq!(last, pattern(3, 1000)[110]);
        assert_eq!(bench.free_bufs(), free + 1, "it went home");
    });
}

#[test]
fn bytes_of_no_data_are_empty_and_lease_all_the_same() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.empty();
    let other = buf.clone();
    let bytes = buf.into_bytes().unwrap();
    assert!(bytes.is_empty());
    refused(other.extend_from_slice(b"x"), ErrorKind::InUse);
    drop(bytes);
    other.extend_from_slice(b"x").unwrap();
}

#[test]
fn bytes_outlive_pool_mmap_and_device() {
    let bytes = {
        let bench = Bench::new(configs()[0]);
        bench.filled(b"still there").into_bytes().unwrap()
    };
    assert_eq!(bytes, "still there");
}

#[test]
fn forgotten_bytes_keep_the_buf_leased() {
    let bench = Bench::new(configs()[0]);
    let free = bench.free_bufs();
    let buf = bench.filled(b"abc");
    std::mem::forget(buf.clone().into_bytes().unwrap());
    refused(buf.data_mut(), ErrorKind::InUse);
    assert_eq!(&buf.data().unwrap()[..], b"abc");
    drop(buf);
    assert_eq!(bench.free_bufs(), free - 1);
}

#[test]
fn a_buf_that_cannot_become_bytes_comes_back() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        let error = dst.clone().into_bytes().unwrap_err();
        assert_eq!(error.error().reason(), Reason::BufInUse);
        assert_eq!(error.to_string(), error.error().to_string());
        let same = error.into_buf();
        drop(hold);
        assert_eq!(copy.await, Ok(3));
        assert_eq!(same.into_bytes().unwrap(), "abc");

        let mmap = bench.mmap_with(4096, Access::LOCAL_READ_WRITE | Access::RDMA_WRITE);
        let shared = BufInventory::with_capacity(1)
            .buf_filled(&mmap, ..8)
            .unwrap();
        let error = shared.into_bytes().unwrap_err();
        assert_eq!(
            tokio_doca::error::JobError::from(error).kind(),
            ErrorKind::NotPermitted
        );
    });
}

#[test]
fn a_read_guard_is_consumed_like_a_slice_and_the_buf_is_as_it_was() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(b"\x01\x02rest");
    let mut data = buf.data().unwrap();
    assert_eq!((data.get_u16(), data.remaining()), (0x0102, 4));
    assert_eq!((&data[..], data.chunk()), (&b"rest"[..], &b"rest"[..]));
    let past = catch_unwind(AssertUnwindSafe(|| data.advance(5)));
    assert!(past.is_err());
    data.advance(4);
    assert!(!data.has_remaining() && data.is_empty());
    drop(data);
    assert_eq!(&buf.data().unwrap()[..], b"\x01\x02rest");
}

#[test]
fn a_write_guard_appends_into_the_tailroom_and_not_beyond() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(&[7; 4090]);
    buf.set_data(4080, 10).unwrap();
    let mut data = buf.data_mut().unwrap();
    assert_eq!(data.remaining_mut(), 6);
    data.put_u32(0x0a0b_0c0d);
    assert_eq!((data.len(), data.remaining_mut()), (14, 2));
    assert_eq!(data[10..], [10, 11, 12, 13]);
    data[0] = 1;
    for too_much in [3, usize::MAX] {
        // SAFETY: the call is refused.
        let past = catch_unwind(AssertUnwindSafe(|| unsafe { data.advance_mut(too_much) }));
        assert!(past.is_err());
    }
    let past = catch_unwind(AssertUnwindSafe(|| data.put_slice(&[9; 3])));
    assert!(past.is_err());
    data.put_slice(b"ok");
    assert!(!data.has_remaining_mut());
    drop(data);
    assert_eq!(rooms(&buf), (4080, 16, 0));
    let mut expected = vec![7; 16];
    expected[0] = 1;
    expected[10..].copy_from_slice(b"\x0a\x0b\x0c\x0dok");
    assert_eq!(bytes(&buf), expected);
    buf.set_data(0, 4080).unwrap();
    assert_eq!(bytes(&buf), [7; 4080], "the headroom is not touched");
}

#[test]
fn a_reader_fills_the_tailroom_and_is_not_believed() {
    struct Liar;
    impl Read for Liar {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            into.fill(b'x');
            Ok(usize::MAX)
        }
    }
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(b"ab");
    let mut data = buf.data_mut().unwrap();
    data.read_from(&mut Broken).unwrap_err();
    assert_eq!(data.read_from(&mut &b"cde"[..]).unwrap(), 3);
    assert_eq!(data.read_from(&mut &b""[..]).unwrap(), 0);
    assert_eq!(&data[..], b"abcde");
    assert_eq!(data.read_from(&mut Liar).unwrap(), 4091);
    assert_eq!(data.read_from(&mut Liar).unwrap(), 0, "no tailroom");
    assert_eq!((data.len(), data[5], data[4095]), (4096, b'x', b'x'));
}

#[test]
fn tokio_reads_into_a_buf_and_writes_from_one() {
    each(async |bench| {
        let (mut near, mut far) = tokio::io::duplex(64);
        let sent = pattern(6, 3000);
        let bytes: Bytes = bench.filled(&sent).into_bytes().unwrap();
        let writer = async {
            let mut message = Bytes::from_static(b"head").chain(bytes);
            near.write_all_buf(&mut message).await.unwrap();
            drop(near);
        };
        let buf = bench.empty();
        let reader = async {
            let mut data = buf.data_mut().unwrap();
            while far.read_buf(&mut data).await.unwrap() > 0 {}
        };
        tokio::join!(writer, reader);
        let mut data = buf.data().unwrap();
        assert_eq!(&data.copy_to_bytes(4)[..], b"head");
        assert_eq!(&data[..], &sent[..]);
    });
}
