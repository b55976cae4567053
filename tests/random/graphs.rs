//! Checks random graphs of copies, functions, futures and sub-graphs, with random edges, failures
//! and drops, against an oracle that evaluates the nodes one after the other.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use support::*;
use tokio_doca::graph::{AsyncNode, CopyNode, Node, NodeId, NodeState, SubGraphNode, UserNode};
use tokio_doca::soft::Fault;
use tokio_doca::{
    Buf, BufPool, Error, ErrorKind,
    graph::{Graph, Instance},
};

/// A random generator of the test's own, so that a case is reproduced by a few numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides
    }
}

/// The state that user nodes share with the test.
#[derive(Default)]
struct World {
    /// The numbers of the user nodes whose functions and futures ran. The numbers are unique across
    /// all sub-graphs.
    log: Mutex<Vec<usize>>,
    /// A bit for each user node that fails.
    fails: AtomicU64,
}

impl World {
    fn act(&self, number: usize) -> Result<(), Error> {
        self.log.lock().unwrap().push(number);
        if number < 64 && self.fails.load(Ordering::SeqCst) & 1 << number != 0 {
            return Err(Error::new(ErrorKind::TimedOut, "user", "it shall fail"));
        }
        Ok(())
    }
}

enum Handle {
    /// Copies from a source of its own, or from the destination of a preceding copy.
    Copy(Node<CopyNode>, Option<usize>),
    User(Node<UserNode>),
    Async(Node<AsyncNode>),
    Sub(Node<SubGraphNode>, Box<Built>),
}

impl Handle {
    fn id(&self) -> NodeId {
        match self {
            Handle::Copy(node, _) => node.id(),
            Handle::User(node) => node.id(),
            Handle::Async(node) => node.id(),
            Handle::Sub(node, _) => node.id(),
        }
    }
}

/// A graph, and the oracle's knowledge of it: node i depends on the nodes `before[i]`, all of which
/// have smaller numbers.
struct Built {
    graph: Graph,
    nodes: Vec<Handle>,
    before: Vec<Vec<usize>>,
}

fn build(
    bench: &Bench,
    world: &Arc<World>,
    dice: &mut Dice,
    count: usize,
    level: u32,
    users: &mut usize,
) -> Built {
    let mut g = Graph::builder();
    let density = 1 + dice.roll(6);
    let (mut nodes, mut before) = (Vec::<Handle>::new(), Vec::new());
    for index in 0..count {
        let mut preds: Vec<usize> = (0..index).filter(|_| dice.roll(24) < density).collect();
        preds.dedup();
        let ids: Vec<NodeId> = preds.iter().map(|&at| nodes[at].id()).collect();
        // The first node is a copy: a graph needs a node of a context.
        let kind = if index == 0 { 0 } else { dice.roll(10) };
        let handle = match kind {
            6 | 7 => {
                let (number, world, ids) = (*users, Arc::clone(world), ids.clone());
                *users += 1;
                let node = g.user(move |run| {
                    for &id in &ids {
                        assert!(matches!(run.result(id), Some(Ok(_))), "{id} is not over");
                    }
                    world.act(number)
                });
                Handle::User(node)
            }
            8 => {
                let (number, world) = (*users, Arc::clone(world));
                *users += 1;
                let node = g.user_async(move |_| {
                    let world = Arc::clone(&world);
                    async move {
                        if number % 2 == 0 {
                            tokio::task::yield_now().await;
                        }
                        world.act(number)
                    }
                });
                Handle::Async(node)
            }
            9 if level < 2 => {
                let size = 1 + dice.roll(6);
                let inner = build(bench, world, dice, size, level + 1, users);
                Handle::Sub(g.subgraph(&inner.graph), Box::new(inner))
            }
            _ => {
                let copies = |&&at: &&usize| matches!(nodes[at], Handle::Copy(..));
                let from = preds.iter().rfind(copies).copied();
                Handle::Copy(g.dma_copy(&bench.dma), from)
            }
        };
        g.depends(handle.id(), ids);
        nodes.push(handle);
        before.push(preds);
    }
    Built {
        graph: g.build().unwrap(),
        nodes,
        before,
    }
}

/// The Bufs of an instance: a source and a destination for each copy, and the Bufs of its
/// sub-graphs.
struct Bufs(Vec<Option<(Buf, Buf)>>, Vec<(usize, Bufs)>);

impl Bufs {
    fn reset(&self) {
        self.0
            .iter()
            .flatten()
            .for_each(|(_, dst)| dst.reset_data_len().unwrap());
        self.1.iter().for_each(|(_, inner)| inner.reset());
    }
}

fn instance(built: &Built, pool: &BufPool, salt: u8) -> (Instance, Bufs) {
    let mut instance = built.graph.instance().unwrap();
    let (mut bufs, mut inner) = (Vec::<Option<(Buf, Buf)>>::new(), Vec::new());
    for (index, node) in built.nodes.iter().enumerate() {
        bufs.push(None);
        match node {
            Handle::Copy(node, from) => {
                let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
                src.extend_from_slice(&[salt, index as u8, 7]).unwrap();
                let read = from
                    .and_then(|at| bufs[at].as_ref())
                    .map_or(&src, |pair| &pair.1);
                instance.set(*node, (read, &dst)).unwrap();
                bufs[index] = Some((src, dst));
            }
            Handle::Sub(node, built) => {
                let (part, part_bufs) = self::instance(built, pool, salt ^ 0x80 ^ index as u8);
                instance.set(*node, part).unwrap();
                inner.push((index, part_bufs));
            }
            _ => {}
        }
    }
    (instance, Bufs(bufs, inner))
}

/// Returns the bytes that a run, one node after the other, leaves in the destination of each copy.
fn oracle(built: &Built, salt: u8) -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = Vec::new();
    for (index, node) in built.nodes.iter().enumerate() {
        values.push(match node {
            Handle::Copy(_, Some(from)) => values[*from].clone(),
            _ => vec![salt, index as u8, 7],
        });
    }
    values
}

/// Checks states, results, bytes and the order of effects against the oracle. If `failed` is true,
/// nodes may have failed.
fn check(
    built: &Built,
    instance: &mut Instance,
    bufs: &Bufs,
    salt: u8,
    failed: bool,
) -> Result<(), TestCaseError> {
    use NodeState::{Completed, Failed, NotStarted, Stopped};
    let values = oracle(built, salt);
    let states: Vec<NodeState> = built
        .nodes
        .iter()
        .map(|node| instance.state(node.id()))
        .collect();
    let mut inner = bufs.1.iter();
    for (index, node) in built.nodes.iter().enumerate() {
        let (state, result) = (states[index], instance.result(node.id()));
        match state {
            Completed => prop_assert!(matches!(result, Some(Ok(_)))),
            Failed => prop_assert!(failed && matches!(result, Some(Err(_)))),
            Stopped => prop_assert!(failed && result.is_none() && matches!(node, Handle::Sub(..))),
            NotStarted => prop_assert!(failed && result.is_none()),
            state => prop_assert!(false, "node {} is {:?} after the run", index, state),
        }
        if state != NotStarted {
            let over = |&at: &usize| states[at] == Completed;
            prop_assert!(
                built.before[index].iter().all(over),
                "node {} started early",
                index
            );
        }
        if let Some((_, dst)) = &bufs.0[index] {
            let (wrote, value) = (bytes(dst), &values[index]);
            let right = if state == Completed {
                &wrote == value
            } else {
                wrote.is_empty()
            };
            prop_assert!(
                right,
                "node {} {:?} wrote {:?}, not {:?}",
                index,
                state,
                wrote,
                value
            );
            if state == Completed {
                prop_assert_eq!(result, Some(Ok(value.len() as u64)));
            }
        }
        if let Handle::Sub(node, built) = node {
            let (_, bufs) = inner.next().unwrap();
            if state != NotStarted {
                let mut part = instance.take(*node).unwrap();
                let salt = salt ^ 0x80 ^ index as u8;
                check(built, &mut part, bufs, salt, state != Completed)?;
                instance.set(*node, part).unwrap();
            }
        }
    }
    Ok(())
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    nodes: usize,
    depth: u32,
    /// The number of faults in the device's script.
    faults: usize,
    /// A bit for each user node that fails.
    fails: u64,
    /// The number of polls after which the run is dropped.
    drop_after: Option<usize>,
}

fn cases() -> impl Strategy<Value = Case> {
    let fails =
        prop_oneof![2 => Just(0), 1 => any::<u64>().prop_map(|bits| bits & bits >> 7 & bits >> 19)];
    let faults = prop_oneof![2 => Just(0), 1 => 1..30_usize];
    (
        any::<u64>(),
        1..=64_usize,
        1..=8_u32,
        faults,
        fails,
        prop::option::of(0..4_usize),
    )
        .prop_map(|(seed, nodes, depth, faults, fails, drop_after)| Case {
            seed,
            nodes,
            depth,
            faults,
            fails,
            drop_after,
        })
}

fn fault(dice: &mut Dice) -> Fault {
    match dice.roll(12) {
        0 | 1 => Fault::Error(ErrorKind::IoFailed, 5),
        2 => Fault::Delay(Duration::from_micros(50)),
        3 => Fault::QueueFull,
        _ => Fault::Pass,
    }
}

async fn drained(bench: &Bench) {
    bench.soft.faults().clear();
    let end = std::time::Instant::now() + LIMIT;
    while bench.workq.in_flight() > 0 {
        // In busy-poll mode, only a job's own polls collect completions: run a copy.
        bench.engine_works().await;
        assert!(std::time::Instant::now() < end, "it drains");
    }
}

async fn story(bench: &Bench, case: &Case) -> Result<(), TestCaseError> {
    let mut dice = Dice(case.seed);
    let (world, mut users) = (Arc::new(World::default()), 0);
    let built = build(bench, &world, &mut dice, case.nodes, 0, &mut users);
    let pool = BufPool::builder(&bench.mmap(64 * 4096))
        .element_size(64)
        .build()
        .unwrap();
    let (mut graph, bufs) = instance(&built, &pool, 3);
    // Another instance runs at the same time, and is not disturbed by the end of this one.
    let (mut other, other_bufs) = instance(&built, &pool, 5);

    world.fails.store(case.fails, Ordering::SeqCst);
    for _ in 0..case.faults {
        bench.soft.faults().push(fault(&mut dice));
    }
    let result = match case.drop_after {
        None => {
            let (result, other) =
                in_time("two runs", futures::future::join(graph.run(), other.run())).await;
            let may = case.faults > 0 || case.fails != 0;
            prop_assert!(may || other.is_ok());
            Some(result)
        }
        Some(polls) => {
            let mut going = Box::pin(graph.run());
            let mut done = None;
            for _ in 0..polls {
                let polled = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(Pin::new(&mut going).poll(cx))
                })
                .await;
                if let std::task::Poll::Ready(result) = polled {
                    done = Some(result);
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(going);
            done
        }
    };
    if let Some(result) = result {
        let failed = result.is_err();
        check(&built, &mut graph, &bufs, 3, failed)?;
        if let Err(error) = result {
            let states: Vec<NodeId> = built.nodes.iter().map(Handle::id).collect();
            let all: Vec<NodeId> = states
                .into_iter()
                .filter(|&id| graph.state(id) == NodeState::Failed)
                .collect();
            prop_assert_eq!(error.failed(), &all[..]);
            prop_assert!(all.contains(&error.node()));
            prop_assert!(case.faults > 0 || case.fails != 0, "{}", error);
        }
    }

    // Run again without faults: every node runs once, in order.
    drained(bench).await;
    world.fails.store(0, Ordering::SeqCst);
    world.log.lock().unwrap().clear();
    [&bufs, &other_bufs].iter().for_each(|bufs| bufs.reset());
    prop_assert!(in_time("another run", graph.run()).await.is_ok());
    check(&built, &mut graph, &bufs, 3, false)?;
    let mut log = world.log.lock().unwrap().clone();
    log.sort_unstable();
    prop_assert_eq!(log, (0..users).collect::<Vec<_>>(), "each function once");
    prop_assert!(in_time("the other", other.run()).await.is_ok());
    check(&built, &mut other, &other_bufs, 5, false)?;
    drop((graph, other));
    prop_assert_eq!(bench.workq.in_flight(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_do_what_one_node_after_the_other_does(case in cases()) {
        for config in configs() {
            let bench = Bench::new(config.depth(case.depth));
            run(story(&bench, &case))?;
        }
    }
}
