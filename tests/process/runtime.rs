//! A runtime without an I/O driver, which only a panic of Tokio reveals, and a runtime that cannot
//! be registered again.

use std::fs::File;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::events::Setup;
use support::subscriber::OnEvent;
use support::{Bench, Config, LIMIT, alone, run, test_name};
use tokio::runtime::Builder;
use tokio_doca::channel::Channel;
use tokio_doca::soft::Limits;
use tokio_doca::stream::{RdmaListener, StreamOptions};
use tokio_doca::{Mode, WorkQ};

/// How often the subscriber has received an error.
static TOLD: AtomicUsize = AtomicUsize::new(0);

fn told() -> usize {
    TOLD.load(Ordering::SeqCst)
}

/// Runs a closure in which Tokio must panic with these words.
fn panics(why: &str, f: impl FnOnce()) {
    let caught = catch_unwind(AssertUnwindSafe(f)).unwrap_err();
    let text = caught.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| caught.downcast_ref::<&str>().copied());
    assert!(text.is_some_and(|text| text.contains(why)), "{text:?}");
}

/// The panic leaves nothing behind: the WorkQ works on another runtime.
#[test]
fn a_runtime_without_io_panics_before_anything_is_begun() {
    const WHY: &str = "IO is disabled";
    let builders = [Builder::new_current_thread(), Builder::new_multi_thread()];
    let spin = Duration::from_micros(1);
    for (mut plain, mode) in builders
        .into_iter()
        .zip([Mode::EventDriven, Mode::Hybrid { spin }])
    {
        let plain = plain.enable_time().build().unwrap();
        let bench = Bench::new(Config::new(true, mode));
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        panics(WHY, || _ = plain.block_on(bench.dma.copy(&src, &dst)));
        panics(WHY, || {
            plain.block_on(async { _ = bench.dma.copy(&src, &dst).start() })
        });
        assert_eq!(bench.workq.in_flight(), 0);
        run(bench.works());
        // An operation that was started on another runtime is treated as dropped.
        let hold = bench.hold();
        let (left, behind) = (bench.filled(b"abc"), bench.empty());
        let begun = run(async { bench.dma.copy(&left, &behind).start().ok() }).unwrap();
        panics(WHY, || _ = plain.block_on(begun));
        let copy = run(async { bench.dma.copy(&src, &dst).start().ok() }).unwrap();
        panics(WHY, || _ = plain.block_on(bench.workq.shutdown()));
        drop(hold);
        assert_eq!(run(copy), Ok(3));
        run(bench.workq.shutdown()).unwrap();
    }
}

#[test]
fn a_stream_or_a_channel_needs_a_runtime_with_io_and_time() {
    let bench = Bench::new(Config::new(false, Mode::EventDriven));
    let addr: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let bind = || RdmaListener::bind(&bench.device, &bench.workq, addr);
    let io = Builder::new_current_thread().enable_io().build().unwrap();
    let time = Builder::new_current_thread().enable_time().build().unwrap();
    let home = Builder::new_current_thread().enable_all().build().unwrap();
    let listener = home.block_on(bind()).unwrap();
    let there = listener.tcp_addr().unwrap();
    for (runtime, why) in [(&io, "enable_time"), (&time, "IO is disabled")] {
        panics(why, || _ = runtime.block_on(bind()));
        let listen = || Channel::builder().listen_tcp(&bench.device, addr, "a service");
        panics(why, || _ = runtime.block_on(listen()));
        panics(why, || _ = runtime.block_on(listener.accept()));
        let connector = StreamOptions::default()
            .connector(&bench.device, &bench.workq)
            .unwrap();
        panics(why, || _ = runtime.block_on(connector.connect(there)));
    }
    home.block_on(async {
        let connector = StreamOptions::default()
            .connector(&bench.device, &bench.workq)
            .unwrap();
        let accepts = async { listener.accept().await.unwrap().accept(b"").await };
        let (connected, accepted) = tokio::join!(connector.connect(there), accepts);
        assert!(connected.is_ok() && accepted.is_ok());
    });
}

/// A service that busy-polls needs no I/O driver, and may drop jobs in flight.
#[test]
fn an_op_may_be_dropped_in_a_runtime_without_io() {
    let plain = Builder::new_current_thread().build().unwrap();
    let bench = Bench::new(Config::new(true, Mode::BusyPoll));
    plain.block_on(async {
        for _ in 0..2 {
            let hold = bench.hold();
            let (src, dst) = (bench.filled(b"abc"), bench.empty());
            drop(bench.dma.copy(&src, &dst).start().unwrap());
            drop(hold);
            drop((src, dst));
            bench.works().await;
        }
        bench.all_back().await;
    });
}

/// Dropping an `Op` registers the orphan with the runtime. Tokio's panic is caught even while the
/// thread unwinds from another one.
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

/// A `tracing` subscriber uses the WorkQ when it receives an error, and panics.
fn uses_at_errors(workq: &WorkQ, level: tracing::Level) {
    if level == tracing::Level::ERROR {
        // Wakes all sleepers, and polls.
        workq.set_mode(Mode::BusyPoll).unwrap();
        workq.set_mode(Mode::EventDriven).unwrap();
        workq.event_handle().unwrap();
        TOLD.fetch_add(1, Ordering::SeqCst);
        panic!("the subscriber's");
    }
}

/// Starts the first nap of a WorkQ while only `left` descriptors are free.
fn nap_with_few_descriptors(left: usize) {
    let setup = Setup::new(true, Mode::EventDriven).limits(Limits::bluefield2());
    let event = setup.private();
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        // This registers the runtime.
        event.get().await.unwrap();
        let mut files = Vec::with_capacity(1024);
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        files.truncate(files.len() - left);
        let workq = event.workq();
        let uses = OnEvent::new(move |level| uses_at_errors(&workq, level));
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
        // The timer and the handle that spans it get descriptors, but the runtime's handle does
        // not. Another thread may have held a descriptor during the count.
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
