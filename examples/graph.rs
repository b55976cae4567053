//! Describes a graph once and runs it many times: `graph [--dot]`.
//!
//! A block is copied and hashed at the same time; a user node then compares source and destination
//! and prints the digest. Ten instances run at once on one WorkQ. `--dot` prints the graph for
//! Graphviz and runs nothing.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::timeout;
use tokio_doca::graph::{CopyNode, DataNode, HashNode, Node};
use tokio_doca::{
    Buf, BufPool, Device, Dma, Error, ErrorKind, Mmap, WorkQ,
    graph::{Graph, Instance},
    sha::{Algorithm, Sha},
};

const INSTANCES: usize = 10;
const BLOCK: usize = 64 << 10;
/// A run of all instances that takes longer than this is stuck.
const LIMIT: Duration = Duration::from_secs(5);

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let dot = words == ["--dot"];
    if !dot && !words.is_empty() {
        let _ = writeln!(io::stderr(), "usage: graph [--dot]");
        return ExitCode::from(2);
    }
    match run(dot) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "graph: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The number and the Bufs of the block that one instance processes.
#[derive(Clone)]
struct Block {
    number: usize,
    source: Buf,
    copy: Buf,
    digest: Buf,
}

/// The graph, and the nodes whose inputs each instance sets.
struct CopyAndHash {
    graph: Graph,
    copy: Node<CopyNode>,
    hash: Node<HashNode>,
    report: Node<DataNode<Block>>,
}

fn describe(dma: &Dma, sha: &Sha) -> Result<CopyAndHash> {
    let mut g = Graph::builder();
    let (copy, hash) = (g.dma_copy(dma), g.sha(sha, Algorithm::Sha256));
    let report = g.user_with(|_, block: &mut Block| {
        if block.copy.data()?[..] != block.source.data()?[..] {
            let text = format!("block {} differs from its source", block.number);
            return Err(Error::new(ErrorKind::Unexpected, "report", text));
        }
        let digest = block.digest.data()?;
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(io::stdout(), "block {}: SHA-256 {digest}", block.number);
        Ok(())
    });
    g.label(copy, "copy");
    g.label(hash, "hash");
    g.label(report, "report");
    g.depends(report, (copy, hash));
    let graph = g.build()?;
    Ok(CopyAndHash {
        graph,
        copy,
        hash,
        report,
    })
}

fn run(dot: bool) -> Result<()> {
    let device = Device::open_default()?;
    let mmap = Mmap::builder()
        .device(&device)
        .alloc(3 * INSTANCES * BLOCK)?;
    let pool = BufPool::builder(&mmap).element_size(BLOCK).build()?;
    let workq = WorkQ::builder().build()?;
    let dma = Dma::builder(&device).attach(&workq)?;
    let sha = Sha::builder(&device).attach(&workq)?;
    let described = describe(&dma, &sha)?;
    if dot {
        write!(io::stdout(), "{}", described.graph.to_dot())?;
        return Ok(());
    }
    let instance = |number: usize| -> Result<Instance> {
        let (source, copy, digest) = (pool.try_alloc()?, pool.try_alloc()?, pool.try_alloc()?);
        source.extend_from_slice(&vec![number as u8; BLOCK])?;
        let mut instance = described.graph.instance()?;
        instance.set(described.copy, (&source, &copy))?;
        instance.set(described.hash, (&source, &digest))?;
        let block = Block {
            number,
            source,
            copy,
            digest,
        };
        instance.set(described.report, block)?;
        Ok(instance)
    };
    let instances: Result<Vec<Instance>> = (0..INSTANCES).map(instance).collect();
    let mut instances = instances?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let runs = try_join_all(instances.iter_mut().map(Instance::run));
    let late = |_| format!("the device did not finish the runs within {LIMIT:?}");
    runtime
        .block_on(async { timeout(LIMIT, runs).await })
        .map_err(late)??;
    writeln!(io::stdout(), "{INSTANCES} instances verified")?;
    Ok(())
}
