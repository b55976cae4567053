//! Waits on a device that cannot wait: the library reads the value again and again, and an idle
//! wait naps in between.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use support::events::Setup;
use support::*;
use tokio::runtime::Builder;
use tokio_doca::soft::{Fault, Limits, Soft};
use tokio_doca::{BufPool, Dma, ErrorKind, Mmap, Mode, sync_event::SyncEvent};

/// The longest nap that `SyncEvent::wait_gt` documents.
const NAP: Duration = Duration::from_micros(8400);

/// How long a wait is idle in these tests.
const IDLE: Duration = Duration::from_millis(500);

fn setups() -> [Setup; 4] {
    let spin = Duration::from_micros(50);
    let modes = [Mode::EventDriven, Mode::Hybrid { spin }];
    std::array::from_fn(|at| Setup::new(at % 2 == 1, modes[at / 2]).limits(Limits::bluefield2()))
}

fn jobs(event: &SyncEvent) -> u64 {
    event.device().jobs().expect("it counts them")
}

/// Checks that `waits` idle waits have read the value only about once per nap.
fn few_jobs(event: &SyncEvent, waits: u32, since: (u64, Instant)) {
    let (jobs, time) = (jobs(event) - since.0, since.1.elapsed());
    // A spin of 50 us and shorter naps come first.
    let naps = time.div_duration_f64(NAP) as u64 + 8;
    let most = u64::from(waits) * (2 * naps + 200);
    assert!(jobs <= most, "{jobs} jobs in {time:?}, for {waits} waits");
}

/// Runs a future on a runtime with I/O and without timers.
fn run_untimed<F: Future>(future: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(future)
}

/// Sets the event from another thread, after a while.
fn set_later(event: &SyncEvent, value: u64) -> std::thread::JoinHandle<()> {
    let event = event.clone();
    std::thread::spawn(move || {
        std::thread::sleep(IDLE);
        run_untimed(event.set(value)).unwrap();
    })
}

#[test]
fn an_idle_wait_submits_few_jobs_and_sees_the_value_that_comes() {
    for setup in setups() {
        let event = setup.private();
        let since = (jobs(&event), Instant::now());
        let set = set_later(&event, 7);
        assert_eq!(run_untimed(event.wait_gt(3)), Ok(7));
        few_jobs(&event, 1, since);
        set.join().unwrap();
    }
}

#[test]
fn idle_waits_share_their_wake_ups() {
    const WAITS: u32 = 20;
    for setup in setups() {
        let event = setup.private();
        let since = (jobs(&event), Instant::now());
        let set = set_later(&event, 7);
        let waits = (0..WAITS).map(|_| event.wait_gt(3));
        let ends = run_untimed(futures::future::join_all(waits));
        assert_eq!(ends, [Ok(7); WAITS as usize]);
        few_jobs(&event, WAITS, since);
        set.join().unwrap();
    }
}

#[test]
fn a_wait_naps_in_block_on_too() {
    for setup in setups() {
        let event = setup.private();
        let since = (jobs(&event), Instant::now());
        let set = set_later(&event, 7);
        let workq = event.workq();
        assert_eq!(workq.block_on(event.wait_gt(3)), Ok(7));
        few_jobs(&event, 1, since);
        set.join().unwrap();
    }
}

// The job in flight makes the thread spin.
#[test]
fn a_wait_naps_in_block_on_beside_a_job_that_never_ends() {
    for setup in setups() {
        let event = setup.private();
        let soft = Soft::builder().defer(true).build();
        soft.faults().push(Fault::Lost);
        let device = soft.open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(1 << 12).unwrap();
        let pool = BufPool::builder(&mmap).element_size(64).build().unwrap();
        let dma = Dma::builder(&device).attach(&event.workq()).unwrap();
        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        src.extend_from_slice(b"lost").unwrap();
        let mut lost = Box::pin(dma.copy(src, dst).owned());
        let (ended, end) = std::sync::mpsc::channel();
        let waits = event.clone();
        std::thread::spawn(move || {
            let both = async {
                assert!(futures::poll!(lost.as_mut()).is_pending());
                waits.wait_gt(3).await
            };
            let _ = ended.send(waits.workq().block_on(both));
        });
        let set = set_later(&event, 7);
        assert_eq!(end.recv_timeout(LIMIT).unwrap(), Ok(7));
        set.join().unwrap();
    }
}

#[test]
fn a_wait_that_naps_hears_of_another_mode_and_of_a_shutdown() {
    for setup in setups() {
        let event = setup.private();
        run(async {
            let mut wait = pin!(event.wait_gt(3));
            assert!(futures::poll!(wait.as_mut()).is_pending());
            event.workq().set_mode(Mode::BusyPoll).unwrap();
            event.set(4).await.unwrap();
            assert_eq!(in_time("the wait", wait).await, Ok(4));
        });
        let event = setup.private();
        run(async {
            let mut wait = pin!(event.wait_gt(3));
            assert!(futures::poll!(wait.as_mut()).is_pending());
            let shutdown = event.workq().shutdown();
            in_time("the shutdown", shutdown).await.unwrap();
            let ended = in_time("the wait", wait).await.unwrap_err();
            assert_eq!(ended.kind(), ErrorKind::Shutdown);
        });
    }
}

#[test]
fn a_wait_that_naps_without_a_runtime_fails() {
    let event = setups()[0].private();
    let mut wait = pin!(event.wait_gt(3));
    let ended = (0..1000).find_map(|_| match poll(wait.as_mut()) {
        Poll::Ready(ended) => Some(ended),
        Poll::Pending => None,
    });
    let ended = ended.expect("nobody would wake it").unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::BadState);
}
