//! Gather and scatter: a list is copied like one piece, is unchanged when it is refused, and is
//! kept while a job uses it.

use support::*;
use tokio_doca::soft::Fault;
use tokio_doca::{Buf, ErrorKind, mem::BufChain};

fn chain(bufs: &[&Buf]) -> BufChain {
    let chain = BufChain::with_capacity(bufs.len());
    for &buf in bufs {
        chain.push(buf).unwrap();
    }
    chain
}

#[test]
fn a_chain_takes_no_memory_for_pieces_that_may_never_come() {
    let bench = Bench::new(Config::new(false, tokio_doca::Mode::BusyPoll));
    for capacity in [1 << 40, usize::MAX] {
        let chain = BufChain::with_capacity(capacity);
        chain.push(bench.filled(b"piece")).unwrap();
    }
}

#[test]
fn lists_of_every_cut_copy_like_one_piece() {
    each_on_any(&configs(), async |bench| {
        let cuts: [&[usize]; 5] = [&[60], &[1, 59], &[20, 20, 20], &[7, 0, 53], &[59, 1]];
        for from in cuts {
            for to in cuts {
                let text = pattern(from.len() as u8, 60);
                let mut at = 0;
                let sources: Vec<Buf> = from
                    .iter()
                    .map(|&len| {
                        let buf = bench.filled(&text[at..at + len]);
                        at += len;
                        buf
                    })
                    .collect();
                let sinks: Vec<Buf> = to
                    .iter()
                    .map(|&len| {
                        let buf = bench.empty();
                        // Each Buf has headroom, some data, and `len` bytes of tailroom.
                        buf.set_data(ELEMENT - len - 10, 0).unwrap();
                        buf.extend_from_slice(&[5; 10]).unwrap();
                        buf
                    })
                    .collect();
                let from = chain(&sources.iter().collect::<Vec<_>>());
                let to_chain = chain(&sinks.iter().collect::<Vec<_>>());
                assert_eq!((from.data_len(), to_chain.tailroom()), (60, 60));
                assert_eq!(bench.dma.copy(&from, &to_chain).await, Ok(60));
                let mut at = 0;
                for (sink, &len) in sinks.iter().zip(to) {
                    assert_eq!(rooms(sink), (ELEMENT - len - 10, 10 + len, 0));
                    assert_eq!(bytes(sink)[..10], [5; 10]);
                    assert_eq!(bytes(sink)[10..], text[at..at + len]);
                    at += len;
                }
                drop((sources, sinks, from, to_chain));
            }
        }
        bench.all_back().await;
    });
}

#[test]
fn a_short_copy_fills_the_first_pieces_only() {
    each_on_any(&configs(), async |bench| {
        let (a, b, c) = (bench.empty(), bench.empty(), bench.empty());
        a.set_data(ELEMENT - 5, 0).unwrap();
        let src = bench.filled(b"0123456789");
        let to = chain(&[&a, &b, &c]);
        assert_eq!(bench.dma.copy(&src, &to).await, Ok(10));
        assert_eq!(
            (bytes(&a), bytes(&b)),
            (b"01234".to_vec(), b"56789".to_vec())
        );
        assert_eq!(c.data_len(), 0);
        assert_eq!(bench.dma.copy(&src, &to).await, Ok(10));
        assert_eq!((bytes(&b), c.data_len()), (b"567890123456789".to_vec(), 0));
    });
}

#[test]
fn slices_stand_in_source_chains() {
    each_on_any(&configs(), async |bench| {
        let (src, dst) = (bench.filled(b"hello world"), bench.empty());
        let parts = BufChain::with_capacity(3);
        parts.push(src.slice(6..).unwrap()).unwrap();
        parts.push(bench.filled(b" ")).unwrap();
        parts.push(src.slice(..5).unwrap()).unwrap();
        assert_eq!((parts.len(), parts.data_len()), (3, 11));
        assert_eq!(bench.dma.copy(&parts, &dst).await, Ok(11));
        assert_eq!(bytes(&dst), b"world hello");
        src.set_data(0, 8).unwrap();
        let text = refused(bench.dma.copy(&parts, &dst).await, ErrorKind::InvalidValue);
        mentions(&text, &[11, 8]);
        src.set_data(0, 11).unwrap();
        assert_eq!(bench.dma.copy(&parts, &dst).await, Ok(11));
    });
}

#[test]
fn a_chain_answers_in_use_to_changes_until_the_job_is_over() {
    each(async |bench| {
        let hold = bench.hold();
        let (a, b) = (bench.filled(b"abc"), bench.empty());
        let (from, to) = (chain(&[&a]), chain(&[&b]));
        let mut copy = Box::pin(bench.dma.copy(&from, &to));
        poll_pending(copy.as_mut());
        for list in [&from, &to] {
            refused(list.push(bench.empty()), ErrorKind::InUse);
            refused(list.pop(), ErrorKind::InUse);
            assert_eq!(list.len(), 1);
        }
        refused(b.data(), ErrorKind::InUse);
        refused(a.data_mut(), ErrorKind::InUse);
        assert_eq!(&a.data().unwrap()[..], b"abc");
        let (src, dst) = (bench.filled(b"x"), bench.empty());
        refused(bench.dma.copy(&src, &to).await, ErrorKind::InUse);
        refused(bench.dma.copy(&to, &dst).await, ErrorKind::InUse);
        refused(bench.dma.copy(&src, &from).await, ErrorKind::InUse);
        drop(hold);
        assert_eq!(copy.await, Ok(3));
        assert_eq!(bytes(&b), b"abc");
        assert!(from.pop().unwrap().is_some());
        assert!(to.pop().unwrap().is_some());
        assert!(to.pop().unwrap().is_none());
        assert!(to.is_empty());
    });
}

#[test]
fn one_chain_is_read_by_many_jobs_at_once() {
    each(async |bench| {
        let hold = bench.hold();
        let (a, b) = (bench.filled(b"abc"), bench.filled(b"def"));
        let from = chain(&[&a, &b]);
        let sinks: Vec<Buf> = (0..8).map(|_| bench.empty()).collect();
        let mut copies: Vec<_> = sinks
            .iter()
            .map(|dst| Box::pin(bench.dma.copy(from.clone(), dst)))
            .collect();
        for copy in &mut copies {
            poll_pending(copy.as_mut());
        }
        // The chain stays leased until its last job has completed, in whichever order the jobs
        // complete.
        drop(copies.swap_remove(0));
        refused(from.pop(), ErrorKind::InUse);
        drop(hold);
        for copy in copies {
            assert_eq!(copy.await, Ok(6));
        }
        until("the orphan gave the chain back", || from.pop().is_ok()).await;
        until("the orphan was done", || {
            sinks.iter().all(|dst| dst.data_len() == 6)
        })
        .await;
    });
}

#[test]
fn a_failed_job_on_chains_leaves_every_room() {
    each(async |bench| {
        let (a, b, c) = (bench.filled(b"abcdef"), bench.empty(), bench.empty());
        b.set_data(ELEMENT - 3, 0).unwrap();
        let to = chain(&[&b, &c]);
        let fault = Fault::Error(ErrorKind::IoFailed, 1);
        bench.soft.faults().push(fault);
        refused(bench.dma.copy(&a, &to).await, ErrorKind::IoFailed);
        assert_eq!((rooms(&b), c.data_len()), ((ELEMENT - 3, 0, 3), 0));
        assert_eq!(bench.dma.copy(&a, &to).await, Ok(6));
        assert_eq!((bytes(&b), bytes(&c)), (b"abc".to_vec(), b"def".to_vec()));
    });
}

#[test]
fn a_refused_chain_gives_back_the_leases_it_had_taken() {
    each_on_any(&configs(), async |bench| {
        let (a, b, c) = (bench.empty(), bench.filled(b"b"), bench.empty());
        let guard = b.data().unwrap();
        let to = chain(&[&a, &c, &b]);
        refused(
            bench.dma.copy(&bench.filled(b"x"), &to).await,
            ErrorKind::InUse,
        );
        a.extend_from_slice(b"free").unwrap();
        c.extend_from_slice(b"free").unwrap();
        to.pop().unwrap();
        drop(guard);
        bench.works().await;
    });
}

#[test]
fn a_dropped_copy_of_chains_keeps_bufs_and_chains_until_it_is_over() {
    each(async |bench| {
        let hold = bench.hold();
        let free = {
            let (from, to) = (chain(&[&bench.filled(b"ab")]), chain(&[&bench.empty()]));
            let mut copy = Box::pin(bench.dma.copy(from, to).owned());
            poll_pending(copy.as_mut());
            drop(copy);
            bench.free_bufs()
        };
        assert_eq!(free, bench.pool.elements() - 2);
        drop(hold);
        bench.all_back().await;
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
            (
                ErrorKind::InvalidValue,
                tokio_doca::error::Reason::SliceAsDestination
            )
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
