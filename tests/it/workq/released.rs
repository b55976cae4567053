//! Tests of `Buf::released`: futures that wait until no job and no guard uses a Buf.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::future::join_all;
use support::*;
use tokio_doca::mem::{BufChain, BufInventory};
use tokio_doca::{Buf, Dma, ErrorKind};

/// Returns the Bufs of a copy in flight whose future was dropped.
async fn dropped_copy(bench: &Bench) -> (Buf, Buf) {
    let (src, dst) = (bench.filled(b"hello"), bench.empty());
    let copy = bench.dma.copy(&src, &dst);
    let late = tokio::time::timeout(Duration::from_millis(2), copy).await;
    assert!(late.is_err());
    (src, dst)
}

#[test]
fn what_timed_out_can_be_waited_for() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = dropped_copy(bench).await;
        let text = refused(dst.reset_data_len(), ErrorKind::InUse);
        assert!(text.contains("await Buf::released"), "{text}");
        let (mut first, mut second) = (Box::pin(dst.released()), Box::pin(dst.released()));
        let mut of_source = Box::pin(src.released());
        poll_pending(first.as_mut());
        poll_pending(second.as_mut());
        poll_pending(of_source.as_mut());
        // A dropped `released` future does not affect another one.
        drop(first);
        drop(hold);
        in_time("the destination", second).await;
        assert_eq!(bytes(&dst), b"hello", "it went on without its future");
        dst.reset_data_len().unwrap();
        in_time("the source", of_source).await;
        src.reset_data_len().unwrap();
        // The Buf is free, so this completes at once.
        in_time("at once", dst.released()).await;
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn a_released_buf_is_one_like_any_other_afterwards() {
    each(async |bench| {
        for _ in 0..3 {
            let hold = bench.hold();
            let (src, dst) = dropped_copy(bench).await;
            let released = dst.released();
            drop((dst, hold));
            in_time("it keeps the Buf", released).await;
            drop(src);
            bench.all_back().await;
        }
    });
}

#[test]
fn one_that_is_forgotten_keeps_nobody_else_waiting() {
    each(async |bench| {
        let hold = bench.hold();
        let (src, dst) = dropped_copy(bench).await;
        let mut forgotten = Box::pin(dst.released());
        poll_pending(forgotten.as_mut());
        std::mem::forget(forgotten);
        let released = dst.released();
        drop(hold);
        in_time("the other one", released).await;
        for _ in 0..2 {
            dst.reset_data_len().unwrap();
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(5));
        }
    });
}

#[test]
fn guards_and_bytes_are_waited_for_and_slices_of_an_inventory_too() {
    each(async |bench| {
        let buf = bench.filled(b"hello");
        let guard = buf.data().unwrap();
        let mut released = Box::pin(buf.released());
        poll_pending(released.as_mut());
        drop(guard);
        in_time("the guard", released).await;

        let mmap = bench.mmap(ELEMENT);
        let inventory = BufInventory::with_capacity(1);
        let buf = inventory.buf_filled(&mmap, ..).unwrap();
        let data = buf.clone().into_bytes().unwrap();
        let mut released = Box::pin(buf.released());
        poll_pending(released.as_mut());
        drop(data);
        in_time("the Bytes", released).await;
        buf.reset_data_len().unwrap();
    });
}

/// A waker that uses the chain and the WorkQ on another thread, so that a lock that is held fails
/// the test instead of blocking it.
struct Uses {
    chain: BufChain,
    dma: Dma,
    bufs: [Buf; 2],
    used: mpsc::Sender<bool>,
}

impl Wake for Uses {
    fn wake(self: Arc<Self>) {
        let (said, heard) = mpsc::channel();
        let by = Arc::clone(&self);
        std::thread::spawn(move || {
            let [src, dst] = &by.bufs;
            let copied = by.dma.workq().block_on(by.dma.copy(src, dst)).unwrap();
            said.send((by.chain.len(), copied))
        });
        let used = heard.recv_timeout(LIMIT) == Ok((2, 5));
        self.used.send(used).unwrap();
    }
}

#[test]
fn a_waker_of_a_chains_piece_can_use_the_chain_and_the_workq() {
    each(async |bench| {
        let bufs = [(); 4].map(|()| bench.filled(b"hello"));
        let chains = [&bufs[..2], &bufs[2..]].map(|pieces| {
            let chain = BufChain::with_capacity(2);
            pieces.iter().for_each(|buf| chain.push(buf).unwrap());
            chain
        });
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(&chains[0], &chains[1]));
        poll_pending(copy.as_mut());
        let (used, uses) = mpsc::channel();
        let mut waits = Vec::new();
        for (at, buf) in bufs.iter().enumerate() {
            let waker = Waker::from(Arc::new(Uses {
                chain: chains[at / 2].clone(),
                dma: bench.dma.clone(),
                bufs: [bench.filled(b"hello"), bench.empty()],
                used: used.clone(),
            }));
            let mut wait = Box::pin(buf.released());
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            waits.push(wait);
        }
        drop(hold);
        assert_eq!(in_time("the copy", copy).await, Ok(10));
        let mut woken = 0;
        until("all are woken", || {
            let now: Vec<bool> = uses.try_iter().collect();
            assert!(
                now.iter().all(|&used| used),
                "the chain or the gate is locked"
            );
            woken += now.len();
            woken == bufs.len()
        })
        .await;
        in_time("all are released", join_all(waits)).await;
    });
}

#[test]
fn a_thread_in_block_on_waits_as_well() {
    for config in configs() {
        let bench = Bench::new(config);
        bench.workq.block_on(async {
            let hold = bench.hold();
            let (src, dst) = (bench.filled(b"hello"), bench.empty());
            let mut copy = Box::pin(bench.dma.copy(&src, &dst));
            poll_pending(copy.as_mut());
            drop(copy);
            drop(hold);
            dst.released().await;
            assert_eq!(bytes(&dst), b"hello");
        });
    }
}

#[test]
fn no_end_is_missed_while_threads_lease_and_wait() {
    run(async {
        let bench = Bench::new(configs()[0]);
        let (buf, over) = (bench.filled(b"hello"), Arc::new(AtomicBool::new(false)));
        let users: Vec<_> = (0..2)
            .map(|_| {
                let (buf, over) = (buf.clone(), Arc::clone(&over));
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        drop(buf.data());
                        drop(buf.data_mut());
                    }
                })
            })
            .collect();
        let waits = (0..4).map(|_| {
            let buf = buf.clone();
            tokio::spawn(async move {
                for _ in 0..2_000 {
                    buf.released().await;
                }
            })
        });
        let waited = in_time("all of them", join_all(waits)).await;
        over.store(true, Ordering::Relaxed);
        users.into_iter().for_each(|user| user.join().unwrap());
        waited.into_iter().for_each(|task| task.unwrap());
        in_time("it is free", buf.released()).await;
        buf.reset_data_len().unwrap();
    });
}
