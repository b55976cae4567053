//! Remote operations as nodes: their results, the messages of receives, how they fail, and what
//! happens to receives.

use std::pin::pin;

use futures::FutureExt;
use futures::future::FusedFuture;
use sha2::Digest;
use support::*;
use tokio_doca::graph::NodeState;
use tokio_doca::{
    Buf, Dma, Error, ErrorKind, Mode, Rdma, WorkQ,
    error::Reason,
    graph::Graph,
    mem::{Access, BufInventory, RemoteBuf, RemoteMmap},
    rdma::{RdmaState, Received, RecvOpcode},
    sha::{Algorithm, Sha},
};

const ALL: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// Two connected sides: `near` on the bench's WorkQ, and its peer `far` on another one.
struct Pair {
    near: Rdma,
    far: Rdma,
    /// Memory of the peer, and its import on this side.
    memory: Buf,
    remote: RemoteMmap,
}

impl Pair {
    async fn new(bench: &Bench) -> Pair {
        Pair::permitting(bench, ALL).await
    }

    /// Connects a pair whose peer grants these permissions.
    async fn permitting(bench: &Bench, permissions: Access) -> Pair {
        let workq = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        // Even a write of no bytes needs the permission, because an adapter sees that it is a
        // write.
        let near = Rdma::builder(&bench.device).permissions(ALL);
        let near = near.attach(&bench.workq).unwrap();
        let far = Rdma::builder(&bench.device).permissions(permissions);
        let far = far.attach(&workq).unwrap();
        near.connect(&far.export().unwrap()).await.unwrap();
        far.connect(&near.export().unwrap()).await.unwrap();
        let mmap = bench.mmap_with(ELEMENT, Access::LOCAL_READ_WRITE | ALL);
        let blob = mmap.export_rdma(&bench.device).unwrap();
        let remote = RemoteMmap::from_export(&bench.device, &blob).await.unwrap();
        let memory = BufInventory::with_capacity(1);
        let memory = memory.buf(&mmap, ..).unwrap();
        memory.extend_from_slice(&[0; ELEMENT]).unwrap();
        Pair {
            near,
            far,
            memory,
            remote,
        }
    }

    fn at(&self, from: usize, len: usize) -> RemoteBuf {
        self.remote.buf(from..from + len).unwrap()
    }
}

fn all() -> Vec<Config> {
    let spin = std::time::Duration::from_micros(30);
    let hybrid = |defer| Config::new(defer, Mode::Hybrid { spin });
    let more = [hybrid(false), hybrid(true)];
    configs().into_iter().chain(more).collect()
}

fn got(len: usize, opcode: RecvOpcode, immediate: Option<u32>) -> Received {
    Received::new(len, opcode, immediate)
}

#[test]
fn each_operation_is_a_node() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let write = g.rdma_write(&pair.near);
        let read = g.rdma_read(&pair.near);
        let add = g.rdma_fetch_add(&pair.near);
        let swap = g.rdma_compare_swap(&pair.near);
        let send = g.rdma_send(&pair.near);
        let send_imm = g.rdma_send_imm(&pair.near);
        let write_imm = g.rdma_write_imm(&pair.near);
        let nothing = g.rdma_send(&pair.near);
        let recv = g.rdma_recv(&pair.near);
        let check = g.user(move |run| {
            assert_eq!(run.received(recv), Some(got(3, RecvOpcode::Send, None)));
            assert_eq!(run.result(recv), Some(Ok(3)));
            Ok(())
        });
        g.depends(read, write);
        g.depends(add, read);
        g.depends(swap, add);
        g.depends(send, swap);
        g.depends(send_imm, send);
        g.depends(write_imm, send_imm);
        g.depends(nothing, write_imm);
        g.depends(check, (recv, nothing));
        let graph = g.build().unwrap();
        assert_eq!(graph.label(write).unwrap(), "rdma_write#0");
        assert!(graph.to_dot().contains("label=\"rdma_recv#8\", shape=box"));

        let src = bench.filled(&[1, 0, 0, 0, 0, 0, 0, 0, 9, 9]);
        let (dst, answer) = (bench.empty(), bench.empty());
        let mut instance = graph.instance().unwrap();
        let word = pair.at(0, 8);
        instance.set(write, (&src, &pair.at(0, 16))).unwrap();
        instance.set(read, (pair.at(0, 12), &dst)).unwrap();
        instance.set(add, (&word, 41)).unwrap();
        instance.set(swap, (&word, 42, 7)).unwrap();
        instance.set(send, &src).unwrap();
        instance
            .set(send_imm, (src.slice(..4).unwrap(), 77))
            .unwrap();
        let behind = pair.at(16, 16);
        instance.set(write_imm, (&src, &behind, 88)).unwrap();
        instance.set(nothing, ()).unwrap();
        instance.set(recv, &answer).unwrap();

        for _ in 0..2 {
            dst.reset_data_len().unwrap();
            answer.reset_data_len().unwrap();
            let (inbox, hi) = (bench.empty(), bench.filled(b"hi!"));
            let peer = async {
                let mut came = Vec::new();
                came.push(pair.far.recv(&inbox).await?);
                came.push(pair.far.recv(&inbox).await?);
                came.push(pair.far.recv(()).await?);
                came.push(pair.far.recv(()).await?);
                pair.far.send(&hi).await?;
                Ok::<_, Error>(came)
            };
            let both = async { tokio::join!(instance.run(), peer) };
            let (ran, came) = in_time("a run and its peer", both).await;
            ran.unwrap();
            let expected = [
                got(10, RecvOpcode::Send, None),
                got(4, RecvOpcode::SendImm, Some(77)),
                got(10, RecvOpcode::WriteImm, Some(88)),
                got(0, RecvOpcode::Send, None),
            ];
            assert_eq!(came.unwrap(), expected);
            assert_eq!(&inbox.data().unwrap()[8..], &[9, 9, 1, 0, 0, 0]);

            assert_eq!(instance.result(write), Some(Ok(10)));
            assert_eq!(instance.result(read), Some(Ok(12)));
            // The atomics found the value that the write has left, and the sum.
            assert_eq!(instance.result(add), Some(Ok(1)));
            assert_eq!(instance.result(swap), Some(Ok(42)));
            assert_eq!(pair.memory.load(0), Ok(7));
            assert_eq!(pair.memory.load(16), Ok(1));
            assert_eq!(instance.result(send), Some(Ok(10)));
            assert_eq!(instance.result(send_imm), Some(Ok(4)));
            assert_eq!(instance.result(write_imm), Some(Ok(10)));
            assert_eq!(instance.result(nothing), Some(Ok(0)));
            let expected = Some(got(3, RecvOpcode::Send, None));
            assert_eq!(instance.received(recv), expected);
            assert_eq!(&answer.data().unwrap()[..], b"hi!");
            assert_eq!(dst.data().unwrap()[..10], src.data().unwrap()[..]);
        }
    });
}

#[test]
fn graphs_send_wait_for_the_answer_and_hash_it() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let sha = Sha::builder(&bench.device).attach(&bench.workq).unwrap();
        let mut g = Graph::builder();
        let recv = g.rdma_recv(&pair.near);
        let send = g.rdma_send(&pair.near);
        let hash = g.sha(&sha, Algorithm::Sha256);
        g.depends(hash, recv);
        let graph = g.build().unwrap();

        // Two runs at once: each posts its receive before it sends.
        let make = |question: &[u8]| {
            let mut instance = graph.instance().unwrap();
            let bufs = [bench.filled(question), bench.empty(), bench.empty()];
            let [question, answer, digest] = &bufs;
            instance.set(send, question).unwrap();
            instance.set(recv, answer).unwrap();
            instance.set(hash, (answer, digest)).unwrap();
            (instance, bufs)
        };
        let mut runs = [make(b"one"), make(b"two")];
        for round in 0..3_u32 {
            let peer = async {
                for _ in 0..2 {
                    let (question, answer) = (bench.empty(), bench.filled(b"re: "));
                    pair.far.recv(&question).await?;
                    answer.extend_from_slice(&question.data()?)?;
                    pair.far.send_imm(&answer, round).await?;
                }
                Ok::<_, Error>(())
            };
            let [(one, _), (two, _)] = &mut runs;
            let all = async { tokio::join!(one.run(), two.run(), peer) };
            let (one, two, peer) = in_time("two runs", all).await;
            peer.unwrap();
            one.unwrap();
            two.unwrap();
            for ((instance, [_, answer, digest]), text) in runs.iter().zip(["re: one", "re: two"]) {
                let expected = got(7, RecvOpcode::SendImm, Some(round));
                assert_eq!(instance.received(recv), Some(expected));
                assert_eq!(&answer.data().unwrap()[..], text.as_bytes());
                let sum = sha2::Sha256::digest(text);
                assert_eq!(digest.data().unwrap()[..], sum[..]);
                answer.reset_data_len().unwrap();
                digest.reset_data_len().unwrap();
            }
        }
        drop((runs, graph));
        bench.all_back().await;
    });
}

#[test]
fn a_node_that_fails_stops_receives_and_their_message_is_for_the_next_run() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let recv = g.rdma_recv(&pair.near);
        let write = g.rdma_write(&pair.near);
        let after = g.rdma_send(&pair.near);
        g.depends(after, (write, recv));
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let (src, answer) = (bench.filled(b"too long"), bench.empty());
        instance.set(recv, &answer).unwrap();
        instance.set(write, (&src, pair.at(0, 7))).unwrap();
        instance.set(after, ()).unwrap();

        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.node(), error.kind()),
            (write.id(), ErrorKind::InvalidValue)
        );
        assert_eq!(error.failed(), [write.id()]);
        let refused = instance.result(write).unwrap().unwrap_err();
        assert_eq!(refused.reason(), Reason::RemoteTooSmall);
        assert_eq!(instance.state(recv), NodeState::Stopped);
        assert_eq!(
            (instance.result(recv), instance.received(recv)),
            (None, None)
        );
        assert_eq!(instance.state(after), NodeState::NotStarted);
        assert_eq!(pair.near.state(), RdmaState::Connected);

        // The receive is still posted.
        let word = bench.filled(b"late");
        in_time("a send", pair.far.send(&word)).await.unwrap();
        instance.set(write, (&src, pair.at(0, 8))).unwrap();
        let peer = pair.far.recv(());
        let (ran, empty) = in_time("a run", async { tokio::join!(instance.run(), peer) }).await;
        ran.unwrap();
        assert_eq!(empty.unwrap(), got(0, RecvOpcode::Send, None));
        assert_eq!(instance.result(recv), Some(Ok(4)));
        assert_eq!(&answer.data().unwrap()[..], b"late");

        // This run fails and has received nothing: the message of the run before does not count.
        // The next receive gets the message that is sent now.
        instance.set(write, (&src, pair.at(0, 7))).unwrap();
        in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(instance.received(recv), None);
        in_time("a send", pair.far.send(&word)).await.unwrap();
        let plain = bench.empty();
        let received = in_time("a receive", pair.near.recv(&plain)).await.unwrap();
        assert_eq!(received, got(4, RecvOpcode::Send, None));
        assert_eq!(&plain.data().unwrap()[..], b"late");
    });
}

#[test]
fn a_node_that_fails_stops_the_receives_of_sub_graphs() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let recv = g.rdma_recv(&pair.near);
        let waits = g.build().unwrap();
        let mut g = Graph::builder();
        // The receive starts before the copy, which has no operands.
        let (sub, copy) = (g.subgraph(&waits), g.dma_copy(&bench.dma));
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let mut inner = waits.instance().unwrap();
        let answer = bench.empty();
        inner.set(recv, &answer).unwrap();
        instance.set(sub, inner).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(
            (error.node(), error.kind()),
            (copy.id(), ErrorKind::BadState)
        );
        assert_eq!(instance.state(sub), NodeState::Stopped);
        let inner = instance.take(sub).unwrap();
        assert_eq!(inner.state(recv), NodeState::Stopped);
    });
}

#[test]
fn a_job_that_fails_takes_the_context_to_error() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::permitting(bench, Access::RDMA_READ).await;
        let mut g = Graph::builder();
        let write = g.rdma_write(&pair.near);
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let src = bench.filled(b"forbidden");
        instance.set(write, (&src, pair.at(0, 16))).unwrap();
        let error = in_time("a run", instance.run()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        let failed = instance.result(write).unwrap().unwrap_err();
        assert_eq!(failed.reason(), Reason::RemoteAccess);
        assert!(matches!(pair.near.state(), RdmaState::Error(_)));
        in_time("a second run", instance.run()).await.unwrap_err();
        let flushed = instance.result(write).unwrap().unwrap_err();
        assert_eq!(flushed.reason(), Reason::Flushed);

        // Receives of a graph also end with their `Rdma`.
        let mut g = Graph::builder();
        let recv = g.rdma_recv(&pair.far);
        let mut waits = g.build().unwrap().instance().unwrap();
        waits.set(recv, ()).unwrap();
        let error = in_time("a run", waits.run()).await.unwrap_err();
        assert_eq!(error.node(), recv.id());
        assert_eq!(
            waits.result(recv).unwrap().unwrap_err().reason(),
            Reason::Flushed
        );
        assert_eq!(waits.received(recv), None);
    });
}

#[test]
fn a_run_that_is_dropped_leaves_its_message_to_the_next_one() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let recv = g.rdma_recv(&pair.near);
        let graph = g.build().unwrap();
        let mut instance = graph.instance().unwrap();
        let answer = bench.empty();
        instance.set(recv, &answer).unwrap();
        {
            let mut run = pin!(instance.run());
            poll_pending(run.as_mut());
        }
        assert!(!instance.is_draining());
        assert!(answer.data_mut().is_err(), "the receive is posted");

        for text in [b"first", b"other"] {
            let word = bench.filled(text);
            let all = async { tokio::join!(instance.run(), pair.far.send(&word)) };
            let (ran, sent) = in_time("a run", all).await;
            ran.unwrap();
            sent.unwrap();
            assert_eq!(&answer.data().unwrap()[..], text);
            answer.reset_data_len().unwrap();
        }
    });
}

#[test]
fn a_forgotten_run_gives_its_receive_up_at_the_next_one() {
    each_on_any(&configs(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let (send, recv) = (g.rdma_send_imm(&pair.near), g.rdma_recv(&pair.near));
        g.depends(recv, send);
        let mut instance = g.build().unwrap().instance().unwrap();
        let answer = bench.empty();
        instance.set(send, ((), 1)).unwrap();
        instance.set(recv, &answer).unwrap();
        let mut run = Box::pin(instance.run());
        let mut asked = pin!(pair.far.recv(()).fuse());
        until("the receive is posted", || {
            poll_pending(run.as_mut());
            // The peer's receive completes before the answer is sent.
            let _ = asked.is_terminated() || poll(asked.as_mut()).is_ready();
            answer.data_mut().is_err()
        })
        .await;
        std::mem::forget(run);

        // The next run does not reach the receive node: the message goes to the next plain receive.
        let held = bench.filled(b"held");
        instance.set(send, (&held, 1)).unwrap();
        let guard = held.data_mut().unwrap();
        in_time("a run", instance.run()).await.unwrap_err();
        drop(guard);
        assert_eq!(instance.state(recv), NodeState::NotStarted);
        let word = bench.filled(b"word");
        let plain = bench.empty();
        let all = async { tokio::join!(pair.near.recv(&plain), pair.far.send(&word)) };
        let (received, sent) = in_time("a receive", all).await;
        sent.unwrap();
        assert_eq!(received.unwrap().len, 4);
        assert_eq!(&plain.data().unwrap()[..], b"word");
    });
}

#[test]
fn shutdown_ends_a_run_that_receives() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let recv = g.rdma_recv(&pair.near);
        let mut instance = g.build().unwrap().instance().unwrap();
        instance.set(recv, ()).unwrap();
        let both = async { tokio::join!(instance.run(), bench.workq.shutdown()) };
        let (ran, _) = in_time("a run and a shutdown", both).await;
        assert_eq!(ran.unwrap_err().kind(), ErrorKind::Shutdown);
    });
}

#[test]
fn nodes_that_were_not_set_fail() {
    each_on_any(&configs()[..2], async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let (recv, add) = (g.rdma_recv(&pair.near), g.rdma_fetch_add(&pair.near));
        g.depends(add, recv);
        let mut instance = g.build().unwrap().instance().unwrap();
        let error = instance.run().await.unwrap_err();
        assert_eq!(
            (error.node(), error.kind()),
            (recv.id(), ErrorKind::BadState)
        );
        // An atomic without memory is refused like one outside of a graph.
        instance.set(recv, ()).unwrap();
        instance.set(add, ((), 1)).unwrap();
        let all = async { tokio::join!(instance.run(), pair.far.send(())) };
        let (ran, sent) = in_time("a run", all).await;
        sent.unwrap();
        let error = ran.unwrap_err();
        assert_eq!(error.node(), add.id());
        let reason = instance.result(add).unwrap().unwrap_err().reason();
        assert_eq!(reason, Reason::RemoteTooSmall);
    });
}

#[test]
fn nodes_that_move_nothing_need_no_memory() {
    each_on_any(&all(), async |bench| {
        let pair = Pair::new(bench).await;
        let mut g = Graph::builder();
        let (write, read) = (g.rdma_write(&pair.near), g.rdma_read(&pair.near));
        let (imm, recv) = (g.rdma_write_imm(&pair.near), g.rdma_recv(&pair.near));
        let mut instance = g.build().unwrap().instance().unwrap();
        instance.set(write, ((), ())).unwrap();
        instance.set(read, ((), ())).unwrap();
        instance.set(imm, ((), (), 5)).unwrap();
        instance.set(recv, ()).unwrap();
        let peer = async { tokio::join!(pair.far.recv(()), pair.far.write_imm((), (), 6)) };
        let both = async { tokio::join!(instance.run(), peer) };
        let (ran, (received, sent)) = in_time("a run and its peer", both).await;
        ran.unwrap();
        sent.unwrap();
        assert_eq!(received.unwrap(), got(0, RecvOpcode::WriteImm, Some(5)));
        assert_eq!(
            instance.received(recv),
            Some(got(0, RecvOpcode::WriteImm, Some(6)))
        );
        let nodes = [write.id(), read.id(), imm.id(), recv.id()];
        assert!(
            nodes
                .iter()
                .all(|&node| instance.result(node) == Some(Ok(0)))
        );
    });
}

#[test]
fn an_rdma_stays_on_its_workq() {
    let bench = Bench::new(configs()[0]);
    let near = Rdma::builder(&bench.device).attach(&bench.workq).unwrap();
    let other = WorkQ::builder().build().unwrap();
    let refused = |graph: &Graph, workq: &WorkQ, node: &str| {
        let error = graph.instance_on(workq).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        let expected = format!("node {node}: its context is on another WorkQ, and stays there");
        assert!(text.contains(&expected), "{text}");
    };
    let mut g = Graph::builder();
    let _ = g.rdma_send(&near);
    let sends = g.build().unwrap();
    let mut g = Graph::builder();
    let _ = g.rdma_recv(&near);
    let receives = g.build().unwrap();
    // The error is the same whether `other` has a context of the device already or not.
    for _ in 0..2 {
        refused(&sends, &other, "rdma_send#0");
        refused(&receives, &other, "rdma_recv#0");
        Dma::builder(&bench.device)
            .attach(&other)
            .map(std::mem::forget)
            .unwrap();
    }
    sends.instance_on(&bench.workq).unwrap();
    receives.instance().unwrap();

    // The error names the context that is on another WorkQ than the first one.
    let far = Rdma::builder(&bench.device).attach(&other).unwrap();
    let mut g = Graph::builder();
    let _ = (g.dma_copy(&bench.dma), g.rdma_recv(&far));
    let graph = g.build().unwrap();
    let text = graph.instance().unwrap_err().to_string();
    assert!(text.contains("rdma_recv#1"), "{text}");
    graph.instance_on(&other).unwrap();
}
