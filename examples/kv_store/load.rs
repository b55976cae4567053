//! Measures how fast clients get values: by one-sided reads, or over TCP, where clients batch their
//! requests and have several gets in flight.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::Barrier;
use tokio::task::yield_now;
use tokio_doca::{Device, Mode, WorkQ};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use zerocopy::{FromBytes, IntoBytes};

use super::Result;
use super::client::Client;
use super::server::cpu_time;
use super::wire::*;

/// How long a client tries to reach the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// The number of gets that a client makes by reads before the next client has its turn.
const TURN: usize = 32;

/// The parameters of a measurement.
pub(crate) struct Load {
    pub(crate) clients: usize,
    /// The size of a value in bytes.
    pub(crate) value: usize,
    pub(crate) keys: usize,
    pub(crate) time: Duration,
    /// The WorkQ mode of the clients, or `None` for clients over TCP.
    pub(crate) mode: Option<Mode>,
    /// The number of threads that run the clients.
    pub(crate) threads: usize,
    /// The number of requests that a TCP client has in flight.
    pub(crate) depth: usize,
    /// How many of 100 operations are puts.
    pub(crate) puts: u64,
}

/// The result of a client: the nanoseconds of each get, and the number of puts.
type Done = (Vec<u32>, usize);

/// A generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

fn key(number: u64) -> [u8; 16] {
    (u128::from(number) | 0x006b_6579 << 64).to_be_bytes()
}

fn nanos(since: Instant, until: Instant) -> u32 {
    let nanos = until.duration_since(since).as_nanos();
    nanos.try_into().unwrap_or(u32::MAX)
}

pub(crate) async fn run(address: &str, device: &Device, load: Load) -> Result<()> {
    let mut owner = Client::new(address, device, &WorkQ::builder().build()?, PATIENCE)?;
    for number in 0..load.keys as u64 {
        let value = vec![number as u8; load.value];
        owner.put(&key(number), &value).await?;
    }
    // All clients begin together, once each of them knows where the values are.
    let ready = Arc::new(Barrier::new(load.clients + 1));
    let load = Arc::new(load);
    let threads = (0..load.threads.min(load.clients)).map(|thread| {
        let (load, ready) = (Arc::clone(&load), Arc::clone(&ready));
        let (address, device) = (address.to_owned(), device.clone());
        tokio::task::spawn_blocking(move || clients(thread, &address, &device, &load, &ready))
    });
    let threads = threads.collect::<Vec<_>>();
    ready.wait().await;
    let before = (cpu_time()?, served(&mut owner).await?);
    let begun = Instant::now();
    ready.wait().await;
    let (mut times, mut puts) = (Vec::new(), 0);
    for thread in threads {
        let done = thread.await??;
        times.extend(done.0);
        puts += done.1;
    }
    let took = begun.elapsed();
    let (used, served) = (cpu_time()? - before.0, served(&mut owner).await? - before.1);
    times.sort_unstable();
    let gets = times.len();
    if gets == 0 {
        return Err("no get was done".into());
    }
    let at = |share: f64| f64::from(times[((gets - 1) as f64 * share) as usize]) / 1000.0;
    let rate = |count: usize| count as f64 / took.as_secs_f64();
    let per_get = |nanos: u64| nanos as f64 / gets as f64 / 1000.0;
    let (clients, value, name) = (load.clients, load.value, load.name());
    writeln!(
        io::stdout(),
        "{name}: {clients} clients, values of {value} bytes: {:.0} gets/s, p50 {:.2} us, \
         p99 {:.2} us, p99.9 {:.2} us; {:.0} puts/s; CPU per get: clients {:.3} us, server {:.3} us",
        rate(gets),
        at(0.5),
        at(0.99),
        at(0.999),
        rate(puts),
        per_get(used),
        per_get(served),
    )?;
    Ok(())
}

/// Returns the CPU time of the server.
async fn served(client: &mut Client) -> Result<u64> {
    let time = client.ask(Verb::Time, &[], &[]).await?;
    Ok(time.map_or(0, |time| time.version))
}

impl Load {
    fn name(&self) -> &'static str {
        match self.mode {
            None => "tcp",
            Some(Mode::BusyPoll) => "busy",
            Some(Mode::EventDriven) => "event",
            Some(_) => "hybrid",
        }
    }
}

/// Runs the clients of one thread, with a runtime and a WorkQ of their own.
fn clients(
    thread: usize,
    address: &str,
    device: &Device,
    load: &Arc<Load>,
    ready: &Arc<Barrier>,
) -> Result<Done> {
    let workq = WorkQ::builder().mode(load.mode.unwrap_or_default());
    let workq = workq.build()?;
    let client = |seed: usize| {
        let (load, ready, random) = (Arc::clone(load), Arc::clone(ready), Random(seed as u64));
        let client = Client::new(address, device, &workq, PATIENCE);
        let address = address.to_owned();
        async move {
            match load.mode {
                None => by_tcp(&address, &load, random, &ready).await,
                Some(_) => by_reads(client?, &load, random, &ready).await,
            }
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let seeds = (thread..load.clients).step_by(load.threads);
        let tasks: Vec<_> = seeds.map(|seed| tokio::spawn(client(seed))).collect();
        let (mut times, mut puts) = (Vec::new(), 0);
        for task in tasks {
            let done = task.await??;
            times.extend(done.0);
            puts += done.1;
        }
        Ok((times, puts))
    })
}

async fn by_reads(
    mut client: Client,
    load: &Load,
    mut random: Random,
    ready: &Barrier,
) -> Result<Done> {
    let (mut times, mut puts, value) = (Vec::new(), 0, vec![1; load.value]);
    for number in 0..load.keys as u64 {
        client.get(&key(number)).await?;
    }
    ready.wait().await;
    ready.wait().await;
    let begun = Instant::now();
    loop {
        let mut asked = Instant::now();
        for _ in 0..TURN {
            let key = key(random.below(load.keys as u64));
            let put = load.puts > 0 && random.below(100) < load.puts;
            if put {
                client.put(&key, &value).await?;
                puts += 1;
                asked = Instant::now();
                continue;
            }
            let got = client.get(&key).await?.ok_or("a key is gone")?;
            let now = Instant::now();
            times.push(nanos(mem::replace(&mut asked, now), now));
            if got.data.len() != value.len() {
                return Err("another value".into());
            }
        }
        if begun.elapsed() > load.time {
            return Ok((times, puts));
        }
        yield_now().await;
    }
}

async fn by_tcp(address: &str, load: &Load, mut random: Random, ready: &Barrier) -> Result<Done> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_u8(BY_TCP).await?;
    let burst = load.depth * (MAX_KEY + load.value);
    let mut frames = Framed::with_capacity(stream, LengthDelimitedCodec::new(), burst);
    frames.set_backpressure_boundary(2 * burst);
    let (mut times, mut puts, value) = (Vec::new(), 0, vec![1; load.value]);
    let (mut asked, client, mut id) = (VecDeque::new(), getrandom::u32()?, 0);
    ready.wait().await;
    ready.wait().await;
    let begun = Instant::now();
    let mut late = false;
    while !late || !asked.is_empty() {
        while !late && asked.len() < load.depth {
            id += 1;
            let key = key(random.below(load.keys as u64));
            let put = load.puts > 0 && random.below(100) < load.puts;
            let (verb, value) = match put {
                true => (Verb::Put, &value[..]),
                false => (Verb::Get, &[][..]),
            };
            let mut frame = BytesMut::with_capacity(ASK + key.len() + value.len());
            frame.extend_from_slice(Ask::new(verb, client, id, &key).as_bytes());
            frame.extend_from_slice(&key);
            frame.extend_from_slice(value);
            frames.feed(frame.freeze()).await?;
            asked.push_back((id, put, Instant::now()));
        }
        SinkExt::<Bytes>::flush(&mut frames).await?;
        let mut next = frames.next().await;
        loop {
            let frame = next.ok_or("the server has left")??;
            let (id, put, begun) = asked.pop_front().ok_or("an answer to nothing")?;
            match Reply::read_from_prefix(&frame) {
                Ok((reply, _)) if reply.id != id || reply.status != DONE => {
                    return Err("another answer".into());
                }
                Ok(_) if put => puts += 1,
                Ok((_, got)) if got.len() == value.len() => {
                    times.push(nanos(begun, Instant::now()));
                }
                _ => return Err("another value".into()),
            }
            match frames.next().now_or_never() {
                Some(more) if !asked.is_empty() => next = more,
                _ => break,
            }
        }
        late = begun.elapsed() > load.time;
    }
    Ok((times, puts))
}
