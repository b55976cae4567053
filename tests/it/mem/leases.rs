//! Leases: some bytes have many readers or one writer, whether jobs or guards; no call waits for a
//! lease, and forgetting any value is sound.

use support::*;
use tokio_doca::{Buf, BufPool, Device, Dma, ErrorKind, Mmap, WorkQ, error::Reason};

#[test]
fn many_readers_or_one_writer() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(b"abc");
    let readers: Vec<_> = (0..100).map(|_| buf.data().unwrap()).collect();
    refused(buf.data_mut(), ErrorKind::InUse);
    refused(buf.set_data(0, 1), ErrorKind::InUse);
    refused(buf.reset_data_len(), ErrorKind::InUse);
    refused(buf.extend_from_slice(b"x"), ErrorKind::InUse);
    refused(buf.copy_in(0, b"x"), ErrorKind::InUse);
    assert_eq!(bytes(&buf), b"abc");
    assert!(readers.iter().all(|data| data[..] == *b"abc"));
    drop(readers);
    let mut writer = buf.data_mut().unwrap();
    writer.copy_from_slice(b"xyz");
    refused(buf.data(), ErrorKind::InUse);
    refused(buf.data_mut(), ErrorKind::InUse);
    refused(buf.clone().data(), ErrorKind::InUse);
    refused(buf.copy_out(0, &mut [0; 3]), ErrorKind::InUse);
    drop(writer);
    assert_eq!(&buf.data().unwrap()[..], b"xyz");
}

#[test]
fn guards_exclude_jobs_that_conflict_and_no_others() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.filled(b"d"));
        let copy = || bench.dma.copy(&src, &dst);
        {
            let _reading = src.data().unwrap();
            assert_eq!(copy().await, Ok(3), "a reader does not mind a reader");
        }
        {
            let _reading = dst.data().unwrap();
            let error = copy().await.unwrap_err();
            assert_eq!(error.reason(), Reason::DestinationInUse);
        }
        {
            let _writing = dst.data_mut().unwrap();
            let error = copy().await.unwrap_err();
            assert_eq!(error.reason(), Reason::DestinationInUse);
        }
        {
            let _writing = src.data_mut().unwrap();
            let error = copy().await.unwrap_err();
            assert_eq!(error.reason(), Reason::SourceInUse);
        }
        assert_eq!(copy().await, Ok(3));
        assert_eq!(bytes(&dst), b"dabcabc");
    });
}

#[test]
fn jobs_exclude_guards_until_they_are_over() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        assert_eq!(&src.data().unwrap()[..], b"abc");
        refused(src.data_mut(), ErrorKind::InUse);
        refused(src.set_data(0, 1), ErrorKind::InUse);
        refused(dst.data(), ErrorKind::InUse);
        refused(dst.data_mut(), ErrorKind::InUse);
        refused(dst.extend_from_slice(b"x"), ErrorKind::InUse);
        refused(dst.set_data(0, 1), ErrorKind::InUse);
        drop(hold);
        assert_eq!(copy.await, Ok(3));
        dst.data_mut().unwrap().reverse();
        src.data_mut().unwrap().reverse();
        assert_eq!(
            (bytes(&src), bytes(&dst)),
            (b"cba".to_vec(), b"cba".to_vec())
        );
    });
}

#[test]
fn nothing_is_leased_before_the_first_poll() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let copy = bench.dma.copy(&src, &dst);
        src.data_mut().unwrap()[0] = b'x';
        dst.extend_from_slice(b"1").unwrap();
        assert_eq!(bench.workq.in_flight(), 0);
        assert_eq!(copy.await, Ok(3));
        assert_eq!(bytes(&dst), b"1xbc");
    });
}

#[test]
fn in_use_is_answered_at_once_and_nothing_is_taken() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let writing = dst.data_mut().unwrap();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        match poll(copy.as_mut()) {
            std::task::Poll::Ready(result) => refused(result, ErrorKind::InUse),
            std::task::Poll::Pending => panic!("it waits"),
        };
        src.data_mut().unwrap()[0] = b'x';
        assert_eq!(bench.workq.in_flight(), 0);
        drop(writing);
    });
}

#[test]
fn readers_and_a_writer_on_threads_never_meet() {
    let bench = Bench::new(configs()[0]);
    let buf = bench.filled(&[0; 64]);
    std::thread::scope(|scope| {
        for t in 0..3u8 {
            let buf = buf.clone();
            scope.spawn(move || {
                let mut got = 0;
                for i in 0..20_000u32 {
                    if t == 0 {
                        if let Ok(mut data) = buf.data_mut() {
                            data.fill(i as u8);
                            got += 1;
                        }
                    } else if let Ok(data) = buf.data() {
                        assert!(data.iter().all(|&byte| byte == data[0]), "torn");
                        got += 1;
                    }
                }
                got
            });
        }
    });
    buf.data_mut().unwrap().fill(1);
}

#[test]
fn guards_forgotten_by_the_million_leave_the_buf_leased_and_nothing_else() {
    each_of(&configs()[..2], async |bench| {
        let buf = bench.filled(b"abc");
        for _ in 0..2_000_000 {
            std::mem::forget(buf.data().unwrap());
        }
        assert_eq!(&buf.data().unwrap()[..], b"abc");
        refused(buf.data_mut(), ErrorKind::InUse);
        let dst = bench.empty();
        assert_eq!(bench.dma.copy(&buf, &dst).await, Ok(3), "it can be read");
        refused(bench.dma.copy(&dst, &buf).await, ErrorKind::InUse);
        drop(buf);
        drop(dst);
        assert_eq!(bench.free_bufs(), bench.pool.elements() - 1);
        bench.works().await;
    });
}

#[test]
fn guards_of_an_inventory_buf_forgotten_by_the_hundred_thousand_are_counted() {
    each_of(&configs()[..1], async |bench| {
        let mmap = bench.mmap(4096);
        let inventory = tokio_doca::mem::BufInventory::with_capacity(3);
        let buf = inventory.buf_filled(&mmap, 0..100).unwrap();
        for _ in 0..100_000 {
            std::mem::forget(buf.data().unwrap());
        }
        drop(buf);
        let over = inventory.buf_filled(&mmap, 50..150).unwrap();
        refused(over.data_mut(), ErrorKind::InUse);
        assert_eq!(over.data().unwrap().len(), 100);
        inventory
            .buf_filled(&mmap, 100..150)
            .unwrap()
            .data_mut()
            .unwrap()
            .fill(1);
    });
}

#[test]
fn a_forgotten_write_guard_refuses_everybody_for_good() {
    each(async |bench| {
        let (buf, other) = (bench.filled(b"abc"), bench.empty());
        std::mem::forget(buf.data_mut().unwrap());
        refused(buf.data(), ErrorKind::InUse);
        refused(bench.dma.copy(&buf, &other).await, ErrorKind::InUse);
        drop((buf, other));
        assert_eq!(bench.free_bufs(), bench.pool.elements() - 1);
        bench.works().await;
    });
}

#[test]
fn a_forgotten_buf_is_one_buf_less() {
    each(async |bench| {
        std::mem::forget(bench.filled(b"abc"));
        assert_eq!(bench.free_bufs(), bench.pool.elements() - 1);
        bench.works().await;
    });
}

#[test]
fn a_forgotten_copy_keeps_its_memory_and_hurts_nobody() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(src.clone(), dst.clone()).owned());
        poll_pending(copy.as_mut());
        std::mem::forget(copy);
        refused(dst.data(), ErrorKind::InUse);
        refused(src.data_mut(), ErrorKind::InUse);
        drop(hold);
        // The job completes all the same, and returns its leases; only its slot stays occupied.
        bench.engine_works().await;
        until("the job is over", || dst.data().is_ok()).await;
        assert_eq!(bytes(&dst), b"abc");
        assert_eq!(bench.workq.in_flight(), 1);
        bench.works().await;
        in_time("shutdown", bench.workq.shutdown()).await.unwrap();
    });
}

/// A copy is forgotten while it borrows: the Bufs, the context and the WorkQ are dropped before the
/// job completes.
#[test]
fn a_forgotten_copy_survives_all_that_it_borrowed() {
    for config in configs() {
        let bench = Bench::new(config);
        let pool = bench.pool.clone();
        let all = pool.elements();
        let hold = bench.hold();
        run(async {
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            let mut copy = Box::pin(bench.dma.copy(&src, &dst));
            poll_pending(copy.as_mut());
            std::mem::forget(copy);
            drop((src, dst));
            let Bench {
                soft,
                device,
                mmap,
                pool,
                workq,
                dma,
                ..
            } = bench;
            drop((soft, device, mmap, pool, dma, workq));
        });
        assert_eq!(free_bufs(&pool), all - 2, "{config:?}: still in flight");
        drop(hold);
        block_until("the device freed what it had", || free_bufs(&pool) == all);
    }
}

#[test]
fn a_guard_outlives_pool_mmap_and_device() {
    let device = Device::open_default().unwrap();
    let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    let buf = pool.try_alloc().unwrap();
    buf.extend_from_slice(&pattern(9, 4096)).unwrap();
    let guard = buf.data().unwrap();
    drop((pool, mmap, device));
    assert_eq!(&guard[..], &pattern(9, 4096)[..]);
    let other = buf.clone();
    drop(guard);
    drop(buf);
    other.data_mut().unwrap().fill(0);
}

#[test]
fn many_jobs_read_one_source_at_once() {
    each(async |bench| {
        let hold = bench.hold();
        let src = bench.filled(b"abc");
        let sinks: Vec<Buf> = (0..16).map(|_| bench.empty()).collect();
        let copies = futures::future::join_all(sinks.iter().map(|dst| bench.dma.copy(&src, dst)));
        let mut copies = Box::pin(copies);
        poll_pending(copies.as_mut());
        assert_eq!(bench.workq.in_flight(), 16);
        drop(hold);
        assert!(copies.await.iter().all(|result| *result == Ok(3)));
        assert!(sinks.iter().all(|dst| bytes(dst) == b"abc"));
    });
}

/// With two WorkQs and two devices: a lease belongs to the memory, wherever the job was submitted.
#[test]
fn leases_hold_across_workqs_and_devices() {
    each(async |bench| {
        let second = bench.soft.open("pf1").unwrap();
        let builder = Mmap::builder().device(&bench.device).device(&second);
        let mmap = builder.alloc(8192).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        src.extend_from_slice(b"abc").unwrap();
        let workq = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let dma = Dma::builder(&second).attach(&workq).unwrap();
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        let error = dma.copy(&src, &dst).await.unwrap_err();
        assert_eq!(error.reason(), Reason::DestinationInUse);
        drop(hold);
        assert_eq!(copy.await, Ok(3));
        assert_eq!(dma.copy(&src, &dst).await, Ok(3));
    });
}
