//! Measures the performance target R10: the rate of requests over RDMA, event-driven and
//! busy-polling, relative to TCP on the loopback device. Each side is a process with one thread.
//!
//! ```text
//! $ cargo run --release --bin r10              # all cases, five rounds of half a second each
//! $ cargo run --release --bin r10 -- 1 50      # rounds, and milliseconds
//! ```
//!
//! For each case the transports are measured in turn, and the ratio is the median of the rounds'
//! ratios. The second ratio compares the CPU time that both processes use for a request.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::try_join_all;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use services::grpc::{Echo, EchoClient};
use services::http::{Client, serve};
use services::{Result, options};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_doca::stream::RdmaConnector;
use tokio_doca::{Device, Mode, WorkQ};
use tokio_doca_http::{Connector, Listener};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

/// The size of a small and of a large answer, in bytes.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

/// The request that a case repeats on each of its connections.
#[derive(Clone, Copy)]
enum Job {
    /// A GET with an answer of this many bytes, over HTTP/1.
    Get(usize),
    /// A unary call with this many bytes in each direction.
    Call(usize),
    /// A message of this many bytes from a stream of answers.
    Answer(usize),
}

use Job::{Answer, Call, Get};

/// A case: its name, its request, the number of connections, and the target ratios, event-driven
/// and by busy-polling.
type Case = (&'static str, Job, usize, f64, Option<f64>);

const CASES: [Case; 8] = [
    (
        "hyper GET of 64 B, 64 connections",
        Get(SMALL),
        64,
        1.1,
        None,
    ),
    (
        "hyper GET of 64 B, 1 connection",
        Get(SMALL),
        1,
        0.9,
        Some(3.0),
    ),
    (
        "tonic unary of 64 B, 64 connections",
        Call(SMALL),
        64,
        1.1,
        None,
    ),
    (
        "tonic unary of 64 B, 1 connection",
        Call(SMALL),
        1,
        0.9,
        Some(3.0),
    ),
    ("hyper GET of 1 MiB, 1 connection", Get(LARGE), 1, 1.1, None),
    (
        "tonic unary of 1 MiB, 1 connection",
        Call(LARGE),
        1,
        1.1,
        None,
    ),
    (
        "tonic stream of 64 B, 1 connection",
        Answer(SMALL),
        1,
        1.1,
        None,
    ),
    (
        "tonic stream of 64 KiB, 1 connection",
        Answer(64 << 10),
        1,
        1.1,
        None,
    ),
];

/// Event-driven and busy-polling.
const MODES: [Mode; 2] = [Mode::EventDriven, Mode::BusyPoll];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    services::end(match args.first().map(String::as_str) {
        Some("serve") => runtime().and_then(|runtime| runtime.block_on(serve_all())),
        _ => measure_all(&args),
    })
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Runs both services on each transport. Prints the addresses of hyper and tonic for TCP, and then
/// for each mode.
async fn serve_all() -> Result {
    let http = TcpListener::bind(local()).await?;
    let grpc = TcpIncoming::bind(local())?.with_nodelay(Some(true));
    println!("{}\n{}", http.local_addr()?, grpc.local_addr()?);
    use axum::serve::ListenerExt as _;
    tokio::spawn(serve(http.tap_io(|stream| _ = stream.set_nodelay(true))));
    tokio::spawn(Server::builder().serve_with_incoming(Echo, grpc));
    let device = Device::open_default()?;
    for mode in MODES {
        let workq = WorkQ::builder().depth(1024).mode(mode).build()?;
        let bind = || options().bind(&device, &workq, local());
        let (http, grpc) = (Listener::from(bind().await?), Listener::from(bind().await?));
        println!("{}\n{}", address(&http)?, address(&grpc)?);
        tokio::spawn(serve(http));
        tokio::spawn(Server::builder().serve_with_incoming(Echo, grpc.into_incoming()));
    }
    std::future::pending().await
}

fn address(listener: &Listener) -> Result<SocketAddr> {
    Ok(listener.tcp_addr().ok_or("it listens by TCP")?)
}

/// The addresses of both services on one transport.
struct Transport {
    http: SocketAddr,
    grpc: SocketAddr,
    /// The connector, or `None` for TCP.
    rdma: Option<RdmaConnector>,
}

impl Transport {
    async fn client(&self) -> Result<Client> {
        Ok(match &self.rdma {
            None => {
                let stream = TcpStream::connect(self.http).await?;
                stream.set_nodelay(true)?;
                Client::new(stream, false).await?
            }
            Some(rdma) => Client::new(rdma.connect(self.http).await?, false).await?,
        })
    }

    async fn echo(&self) -> Result<EchoClient> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc))?.tcp_nodelay(true);
        Ok(EchoClient::new(match &self.rdma {
            None => endpoint.connect().await?,
            Some(rdma) => {
                let connector = Connector::new(rdma.clone());
                endpoint.connect_with_connector(connector).await?
            }
        }))
    }
}

/// A connection, and the request that is repeated on it.
enum Connection {
    Get(Client, String, usize),
    Call(EchoClient, Bytes),
    Answer(tonic::Streaming<Bytes>, usize),
}

impl Connection {
    async fn new(job: Job, transport: &Transport) -> Result<Connection> {
        Ok(match job {
            Get(len) => Connection::Get(transport.client().await?, format!("/bytes/{len}"), len),
            Call(len) => Connection::Call(transport.echo().await?, vec![7; len].into()),
            Answer(len) => {
                let mut echo = transport.echo().await?;
                Connection::Answer(echo.repeat(vec![7; len].into()).await?, len)
            }
        })
    }

    async fn once(&mut self) -> Result {
        let (came, expected) = match self {
            Connection::Get(client, path, len) => (client.get(path).await?.len(), *len),
            Connection::Call(client, message) => {
                (client.say(message.clone()).await?.len(), message.len())
            }
            Connection::Answer(answers, len) => {
                (answers.try_next().await?.map_or(0, |it| it.len()), *len)
            }
        };
        match came == expected {
            true => Ok(()),
            false => Err("something else came back than was sent".into()),
        }
    }

    /// Repeats the request until `end`, at least once. Returns the number of requests.
    async fn until(&mut self, end: Instant) -> Result<f64> {
        let mut count = 0.0;
        loop {
            self.once().await?;
            count += 1.0;
            if Instant::now() >= end {
                return Ok(count);
            }
        }
    }
}

/// The result of a measurement: requests per second, and seconds of CPU time per request.
#[derive(Clone, Copy)]
struct Sample {
    rate: f64,
    cpu: f64,
}

async fn measure(
    case: &Case,
    transport: &Transport,
    time: Duration,
    server: u32,
) -> Result<Sample> {
    let &(_, job, connections, ..) = case;
    let connect = (0..connections).map(|_| Connection::new(job, transport));
    let mut all = try_join_all(connect).await?;
    // Warms up: buffers grow, and each connection gets its first answer.
    try_join_all(all.iter_mut().map(Connection::once)).await?;
    let cpu = || Ok::<_, nix::Error>(cpu_time(std::process::id())? + cpu_time(server)?);
    let (begun, before) = (Instant::now(), cpu()?);
    let end = begun + time;
    let counts = try_join_all(all.iter_mut().map(|it| it.until(end))).await?;
    let count: f64 = counts.iter().sum();
    Ok(Sample {
        rate: count / begun.elapsed().as_secs_f64(),
        cpu: (cpu()? - before) / count,
    })
}

/// Returns the CPU time that all threads of a process have used, in seconds:
/// clock_getcpuclockid(3). Ended threads are included, so that the time never decreases.
fn cpu_time(process: u32) -> nix::Result<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(process as i32))?;
    Ok(Duration::from(clock.now()?).as_secs_f64())
}

/// A server process that ends when this value is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn measure_all(args: &[String]) -> Result {
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |arg| arg.parse());
    let (rounds, time) = (number(0, 5)?, Duration::from_millis(number(1, 500)?));
    let mut child = Command::new(std::env::current_exe()?);
    let mut server = Other(child.arg("serve").stdout(Stdio::piped()).spawn()?);
    let out = server.0.stdout.take().ok_or("it was piped")?;
    let lines = BufReader::new(out).lines().take(2 * (1 + MODES.len()));
    let addrs: Vec<SocketAddr> = lines
        .map(|line| Ok(line?.parse()?))
        .collect::<Result<_>>()?;
    let device = Device::open_default()?;
    let mut transports = vec![];
    for (pair, mode) in addrs
        .chunks(2)
        .zip([None].into_iter().chain(MODES.map(Some)))
    {
        let rdma = mode.map(|mode| -> Result<_> {
            let workq = WorkQ::builder().depth(1024).mode(mode).build()?;
            Ok(options().connector(&device, &workq)?)
        });
        let (http, grpc, rdma) = (pair[0], pair[1], rdma.transpose()?);
        transports.push(Transport { http, grpc, rdma });
    }
    let runtime = runtime()?;
    println!("R10, over TCP: rate (to be reached), CPU time of a request");
    for case in &CASES {
        let measured = measure_case(case, &transports, rounds, time, server.0.id());
        println!("{:<38} {}", case.0, runtime.block_on(measured)?);
    }
    Ok(())
}

async fn measure_case(
    case: &Case,
    transports: &[Transport],
    rounds: u64,
    time: Duration,
    server: u32,
) -> Result<String> {
    let mut samples = vec![vec![]; transports.len()];
    for _ in 0..rounds {
        for (transport, samples) in transports.iter().zip(&mut samples) {
            samples.push(measure(case, transport, time, server).await?);
        }
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let over_tcp = |which: usize, figure: fn(&Sample) -> f64| {
        let pairs = samples[which].iter().zip(&samples[0]);
        median(pairs.map(|(it, tcp)| figure(it) / figure(tcp)).collect())
    };
    let rate = median(samples[0].iter().map(|it| it.rate).collect());
    let mut text = format!("tcp {rate:>8.0}/s");
    let goals = [("event", Some(case.3)), ("busy", case.4)];
    for (which, (mode, goal)) in (1..).zip(goals) {
        let goal = goal.map_or(String::new(), |goal| format!(" (>= {goal})"));
        let (rate, cpu) = (over_tcp(which, |it| it.rate), over_tcp(which, |it| it.cpu));
        text += &format!("  {mode} {rate:.2}x{goal}, {cpu:.2}x");
    }
    Ok(text)
}
