//! Bufs on ranges that the caller chooses: which may overlap, what a pool claims, and when a
//! descriptor is free again.

use support::*;
use tokio_doca::{BufPool, Device, ErrorKind, Mmap, mem::BufInventory};

fn mmap(len: usize) -> Mmap {
    let device = Device::open_default().unwrap();
    Mmap::builder().device(&device).alloc(len).unwrap()
}

#[test]
fn a_filled_buf_is_a_source_and_an_empty_one_a_destination() {
    let (mmap, inventory) = (mmap(4096), BufInventory::with_capacity(4));
    assert_eq!(rooms(&inventory.buf(&mmap, 10..30).unwrap()), (0, 0, 20));
    let filled = inventory.buf_filled(&mmap, 10..30).unwrap();
    assert_eq!(rooms(&filled), (0, 20, 0));
    assert_eq!(inventory.buf(&mmap, ..).unwrap().capacity(), 4096);
    assert_eq!(inventory.buf(&mmap, 4095..).unwrap().capacity(), 1);
    assert_eq!(inventory.buf(&mmap, ..=9).unwrap().capacity(), 10);
}

#[test]
fn a_range_outside_of_the_mmap_is_refused_with_the_numbers() {
    let (mmap, inventory) = (mmap(4096), BufInventory::with_capacity(1));
    let invalid = ErrorKind::InvalidValue;
    let text = rejected(inventory.buf(&mmap, 0..4097), invalid);
    mentions(&text, &[4097, 4096]);
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [1..0, 7..6, 9..8, 4096..4097, usize::MAX..0, 0..usize::MAX] {
        rejected(inventory.buf(&mmap, range), invalid);
    }
    rejected(inventory.buf_filled(&mmap, ..=usize::MAX), invalid);
    // None of the refused ones has kept the only descriptor.
    inventory.buf(&mmap, 0..4096).unwrap();
}

#[test]
fn descriptors_run_out_and_come_back() {
    let (mmap, inventory) = (mmap(4096), BufInventory::with_capacity(2));
    assert_eq!(inventory.descriptors(), 2);
    let first = inventory.buf(&mmap, 0..10).unwrap();
    let second = inventory.clone().buf(&mmap, 0..10).unwrap();
    let text = rejected(inventory.buf(&mmap, 0..10), ErrorKind::NoMemory);
    mentions(&text, &[2]);
    let clone = first.clone();
    drop(first);
    rejected(inventory.buf(&mmap, 0..10), ErrorKind::NoMemory);
    drop(clone);
    inventory.buf(&mmap, 0..10).unwrap();
    drop(second);
    rejected(
        BufInventory::with_capacity(0).buf(&mmap, 0..10),
        ErrorKind::NoMemory,
    );
}

#[test]
fn a_pools_range_is_not_to_be_had_until_the_last_of_its_bufs_is_gone() {
    let (mmap, inventory) = (mmap(8192), BufInventory::with_capacity(4));
    let build = || BufPool::builder(&mmap).range(0..4096).build();
    let pool = build().unwrap();
    let text = rejected(inventory.buf(&mmap, 4095..5000), ErrorKind::InUse);
    mentions(&text, &[4095, 5000, 0, 4096]);
    rejected(build(), ErrorKind::InUse);
    inventory.buf(&mmap, 4096..5000).unwrap();
    let buf = pool.try_alloc().unwrap();
    drop(pool);
    rejected(inventory.buf(&mmap, 0..1), ErrorKind::InUse);
    drop(buf);
    let own = inventory.buf(&mmap, 0..1).unwrap();
    rejected(build(), ErrorKind::InUse);
    drop(own);
    build().unwrap();
}

#[test]
fn a_buf_of_an_inventory_keeps_its_bytes_from_pools_while_a_guard_lives() {
    let (mmap, inventory) = (mmap(8192), BufInventory::with_capacity(4));
    let bufs: Vec<_> = (0..4)
        .map(|i| inventory.buf_filled(&mmap, i * 100..i * 100 + 100).unwrap())
        .collect();
    let pool = |range| {
        BufPool::builder(&mmap)
            .range(range)
            .element_size(50)
            .build()
    };
    rejected(pool(350..1000), ErrorKind::InUse);
    pool(400..1000).unwrap();
    std::mem::forget(bufs[3].data().unwrap());
    drop(bufs);
    rejected(pool(350..1000), ErrorKind::InUse);
    pool(0..300).unwrap();
}

#[test]
fn overlapping_bufs_exclude_each_other_byte_by_byte() {
    each(async |bench| {
        let (mmap, inventory) = (bench.mmap(4096), BufInventory::with_capacity(8));
        let buf = |range| inventory.buf_filled(&mmap, range).unwrap();
        let (a, b, c) = (buf(0..100), buf(99..200), buf(100..300));
        let writing = a.data_mut().unwrap();
        refused(b.data(), ErrorKind::InUse);
        refused(b.data_mut(), ErrorKind::InUse);
        refused(b.reset_data_len(), ErrorKind::InUse);
        c.data_mut().unwrap().fill(1);
        drop(writing);
        let (one, two) = (a.data().unwrap(), b.data().unwrap());
        refused(c.data_mut(), ErrorKind::InUse);
        drop(two);
        c.data_mut().unwrap().fill(2);
        refused(b.data_mut(), ErrorKind::InUse);
        drop(one);
        b.data_mut().unwrap().fill(3);
        assert_eq!((bytes(&a)[99], bytes(&c)[0], bytes(&c)[100]), (3, 3, 2));

        let hold = bench.hold();
        let dst = bench.empty();
        let mut reading = Box::pin(bench.dma.copy(&a, &dst));
        poll_pending(reading.as_mut());
        refused(b.data_mut(), ErrorKind::InUse);
        assert_eq!(b.data().unwrap().len(), 101);
        drop(hold);
        assert_eq!(reading.await, Ok(100));
        b.data_mut().unwrap().fill(4);
    });
}

#[test]
fn a_thousand_overlapping_bufs_agree_with_a_plain_list() {
    let (mmap, inventory) = (mmap(10_000), BufInventory::with_capacity(1000));
    let range = |i: usize| {
        let start = i * 7919 % 9000;
        start..start + 1 + i * 31 % 300
    };
    let bufs: Vec<_> = (0..1000)
        .map(|i| inventory.buf_filled(&mmap, range(i)).unwrap())
        .collect();
    let mut held: Vec<(usize, bool, tokio_doca::mem::BufData<'_>)> = Vec::new();
    let mut written: Vec<(usize, tokio_doca::mem::BufDataMut<'_>)> = Vec::new();
    let meet = |a: usize, b: usize| range(a).start < range(b).end && range(b).start < range(a).end;
    let (mut granted, mut denied) = (0, 0);
    for step in 0..20_000_usize {
        let i = step * 613 % 1000;
        let by_writer = written.iter().any(|(other, _)| meet(i, *other));
        let by_reader = held.iter().any(|(other, ..)| meet(i, *other));
        match step % 5 {
            0 => match bufs[i].data_mut() {
                Ok(guard) => {
                    assert!(!by_writer && !by_reader, "{i}");
                    written.push((i, guard));
                    granted += 1;
                }
                Err(_) => {
                    assert!(by_writer || by_reader, "{i}");
                    denied += 1;
                }
            },
            1 | 2 => match bufs[i].data() {
                Ok(guard) => {
                    assert!(!by_writer, "{i}");
                    held.push((i, false, guard));
                    granted += 1;
                }
                Err(_) => {
                    assert!(by_writer, "{i}");
                    denied += 1;
                }
            },
            3 if written.len() > 3 => drop(written.swap_remove(step % written.len())),
            4 if held.len() > 6 => drop(held.swap_remove(step % held.len())),
            _ => {}
        }
    }
    assert!(granted > 1000 && denied > 1000, "{granted} {denied}");
}

#[test]
fn bufs_outlive_inventory_mmap_and_device() {
    each(async |bench| {
        let inventory = BufInventory::with_capacity(2);
        let mmap = bench.mmap(4096);
        let src = inventory.buf_filled(&mmap, 0..100).unwrap();
        let dst = inventory.buf(&mmap, 100..200).unwrap();
        drop((mmap, inventory));
        src.data_mut().unwrap().copy_from_slice(&pattern(4, 100));
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(100));
        assert_eq!(bytes(&dst), pattern(4, 100));
    });
}

#[test]
#[should_panic(expected = "16777216 were asked for")]
fn more_descriptors_than_can_be_counted_panic() {
    let _ = BufInventory::with_capacity(1 << 24);
}
