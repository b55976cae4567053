//! Wrong operands are refused with a precise error that contains the numbers; no byte is moved, and
//! all operands stay usable.

use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Dma, ErrorKind, Mmap, Mode,
    error::Reason,
    mem::{
        AnyCopyDestination, AnyCopySource, AnyDestination, AnySource, BufChain, BufInventory,
        MaybeAnyDestination, MaybeAnySource,
    },
};

#[test]
fn a_source_without_data_is_copied_once_it_has_some() {
    each(async |bench| {
        let (src, dst) = (bench.empty(), bench.empty());
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(0));
        src.set_data(50, 0).unwrap();
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(0));
        let chain = BufChain::with_capacity(2);
        assert_eq!(bench.dma.copy(&chain, &dst).await, Ok(0));
        chain.push(&src).unwrap();
        assert_eq!(bench.dma.copy(&chain, &dst).await, Ok(0));
        assert_eq!(rooms(&dst), (0, 0, 4096));
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

/// A job whose source and destination share memory is refused as wrong, even where a refused lease
/// detects it, since waiting would not help.
#[test]
fn source_and_destination_that_share_memory_are_refused() {
    each(async |bench| {
        let overlap = |result: Result<usize, tokio_doca::error::JobError>, what: &str| {
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

        // No byte was moved, and nothing is leased.
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
            let foreign_device = |result: Result<usize, tokio_doca::error::JobError>| {
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

/// Any type of local operand can be used where imported memory, or no operand, is also accepted.
#[test]
fn local_operands_of_any_type_are_operands_of_wider_kinds() {
    let setup = Setup::new(false, Mode::BusyPoll);
    run(async {
        let (one, other) = (Side::new(setup), Side::new(setup));
        connect(&one.rdma, &other.rdma);
        let dma = Dma::builder(&one.device).attach(&one.workq).unwrap();
        let of = |buf: Buf| {
            let chain = BufChain::with_capacity(1);
            chain.push(buf).unwrap();
            chain
        };
        let buf = one.filled(b"abcdef");
        let slice = buf.slice(1..3).unwrap();
        let list = of(one.filled(b"ghi"));
        for (source, data) in [
            (AnySource::from(buf), &b"abcdef"[..]),
            (AnySource::from(slice), b"bc"),
            (AnySource::from(list), b"ghi"),
        ] {
            let [first, second, third, fourth] =
                [one.empty(), one.empty(), other.empty(), other.empty()];
            for (copy, message) in [
                (AnyDestination::from(&first), AnyDestination::from(&third)),
                (of(second.clone()).into(), of(fourth.clone()).into()),
            ] {
                let src = AnyCopySource::from(&source);
                let copied = dma.copy(src, AnyCopyDestination::from(copy)).await;
                assert_eq!(copied, Ok(data.len()));
                let dst = MaybeAnyDestination::from(message);
                let received = other.rdma.recv(dst).start().unwrap();
                one.rdma.send(MaybeAnySource::from(&source)).await.unwrap();
                assert_eq!(
                    in_time("the message", received).await.unwrap().len,
                    data.len()
                );
            }
            for buf in [first, second, third, fourth] {
                assert_eq!(bytes(&buf), data);
            }
        }
    });
}
