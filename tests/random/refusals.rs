//! Checks random programs on a WorkQ whose device refuses jobs: every awaited operation is served,
//! whatever happens to the others.
//!
//! A program mixes copies that are awaited, tried and posted, runs of graphs, changes of mode,
//! runtimes that end, and futures that are polled once and then left, dropped or forgotten.
//! Meanwhile the device is sometimes full, loses jobs, fails them, or holds them up. In the end
//! each awaited future must have completed, unless futures that are no longer polled keep all
//! slots.
//!
//! `PROPTEST_CASES` sets the number of programs for each device, and `TOKIO_DOCA_REFUSALS_SEED`
//! repeats a run.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use support::random::{Random, setting};
use support::{LIMIT, poll};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_doca::soft::{Fault, Hold, Soft};
use tokio_doca::{Buf, BufPool, Dma, ErrorKind, Mmap, Mode, WorkQ, error::JobError, graph::Graph};

const ELEMENTS: usize = 512;
const SIZE: usize = 64;
const STEPS: u64 = 24;

type Copying = Pin<Box<dyn Future<Output = Result<usize, JobError>> + Send>>;

struct World {
    random: Random,
    soft: Soft,
    pool: BufPool,
    workq: WorkQ,
    dma: Dma,
    hold: Option<Hold>,
    /// The awaited tasks, which must end.
    live: Vec<JoinHandle<()>>,
    /// Futures that were polled once, and are not polled again before the end.
    stale: Vec<Copying>,
    /// The number of slots that may stay taken forever: by lost jobs, and by forgotten futures.
    gone: u64,
    lost: bool,
    posted: usize,
    closed: bool,
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

impl World {
    fn new(seed: u64, defer: bool) -> World {
        let mut random = Random(seed);
        let soft = Soft::builder().defer(defer).build();
        let device = soft.open("pf0").unwrap();
        let mmap = Mmap::builder()
            .device(&device)
            .alloc(ELEMENTS * SIZE)
            .unwrap();
        let pool = BufPool::builder(&mmap).element_size(SIZE).build().unwrap();
        let depth = 2 + random.below(3) as u32;
        let mode = mode(&mut random);
        let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        World {
            random,
            soft,
            pool,
            workq,
            dma,
            hold: None,
            live: Vec::new(),
            stale: Vec::new(),
            gone: 0,
            lost: false,
            posted: 0,
            closed: false,
        }
    }

    fn bufs(&self) -> (Buf, Buf) {
        let (src, dst) = (
            self.pool.try_alloc().unwrap(),
            self.pool.try_alloc().unwrap(),
        );
        src.extend_from_slice(b"abc").unwrap();
        (src, dst)
    }

    fn copying(&self) -> Copying {
        let (src, dst) = self.bufs();
        Box::pin(self.dma.copy(src, dst).owned())
    }

    /// Returns true if one more slot may stay taken forever. At least one must remain for the
    /// awaited futures.
    fn may_go(&self) -> bool {
        self.gone + 1 < u64::from(self.workq.depth())
    }

    /// Polls a future once, and leaves it alone afterwards.
    fn leave(&mut self, mut copy: Copying) {
        if poll(copy.as_mut()).is_pending() {
            self.stale.push(copy);
        }
    }

    fn lose(&mut self) {
        let faults = self.soft.faults().clone();
        // The fault must hit the job that is submitted below.
        if !self.may_go() || faults.left() > 0 {
            return;
        }
        faults.push(Fault::Lost);
        let copy = self.copying();
        self.leave(copy);
        if faults.left() > 0 {
            faults.clear();
        } else {
            self.gone += 1;
            self.lost = true;
        }
        let full = 1 + self.random.below(4);
        (0..full).for_each(|_| faults.push(Fault::QueueFull));
    }

    fn run_graph(&mut self) {
        let mut graph = Graph::builder();
        let nodes = [graph.dma_copy(&self.dma), graph.dma_copy(&self.dma)];
        if self.random.below(2) == 0 {
            graph.depends(nodes[1], nodes[0]);
        }
        let mut instance = graph.build().unwrap().instance().unwrap();
        for node in nodes {
            instance.set(node, self.bufs()).unwrap();
        }
        let once = self.random.below(3) == 0;
        let run = async move {
            if once {
                // The run is dropped while it is in progress.
                let _ = poll(std::pin::pin!(instance.run()));
            } else {
                let _ = instance.run().await;
            }
        };
        self.live.push(tokio::spawn(run));
    }

    /// Polls copies on a runtime that ends before they complete.
    fn runtime_that_ends(&mut self) {
        let (copies, rounds) = (1 + self.random.below(3), self.random.below(3));
        let copies: Vec<_> = (0..copies).map(|_| self.copying()).collect();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                runtime().block_on(async move {
                    for copy in copies {
                        tokio::spawn(copy);
                    }
                    for _ in 0..=rounds {
                        tokio::task::yield_now().await;
                    }
                });
            });
        });
    }

    async fn step(&mut self) {
        match self.random.below(20) {
            0..=4 => {
                let copy = self.copying();
                self.live.push(tokio::spawn(async move {
                    let _ = copy.await;
                }));
            }
            5 | 6 => {
                let copy = self.copying();
                self.leave(copy);
            }
            7 if !self.stale.is_empty() => {
                let at = self.random.below(self.stale.len() as u64) as usize;
                drop(self.stale.swap_remove(at));
            }
            8 if self.may_go() => {
                self.gone += 1;
                if let Some(copy) = self.stale.pop() {
                    std::mem::forget(copy);
                }
            }
            9 | 10 => {
                let (src, dst) = self.bufs();
                let _ = self.dma.copy(src, dst).start().map(drop);
            }
            11 => {
                let (src, dst) = self.bufs();
                self.posted += usize::from(self.dma.copy(src, dst).post(7).is_ok());
            }
            12 => self.run_graph(),
            13 | 14 => {
                let full = 1 + self.random.below(3);
                (0..full).for_each(|_| self.soft.faults().push(Fault::QueueFull));
            }
            15 => match self.random.below(3) {
                0 => self
                    .soft
                    .faults()
                    .push(Fault::Error(ErrorKind::IoFailed, 7)),
                1 => self
                    .soft
                    .faults()
                    .push(Fault::Delay(Duration::from_micros(300))),
                _ => self.lose(),
            },
            16 => {
                let mode = mode(&mut self.random);
                self.workq.set_mode(mode).unwrap();
            }
            17 => self.runtime_that_ends(),
            18 => match self.hold.take() {
                Some(hold) => drop(hold),
                None => self.hold = Some(self.soft.faults().hold()),
            },
            _ => self.progress(),
        }
        for _ in 0..self.random.below(4) {
            tokio::task::yield_now().await;
        }
    }

    fn progress(&mut self) {
        self.posted -= self.workq.progress(|_, _| {});
    }

    /// Checks that everything that is awaited ends, although the futures that were left are not
    /// polled.
    async fn end(&mut self) {
        drop(self.hold.take());
        let mut shutdown = None;
        if !self.lost && self.random.below(4) == 0 {
            let workq = self.workq.clone();
            shutdown = Some(tokio::spawn(async move { workq.shutdown().await }));
            self.closed = true;
        }
        let deadline = Instant::now() + LIMIT;
        while !self.live.is_empty() || self.posted > 0 {
            self.live.retain(|live| !live.is_finished());
            tokio::time::sleep(Duration::from_micros(50)).await;
            if self.posted > 0 {
                self.progress();
            }
            // The futures in `stale`, which are not polled again, may have all slots.
            let taken = self.workq.in_flight() == self.workq.depth() as usize;
            if taken && self.random.below(8) == 0 {
                drop(self.stale.pop());
            }
            assert!(
                Instant::now() < deadline,
                "{} awaited and {} posted sleep: {:?}, {:?}, {} left",
                self.live.len(),
                self.posted,
                self.workq,
                self.workq.stats(),
                self.stale.len(),
            );
        }
        if let Some(shutdown) = shutdown {
            let shut = tokio::time::timeout(LIMIT, shutdown).await;
            shut.expect("the shutdown sleeps").unwrap().unwrap();
            return;
        }
        // A new copy is served as well.
        self.soft.faults().clear();
        while self.workq.in_flight() == self.workq.depth() as usize && self.stale.pop().is_some() {
            tokio::task::yield_now().await;
        }
        let copy = tokio::time::timeout(LIMIT, self.copying()).await;
        assert_eq!(copy.expect("a newcomer sleeps"), Ok(3));
    }
}

fn mode(random: &mut Random) -> Mode {
    match random.below(3) {
        0 => Mode::EventDriven,
        1 => Mode::BusyPoll,
        _ => Mode::Hybrid {
            spin: Duration::from_micros(random.below(50)),
        },
    }
}

fn play(seed: u64, defer: bool) {
    runtime().block_on(async {
        let mut world = World::new(seed, defer);
        for _ in 0..STEPS {
            world.step().await;
        }
        world.end().await;
    });
}

fn programs(defer: bool) {
    let now = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
    };
    let first = setting("TOKIO_DOCA_REFUSALS_SEED").unwrap_or_else(|| now().as_nanos() as u64);
    for at in 0..setting("PROPTEST_CASES").unwrap_or(200) {
        let seed = first.wrapping_add(at);
        let played = std::panic::catch_unwind(|| play(seed, defer));
        if let Err(panic) = played {
            println!("TOKIO_DOCA_REFUSALS_SEED={seed} PROPTEST_CASES=1 repeats it");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn whoever_awaits_is_served_whatever_becomes_of_the_others() {
    programs(false);
}

#[test]
fn whoever_awaits_is_served_where_nothing_is_done_inline() {
    programs(true);
}
