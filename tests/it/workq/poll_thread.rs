//! Tests of `WorkQ::poll_thread`: a thread that polls a WorkQ and runs tasks beside it.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use nix::sched::sched_getaffinity;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};
use tokio_doca::{ErrorKind, Mode, Rdma};

/// Returns a CPU that this process may use.
fn a_cpu() -> usize {
    let all = sched_getaffinity(Pid::this()).unwrap();
    (0..1024).find(|&cpu| all.is_set(cpu).unwrap()).unwrap()
}

#[test]
fn one_thread_serves_many_connections() {
    const CONNECTIONS: usize = 16;
    const MESSAGES: usize = 50;
    for mode in modes() {
        let setup = Setup::new(false, Mode::EventDriven);
        let served = Side::new(Setup::new(false, mode));
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let client = Side::new(setup);
            let server = Rdma::builder(&served.device).attach(&served.workq).unwrap();
            connect(&server, &client.rdma);
            servers.push((server, served.empty()));
            clients.push(client);
        }
        let cpu = a_cpu();
        let thread = served.workq.poll_thread().cpu(cpu);
        let thread = thread.spawn(async move || {
            let mine = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let cpus: Vec<usize> = (0..1024).filter(|&c| mine.is_set(c).unwrap()).collect();
            let tasks = servers.into_iter().map(|(server, buf)| {
                // Values that stay on the thread need not be `Send`.
                let buf = Rc::new(buf);
                spawn_local(async move {
                    for _ in 0..MESSAGES {
                        buf.reset_data_len().unwrap();
                        server.recv(&*buf).await.unwrap();
                        server.send(&*buf).await.unwrap();
                    }
                })
            });
            let ended = join_all(tasks).await;
            assert!(ended.into_iter().all(|task| task.is_ok()));
            cpus
        });
        let thread = thread.unwrap();
        run(async {
            let clients = clients.iter().map(async |client| {
                for at in 0..MESSAGES {
                    let answer = client.empty();
                    client.send(&[at as u8; 100]).await.unwrap();
                    client.rdma.recv(&answer).await.unwrap();
                    assert_eq!(bytes(&answer), [at as u8; 100]);
                }
            });
            in_time("all answers", join_all(clients)).await;
        });
        assert_eq!(thread.join().unwrap(), [cpu]);
    }
}

#[test]
fn a_thread_with_nothing_to_do_sleeps_after_a_while() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let (wake, woken) = oneshot::channel();
    let thread = bench.workq.poll_thread().spin(Duration::from_millis(20));
    let thread = thread.spawn(async move || {
        woken.await.unwrap();
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap()
    });
    let idle = Duration::from_secs(1);
    std::thread::sleep(idle);
    wake.send(()).unwrap();
    let took = thread.unwrap().join().unwrap();
    let took = Duration::new(took.tv_sec() as u64, took.tv_nsec() as u32);
    assert!(took < idle / 10, "{took:?} of CPU time in {idle:?}");
}

#[test]
fn a_task_that_is_always_ready_stops_no_other() {
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    let (src, dst) = (bench.filled(b"hello"), bench.empty());
    let dma = bench.dma.clone();
    let thread = bench.workq.poll_thread().spawn(async move || {
        spawn_local(async {
            loop {
                yield_now().await;
            }
        });
        dma.copy(&src, &dst).await
    });
    assert_eq!(thread.unwrap().join().unwrap(), Ok(5));
}

#[test]
fn the_first_future_stops_no_task_either() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let (src, dst) = (bench.filled(b"hello"), bench.empty());
    let dma = bench.dma.clone();
    let thread = bench.workq.poll_thread().spawn(async move || {
        let task = spawn_local(async {});
        for _ in 0..100_000 {
            dst.reset_data_len().unwrap();
            dma.copy(&src, &dst).await.unwrap();
            if task.is_finished() {
                return true;
            }
        }
        false
    });
    assert!(thread.unwrap().join().unwrap(), "the task was never polled");
}

/// Returns a runtime with one thread, and a count of how often that thread has gone to sleep.
fn a_worker() -> (Runtime, Arc<AtomicUsize>) {
    let sleeps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sleeps);
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_park(move || _ = counted.fetch_add(1, Ordering::SeqCst))
        .build()
        .unwrap();
    (runtime, sleeps)
}

/// Timers belong to the runtime, and operations to the poll thread: the runtime is not woken by
/// them.
#[test]
fn a_poll_thread_of_a_runtime_has_timers_and_polls_by_itself() {
    const ROUNDS: usize = 500;
    let setup = Setup::new(false, Mode::EventDriven);
    let (served, client) = (Side::new(setup), Side::new(setup));
    connect(&served.rdma, &client.rdma);
    let (runtime, sleeps) = a_worker();
    let _entered = runtime.enter();
    let counted = Arc::clone(&sleeps);
    let thread = served.workq.poll_thread().spawn(async move || {
        let never = pending::<()>();
        assert!(timeout(Duration::from_millis(1), never).await.is_err());
        let before = counted.load(Ordering::SeqCst);
        for _ in 0..ROUNDS {
            let message = served.recv().await.unwrap();
            served.send(&message).await.unwrap();
        }
        counted.load(Ordering::SeqCst) - before
    });
    client.workq.block_on(async {
        for at in 0..ROUNDS {
            client.send(&[at as u8; 9]).await.unwrap();
            assert_eq!(client.recv().await, Ok(vec![at as u8; 9]));
        }
    });
    let slept = thread.unwrap().join().unwrap();
    assert!(slept < ROUNDS / 10, "{slept} of {ROUNDS}");
}

/// The runtime's timers only fire while a thread is in its `block_on`.
#[test]
fn a_runtime_of_one_thread_gives_timers_while_somebody_drives_it() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let runtime = runtime();
    let (ended, end) = oneshot::channel();
    let thread = bench.workq.poll_thread();
    let handle = runtime.handle().clone();
    let thread = thread.spawn(async move || {
        let _entered = handle.enter();
        sleep(Duration::from_millis(1)).await;
        ended.send(()).unwrap();
    });
    std::thread::sleep(Duration::from_millis(20));
    let thread = thread.unwrap();
    assert!(!thread.is_finished());
    runtime.block_on(in_time("the timer", end)).unwrap();
    thread.join().unwrap();
    // The poll thread does not enter the runtime of the thread that spawns it.
    let _entered = runtime.enter();
    let thread = bench.workq.poll_thread().spawn(async || {
        let timer = std::panic::catch_unwind(|| sleep(Duration::ZERO));
        timer.is_err()
    });
    assert!(thread.unwrap().join().unwrap());
}

#[test]
fn a_panic_of_the_first_future_is_the_threads() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let thread = bench.workq.poll_thread();
    let thread = thread.spawn(async || std::panic::resume_unwind(Box::new("mine")));
    let panic = thread.unwrap().join().unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"mine"));
}

#[test]
fn a_cpu_that_there_is_not_is_refused() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    for cpu in [1_000, usize::MAX] {
        let refused = bench.workq.poll_thread().cpu(cpu).spawn(async || ());
        let error = refused.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.to_string().contains("Cpus_allowed_list"), "{error}");
    }
}
