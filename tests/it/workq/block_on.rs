//! `WorkQ::block_on` uses no CPU time while only receives and waits are pending, its own and those
//! of other tasks.

use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;

use futures::channel::oneshot;
use nix::time::{ClockId, clock_gettime};
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::{Mode, WorkQ};

/// How long a thread has nothing to do.
const IDLE: Duration = Duration::from_secs(1);

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32)
}

/// Runs a future in `block_on` that waits for at least `IDLE`. Returns its output and the CPU time
/// used.
fn cpu_time_of<F: Future>(workq: &WorkQ, future: F) -> (F::Output, Duration) {
    let before = cpu_time();
    let output = workq.block_on(future);
    (output, cpu_time() - before)
}

/// Runs a closure on another thread, after a while.
fn later(act: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(IDLE);
        act();
    })
}

fn slept(took: Duration) {
    assert!(took < IDLE / 20, "{took:?} of CPU time in {IDLE:?}");
}

#[test]
fn a_receive_of_another_task_costs_a_blocked_thread_nothing() {
    let setup = Setup::new(false, Mode::EventDriven);
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    let (runtime, dst) = (workers(), one.empty());
    let mut receive = Box::pin(one.rdma.recv(&dst));
    {
        let _entered = runtime.enter();
        poll_pending(receive.as_mut());
    }
    let (wake, woken) = oneshot::channel();
    let waker = later(move || wake.send(()).unwrap());
    let (output, took) = cpu_time_of(&one.workq, woken);
    output.unwrap();
    waker.join().unwrap();
    slept(took);
    // The receive is still served by its own runtime.
    other.workq.block_on(other.send(b"abc")).unwrap();
    let received = runtime.block_on(in_time("the receive", receive));
    assert_eq!(received.unwrap().len, 3);
}

#[test]
fn a_receive_of_its_own_sleeps_until_the_message_comes() {
    let setup = Setup::new(false, Mode::EventDriven);
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    let sender = later(move || other.workq.block_on(other.send(b"abc")).unwrap());
    let (received, took) = cpu_time_of(&one.workq, one.recv());
    assert_eq!(received, Ok(b"abc".to_vec()));
    sender.join().unwrap();
    slept(took);
}

/// Two threads block on one WorkQ and sleep on the same handle; each is woken by its own operation.
#[test]
fn two_threads_that_sleep_on_one_workq_are_both_woken() {
    let setup = Setup::new(false, Mode::EventDriven);
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    let (done, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (one, done) = (&one, done.clone());
            scope.spawn(move || {
                for _ in 0..50 {
                    one.workq.block_on(one.recv()).unwrap();
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..100 {
            other.workq.block_on(other.send(b"abc")).unwrap();
        }
        for _ in 0..2 {
            ends.recv_timeout(LIMIT * programs::slowdown())
                .expect("both threads end");
        }
    });
}

/// A `block_on` on a thread of a runtime drops the future of a job in flight: the runtime notices
/// the end of the job.
#[test]
fn what_is_left_behind_on_a_thread_of_a_runtime_is_heard_of() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    run(async {
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"hello"), bench.empty());
        bench.workq.block_on(async {
            let mut copy = Box::pin(bench.dma.copy(&src, &dst));
            poll_pending(copy.as_mut());
        });
        drop(hold);
        in_time("its end", dst.released()).await;
        assert_eq!(bytes(&dst), b"hello");
    });
}
