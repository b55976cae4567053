//! The write path of a store as a graph:
//! `graph_pipeline [--dot] [--corrupt N] [FILE [LEFT RIGHT]]`.
//!
//! ```text
//!            +--> digest -------------------+
//!   stage ---+--> left ---> left digest ----+--> verify
//!            +--> right --> right digest ---+
//! ```
//!
//! Each block of FILE (by default, of this program) is copied to a staging buffer, hashed there,
//! and copied to two replicas. The replicas are hashed as well, and a user node compares the
//! digests. A block is one run, and a run is one future. There are eight instances, so that at most
//! eight blocks are in flight; each instance takes the next block when it has finished the last.
//! Verified replicas are written to LEFT and RIGHT, which must not exist.
//!
//! `--corrupt N` simulates a torn write: the right replica of block N loses its last byte. `--dot`
//! prints the graph for Graphviz, and runs nothing.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::graph::{CopyNode, Node, NodeId};
use tokio_doca::{
    Buf, BufPool, Device, Dma, Error, ErrorKind, Mmap, WorkQ,
    graph::{Graph, Instance},
    sha::{Algorithm, Sha},
};

const INSTANCES: usize = 8;
const BLOCK: usize = 64 << 10;
/// A block that takes a device longer than this is stuck.
const LIMIT: Duration = Duration::from_secs(5);

const USAGE: &str = "usage: graph_pipeline [--dot] [--corrupt N] [FILE [LEFT RIGHT]]";

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// An instance of the graph, its buffers, and the nodes that later code refers to.
struct Lane {
    instance: Instance,
    right: Node<CopyNode>,
    verify: NodeId,
    incoming: Buf,
    staging: Buf,
    replicas: [Buf; 2],
    digests: [Buf; 3],
}

fn write_path(device: &Device) -> Result<(Graph, Vec<Lane>), Error> {
    let workq = WorkQ::builder().build()?;
    let dma = Dma::builder(device).attach(&workq)?;
    let sha = Sha::builder(device).attach(&workq)?;

    let mut g = Graph::builder();
    let stage = g.dma_copy(&dma);
    let (left, right) = (g.dma_copy(&dma), g.dma_copy(&dma));
    let hashes = [(); 3].map(|()| g.sha(&sha, Algorithm::Sha256));
    let verify = g.user_with(|_, [block, left, right]: &mut [Buf; 3]| {
        for (name, replica) in [("left", left), ("right", right)] {
            if replica.data()?[..] != block.data()?[..] {
                let text = format!("the {name} replica has another digest");
                return Err(Error::new(ErrorKind::Unexpected, "verify", text));
            }
        }
        Ok(())
    });
    g.depends(left, stage);
    g.depends(right, stage);
    g.depends(hashes[0], stage);
    g.depends(hashes[1], left);
    g.depends(hashes[2], right);
    g.depends(verify, hashes);
    g.label(stage, "stage");
    g.label(left, "left");
    g.label(right, "right");
    g.label(hashes[0], "digest");
    g.label(hashes[1], "left digest");
    g.label(hashes[2], "right digest");
    g.label(verify, "verify");
    let graph = g.build()?;

    let pool = |size: usize, count: usize| {
        let mmap = Mmap::builder().device(device).alloc(size * count)?;
        BufPool::builder(&mmap).element_size(size).build()
    };
    let blocks = pool(BLOCK, 4 * INSTANCES)?;
    let sums = pool(Algorithm::Sha256.digest_len(), 3 * INSTANCES)?;
    let lane = |_| {
        let (incoming, staging) = (blocks.try_alloc()?, blocks.try_alloc()?);
        let replicas = [blocks.try_alloc()?, blocks.try_alloc()?];
        let digests = [sums.try_alloc()?, sums.try_alloc()?, sums.try_alloc()?];
        let mut instance = graph.instance()?;
        instance.set(stage, (&incoming, &staging))?;
        instance.set(left, (&staging, &replicas[0]))?;
        instance.set(right, (&staging, &replicas[1]))?;
        instance.set(hashes[0], (&staging, &digests[0]))?;
        instance.set(hashes[1], (&replicas[0], &digests[1]))?;
        instance.set(hashes[2], (&replicas[1], &digests[2]))?;
        instance.set(verify, digests.clone())?;
        Ok(Lane {
            instance,
            right,
            verify: verify.id(),
            incoming,
            staging,
            replicas,
            digests,
        })
    };
    let lanes: Result<Vec<Lane>, Error> = (0..INSTANCES).map(lane).collect();
    Ok((graph, lanes?))
}

/// A file that is being copied to its replicas.
struct Transfer {
    source: Arc<File>,
    size: u64,
    replicas: Vec<Arc<File>>,
    corrupt: Option<u64>,
    next: Cell<u64>,
    /// The errors of blocks whose replicas failed verification.
    failures: RefCell<Vec<String>>,
}

impl Transfer {
    /// Sends one block after the other through an instance.
    async fn run(&self, lane: &mut Lane) -> Result<()> {
        while self.next.get() * (BLOCK as u64) < self.size {
            let block = self.next.replace(self.next.get() + 1);
            let at = block * BLOCK as u64;
            let len = BLOCK.min((self.size - at) as usize);
            let (file, buf) = (Arc::clone(&self.source), lane.incoming.clone());
            let read = spawn_blocking(move || {
                buf.set_data(0, len)?;
                file.read_exact_at(&mut buf.data_mut()?, at)
            });
            let cannot = |what, error| format!("cannot {what} block {block}: {error}");
            read.await?.map_err(|error| cannot("read", error))?;
            if !self.replicate(lane, block).await? {
                continue;
            }
            for (file, replica) in self.replicas.iter().zip(&lane.replicas) {
                let (file, replica) = (Arc::clone(file), replica.clone());
                let write = spawn_blocking(move || file.write_all_at(&replica.data()?, at));
                write.await?.map_err(|error| cannot("write", error))?;
            }
        }
        Ok(())
    }

    /// Runs the graph for one block. If a replica fails verification, records that and returns
    /// false.
    async fn replicate(&self, lane: &mut Lane, block: u64) -> Result<bool> {
        // Copies and digests are appended to their destinations, so that these are emptied first.
        lane.staging.reset_data_len()?;
        lane.replicas.iter().try_for_each(Buf::reset_data_len)?;
        lane.digests.iter().try_for_each(Buf::reset_data_len)?;
        match self.corrupt == Some(block) {
            true => {
                let torn = lane.incoming.slice(..lane.incoming.data_len() - 1)?;
                lane.instance.set(lane.right, (torn, &lane.replicas[1]))?;
            }
            false => {
                let whole = (&lane.staging, &lane.replicas[1]);
                lane.instance.set(lane.right, whole)?;
            }
        }
        let ended = timeout(LIMIT, lane.instance.run()).await;
        let late = |_| format!("block {block}: the device did not finish it within {LIMIT:?}");
        match ended.map_err(late)? {
            Ok(()) => Ok(true),
            Err(error) if error.node() == lane.verify => {
                let failure = format!("block {block}: {}", error.cause());
                self.failures.borrow_mut().push(failure);
                Ok(false)
            }
            Err(error) => Err(format!("block {block}: {error}").into()),
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = Device::open_default()?;
    let (graph, mut lanes) = write_path(&device)?;
    if args.dot {
        return Ok(write!(io::stdout(), "{}", graph.to_dot())?);
    }
    let this = std::env::current_exe()?;
    let path = args.files.first().unwrap_or(&this);
    let cannot = |what, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
    // The file's type is checked before it is opened, since opening a pipe would wait for its other
    // end.
    let meta = fs::metadata(path).map_err(|error| cannot("open", path, error))?;
    if !meta.is_file() {
        return Err(format!("{} is no regular file", path.display()).into());
    }
    let blocks = meta.len().div_ceil(BLOCK as u64);
    if let Some(block) = args.corrupt.filter(|&block| block >= blocks) {
        return Err(format!("no block {block} to corrupt: there are {blocks}").into());
    }
    let source = File::open(path).map_err(|error| cannot("open", path, error))?;
    let create = |path: &PathBuf| match File::create_new(path) {
        Ok(file) => Ok(Arc::new(file)),
        Err(error) => Err(cannot("create", path, error)),
    };
    let replicas: Result<_, String> = args.files.iter().skip(1).map(create).collect();
    let transfer = Transfer {
        source: Arc::new(source),
        size: meta.len(),
        replicas: replicas?,
        corrupt: args.corrupt,
        next: Cell::new(0),
        failures: RefCell::default(),
    };

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let start = Instant::now();
    let runs = lanes.iter_mut().map(|lane| transfer.run(lane));
    runtime.block_on(try_join_all(runs))?;
    for (file, path) in transfer.replicas.iter().zip(args.files.iter().skip(1)) {
        // A full disk may be reported only at this point.
        file.sync_all()
            .map_err(|error| cannot("write", path, error))?;
    }
    let took = start.elapsed();

    let (size, failures) = (meta.len(), transfer.failures.into_inner());
    let rate = size as f64 / 1e6 / took.as_secs_f64();
    writeln!(
        io::stdout(),
        "{blocks} blocks, {size} bytes in {took:.1?}: {rate:.0} MB/s, verify failures: {}",
        failures.len()
    )?;
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("; ").into()),
    }
}

#[derive(Default)]
struct Args {
    dot: bool,
    corrupt: Option<u64>,
    files: Vec<PathBuf>,
}

impl Args {
    fn parse() -> Option<Args> {
        let (mut args, mut words) = (Args::default(), std::env::args_os().skip(1));
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--dot") => args.dot = true,
                Some("--corrupt") => args.corrupt = Some(words.next()?.to_str()?.parse().ok()?),
                Some(option) if option.starts_with("--") => return None,
                _ => args.files.push(word.into()),
            }
        }
        [0, 1, 3].contains(&args.files.len()).then_some(args)
    }
}

fn main() -> ExitCode {
    let (code, message) = match Args::parse().as_ref().map(run) {
        Some(Ok(())) => return ExitCode::SUCCESS,
        Some(Err(error)) => (1, format!("graph_pipeline: {error}")),
        None => (2, USAGE.to_owned()),
    };
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}
