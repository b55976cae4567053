//! Measures how long a message takes to another process and back, and how many messages arrive in a
//! second: by busy-polling, and event-driven.
//!
//! ```text
//! rdma_pingpong [client|server] [--size BYTES] [--iterations N] [FLAG VALUE]...
//! ```
//!
//! Without a role, the program starts its own server. The immediate value of a message tells the
//! server what to do. The server echoes the messages of round trips, and only receives those of the
//! rate measurement, except for the last, which it echoes too.
mod rdma_sample;

use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::process::{Child, Command, ExitCode, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::future::try_join;
use futures::stream::{self, StreamExt, TryStreamExt};
use rdma_sample::{Args, Flag, Meeting, Result, Sample, bytes, device, rdma, room, say};
use tokio::task::unconstrained;
use tokio::time::timeout;
use tokio_doca::{Buf, BufPool, Mmap, Mode, Rdma, WorkQ, mem::Access};

const SAMPLE: Sample = Sample {
    name: "rdma_pingpong",
    about: "Measures messages between two processes.",
    roles: ["client", "server"],
    alone: true,
    flags: &[
        Flag {
            short: "",
            long: "size",
            value: "BYTES",
            help: "of a message, at most 65536 (default: 64)",
            role: "client",
        },
        Flag {
            short: "-n",
            long: "iterations",
            value: "N",
            help: "messages of each measurement (default: 20000)",
            role: "client",
        },
    ],
};

/// Each measurement stops after this time, however many messages it has sent.
const LIMIT: Duration = Duration::from_millis(500);
/// A mode that has not ended by this time waits for a message that was lost.
const DEADLINE: Duration = Duration::from_secs(5);
const LATE: &str = "the messages did not end within 5s";
/// The size of the largest message in bytes.
const LARGEST: usize = 65_536;
/// The number of messages in flight while the rate is measured.
const IN_FLIGHT: usize = 16;

/// The values of an immediate that tell the server what to do. Messages without one are only
/// received.
const ECHO: u32 = 1;
const BUSY_POLL: u32 = 2;
const EVENT: u32 = 3;
const END: u32 = 4;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let session = async |args: &Args| match args.role() {
        "server" => server(args).await,
        _ => client(args).await,
    };
    rdma_sample::run(&SAMPLE, session).await
}

async fn server(args: &Args) -> Result<()> {
    let device = device(args)?;
    let workq = WorkQ::builder().build()?;
    let mmap = Mmap::builder().device(&device);
    let mmap = mmap.alloc(2 * IN_FLIGHT * LARGEST)?;
    let pool = BufPool::builder(&mmap).element_size(LARGEST).build()?;
    let rdma = rdma(args, &device, Access::empty(), &workq)?;
    let _meeting = Meeting::connect(args, &rdma).await?;
    spin(&workq, serve(&rdma, &pool, &workq))
}

async fn serve(rdma: &Rdma, pool: &BufPool, workq: &WorkQ) -> Result<()> {
    let mut messages = pin!(rdma.recv_stream(pool, IN_FLIGHT));
    while let Some(message) = messages.try_next().await? {
        let mode = match message.received.immediate {
            None => continue,
            Some(ECHO) => {
                rdma.send(message.buf.as_ref().ok_or("an echo of nothing")?)
                    .await?;
                continue;
            }
            Some(BUSY_POLL) => Mode::BusyPoll,
            Some(EVENT) => Mode::EventDriven,
            Some(END) => return Ok(()),
            Some(other) => return Err(format!("the client asks for {other}").into()),
        };
        workq.set_mode(mode)?;
        rdma.send(()).await?;
    }
    Err("the client ends without a word".into())
}

async fn client(args: &Args) -> Result<()> {
    let size: usize = args.number("size", 64)?;
    let iterations = args.number("iterations", 20_000)?;
    if !(1..=LARGEST).contains(&size) || iterations == 0 {
        return Err(format!("--size is 1 to {LARGEST}, and -n is not 0").into());
    }
    let device = device(args)?;
    let workq = WorkQ::builder().build()?;
    let (_from, src) = room(&device, Access::default(), size)?;
    src.extend_from_slice(&(0..size).map(|i| i as u8).collect::<Vec<_>>())?;
    let (_to, dst) = room(&device, Access::default(), size)?;
    let rdma = rdma(args, &device, Access::empty(), &workq)?;
    let alone;
    let (_server, args) = match args.role() {
        "client" => (None, args),
        _ => {
            let (server, address) = Server::start(args)?;
            alone = args.with("tcp", address);
            (Some(server), &alone)
        }
    };
    let _meeting = Meeting::connect(args, &rdma).await?;
    let pair = Pair {
        rdma: &rdma,
        src: &src,
        dst: &dst,
        iterations,
    };

    for (name, mode, asks) in [
        ("busy-poll", Mode::BusyPoll, BUSY_POLL),
        ("event", Mode::EventDriven, EVENT),
    ] {
        // The WorkQ is still in the previous mode. The runtime runs here, so that its timers work.
        let asked = try_join(rdma.recv(()), rdma.send_imm((), asks));
        timeout(DEADLINE, asked).await.map_err(|_| LATE)??;
        workq.set_mode(mode)?;
        let measure = async { Result::Ok((pair.round_trips().await?, pair.rate().await?)) };
        let (times, rate) = match mode {
            Mode::BusyPoll => spin(&workq, in_time(measure))?,
            _ => timeout(DEADLINE, measure).await.map_err(|_| LATE)??,
        };
        let [p50, p99] = [50, 99].map(|percent| times[(times.len() - 1) * percent / 100]);
        let (trips, gigabytes) = (times.len(), rate * size as f64 / 1e9);
        say(format_args!(
            "{name:>10}: {trips} round trips of {size} bytes, p50 {p50:>7.1?}, p99 {p99:>7.1?}; \
             {rate:>9.0} messages/s, {gigabytes:.3} GB/s"
        ))?;
    }
    rdma.send_imm((), END).await?;
    Ok(())
}

/// The client's side of a measurement.
struct Pair<'a> {
    rdma: &'a Rdma,
    src: &'a Buf,
    dst: &'a Buf,
    iterations: usize,
}

impl Pair<'_> {
    /// Measures round trips, and returns their times in ascending order.
    async fn round_trips(&self) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(self.iterations.min(1 << 20));
        let start = Instant::now();
        while times.len() < self.iterations && (times.is_empty() || start.elapsed() < LIMIT) {
            let begun = Instant::now();
            self.echo().await?;
            times.push(begun.elapsed());
            self.verify()?;
        }
        times.sort_unstable();
        Ok(times)
    }

    /// Makes one round trip.
    async fn echo(&self) -> Result<()> {
        self.dst.reset_data_len()?;
        try_join(self.rdma.recv(self.dst), self.rdma.send_imm(self.src, ECHO)).await?;
        Ok(())
    }

    /// Fails if the echo is not the message that was sent.
    fn verify(&self) -> Result<()> {
        if bytes(self.dst)? != bytes(self.src)? {
            return Err("the echo is another message".into());
        }
        Ok(())
    }

    /// Returns the number of messages per second, all of which have arrived.
    async fn rate(&self) -> Result<f64> {
        let begun = Instant::now();
        let sent = stream::iter(0..self.iterations)
            .take_while(|&sent| std::future::ready(sent == 0 || begun.elapsed() < LIMIT))
            .map(|_| self.rdma.send(self.src))
            .buffered(IN_FLIGHT)
            .try_fold(0, async |sent, _| Ok(sent + 1))
            .await?;
        self.echo().await?;
        let time = begun.elapsed();
        self.verify()?;
        Ok((sent + 1) as f64 / time.as_secs_f64())
    }
}

/// Runs a future on this thread, in busy-polling mode. The runtime does not run meanwhile, so that
/// the future never yields to it.
fn spin<T>(workq: &WorkQ, future: impl Future<Output = T>) -> T {
    workq.block_on(unconstrained(future))
}

/// Polls a future until `DEADLINE`. Without a runtime there is no timer: each poll checks the
/// clock.
async fn in_time<T>(measured: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut measured, end) = (pin!(measured), Instant::now() + DEADLINE);
    let look = poll_fn(|cx| match measured.as_mut().poll(cx) {
        Poll::Pending if Instant::now() > end => Poll::Ready(Err(LATE.into())),
        polled => polled,
    });
    look.await
}

/// A server in a child process, which ends with this value.
struct Server(Child);

impl Server {
    /// Starts the server, and returns it with its address.
    fn start(args: &Args) -> Result<(Server, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["server", "--tcp", "127.0.0.1:0"]);
        for long in ["device", "gid-index", "timeout"] {
            if let Some(value) = args.get(long) {
                command.arg(format!("--{long}={value}"));
            }
        }
        // The client reports errors of the server too.
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut server = Server(command.stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        if let Some(out) = server.0.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("Listening on ");
        let address = address.ok_or("the server did not start")?.to_owned();
        Ok((server, address))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
