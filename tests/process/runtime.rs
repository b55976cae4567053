//! A runtime without an I/O driver, which only a panic of Tokio's tells of: it is caught, it writes
//! nothing, and the panic hook stays the application's. And a runtime that cannot be registered
//! again.

use std::fs::File;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::events::Setup;
use support::subscriber::OnEvent;
use support::{Bench, Config, LIMIT, alone, run, test_name};
use tokio::runtime::Builder;
use tokio_doca::soft::Limits;
use tokio_doca::{ErrorKind, Mode, WorkQ, error::Reason};

/// What the application's hook was told.
static TOLD: AtomicUsize = AtomicUsize::new(0);

fn told() -> usize {
    TOLD.load(Ordering::SeqCst)
}

fn try_without_io(bench: &Bench) {
    let plain = Builder::new_current_thread().enable_time().build().unwrap();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let refused = plain.block_on(bench.dma.copy(&src, &dst)).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.reason()),
        (ErrorKind::BadState, Reason::NoRuntime)
    );
}

fn panics() {
    let panics = std::thread::spawn(|| panic!("the application's"));
    assert!(panics.join().is_err());
}

#[test]
fn the_panic_hook_hears_nothing_of_it_and_all_else() {
    if !alone(test_name!(the_panic_hook_hears_nothing_of_it_and_all_else)) {
        return;
    }
    let count = |_: &std::panic::PanicHookInfo<'_>| _ = TOLD.fetch_add(1, Ordering::SeqCst);
    std::panic::set_hook(Box::new(count));
    let bench = Bench::new(Config::new(true, Mode::EventDriven));
    for _ in 0..2 {
        try_without_io(&bench);
    }
    let other = Bench::new(Config::new(true, Mode::EventDriven));
    try_without_io(&other);
    assert_eq!(told(), 0, "it was silent");
    panics();
    assert_eq!(told(), 1, "the hook that was there is called");
    std::panic::set_hook(Box::new(move |info| {
        count(info);
        count(info);
    }));
    panics();
    assert_eq!(told(), 3, "a hook that comes later is called");
}

/// An Op that is dropped has its runtime hear of the orphan. A thread that panics may not change
/// the hook, which would end the process.
#[test]
fn an_op_that_a_panic_drops_may_meet_such_a_runtime() {
    if !alone(test_name!(an_op_that_a_panic_drops_may_meet_such_a_runtime)) {
        return;
    }
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    let hold = bench.hold();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let plain = Builder::new_current_thread().build().unwrap();
    let _entered = plain.enter();
    let dropped = std::panic::AssertUnwindSafe(|| {
        let _op = bench.dma.copy(&src, &dst).start().unwrap();
        bench.workq.set_mode(Mode::EventDriven).unwrap();
        panic!("with an op in flight");
    });
    assert!(std::panic::catch_unwind(dropped).is_err());
    drop(hold);
    drop((src, dst));
    run(async {
        bench.works().await;
        bench.all_back().await;
    });
}

/// What has subscribed to `tracing` uses the WorkQ when it hears of an error, and panics.
fn uses_at_errors(workq: &WorkQ, level: tracing::Level) {
    if level == tracing::Level::ERROR {
        // It wakes all that sleep, and looks.
        workq.set_mode(Mode::BusyPoll).unwrap();
        workq.set_mode(Mode::EventDriven).unwrap();
        workq.event_handle().unwrap();
        TOLD.fetch_add(1, Ordering::SeqCst);
        panic!("the subscriber's");
    }
}

/// Begins a nap, the first of its WorkQ, with so few descriptors left.
fn nap_with_few_descriptors(left: usize) {
    let setup = Setup::new(true, Mode::EventDriven).limits(Limits::bluefield2());
    let event = setup.private();
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        // This runtime is registered.
        event.get().await.unwrap();
        let mut files = Vec::with_capacity(1024);
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        files.truncate(files.len() - left);
        let workq = event.workq();
        let uses = OnEvent(move |level| uses_at_errors(&workq, level));
        tracing::subscriber::with_default(uses, || {
            let mut wait = pin!(event.wait_gt(0));
            for _ in 0..100 {
                if support::poll(wait.as_mut()).is_ready() {
                    break;
                }
            }
        });
    });
}

#[test]
fn a_subscriber_that_hears_of_a_lost_runtime_may_use_the_workq_and_panic() {
    if !alone(test_name!(
        a_subscriber_that_hears_of_a_lost_runtime_may_use_the_workq_and_panic
    )) {
        return;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        // A timer and a handle that spans it are to be had, and then no handle for the runtime.
        // Another thread may have had a descriptor while they were counted.
        for _ in 0..50 {
            (0..4).for_each(nap_with_few_descriptors);
            if told() > 0 {
                break;
            }
        }
        ended.send(()).unwrap();
    });
    end.recv_timeout(LIMIT).expect("it hangs, or has panicked");
    assert!(told() > 0, "no runtime was lost");
}
