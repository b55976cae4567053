//! A side of a connection between two machines: what `tests/soft-roce/two` runs beside the
//! examples.
//!
//! ```text
//! two_sides serve ADDR [FILE]             serves streams, and keeps the last record in FILE
//! two_sides bulk ADDR MIB                 sends MIB MiB by a stream, and compares the sums
//! two_sides records ADDR busy|idle TIMES  sends records, and connects anew TIMES times
//! two_sides cm listen|dial ADDR END       a connection by rdma_cm: see `cm`
//! two_sides churn listen|dial ADDR COUNT  makes and closes COUNT connections by rdma_cm
//! ```
//!
//! The variable `TWO_TRANSPORT` is the transport that streams must have: `RDMA` (the default), or
//! `TCP`, which allows `or_tcp` as well. `TWO_DEVICE` names the device; it defaults to any.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_doca::error::Reason;
use tokio_doca::rdma::{CmListener, RdmaState, Transport};
use tokio_doca::stream::{RdmaListener, RdmaStream, StreamOptions};
use tokio_doca::{Device, Rdma, WorkQ};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T = (), E = Error> = std::result::Result<T, E>;

/// The first byte of a stream says what the rest is.
const BULK: u8 = b'b';
const RECORDS: u8 = b'r';
/// Records that are acknowledged before a story continues.
const SOME: u64 = 20;
/// The longest time that a killed peer of rdma_cm goes unnoticed, on a machine that is not slow.
const NOTICED: Duration = Duration::from_millis(100);
/// Connections that are made at a time.
const AT_ONCE: usize = 64;
/// How long a side waits for its peer to come or to come back, before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("two_sides: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &[&str]) -> Result {
    match args[..] {
        ["serve", addr] => serve(addr.parse()?, None).await,
        ["serve", addr, file] => serve(addr.parse()?, Some(file.into())).await,
        ["bulk", addr, mib] => bulk(addr.parse()?, mib.parse()?).await,
        ["records", addr, how, times] => {
            records(addr.parse()?, how == "idle", times.parse()?).await
        }
        ["churn", role, addr, count] => {
            churn(role == "listen", addr.parse()?, count.parse()?).await
        }
        ["cm", role, addr, end] => cm(role == "listen", addr.parse()?, end).await,
        _ => Err("usage: see the head of two_sides.rs".into()),
    }
}

fn device() -> Result<Device> {
    Ok(match std::env::var("TWO_DEVICE") {
        Ok(name) => Device::open(&name)?,
        Err(_) => Device::open_default()?,
    })
}

fn by_tcp() -> bool {
    std::env::var("TWO_TRANSPORT").is_ok_and(|transport| transport == "TCP")
}

fn options() -> StreamOptions {
    StreamOptions::new().connections(4).or_tcp(by_tcp())
}

fn sum(so_far: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(so_far, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    })
}

/// Serves streams until the process is killed, and says how each one ended.
async fn serve(addr: SocketAddr, file: Option<PathBuf>) -> Result {
    let (device, workq) = (device()?, WorkQ::builder().build()?);
    let listener: RdmaListener = options().bind(&device, &workq, addr).await?;
    let last = match &file {
        Some(file) if file.exists() => std::fs::read_to_string(file)?.parse()?,
        _ => 0,
    };
    println!("listening, and has {last}");
    let (last, file) = (Arc::new(Mutex::new(last)), Arc::new(file));
    loop {
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => {
                println!("an accept failed: {error}");
                continue;
            }
        };
        let (last, file) = (Arc::clone(&last), Arc::clone(&file));
        tokio::spawn(async move {
            let ended = async {
                let mut stream = incoming.accept(b"").await?;
                match stream.read_u8().await? {
                    BULK => take_bulk(&mut stream).await,
                    _ => take_records(&mut stream, &last, file.as_deref()).await,
                }
            };
            match ended.await {
                Ok(()) => println!("a stream has ended"),
                Err(error) => println!("a stream has failed: {error}"),
            }
        });
    }
}

async fn take_bulk(stream: &mut RdmaStream) -> Result<(), std::io::Error> {
    let (mut total, mut buf) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut buf).await? {
            0 => break,
            len => total = sum(total, &buf[..len]),
        }
    }
    stream.write_u64(total).await?;
    stream.shutdown().await
}

/// Sends the number of the last record that was stored, and acknowledges each further record once
/// it is stored.
async fn take_records(
    stream: &mut RdmaStream,
    last: &Mutex<u64>,
    file: Option<&Path>,
) -> Result<(), std::io::Error> {
    let has = *last.lock().unwrap();
    stream.write_u64(has).await?;
    loop {
        let record = stream.read_u64().await?;
        *last.lock().unwrap() = record;
        if let Some(file) = file {
            let next = file.with_extension("next");
            std::fs::write(&next, record.to_string())?;
            std::fs::rename(&next, file)?;
        }
        stream.write_u64(record).await?;
    }
}

/// Connects a stream, which must have the transport that this side requires.
async fn connect(addr: SocketAddr, device: &Device, workq: &WorkQ, kind: u8) -> Result<RdmaStream> {
    let mut stream = options().connector(device, workq)?.connect(addr).await?;
    if stream.rdma().is_none() != by_tcp() {
        return Err(format!("the stream is by {:?}", stream.transport()).into());
    }
    stream.write_u8(kind).await?;
    Ok(stream)
}

async fn bulk(addr: SocketAddr, mib: usize) -> Result {
    let (device, workq) = (device()?, WorkQ::builder().build()?);
    let mut stream = connect(addr, &device, &workq, BULK).await?;
    let (mut total, mut buf, begun) = (0, vec![0; 64 << 10], Instant::now());
    for block in 0..mib * 16 {
        for (at, byte) in buf.iter_mut().enumerate() {
            *byte = (block * 7 + at * (at >> 8)) as u8;
        }
        total = sum(total, &buf);
        stream.write_all(&buf).await?;
    }
    stream.shutdown().await?;
    if stream.read_u64().await? != total {
        return Err("the sums differ".into());
    }
    let transport = if by_tcp() { "TCP" } else { "RDMA" };
    println!(
        "{mib} MiB by {transport} in {:.1?}: equal sums",
        begun.elapsed()
    );
    Ok(())
}

/// Sends records one by one until the stream fails, or if `idle` only [`SOME`], and then waits for
/// the failure. Then connects anew, and checks that the server has all records that it has
/// acknowledged.
async fn records(addr: SocketAddr, idle: bool, times: usize) -> Result {
    let (device, workq) = (device()?, WorkQ::builder().build()?);
    let mut acknowledged = 0;
    for time in 0..=times {
        let begun = Instant::now();
        let (mut stream, has) = loop {
            match resume(addr, &device, &workq).await {
                Ok(resumed) => break resumed,
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        if has < acknowledged {
            return Err(format!("lost: {acknowledged} was acknowledged, and it has {has}").into());
        }
        println!("connected {time}: it has {has}");
        let failed = loop {
            let sent = acknowledged.max(has) + 1;
            match send(&mut stream, sent).await {
                Ok(()) => acknowledged = sent,
                Err(error) => break error,
            }
            if acknowledged - has == SOME {
                println!("acknowledged {time}");
                if time == times {
                    return Ok(());
                }
                if idle {
                    break stream.read_u64().await.err().ok_or("it says more")?;
                }
            }
        };
        println!("failed {time}: {failed}");
    }
    Ok(())
}

/// Connects a stream for records. Returns it with the last record that the server has.
async fn resume(addr: SocketAddr, device: &Device, workq: &WorkQ) -> Result<(RdmaStream, u64)> {
    let mut stream = connect(addr, device, workq, RECORDS).await?;
    let has = stream.read_u64().await?;
    Ok((stream, has))
}

async fn send(stream: &mut RdmaStream, record: u64) -> Result<(), std::io::Error> {
    stream.write_u64(record).await?;
    match stream.read_u64().await? {
        came if came == record => Ok(()),
        came => Err(std::io::Error::other(format!("{came} for {record}"))),
    }
}

/// Connects by rdma_cm. With the end `die` or `watch` there are no probes: the side with `die`
/// sends a message and kills its process, whose kernel notifies the peer, and the side with `watch`
/// checks that it notices the end in time. With the end `idle` a side prints why its connection
/// fails.
async fn cm(listens: bool, addr: SocketAddr, end: &str) -> Result {
    let (device, workq) = (device()?, WorkQ::builder().build()?);
    let mut transport = Transport::default();
    if end != "idle" {
        transport.probe_interval = None;
    }
    let begun = Instant::now();
    let (rdma, hello) = loop {
        let rdma = Rdma::builder(&device).transport(transport);
        let rdma = rdma.attach(&workq)?;
        // Over iWARP a message that finds no receive ends the connection, and the dialling side
        // sends first.
        let hello = rdma.recv(()).owned().start()?;
        if listens {
            let listener = CmListener::bind(&device, addr)?;
            listener.accept().await?.accept(&rdma).await?;
            break (rdma, hello);
        }
        match rdma.connect_to(addr).await {
            Ok(_) => break (rdma, hello),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let word = match listens {
        true => {
            let word = rdma.recv(()).owned().start()?;
            hello.await?;
            word
        }
        false => {
            rdma.send(()).await?;
            hello
        }
    };
    match end {
        "die" => {
            rdma.send(()).await?;
            raise(Signal::SIGKILL)?;
        }
        "idle" => {
            println!("connected");
            println!("failed: {:?}", failure(&rdma).await);
            return Ok(());
        }
        _ => word.await.map(drop)?,
    }
    let begun = Instant::now();
    let reason = failure(&rdma).await;
    let took = begun.elapsed();
    let slowdown = std::env::var("TOKIO_DOCA_TEST_SLOWDOWN").map_or(Ok(1), |text| text.parse())?;
    println!("the peer was killed: {reason:?} after {took:.1?}");
    if reason != Reason::PeerClosed || took > NOTICED * slowdown {
        return Err(format!(
            "it must be {:?} within {NOTICED:?} times {slowdown}",
            Reason::PeerClosed
        )
        .into());
    }
    Ok(())
}

/// Makes connections by rdma_cm, `AT_ONCE` at a time, and closes each as soon as it is there.
async fn churn(listens: bool, addr: SocketAddr, count: usize) -> Result {
    let (device, workq) = (device()?, WorkQ::builder().build()?);
    let (listener, places) = (
        listens
            .then(|| CmListener::bind(&device, addr))
            .transpose()?,
        Arc::new(Semaphore::new(AT_ONCE)),
    );
    println!("listening");
    // What one connection leaves open for good is no leak.
    let mut before = None;
    let mut begun = Instant::now();
    let mut sides = JoinSet::new();
    for one in 0..=count {
        let place = Arc::clone(&places).acquire_owned().await?;
        let rdma = Rdma::builder(&device).attach(&workq)?;
        match &listener {
            Some(listener) => {
                let request = listener.accept().await?;
                sides.spawn(async move {
                    request.accept(&rdma).await?;
                    let reason = failure(&rdma).await;
                    drop((rdma, place));
                    match reason {
                        Reason::PeerClosed => Ok(()),
                        reason => Err(Error::from(format!("it ended by {reason:?}"))),
                    }
                });
            }
            None => {
                sides.spawn(async move {
                    rdma.connect_to(addr).await?;
                    drop((rdma, place));
                    Ok(())
                });
            }
        }
        if one == 0 {
            sides.join_next().await.expect("one")??;
            before = Some(descriptors()?);
            begun = Instant::now();
        }
    }
    while let Some(side) = sides.join_next().await {
        side??;
    }
    println!("{count} in {:.3} s", begun.elapsed().as_secs_f64());
    drop(listener);
    let limit = Instant::now();
    while Some(descriptors()?) > before {
        if limit.elapsed() > PATIENCE {
            return Err(format!("{} descriptors, and {before:?} before", descriptors()?).into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Waits until the connection has failed, and returns the reason.
async fn failure(rdma: &Rdma) -> Reason {
    let mut watch = rdma.watch();
    loop {
        match rdma.state() {
            RdmaState::Error(error) => return error.reason(),
            _ => watch.changed().await,
        };
    }
}
