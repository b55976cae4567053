//! A graph that is described once and run many times: `graph [--dot] [--trace FILE]`.
//!
//! Two replicas of a block are copied at the same time, a user node compares them with the source and prints their
//! checksum, and a third copy goes on from there. Ten instances run at once on one WorkQ. `--dot` prints the graph for
//! Graphviz and runs nothing; `--trace` writes when each node of the first instance ran, for Chrome's trace viewer.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::timeout;
use tokio_doca::graph::{CopyNode, DataNode, Node};
use tokio_doca::{Buf, BufPool, Device, Dma, Error, ErrorKind, Graph, Instance, Mmap, WorkQ};

const INSTANCES: usize = 10;
const BLOCK: usize = 64 << 10;
/// A device that takes longer for all of it is stuck.
const LIMIT: Duration = Duration::from_secs(5);

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[derive(Default)]
struct Args {
    dot: bool,
    trace: Option<String>,
}

fn main() -> ExitCode {
    let mut args = Args::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.size_hint().0) {
            ("--dot", _) => args.dot = true,
            ("--trace", 1..) => args.trace = words.next(),
            _ => {
                let _ = writeln!(io::stderr(), "usage: graph [--dot] [--trace FILE]");
                return ExitCode::from(2);
            }
        }
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "graph: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The graph, and its nodes that are set.
struct Replicate {
    graph: Graph,
    replicas: [Node<CopyNode>; 2],
    compare: Node<DataNode<[Buf; 3]>>,
    archive: Node<CopyNode>,
}

fn describe(dma: &Dma) -> Result<Replicate> {
    let mut g = Graph::builder();
    let replicas = [g.dma_copy(dma), g.dma_copy(dma)];
    let compare = g.user_with(move |run, [source, left, right]: &mut [Buf; 3]| {
        let lengths = replicas.map(|node| run.result(node));
        let (source, left, right) = (source.data()?, left.data()?, right.data()?);
        if lengths[0] != lengths[1] || left[..] != source[..] || right[..] != source[..] {
            let text = "a replica differs from the source";
            return Err(Error::new(ErrorKind::Unexpected, "compare", text));
        }
        let checksum = crc32fast::hash(&left);
        let _ = writeln!(io::stdout(), "two replicas, checksum {checksum:08x}");
        Ok(())
    });
    let archive = g.dma_copy(dma);
    g.label(replicas[0], "left replica");
    g.label(replicas[1], "right replica");
    g.label(compare, "compare");
    g.label(archive, "archive");
    g.depends(compare, replicas);
    g.depends(archive, compare);
    let graph = g.build()?;
    Ok(Replicate {
        graph,
        replicas,
        compare,
        archive,
    })
}

fn run(args: &Args) -> Result<()> {
    let device = Device::open_default()?;
    let mmap = Mmap::builder()
        .device(&device)
        .alloc(4 * INSTANCES * BLOCK)?;
    let pool = BufPool::builder(&mmap).element_size(BLOCK).build()?;
    let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
    let block = |number: usize| -> Result<[Buf; 4]> {
        let block = [(); 4].map(|()| pool.try_alloc());
        let [source, left, right, archive] = block;
        let source = source?;
        source.extend_from_slice(&vec![number as u8 + 1; BLOCK])?;
        Ok([source, left?, right?, archive?])
    };
    let blocks: Vec<[Buf; 4]> = (0..INSTANCES).map(block).collect::<Result<_>>()?;
    let replicate = describe(&dma)?;
    if args.dot {
        write!(io::stdout(), "{}", replicate.graph.to_dot())?;
        return Ok(());
    }
    let instance = |[source, left, right, archive]: &[Buf; 4]| {
        let mut instance = replicate.graph.instance()?;
        instance.set(replicate.replicas[0], (source, left))?;
        instance.set(replicate.replicas[1], (source, right))?;
        instance.set(replicate.compare, [source, left, right].map(Buf::clone))?;
        instance.set(replicate.archive, (left, archive))?;
        instance.set_tracing(args.trace.is_some());
        Ok(instance)
    };
    let instances: Result<Vec<Instance>> = blocks.iter().map(instance).collect();
    let mut instances = instances?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let runs = try_join_all(instances.iter_mut().map(Instance::run));
    let late = |_| format!("the device did not finish the runs within {LIMIT:?}");
    runtime
        .block_on(async { timeout(LIMIT, runs).await })
        .map_err(late)??;
    for [source, .., archive] in &blocks {
        if archive.data()?[..] != source.data()?[..] {
            return Err("an archive differs from its source".into());
        }
    }
    if let Some(file) = &args.trace {
        std::fs::write(file, instances[0].trace())?;
    }
    writeln!(io::stdout(), "{INSTANCES} instances verified")?;
    Ok(())
}
