//! Graphs: what is refused when a graph is built, what a run does and in which order, and what
//! happens when a run is dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use outside_provider::{ECHO, Outside, Sin, XOR};
use support::*;
use tokio_doca::graph::{CopyNode, Node, NodeState};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{
    Buf, BufPool, Dma, Error, ErrorKind, Mmap, Mode, WorkQ,
    accel::{Accel, AccelCall},
    error::Reason,
    graph::{Graph, Instance},
    mem::BufChain,
};

/// The names of the user nodes that have run, in order.
type Log = Arc<Mutex<Vec<&'static str>>>;

fn note(log: &Log, what: &'static str) {
    log.lock().unwrap().push(what);
}

fn oops() -> Error {
    Error::new(ErrorKind::Unexpected, "test", "oops")
}

/// Returns a graph of `len` copies, each of which reads the destination of the one before.
fn chain(bench: &Bench, len: usize) -> (Graph, Vec<Node<CopyNode>>) {
    let mut g = Graph::builder();
    let nodes: Vec<_> = (0..len).map(|_| g.dma_copy(&bench.dma)).collect();
    for pair in nodes.windows(2) {
        g.depends(pair[1], pair[0]);
    }
    (g.build().unwrap(), nodes)
}

/// Sets the operands of a chain; the first Buf contains the data.
fn set_chain(instance: &mut Instance, nodes: &[Node<CopyNode>], bufs: &[Buf]) {
    for (node, pair) in nodes.iter().zip(bufs.windows(2)) {
        instance.set(*node, (&pair[0], &pair[1])).unwrap();
    }
}

/// Returns an instance of a chain with its operands set, and its Bufs.
fn set_up_chain(bench: &Bench, len: usize) -> (Instance, Vec<Buf>) {
    let (graph, nodes) = chain(bench, len);
    let (mut instance, bufs) = (graph.instance().unwrap(), bufs(bench, len + 1));
    set_chain(&mut instance, &nodes, &bufs);
    (instance, bufs)
}

/// Empties all Bufs but the first.
fn reset(bufs: &[Buf]) {
    bufs[1..].iter().for_each(|b| b.reset_data_len().unwrap());
}

fn bufs(bench: &Bench, count: usize) -> Vec<Buf> {
    let first = std::iter::once(bench.filled(b"hello"));
    first.chain((1..count).map(|_| bench.empty())).collect()
}

/// Returns all configurations, and one in hybrid mode.
fn all() -> Vec<Config> {
    let spin = Duration::from_micros(30);
    let hybrid = |defer| Config::new(defer, Mode::Hybrid { spin });
    let more = [hybrid(false), hybrid(true)];
    configs().into_iter().chain(more).collect()
}

// Building
// ------------------------------------------------------------------------------------------------------

#[test]
fn a_cycle_is_refused_and_told_in_order() {
    let bench = Bench::new(configs()[0]);
    let mut g = Graph::builder();
    let [a, b, c, d] = [(); 4].map(|()| g.dma_copy(&bench.dma));
    g.label(b, "second");
    g.depends(b, a);
    g.depends(c, [b, d]);
    g.depends(d, c);
    g.depends(b, [d]);
    let error = g.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    let text = error.to_string();
    assert!(
        text.contains("dma_copy#2") && text.contains("dma_copy#3"),
        "{text}"
    );
    assert!(!text.contains("dma_copy#0"), "{text}");

    let mut g = Graph::builder();
    let own = g.dma_copy(&bench.dma);
    g.depends(own, own);
    let text = g.build().unwrap_err().to_string();
    assert!(text.ends_with("dma_copy#0 -> dma_copy#0"), "{text}");
}

#[test]
fn a_cycle_through_a_sub_graph_is_refused() {
    let bench = Bench::new(configs()[0]);
    let (inner, _) = chain(&bench, 2);
    let mut g = Graph::builder();
    let (sub, copy) = (g.subgraph(&inner), g.dma_copy(&bench.dma));
    g.depends(sub, copy);
    g.depends(copy, sub);
    let text = g.build().unwrap_err().to_string();
    assert!(
        text.contains("subgraph#0") && text.contains("dma_copy#1"),
        "{text}"
    );
}

#[test]
fn nodes_of_another_graph_are_refused_and_named() {
    let bench = Bench::new(configs()[0]);
    let (_, foreign) = chain(&bench, 5);
    let mut g = Graph::builder();
    let copy = g.dma_copy(&bench.dma);
    g.depends(copy, foreign[4]);
    let error = g.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().contains("dma_copy#4"), "{error}");

    let (graph, _) = chain(&bench, 9);
    let mut instance = graph.instance().unwrap();
    let operands = (&bench.filled(b"x"), &bench.empty());
    let error = instance.set(foreign[3], operands).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().contains("dma_copy#3"), "{error}");
    assert_eq!(instance.state(foreign[3]), NodeState::NotStarted);
    assert_eq!(instance.result(foreign[3]), None);
    assert_eq!(graph.label(foreign[3]), None);
}

#[test]
fn a_graph_without_a_context_node_is_refused_and_one_in_a_sub_graph_counts() {
    let mut g = Graph::builder();
    g.user(|_| Ok(()));
    g.user_async(|_| async { Ok(()) });
    let error = g.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    assert!(error.to_string().contains("2 nodes"), "{error}");
    assert_eq!(
        Graph::builder().build().unwrap_err().kind(),
        ErrorKind::BadState
    );

    let bench = Bench::new(configs()[0]);
    let (inner, _) = chain(&bench, 1);
    let mut g = Graph::builder();
    g.subgraph(&inner);
    assert!(g.build().is_ok());
}

#[test]
fn levels_of_graphs_are_bounded() {
    let bench = Bench::new(configs()[0]);
    let (mut graph, _) = chain(&bench, 1);
    for level in 2.. {
        let mut g = Graph::builder();
        g.subgraph(&graph);
        match g.build() {
            Ok(next) => graph = next,
            Err(error) => {
                assert_eq!((error.kind(), level), (ErrorKind::InvalidValue, 33));
                return;
            }
        }
    }
}

#[test]
fn a_context_that_is_not_on_the_runs_workq_is_an_error_that_names_the_node() {
    let bench = Bench::new(configs()[0]);
    let other = WorkQ::builder().build().unwrap();
    let (graph, _) = chain(&bench, 1);
    let error = graph.instance_on(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    assert!(error.to_string().contains("dma_copy#0"), "{error}");
    let _there = bench.dma.attach(&other).unwrap();
    assert!(graph.instance_on(&other).is_ok(), "attached by now");
    run(other.shutdown()).unwrap();
    let error = graph.instance_on(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    let text = error.to_string();
    assert!(
        text.contains("dma_copy#0") && text.contains("shut down"),
        "{text}"
    );
    let other = WorkQ::builder().build().unwrap();

    let mut g = Graph::builder();
    g.dma_copy(&bench.dma);
    g.dma_copy(&bench.dma.attach(&other).unwrap());
    let graph = g.build().unwrap();
    let error = graph.instance().unwrap_err();
    assert!(error.to_string().contains("dma_copy#1"), "{error}");
    assert!(graph.instance_on(&other).is_ok() && graph.instance_on(&bench.workq).is_ok());
}

// Running
// -------------------------------------------------------------------------------------------------------

#[test]
fn a_context_that_a_graph_has_is_not_detached() {
    let bench = Bench::new(configs()[0]);
    let dma = bench
        .dma
        .attach(&WorkQ::builder().build().unwrap())
        .unwrap();
    let mut g = Graph::builder();
    g.dma_copy(&dma);
    let graph = g.build().unwrap();
    let other = dma.attach(&dma.workq()).unwrap();
    let error = dma.detach().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("a graph's"), "{error}");
    drop(graph);
    other.detach().unwrap();
}

#[test]
fn a_chain_runs_in_order_as_often_as_one_likes() {
    each_of(&all(), async |bench| {
        let (graph, nodes) = chain(bench, 10);
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 11);
        set_chain(&mut instance, &nodes, &bufs);
        for _ in 0..20 {
            in_time("a run", instance.run()).await.unwrap();
            assert_eq!(bytes(&bufs[10]), b"hello");
            for &node in &nodes {
                assert_eq!(instance.state(node), NodeState::Completed);
                assert_eq!(instance.result(node), Some(Ok(5)));
            }
            reset(&bufs);
        }
        drop((instance, bufs));
        bench.all_back().await;
    });
}

#[test]
fn a_run_does_nothing_before_it_is_polled() {
    each(async |bench| {
        let (graph, nodes) = chain(bench, 2);
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 3);
        set_chain(&mut instance, &nodes, &bufs);
        drop(instance.run());
        assert!(bytes(&bufs[1]).is_empty());
        assert_eq!(bench.workq.in_flight(), 0);
    });
}

#[test]
fn user_nodes_see_results_and_set_what_comes_later() {
    each_of(&all(), async |bench| {
        let (src, mid, end) = (bench.filled(b"abcdef"), bench.empty(), bench.empty());
        let mut g = Graph::builder();
        let (first, second) = (g.dma_copy(&bench.dma), g.dma_copy(&bench.dma));
        let (from, to) = (mid.clone(), end.clone());
        let log = Log::default();
        let seen = Arc::clone(&log);
        let choose = g.user(move |run| {
            note(&seen, "choose");
            assert_eq!(run.result(first), Some(Ok(6)));
            assert_eq!(
                (run.result(second), run.state(second)),
                (None, NodeState::NotStarted)
            );
            assert_eq!(
                run.set(first, (&from, &to)).unwrap_err().kind(),
                ErrorKind::BadState
            );
            run.set(second, (from.slice(2..4)?, &to))
        });
        let seen = Arc::clone(&log);
        let last = g.user(move |run| {
            note(&seen, "last");
            assert_eq!(run.result(second), Some(Ok(2)));
            Ok(())
        });
        g.depends(choose, first);
        g.depends(second, choose);
        g.depends(last, (first, second, choose));
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        instance.set(first, (&src, &mid)).unwrap();
        for _ in 0..3 {
            in_time("a run", instance.run()).await.unwrap();
            assert_eq!(bytes(&end), b"cd");
            assert_eq!(instance.result(last), Some(Ok(0)));
            [&mid, &end]
                .iter()
                .for_each(|buf| buf.reset_data_len().unwrap());
        }
        assert_eq!(*log.lock().unwrap(), ["choose", "last"].repeat(3));
    });
}

#[test]
fn a_function_has_data_of_each_instances_own() {
    each(async |bench| {
        let mut g = Graph::builder();
        let copy = g.dma_copy(&bench.dma);
        let count = g.user_with(move |run, (times, expected): &mut (u32, u64)| {
            *times += 1;
            assert_eq!(run.result(copy), Some(Ok(*expected)));
            match *times {
                1 => Ok(()),
                _ => Err(oops()),
            }
        });
        g.depends(count, copy);
        let graph = g.build().unwrap();
        for text in [&b"ab"[..], b"abc"] {
            let mut instance = graph.instance().unwrap();
            let (src, dst) = (bench.filled(text), bench.empty());
            instance.set(copy, (&src, &dst)).unwrap();
            let error = in_time("unset", instance.run()).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.node()),
                (ErrorKind::BadState, count.id())
            );
            instance.set(count, (0, text.len() as u64)).unwrap();
            in_time("a run", instance.run()).await.unwrap();
            let error = in_time("the second", instance.run()).await.unwrap_err();
            assert_eq!(error.cause().to_string(), "test: oops", "the data stayed");
        }
    });
}

#[test]
fn operands_of_all_kinds_are_taken() {
    each(async |bench| {
        let mut g = Graph::builder();
        let (gather, scatter) = (g.dma_copy(&bench.dma), g.dma_copy(&bench.dma));
        g.depends(scatter, gather);
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let (a, b, mid) = (bench.filled(b"abc"), bench.filled(b"XYZ"), bench.empty());
        let from = BufChain::with_capacity(2);
        from.push(&a).unwrap();
        from.push(b.slice(1..3).unwrap()).unwrap();
        let to = BufChain::with_capacity(2);
        let ends = [bench.empty(), bench.empty()];
        ends[0].set_data(0, ELEMENT - 2).unwrap();
        ends.iter().for_each(|end| to.push(end).unwrap());
        instance.set(gather, (&from, mid.clone())).unwrap();
        instance.set(scatter, (mid.clone(), to)).unwrap();
        in_time("a run", instance.run()).await.unwrap();
        assert_eq!(bytes(&mid), b"abcYZ");
        assert_eq!(&bytes(&ends[0])[ELEMENT - 2..], b"ab");
        assert_eq!(bytes(&ends[1]), b"cYZ");
    });
}

#[test]
fn accelerators_and_copies_stand_in_one_graph() {
    for mode in modes() {
        let outside = Outside::new(Sin::None);
        let device = outside.device();
        let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
        let pool = BufPool::builder(&mmap).element_size(4096).build().unwrap();
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let accel = Accel::builder(&device).attach(&workq).unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        let [src, mid, end] = [(); 3].map(|()| pool.try_alloc().unwrap());
        [&src, &mid, &end]
            .iter()
            .for_each(|buf| buf.reset_data_len().unwrap());
        src.extend_from_slice(&[1, 2, 3]).unwrap();

        let mut g = Graph::builder();
        let (xor, copy, echo) = (g.accel(&accel), g.dma_copy(&dma), g.accel(&accel));
        g.depends(copy, xor);
        let mut instance = g.build().unwrap().instance().unwrap();
        let call = AccelCall::new(XOR).arg(0xff).src(&src).dst(&mid);
        instance.set(xor, call).unwrap();
        instance.set(copy, (&mid, &end)).unwrap();
        instance.set(echo, AccelCall::new(ECHO).arg(77)).unwrap();
        run(instance.run()).unwrap();
        assert_eq!(&end.data().unwrap()[..], [0xfe, 0xfd, 0xfc]);
        assert_eq!(instance.result(echo), Some(Ok(77)));
    }
}

#[test]
fn a_successor_is_submitted_in_the_poll_that_saw_its_predecessor_end() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let (mut instance, _bufs) = set_up_chain(&bench, 3);
        let submitted = || {
            let stats = bench.workq.stats();
            stats.completed + stats.in_flight
        };
        let mut going = pin!(instance.run());
        for at in 1..=3 {
            let hold = bench.hold();
            poll_pending(going.as_mut());
            assert_eq!(submitted(), at, "one more");
            drop(hold);
            until("it is told", || bench.workq.in_flight() == 0).await;
        }
        assert!(poll(going.as_mut()).is_ready());
    });
}

#[test]
fn one_waker_is_for_all_nodes_and_it_is_woken_for_what_is_over() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let mut g = Graph::builder();
        let nodes = [(); 8].map(|()| g.dma_copy(&bench.dma));
        let mut instance = g.build().unwrap().instance().unwrap();
        let bufs = bufs(&bench, 9);
        for (node, dst) in nodes.iter().zip(&bufs[1..]) {
            instance.set(*node, (&bufs[0], dst)).unwrap();
        }
        let hold = bench.hold();
        let count = Count::new();
        let waker = count.waker();
        let mut cx = Context::from_waker(&waker);
        let mut going = pin!(instance.run());
        assert!(going.as_mut().poll(&mut cx).is_pending());
        assert_eq!((bench.workq.in_flight(), count.wakes()), (8, 0));
        drop(hold);
        until("all are over", || bench.workq.in_flight() == 0).await;
        assert_eq!(count.wakes(), 1, "asleep, it is woken once");
        assert!(going.as_mut().poll(&mut cx).is_ready());
    });
}

#[test]
fn ten_wide_instances_and_a_hundred_copies_pass_through_a_workq_of_four() {
    for config in all() {
        eprintln!("{config:?}");
        let bench = Bench::new(config.depth(4));
        let mmap = bench.mmap((10 * 65 + 200) * 64);
        let pool = BufPool::builder(&mmap).element_size(64).build().unwrap();
        let buf = || pool.try_alloc().unwrap();
        let mut g = Graph::builder();
        let nodes: Vec<_> = (0..64).map(|_| g.dma_copy(&bench.dma)).collect();
        let last = g.user(|_| Ok(()));
        g.depends(last, &nodes);
        let graph = g.build().unwrap();
        // Half of the copies are on another WorkQ.
        let other = WorkQ::builder().depth(4).mode(config.mode).build().unwrap();
        let there = bench.dma.attach(&other).unwrap();
        workers().block_on(in_time("all of them", async {
            let mut tasks = Vec::new();
            for at in 0..10 {
                let workq = [&bench.workq, &other][at % 2];
                let mut instance = graph.instance_on(workq).unwrap();
                let (src, sinks) = (buf(), (0..64).map(|_| buf()).collect::<Vec<_>>());
                src.extend_from_slice(b"abc").unwrap();
                for (node, dst) in nodes.iter().zip(&sinks) {
                    instance.set(*node, (&src, dst)).unwrap();
                }
                tasks.push(tokio::spawn(async move {
                    for _ in 0..3 {
                        instance.run().await.unwrap();
                        sinks.iter().for_each(|dst| {
                            assert_eq!(bytes(dst), b"abc");
                            dst.reset_data_len().unwrap();
                        });
                    }
                }));
            }
            for at in 0..100 {
                let dma = [&bench.dma, &there][at % 2].clone();
                let (src, dst) = (buf(), buf());
                src.extend_from_slice(b"xyz").unwrap();
                tasks.push(tokio::spawn(async move {
                    assert_eq!(dma.copy(&src, &dst).await, Ok(3));
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        }));
        assert_eq!(bench.workq.in_flight(), 0);
    }
}

#[test]
fn a_run_in_line_that_nobody_polls_stops_nobody_and_leaves_when_it_is_dropped() {
    each_of(
        &[Config::new(true, Mode::EventDriven).depth(1)],
        async |bench| {
            let (graph, nodes) = chain(bench, 1);
            let (mut first, mut second) = (graph.instance().unwrap(), graph.instance().unwrap());
            let (a, b) = (bufs(bench, 2), bufs(bench, 2));
            set_chain(&mut first, &nodes, &a);
            set_chain(&mut second, &nodes, &b);
            let hold = bench.hold();
            let mut one = Box::pin(first.run());
            poll_pending(one.as_mut());
            let mut two = Box::pin(second.run());
            poll_pending(two.as_mut());
            assert_eq!(bench.workq.in_flight(), 1, "the second is in line");
            drop(hold);
            // The second run was notified of the slot, but is never polled.
            in_time("passes the one in line", bench.works()).await;
            drop(two);
            in_time("the first", one).await.unwrap();
            in_time("nobody is in line", bench.works()).await;
            assert_eq!(bytes(&b[1]), b"");
        },
    );
}

#[test]
fn a_run_that_failed_in_line_is_not_woken_for_a_slot() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven).depth(1));
    run(async {
        let mut g = Graph::builder();
        let copy = g.dma_copy(&bench.dma);
        // This node is pending once, and nothing wakes it.
        g.user_async(|_| {
            let mut polled = false;
            std::future::poll_fn(move |_| match std::mem::replace(&mut polled, true) {
                false => Poll::Pending,
                true => Poll::Ready(Err(oops())),
            })
        });
        let mut instance = g.build().unwrap().instance().unwrap();
        let bufs = bufs(&bench, 2);
        instance.set(copy, (&bufs[0], &bufs[1])).unwrap();
        let (src, dst) = (bench.filled(b"x"), bench.empty());
        let hold = bench.hold();
        let op = bench.dma.copy(&src, &dst).start().unwrap();
        let count = Count::new();
        let waker = count.waker();
        let mut cx = Context::from_waker(&waker);
        let mut going = pin!(instance.run());
        assert!(going.as_mut().poll(&mut cx).is_pending(), "in line");
        assert!(going.as_mut().poll(&mut cx).is_ready(), "nothing to drain");
        let before = count.wakes();
        drop(hold);
        in_time("the copy", op).await.unwrap();
        bench.works().await;
        assert_eq!(count.wakes(), before);
    });
}

#[test]
fn a_run_that_fails_while_a_part_stands_in_line_ends_at_once() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven).depth(1));
    run(async {
        let (inner, steps) = chain(&bench, 1);
        let mut g = Graph::builder();
        let (sub, bad) = (g.subgraph(&inner), g.user(|_| Err(oops())));
        let mut instance = g.build().unwrap().instance().unwrap();
        let bufs = bufs(&bench, 2);
        let mut part = inner.instance().unwrap();
        set_chain(&mut part, &steps, &bufs);
        instance.set(sub, part).unwrap();
        let (src, dst) = (bench.filled(b"x"), bench.empty());
        let hold = bench.hold();
        let op = bench.dma.copy(&src, &dst).start().unwrap();
        // The sub-graph finds no slot, and then the function fails: no job of the run is in flight.
        let error = match poll(pin!(instance.run()).as_mut()) {
            Poll::Ready(ended) => ended.unwrap_err(),
            Poll::Pending => panic!("waits for somebody else's Slot"),
        };
        assert_eq!(error.node(), bad.id());
        assert_eq!(instance.state(sub), NodeState::Stopped);
        drop(hold);
        in_time("the copy", op).await.unwrap();
    });
}

#[test]
fn a_node_that_sets_the_mode_strands_nobody() {
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    let mut g = Graph::builder();
    let copy = g.dma_copy(&bench.dma);
    let workq = bench.workq.clone();
    // By then the copy is in flight, submitted while the WorkQ was polled busily; the run must
    // still be woken by its event.
    g.user(move |_| workq.set_mode(Mode::EventDriven));
    let mut instance = g.build().unwrap().instance().unwrap();
    let bufs = bufs(&bench, 2);
    instance.set(copy, (&bufs[0], &bufs[1])).unwrap();
    let hold = bench.hold();
    run(async {
        let mut going = tokio::spawn(async move { instance.run().await });
        until("it is in flight", || bench.workq.in_flight() == 1).await;
        drop(hold);
        in_time("the run", &mut going).await.unwrap().unwrap();
    });
}

#[test]
fn a_run_that_sleeps_is_told_though_the_event_was_for_somebody_else() {
    let spin = Duration::ZERO;
    for mode in [Mode::EventDriven, Mode::Hybrid { spin }] {
        let bench = Bench::new(Config::new(true, mode));
        run(async {
            let (mut instance, _bufs) = set_up_chain(&bench, 1);
            let (src, dst) = (bench.filled(b"x"), bench.empty());
            let late = Fault::Delay(Duration::from_millis(500));
            bench.soft.faults().push(late);
            bench.soft.faults().push(Fault::Pass);
            // Runs as a separate task, which only an event wakes.
            let going = tokio::spawn(async move { instance.run().await });
            until("it is in flight", || bench.workq.in_flight() == 1).await;
            in_time("the copy", bench.dma.copy(&src, &dst))
                .await
                .unwrap();
            in_time("the run", going).await.unwrap().unwrap();
        });
    }
}

#[test]
fn a_full_device_is_waited_for_like_a_full_workq() {
    each_of(&all(), async |bench| {
        for _ in 0..3 {
            bench.soft.faults().push(Fault::QueueFull);
        }
        let (graph, nodes) = chain(bench, 4);
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 5);
        set_chain(&mut instance, &nodes, &bufs);
        in_time("a run", instance.run()).await.unwrap();
        assert_eq!(
            (bytes(&bufs[4]), bench.soft.faults().left()),
            (b"hello".to_vec(), 0)
        );
    });
}

#[test]
fn the_mode_can_be_set_while_a_run_sleeps() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let (mut instance, bufs) = set_up_chain(&bench, 3);
        let hold = bench.hold();
        let count = Count::new();
        let waker = count.waker();
        let mut going = Box::pin(instance.run());
        assert!(
            going
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        bench.workq.set_mode(Mode::BusyPoll).unwrap();
        assert_eq!(count.wakes(), 1, "it must poll by itself now");
        drop(hold);
        in_time("the run", going).await.unwrap();
        assert_eq!(bytes(&bufs[3]), b"hello");
    });
}

#[test]
fn a_run_needs_no_runtime_in_busy_mode_and_says_so_in_event_mode() {
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    let (mut instance, chained) = set_up_chain(&bench, 3);
    bench.workq.block_on(instance.run()).unwrap();
    assert_eq!(bytes(&chained[3]), b"hello");

    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let (graph, nodes) = chain(&bench, 3);
    let mut instance = graph.instance().unwrap();
    let chained = bufs(&bench, 4);
    set_chain(&mut instance, &nodes, &chained);
    let error = futures::executor::block_on(instance.run()).unwrap_err();
    assert_eq!(
        (error.kind(), error.node()),
        (ErrorKind::BadState, nodes[0].id())
    );
    assert_eq!(
        instance.result(nodes[0]).unwrap().unwrap_err().reason(),
        Reason::NoRuntime
    );

    // The run is in flight, and is then polled outside of any runtime: its job continues, and the
    // run is given up.
    let hold = bench.hold();
    let mut going = Box::pin(instance.run());
    runtime().block_on(async { poll_pending(going.as_mut()) });
    let error = futures::executor::block_on(going).unwrap_err();
    assert!(error.to_string().contains("dma_copy#0: "), "{error}");
    assert!(instance.is_draining());
    drop(hold);
    run(async {
        in_time("the next run waits for it", instance.run())
            .await
            .unwrap();
        assert_eq!(bytes(&chained[3]), b"hellohello");
    });
}

// Failing
// -------------------------------------------------------------------------------------------------------

#[test]
fn a_node_that_fails_starts_nothing_new_and_the_rest_drains() {
    each_of(&all(), async |bench| {
        let mut g = Graph::builder();
        let [bad, long, after, never] = [(); 4].map(|()| g.dma_copy(&bench.dma));
        let log = Log::default();
        let seen = Arc::clone(&log);
        let user = g.user(move |_| {
            note(&seen, "ran");
            Ok(())
        });
        g.depends(after, bad);
        g.depends(never, long);
        g.depends(user, long);
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 5);
        for (node, dst) in [bad, long, after, never].iter().zip(&bufs[1..]) {
            instance.set(*node, (&bufs[0], dst)).unwrap();
        }
        // One copy fails at once, and another ends later.
        let faults = bench.soft.faults();
        faults.push(Fault::Error(ErrorKind::IoFailed, 0x88));
        faults.push(Fault::Delay(Duration::from_millis(5)));
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::IoFailed, bad.id())
        );
        assert_eq!(error.failed(), [bad.id()]);
        assert!(error.to_string().contains("node dma_copy#0: "), "{error}");
        let states = [bad, long, after, never].map(|node| instance.state(node));
        use NodeState::{Completed, Failed, NotStarted};
        assert_eq!(
            states,
            [Failed, Completed, NotStarted, NotStarted],
            "it drained"
        );
        assert_eq!(instance.state(user), NotStarted);
        assert_eq!(
            instance.result(bad).unwrap().unwrap_err().vendor_code(),
            Some(0x88)
        );
        assert_eq!(
            (instance.result(long), instance.result(never)),
            (Some(Ok(5)), None)
        );
        assert_eq!(bench.workq.in_flight(), 0);
        // Runs again without a fault.
        faults.clear();
        bufs[2].reset_data_len().unwrap();
        in_time("another run", instance.run()).await.unwrap();
        assert_eq!(*log.lock().unwrap(), ["ran"]);
    });
}

#[test]
fn the_first_cause_is_told_and_all_that_failed() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let mut g = Graph::builder();
        let nodes = [(); 3].map(|()| g.dma_copy(&bench.dma));
        g.label(nodes[1], "the second");
        let mut instance = g.build().unwrap().instance().unwrap();
        let bufs = bufs(&bench, 4);
        for (node, dst) in nodes.iter().zip(&bufs[1..]) {
            instance.set(*node, (&bufs[0], dst)).unwrap();
        }
        bench.soft.faults().push(Fault::Behind(1));
        bench.soft.faults().push(Fault::Error(ErrorKind::Driver, 1));
        bench
            .soft
            .faults()
            .push(Fault::Error(ErrorKind::IoFailed, 2));
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::Driver, nodes[1].id())
        );
        assert_eq!(error.failed(), [nodes[1].id(), nodes[2].id()]);
        let text = Error::from(error).to_string();
        assert!(
            text.starts_with("Instance::run: node the second: the device reports")
                && text.ends_with("; then failed: dma_copy#2")
                && text.matches("the second").count() == 1,
            "{text}"
        );
    });
}

#[test]
fn a_user_node_that_fails_or_panics_fails_the_run_and_drains() {
    each_of(&all(), async |bench| {
        let panics = Arc::new(AtomicBool::new(false));
        let mut g = Graph::builder();
        let (copy, later) = (g.dma_copy(&bench.dma), g.dma_copy(&bench.dma));
        let how = Arc::clone(&panics);
        let user = g.user(move |_| match how.load(Ordering::Relaxed) {
            true => std::panic::panic_any("a user's panic".to_owned()),
            false => Err(Error::new(ErrorKind::TimedOut, "user", "a user's error")),
        });
        g.depends(later, (copy, user));
        let mut instance = g.build().unwrap().instance().unwrap();
        let bufs = bufs(bench, 3);
        instance.set(copy, (&bufs[0], &bufs[1])).unwrap();
        instance.set(later, (&bufs[0], &bufs[2])).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::TimedOut, user.id())
        );
        assert_eq!(error.cause().to_string(), "user: a user's error");
        let result = instance.result(user).unwrap().unwrap_err();
        assert_eq!(
            (result.kind(), result.reason()),
            (ErrorKind::TimedOut, Reason::UserNode)
        );

        reset(&bufs);
        panics.store(true, Ordering::Relaxed);
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unexpected);
        assert!(
            error.to_string().contains("panicked: a user's panic"),
            "{error}"
        );
        assert_eq!(instance.result(copy), Some(Ok(5)), "it drained");
        assert_eq!(instance.state(later), NodeState::NotStarted);
        assert_eq!(bench.workq.in_flight(), 0);
    });
}

#[test]
fn a_node_that_was_not_set_fails_by_name() {
    each(async |bench| {
        let (graph, nodes) = chain(bench, 2);
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 2);
        instance.set(nodes[0], (&bufs[0], &bufs[1])).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::BadState, nodes[1].id())
        );
        assert!(error.to_string().contains("Instance::set"), "{error}");
    });
}

#[test]
fn refused_operands_fail_the_node_as_they_do_a_copy() {
    each(async |bench| {
        let (graph, nodes) = chain(bench, 1);
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 2);
        set_chain(&mut instance, &nodes, &bufs);
        let guard = bufs[1].data_mut().unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(guard);
        instance.set(nodes[0], (&bufs[0], &bufs[0])).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
    });
}

#[test]
fn a_shutdown_fails_who_is_in_line_and_drains_the_rest() {
    each_of(
        &[Config::new(true, Mode::EventDriven).depth(1)],
        async |bench| {
            let mut g = Graph::builder();
            let nodes = [(); 2].map(|()| g.dma_copy(&bench.dma));
            let mut instance = g.build().unwrap().instance().unwrap();
            let bufs = bufs(bench, 3);
            for (node, dst) in nodes.iter().zip(&bufs[1..]) {
                instance.set(*node, (&bufs[0], dst)).unwrap();
            }
            let hold = bench.hold();
            let mut going = Box::pin(instance.run());
            poll_pending(going.as_mut());
            let mut closing = Box::pin(bench.workq.shutdown());
            poll_pending(closing.as_mut());
            drop(hold);
            let (ended, closed) = in_time("both", futures::future::join(going, closing)).await;
            closed.unwrap();
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Shutdown);
            assert_eq!(instance.result(nodes[0]), Some(Ok(5)));
        },
    );
}

// Dropping
// ------------------------------------------------------------------------------------------------------

#[test]
fn a_run_that_is_dropped_leaves_its_jobs_and_the_next_one_waits_for_them() {
    let spin = Duration::from_micros(30);
    for mode in [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }] {
        let bench = Bench::new(Config::new(true, mode));
        run(async {
            let (mut instance, bufs) = set_up_chain(&bench, 3);
            let hold = bench.hold();
            for _ in 0..3 {
                let mut going = Box::pin(instance.run());
                poll_pending(going.as_mut());
                drop(going);
                assert_eq!(bench.workq.in_flight(), 1, "waits for the first one's");
                assert!(instance.is_draining());
                assert_eq!(bufs[1].data().unwrap_err().kind(), ErrorKind::InUse);
            }
            drop(hold);
            let going = instance.run();
            // The first run has written its destination, and the second one appends to it.
            in_time("the next run", going).await.unwrap();
            assert_eq!(
                (bytes(&bufs[1]), bytes(&bufs[3])),
                (b"hellohello".to_vec(), b"hellohello".to_vec())
            );
            drop((instance, bufs));
            bench.all_back().await;
        });
    }
}

#[test]
fn runs_that_many_threads_drop_are_over_when_the_next_begins() {
    for config in all() {
        eprintln!("{config:?}");
        let bench = Bench::new(config.depth(3));
        let mut g = Graph::builder();
        // This never fails with `InUse`, since no job of an earlier run is in flight when a run
        // begins.
        let empty = g.user_with(|_, sinks: &mut Vec<Buf>| {
            Ok(sinks.iter().try_for_each(Buf::reset_data_len)?)
        });
        let (inner, steps) = chain(&bench, 2);
        let nodes = [(); 4].map(|()| g.dma_copy(&bench.dma));
        let sub = g.subgraph(&inner);
        g.depends(sub, nodes);
        nodes.iter().for_each(|&node| g.depends(node, empty));
        let graph = g.build().unwrap();
        workers().block_on(in_time("all of them", async {
            let tasks: Vec<_> = (0..6)
                .map(|task| {
                    let mut instance = graph.instance().unwrap();
                    let mut part = inner.instance().unwrap();
                    let bufs = bufs(&bench, 7);
                    for (node, dst) in nodes.iter().zip(&bufs[1..]) {
                        instance.set(*node, (&bufs[0], dst)).unwrap();
                    }
                    set_chain(&mut part, &steps, &bufs[4..]);
                    instance.set(sub, part).unwrap();
                    instance.set(empty, bufs[1..].to_vec()).unwrap();
                    tokio::spawn(async move {
                        for turn in 0..100 {
                            let mut going = Box::pin(instance.run());
                            for _ in 0..(task + turn) % 7 {
                                if let Poll::Ready(ended) = futures::poll!(going.as_mut()) {
                                    ended.unwrap();
                                    break;
                                }
                                tokio::task::yield_now().await;
                            }
                        }
                        instance.run().await.unwrap();
                        bufs.iter().for_each(|buf| assert_eq!(bytes(buf), b"hello"));
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        }));
        assert_eq!(bench.workq.in_flight(), 0);
    }
}

#[test]
fn jobs_of_a_dropped_run_end_though_nobody_waits_for_them() {
    let spin = Duration::from_micros(30);
    for mode in [Mode::EventDriven, Mode::Hybrid { spin }] {
        let bench = Bench::new(Config::new(true, mode));
        run(async {
            let (mut instance, bufs) = set_up_chain(&bench, 1);
            let hold = bench.hold();
            let mut going = Box::pin(instance.run());
            poll_pending(going.as_mut());
            drop(going);
            drop(instance);
            drop(hold);
            until("the Lease is back", || bufs[1].data().is_ok()).await;
            assert_eq!(bytes(&bufs[1]), b"hello");
            drop(bufs);
            bench.all_back().await;
        });
    }
}

#[test]
fn a_forgotten_run_dangles_nowhere() {
    for config in all() {
        let bench = Bench::new(config);
        let (mmap, workq) = (bench.mmap.clone(), bench.workq.clone());
        run(async {
            let (graph, nodes) = chain(&bench, 2);
            let mut instance = graph.instance().unwrap();
            let bufs = bufs(&bench, 3);
            set_chain(&mut instance, &nodes, &bufs);
            let hold = bench.hold();
            let mut going = Box::pin(instance.run());
            poll_pending(going.as_mut());
            std::mem::forget(going);
            // The run no longer borrows the instance, which can be set, run or dropped.
            set_chain(&mut instance, &nodes, &bufs);
            let mut again = Box::pin(instance.run());
            poll_pending(again.as_mut());
            std::mem::forget(again);
            drop((instance, graph));
            drop(hold);
            bench.engine_works().await;
            until("its job is over", || bench.workq.in_flight() == 0).await;
            assert_eq!(bytes(&bufs[1]), b"hello");
        });
        drop((bench, mmap, workq));
    }
}

#[test]
fn an_instance_can_go_with_everything_while_its_jobs_are_in_flight() {
    for config in configs() {
        let bench = Bench::new(config);
        let hold = bench.hold();
        run(async {
            let (mut instance, _bufs) = set_up_chain(&bench, 1);
            let mut going = Box::pin(instance.run());
            poll_pending(going.as_mut());
        });
        drop(bench);
        drop(hold);
    }
}

#[test]
#[should_panic(expected = "polled after it had finished")]
fn a_run_that_is_over_must_not_be_polled() {
    let bench = Bench::new(Config::new(false, Mode::BusyPoll));
    let (mut instance, _bufs) = set_up_chain(&bench, 1);
    let mut going = pin!(instance.run());
    assert!(poll(going.as_mut()).is_ready());
    let _ = poll(going.as_mut());
}

// Futures and sub-graphs
// ----------------------------------------------------------------------------------------

#[test]
fn an_async_node_is_any_future_and_may_await_jobs() {
    each_of(&all(), async |bench| {
        let (src, mid, end) = (bench.filled(b"abc"), bench.empty(), bench.empty());
        let mut g = Graph::builder();
        let (copy, last) = (g.dma_copy(&bench.dma), g.user(|_| Ok(())));
        let (dma, from, to) = (bench.dma.clone(), mid.clone(), end.clone());
        let node = g.user_async(move |run| {
            assert_eq!(run.result(copy), Some(Ok(3)));
            let op = dma.copy(from.clone(), to.clone()).owned();
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                op.await?;
                Ok(())
            }
        });
        g.depends(node, copy);
        g.depends(last, node);
        let mut instance = g.build().unwrap().instance().unwrap();
        instance.set(copy, (&src, &mid)).unwrap();
        for _ in 0..3 {
            in_time("a run", instance.run()).await.unwrap();
            assert_eq!(bytes(&end), b"abc");
            [&mid, &end]
                .iter()
                .for_each(|buf| buf.reset_data_len().unwrap());
        }
        // The node fails with the error of its job.
        src.reset_data_len().unwrap();
        src.extend_from_slice(b"abc").unwrap();
        let guard = end.data_mut().unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!((error.kind(), error.node()), (ErrorKind::InUse, node.id()));
        drop(guard);
    });
}

/// Counts its drops.
struct OnDrop(Arc<AtomicUsize>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_future_of_an_async_node_is_dropped_with_its_run() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut g = Graph::builder();
    let counter = Arc::clone(&dropped);
    g.user_async(move |_| {
        let on_drop = OnDrop(Arc::clone(&counter));
        async move {
            std::future::pending::<()>().await;
            drop(on_drop);
            Ok(())
        }
    });
    g.dma_copy(&bench.dma);
    let inner = g.build().unwrap();
    let mut g = Graph::builder();
    let sub = g.subgraph(&inner);
    let mut outer = g.build().unwrap().instance().unwrap();
    run(async {
        for kept in [false, true] {
            outer.set(sub, inner.instance().unwrap()).unwrap();
            // The copy has no operands: it fails, and the rest of the run drains for ever.
            let mut going = Box::pin(outer.run());
            poll_pending(going.as_mut());
            let before = dropped.load(Ordering::SeqCst);
            if kept {
                std::mem::forget(going);
                drop(Box::pin(outer.run()));
                assert_eq!(dropped.load(Ordering::SeqCst), before, "nothing begun");
                poll_pending(Box::pin(outer.run()).as_mut());
                assert_eq!(
                    dropped.load(Ordering::SeqCst),
                    before + 2,
                    "the forgotten, and its own"
                );
            } else {
                drop(going);
                assert_eq!(dropped.load(Ordering::SeqCst), before + 1);
            }
        }
    });
}

#[test]
fn a_panic_of_an_async_node_is_contained() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let stage = Arc::new(AtomicUsize::new(0));
    let mut g = Graph::builder();
    let copy = g.dma_copy(&bench.dma);
    let at = Arc::clone(&stage);
    let node = g.user_async(move |_| {
        assert_ne!(at.load(Ordering::Relaxed), 0, "made");
        let at = Arc::clone(&at);
        async move {
            assert_ne!(at.load(Ordering::Relaxed), 1, "polled");
            tokio::task::yield_now().await;
            Err(oops())
        }
    });
    let mut instance = g.build().unwrap().instance().unwrap();
    let bufs = bufs(&bench, 2);
    instance.set(copy, (&bufs[0], &bufs[1])).unwrap();
    run(async {
        for (at, text) in ["made", "polled", "oops"].iter().enumerate() {
            stage.store(at, Ordering::Relaxed);
            let error = in_time("a run", instance.run()).await.unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!(error.node(), node.id());
            until("drained", || !instance.is_draining()).await;
            reset(&bufs);
        }
    });
}

/// Panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_future_that_panics_when_it_is_dropped_is_contained() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let mut g = Graph::builder();
    let copy = g.dma_copy(&bench.dma);
    let ends = Arc::new(AtomicBool::new(false));
    let how = Arc::clone(&ends);
    let node = g.user_async(move |_| {
        let (panics, how) = (PanicsOnDrop, Arc::clone(&how));
        // An async block would drop the value in its last poll.
        std::future::poll_fn(move |_| {
            let _ = &panics;
            match how.load(Ordering::Relaxed) {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        })
    });
    let mut instance = g.build().unwrap().instance().unwrap();
    let bufs = bufs(&bench, 2);
    instance.set(copy, (&bufs[0], &bufs[1])).unwrap();
    run(async {
        let mut going = Box::pin(instance.run());
        poll_pending(going.as_mut());
        // The panic of `PanicsOnDrop` is not reported to any caller.
        drop(going);
        let mut going = Box::pin(instance.run());
        poll_pending(going.as_mut());
        ends.store(true, Ordering::Relaxed);
        let error = in_time("a run", going).await.unwrap_err();
        assert_eq!(error.node(), node.id());
        assert!(error.to_string().contains("panicked: dropped"), "{error}");
    });
}

#[test]
fn sub_graphs_run_within_and_are_seen_from_outside() {
    each_of(&all(), async |bench| {
        let (inner, steps) = chain(bench, 2);
        let mut g = Graph::builder();
        let (first, sub, last) = (
            g.dma_copy(&bench.dma),
            g.subgraph(&inner),
            g.dma_copy(&bench.dma),
        );
        let seen = steps[1];
        let check = g.user(move |run| {
            assert_eq!(run.result_in(sub, seen), Some(Ok(5)));
            Ok(())
        });
        g.depends(sub, first);
        g.depends(last, sub);
        g.depends(check, last);
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let bufs = bufs(bench, 5);
        instance.set(first, (&bufs[0], &bufs[1])).unwrap();
        instance.set(last, (&bufs[3], &bufs[4])).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::BadState, sub.id()),
            "not set"
        );
        reset(&bufs);
        let mut part = inner.instance().unwrap();
        set_chain(&mut part, &steps, &bufs[1..4]);
        instance.set(sub, part).unwrap();
        for _ in 0..3 {
            in_time("a run", instance.run()).await.unwrap();
            assert_eq!(bytes(&bufs[4]), b"hello");
            assert_eq!(instance.result_in(sub, steps[0]), Some(Ok(5)));
            reset(&bufs);
        }
        let mut part = instance.take(sub).unwrap();
        assert!(instance.take(sub).is_none());
        bufs[1].extend_from_slice(b"alone").unwrap();
        in_time("the part alone", part.run()).await.unwrap();
        assert_eq!(bytes(&bufs[3]), b"alone");
    });
}

#[test]
fn a_sub_graph_fails_with_the_first_cause_and_stops_the_rest() {
    each_of(&all(), async |bench| {
        let (inner, steps) = chain(bench, 2);
        let mut g = Graph::builder();
        let (sub, other) = (g.subgraph(&inner), g.subgraph(&inner));
        let last = g.user(|_| Ok(()));
        g.depends(last, [sub, other]);
        let mut instance = g.build().unwrap().instance().unwrap();
        let (a, b) = (bufs(bench, 3), bufs(bench, 3));
        for (node, bufs) in [(sub, &a), (other, &b)] {
            let mut part = inner.instance().unwrap();
            set_chain(&mut part, &steps, bufs);
            instance.set(node, part).unwrap();
        }
        let faults = bench.soft.faults();
        faults.push(Fault::Error(ErrorKind::IoFailed, 0x77));
        faults.push(Fault::Delay(Duration::from_millis(5)));
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::IoFailed, sub.id())
        );
        assert!(
            error
                .to_string()
                .starts_with("node subgraph#0 > dma_copy#0: the device reports"),
            "{error}"
        );
        assert_eq!(error.failed(), [sub.id()]);
        assert_eq!(
            instance.result(sub).unwrap().unwrap_err().vendor_code(),
            Some(0x77)
        );
        assert_eq!(instance.state(other), NodeState::Stopped);
        assert_eq!(
            (instance.result(other), instance.state(last)),
            (None, NodeState::NotStarted)
        );
        assert_eq!(
            instance.result_in(other, steps[0]),
            Some(Ok(5)),
            "it drained"
        );
        assert_eq!(instance.result_in(other, steps[1]), None);
        assert_eq!(bench.workq.in_flight(), 0);
        faults.clear();
        reset(&b);
        in_time("another run", instance.run()).await.unwrap();
    });
}

#[test]
fn what_a_sub_graph_did_in_a_run_before_is_not_told_again() {
    each(async |bench| {
        let (inner, steps) = chain(bench, 1);
        let mut g = Graph::builder();
        let sub = g.subgraph(&inner);
        let seen = steps[0];
        let fails = g.user_with(move |run, fails: &mut bool| {
            assert_eq!(run.result_in(sub, seen), None, "its turn has not come");
            if *fails { Err(oops()) } else { Ok(()) }
        });
        g.depends(sub, fails);
        let mut instance = g.build().unwrap().instance().unwrap();
        let bufs = bufs(bench, 2);
        let mut part = inner.instance().unwrap();
        set_chain(&mut part, &steps, &bufs);
        instance.set(sub, part).unwrap();
        instance.set(fails, false).unwrap();
        for _ in 0..2 {
            in_time("a run", instance.run()).await.unwrap();
            assert_eq!(instance.result_in(sub, seen), Some(Ok(5)));
            reset(&bufs);
        }
        instance.set(fails, true).unwrap();
        in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(instance.result_in(sub, seen), None);
    });
}

#[test]
fn a_sub_graph_is_set_to_an_instance_of_its_graph_on_its_workq() {
    let bench = Bench::new(configs()[0]);
    let ((inner, _), (other, _)) = (chain(&bench, 1), chain(&bench, 1));
    let mut g = Graph::builder();
    let sub = g.subgraph(&inner);
    let mut instance = g.build().unwrap().instance().unwrap();
    let error = instance.set(sub, other.instance().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    let elsewhere = WorkQ::builder().build().unwrap();
    let _there = bench.dma.attach(&elsewhere).unwrap();
    let error = instance
        .set(sub, inner.instance_on(&elsewhere).unwrap())
        .unwrap_err();
    assert!(error.to_string().contains("another WorkQ"), "{error}");
    instance.set(sub, inner.instance().unwrap()).unwrap();
}

#[test]
fn jobs_of_a_dropped_sub_graph_are_waited_for_by_whoever_runs_it_next() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let (inner, steps) = chain(&bench, 1);
        let mut g = Graph::builder();
        let sub = g.subgraph(&inner);
        let graph = g.build().unwrap();
        let bufs = bufs(&bench, 2);
        let mut part = inner.instance().unwrap();
        set_chain(&mut part, &steps, &bufs);
        let hold = bench.hold();
        let mut going = Box::pin(part.run());
        poll_pending(going.as_mut());
        drop(going);
        let mut instance = graph.instance().unwrap();
        instance.set(sub, part).unwrap();
        for _ in 0..2 {
            let mut going = Box::pin(instance.run());
            poll_pending(going.as_mut());
            assert_eq!(bench.workq.in_flight(), 1);
        }
        drop(hold);
        in_time("a run", instance.run()).await.unwrap();
        assert_eq!(bytes(&bufs[1]), b"hellohello");
    });
}

// For the eye
// ---------------------------------------------------------------------------------------------------

#[test]
fn the_drawing_has_every_node_and_edge() {
    let bench = Bench::new(configs()[0]);
    let (inner, _) = chain(&bench, 2);
    let mut g = Graph::builder();
    let (copy, sub) = (g.dma_copy(&bench.dma), g.subgraph(&inner));
    let (user, wait) = (g.user(|_| Ok(())), g.user_async(|_| async { Ok(()) }));
    g.label(user, "check \"it\"");
    g.depends(user, (copy, sub));
    g.depends(wait, user);
    let dot = g.build().unwrap().to_dot();
    for part in [
        "digraph {",
        "n0 [label=\"dma_copy#0\", shape=box];",
        "n1 [label=\"subgraph#1\", shape=folder];",
        "n2 [label=\"check \\\"it\\\"\", shape=ellipse];",
        "n3 [label=\"user_async#3\", shape=hexagon];",
        "n1_0 -> n1_1;",
        "n1 -> n1_0 [style=dashed];",
        "n0 -> n2;",
        "n1 -> n2;",
        "n2 -> n3;",
    ] {
        assert_eq!(dot.matches(part).count(), 1, "{part} in {dot}");
    }
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
}

#[test]
fn soft_devices_without_engines_run_graphs_as_well() {
    for mode in modes() {
        let bench = Bench::with_soft(
            Config::new(true, mode),
            Soft::builder().defer(true).engines(0).build(),
        );
        let (mut instance, bufs) = set_up_chain(&bench, 3);
        run(instance.run()).unwrap();
        assert_eq!(bytes(&bufs[3]), b"hello");
    }
}
