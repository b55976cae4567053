//! A runtime without an I/O driver, which only a panic of Tokio's tells of: it is caught, it writes
//! nothing, and the panic hook stays the application's.

use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Bench, Config, alone, run, test_name};
use tokio::runtime::Builder;
use tokio_doca::{ErrorKind, Mode, Reason};

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
        let _op = bench.dma.try_copy(&src, &dst).unwrap();
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
