//! Sync events within a process: every operation in every mode, waits, the entries for waits, and
//! how an event ends.

use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use support::events::{Setup, between, import};
use support::*;
use tokio_doca::soft::{Fault, Limits, Soft, View};
use tokio_doca::{
    BufPool, Device, ErrorKind, Mmap, Mode, WorkQ,
    device::SyncEventKind,
    error::{JobError, Reason},
    mem::{Access, BufInventory},
    sync_event::{Location, SyncEvent},
};

/// Runs `story` on both sides of an event in every setup.
fn each(story: impl AsyncFn(&Setup, &SyncEvent, &SyncEvent)) {
    for setup in Setup::all() {
        let (owner, importer) = setup.pair();
        run(in_time("the story", async {
            story(&setup, &owner, &importer).await;
            story(&setup, &importer, &owner).await;
            let private = setup.private();
            story(&setup, &private, &private).await;
        }));
    }
}

fn reason<T>(result: Result<T, impl Into<JobError>>) -> Reason {
    match result {
        Ok(_) => panic!("it did not fail"),
        Err(error) => error.into().reason(),
    }
}

#[test]
fn what_one_side_sets_and_adds_the_other_gets() {
    each(async |_, one, other| {
        one.set(5).await.unwrap();
        assert_eq!(other.get().await, Ok(5));
        assert_eq!(other.add(3).await, Ok(5));
        assert_eq!(one.add(u64::MAX).owned().await, Ok(8));
        assert_eq!(one.get().owned().await, Ok(7));
        other.set(0).owned().await.unwrap();
        assert_eq!(one.get().start().unwrap().await, Ok(0));
        one.set(u64::MAX).start().unwrap().await.unwrap();
        assert_eq!(other.add(2).start().unwrap().await, Ok(u64::MAX));
        assert_eq!(one.get().await, Ok(1));
        one.set(0).await.unwrap();
    });
}

#[test]
fn a_wait_is_over_when_the_value_is_greater_and_not_before() {
    each(async |_, one, other| {
        one.set(3).await.unwrap();
        assert_eq!(other.wait_gt(2).await, Ok(3));
        let mut wait = pin!(other.wait_gt(3));
        for _ in 0..50 {
            one.set(3).await.unwrap();
            poll_pending(wait.as_mut());
            tokio::task::yield_now().await;
        }
        let (woken, ()) = tokio::join!(wait, async { one.set(4).await.unwrap() });
        assert_eq!(woken, Ok(4));
        let (woken, before) = tokio::join!(other.wait_gt(9).owned(), one.add(6));
        assert_eq!((woken, before), (Ok(10), Ok(4)));
        // No value is greater than this one.
        one.set(u64::MAX).await.unwrap();
        let mut never = pin!(other.wait_gt(u64::MAX));
        poll_pending(never.as_mut());
        one.set(0).await.unwrap();
    });
}

#[test]
fn a_mask_says_which_bits_are_looked_at() {
    each(async |_, one, other| {
        one.set(0x0500_0000_0000_00ff).await.unwrap();
        let mut low = pin!(other.wait_gt_masked(0xff, 0xffff));
        let mut high = pin!(other.wait_gt_masked(0x0500_0000_0000_0000, 0xff00_0000_0000_0000));
        let mut never = pin!(other.wait_gt_masked(0, 0));
        poll_pending(low.as_mut());
        poll_pending(high.as_mut());
        poll_pending(never.as_mut());
        assert_eq!(one.add(1).await, Ok(0x0500_0000_0000_00ff));
        assert_eq!(low.await, Ok(0x0500_0000_0000_0100));
        poll_pending(high.as_mut());
        one.set(0x0600_0000_0000_0000).await.unwrap();
        assert_eq!(high.await, Ok(0x0600_0000_0000_0000));
        poll_pending(never.as_mut());
        one.set(0).await.unwrap();
    });
}

#[test]
fn waits_wake_one_by_one_as_they_end() {
    each(async |setup, one, other| {
        one.set(0).await.unwrap();
        let waits: Vec<_> = (0..setup.waits as u64)
            .map(|at| tokio::spawn(other.wait_gt(at).owned()))
            .collect();
        for (at, wait) in waits.into_iter().enumerate() {
            assert!(!wait.is_finished());
            one.set(at as u64 + 1).await.unwrap();
            assert_eq!(wait.await.unwrap(), Ok(at as u64 + 1));
        }
        one.set(0).await.unwrap();
    });
}

#[test]
fn waits_have_places_of_their_own_and_a_line() {
    for defer in [false, true] {
        let setup = Setup::new(defer, Mode::EventDriven).waits(2);
        let (owner, importer) = Setup { depth: 1, ..setup }.pair();
        run(in_time("all waits", async {
            let mut first: Vec<_> = (0..2).map(|_| Box::pin(importer.wait_gt(0))).collect();
            first
                .iter_mut()
                .for_each(|wait| poll_pending(wait.as_mut()));
            let full = importer.wait_gt(0).start().err().unwrap();
            assert_eq!(
                (full.reason(), full.kind()),
                (Reason::WaitsFull, ErrorKind::Again)
            );
            mentions(&full.to_string(), &[2]);
            // Waits take no slot of the WorkQ, which has only one.
            assert_eq!(importer.get().await, Ok(0));
            assert_eq!(importer.workq().in_flight(), 0);
            let line: Vec<_> = (0..10)
                .map(|_| tokio::spawn(importer.wait_gt(0).owned()))
                .collect();
            tokio::task::yield_now().await;
            // An entry that is returned goes to a waiting task at once.
            drop(first.pop());
            owner.set(1).await.unwrap();
            assert_eq!(first.pop().unwrap().await, Ok(1));
            for wait in line {
                assert_eq!(wait.await.unwrap(), Ok(1));
            }
        }));
    }
}

#[test]
fn a_wait_that_is_dropped_stops_waiting_at_once() {
    for setup in Setup::all().map(|setup| setup.waits(1)) {
        let (owner, importer) = setup.pair();
        run(in_time("all waits", async {
            for turn in 0..100 {
                let mut wait = Box::pin(importer.wait_gt(turn));
                poll_pending(wait.as_mut());
                drop(wait);
                // The event has one entry for waits, and it is free.
                let wait = importer.wait_gt(turn).start().unwrap();
                if turn % 2 == 0 {
                    drop(wait);
                    owner.set(turn + 1).await.unwrap();
                } else {
                    let (woken, ()) =
                        tokio::join!(wait, async { owner.set(turn + 1).await.unwrap() });
                    assert_eq!(woken, Ok(turn + 1));
                }
            }
        }));
    }
}

#[test]
fn a_forgotten_wait_keeps_its_place_and_nothing_else() {
    for setup in Setup::all().map(|setup| setup.waits(2)) {
        let (owner, importer) = setup.pair();
        run(in_time("the other wait", async {
            let wait = importer.wait_gt(0).start().unwrap();
            std::mem::forget(wait);
            let (woken, ()) =
                tokio::join!(importer.wait_gt(1), async { owner.set(2).await.unwrap() });
            assert_eq!(woken, Ok(2));
            importer.workq().shutdown().await.unwrap();
        }));
    }
}

#[test]
fn many_tasks_count_to_the_exact_sum() {
    for setup in Setup::all() {
        let (owner, importer) = setup.pair();
        workers().block_on(in_time("all adds", async {
            let tasks = (0..8).map(|at| {
                let event = if at % 2 == 0 { &owner } else { &importer }.clone();
                tokio::spawn(async move {
                    for _ in 0..2000 {
                        event.add(1).await.unwrap();
                    }
                })
            });
            let all = join_all(tasks);
            let (waited, _) = tokio::join!(owner.wait_gt(15_999), all);
            assert_eq!(waited, Ok(16_000));
            assert_eq!(importer.get().await, Ok(16_000));
        }));
    }
}

#[test]
fn ping_and_pong_lose_no_wake_up() {
    for setup in Setup::all() {
        let (owner, importer) = setup.pair();
        let turns = if matches!(setup.mode, Mode::BusyPoll) {
            2000
        } else {
            500
        };
        workers().block_on(async {
            let there = tokio::spawn(async move {
                for turn in 0..turns {
                    importer.wait_gt(2 * turn).await.unwrap();
                    importer.add(1).await.unwrap();
                }
                importer
            });
            for turn in 0..turns {
                in_time("a turn", owner.add(1)).await.unwrap();
                let answer = owner.wait_gt(2 * turn + 1);
                in_time("an answer", answer).await.unwrap();
            }
            in_time("the other side", there).await.unwrap();
        });
    }
}

#[test]
fn stopping_ends_waits_and_what_the_other_side_does() {
    for setup in Setup::all() {
        let (owner, importer) = setup.pair();
        run(in_time("all ends", async {
            let waits = [owner.wait_gt(0).owned(), importer.wait_gt(0).owned()];
            let [mine, theirs] = waits.map(tokio::spawn);
            tokio::task::yield_now().await;
            let clone = owner.clone();
            owner.stop();
            owner.stop();
            assert_eq!(reason(mine.await.unwrap()), Reason::EventStopped);
            let revoked = theirs.await.unwrap().unwrap_err();
            assert_eq!(
                (revoked.reason(), revoked.kind()),
                (Reason::EventRevoked, ErrorKind::ConnectionReset)
            );
            for result in [
                clone.get().await,
                clone.add(1).await,
                clone.wait_gt(0).await,
            ] {
                let error = result.unwrap_err();
                assert_eq!(
                    (error.reason(), error.kind()),
                    (Reason::EventStopped, ErrorKind::BadState)
                );
            }
            for result in [
                importer.get().await,
                importer.add(1).await,
                importer.wait_gt(0).await,
            ] {
                assert_eq!(reason(result), Reason::EventRevoked);
            }
            assert_eq!(reason(importer.set(1).await), Reason::EventRevoked);
            rejected(clone.export_dpu(clone.device()), ErrorKind::BadState);
        }));
    }
}

#[test]
fn the_importer_may_go_and_another_may_come() {
    for setup in Setup::all() {
        let (owner, importer) = setup.pair();
        // The process has another export, so that it keeps listening.
        let _others = setup.pair();
        let blob = owner.export_dpu(owner.device()).unwrap();
        let again = || SyncEvent::from_export(&setup.dpu(), &blob).wait();
        rejected(again(), ErrorKind::InUse);
        run(in_time("the wait", async {
            let mut wait = pin!(owner.wait_gt(0));
            poll_pending(wait.as_mut());
            importer.stop();
            assert_eq!(reason(importer.get().await), Reason::EventStopped);
            drop(importer);
            poll_pending(wait.as_mut());
            let next = again().unwrap().start().unwrap();
            next.set(7).unwrap();
            assert_eq!(wait.await, Ok(7));
            drop(next);
            let next = again().unwrap();
            // Importing also works again after an import was dropped before it was started.
            drop(next);
            let last = setup.importer(&blob);
            owner.stop();
            assert_eq!(reason(last.wait_gt(9).await), Reason::EventRevoked);
        }));
        rejected(again(), ErrorKind::ConnectionAborted);
    }
}

#[test]
fn shutting_the_workq_down_ends_its_waits() {
    for setup in Setup::all() {
        let (owner, importer) = setup.waits(1).pair();
        run(in_time("the ends", async {
            let waits: Vec<_> = (0..3)
                .map(|_| tokio::spawn(importer.wait_gt(0).owned()))
                .collect();
            tokio::task::yield_now().await;
            importer.workq().shutdown().await.unwrap();
            for wait in waits {
                assert_eq!(reason(wait.await.unwrap()), Reason::Shutdown);
            }
            assert_eq!(reason(importer.get().await), Reason::Shutdown);
            // The event itself still exists.
            owner.set(1).await.unwrap();
        }));
    }
}

#[test]
fn a_change_of_mode_finds_every_wait() {
    for defer in [false, true] {
        let (owner, importer) = Setup::new(defer, Mode::EventDriven).pair();
        let spin = Duration::from_micros(10);
        run(in_time("all waits", async {
            let modes = [
                Mode::BusyPoll,
                Mode::EventDriven,
                Mode::Hybrid { spin },
                Mode::BusyPoll,
                Mode::EventDriven,
            ];
            for (turn, mode) in modes.into_iter().enumerate() {
                let wait = tokio::spawn(importer.wait_gt(turn as u64).owned());
                tokio::task::yield_now().await;
                importer.workq().set_mode(mode).unwrap();
                tokio::task::yield_now().await;
                assert!(!wait.is_finished());
                owner.set(turn as u64 + 1).await.unwrap();
                assert_eq!(wait.await.unwrap(), Ok(turn as u64 + 1));
            }
        }));
    }
}

#[test]
fn no_runtime_is_needed_in_block_on() {
    for setup in Setup::all() {
        let (owner, importer) = setup.pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let workq = importer.workq();
                for turn in 0..50 {
                    workq.block_on(async {
                        importer.wait_gt(2 * turn).await.unwrap();
                        importer.add(1).await.unwrap();
                    });
                }
            });
            let workq = owner.workq();
            for turn in 0..50 {
                workq.block_on(async {
                    owner.add(1).await.unwrap();
                    owner.wait_gt(2 * turn + 1).await.unwrap();
                });
            }
        });
        if setup.mode == Mode::EventDriven {
            let mut wait = pin!(owner.wait_gt(1000));
            let polled = poll(wait.as_mut());
            assert!(
                matches!(polled, std::task::Poll::Ready(Err(error)) if error.reason() == Reason::NoRuntime),
                "{polled:?}"
            );
        }
    }
}

#[test]
fn the_flavours_meet_in_every_combination() {
    let setup = Setup::new(false, Mode::EventDriven);
    let host = setup.host();
    let owner = between(&host).start().unwrap();
    let blob = owner.export_dpu(&host).unwrap();
    let importer = setup.importer(&blob);
    run(in_time("the wait", async {
        let wait = tokio::spawn(importer.wait_gt(0).owned());
        tokio::task::yield_now().await;
        assert_eq!(owner.add(2), Ok(0));
        assert_eq!(wait.await.unwrap(), Ok(2));
        importer.set(5).await.unwrap();
    }));
    assert_eq!(owner.wait_gt(4, u64::MAX), Ok(5));
    assert_eq!(owner.wait_gt_yield(0, 4), Ok(5));
    drop(importer);
    let importer = import(&setup.dpu(), &blob).start().unwrap();
    assert_eq!((importer.get(), owner.set(6)), (Ok(5), Ok(())));
    assert_eq!(importer.wait_gt(5, u64::MAX), Ok(6));
    rejected(
        importer.export_dpu(importer.device()),
        ErrorKind::NotSupported,
    );
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| importer.wait_gt_yield(100, u64::MAX));
        owner.stop();
        assert_eq!(reason(wait.join().unwrap()), Reason::EventRevoked);
    });
    assert_eq!(reason(owner.get()), Reason::EventStopped);
    assert_eq!(reason(owner.wait_gt(9, u64::MAX)), Reason::EventStopped);
}

#[test]
fn the_counter_may_lie_in_memory_of_the_applications() {
    for setup in Setup::all() {
        let host = setup.host();
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let mmap = Mmap::builder()
            .device(&host)
            .access(access)
            .alloc(8192)
            .unwrap();
        let inventory = BufInventory::with_capacity(1);
        let buf = inventory.buf_filled(&mmap, 4096..4104).unwrap();
        buf.store(0, 40).unwrap();
        drop(buf);
        let owner = between(&host)
            .backing(&mmap, 4096)
            .attach(&setup.workq())
            .unwrap();
        // The memory cannot be stopped while the event uses it.
        assert_eq!(mmap.stop().unwrap_err().kind(), ErrorKind::InUse);
        let blob = owner.export_dpu(&host).unwrap();
        let importer = setup.importer(&blob);
        run(in_time("the wait", async {
            assert_eq!(importer.add(2).await, Ok(40));
            assert_eq!(owner.wait_gt(41).await, Ok(42));
        }));
        let buf = inventory.buf_filled(&mmap, 4096..4104).unwrap();
        assert_eq!(buf.load(0), Ok(42));
        drop((buf, owner, importer));
        mmap.stop().unwrap();
    }
}

#[test]
fn backing_memory_that_will_not_do_is_refused() {
    let setup = Setup::new(false, Mode::EventDriven);
    let (host, other) = (setup.host(), setup.device(View::Host, "pf1"));
    let build = |device: &Device, access| {
        Mmap::builder()
            .device(device)
            .access(access)
            .alloc(4096)
            .unwrap()
    };
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
    let mmap = build(&host, access);
    let on = |mmap: &Mmap, at| between(&host).backing(mmap, at).start();
    for at in [1, 4, 7, 4095, 4096, usize::MAX - 7, usize::MAX] {
        mentions(
            &rejected(on(&mmap, at), ErrorKind::InvalidValue),
            &[at as u64],
        );
    }
    drop(on(&mmap, 4088).unwrap());
    rejected(on(&build(&other, access), 0), ErrorKind::InvalidValue);
    for access in [
        Access::LOCAL_READ_WRITE,
        Access::LOCAL_READ_WRITE | Access::DPU_READ_ONLY,
    ] {
        rejected(on(&build(&host, access), 0), ErrorKind::NotPermitted);
    }
    let cpu = Location::Cpu(&host);
    let local = SyncEvent::builder().publisher(cpu).subscriber(cpu);
    rejected(local.backing(&mmap, 0).start(), ErrorKind::InvalidValue);
    let pool = BufPool::builder(&mmap).build().unwrap();
    rejected(on(&mmap, 0), ErrorKind::InUse);
    drop(pool);
    mmap.stop().unwrap();
    rejected(on(&mmap, 0), ErrorKind::BadState);
}

#[test]
fn exactly_one_publisher_and_one_subscriber() {
    let setup = Setup::new(false, Mode::EventDriven);
    let (host, other) = (setup.host(), setup.device(View::Host, "pf1"));
    let (cpu, new) = (Location::Cpu(&host), SyncEvent::builder);
    for (builder, kind) in [
        (new(), ErrorKind::InvalidValue),
        (new().publisher(cpu), ErrorKind::InvalidValue),
        (new().subscriber(cpu), ErrorKind::InvalidValue),
        (
            new().publisher(cpu).publisher(cpu).subscriber(cpu),
            ErrorKind::InvalidValue,
        ),
        (
            new()
                .publisher(cpu)
                .subscriber(cpu)
                .subscriber(Location::Dpu),
            ErrorKind::InvalidValue,
        ),
        (
            new().publisher(cpu).subscriber(Location::Cpu(&other)),
            ErrorKind::InvalidValue,
        ),
        (
            new().publisher(Location::Dpu).subscriber(Location::Dpu),
            ErrorKind::InvalidValue,
        ),
        (
            new().publisher(Location::Dpa).subscriber(cpu),
            ErrorKind::NotSupported,
        ),
        (
            new().publisher(cpu).subscriber(Location::Gpu),
            ErrorKind::NotSupported,
        ),
    ] {
        rejected(builder.clone().start(), kind);
        rejected(builder.attach(&setup.workq()), kind);
    }
    let event = new().publisher(cpu).subscriber(cpu);
    for waits in [0, (1 << 16) + 1] {
        rejected(
            event.clone().waits(waits).attach(&setup.workq()),
            ErrorKind::InvalidValue,
        );
    }
    let event = event.attach(&setup.workq()).unwrap();
    let text = rejected(event.export_dpu(&host), ErrorKind::NotSupported);
    assert!(text.contains("Location::Dpu"), "{text}");
    let clone = event.clone();
    rejected(clone.detach(), ErrorKind::InUse);
    event.detach().unwrap();
}

#[test]
fn who_exports_and_who_imports() {
    let setup = Setup::new(false, Mode::EventDriven);
    let owner = setup.owner();
    let (host, dpu) = (owner.device(), setup.dpu());
    let blob = owner.export_dpu(host).unwrap();
    assert_eq!(owner.export_dpu(host).unwrap(), blob);
    assert!(blob.len() <= 1024);
    rejected(
        owner.export_dpu(&setup.device(View::Host, "pf1")),
        ErrorKind::InvalidValue,
    );
    // These devices are the other port, a scalable function of the DPU, and a function of the host.
    for (view, name) in [(View::Dpu, "p1"), (View::Dpu, "p0s0"), (View::Host, "pf0")] {
        let device = setup.device(view, name);
        rejected(
            SyncEvent::from_export(&device, &blob).wait(),
            ErrorKind::NotSupported,
        );
        let caps = device.info().caps().sync_event.clone().unwrap();
        assert_eq!(
            (caps.export_dpu, caps.import_dpu),
            (view == View::Host, name == "p1")
        );
    }
    let on_dpu = between(&dpu).attach(&setup.workq()).unwrap();
    rejected(on_dpu.export_dpu(&dpu), ErrorKind::NotSupported);
    for len in 0..blob.len() {
        rejected(
            SyncEvent::from_export(&dpu, &blob[..len]).wait(),
            ErrorKind::InvalidValue,
        );
    }
    let rdma = tokio_doca::Rdma::builder(host)
        .attach(&setup.workq())
        .unwrap();
    rejected(
        SyncEvent::from_export(&dpu, &rdma.export().unwrap()).wait(),
        ErrorKind::InvalidValue,
    );
    rejected(rdma.connect(&blob).wait(), ErrorKind::InvalidValue);
    let mut polled = SyncEvent::from_export(&dpu, &blob);
    let _ = run(async { futures::poll!(&mut polled) });
    rejected(polled.wait(), ErrorKind::BadState);
}

#[test]
fn an_adapter_waits_for_small_numbers_and_whole_bytes() {
    for setup in Setup::all().map(|setup| setup.limits(Limits::bluefield3())) {
        let (owner, importer) = setup.pair();
        assert!(owner.caps().supports(SyncEventKind::WaitGt));
        run(in_time("the waits", async {
            owner.set(254).await.unwrap();
            assert_eq!(importer.wait_gt(253).await, Ok(254));
            let error = importer.wait_gt(255).await.unwrap_err();
            assert_eq!(
                (error.reason(), error.kind()),
                (Reason::WaitTooHigh, ErrorKind::InvalidValue)
            );
            mentions(&error.to_string(), &[255, 254]);
            assert_eq!(reason(importer.wait_gt(300).start()), Reason::WaitTooHigh);
            assert_eq!(importer.wait_gt_masked(1, 0xff).await, Ok(254));
            assert_eq!(
                reason(importer.wait_gt_masked(0, 0xf0).await),
                Reason::WaitMask
            );
            // The limit applies neither to jobs nor to the blocking flavour.
            owner.set(u64::MAX).await.unwrap();
            assert_eq!(importer.get().await, Ok(u64::MAX));
        }));
        let blob = owner.export_dpu(owner.device()).unwrap();
        drop(importer);
        let importer = import(&setup.dpu(), &blob).start().unwrap();
        assert_eq!(importer.wait_gt(1 << 40, !1), Ok(u64::MAX));
    }
}

/// Checks that a wait has failed because the value of its event is greater than 254, with the value
/// in the error.
#[track_caller]
fn too_high(result: Result<u64, JobError>, value: u64) {
    let error = result.unwrap_err();
    assert_eq!(
        (error.reason(), error.kind()),
        (Reason::EventTooHigh, ErrorKind::InvalidValue)
    );
    mentions(&error.to_string(), &[value, 254]);
}

#[test]
fn an_adapter_does_not_wait_where_the_value_is_beyond_its_limit() {
    for setup in Setup::all().map(|setup| setup.limits(Limits::bluefield3())) {
        let (owner, importer) = setup.pair();
        run(in_time("the waits", async {
            for (one, other) in [(&owner, &importer), (&importer, &owner)] {
                // The mask hides the second value, but the limit applies to the unmasked value.
                for (value, mask) in [(255, u64::MAX), (256, 0xff), (u64::MAX, u64::MAX)] {
                    one.set(254).await.unwrap();
                    let mut waiting = pin!(other.wait_gt_masked(254, mask));
                    for _ in 0..50 {
                        poll_pending(waiting.as_mut());
                    }
                    one.set(value).await.unwrap();
                    too_high(waiting.await, value);
                    too_high(other.wait_gt_masked(0, mask).await, value);
                    let refused = other.wait_gt_masked(0, mask).start().map(|_| 0);
                    too_high(refused.map_err(JobError::from), value);
                }
                one.set(1).await.unwrap();
                assert_eq!(other.wait_gt(0).await, Ok(1));
            }
        }));
    }
}

#[test]
fn who_cannot_wait_gets() {
    for setup in Setup::all().map(|setup| setup.limits(Limits::bluefield2())) {
        let (owner, importer) = setup.waits(1).pair();
        assert!(!owner.caps().supports(SyncEventKind::WaitGt));
        assert!(owner.caps().supports(SyncEventKind::Add));
        run(in_time("the waits", async {
            let waits: Vec<_> = (0..4)
                .map(|at| tokio::spawn(importer.wait_gt_masked(1000 + at, 0xfff).owned()))
                .collect();
            tokio::task::yield_now().await;
            owner.set(1003).await.unwrap();
            let mut waits = waits.into_iter();
            for wait in waits.by_ref().take(3) {
                assert_eq!(wait.await.unwrap(), Ok(1003));
            }
            let last = waits.next().unwrap();
            assert!(!last.is_finished());
            assert_eq!(importer.wait_gt(5).start().unwrap().await, Ok(1003));
            owner.stop();
            assert_eq!(reason(last.await.unwrap()), Reason::EventRevoked);
        }));
    }
}

#[test]
fn faults_on_request_come_to_jobs() {
    let soft = Soft::builder().build();
    let host = soft.open("pf0").unwrap();
    let workq = WorkQ::builder().depth(4).build().unwrap();
    let event = between(&host).attach(&workq).unwrap();
    run(in_time("the jobs", async {
        soft.faults().push(Fault::Error(ErrorKind::IoFailed, 7));
        let error = event.set(1).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.vendor_code()),
            (ErrorKind::IoFailed, Some(7))
        );
        soft.faults().push(Fault::QueueFull);
        assert_eq!(event.get().await, Ok(0));
        soft.faults().push(Fault::Lost);
        let lost = tokio::time::timeout(Duration::from_millis(5), event.get()).await;
        assert!(lost.is_err());
        assert_eq!(workq.in_flight(), 1);
        // A wait is no job, so it uses up no fault.
        soft.faults().push(Fault::Pass);
        let (waited, ()) = tokio::join!(event.wait_gt(0), async { event.set(2).await.unwrap() });
        assert_eq!(waited, Ok(2));
        assert_eq!(soft.faults().left(), 0);
    }));
}

#[test]
fn a_device_that_cannot_ring_is_for_busy_polling() {
    let setup = Setup::new(false, Mode::EventDriven);
    let setup = setup.limits(Limits::unlimited().sync_event_event_driven(false));
    let host = setup.host();
    rejected(
        between(&host).attach(&setup.workq()),
        ErrorKind::NotSupported,
    );
    let busy = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
    let event = between(&host).attach(&busy).unwrap();
    rejected(busy.set_mode(Mode::EventDriven), ErrorKind::NotSupported);
    assert_eq!(busy.block_on(event.add(1)), Ok(0));
}
