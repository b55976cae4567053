//! Operations that are started together by `Op::start_all`.

use futures::future::join_all;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::op::{Op, StartedAll};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{BufPool, Dma, ErrorKind, Mmap, Mode, WorkQ, error::Reason};

/// Enough operations for several batches.
const MANY: usize = 80;

#[test]
fn copies_are_started_together_in_order() {
    each(async |bench| {
        let memory = Mmap::builder().device(&bench.device).alloc(2 * MANY * 64);
        let pool = BufPool::builder(&memory.unwrap()).element_size(64).build();
        let pool = pool.unwrap();
        let bufs = || {
            (0..MANY)
                .map(|_| pool.try_alloc().unwrap())
                .collect::<Vec<_>>()
        };
        let (sources, dsts) = (bufs(), bufs());
        for (byte, src) in (0..).zip(&sources) {
            src.extend_from_slice(&[byte; 64]).unwrap();
        }
        let workq = WorkQ::builder().depth(MANY as u32).mode(bench.workq.mode());
        let dma = Dma::builder(&bench.device)
            .attach(&workq.build().unwrap())
            .unwrap();
        let copies = sources
            .iter()
            .zip(&dsts)
            .map(|(src, dst)| dma.copy(src, dst));
        let StartedAll { started, refused } = Op::start_all(copies);
        assert_eq!((started.len(), refused.is_none()), (MANY, true));
        for copied in in_time("all end", join_all(started)).await {
            assert_eq!(copied, Ok(64));
        }
        for (src, dst) in sources.iter().zip(&dsts) {
            assert_eq!(dst.data().unwrap()[..], src.data().unwrap()[..]);
        }
    });
}

/// The first refused operation comes back with those behind it, which were not started.
#[test]
fn the_first_that_is_refused_ends_the_batch() {
    each(async |bench| {
        let src = bench.filled(b"abc");
        let (first, second, last) = (bench.empty(), bench.empty(), bench.empty());
        let guard = second.data_mut().unwrap();
        let dma = &bench.dma;
        let copies = [
            dma.copy(&src, &first),
            dma.copy(&src, &second),
            dma.copy(&src, &last),
        ];
        let StartedAll { started, refused } = Op::start_all(copies);
        assert_eq!(started.len(), 1);
        let refused = refused.expect("a guard writes its destination");
        assert_eq!(refused.kind(), ErrorKind::InUse);
        for copied in in_time("the first ends", join_all(started)).await {
            assert_eq!(copied, Ok(3));
        }
        assert_eq!(last.data_len(), 0);
        drop(guard);
        let rest = refused.into_op();
        assert_eq!(rest.len(), 2);
        for copied in in_time("the others end", join_all(rest)).await {
            assert_eq!(copied, Ok(3));
        }
    });
}

/// If the device finishes jobs inline, an operation may use what the one before it has written;
/// otherwise it is refused, as by `start`.
#[test]
fn one_of_a_batch_meets_the_memory_of_another_as_if_it_were_started_alone() {
    each(async |bench| {
        let (src, between, dst) = (bench.filled(b"abc"), bench.empty(), bench.empty());
        let alone = bench.dma.copy(&src, &between).start().unwrap();
        let is_over = bench.dma.copy(&between, &dst).start().map(|_| ());
        alone.await.unwrap();
        let is_over = is_over.map_err(|refused| refused.kind());
        until("nothing is in flight", || bench.workq.in_flight() == 0).await;
        between.reset_data_len().unwrap();
        dst.reset_data_len().unwrap();
        let copies = [
            bench.dma.copy(&src, &between),
            bench.dma.copy(&between, &dst),
        ];
        let StartedAll { started, refused } = Op::start_all(copies);
        assert_eq!(
            refused.map_or(Ok(()), |refused| Err(refused.kind())),
            is_over
        );
        join_all(started)
            .await
            .into_iter()
            .for_each(|copied| assert_eq!(copied, Ok(3)));
    });
}

#[test]
fn operations_of_several_contexts_are_started_together() {
    for setup in Setup::all() {
        let device = support::device::under_test(setup.defer);
        let workq = WorkQ::builder().depth(64).mode(setup.mode).build().unwrap();
        let side = || Side::on(&device, &workq, setup);
        let pairs = [(side(), side()), (side(), side())];
        pairs
            .iter()
            .for_each(|(one, other)| connect(&one.rdma, &other.rdma));
        run(async {
            // Operations that wait without a job are not part of a batch.
            let receives = pairs
                .iter()
                .map(|(_, other)| other.rdma.recv(other.empty()));
            let receives = Op::start_all(receives).started;
            let sends = pairs
                .iter()
                .map(|(one, _)| one.rdma.send(one.filled(b"hello")));
            let StartedAll { started, refused } = Op::start_all(sends);
            assert!(refused.is_none());
            for sent in in_time("all are sent", join_all(started)).await {
                assert_eq!(sent, Ok(5));
            }
            for message in in_time("all have come", join_all(receives)).await {
                assert_eq!(message.unwrap().len, 5);
            }
        });
    }
}

#[test]
fn nothing_is_started_on_a_workq_that_was_shut_down() {
    each(async |bench| {
        bench.workq.shutdown().await.unwrap();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let StartedAll { started, refused } = Op::start_all([bench.dma.copy(&src, &dst)]);
        assert!(started.is_empty());
        assert_eq!(refused.expect("it is closed").reason(), Reason::Shutdown);
        let none = bench.dma.copy(&src, &dst);
        assert!(
            Op::start_all(Some(none).into_iter().skip(1))
                .refused
                .is_none()
        );
    });
}

/// A job that finishes inline takes no slot, and its memory is free for the next job.
#[test]
fn what_is_finished_inline_is_done_one_after_the_other() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = || WorkQ::builder().depth(4).mode(mode).build().unwrap();
        let setup = Setup::new(false, mode);
        let (one, other) = (
            Side::on(&device, &workq(), setup),
            Side::on(&device, &workq(), setup),
        );
        connect(&one.rdma, &other.rdma);
        run(async {
            let remote = one.import(&other.memory());
            let (there, src, dst) = (remote.buf(..8).unwrap(), one.filled(&[7; 8]), one.empty());
            let writes = (0..32).map(|_| one.rdma.write(&src, &there));
            let StartedAll { started, refused } = Op::start_all(writes);
            assert_eq!((started.len(), refused.is_none()), (32, true), "{mode:?}");
            let wrote = in_time("the writes end", join_all(started)).await;
            assert_eq!(wrote, [Ok(8); 32]);
            let reads = (0..8).map(|_| one.rdma.read(&there, &dst));
            let StartedAll { started, refused } = Op::start_all(reads);
            assert_eq!((started.len(), refused.is_none()), (8, true), "{mode:?}");
            let read = in_time("the reads end", join_all(started)).await;
            assert_eq!(read, [Ok(8); 8]);
            assert_eq!(bytes(&dst), [7; 64]);
        });
    }
}

/// A job that fails was started like the others.
#[test]
fn one_that_fails_ends_no_batch() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let bench = Bench::new(Config {
            defer: false,
            mode,
            depth: 32,
        });
        run(async {
            let faults = bench.soft.faults();
            faults.push(Fault::Pass);
            faults.push(Fault::Error(ErrorKind::IoFailed, 1));
            let src = bench.filled(b"abc");
            let copies = (0..4).map(|_| bench.dma.copy(&src, bench.empty()));
            let StartedAll { started, refused } = Op::start_all(copies);
            assert_eq!((started.len(), refused.is_none()), (4, true));
            let ended = in_time("all end", join_all(started)).await;
            let ended: Vec<_> = ended
                .into_iter()
                .map(|it| it.map_err(|it| it.kind()))
                .collect();
            assert_eq!(ended, [Ok(3), Err(ErrorKind::IoFailed), Ok(3), Ok(3)]);
        });
    }
}
