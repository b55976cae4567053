//! Bufs that are selected by an index: each index is always the same Buf, in a range that no other
//! pool or Buf can have.

use support::*;
use tokio_doca::{
    BufPool, ErrorKind,
    error::Reason,
    mem::{ArrayTarget, BufArray, BufInventory},
};

#[test]
fn an_index_is_always_the_same_buf_at_its_place() {
    each(async |bench| {
        let mmap = bench.mmap(8192);
        let array = BufArray::builder(&mmap)
            .range(100..)
            .element_size(60)
            .alignment(64)
            .elements(3)
            .build()
            .unwrap();
        assert_eq!((array.len(), array.element_size()), (3, 60));
        assert_eq!(array.mmap().len(), 8192);
        for i in 0..3 {
            let buf = array.get(i).unwrap();
            assert_eq!(rooms(&buf), (0, 0, 60));
            buf.extend_from_slice(&pattern(i as u8, 10)).unwrap();
            buf.set_data(4, 6).unwrap();
        }
        // Headroom, data and tailroom are as the last handle has left them.
        for i in 0..3 {
            let buf = array.clone().get(i).unwrap();
            assert_eq!(rooms(&buf), (4, 6, 50));
            assert_eq!(bytes(&buf), pattern(i as u8, 10)[4..]);
        }
        let dst = array.get(2).unwrap();
        assert_eq!(bench.dma.copy(&array.get(0).unwrap(), &dst).await, Ok(6));
        assert_eq!(bytes(&array.get(2).unwrap())[6..], pattern(0, 10)[4..]);
        let same = bench
            .dma
            .copy(&array.get(1).unwrap(), array.get(1).unwrap())
            .await;
        assert_eq!(same.unwrap_err().reason(), Reason::Overlap);
        drop((dst, array));
        // The bytes are where the range, the alignment and the size put them.
        let all = BufInventory::with_capacity(1)
            .buf_filled(&mmap, ..)
            .unwrap();
        for (i, at) in [128, 192, 256].into_iter().enumerate() {
            assert_eq!(bytes(&all)[at..at + 10], pattern(i as u8, 10), "{i}");
        }
    });
}

#[test]
fn handles_of_one_element_exclude_each_other() {
    each(async |bench| {
        let array = BufArray::builder(&bench.mmap(4096))
            .element_size(16)
            .build()
            .unwrap();
        let (one, same, other) = (
            array.get(5).unwrap(),
            array.get(5).unwrap(),
            array.get(6).unwrap(),
        );
        one.extend_from_slice(b"abc").unwrap();
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(&one, &other));
        poll_pending(copy.as_mut());
        refused(same.data_mut(), ErrorKind::InUse);
        refused(array.get(6).unwrap().data(), ErrorKind::InUse);
        assert_eq!(same.data().unwrap().len(), 3);
        drop(hold);
        assert_eq!(copy.await, Ok(3));
        same.data_mut().unwrap()[0] = b'x';
        assert_eq!(bytes(&one), b"xbc");
    });
}

#[test]
fn an_array_claims_what_its_elements_take_and_no_more() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap(4096);
    let build = || {
        BufArray::builder(&mmap)
            .range(1000..)
            .element_size(100)
            .elements(2)
            .build()
    };
    let array = build().unwrap();
    let inventory = BufInventory::with_capacity(2);
    let text = rejected(inventory.buf(&mmap, 1199..1300), ErrorKind::InUse);
    mentions(&text, &[1199, 1300, 1000, 1200]);
    rejected(BufPool::builder(&mmap).build(), ErrorKind::InUse);
    rejected(build(), ErrorKind::InUse);
    inventory.buf(&mmap, 0..1000).unwrap();
    BufPool::builder(&mmap)
        .range(1200..)
        .element_size(10)
        .build()
        .unwrap();
    // The range stays in use until the last Buf, guard and `Bytes` of the array is dropped.
    let buf = array.get(1).unwrap();
    drop(array);
    rejected(build(), ErrorKind::InUse);
    let bytes = buf.into_bytes().unwrap();
    rejected(build(), ErrorKind::InUse);
    drop(bytes);
    build().unwrap();
}

#[test]
fn what_an_array_cannot_be_is_refused_with_the_numbers() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap(8192);
    let array = || BufArray::builder(&mmap).element_size(64);
    for target in [ArrayTarget::Gpu, ArrayTarget::Dpa] {
        let text = rejected(array().target(target).build(), ErrorKind::NotSupported);
        assert!(
            text.contains(&format!("{target:?}")) && text.contains("Cpu"),
            "{text}"
        );
    }
    let invalid = ErrorKind::InvalidValue;
    mentions(
        &rejected(array().elements(129).build(), invalid),
        &[129, 64, 128],
    );
    rejected(array().elements(0).build(), invalid);
    rejected(array().elements(usize::MAX).build(), invalid);
    mentions(
        &rejected(array().range(..8193).build(), invalid),
        &[8193, 8192],
    );
    rejected(array().range(8190..).build(), invalid);
    rejected(array().element_size(0).build(), invalid);
    rejected(array().alignment(3).build(), invalid);
    // The refused arrays have claimed nothing.
    let array = array()
        .elements(128)
        .target(ArrayTarget::Cpu)
        .build()
        .unwrap();
    let text = refused(array.get(128), invalid);
    mentions(&text, &[128, 128]);
    mentions(&refused(array.get(usize::MAX), invalid), &[128, u64::MAX]);
    assert_eq!(array.get(128).unwrap_err().reason(), Reason::NoElement);
    array.get(127).unwrap();
}
