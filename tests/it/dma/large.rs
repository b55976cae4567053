//! Large copies: by one engine or by two together, past the caches, and piece by piece without an
//! engine.

use std::time::{Duration, Instant};

use support::*;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, ErrorKind, Mmap, Mode,
    mem::{BufChain, BufInventory},
};

/// Length in bytes of the guards around a destination.
const GUARD: usize = 64;

fn soft(engines: usize) -> Soft {
    Soft::builder().inline_limit(0).engines(engines).build()
}

/// A source whose bytes identify their position, a zeroed destination, and the guards around it.
struct Large {
    src: Buf,
    dst: Buf,
    around: [Buf; 2],
}

fn large(bench: &Bench, inventory: &BufInventory, len: usize, odd: usize) -> Large {
    let (from, to): (Mmap, Mmap) = (bench.mmap(len + odd), bench.mmap(len + odd + 2 * GUARD));
    let src = inventory.buf(&from, odd..odd + len).unwrap();
    let chunk: Vec<u8> = (0..1 << 16).map(|i: u32| (i ^ (i >> 8)) as u8).collect();
    let mut at = 0;
    while at < len {
        // Each chunk starts with its offset.
        let mut part = chunk[..chunk.len().min(len - at)].to_vec();
        let number = (at as u64).to_le_bytes();
        let head = number.len().min(part.len());
        part[..head].copy_from_slice(&number[..head]);
        src.extend_from_slice(&part).unwrap();
        at += part.len();
    }
    let begin = GUARD + odd;
    let dst = inventory.buf(&to, begin..begin + len).unwrap();
    let around = [begin - GUARD..begin, begin + len..begin + len + GUARD]
        .map(|range| inventory.buf_filled(&to, range).unwrap());
    Large { src, dst, around }
}

impl Large {
    fn check(&self) {
        assert!(self.src.data().unwrap()[..] == self.dst.data().unwrap()[..]);
        for around in &self.around {
            assert_eq!(bytes(around), [0; GUARD]);
        }
        self.dst.reset_data_len().unwrap();
    }
}

#[test]
fn sizes_around_every_threshold_copy_alike_whoever_does_it() {
    let inventory = BufInventory::with_capacity(8);
    for mode in modes() {
        for engines in 0..=3 {
            let bench = Bench::with_soft(Config::new(false, mode), soft(engines));
            run(async {
                for (len, odd) in [
                    (1, 0),
                    ((64 << 10) - 1, 1),
                    (64 << 10, 0),
                    ((256 << 10) + 1, 3),
                    (1 << 20, 0),
                    ((1 << 20) + 4095, 17),
                    ((8 << 20) - 1, 0),
                    ((8 << 20) + 33, 5),
                ] {
                    let large = large(&bench, &inventory, len, odd);
                    for _ in 0..2 {
                        let copied =
                            in_time("a large copy", bench.dma.copy(&large.src, &large.dst));
                        assert_eq!(copied.await, Ok(len));
                        large.check();
                    }
                }
            });
        }
    }
}

#[test]
fn chains_are_copied_past_the_caches_and_in_turns_too() {
    let inventory = BufInventory::with_capacity(16);
    for engines in 0..=2 {
        let bench = Bench::with_soft(Config::new(false, Mode::EventDriven), soft(engines));
        let len = (8 << 20) + 100;
        let large = large(&bench, &inventory, len, 1);
        let chain = BufChain::with_capacity(3);
        for range in [0..1000, 1000..(3 << 20) + 7, (3 << 20) + 7..len] {
            chain.push(large.src.slice(range).unwrap()).unwrap();
        }
        run(async {
            let copied = in_time("a chain", bench.dma.copy(&chain, &large.dst)).await;
            assert_eq!(copied, Ok(len));
        });
        drop(chain);
        large.check();
    }
}

/// Counts the engine threads of this test's device, which are named after the device.
fn engine_threads(device: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let is_engine = |name: String| {
        name.trim_end() == format!("doca-{device}") || name.starts_with(&format!("doca-{device}-"))
    };
    tasks
        .flatten()
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(is_engine))
        .count()
}

#[test]
fn as_many_engines_are_started_as_were_asked_for_and_all_go() {
    for engines in 0..=3 {
        // No other test uses this device.
        let device = soft(engines).open("pf1vf0").unwrap();
        let workq = tokio_doca::WorkQ::builder().build().unwrap();
        assert_eq!(engine_threads("pf1vf0"), 0, "none before the first queue");
        let dma = tokio_doca::Dma::builder(&device).attach(&workq).unwrap();
        assert_eq!(engine_threads("pf1vf0"), engines);
        drop((dma, workq, device));
        block_until("they end", || engine_threads("pf1vf0") == 0);
    }
}

#[test]
fn without_an_engine_others_have_their_turn_in_the_middle_of_a_large_copy() {
    let inventory = BufInventory::with_capacity(4);
    for mode in modes() {
        let bench = Bench::with_soft(Config::new(false, mode), soft(0));
        let len = 16 << 20;
        let large = large(&bench, &inventory, len, 0);
        run(async {
            let turns = turns_of_another();
            assert_eq!(bench.dma.copy(&large.src, &large.dst).await, Ok(len));
            let turns = turns();
            assert!(turns >= 12, "{mode:?}: {turns} turns in 16 MiB");
        });
        large.check();
    }
}

#[test]
fn without_an_engine_a_copy_that_is_given_up_in_the_middle_gives_everything_back() {
    let inventory = BufInventory::with_capacity(4);
    for mode in modes() {
        let bench = Bench::with_soft(Config::new(false, mode), soft(0));
        let large = large(&bench, &inventory, 16 << 20, 0);
        run(async {
            let mut copy = Box::pin(bench.dma.copy(&large.src, &large.dst));
            poll_pending(copy.as_mut());
            drop(copy);
            // The copy completes although its future was dropped.
            bench.all_back().await;
            large.check();
            let mut copy = Box::pin(bench.dma.copy(&large.src, &large.dst));
            poll_pending(copy.as_mut());
        });
        // After this no thread is left to finish the copy, so its memory is released.
        drop(bench);
        assert!(large.src.data_mut().is_ok() && large.dst.data_mut().is_ok());
    }
}

#[test]
fn engines_count_how_long_they_worked() {
    let inventory = BufInventory::with_capacity(4);
    let bench = Bench::with_soft(Config::new(false, Mode::EventDriven), soft(1));
    let large = large(&bench, &inventory, 16 << 20, 0);
    assert_eq!(bench.device.engine_time(), Some(Duration::ZERO));
    let start = Instant::now();
    run(async {
        assert_eq!(bench.dma.copy(&large.src, &large.dst).await, Ok(16 << 20));
    });
    // The engine adds up its time when it pauses, a moment after the completion.
    block_until("it counts", || {
        bench.device.engine_time() > Some(Duration::ZERO)
    });
    let time = bench.device.engine_time();
    assert!(time <= Some(start.elapsed()));
    assert_eq!(Some(bench.workq.stats().engine_time), time);
}

#[test]
fn no_task_copies_more_than_a_piece_inside_its_submission() {
    let inventory = BufInventory::with_capacity(4);
    for engines in [0, 1] {
        let soft = Soft::builder()
            .inline_limit(usize::MAX)
            .engines(engines)
            .build();
        let bench = Bench::with_soft(Config::new(false, Mode::EventDriven), soft);
        for (len, inline) in [(256 << 10, 1), ((256 << 10) + 1, 0)] {
            let large = large(&bench, &inventory, len, 0);
            let before = bench.workq.stats();
            run(async {
                assert_eq!(bench.dma.copy(&large.src, &large.dst).await, Ok(len));
            });
            let after = bench.workq.stats();
            assert_eq!(after.completed - before.completed, 1);
            assert_eq!(
                after.polls == before.polls,
                inline == 1,
                "{len} bytes, {engines} engines"
            );
            large.check();
        }
    }
}

#[test]
fn without_an_engine_one_look_copies_256_kib_of_whatever_there_is() {
    let inventory = BufInventory::with_capacity(64);
    for (len, looks) in [(256 << 10, 16), (128 << 10, 8), (300 << 10, 19)] {
        let bench = Bench::with_soft(Config::new(false, Mode::EventDriven), soft(0));
        let copies: Vec<Large> = (0..16).map(|_| large(&bench, &inventory, len, 0)).collect();
        for large in &copies {
            bench.dma.copy(&large.src, &large.dst).post(0).unwrap();
        }
        let before = bench.workq.stats().polls;
        let mut handed = 0;
        while handed < copies.len() {
            handed += bench
                .workq
                .progress(|_, result| assert_eq!(result.unwrap().bytes(), Some(len)));
        }
        assert_eq!(bench.workq.stats().polls - before, looks, "of {len} bytes");
        copies.iter().for_each(Large::check);
    }
}

#[test]
fn more_engines_than_anybody_means_are_refused() {
    for engines in [257, usize::MAX] {
        let device = soft(engines).open("pf1").unwrap();
        let workq = tokio_doca::WorkQ::builder().build().unwrap();
        let attached = tokio_doca::Dma::builder(&device).attach(&workq);
        let text = rejected(attached.map(drop), ErrorKind::InvalidValue);
        assert!(text.contains(&engines.to_string()), "{text}");
        assert!(text.contains("256"), "{text}");
    }
}
