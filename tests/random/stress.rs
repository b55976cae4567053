//! Runs many tasks on several WorkQs and threads, cancelled at random. Every byte is accounted for,
//! nothing is in flight in the end, and the pool is complete. `TOKIO_DOCA_STRESS_SECONDS` sets the
//! duration, `TOKIO_DOCA_STRESS_SEED` repeats a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use support::LIMIT;
use tokio::time::timeout;
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{Buf, BufPool, Dma, ErrorKind, Mmap, Mode, WorkQ, error::JobError, mem::BufChain};

const TASKS: u64 = 64;
const WORKQS: usize = 4;
/// The number of elements of the pool: a task holds at most four, and copies that were given up
/// keep theirs for a while.
const ELEMENTS: usize = 320;
const SIZE: usize = 512;
/// The value of untouched bytes of a destination.
const BLANK: u8 = 0xEE;
/// The size of a word of a source. Each word has the number of the copy and the word's position.
const WORD: usize = size_of::<u64>();

/// A small generator of random numbers (splitmix64). Its seed is its whole state.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[derive(Default)]
struct Tally {
    done: AtomicU64,
    dropped: AtomicU64,
    timed_out: AtomicU64,
    aborted: AtomicU64,
    failed: AtomicU64,
    /// The number of the next copy, with which its source is filled.
    next: AtomicU64,
}

struct Stress {
    soft: Soft,
    pool: BufPool,
    dmas: Vec<Dma>,
    tally: Tally,
}

/// Returns the word at position `place` of the source of copy `number`. Its top byte is never
/// `BLANK`, and no word consists of `BLANK` only.
fn word(number: u64, place: usize) -> [u8; WORD] {
    (number << 8 | place as u64).to_le_bytes()
}

fn fill(buf: &Buf, number: u64, words: usize, first: usize) {
    for place in first..first + words {
        buf.extend_from_slice(&word(number, place)).unwrap();
    }
}

/// Prepares a destination: all bytes blank, and no data behind the headroom.
fn blank(buf: &Buf, headroom: usize) {
    buf.extend_from_slice(&[BLANK; SIZE]).unwrap();
    buf.set_data(headroom, 0).unwrap();
}

/// Checks that the data is that of the source, and that all other bytes are untouched.
fn check_copied(buf: &Buf, headroom: usize, number: u64, first: usize, words: usize) {
    assert_eq!((buf.headroom(), buf.data_len()), (headroom, words * WORD));
    buf.set_data(0, SIZE).unwrap();
    let bytes = buf.data().unwrap();
    let data = &bytes[headroom..][..words * WORD];
    for (place, found) in data.chunks(WORD).enumerate() {
        assert_eq!(
            found,
            word(number, first + place),
            "copy {number}, word {place}"
        );
    }
    let rest = bytes[..headroom]
        .iter()
        .chain(&bytes[headroom + words * WORD..]);
    assert!(
        rest.into_iter().all(|&byte| byte == BLANK),
        "copy {number} wrote elsewhere"
    );
}

/// Checks a copy that may or may not have run: either it ran completely and the Buf has its data,
/// or not at all.
fn check_either(buf: &Buf, headroom: usize, number: u64, words: usize) {
    let words = if buf.data_len() == 0 { 0 } else { words };
    check_copied(buf, headroom, number, 0, words);
}

/// Waits until the Buf has no writing lease: a copy that was given up has completed.
async fn settle(buf: &Buf) {
    let start = Instant::now();
    while let Err(error) = buf.data().map(drop) {
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(
            start.elapsed() < LIMIT,
            "a copy that was given up never ends"
        );
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
}

impl Stress {
    async fn task(self: Arc<Stress>, seed: u64, until: Instant) {
        let mut random = Random(seed);
        while Instant::now() < until {
            let dma = self.dmas[random.below(WORKQS as u64) as usize].clone();
            match random.below(16) {
                0..=2 => self.chain(&dma, &mut random).await,
                3 => self.leave_behind(&dma, &mut random).await,
                how => self.copy(&dma, how, &mut random).await,
            }
        }
    }

    fn number(&self) -> u64 {
        self.tally.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Copies between two Bufs, and awaits the copy or gives it up, depending on `how`.
    async fn copy(&self, dma: &Dma, how: u64, random: &mut Random) {
        let (src, dst) = (self.pool.alloc().await, self.pool.alloc().await);
        let number = self.number();
        let words = 1 + random.below(48) as usize;
        let headroom = random.below(64) as usize;
        fill(&src, number, words, 0);
        blank(&dst, headroom);
        let copied = match how {
            4 | 5 => self.drop_soon(dma, &src, &dst, random).await,
            6 | 7 => {
                let time = Duration::from_micros(random.below(60));
                let copied = timeout(time, dma.copy(&src, &dst)).await.ok();
                self.tally
                    .timed_out
                    .fetch_add(u64::from(copied.is_none()), Ordering::Relaxed);
                copied
            }
            8 | 9 => self.abort_soon(dma, &src, &dst, random).await,
            10 => {
                self.soft
                    .faults()
                    .push(Fault::Delay(Duration::from_micros(random.below(300))));
                Some(dma.copy(&src, &dst).await)
            }
            11 => {
                self.soft
                    .faults()
                    .push(Fault::Error(ErrorKind::IoFailed, number));
                Some(dma.copy(&src, &dst).await)
            }
            12 => {
                self.soft.faults().push(Fault::QueueFull);
                Some(dma.copy(&src, &dst).await)
            }
            _ => Some(dma.copy(&src, &dst).await),
        };
        match copied {
            Some(Ok(len)) => {
                assert_eq!(len, words * WORD);
                self.tally.done.fetch_add(1, Ordering::Relaxed);
                check_copied(&dst, headroom, number, 0, words);
            }
            Some(Err(error)) => {
                // Any copy may take a fault that another one pushed to the script.
                assert_eq!(error.kind(), ErrorKind::IoFailed, "{error}");
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                check_copied(&dst, headroom, number, 0, 0);
            }
            None => {
                settle(&dst).await;
                check_either(&dst, headroom, number, words);
            }
        }
    }

    /// Polls a copy a few times, and drops it.
    async fn drop_soon(
        &self,
        dma: &Dma,
        src: &Buf,
        dst: &Buf,
        random: &mut Random,
    ) -> Option<Result<usize, JobError>> {
        let mut polls = random.below(3);
        let mut copy = std::pin::pin!(dma.copy(src, dst));
        let copied = std::future::poll_fn(|cx| match copy.as_mut().poll(cx) {
            std::task::Poll::Ready(copied) => std::task::Poll::Ready(Some(copied)),
            std::task::Poll::Pending if polls == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => {
                polls -= 1;
                std::task::Poll::Pending
            }
        })
        .await;
        self.tally
            .dropped
            .fetch_add(u64::from(copied.is_none()), Ordering::Relaxed);
        copied
    }

    /// Spawns a copy, and aborts it.
    async fn abort_soon(
        &self,
        dma: &Dma,
        src: &Buf,
        dst: &Buf,
        random: &mut Random,
    ) -> Option<Result<usize, JobError>> {
        let task = tokio::spawn(dma.copy(src.clone(), dst.clone()).owned());
        for _ in 0..random.below(3) {
            tokio::task::yield_now().await;
        }
        task.abort();
        match task.await {
            Ok(copied) => Some(copied),
            Err(error) => {
                assert!(error.is_cancelled(), "{error}");
                self.tally.aborted.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Copies from two Bufs to two Bufs.
    async fn chain(&self, dma: &Dma, random: &mut Random) {
        let mut bufs = Vec::new();
        for _ in 0..4 {
            // Take one at a time, and hold none while waiting: otherwise all tasks could wait for
            // each other.
            match self.pool.try_alloc() {
                Ok(buf) => bufs.push(buf),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Again);
                    return;
                }
            }
        }
        let number = self.number();
        let words = [1 + random.below(24) as usize, 1 + random.below(24) as usize];
        fill(&bufs[0], number, words[0], 0);
        fill(&bufs[1], number, words[1], words[0]);
        // Leave the first destination space for a random part of the data.
        let all = words[0] + words[1];
        let first = 1 + random.below(all as u64) as usize;
        let headroom = SIZE - first * WORD;
        blank(&bufs[2], headroom);
        blank(&bufs[3], 0);
        let chains = [BufChain::with_capacity(2), BufChain::with_capacity(2)];
        for (at, buf) in bufs.iter().enumerate() {
            chains[at / 2].push(buf).unwrap();
        }
        match dma.copy(&chains[0], &chains[1]).await {
            Ok(len) => {
                assert_eq!(len, all * WORD);
                self.tally.done.fetch_add(1, Ordering::Relaxed);
                check_copied(&bufs[2], headroom, number, 0, first);
                check_copied(&bufs[3], 0, number, first, all - first);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::IoFailed, "{error}");
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                check_copied(&bufs[2], headroom, number, 0, 0);
                check_copied(&bufs[3], 0, number, 0, 0);
            }
        }
    }

    /// Gives a copy up and drops both Bufs: only the copy's slot holds them now.
    async fn leave_behind(&self, dma: &Dma, random: &mut Random) {
        let (src, dst) = (self.pool.alloc().await, self.pool.alloc().await);
        fill(&src, self.number(), 8, 0);
        if random.below(2) == 0 {
            self.drop_soon(dma, &src, &dst, random).await;
        } else {
            self.abort_soon(dma, &src, &dst, random).await;
        }
    }

    /// Checks that nothing is in flight, and that the pool has all its elements back.
    async fn end(&self) {
        for dma in &self.dmas {
            let shutdown = timeout(LIMIT, dma.workq().shutdown()).await;
            shutdown.expect("the shutdown hangs").unwrap();
            // The reaper may be about to release the last slot.
            let start = Instant::now();
            while dma.workq().in_flight() > 0 {
                assert!(start.elapsed() < LIMIT, "a Slot is lost");
                tokio::task::yield_now().await;
            }
        }
        let all: Vec<Buf> = std::iter::from_fn(|| self.pool.try_alloc().ok()).collect();
        assert_eq!(all.len(), ELEMENTS, "the pool is complete");
    }
}

fn seconds() -> Duration {
    let seconds = std::env::var("TOKIO_DOCA_STRESS_SECONDS").ok();
    Duration::from_secs_f64(seconds.map_or(1.0, |text| text.parse().expect("a number of seconds")))
}

fn seed() -> u64 {
    match std::env::var("TOKIO_DOCA_STRESS_SEED") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.unwrap().as_nanos() as u64
        }
    }
}

fn stress(defer: bool, engines: usize) {
    let (seed, time) = (seed(), seconds() / 2);
    println!("TOKIO_DOCA_STRESS_SEED={seed} defer: {defer}, engines: {engines}, {time:?}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    // With this limit, some copies are done inline and some by the engine.
    let soft = Soft::builder().defer(defer).inline_limit(128);
    let soft = soft.engines(engines).build();
    let device = soft.open("pf0").unwrap();
    let mmap = Mmap::builder()
        .device(&device)
        .alloc(ELEMENTS * SIZE)
        .unwrap();
    let pool = BufPool::builder(&mmap).element_size(SIZE).build().unwrap();
    let attach = |at: usize| {
        // One queue is too shallow for all tasks, and one is in busy-poll mode.
        let mode = if at == 3 {
            Mode::BusyPoll
        } else {
            Mode::EventDriven
        };
        let depth = [2, 8, 64, 8][at];
        let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
        Dma::builder(&device).attach(&workq).unwrap()
    };
    let stress = Arc::new(Stress {
        dmas: (0..WORKQS).map(attach).collect(),
        tally: Tally::default(),
        soft,
        pool,
    });
    runtime.block_on(async {
        let until = Instant::now() + time;
        let task = |at| tokio::spawn(Arc::clone(&stress).task(seed.wrapping_add(at), until));
        let tasks: Vec<_> = (0..TASKS).map(task).collect();
        for task in tasks {
            timeout(time + LIMIT, task)
                .await
                .expect("a task hangs")
                .unwrap();
        }
        stress.end().await;
    });
    let tally = &stress.tally;
    let [done, dropped, timed_out, aborted, failed] = [
        &tally.done,
        &tally.dropped,
        &tally.timed_out,
        &tally.aborted,
        &tally.failed,
    ]
    .map(|count| count.load(Ordering::Relaxed));
    println!(
        "copies: {done} done, {failed} failed; given up: {dropped} dropped, {timed_out} timed out, {aborted} aborted"
    );
    assert!(done > 0, "nothing was done");
    assert!(dropped + timed_out + aborted > 0, "nothing was given up");
}

#[test]
fn every_byte_is_accounted_for_under_random_cancellation() {
    stress(false, 1);
}

#[test]
fn every_byte_is_accounted_for_under_random_cancellation_in_defer_mode() {
    stress(true, 1);
}

#[test]
fn every_byte_is_accounted_for_under_random_cancellation_on_two_engines() {
    stress(true, 2);
}

#[test]
fn every_byte_is_accounted_for_under_random_cancellation_without_an_engine() {
    stress(true, 0);
}
