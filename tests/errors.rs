//! What is wrong is refused with a precise error and its numbers; nothing moved, and everything can be used afterwards.

mod common;

use std::time::Duration;

use common::*;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Access, BufChain, BufInventory, BufPool, Dma, ErrorKind, Mmap, Mode, Reason, WorkQ,
};

#[test]
fn a_source_without_data_is_refused() {
    each(async |bench| {
        let (src, dst) = (bench.empty(), bench.empty());
        refused(bench.dma.copy(&src, &dst).await, ErrorKind::InvalidValue);
        src.set_data(50, 0).unwrap();
        refused(bench.dma.copy(&src, &dst).await, ErrorKind::InvalidValue);
        let chain = BufChain::with_capacity(2);
        refused(bench.dma.copy(&chain, &dst).await, ErrorKind::InvalidValue);
        chain.push(&src).unwrap();
        let error = bench.dma.copy(&chain, &dst).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NoData);
        src.extend_from_slice(b"now").unwrap();
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
        assert_eq!(bytes(&dst), b"now");
    });
}

#[test]
fn too_small_a_tailroom_is_refused_with_both_numbers() {
    each(async |bench| {
        let jobs = bench.device.jobs();
        let (src, dst) = (bench.filled(&pattern(1, 1000)), bench.filled(&[9; 4096]));
        dst.set_data(3000, 97).unwrap();
        let text = refused(bench.dma.copy(&src, &dst).await, ErrorKind::InvalidValue);
        mentions(&text, &[999, 1000]);
        let none = bench.filled(&[7; 4096]);
        let text = refused(bench.dma.copy(&src, &none).await, ErrorKind::InvalidValue);
        mentions(&text, &[0, 1000]);
        assert_eq!(rooms(&dst), (3000, 97, 999));
        dst.set_data(0, 4096).unwrap();
        assert_eq!(bytes(&dst), [9; 4096], "nothing moved");
        let chain = BufChain::with_capacity(2);
        dst.set_data(0, 4000).unwrap();
        none.set_data(0, 4000).unwrap();
        chain.push(&dst).unwrap();
        chain.push(&none).unwrap();
        let text = refused(bench.dma.copy(&src, &chain).await, ErrorKind::InvalidValue);
        mentions(&text, &[192, 1000]);
        assert_eq!(
            bench.device.jobs(),
            jobs,
            "the device was not even asked: {jobs:?}"
        );
        bench.works().await;
    });
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

/// However it is found (a refused Lease), a job that shares memory with itself is wrong, and waiting will not help.
#[test]
fn source_and_destination_that_share_memory_are_refused() {
    each(async |bench| {
        let overlap = |result: Result<usize, tokio_doca::JobError>, what: &str| {
            let error = result.expect_err(what);
            assert_eq!(
                (error.kind(), error.reason()),
                (ErrorKind::InvalidValue, Reason::Overlap),
                "{what}: {error}"
            );
        };
        let dma = &bench.dma;
        let (a, b, c) = (bench.filled(&[1; 100]), bench.empty(), bench.empty());
        overlap(dma.copy(&a, &a).await, "the same Buf");
        overlap(dma.copy(&a, a.clone()).await, "a clone");
        overlap(dma.copy(a.slice(..10).unwrap(), &a).await, "its slice");

        let mmap = bench.mmap(8192);
        let inventory = BufInventory::with_capacity(8);
        let left = inventory.buf_filled(&mmap, 0..1000).unwrap();
        let right = inventory.buf(&mmap, 999..2000).unwrap();
        let inner = inventory.buf(&mmap, 10..20).unwrap();
        let beside = inventory.buf(&mmap, 1000..3000).unwrap();
        overlap(dma.copy(&left, &right).await, "one byte shared");
        overlap(dma.copy(&left, &inner).await, "one within the other");
        overlap(dma.copy(left.slice(..5).unwrap(), &inner).await, "a slice");
        assert_eq!(dma.copy(&left, &beside).await, Ok(1000), "side by side");

        let chain = BufChain::with_capacity(4);
        chain.push(&b).unwrap();
        chain.push(&c).unwrap();
        chain.push(&b).unwrap();
        overlap(dma.copy(&a, &chain).await, "a Buf twice among destinations");
        chain.pop().unwrap();
        chain.push(&a).unwrap();
        overlap(
            dma.copy(&a, &chain).await,
            "the source among the destinations",
        );
        chain.pop().unwrap();
        let sources = BufChain::with_capacity(4);
        sources.push(&a).unwrap();
        sources.push(&c).unwrap();
        overlap(
            dma.copy(&sources, &chain).await,
            "a Buf of the source chain among the destinations",
        );
        overlap(
            dma.copy(&sources, &a).await,
            "the destination in the source chain",
        );
        overlap(dma.copy(&sources, &sources).await, "a chain on itself");
        sources.pop().unwrap();
        sources.push(a.slice(..10).unwrap()).unwrap();
        overlap(
            dma.copy(&sources, &a).await,
            "a slice of the destination in the source chain",
        );
        let overlapping = BufChain::with_capacity(2);
        overlapping.push(&right).unwrap();
        overlapping.push(&beside).unwrap();
        overlap(
            dma.copy(&a, &overlapping).await,
            "overlapping Bufs of an inventory among the destinations",
        );

        // Nothing moved, nothing is leased.
        assert_eq!(
            (bytes(&a), b.data_len(), c.data_len()),
            (vec![1; 100], 0, 0)
        );
        assert_eq!(dma.copy(&sources, &chain).await, Ok(110));
        assert_eq!((b.data_len(), right.data_len()), (110, 0));
        bench.works().await;
    });
}

#[test]
fn a_source_may_stand_twice_among_sources() {
    each(async |bench| {
        let (a, dst) = (bench.filled(b"ab"), bench.empty());
        let chain = BufChain::with_capacity(3);
        for _ in 0..3 {
            chain.push(&a).unwrap();
        }
        assert_eq!(bench.dma.copy(&chain, &dst).await, Ok(6));
        assert_eq!(bytes(&dst), b"ababab");
    });
}

#[test]
fn a_slice_in_a_destination_chain_is_refused() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.filled(b"x"));
        let chain = BufChain::with_capacity(2);
        let first = bench.empty();
        chain.push(&first).unwrap();
        chain.push(dst.slice(..).unwrap()).unwrap();
        let error = bench.dma.copy(&src, &chain).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::InvalidValue, Reason::SliceAsDestination)
        );
        assert_eq!((first.data_len(), dst.data_len()), (0, 1));
        chain.pop().unwrap();
        assert_eq!(bench.dma.copy(&src, &chain).await, Ok(3));
    });
}

#[test]
fn a_full_chain_says_for_how_many_it_was_built() {
    let bench = Bench::new(configs()[0]);
    let chain = BufChain::with_capacity(1);
    let buf = bench.empty();
    chain.push(&buf).unwrap();
    mentions(&refused(chain.push(&buf), ErrorKind::Full), &[1]);
    assert_eq!(chain.len(), 1);
    refused(BufChain::with_capacity(0).push(&buf), ErrorKind::Full);
}

#[test]
fn memory_of_another_device_is_refused() {
    each(async |bench| {
        for other in [
            bench.soft.open("pf1").unwrap(),
            Soft::builder().build().open("pf0").unwrap(),
        ] {
            let mmap = Mmap::builder().device(&other).alloc(8192).unwrap();
            let foreign = BufPool::builder(&mmap).build().unwrap();
            let (a, b) = (foreign.try_alloc().unwrap(), foreign.try_alloc().unwrap());
            a.extend_from_slice(b"abc").unwrap();
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            let foreign_device = |result: Result<usize, tokio_doca::JobError>| {
                let error = result.unwrap_err();
                assert_eq!(
                    (error.kind(), error.reason()),
                    (ErrorKind::InvalidValue, Reason::ForeignDevice)
                );
            };
            foreign_device(bench.dma.copy(&a, &dst).await);
            foreign_device(bench.dma.copy(&src, &b).await);
            let chain = BufChain::with_capacity(2);
            chain.push(&src).unwrap();
            chain.push(&a).unwrap();
            foreign_device(bench.dma.copy(&chain, &dst).await);
            assert_eq!((dst.data_len(), b.data_len()), (0, 0));
            let own = Dma::builder(&other).attach(&bench.workq).unwrap();
            assert_eq!(own.copy(&a, &b).await, Ok(3), "its own device takes it");
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(3));
        }
    });
}

#[test]
fn an_mmap_of_two_devices_is_taken_by_both() {
    each(async |bench| {
        let other = bench.soft.open("pf1").unwrap();
        let builder = Mmap::builder().device(&other).device(&bench.device);
        let mmap = builder.alloc(8192).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        let (a, b) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        a.extend_from_slice(b"abc").unwrap();
        assert_eq!(bench.dma.copy(&a, &b).await, Ok(3));
        let own = Dma::builder(&other).attach(&bench.workq).unwrap();
        assert_eq!(own.copy(&a, &b).await, Ok(3));
        assert_eq!(bytes(&b), b"abcabc");
    });
}

#[test]
fn an_mmap_needs_a_device_bytes_and_flags_that_agree() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let builder = || Mmap::builder().device(&device);
    let invalid = ErrorKind::InvalidValue;
    rejected(Mmap::builder().alloc(4096), invalid);
    mentions(&rejected(builder().alloc(0), invalid), &[0]);
    let twice = rejected(builder().device(&device).alloc(4096), ErrorKind::InUse);
    assert!(twice.contains("pf0"), "{twice}");
    for access in [
        Access::DPU_READ_ONLY | Access::DPU_READ_WRITE | Access::LOCAL_READ_WRITE,
        Access::RDMA_WRITE,
        Access::RDMA_ATOMIC,
        Access::DPU_READ_WRITE,
        Access::from_bits_retain(1 << 20),
    ] {
        rejected(builder().access(access).alloc(4096), invalid);
    }
    for access in [
        Access::LOCAL_READ_ONLY,
        Access::RDMA_READ,
        Access::DPU_READ_ONLY,
        Access::all() - Access::DPU_READ_ONLY,
    ] {
        assert_eq!(
            builder().access(access).alloc(4096).unwrap().access(),
            access
        );
    }
    assert_eq!(builder().alloc(1).unwrap().len(), 1);
}

#[test]
fn a_size_that_no_file_can_have_is_refused() {
    let device = Soft::builder().build().open("pf0").unwrap();
    for len in [usize::MAX, 1 << 63] {
        let builder = Mmap::builder().device(&device);
        let text = rejected(builder.alloc(len), ErrorKind::InvalidValue);
        mentions(&text, &[len as u64]);
    }
}

/// In a process of its own, with a parent that ends it before it takes the machine's memory.
#[test]
#[ignore = "the other half of more_memory_than_there_is_is_an_error_and_not_the_oom_killer"]
fn ask_for_more_memory_than_there_is() {
    let device = Soft::builder().build().open("pf0").unwrap();
    for len in [1 << 60, 1 << 44] {
        let builder = Mmap::builder().device(&device);
        let text = rejected(builder.alloc(len), ErrorKind::NoMemory);
        mentions(&text, &[len as u64]);
    }
}

/// What the machine has in shared memory, in KiB.
fn shmem() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find(|line| line.starts_with("Shmem:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

// A memfd is not accounted for when it is made longer: the length is compared with what there is before.
#[test]
fn more_memory_than_there_is_is_an_error_and_not_the_oom_killer() {
    let mut child = programs::this_program()
        .args(["--exact", "ask_for_more_memory_than_there_is", "--ignored"])
        .spawn()
        .unwrap();
    let before = shmem();
    let mut took = 0;
    block_until("the child ends", || {
        took = took.max(shmem().saturating_sub(before));
        if took > 1 << 20 {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
        child.try_wait().unwrap().is_some()
    });
    assert!(
        took <= 1 << 20,
        "it began to fill the memory of the machine"
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_pool_that_does_not_fit_is_refused_with_the_numbers() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap(8192);
    let pool = || BufPool::builder(&mmap);
    let invalid = ErrorKind::InvalidValue;
    mentions(
        &rejected(pool().range(0..8193).build(), invalid),
        &[8193, 8192],
    );
    mentions(
        &rejected(pool().element_size(8193).build(), invalid),
        &[8193, 8192],
    );
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [5..5, 6..5, usize::MAX..0, 8192..8193] {
        rejected(pool().range(range).build(), invalid);
    }
    rejected(pool().range(..=usize::MAX).build(), invalid);
    rejected(pool().element_size(0).build(), invalid);
    rejected(pool().element_size(1 << 60).build(), invalid);
    rejected(pool().element_size(usize::MAX).build(), invalid);
    rejected(pool().alignment(0).build(), invalid);
    rejected(pool().alignment(3).build(), invalid);
    rejected(pool().alignment(1 << 63).build(), invalid);
    rejected(
        pool().element_size(usize::MAX).alignment(1 << 63).build(),
        invalid,
    );
    rejected(
        pool().range(1..64).element_size(64).alignment(64).build(),
        invalid,
    );
    // None of them claimed anything.
    assert_eq!(pool().build().unwrap().elements(), 2);
}

#[test]
fn a_depth_of_none_or_of_too_many_is_refused() {
    for depth in [0, (1 << 20) + 1, u32::MAX] {
        for mode in modes() {
            let result = WorkQ::builder().depth(depth).mode(mode).build();
            mentions(
                &rejected(result, ErrorKind::InvalidValue),
                &[depth.into(), 1 << 20],
            );
        }
    }
    assert_eq!(WorkQ::builder().depth(1).build().unwrap().depth(), 1);
}

#[test]
fn a_buf_that_is_in_use_is_not_given_to_another_job() {
    each(async |bench| {
        let hold = bench.hold();
        let (a, b, c) = (bench.filled(b"abc"), bench.empty(), bench.empty());
        let mut first = Box::pin(bench.dma.copy(&a, &b));
        poll_pending(first.as_mut());
        let mut second = Box::pin(bench.dma.copy(&a, &c));
        poll_pending(second.as_mut());
        let error = bench.dma.copy(&b, &c).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::InUse, Reason::SourceInUse)
        );
        let error = bench.dma.copy(&bench.filled(b"x"), &a).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::InUse, Reason::DestinationInUse)
        );
        assert_eq!(bench.workq.in_flight(), 2);
        drop(hold);
        assert_eq!((first.await, second.await), (Ok(3), Ok(3)));
        assert_eq!(bench.dma.copy(&b, &c).await, Ok(3));
        assert_eq!(bytes(&c), b"abcabc");
    });
}

#[test]
fn a_context_does_not_attach_to_a_workq_that_was_shut_down() {
    each(async |bench| {
        bench.workq.shutdown().await.unwrap();
        rejected(
            Dma::builder(&bench.device).attach(&bench.workq),
            ErrorKind::BadState,
        );
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        refused(bench.dma.copy(&src, &dst).await, ErrorKind::Shutdown);
        refused(bench.dma.try_copy(&src, &dst), ErrorKind::Shutdown);
        let other = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let dma = bench.dma.attach(&other).unwrap();
        assert_eq!(dma.copy(&src, &dst).await, Ok(3));
    });
}

#[test]
fn a_ninth_device_does_not_fit_on_a_workq() {
    let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
    let softs: Vec<_> = (0..9).map(|_| Soft::builder().build()).collect();
    let devices: Vec<_> = softs.iter().map(|s| s.open("pf0").unwrap()).collect();
    let attached: Vec<_> = devices[..8]
        .iter()
        .map(|device| Dma::builder(device).attach(&workq).unwrap())
        .collect();
    mentions(
        &rejected(Dma::builder(&devices[8]).attach(&workq), ErrorKind::Full),
        &[8],
    );
    for device in &devices[..8] {
        Dma::builder(device).attach(&workq).unwrap();
    }
    drop(attached);
}

#[test]
fn detach_is_refused_while_a_clone_has_the_attachment() {
    let bench = Bench::new(configs()[0]);
    let (one, two) = (bench.dma.clone(), bench.dma.attach(&bench.workq).unwrap());
    rejected(one.detach(), ErrorKind::InUse);
    two.detach().unwrap();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let future = bench.dma.copy_owned(src, dst);
    let Bench { dma, .. } = bench;
    rejected(dma.detach(), ErrorKind::InUse);
    assert_eq!(run(future), Ok(3));
}

#[test]
fn errors_become_io_errors_of_the_same_kind() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let io: std::io::Error = bench.dma.copy(&dst, &src).await.unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::InvalidInput, "{io}");
        let guard = src.data().unwrap();
        dst.extend_from_slice(b"d").unwrap();
        let io: std::io::Error = bench.dma.copy(&dst, &src).await.unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::ResourceBusy, "{io}");
        drop(guard);
        let io: std::io::Error = bench.soft.open("nope").unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    });
}
