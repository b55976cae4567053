//! The measuring loops. They know neither the command line nor what is printed: the benches of the
//! library (`benches/bars/bench.rs`) measure with the same code.
//!
//! A [`Load`] is one kind of operation on threads of its own. Each thread has a runtime and a
//! WorkQ, and a lane for each operation in flight: a [`Lane`] does one operation after the other.
//! The threads sleep between two rounds. Kinds with two sides have the other side on a thread
//! beside each of these, or where `bench serve` runs.

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

/// What is measured.
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

/// What it is compared with.
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

/// What a load does.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// Measured instead of the kind.
    pub(crate) baseline: Option<Baseline>,
    /// The other side, unless it is in this process.
    pub(crate) peer: Option<Arc<dyn Meet>>,
    pub(crate) device: Device,
    pub(crate) mode: Mode,
    pub(crate) size: usize,
    /// Operations in flight of each thread.
    pub(crate) depth: usize,
    pub(crate) threads: usize,
}

impl Plan {
    /// A WorkQ for so many jobs in flight.
    fn workq(&self, jobs: usize) -> Result<WorkQ> {
        let depth = u32::try_from(jobs).unwrap_or(u32::MAX);
        Ok(WorkQ::builder().depth(depth).mode(self.mode).build()?)
    }
}

/// The copies of a graph.
pub(crate) const NODES: usize = 4;

/// What an operation takes at least, for Bufs, slots and entries of queues. Measured: 16 peers with
/// 4,096 messages of 8 bytes each took up to 130 MB.
const JOB: u64 = 2 << 10;

impl Kind {
    /// The copies of an operation, one after the other.
    fn copies(self) -> usize {
        match self {
            Kind::Graph => NODES,
            _ => 1,
        }
    }

    /// The jobs in flight of an operation, on one WorkQ.
    pub(crate) fn jobs(self) -> usize {
        match self {
            Kind::RdmaSend => 2,
            Kind::SyncEvent => 4,
            Kind::Graph => NODES,
            _ => 1,
        }
    }

    /// The bytes that an operation of this size moves one way.
    pub(crate) fn bytes(self, size: usize) -> u64 {
        match self {
            Kind::Graph => NODES as u64 * size as u64,
            Kind::SyncEvent => 0,
            _ => size as u64,
        }
    }

    /// The most memory that an operation in flight takes, of both sides and of what it is compared
    /// with.
    pub(crate) fn memory(self, size: usize) -> u64 {
        let size = size as u64;
        let bytes = match self {
            Kind::Graph => 6 * NODES as u64 * size.next_multiple_of(memory::LINE as u64),
            Kind::Stream => 6 * size + stream::MEMORY,
            // Its queues have room for messages of any size.
            Kind::Channel => 8 * Channel::MAX_MESSAGE_SIZE as u64,
            _ => 8 * size.next_multiple_of(memory::LINE as u64),
        };
        bytes.max(JOB)
    }
}

/// One operation after the other.
trait Lane: 'static {
    async fn once(&mut self) -> Result;
}

/// The lanes of a thread.
struct Lanes<L> {
    lanes: Vec<L>,
    /// The thread spins on this WorkQ, and needs no runtime for it.
    spins: Option<WorkQ>,
    /// The thread of the other side, which ends with the connection.
    other: Option<thread::JoinHandle<()>>,
}

impl<L> Lanes<L> {
    /// Lanes of a kind that needs no runtime in busy-poll mode.
    fn on(workq: WorkQ, lanes: Vec<L>) -> Lanes<L> {
        let spins = (workq.mode() == Mode::BusyPoll).then_some(workq);
        Lanes {
            lanes,
            spins,
            other: None,
        }
    }

    /// Lanes that a runtime drives in every mode, for example since they wait for sockets.
    fn by_runtime(lanes: Vec<L>) -> Lanes<L> {
        Lanes {
            lanes,
            spins: None,
            other: None,
        }
    }
}

/// What a round has measured.
pub(crate) struct Round {
    /// The nanoseconds of each operation.
    pub(crate) latency: Histogram<u64>,
    pub(crate) took: Duration,
}

impl Round {
    fn new() -> Round {
        // Three digits, up to a minute.
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Round {
            latency: latency.expect("the bounds are right"),
            took: Duration::ZERO,
        }
    }
}

/// A device that takes longer beyond the time of a round has lost a job.
const LIMIT: Duration = Duration::from_secs(10);

/// What a thread that measures may take until it has met the other side.
const MEETING: Duration = Duration::from_secs(40);

/// Operations of one kind, ready to be measured.
pub(crate) struct Load(Vec<Worker>);

struct Worker {
    /// The times of rounds.
    lengths: Sender<Duration>,
    rounds: Receiver<Result<Round>>,
}

impl Worker {
    /// Waits for a round of this length, and then not longer than `limit`.
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

    /// Measures for about this time: each lane does an operation at least.
    pub(crate) fn round(&self, length: Duration) -> Result<Round> {
        for worker in &self.0 {
            // One that has ended says so below.
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

    /// Waits until the threads have given everything back.
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
