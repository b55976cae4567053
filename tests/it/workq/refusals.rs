//! A device that refuses jobs although the WorkQ has a slot: tasks that await are served as soon as
//! the device accepts jobs again, and operations that do not wait leave nothing behind.

#![expect(unsafe_code, reason = "a provider is trusted with memory")]

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Context;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use support::*;
use tokio_doca::device::RegistrationUse;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, Job, KeepAlive, Queue, QueueConfig, Region, Registrar,
    Registration, Signal, Submit, Submitted, Token,
};
use tokio_doca::soft::Fault;
use tokio_doca::{
    Device, ErrorKind, Mode, WorkQ,
    accel::{Accel, AccelCall},
    device::{AccelCaps, Caps, DevInfo, PciFunction},
    error::JobError,
};

/// A device that accepts `room` jobs at a time, and completes one on command.
struct Narrow {
    state: Mutex<State>,
    signal: Arc<Signal>,
    /// The other ends are with a test: a job with the argument `SLOW` synchronizes with the test
    /// before it is refused.
    meets: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

#[derive(Default)]
struct State {
    room: usize,
    jobs: VecDeque<Token>,
    done: VecDeque<Completion>,
    armed: bool,
    asked: usize,
}

/// The argument of a job that is refused slowly.
const SLOW: u64 = 99;

impl Narrow {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn finish_one(&self) {
        let mut state = self.state();
        let token = state.jobs.pop_front().expect("a job is in flight");
        state.done.push_back(Completion::new(token, Ok(1)));
        if std::mem::take(&mut state.armed) {
            self.signal.raise();
        }
    }

    fn set_capacity(&self, room: usize) {
        self.state().room = room;
    }
}

// SAFETY: accesses no memory of a job; each accepted token completes once.
unsafe impl Submit for Narrow {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let (token, Job::Accel(&job)) = jobs[0] else {
            unreachable!("it copies nothing")
        };
        let mut state = self.state();
        state.asked += 1;
        if state.jobs.len() < state.room {
            state.jobs.push_back(token);
            return Submitted {
                accepted: 1,
                refused: None,
            };
        }
        drop(state);
        if job.arg == SLOW
            && let Some((is_here, go)) = self.meets.lock().unwrap().take()
        {
            is_here.send(()).unwrap();
            go.recv().unwrap();
        }
        Submitted {
            accepted: 0,
            refused: Some(JobError::device(ErrorKind::Again, 0)),
        }
    }
}

// SAFETY: as above for `Submit`.
unsafe impl Queue for Narrow {
    fn ready(&self) -> bool {
        !self.state().done.is_empty()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut state = self.state();
        let count = state.done.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(state.done.drain(..count)) {
            *place = completion;
        }
        count
    }

    fn arm(&self) -> Armed {
        let mut state = self.state();
        state.armed = true;
        match state.done.is_empty() {
            true => Armed::Armed,
            false => Armed::Ready,
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _: usize) {
        drop(keep);
    }
}

struct NarrowAdapter {
    info: DevInfo,
    queue: Mutex<Option<Arc<Narrow>>>,
    meets: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

// SAFETY: each queue is new.
unsafe impl Adapter for NarrowAdapter {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        let queue = Arc::new(Narrow {
            state: Mutex::new(State {
                room: 1,
                ..State::default()
            }),
            signal: config.signal,
            meets: Mutex::new(self.meets.lock().unwrap().take()),
        });
        *self.queue.lock().unwrap() = Some(Arc::clone(&queue));
        Ok(queue)
    }
}

// SAFETY: the keys of this device have no meaning, since it accesses no memory.
unsafe impl Registrar for NarrowAdapter {
    fn register(&self, _: &Region, _: RegistrationUse) -> tokio_doca::Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

/// A WorkQ of two slots on a device that accepts one job.
struct Rig {
    workq: WorkQ,
    accel: Accel,
    queue: Arc<Narrow>,
    /// Receives a message once a slow refusal has begun; `go` lets the refusal end.
    is_here: Receiver<()>,
    go: Sender<()>,
}

impl Rig {
    fn new(mode: Mode) -> Rig {
        let mut caps = Caps::default();
        caps.accel = Some(AccelCaps::new([1], 1 << 20, 1));
        caps.max_depth = 16;
        let ((here, is_here), (go, is_go)) = (channel(), channel());
        let adapter = Arc::new(NarrowAdapter {
            info: DevInfo::new("narrow", "narrow0", None, PciFunction::Pf, caps),
            queue: Mutex::default(),
            meets: Mutex::new(Some((here, is_go))),
        });
        let device = Device::from_adapter(Arc::clone(&adapter) as _);
        let workq = WorkQ::builder().depth(2).mode(mode).build().unwrap();
        let accel = Accel::builder(&device).attach(&workq).unwrap();
        let queue = adapter.queue.lock().unwrap().clone().unwrap();
        Rig {
            workq,
            accel,
            queue,
            is_here,
            go,
        }
    }

    fn call(&self) -> impl Future<Output = Result<u64, JobError>> + Send + 'static {
        self.accel.call(AccelCall::new(1)).owned()
    }

    /// Starts a job on another thread, and returns while the device is about to refuse it.
    fn try_slowly(&self) -> std::thread::JoinHandle<ErrorKind> {
        let (accel, runtime) = (self.accel.clone(), tokio::runtime::Handle::current());
        let tries = std::thread::spawn(move || {
            let _runtime = runtime.enter();
            let tried = accel.call(AccelCall::new(1).arg(SLOW)).start();
            tried.map(drop).expect_err("it is refused").kind()
        });
        self.is_here.recv().unwrap();
        tries
    }
}

fn all_modes() -> [Mode; 3] {
    let spin = Duration::from_micros(50);
    [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }]
}

// The only job in flight completes and is reaped while the device refuses another one.
#[test]
fn who_stands_in_line_is_served_though_a_try_was_refused_meanwhile() {
    for mode in all_modes() {
        run(async {
            let rig = Rig::new(mode);
            let mut first = Box::pin(rig.call());
            poll_pending(first.as_mut());
            let tries = rig.try_slowly();
            let second = tokio::spawn(rig.call());
            let third = tokio::spawn(rig.call());
            tokio::task::yield_now().await;
            rig.queue.finish_one();
            until("it was collected", || rig.workq.stats().unfetched == 1).await;
            rig.go.send(()).unwrap();
            assert_eq!(tries.join().unwrap(), ErrorKind::Again);
            assert_eq!(in_time("the first", first).await, Ok(1));
            // Both waiting calls were notified by then, so either may be submitted first.
            for _ in 0..2 {
                until("one is submitted", || !rig.queue.state().jobs.is_empty()).await;
                rig.queue.finish_one();
            }
            for waits in [second, third] {
                assert_eq!(in_time("one in line", waits).await.unwrap(), Ok(1));
            }
        });
    }
}

#[test]
fn a_shutdown_ends_though_a_try_was_refused_meanwhile() {
    for mode in all_modes() {
        run(async {
            let rig = Rig::new(mode);
            let mut first = Box::pin(rig.call());
            poll_pending(first.as_mut());
            let tries = rig.try_slowly();
            let workq = rig.workq.clone();
            let shutdown = tokio::spawn(async move { workq.shutdown().await });
            tokio::task::yield_now().await;
            rig.queue.finish_one();
            assert_eq!(in_time("the first", first).await, Ok(1));
            rig.go.send(()).unwrap();
            assert_eq!(tries.join().unwrap(), ErrorKind::Again);
            in_time("the shutdown", shutdown).await.unwrap().unwrap();
        });
    }
}

// The only job in flight never completes.
#[test]
fn a_queue_that_was_full_beside_a_lost_job_is_asked_again() {
    for mode in all_modes() {
        for script in ["lost queue-full*2", "lost queue-full*3"] {
            run(async {
                let bench = Bench::new(Config::new(true, mode));
                bench.soft.faults().push_script(script).unwrap();
                let copy = || {
                    let copy = bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned();
                    Box::pin(copy)
                };
                let mut lost = copy();
                poll_pending(lost.as_mut());
                let both = async { tokio::join!(copy(), copy()) };
                assert_eq!(in_time("both", both).await, (Ok(3), Ok(3)));
            });
        }
    }
}

// The device refuses with nothing in flight, for example because another process uses it.
#[test]
fn a_device_that_is_full_for_reasons_of_its_own_is_asked_seldom_and_served_in_the_end() {
    for mode in all_modes() {
        run(async {
            let rig = Rig::new(mode);
            rig.queue.set_capacity(0);
            let start = Instant::now();
            let waits = tokio::spawn(rig.call());
            until("it was asked a few times", || rig.queue.state().asked >= 6).await;
            // Two tries in the first poll; then one each after 1, 2, 4 and 8 ms.
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(15), "six times in {took:?}");
            rig.queue.set_capacity(1);
            until("it is submitted", || !rig.queue.state().jobs.is_empty()).await;
            rig.queue.finish_one();
            assert_eq!(in_time("it", waits).await.unwrap(), Ok(1));
        });
    }
}

#[test]
fn who_stands_behind_a_refused_future_that_nobody_polls_is_served() {
    for mode in all_modes() {
        for forgotten in [false, true] {
            run(async {
                let rig = Rig::new(mode);
                rig.queue.set_capacity(0);
                let mut refused = Box::pin(rig.call());
                poll_pending(refused.as_mut());
                let waits = tokio::spawn(rig.call());
                tokio::task::yield_now().await;
                rig.queue.set_capacity(1);
                let left = match forgotten {
                    true => {
                        std::mem::forget(refused);
                        None
                    }
                    false => Some(refused),
                };
                until("it is submitted", || !rig.queue.state().jobs.is_empty()).await;
                rig.queue.finish_one();
                assert_eq!(in_time("it", waits).await.unwrap(), Ok(1));
                drop(left);
            });
        }
    }
}

#[test]
fn block_on_asks_a_full_device_again_without_a_runtime() {
    for mode in all_modes() {
        let bench = Bench::new(Config::new(true, mode));
        (0..5).for_each(|_| bench.soft.faults().push(Fault::QueueFull));
        let copy = bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned();
        assert_eq!(bench.workq.block_on(copy), Ok(3));
    }
}

#[test]
fn a_loop_of_the_callers_own_hears_when_to_ask_a_full_device_again() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let handle = bench.workq.event_handle().unwrap();
    (0..5).for_each(|_| bench.soft.faults().push(Fault::QueueFull));
    let count = Count::new();
    let waker = count.waker();
    let mut copy = Box::pin(bench.dma.copy(bench.filled(b"abc"), bench.empty()).owned());
    let limit = PollTimeout::try_from(LIMIT).unwrap();
    while copy
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending()
    {
        let woken = count.wakes();
        while count.wakes() == woken {
            bench.workq.arm();
            let ready =
                nix::poll::poll(&mut [PollFd::new(handle.as_fd(), PollFlags::POLLIN)], limit);
            assert_eq!(ready, Ok(1), "nobody rings");
            bench.workq.clear();
        }
    }
    assert_eq!(bench.soft.faults().left(), 0);
}
