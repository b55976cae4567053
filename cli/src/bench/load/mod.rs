//! The measuring loops. They do not depend on the command line or the output: the benches of the
//! library (`benches/bars/bench.rs`) measure with the same code.
//!
//! A [`Load`] is one kind of operation on threads of its own. Each thread has a runtime and a
//! WorkQ, and a [`Lane`] for each operation in flight. A lane does one operation after the other.
//! Between two rounds the threads sleep. The other side of messages and streams is on a thread
//! beside each measuring thread; other kinds have both sides in that thread. With `--peer` the
//! other side is where `bench serve` runs.

mod channel;
mod crc;
mod dma;
mod failed;
pub(crate) mod far;
mod graph;
mod memcpy;
pub(super) mod memory;
mod one_sided;
pub(super) mod pair;
pub(super) mod rdma_send;
mod sha;
pub(super) mod stream;
mod sync_event;
mod uring;
mod worker;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel as link};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio_doca::channel::Channel;
use tokio_doca::{Device, Mode, WorkQ};

pub(crate) use failed::{Failed, Result};
use far::Meet;

/// A kind of operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dma,
    Sha,
    Crc,
    RdmaSend,
    RdmaRead,
    RdmaWrite,
    RdmaAtomic,
    SyncEvent,
    Channel,
    Stream,
    Graph,
}

/// What a kind is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Baseline {
    /// The same bytes, copied by the CPU in the task itself.
    Memcpy,
    /// The same copy on Tokio's threads for blocking calls.
    SpawnBlocking,
    /// The same bytes, read from a file in memory by io_uring.
    IoUring,
    /// The same messages over TCP, on the loopback or to the peer.
    Tcp,
    /// The same messages over Unix sockets.
    Unix,
}

/// What a load measures, and how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// The baseline to measure instead of the kind.
    pub(crate) baseline: Option<Baseline>,
    /// The other side; `None` if it is in this process.
    pub(crate) peer: Option<Arc<dyn Meet>>,
    pub(crate) device: Device,
    pub(crate) mode: Mode,
    pub(crate) size: usize,
    /// Operations in flight of each thread.
    pub(crate) depth: usize,
    pub(crate) threads: usize,
}

impl Plan {
    /// Makes a WorkQ for `jobs` jobs in flight.
    fn workq(&self, jobs: usize) -> Result<WorkQ> {
        let depth = u32::try_from(jobs).unwrap_or(u32::MAX);
        Ok(WorkQ::builder().depth(depth).mode(self.mode).build()?)
    }
}

/// The number of copies in a graph.
pub(crate) const NODES: usize = 4;

/// The least memory of an operation, in bytes, for its Bufs, slots and queue entries. Measured: 16
/// peers with 4,096 messages of 8 bytes each took up to 130 MB.
const JOB: u64 = 2 << 10;

impl Kind {
    /// Returns the number of copies of an operation, which run one after the other.
    fn copies(self) -> usize {
        match self {
            Kind::Graph => NODES,
            _ => 1,
        }
    }

    /// Returns how many jobs an operation may have in flight on one WorkQ.
    pub(crate) fn jobs(self) -> usize {
        match self {
            Kind::RdmaSend => 2,
            Kind::SyncEvent => 4,
            Kind::Graph => NODES,
            _ => 1,
        }
    }

    /// Returns the number of bytes that an operation of `size` moves one way.
    pub(crate) fn bytes(self, size: usize) -> u64 {
        match self {
            Kind::Graph => NODES as u64 * size as u64,
            Kind::SyncEvent => 0,
            _ => size as u64,
        }
    }

    /// Returns the most memory that an operation in flight takes, in bytes: both sides and the
    /// baselines included.
    pub(crate) fn memory(self, size: usize) -> u64 {
        let size = size as u64;
        let bytes = match self {
            Kind::Graph => 6 * NODES as u64 * size.next_multiple_of(memory::LINE as u64),
            Kind::Stream => 6 * size + stream::MEMORY,
            // The entries of its queues hold messages of any size.
            Kind::Channel => 8 * Channel::MAX_MESSAGE_SIZE as u64,
            _ => 8 * size.next_multiple_of(memory::LINE as u64),
        };
        bytes.max(JOB)
    }
}

/// A lane does one operation after the other.
trait Lane: 'static {
    async fn once(&mut self) -> Result;
}

/// The lanes of a thread.
struct Lanes<L> {
    lanes: Vec<L>,
    /// Set if the thread drives the lanes by polling this WorkQ, without the runtime.
    spins: Option<WorkQ>,
    /// The thread of the other side, which ends once the connection has ended.
    other: Option<thread::JoinHandle<()>>,
}

impl<L> Lanes<L> {
    /// Makes lanes of a kind that needs no runtime in busy-poll mode.
    fn on(workq: WorkQ, lanes: Vec<L>) -> Lanes<L> {
        let spins = (workq.mode() == Mode::BusyPoll).then_some(workq);
        Lanes {
            lanes,
            spins,
            other: None,
        }
    }

    /// Makes lanes that the runtime drives in every mode, for example because they wait for
    /// sockets.
    fn by_runtime(lanes: Vec<L>) -> Lanes<L> {
        Lanes {
            lanes,
            spins: None,
            other: None,
        }
    }
}

/// The measurements of a round.
pub(crate) struct Round {
    /// The latency of each operation, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    pub(crate) took: Duration,
}

impl Round {
    fn new() -> Round {
        // Records up to a minute, with three significant digits.
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Round {
            latency: latency.expect("the bounds are right"),
            took: Duration::ZERO,
        }
    }
}

/// How long a round may take beyond its length. A device that takes longer has lost a job.
const LIMIT: Duration = Duration::from_secs(10);

/// How long a measuring thread may take to connect to the other side.
const MEETING: Duration = Duration::from_secs(40);

/// Operations of one kind, ready to be measured.
pub(crate) struct Load(Vec<Worker>);

struct Worker {
    /// Sends the thread the length of each round to measure.
    lengths: Sender<Duration>,
    rounds: Receiver<Result<Round>>,
}

impl Worker {
    /// Waits for the result of a round of `length`, at most `limit` beyond that.
    fn wait(&self, length: Duration, limit: Duration) -> Result<Round> {
        self.rounds
            .recv_timeout(length + limit)
            .unwrap_or_else(|error| {
                Err(match error {
                    RecvTimeoutError::Timeout => {
                        let limit = limit.as_secs();
                        Failed::Said(format!("an operation did not end within {limit} s"))
                    }
                    RecvTimeoutError::Disconnected => {
                        Failed::Said("a thread of the measurement ended early".to_owned())
                    }
                })
            })
    }
}

impl Load {
    /// Starts the threads, and waits until all of them are ready.
    pub(crate) fn start(plan: &Plan) -> Result<Load> {
        let mut workers = Vec::new();
        for _ in 0..plan.threads {
            let (lengths, orders) = link();
            let (said, rounds) = link();
            let plan = plan.clone();
            let thread = thread::Builder::new().name("bench".to_owned());
            thread.spawn(move || worker::run(&plan, &orders, &said))?;
            workers.push(Worker { lengths, rounds });
        }
        let limit = plan.peer.as_ref().map_or(LIMIT, |_| MEETING);
        for worker in &workers {
            worker.wait(Duration::ZERO, limit)?;
        }
        Ok(Load(workers))
    }

    /// Measures for about `length`. Each lane does at least one operation.
    pub(crate) fn round(&self, length: Duration) -> Result<Round> {
        for worker in &self.0 {
            // If a worker has ended, `wait` below returns the reason.
            let _ = worker.lengths.send(length);
        }
        let mut all = Round::new();
        for worker in &self.0 {
            let round = worker.wait(length, LIMIT)?;
            all.took = all.took.max(round.took);
            let added = all.latency.add(round.latency);
            added.expect("the bounds are the same");
        }
        Ok(all)
    }

    /// Has the threads end, and waits until they have released all resources.
    pub(crate) fn end(self) -> Result {
        for Worker { lengths, rounds } in self.0 {
            drop(lengths);
            if let Err(RecvTimeoutError::Timeout) = rounds.recv_timeout(LIMIT) {
                let limit = LIMIT.as_secs();
                let text = format!("the threads of a measurement did not end within {limit} s");
                return Err(Failed::Said(text));
            }
        }
        Ok(())
    }
}
