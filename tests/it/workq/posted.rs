//! Operations that the caller's own loop can post: RDMA, receives, waits of sync events and runs of
//! graphs, in a plain thread and without a runtime. Each is reported once, with its word and its
//! result.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use support::events;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::graph::Scope;
use tokio_doca::soft::Limits;
use tokio_doca::{
    Buf, Dma, ErrorKind, Mode, WorkQ,
    error::{JobError, Reason},
    graph::{Graph, Instance},
    op::Output,
    rdma::RecvOpcode,
    sync_event::{Location, SyncEvent},
};

/// How the loop learns of completions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// The loop arms, and sleeps on the event handle.
    Sleeps,
    /// The loop only calls `progress`.
    Spins,
}

const WAYS: [Way; 2] = [Way::Sleeps, Way::Spins];

type Told = BTreeMap<u64, Result<Output, JobError>>;

/// Drives the loop until `count` operations were reported.
#[track_caller]
fn told(workq: &WorkQ, way: Way, count: usize) -> Told {
    let (mut told, until) = (Told::new(), Instant::now() + LIMIT);
    while told.len() < count {
        assert!(
            Instant::now() < until,
            "{way:?}: {} of {count} told",
            told.len()
        );
        if way == Way::Sleeps {
            workq.arm();
            let mut fds = [PollFd::new(
                workq.event_handle().unwrap(),
                PollFlags::POLLIN,
            )];
            let fired = nix::poll::poll(&mut fds, PollTimeout::try_from(LIMIT).unwrap()).unwrap();
            assert_eq!(
                fired,
                1,
                "{way:?}: the handle never fired, {} of {count} told",
                told.len()
            );
            workq.clear();
        }
        workq.progress(|word, result| {
            assert!(told.insert(word, result).is_none(), "{word} is told twice");
        });
    }
    assert_eq!(workq.progress(|_, _| ()), 0);
    told
}

fn bytes(told: &mut Told, word: u64) -> usize {
    match told.remove(&word) {
        Some(Ok(Output::Bytes(bytes))) => bytes,
        other => panic!("{word}: {other:?}"),
    }
}

fn value(told: &mut Told, word: u64) -> u64 {
    told.remove(&word).unwrap().unwrap().value().unwrap()
}

fn received(told: &mut Told, word: u64) -> tokio_doca::rdma::Received {
    match told.remove(&word) {
        Some(Ok(Output::Received(received))) => received,
        other => panic!("{word}: {other:?}"),
    }
}

/// Returns two connected sides on one WorkQ.
fn sides(setup: Setup) -> (WorkQ, Side, Side) {
    let device = device::under_test(setup.defer);
    let workq = WorkQ::builder().depth(32).mode(setup.mode).build().unwrap();
    let (one, other) = (
        Side::on(&device, &workq, setup),
        Side::on(&device, &workq, setup),
    );
    connect(&one.rdma, &other.rdma);
    (workq, one, other)
}

fn everywhere(story: impl Fn(Way, WorkQ, Side, Side)) {
    for setup in Setup::all() {
        for way in WAYS {
            let (workq, one, other) = sides(setup);
            story(way, workq, one, other);
        }
    }
}

#[test]
fn a_loop_sends_receives_writes_reads_and_counts() {
    everywhere(|way, workq, one, other| {
        let blob = other.mmap.export_rdma(&other.device).unwrap();
        let remote = one.import(&blob);
        let (dst, empty) = (other.empty(), ());
        other.rdma.recv(&dst).post(1).unwrap();
        other.rdma.recv(empty).post(2).unwrap();
        one.rdma.send(&one.filled(b"hello")).post(3).unwrap();
        one.rdma.send_imm((), 77).post(4).unwrap();
        let mut all = told(&workq, way, 4);
        assert_eq!((bytes(&mut all, 3), bytes(&mut all, 4)), (5, 0));
        assert_eq!(received(&mut all, 1).len, 5);
        let last = received(&mut all, 2);
        assert_eq!(
            (last.opcode, last.immediate),
            (RecvOpcode::SendImm, Some(77))
        );
        assert_eq!(dst.data().unwrap()[..], *b"hello");

        let at = |from: usize| remote.buf(from..from + 8).unwrap();
        one.rdma
            .write(&one.filled(&[7; 8]), at(64))
            .post(5)
            .unwrap();
        told(&workq, way, 1).remove(&5).unwrap().unwrap();
        let copy = one.empty();
        one.rdma.read(at(64), &copy).post(6).unwrap();
        one.rdma.fetch_add(at(0), 5).post(7).unwrap();
        one.rdma.compare_swap(at(0), 5, 9).post(8).unwrap();
        let mut all = told(&workq, way, 3);
        assert_eq!(bytes(&mut all, 6), 8);
        assert_eq!(copy.data().unwrap()[..], [7; 8]);
        assert_eq!((value(&mut all, 7), value(&mut all, 8)), (0, 5));
        assert_eq!(other.bytes(0, 8), 9_u64.to_ne_bytes());
    });
}

#[test]
fn many_receives_that_are_posted_get_their_messages_in_order() {
    everywhere(|way, workq, one, other| {
        for round in 0..20_u64 {
            let bufs: Vec<_> = (0..8).map(|_| other.empty()).collect();
            for (buf, word) in bufs.iter().zip(8 * round..) {
                other.rdma.recv(buf).post(word).unwrap();
            }
            for number in 0..8 {
                one.rdma
                    .send(&one.filled(&[number]))
                    .post(1000 + u64::from(number))
                    .unwrap();
            }
            let mut all = told(&workq, way, 16);
            for (buf, number) in bufs.iter().zip(0..) {
                assert_eq!(received(&mut all, 8 * round + number).len, 1);
                assert_eq!(buf.data().unwrap()[..], [number as u8]);
            }
        }
    });
}

/// Starts a receive, and drops its future.
fn drop_posted(side: &Side, dst: &Buf) {
    let post = async { drop(side.rdma.recv(dst).start().unwrap()) };
    side.workq.block_on(post);
}

#[test]
fn a_posted_receive_takes_over_one_that_was_dropped() {
    everywhere(|way, workq, one, other| {
        let (dropped, dst) = (other.empty(), other.empty());
        drop_posted(&other, &dropped);
        other.rdma.recv(&dst).post(1).unwrap();
        one.rdma.send(&one.filled(b"other")).post(2).unwrap();
        assert_eq!(received(&mut told(&workq, way, 2), 1).len, 5);
        assert_eq!(dst.data().unwrap()[..], *b"other");

        // The next receive uses the same Buf.
        dropped.reset_data_len().unwrap();
        drop_posted(&other, &dropped);
        other.rdma.recv(&dropped).post(3).unwrap();
        one.rdma.send(&one.filled(b"same")).post(4).unwrap();
        assert_eq!(received(&mut told(&workq, way, 2), 3).len, 4);
        assert_eq!(dropped.data().unwrap()[..], *b"same");

        // A receive that is too small leaves the message to the next one.
        let small = other.empty();
        small.set_data(0, small.tailroom() - 2).unwrap();
        drop_posted(&other, &dropped);
        other.rdma.recv(&small).post(5).unwrap();
        one.rdma.send(&one.filled(b"long")).post(6).unwrap();
        let refused = told(&workq, way, 2).remove(&5).unwrap().unwrap_err();
        assert_eq!(refused.reason(), Reason::ReceiveTooSmall);
        let next = other.empty();
        other.rdma.recv(&next).post(7).unwrap();
        assert_eq!(received(&mut told(&workq, way, 1), 7).len, 4);
        assert_eq!(next.data().unwrap()[..], *b"long");

        // A receive whose destination is in use leaves the message as well.
        drop_posted(&other, &dropped);
        let guard = next.data_mut().unwrap();
        let refused = other.rdma.recv(&next).post(8).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InUse);
        drop(guard);
        refused.into_op().post(9).unwrap();
        one.rdma.send(&one.filled(b"!")).post(10).unwrap();
        assert_eq!(received(&mut told(&workq, way, 2), 9).len, 1);
        assert_eq!(next.data().unwrap()[..], *b"long!");
    });
}

#[test]
fn a_posted_receive_ends_with_its_connection() {
    everywhere(|way, workq, one, other| {
        let dst = other.empty();
        other.rdma.recv(&dst).post(1).unwrap();
        other.rdma.reset().unwrap();
        let error = told(&workq, way, 1).remove(&1).unwrap().unwrap_err();
        assert_eq!(error.reason(), Reason::Flushed);
        assert!(dst.data_mut().is_ok(), "its memory goes back");
        drop(one);
    });
}

#[test]
fn all_receives_that_fit_are_posted_and_the_next_is_refused_with_its_operands() {
    let (workq, one, other) = sides(Setup::new(false, Mode::EventDriven));
    let places = other.rdma.recv_queue_size();
    for word in 0..u64::from(places) {
        other.rdma.recv(other.empty()).post(word).unwrap();
    }
    let refused = other.rdma.recv(other.empty()).post(99).unwrap_err();
    assert_eq!(refused.reason(), Reason::RecvQueueFull);
    one.rdma.send(&one.filled(b"x")).post(100).unwrap();
    told(&workq, Way::Sleeps, 2);
    refused.into_op().post(99).unwrap();
    for word in 0..places {
        one.rdma
            .send(&one.filled(b"x"))
            .post(200 + u64::from(word))
            .unwrap();
    }
    assert!(told(&workq, Way::Sleeps, 2 * places as usize).contains_key(&99));
}

/// Returns an event within this process.
fn local_event(workq: &WorkQ, setup: &events::Setup) -> SyncEvent {
    let host = setup.host();
    let cpu = Location::Cpu(&host);
    let builder = SyncEvent::builder().publisher(cpu).subscriber(cpu);
    builder.waits(setup.waits).attach(workq).unwrap()
}

#[test]
fn what_is_posted_ends_with_its_context() {
    for setup in Setup::all() {
        for way in WAYS {
            let device = device::under_test(setup.defer);
            let workq = WorkQ::builder().mode(setup.mode).build().unwrap();
            let Side { rdma, pool, .. } = Side::on(&device, &workq, setup);
            let event = local_event(&workq, &events::Setup::new(setup.defer, setup.mode));
            let dst = pool.try_alloc().unwrap();
            rdma.recv(&dst).post(1).unwrap();
            event.wait_gt(0).post(2).unwrap();
            assert_eq!(workq.progress(|word, _| panic!("{word} is told")), 0);
            rdma.detach().unwrap();
            event.detach().unwrap();
            let all = told(&workq, way, 2);
            let gone = |word| all[&word].as_ref().unwrap_err().reason() == Reason::ContextGone;
            assert!(gone(1) && gone(2), "{all:?}");
            block_until("its memory goes back", || {
                workq.progress(|word, _| panic!("{word} is told"));
                dst.data_mut().is_ok()
            });
            // No operation waits any more, so nothing arms.
            let arms = workq.stats().arms;
            workq.clear();
            assert_eq!(workq.stats().arms, arms);
            // Another context takes the same entry in the tables of the WorkQ.
            let side = Side::on(&device, &workq, setup);
            side.rdma.recv(&dst).post(3).unwrap();
            side.rdma.reset().unwrap();
            let all = told(&workq, way, 1);
            assert_eq!(all[&3].as_ref().unwrap_err().reason(), Reason::Flushed);
        }
    }
}

#[test]
fn what_is_posted_ends_with_the_shutdown_of_its_workq() {
    for setup in Setup::all() {
        for way in WAYS {
            let (workq, _one, other) = sides(setup);
            let event = local_event(&workq, &events::Setup::new(setup.defer, setup.mode));
            other.rdma.recv(other.empty()).post(1).unwrap();
            event.wait_gt(0).post(2).unwrap();
            workq.block_on(workq.shutdown()).unwrap();
            let all = told(&workq, way, 2);
            let shut = |word| all[&word].as_ref().unwrap_err().reason() == Reason::Shutdown;
            assert!(shut(1) && shut(2), "{all:?}");
            let refused = other.rdma.recv(other.empty()).post(3).unwrap_err();
            assert_eq!(refused.reason(), Reason::Shutdown);
        }
    }
}

#[test]
fn a_loop_counts_and_waits_for_whoever_sets_the_event() {
    for setup in events::Setup::all() {
        for way in WAYS {
            // A thread without a loop sets the other side of the event.
            let (owner, importer) = setup.pair();
            owner.wait_gt(3).post(1).unwrap();
            owner.wait_gt(4).post(2).unwrap();
            let setter = thread::spawn(move || {
                let workq = importer.workq();
                workq.block_on(async { importer.set(4).await }).unwrap();
                importer
            });
            let workq = owner.workq();
            assert_eq!(value(&mut told(&workq, way, 1), 1), 4);
            owner.add(1).post(3).unwrap();
            let mut all = told(&workq, way, 2);
            assert_eq!((value(&mut all, 2), value(&mut all, 3)), (5, 4));
            owner.set(9).post(4).unwrap();
            owner.get().post(5).unwrap();
            let mut all = told(&workq, way, 2);
            assert!(matches!(all.remove(&4), Some(Ok(Output::Done))));
            assert_eq!(value(&mut all, 5), 9);
            // Takes all entries for waits.
            let places = u64::from(setup.waits);
            (0..places).for_each(|word| owner.wait_gt(100).post(word).unwrap());
            let refused = owner.wait_gt(100).post(places).unwrap_err();
            assert_eq!(refused.reason(), Reason::WaitsFull);
            owner.set(101).post(places).unwrap();
            assert_eq!(
                told(&workq, way, places as usize + 1).len(),
                setup.waits as usize + 1
            );
            drop(setter.join().unwrap());
        }
    }
}

#[test]
fn a_wait_on_a_device_that_cannot_wait_needs_a_task() {
    let setup = events::Setup::new(false, Mode::EventDriven).limits(Limits::bluefield2());
    let event = setup.private();
    assert_eq!(event.caps().max_wait, None);
    let refused = event.wait_gt(0).post(1).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.reason()),
        (ErrorKind::NotSupported, Reason::NotPosted)
    );
    event.set(1).post(2).unwrap();
    told(&event.workq(), Way::Spins, 1);
    assert_eq!(event.workq().block_on(refused.into_op()), Ok(1));
}

/// A run that receives a number, waits until an event has this value, and copies.
struct Story {
    instance: Instance,
    event: SyncEvent,
    dst: Buf,
}

fn story(workq: &WorkQ, side: &Side, setup: &Setup) -> Story {
    let dma = Dma::builder(&side.device).attach(workq).unwrap();
    let event = local_event(workq, &events::Setup::new(setup.defer, setup.mode));
    let mut graph = Graph::builder();
    let receive = graph.rdma_recv(&side.rdma);
    let wait = graph.sync_event_wait_gt(&event);
    let copy = graph.dma_copy(&dma);
    let check = graph.user(|_: &mut Scope<'_>| Ok(()));
    graph.depends(wait, receive);
    graph.depends(copy, wait);
    graph.depends(check, copy);
    let graph = graph.build().unwrap();
    let mut instance = graph.instance_on(workq).unwrap();
    let (src, dst) = (side.empty(), side.empty());
    instance.set(receive, &src).unwrap();
    instance.set(wait, 1).unwrap();
    instance.set(copy, (&src, &dst)).unwrap();
    Story {
        instance,
        event,
        dst,
    }
}

#[test]
fn a_run_is_posted_and_gives_its_instance_back() {
    everywhere(|way, workq, one, other| {
        let setup = Setup::new(false, workq.mode());
        let Story {
            mut instance,
            event,
            dst,
        } = story(&workq, &other, &setup);
        for round in 0..3 {
            instance.into_run().post(7).unwrap();
            workq.progress(|word, _| panic!("{word} is told"));
            one.rdma.send(&one.filled(b"run")).post(8).unwrap();
            told(&workq, way, 1);
            event.set(2).post(9).unwrap();
            let mut all = told(&workq, way, 2);
            let Some(Ok(Output::Run(ended))) = all.remove(&7) else {
                panic!("{all:?}");
            };
            let (back, result) = *ended;
            result.unwrap();
            instance = back;
            assert_eq!(dst.data().unwrap().len(), 3 * (round + 1) * (round + 2) / 2);
            event.set(0).post(10).unwrap();
            told(&workq, way, 1);
        }
    });
}

#[test]
fn a_run_that_fails_gives_its_instance_back_too() {
    everywhere(|way, workq, _one, other| {
        let setup = Setup::new(false, workq.mode());
        let Story { instance, .. } = story(&workq, &other, &setup);
        instance.into_run().post(7).unwrap();
        // The run begins, and posts its receive.
        workq.progress(|word, _| panic!("{word} is told"));
        other.rdma.reset().unwrap();
        let Some(Ok(Output::Run(ended))) = told(&workq, way, 1).remove(&7) else {
            panic!("it is not told");
        };
        ended.1.unwrap_err();
    });
}

#[test]
fn a_run_with_an_async_node_needs_a_task() {
    let bench = Bench::new(Config::new(false, Mode::BusyPoll));
    let mut inner = Graph::builder();
    inner.user_async(|_| async { Ok(()) });
    let copy = inner.dma_copy(&bench.dma);
    let inner = inner.build().unwrap();
    let mut graph = Graph::builder();
    let sub = graph.subgraph(&inner);
    let graph = graph.build().unwrap();
    let mut instance = graph.instance_on(&bench.workq).unwrap();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let mut within = inner.instance_on(&bench.workq).unwrap();
    within.set(copy, (&src, &dst)).unwrap();
    instance.set(sub, within).unwrap();
    let refused = instance.into_run().post(1).unwrap_err();
    assert_eq!(refused.reason(), Reason::NotPosted);
    let (instance, result) = bench.workq.block_on(refused.into_op());
    result.unwrap();
    // The run can also be started and awaited.
    let started = instance.into_run().start().unwrap();
    bench.workq.block_on(started).1.unwrap();
}

#[test]
fn two_threads_that_make_progress_tell_each_end_once() {
    let (workq, one, other) = sides(Setup::new(false, Mode::EventDriven));
    const ROUNDS: u64 = 200;
    for round in 0..ROUNDS {
        let words: Vec<u64> = (0..8).map(|at| 8 * round + at).collect();
        for &word in &words {
            other.rdma.recv(other.empty()).post(word).unwrap();
        }
        let told = AtomicUsize::new(0);
        let seen: Vec<u64> = thread::scope(|scope| {
            let make_progress = || {
                let mut seen = Vec::new();
                block_until("all are told", || {
                    let handed = workq.progress(|word, _| seen.push(word));
                    told.fetch_add(handed, Ordering::SeqCst) + handed >= 16
                });
                seen
            };
            let threads = [(); 2].map(|()| scope.spawn(make_progress));
            for number in 0..8 {
                one.rdma.send(one.filled(&[number])).post(10_000).unwrap();
            }
            threads
                .into_iter()
                .flat_map(|it| it.join().unwrap())
                .collect()
        });
        let mut seen: Vec<u64> = seen.into_iter().filter(|&word| word < 10_000).collect();
        seen.sort_unstable();
        assert_eq!(seen, words);
    }
}

#[test]
fn a_loop_in_a_task_without_budget_goes_on() {
    for way in WAYS {
        let bench = Bench::new(Config::new(true, Mode::EventDriven));
        let mut graph = Graph::builder();
        let copy = graph.dma_copy(&bench.dma);
        let mut instance = graph.build().unwrap().instance_on(&bench.workq).unwrap();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        instance.set(copy, (&src, &dst)).unwrap();
        run(async {
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            instance.into_run().post(7).unwrap();
            let Some(Ok(Output::Run(ended))) = told(&bench.workq, way, 1).remove(&7) else {
                panic!("it is not told");
            };
            ended.1.unwrap();
        });
    }
}

#[test]
fn a_run_is_not_stopped_by_a_future_that_nobody_polls() {
    for config in [Mode::EventDriven, Mode::BusyPoll].map(|mode| Config::new(true, mode).depth(1)) {
        let bench = Bench::new(config);
        let mut graph = Graph::builder();
        let copy = graph.dma_copy(&bench.dma);
        let mut instance = graph.build().unwrap().instance_on(&bench.workq).unwrap();
        let pairs: Vec<_> = (0..3)
            .map(|_| (bench.filled(b"abc"), bench.empty()))
            .collect();
        instance.set(copy, (&pairs[0].0, &pairs[0].1)).unwrap();
        bench.workq.event_handle().unwrap();
        bench.dma.copy(&pairs[1].0, &pairs[1].1).post(1).unwrap();
        let mut unpolled = Box::pin(bench.dma.copy(&pairs[2].0, &pairs[2].1));
        bench
            .workq
            .block_on(async { poll_pending(unpolled.as_mut()) });
        told(&bench.workq, Way::Spins, 1);
        // The copy `unpolled` was woken for the free slot, and is not polled again.
        instance.into_run().post(2).unwrap();
        let all = told(&bench.workq, Way::Spins, 1);
        assert!(matches!(all[&2], Ok(Output::Run(_))), "{all:?}");
    }
}

#[test]
fn a_run_needs_nothing_of_the_runtime_that_its_thread_is_in() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let mut graph = Graph::builder();
    let copy = graph.dma_copy(&bench.dma);
    let mut instance = graph.build().unwrap().instance_on(&bench.workq).unwrap();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    instance.set(copy, (&src, &dst)).unwrap();
    let without_io = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _entered = without_io.enter();
    instance.into_run().post(7).unwrap();
    let Some(Ok(Output::Run(ended))) = told(&bench.workq, Way::Sleeps, 1).remove(&7) else {
        panic!("it is not told");
    };
    ended.1.unwrap();
}

#[test]
fn a_sub_graph_that_is_set_later_cannot_bring_an_async_function() {
    let bench = Bench::new(Config::new(false, Mode::BusyPoll));
    let mut inner = Graph::builder();
    inner.user_async(|_| async { Ok(()) });
    inner.dma_copy(&bench.dma);
    let mut graph = Graph::builder();
    graph.subgraph(&inner.build().unwrap());
    let instance = graph.build().unwrap().instance_on(&bench.workq).unwrap();
    let refused = instance.into_run().post(1).unwrap_err();
    assert_eq!(refused.reason(), Reason::NotPosted);
}
