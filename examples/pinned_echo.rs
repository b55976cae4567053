//! One thread serves many streams by polling, while the runtime accepts them. While messages come,
//! the thread uses a whole CPU and resumes the streams' tasks without a wake-up by the kernel.
//! Clients in the same process measure how long an answer takes.
//!
//! ```text
//! $ cargo run --release --example pinned_echo -- 16 1000 1          # on CPU 1
//! 16 streams, 16000 answers by a poll thread: half within 55 us, 99 of 100 within 535 us
//! $ cargo run --release --example pinned_echo -- 16 1000 runtime    # by the runtime itself
//! ```
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_doca::stream::{RdmaConnector, RdmaListener, RdmaStream, StreamOptions};
use tokio_doca::{Device, WorkQ};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

type Tasks = JoinSet<Result<()>>;

/// A stream that is silent for this time is ended.
const IDLE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinned_echo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let count: usize = args.next().as_deref().unwrap_or("16").parse()?;
    let rounds: usize = args.next().as_deref().unwrap_or("1000").parse()?;
    let place = args.next();

    let device = Device::open_default()?;
    let (served, clients) = (WorkQ::builder().build()?, WorkQ::builder().build()?);
    let local: SocketAddr = "127.0.0.1:0".parse()?;
    let options = StreamOptions::new().connections(count);
    let listener = options.bind(&device, &served, local).await?;
    let addr = listener.tcp_addr().ok_or("a TCP address")?;
    let (hand_over, streams) = unbounded_channel();
    let accepts = tokio::spawn(accept(listener, hand_over));

    // The thread is spawned on the runtime, so that it can use the runtime's timers.
    let thread = match place.as_deref() {
        Some("runtime") => None,
        Some(cpu) => Some(served.poll_thread().cpu(cpu.parse()?)),
        None => Some(served.poll_thread()),
    };
    let who = if thread.is_some() {
        "a poll thread"
    } else {
        "the runtime"
    };
    let serving = match thread {
        Some(thread) => {
            let local = |tasks: &mut Tasks, stream| _ = tasks.spawn_local(echo(stream));
            let thread = thread.spawn(async move || serve(streams, local).await)?;
            tokio::task::spawn_blocking(move || thread.join().expect("it does not panic"))
        }
        None => tokio::spawn(serve(streams, |tasks, stream| {
            tasks.spawn(echo(stream));
        })),
    };

    let connector = options.connector(&device, &clients)?;
    let mut asking = JoinSet::new();
    for _ in 0..count {
        asking.spawn(ask(connector.clone(), addr, rounds));
    }
    let mut took = Vec::new();
    while let Some(asked) = asking.join_next().await {
        took.extend(asked??);
    }
    // No further stream is accepted. `serve` returns when the last stream has ended.
    accepts.abort();
    serving.await?;
    took.sort_unstable();
    let within = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)].as_micros();
    println!(
        "{count} streams, {} answers by {who}: half within {} us, 99 of 100 within {} us",
        took.len(),
        within(50),
        within(99),
    );
    Ok(())
}

/// Accepts streams on the runtime, and hands them to the thread that serves them.
async fn accept(listener: RdmaListener, hand_over: UnboundedSender<RdmaStream>) -> Result<()> {
    loop {
        let incoming = listener.accept().await?;
        let hand_over = hand_over.clone();
        tokio::spawn(async move {
            let stream = incoming.accept(b"").await?;
            hand_over.send(stream)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
}

/// Serves each stream in a task that `begin` starts.
async fn serve(mut streams: UnboundedReceiver<RdmaStream>, begin: fn(&mut Tasks, RdmaStream)) {
    let mut tasks = Tasks::new();
    while let Some(stream) = streams.recv().await {
        begin(&mut tasks, stream);
    }
    while tasks.join_next().await.is_some() {}
}

async fn echo(mut stream: RdmaStream) -> Result<()> {
    let mut data = vec![0; 4096];
    loop {
        match tokio::time::timeout(IDLE, stream.read(&mut data)).await?? {
            0 => return Ok(stream.shutdown().await?),
            len => stream.write_all(&data[..len]).await?,
        }
    }
}

async fn ask(connector: RdmaConnector, addr: SocketAddr, rounds: usize) -> Result<Vec<Duration>> {
    let mut stream = connector.connect(addr).await?;
    let (question, mut answer) = ([7; 64], [0; 64]);
    let mut took = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        stream.write_all(&question).await?;
        stream.read_exact(&mut answer).await?;
        took.push(begun.elapsed());
    }
    stream.shutdown().await?;
    Ok(took)
}
