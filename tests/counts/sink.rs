//! Tests the cost of messages that are fed to a sink: allocations and system calls.

use std::sync::atomic::Ordering;

use futures::{SinkExt, StreamExt};
use support::runtime_that_counts_sleeps;
use tokio_doca::{BufPool, Mmap, Mode, Rdma, WorkQ};

use super::needs_strace::{mark, wait_for_others};
use super::{LEN, Rig, for_each_way, on_runtime};

/// The number of messages in a burst.
const BURST: usize = 32;
/// The number of counted bursts.
pub(super) const BURSTS: usize = 40;

/// Makes two connected contexts, the first one on a WorkQ of its own, and a pool for the second
/// one.
fn pair(rig: &Rig, mode: Mode) -> ([Rdma; 2], BufPool) {
    let workq = WorkQ::builder().depth(16).mode(mode).build().unwrap();
    let attach = |workq| Rdma::builder(&rig.device).attach(workq).unwrap();
    let (here, there) = (attach(&workq), attach(&rig.workq));
    here.connect(&there.export().unwrap()).wait().unwrap();
    there.connect(&here.export().unwrap()).wait().unwrap();
    let mmap = Mmap::builder().device(&rig.device);
    let mmap = mmap.alloc(2 * BURST * LEN).unwrap();
    let pool = BufPool::builder(&mmap).element_size(LEN).build().unwrap();
    ([here, there], pool)
}

#[test]
fn a_sink_allocates_nothing_after_its_first_bursts() {
    for_each_way(|mode, rig, times| {
        let ([here, there], pool) = pair(&rig, mode);
        let mut stream = there.recv_stream(&pool, BURST / 4);
        let mut sink = here.send_sink(BURST);
        let (src, _) = rig.pair();
        let bursts = async || {
            let sends = async {
                for _ in 0..BURST {
                    sink.feed(src.clone()).await.unwrap();
                }
                sink.flush().await.unwrap();
            };
            let receives = async {
                for _ in 0..BURST {
                    stream.next().await.unwrap().unwrap();
                }
            };
            tokio::join!(sends, receives);
        };
        let allocated = on_runtime(rig.allocated_by(times, bursts));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

/// Runs in the child: sends bursts to a peer that sleeps until each burst arrives.
pub(super) fn bursts(rig: &Rig) {
    let ([here, there], pool) = pair(rig, Mode::EventDriven);
    let (src, _) = rig.pair();
    let (runtime, sleeps) = runtime_that_counts_sleeps();
    let sleeps = runtime.block_on(async {
        let mut stream = there.recv_stream(&pool, BURST);
        let mut sink = here.send_sink(BURST);
        let mut bursts = async |count: usize| {
            for _ in 0..count {
                let receives = async {
                    for _ in 0..BURST {
                        stream.next().await.unwrap().unwrap();
                    }
                };
                let sends = async {
                    for _ in 0..BURST {
                        sink.feed(src.clone()).await.unwrap();
                    }
                    sink.flush().await.unwrap();
                };
                tokio::join!(receives, sends);
            }
        };
        bursts(2).await;
        wait_for_others();
        let before = sleeps.load(Ordering::Relaxed);
        mark();
        bursts(BURSTS).await;
        mark();
        sleeps.load(Ordering::Relaxed) - before
    });
    println!("sleeps={sleeps};");
}
