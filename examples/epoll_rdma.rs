//! An epoll loop on one thread, without a runtime and without futures, that handles messages,
//! receives, a wait for a sync event and a run of a graph.
//!
//! ```text
//! epoll_rdma [MESSAGES]
//! ```
//!
//! The loop has both ends of a connection. A timer sends the next message. The server, which keeps
//! receives posted, answers each message with the same bytes. After the last answer the client adds
//! to a sync event, for which the server waits. Then a graph copies the last answer and hashes the
//! copy.
//!
//! Each operation is posted with a word, a `u64` of the caller's choice. `WorkQ::progress` returns
//! that word with the result. In this program the word says which kind of operation was posted, and
//! its number.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio_doca::{
    Buf, BufPool, Device, Dma, Mmap, Rdma, WorkQ,
    error::JobError,
    graph::Graph,
    op::Output,
    sha::{Algorithm, Sha},
    sync_event::{Location, SyncEvent},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TIMER: u64 = 0;
const WORKQ: u64 = 1;
/// The number of receives that the server keeps posted.
const RECEIVES: u64 = 8;
const BYTES: usize = 256;
/// The loop gives up if no operation completes for this time.
const LIMIT: Duration = Duration::from_secs(10);

/// The kind of an operation that was posted, in the upper half of its word. The lower half is a
/// number.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Posted {
    Request = 1,
    ServerReceive,
    Answer,
    ClientReceive,
    Add,
    Wait,
    Run,
}

impl Posted {
    fn word(self, which: u64) -> u64 {
        (self as u64) << 32 | which
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let messages = match &args[..] {
        [] => Some(100),
        [messages] => messages
            .parse()
            .ok()
            .filter(|it| (1..=100_000).contains(it)),
        _ => None,
    };
    let Some(messages) = messages else {
        eprintln!("epoll_rdma: usage: epoll_rdma [MESSAGES], from 1 to 100000");
        return ExitCode::FAILURE;
    };
    match run(messages) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epoll_rdma: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(messages: u64) -> Result<()> {
    let device = Device::open_default()?;
    let mmap = Mmap::builder().device(&device).alloc(64 * BYTES)?;
    let pool = BufPool::builder(&mmap).element_size(BYTES).build()?;
    let workq = WorkQ::builder().build()?;
    let client = Rdma::builder(&device).attach(&workq)?;
    let server = Rdma::builder(&device).attach(&workq)?;
    let blobs = (client.export()?, server.export()?);
    // Both ends are in this process, so each can wait for the other.
    client.connect(&blobs.1).wait()?;
    server.connect(&blobs.0).wait()?;
    let cpu = Location::Cpu(&device);
    let event = SyncEvent::builder()
        .publisher(cpu)
        .subscriber(cpu)
        .attach(&workq)?;

    let timer = timer()?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
    epoll.add(
        workq.event_handle()?,
        EpollEvent::new(EpollFlags::EPOLLIN, WORKQ),
    )?;

    let rooms = (0..RECEIVES)
        .map(|_| pool.try_alloc())
        .collect::<std::result::Result<Vec<_>, _>>()?;
    for (which, room) in (0..).zip(&rooms) {
        server.recv(room).post(Posted::ServerReceive.word(which))?;
    }
    event.wait_gt(0).post(Posted::Wait.word(0))?;

    let (request, answer) = (pool.try_alloc()?, pool.try_alloc()?);
    let (copied, digest) = (pool.try_alloc()?, pool.try_alloc()?);
    let (mut sent, mut answered, mut idle, mut over) = (0, 0, true, false);
    let (mut said, mut last_end) = (String::new(), Instant::now());
    while !over {
        workq.arm();
        let mut events = [EpollEvent::empty(); 2];
        let ready = match epoll.wait(&mut events, EpollTimeout::from(1000_u16)) {
            Err(Errno::EINTR) => 0,
            ready => ready?,
        };
        if last_end.elapsed() > LIMIT {
            return Err(format!("nothing ended for {LIMIT:?}, after {answered} answers").into());
        }
        if events[..ready].iter().any(|event| event.data() == TIMER) {
            nix::unistd::read(&timer, &mut [0; 8])?;
            if idle && sent < messages {
                fill(&request, sent)?;
                answer.reset_data_len()?;
                client
                    .recv(&answer)
                    .post(Posted::ClientReceive.word(sent))?;
                client.send(&request).post(Posted::Request.word(sent))?;
                (sent, idle) = (sent + 1, false);
            }
        }
        workq.clear();
        let mut ends: Vec<(u64, std::result::Result<Output, JobError>)> = Vec::new();
        workq.progress(|word, result| ends.push((word, result)));
        if !ends.is_empty() {
            last_end = Instant::now();
        }
        for (word, result) in ends {
            let which = word & u64::from(u32::MAX);
            match (word >> 32, result?) {
                // The server has received a message, and answers with the same Buf.
                (SERVER_RECEIVE, Output::Received(_)) => {
                    let room = &rooms[which as usize];
                    server.send(room).post(Posted::Answer.word(which))?;
                }
                // The client has received the answer. The receive is posted again.
                (ANSWER, _) => {
                    let room = &rooms[which as usize];
                    room.reset_data_len()?;
                    server.recv(room).post(Posted::ServerReceive.word(which))?;
                }
                (CLIENT_RECEIVE, Output::Received(received)) => {
                    if received.len != BYTES || answer.data()?[..] != pattern(which) {
                        return Err(format!("answer {which} is not what was sent").into());
                    }
                    (answered, idle) = (answered + 1, true);
                    if answered == messages {
                        event.add(1).post(Posted::Add.word(0))?;
                    }
                }
                // The client has signaled that it has all answers.
                (WAIT, Output::Value(value)) => {
                    let run = last(&device, &workq, &answer, &copied, &digest)?;
                    run.into_run().post(Posted::Run.word(0))?;
                    said = format!("the event is {value}");
                }
                (RUN, Output::Run(ended)) => {
                    let (_instance, result) = *ended;
                    result?;
                    over = true;
                }
                // A request was sent, or the client has added to the event.
                _ => {}
            }
        }
    }
    if copied.data()?[..] != pattern(messages - 1) || digest.data_len() != 32 {
        return Err("the graph did not copy and hash the last answer".into());
    }
    println!(
        "{answered} messages were answered, {said}, and a graph copied and hashed the last one"
    );
    Ok(())
}

const SERVER_RECEIVE: u64 = Posted::ServerReceive as u64;
const ANSWER: u64 = Posted::Answer as u64;
const CLIENT_RECEIVE: u64 = Posted::ClientReceive as u64;
const WAIT: u64 = Posted::Wait as u64;
const RUN: u64 = Posted::Run as u64;

/// Makes an instance of a graph that copies `src` and hashes the copy.
fn last(
    device: &Device,
    workq: &WorkQ,
    src: &Buf,
    copied: &Buf,
    digest: &Buf,
) -> Result<tokio_doca::graph::Instance> {
    let dma = Dma::builder(device).attach(workq)?;
    let sha = Sha::builder(device).attach(workq)?;
    let mut graph = Graph::builder();
    let copy = graph.dma_copy(&dma);
    let hash = graph.sha(&sha, Algorithm::Sha256);
    graph.depends(hash, copy);
    let mut instance = graph.build()?.instance_on(workq)?;
    instance.set(copy, (src, copied))?;
    instance.set(hash, (copied, digest))?;
    Ok(instance)
}

fn pattern(number: u64) -> [u8; BYTES] {
    std::array::from_fn(|at| (at as u64).wrapping_add(number) as u8)
}

fn fill(buf: &Buf, number: u64) -> Result<()> {
    buf.reset_data_len()?;
    buf.extend_from_slice(&pattern(number))?;
    Ok(())
}

/// Returns a timer that is readable every millisecond.
fn timer() -> Result<OwnedFd> {
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
    let period = Expiration::Interval(TimeSpec::milliseconds(1));
    timer.set(period, TimerSetTimeFlags::empty())?;
    Ok(timer.as_fd().try_clone_to_owned()?)
}
