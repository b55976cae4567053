//! Checks random programs of two connected `Rdma` contexts against a model: messages, receives,
//! one-sided operations, atomics, dropped operations and resets, in any order. `PROPTEST_CASES`
//! sets the number of cases.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use futures::FutureExt;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::device::{adapter, assert_told, needs_soft};
use support::rdma::{REMOTE, Setup, Side, connect};
use support::*;
use tokio_doca::{
    Buf, BufPool, Mmap, Mode,
    error::{JobError, Reason},
    mem::{Access, RemoteMmap},
    rdma::{RdmaState, Received, RecvOpcode},
};

/// The bytes of memory that programs use, and of the longest message.
const LEN: usize = 2000;
/// The most jobs, and the most receives, of a side in flight.
const MOST: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize, Option<u32>),
    Recv(usize),
    Write(usize, usize, usize, Option<u32>),
    Read(usize, usize, usize),
    FetchAdd(usize, usize, u64),
    CompareSwap(usize, usize, u64),
    /// Drops an operation of the jobs (`true`) or of the receives.
    Drop(usize, bool, prop::sample::Index),
    /// Sends a message that is longer than every receive.
    TooLong(usize),
    Reset(usize),
    /// Waits until everything that can complete has completed.
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0..2_usize;
    let len = prop_oneof![1..120_usize, 1..LEN];
    let immediate = prop::option::of(any::<u32>());
    prop_oneof![
        8 => (side.clone(), 0..LEN, immediate.clone()).prop_map(|(s, n, i)| Step::Send(s, n, i)),
        9 => side.clone().prop_map(Step::Recv),
        5 => (side.clone(), 0..LEN, len.clone(), immediate).prop_map(|(s, a, n, i)| Step::Write(s, a, n, i)),
        4 => (side.clone(), 0..LEN, len).prop_map(|(s, a, n)| Step::Read(s, a, n)),
        2 => (side.clone(), 0..LEN / 8, any::<u64>()).prop_map(|(s, a, n)| Step::FetchAdd(s, a * 8, n)),
        2 => (side.clone(), 0..LEN / 8, 0..2_u64).prop_map(|(s, a, n)| Step::CompareSwap(s, a * 8, n)),
        4 => (side.clone(), any::<bool>(), any::<prop::sample::Index>()).prop_map(|(s, j, n)| Step::Drop(s, j, n)),
        1 => side.clone().prop_map(Step::TooLong),
        1 => side.prop_map(Step::Reset),
        6 => Just(Step::Settle),
    ]
}

/// A received message: its length, opcode and immediate.
type Came = (usize, RecvOpcode, Option<u32>);

type Op<T> = Pin<Box<dyn Future<Output = Result<T, JobError>>>>;

#[derive(Clone, Debug)]
enum Work {
    Send(Vec<u8>, Option<u32>),
    Write(usize, Vec<u8>, Option<u32>),
    Read(usize, usize),
    FetchAdd(usize, u64),
    CompareSwap(usize, u64, u64),
}

struct Job {
    work: Work,
    /// True if its bytes are written, and it waits for a receive.
    written: bool,
    op: Option<(Op<u64>, Buf)>,
}

/// A posted receive. Its operation may have been dropped.
struct Place {
    op: Option<(Op<Received>, Buf)>,
    came: Option<(Vec<u8>, Came)>,
}

struct End {
    side: Side,
    /// Memory that the peer may access. A pool has its range, so RemoteBufs of this memory take no
    /// leases, although the peer is in this process (ADR 0022).
    memory: Buf,
    /// The peer's memory.
    remote: RemoteMmap,
    bytes: Vec<u8>,
    jobs: VecDeque<Job>,
    /// The receives in the order of posting. Those that got messages come first.
    places: VecDeque<Place>,
    fill: u8,
}

struct Model {
    ends: [End; 2],
}

impl End {
    fn submit(&mut self, work: Work, op: Op<u64>, buf: Buf) {
        let op = Some((op, buf));
        self.jobs.push_back(Job {
            work,
            written: false,
            op,
        });
    }

    /// Returns a write that waits for its receive. An adapter may have written any of its packets.
    fn half_written(&self) -> Option<(usize, Vec<u8>)> {
        match &self.jobs.front().filter(|_| adapter().is_some())?.work {
            Work::Write(from, bytes, Some(_)) => Some((*from, bytes.clone())),
            _ => None,
        }
    }

    fn message(&mut self, len: usize) -> (Vec<u8>, Buf) {
        self.fill = self.fill.wrapping_add(1);
        let bytes = pattern(self.fill, len);
        let buf = self.side.filled(&bytes);
        (bytes, buf)
    }

    /// Polls every operation that is held, and checks that those that must wait are pending.
    fn poll(&mut self) {
        for job in &mut self.jobs {
            if let Some((op, _)) = &mut job.op {
                let polled = op.as_mut().now_or_never();
                assert!(polled.is_none(), "{:?}: {polled:?}", job.work);
            }
        }
        for place in self.places.iter_mut().filter(|place| place.came.is_none()) {
            if let Some((op, _)) = &mut place.op {
                let polled = op.as_mut().now_or_never();
                assert!(polled.is_none(), "{polled:?}");
            }
        }
    }
}

/// Delivers a message to the oldest receive that has no message yet. Returns false if every receive
/// has one.
fn deliver(places: &mut VecDeque<Place>, bytes: &[u8], received: Came) -> bool {
    let Some(place) = places.iter_mut().find(|place| place.came.is_none()) else {
        return false;
    };
    place.came = Some((bytes.to_vec(), received));
    true
}

fn received(opcode: RecvOpcode, len: usize, immediate: Option<u32>) -> Came {
    let opcode = match (opcode, immediate) {
        (RecvOpcode::Send, Some(_)) => RecvOpcode::SendImm,
        (opcode, _) => opcode,
    };
    (len, opcode, immediate)
}

impl Model {
    fn new(setup: Setup) -> Model {
        let [one, other] = [(); 2].map(|()| Side::new(setup));
        connect(&one.rdma, &other.rdma);
        let memories = [&one, &other].map(|side| {
            let access = Access::LOCAL_READ_WRITE | REMOTE;
            let mmap = Mmap::builder().device(&side.device).access(access);
            let mmap = mmap.alloc(ELEMENT).unwrap();
            let pool = BufPool::builder(&mmap).element_size(ELEMENT);
            let memory = pool.build().unwrap().try_alloc().unwrap();
            memory.set_data(0, ELEMENT).unwrap();
            (memory, mmap.export_rdma(&side.device).unwrap())
        });
        let [(mine, first), (theirs, second)] = memories;
        let mut parts = [(mine, one.import(&second)), (theirs, other.import(&first))].into_iter();
        let ends = [one, other].map(|side| (side, parts.next().unwrap()));
        let ends = ends.map(|(side, (memory, remote))| End {
            side,
            memory,
            remote,
            bytes: vec![0; LEN + 8],
            jobs: VecDeque::new(),
            places: VecDeque::new(),
            fill: 0,
        });
        Model { ends }
    }

    async fn step(&mut self, step: &Step) {
        let end = |side: usize| &self.ends[side];
        match *step {
            Step::Send(side, ..)
            | Step::Write(side, ..)
            | Step::Read(side, ..)
            | Step::FetchAdd(side, ..)
            | Step::CompareSwap(side, ..)
                if end(side).jobs.len() == MOST =>
            {
                return;
            }
            Step::Recv(side) if end(side).places.len() == MOST => return,
            _ => {}
        }
        match *step {
            Step::Send(at, len, immediate) => {
                let end = &mut self.ends[at];
                let (bytes, buf) = end.message(len);
                let rdma = &end.side.rdma;
                let op: Op<u64> = match (len, immediate) {
                    (0, None) => begun(rdma.send(()).owned()),
                    (0, Some(immediate)) => begun(rdma.send_imm((), immediate).owned()),
                    (_, None) => begun(rdma.send(buf.clone()).owned()),
                    (_, Some(immediate)) => begun(rdma.send_imm(buf.clone(), immediate).owned()),
                };
                end.submit(Work::Send(bytes, immediate), op, buf);
            }
            Step::Write(at, from, len, immediate) => {
                let end = &mut self.ends[at];
                let len = len.min(LEN - from);
                let (bytes, buf) = end.message(len);
                let there = end.remote.buf(from..from + len).unwrap();
                let rdma = &end.side.rdma;
                let op: Op<u64> = match immediate {
                    None => begun(rdma.write(buf.clone(), there).owned()),
                    Some(immediate) => begun(rdma.write_imm(buf.clone(), there, immediate).owned()),
                };
                end.submit(Work::Write(from, bytes, immediate), op, buf);
            }
            Step::Read(at, from, len) => {
                let end = &mut self.ends[at];
                let len = len.min(LEN - from);
                let (there, buf) = (end.remote.buf(from..from + len).unwrap(), end.side.empty());
                let op = begun(end.side.rdma.read(there, buf.clone()).owned());
                end.submit(Work::Read(from, len), op, buf);
            }
            Step::FetchAdd(at, from, add) => {
                let end = &mut self.ends[at];
                let there = end.remote.buf(from..from + 8).unwrap();
                let op = started(end.side.rdma.fetch_add(there, add).owned());
                let buf = end.side.empty();
                end.submit(Work::FetchAdd(from, add), op, buf);
            }
            Step::CompareSwap(at, from, right) => {
                let word = &self.ends[1 - at].bytes[from..from + 8];
                let word = u64::from_ne_bytes(word.try_into().unwrap());
                let (compare, swap) = (word.wrapping_add(right), word ^ 1);
                let end = &mut self.ends[at];
                let there = end.remote.buf(from..from + 8).unwrap();
                let op = started(end.side.rdma.compare_swap(there, compare, swap).owned());
                let buf = end.side.empty();
                end.submit(Work::CompareSwap(from, compare, swap), op, buf);
            }
            Step::Recv(at) => {
                let end = &mut self.ends[at];
                let buf = end.side.empty();
                buf.set_data(ELEMENT - LEN, 0).unwrap();
                let op = end.side.rdma.recv(buf.clone()).owned();
                let op = Box::pin(tokio::task::unconstrained(op));
                let mut op: Op<Received> = op;
                // The new receive adopts the oldest orphan.
                let orphan = end.places.iter().position(|place| place.op.is_none());
                let at = orphan.unwrap_or_else(|| {
                    end.places.push_back(Place {
                        op: None,
                        came: None,
                    });
                    end.places.len() - 1
                });
                let polled = op.as_mut().now_or_never();
                let place = &mut end.places[at];
                match polled {
                    None => place.op = Some((op, buf)),
                    // A message may have come already.
                    Some(result) => {
                        let op = Box::pin(std::future::ready(result));
                        place.op = Some((op, buf));
                    }
                }
            }
            Step::Drop(at, true, index) if !self.ends[at].jobs.is_empty() => {
                let jobs = &mut self.ends[at].jobs;
                let index = index.index(jobs.len());
                jobs[index].op = None;
            }
            Step::Drop(at, false, index) if !self.ends[at].places.is_empty() => {
                // A message that came may already belong to the operation, and would be lost with
                // it.
                self.settle().await;
                let places = &mut self.ends[at].places;
                if !places.is_empty() {
                    let index = index.index(places.len());
                    places[index].op = None;
                }
            }
            Step::Drop(..) => {}
            Step::TooLong(at) => {
                self.settle().await;
                let (one, other) = (&self.ends[at], &self.ends[1 - at]);
                let full = other.places.iter().all(|place| place.came.is_some());
                if !one.jobs.is_empty() || full {
                    return;
                }
                let long = one.side.filled(&vec![1; ELEMENT]);
                let error = in_time("a refusal", one.side.rdma.send(&long)).await;
                assert_told(error.unwrap_err(), Reason::MessageTooLong);
                drop(long);
                self.anew().await;
            }
            Step::Reset(at) => {
                self.settle().await;
                self.ends[at].side.rdma.reset().unwrap();
                self.anew().await;
            }
            Step::Settle => self.settle().await,
        }
    }

    /// Does in the model all jobs that can be done, and returns them.
    fn advance(&mut self) -> Vec<(usize, Job, u64, Vec<u8>)> {
        let mut done = Vec::new();
        for at in [0, 1] {
            let [one, other] = &mut self.ends;
            let (end, peer) = if at == 0 { (one, other) } else { (other, one) };
            while let Some(job) = end.jobs.front_mut() {
                let word = |at: usize| peer.bytes[at..at + 8].try_into().map(u64::from_ne_bytes);
                let (answer, mut read);
                read = Vec::new();
                match &job.work {
                    Work::Send(bytes, immediate) => {
                        let received = received(RecvOpcode::Send, bytes.len(), *immediate);
                        if !deliver(&mut peer.places, bytes, received) {
                            break;
                        }
                        answer = bytes.len() as u64;
                    }
                    Work::Write(from, bytes, immediate) => {
                        let received = received(RecvOpcode::WriteImm, bytes.len(), *immediate);
                        let delivered =
                            immediate.is_none() || deliver(&mut peer.places, &[], received);
                        // An adapter writes the last packet once there is a receive, and the
                        // packets before it at any time.
                        if !job.written && (delivered || adapter().is_none()) {
                            peer.bytes[*from..from + bytes.len()].copy_from_slice(bytes);
                            job.written = true;
                        }
                        if !delivered {
                            break;
                        }
                        answer = bytes.len() as u64;
                    }
                    Work::Read(from, len) => {
                        read = peer.bytes[*from..from + len].to_vec();
                        answer = *len as u64;
                    }
                    Work::FetchAdd(from, add) => {
                        answer = word(*from).unwrap();
                        let sum = answer.wrapping_add(*add).to_ne_bytes();
                        peer.bytes[*from..from + 8].copy_from_slice(&sum);
                    }
                    Work::CompareSwap(from, compare, swap) => {
                        answer = word(*from).unwrap();
                        if answer == *compare {
                            peer.bytes[*from..from + 8].copy_from_slice(&swap.to_ne_bytes());
                        }
                    }
                }
                let job = end.jobs.pop_front().unwrap();
                done.push((at, job, answer, read));
            }
        }
        done
    }

    async fn settle(&mut self) {
        for (_, job, answer, read) in self.advance() {
            let Some((op, buf)) = job.op else { continue };
            let result = in_time("a job", op).await;
            assert_eq!(result, Ok(answer), "{:?}", job.work);
            if let Work::Read(..) = job.work {
                assert_eq!(bytes(&buf), read);
            }
        }
        for end in &mut self.ends {
            let mut left = VecDeque::new();
            for mut place in end.places.drain(..) {
                match (place.op.take(), place.came.take()) {
                    (Some((op, buf)), Some((message, received))) => {
                        let came = in_time("a message", op).await.unwrap();
                        assert_eq!((came.len, came.opcode, came.immediate), received);
                        assert_eq!(bytes(&buf), message);
                    }
                    (op, came) => left.push_back(Place { op, came }),
                }
            }
            end.places = left;
            end.poll();
        }
        let [one, other] = &self.ends;
        for (end, peer) in [(one, other), (other, one)] {
            if peer.half_written().is_some() {
                continue;
            }
            // This includes writes that nothing awaits.
            until("the memory is as the model has it", || {
                let states = [&one.side, &other.side].map(|side| side.rdma.state());
                assert_eq!(states, [RdmaState::Connected; 2]);
                bytes(&end.memory)[..LEN] == end.bytes[..LEN]
            })
            .await;
        }
    }

    /// Checks that everything that waits ends with an error, and reconnects both sides.
    async fn anew(&mut self) {
        let halves = [0, 1].map(|at| self.ends[at].half_written());
        for end in &mut self.ends {
            for (op, _) in end.jobs.drain(..).filter_map(|job| job.op) {
                assert!(in_time("a job's end", op).await.is_err());
            }
            for (op, _) in end.places.drain(..).filter_map(|place| place.op) {
                assert!(in_time("a receive's end", op).await.is_err());
            }
        }
        for end in &self.ends {
            end.side.rdma.reset().unwrap();
        }
        for (at, half) in halves.into_iter().enumerate() {
            let Some((from, new)) = half else { continue };
            let end = &mut self.ends[1 - at];
            let now = bytes(&end.memory);
            for (at, new) in (from..).zip(new) {
                assert!([end.bytes[at], new].contains(&now[at]), "byte {at}");
                end.bytes[at] = now[at];
            }
        }
        let [one, other] = &self.ends;
        one.side.all_back().await;
        other.side.all_back().await;
        connect(&one.side.rdma, &other.side.rdma);
    }
}

/// Submits an operation by its first poll.
fn begun(op: impl Future<Output = Result<usize, JobError>> + 'static) -> Op<u64> {
    started(op.map(|result| result.map(|len| len as u64)))
}

fn started(op: impl Future<Output = Result<u64, JobError>> + 'static) -> Op<u64> {
    // Tokio's budget could delay the submission.
    let mut op: Op<u64> = Box::pin(tokio::task::unconstrained(op));
    match op.as_mut().now_or_never() {
        None => op,
        Some(result) => Box::pin(std::future::ready(result)),
    }
}

fn programs(defer: bool, mode: Mode) {
    if !defer && needs_soft("nothing is done inline") {
        return;
    }
    let cases = std::env::var("PROPTEST_CASES");
    let cases = cases.ok().and_then(|cases| cases.parse().ok());
    let mut runner = TestRunner::new(Config {
        cases: cases.unwrap_or(64),
        failure_persistence: None,
        // Shrinking is limited, since each case that hangs takes long.
        max_shrink_iters: 20,
        ..Config::default()
    });
    runner
        .run(&vec(step(), 1..100), |steps| {
            run(async {
                let mut model = Model::new(Setup::new(defer, mode));
                for step in &steps {
                    model.step(step).await;
                }
                model.settle().await;
                model.ends[0].side.rdma.reset().unwrap();
                model.anew().await;
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn inline_and_busy() {
    programs(false, Mode::BusyPoll);
}

#[test]
fn inline_and_event_driven() {
    programs(false, Mode::EventDriven);
}

#[test]
fn deferred_and_busy() {
    programs(true, Mode::BusyPoll);
}

#[test]
fn deferred_and_event_driven() {
    programs(true, Mode::EventDriven);
}
