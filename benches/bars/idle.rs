//! N4: the cost of an idle connection, among thousands that receive from a shared pool on either
//! side.
//!
//! The other side is a second process, which runs this program too: `bars idle peer 0`.

use std::collections::HashSet;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use futures::StreamExt;
use support::peer::{Peer, footprint, hear, hex, say, unhex};
use support::programs::this_program;
use tokio::runtime::{Builder, Handle};
use tokio_doca::rdma::RecvPool;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Device, Mmap, Rdma, WorkQ};

use super::report::Goal::{AtMost, Exactly};
use super::report::Report;
use super::sys;

const CONNECTIONS: usize = 2000;
/// The bytes of a Buf and of a long message, and those of a short message.
const ROOM: usize = 4096;
const SHORT: usize = 64;
/// The length of messages that the peer echoes, in bytes.
const ECHO: usize = 32;
const BUFS: usize = 16;
const ECHOES: u32 = 3000;
const QUIET: Duration = Duration::from_secs(5);

/// One side of the connections: contexts on a WorkQ. Their tasks run on a thread of their own.
struct Side {
    device: Device,
    workq: WorkQ,
    pool: RecvPool,
    handle: Handle,
    rdmas: Vec<Rdma>,
}

impl Side {
    fn open(cpu: usize) -> Side {
        let device = Soft::builder().build().open("pf0").expect("a device");
        let mmap = Mmap::builder().device(&device).alloc(BUFS * ROOM);
        let mmap = mmap.expect("memory");
        let bufs = BufPool::builder(&mmap).element_size(ROOM);
        let pool = RecvPool::new(&bufs.build().expect("a pool"));
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || {
            sys::pin(Some(cpu));
            runtime.block_on(std::future::pending::<()>());
        });
        Side {
            workq: WorkQ::builder().build().expect("a WorkQ"),
            device,
            pool,
            handle,
            rdmas: Vec::new(),
        }
    }

    /// Opens contexts, and returns the blobs that their peers need to connect.
    fn attach(&mut self, count: usize) -> String {
        let attach = |_| {
            let builder = Rdma::builder(&self.device).recv_pool(&self.pool);
            builder.attach(&self.workq).expect("a context")
        };
        let new: Vec<Rdma> = (0..count).map(attach).collect();
        let blobs = new.iter().map(|rdma| hex(&rdma.export().expect("a blob")));
        let blobs: Vec<String> = blobs.collect();
        self.rdmas.extend(new);
        blobs.join(" ")
    }

    fn connect(&self, blobs: &str) {
        let blobs: Vec<&str> = blobs.split(' ').collect();
        let new = &self.rdmas[self.rdmas.len() - blobs.len()..];
        for (rdma, blob) in new.iter().zip(blobs) {
            rdma.connect(&unhex(blob)).wait().expect("a connection");
        }
    }

    /// Runs `body` on the thread of the tasks.
    fn run<T: Send + 'static>(&self, body: impl Future<Output = T> + Send + 'static) -> T {
        let (send, ended) = channel();
        self.handle.spawn(async move { send.send(body.await) });
        ended.recv().expect("the task did not panic")
    }

    fn filled(&self, len: usize) -> Buf {
        let buf = self.pool.bufs().try_alloc().expect("the pool has one");
        buf.set_data(0, len).expect("it is long enough");
        buf
    }
}

/// Runs in the second process: receives messages, and echoes those of [`ECHO`] bytes.
pub(crate) fn peer() {
    let mut side = Side::open(1);
    while let Some(count) = hear() {
        say(&side.attach(count.parse().expect("a number")));
        side.connect(&hear().expect("the parent is there"));
        let new = &side.rdmas[side.rdmas.len() - count.parse::<usize>().expect("a number")..];
        for rdma in new {
            let rdma = rdma.clone();
            side.handle.spawn(async move {
                let mut messages = rdma.messages();
                while let Some(Ok(message)) = messages.next().await {
                    if message.received.len == ECHO
                        && let Some(buf) = message.buf
                    {
                        rdma.send(buf).await.expect("a send");
                    }
                }
            });
        }
        say("connected");
    }
}

/// Two connected processes.
struct Pair {
    here: Side,
    there: Peer,
}

impl Pair {
    fn connect(&mut self, count: usize) {
        self.there.say(&count.to_string());
        let blobs = self.there.hear();
        self.there.say(&self.here.attach(count));
        self.here.connect(&blobs);
        assert_eq!(self.there.hear(), "connected");
        // Each new connection carries a short message and a long one.
        let new = self.here.rdmas[self.here.rdmas.len() - count..].to_vec();
        let (short, long) = (self.here.filled(SHORT), self.here.filled(ROOM));
        self.here.run(async move {
            for rdma in new {
                rdma.send(&short).await.expect("a send");
                rdma.send(&long).await.expect("a send");
            }
        });
    }

    /// Returns the nanoseconds of an echo on the first connection: the median of nine rounds.
    fn echo(&self) -> f64 {
        let (rdma, buf) = (self.here.rdmas[0].clone(), self.here.filled(ECHO));
        self.here.run(async move {
            let mut messages = rdma.messages();
            let mut rounds = Vec::new();
            for _ in 0..9 {
                let start = Instant::now();
                for _ in 0..ECHOES / 9 {
                    rdma.send(&buf).await.expect("a send");
                    messages.next().await.expect("an echo").expect("a message");
                }
                rounds.push(start.elapsed().as_nanos() as f64 / f64::from(ECHOES / 9));
            }
            rounds.sort_by(f64::total_cmp);
            rounds[4]
        })
    }

    fn pids(&self) -> [i32; 2] {
        [std::process::id() as i32, self.there.pid()]
    }

    /// Returns the memory of both processes in bytes: their private memory, and the blocks of all
    /// memfds.
    fn memory(&self) -> f64 {
        let mut known = HashSet::new();
        let of = |pid: i32| {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
            let rollup = rollup.expect("a process of ours");
            let field = |name: &str| {
                let line = rollup.lines().find(|line| line.starts_with(name));
                let words = line.expect("the kernel tells").split_whitespace();
                let kib = words.rev().nth(1).expect("a number of KiB");
                1024.0 * kib.parse::<f64>().expect("a number")
            };
            let mut bytes = field("Pss:") - field("Pss_Shmem:");
            let folder = format!("/proc/{pid}/map_files");
            for entry in fs::read_dir(folder).expect("its mappings") {
                let path = entry.expect("a mapping").path();
                let is_memfd = fs::read_link(&path)
                    .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"));
                if let Some(file) = is_memfd.then(|| fs::metadata(&path).ok()).flatten()
                    && known.insert(file.st_ino())
                {
                    bytes += 512.0 * file.st_blocks() as f64;
                }
            }
            bytes
        };
        self.pids().map(of).iter().sum()
    }

    fn descriptors(&self) -> usize {
        self.pids().map(|pid| footprint(pid).0).iter().sum()
    }

    /// Returns how often threads of both processes, except this one, went to sleep.
    fn sleeps(&self) -> u64 {
        let own = nix::unistd::gettid().to_string();
        let of = |pid: i32| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
            let tasks = tasks.map(|task| task.expect("a thread"));
            let others = tasks.filter(|task| task.file_name() != own.as_str());
            let sleeps = |task: fs::DirEntry| {
                let status = fs::read_to_string(task.path().join("status")).expect("its status");
                let line = |line: &str| {
                    let count = line.strip_prefix("voluntary_ctxt_switches:")?;
                    count.trim().parse::<u64>().ok()
                };
                status.lines().find_map(line).expect("the kernel tells")
            };
            others.map(sleeps).sum::<u64>()
        };
        self.pids().map(of).iter().sum()
    }
}

pub(crate) fn n4(report: &mut Report) {
    let mut command = this_program();
    command.args(["idle", "peer", "0"]);
    let mut pair = Pair {
        here: Side::open(0),
        there: Peer::spawn(command),
    };
    pair.connect(1);
    pair.echo();
    let (memory, descriptors, alone) = (pair.memory(), pair.descriptors(), pair.echo());
    pair.connect(CONNECTIONS);
    let count = CONNECTIONS as f64;
    let beside = pair.echo();
    let each = (pair.memory() - memory) / count / 1024.0;
    let what = "memory of an idle connection, of both processes";
    report.line("N4", each, AtMost(32.0), " KiB", what);
    let more = pair.descriptors() as f64 - descriptors as f64;
    let what = format!("descriptors of {CONNECTIONS} idle connections, of both processes");
    report.line("N4.fds", more, Exactly(0.0), "", &what);
    let before = pair.sleeps();
    std::thread::sleep(QUIET);
    let woken = (pair.sleeps() - before) as f64;
    report.line(
        "N4.wakes",
        woken,
        Exactly(0.0),
        "",
        "wake-ups of all of them in 5 s",
    );
    let what = "echo of a connection beside the idle ones, over the same alone";
    report.line("N4.busy", beside / alone, AtMost(1.2), "x", what);
    let taken = BUFS - pair.here.pool.bufs().stats().free;
    report.line(
        "N4.bufs",
        taken as f64,
        Exactly(0.0),
        "",
        "Bufs that they have",
    );
}
