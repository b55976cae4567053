//! WorkQs on adapters: several devices behind one event handle, the application's own loop, and
//! drops in any order.

use std::os::fd::AsRawFd;

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, Fake, World};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::random::{Random, setting};
use support::rdma::{REMOTE, Setup, Side, connect};
use support::*;
use tokio_doca::soft::Soft;
use tokio_doca::verbs::ffi::IBV_WC_REM_OP_ERR;
use tokio_doca::{
    Buf, BufPool, Device, Dma, Mmap, Mode, Rdma, WorkQ,
    mem::{Access, RemoteMmap},
};

fn on_fake(check: impl FnOnce(Fake, &Device)) {
    let world = World::new([Description::roce("fake0")]);
    let verbs = provider(&world);
    check(world.fake("fake0"), &open(&verbs, "fake0"));
}

/// Returns a pool whose memory is registered with all these devices.
fn pool(devices: &[&Device]) -> BufPool {
    let mmap = (devices.iter()).fold(Mmap::builder(), |mmap, device| mmap.device(device));
    let mmap = mmap.alloc(64 * ELEMENT).unwrap();
    BufPool::builder(&mmap)
        .element_size(ELEMENT)
        .build()
        .unwrap()
}

fn pair(pool: &BufPool) -> (Buf, Buf) {
    let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    src.extend_from_slice(&[7; 1000]).unwrap();
    (src, dst)
}

/// The application takes the event handle before a device is attached. With the device's completion
/// channel behind it the handle stays the same, and is quiet once it was cleared.
#[test]
fn a_loop_of_ones_own_waits_for_a_completion_channel() {
    on_fake(|_, device| {
        let workq = WorkQ::builder().depth(8).build().unwrap();
        let handle = workq.event_handle().unwrap().as_raw_fd();
        let dma = Dma::builder(device).attach(&workq).unwrap();
        let fires = |ms: u16| {
            let fd = workq.event_handle().unwrap();
            assert_eq!(fd.as_raw_fd(), handle);
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(ms)).unwrap() == 1
        };
        let pool = pool(&[device]);
        for word in 0..20 {
            let (src, dst) = pair(&pool);
            dma.copy(&src, &dst).post(word).unwrap();
            let mut told = Vec::new();
            while told.is_empty() {
                workq.arm();
                assert!(fires(60_000), "job {word} was not heard of");
                workq.clear();
                workq.progress(|word, result| told.push((word, result.unwrap().bytes())));
            }
            assert_eq!(told, [(word, Some(1000))]);
            // Of a completion that `arm` has found, one event may still arrive later.
            if fires(5) {
                workq.clear();
                assert!(!fires(5), "it is not quiet");
            }
            assert_eq!(dst.data().unwrap()[..], [7; 1000]);
        }
        drop((dma, pool));
        workq.block_on(workq.shutdown()).unwrap();
    });
}

/// Returns two connected contexts on a WorkQ.
fn connected(device: &Device, workq: &WorkQ, mode: Mode) -> [Side; 2] {
    let sides = [(); 2].map(|()| Side::on(device, workq, Setup::new(false, mode)));
    connect(&sides[0].rdma, &sides[1].rdma);
    sides
}

/// Sends a message and its answer.
async fn ping([one, other]: &[Side; 2]) {
    let there = async {
        let came = other.recv().await.unwrap();
        other.send(&came).await.unwrap();
    };
    let here = async {
        one.send(b"ping").await.unwrap();
        assert_eq!(one.recv().await.unwrap(), b"ping");
    };
    in_time("a ping", futures::future::join(here, there)).await;
}

/// The connection ends in three ways: another thread drops or resets it, or it fails and this
/// thread finds out.
#[test]
fn a_driver_that_takes_long_to_destroy_a_queue_pair_holds_up_nobody() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        for how in ["drop", "reset", "failure"] {
            let world = World::new([Description::roce("fake0")]);
            let device = open(&provider(&world), "fake0");
            let workq = WorkQ::builder().mode(mode).build().unwrap();
            let (stays, ends) = (
                connected(&device, &workq, mode),
                connected(&device, &workq, mode),
            );
            let held = world.faults().hold_calls("ibv_destroy_qp");
            let [one, other] = ends;
            let begun = || world.calls("ibv_destroy_qp") > 0;
            let thread = match how {
                "failure" => {
                    run(async {
                        world.faults().end_with(1, IBV_WC_REM_OP_ERR, 0);
                        let sent = in_time("a failure", one.send(b"to nobody")).await;
                        sent.unwrap_err();
                    });
                    std::thread::spawn(move || drop(one))
                }
                "reset" => std::thread::spawn(move || one.rdma.reset().unwrap()),
                _ => std::thread::spawn(move || drop(one)),
            };
            block_until("the driver is at it", begun);
            run(async {
                for _ in 0..10 {
                    ping(&stays).await;
                }
            });
            assert!(!thread.is_finished(), "{how}");
            drop(held);
            thread.join().unwrap();
            run(ping(&stays));
            drop((stays, other));
        }
    }
}

/// A reset removes the old queue pair from the adapter and makes a new one.
#[test]
fn a_driver_that_takes_long_to_make_a_queue_pair_holds_up_nobody() {
    let world = World::new([Description::roce("fake0")]);
    let device = open(&provider(&world), "fake0");
    let mode = Mode::EventDriven;
    let workq = WorkQ::builder().mode(mode).build().unwrap();
    let stays = connected(&device, &workq, mode);
    let [one, other] = connected(&device, &workq, mode);
    let before = world.calls("ibv_create_qp");
    let held = world.faults().hold_calls("ibv_create_qp");
    let rdma = one.rdma.clone();
    let reset = std::thread::spawn(move || rdma.reset().unwrap());
    let begun = || world.calls("ibv_create_qp") > before;
    block_until("the driver is at it", begun);
    // Another thread queries the same connection. Then this thread uses the rest of the WorkQ.
    let asks = std::thread::spawn({
        let rdma = one.rdma.clone();
        move || _ = rdma.path()
    });
    block_until("it answers", || asks.is_finished());
    asks.join().unwrap();
    run(async {
        for _ in 0..10 {
            ping(&stays).await;
        }
    });
    assert!(!reset.is_finished());
    drop(held);
    reset.join().unwrap();
    other.rdma.reset().unwrap();
    let again = [one, other];
    connect(&again[0].rdma, &again[1].rdma);
    run(async {
        ping(&again).await;
        ping(&stays).await;
    });
}

/// A copy that fails breaks the queue pair that all copies share, which is replaced. The adapter
/// reuses its number at once: a connection that gets the number waits until the old queue pair is
/// destroyed.
#[test]
fn a_driver_that_takes_long_to_destroy_the_queue_pair_of_copies_holds_up_nobody() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let world = World::new([Description {
            keeps_completions: true,
            ..Description::roce("fake0")
        }]);
        let device = open(&provider(&world), "fake0");
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        let stays = connected(&device, &workq, mode);
        let before = world.fake("fake0").queue_pairs();
        let pool = pool(&[&device]);
        world.faults().repeat_numbers();
        let held = world.faults().hold_calls("ibv_destroy_qp");
        world.faults().end_with(1, IBV_WC_REM_OP_ERR, 0);
        let pairs: Vec<_> = (0..4).map(|_| pair(&pool)).collect();
        let copies = pairs.iter().map(|(src, dst)| dma.copy(src, dst));
        run(async {
            let mut copies = Box::pin(futures::future::join_all(copies));
            until("the driver is at it", || {
                poll_pending(copies.as_mut());
                world.calls("ibv_destroy_qp") > 0
            })
            .await;
            let new = {
                let (device, workq) = (device.clone(), workq.clone());
                std::thread::spawn(move || Side::on(&device, &workq, Setup::new(false, mode)))
            };
            block_until("another one has its number", || {
                world.fake("fake0").queue_pairs() == before
            });
            for _ in 0..10 {
                ping(&stays).await;
            }
            poll_pending(copies.as_mut());
            assert!(!new.is_finished());
            drop(held);
            let results = in_time("the copies", copies).await;
            assert_eq!(results.iter().filter(|it| it.is_ok()).count(), 3);
            let new = new.join().unwrap();
            let third = Side::on(&device, &workq, Setup::new(false, mode));
            connect(&new.rdma, &third.rdma);
            ping(&[new, third]).await;
        });
        drop((stays, dma, pairs, pool));
    }
}

/// The adapter reuses a number at once: the new queue pair waits until the old one is destroyed, so
/// that no completion is taken for one of the other.
#[test]
fn a_queue_pair_with_the_number_of_one_that_is_dying_waits() {
    let world = World::new([Description {
        keeps_completions: true,
        ..Description::roce("fake0")
    }]);
    let device = open(&provider(&world), "fake0");
    let mode = Mode::EventDriven;
    let workq = WorkQ::builder().mode(mode).build().unwrap();
    let [one, other] = connected(&device, &workq, mode);
    let before = world.fake("fake0").queue_pairs();
    world.faults().repeat_numbers();
    let held = world.faults().hold_calls("ibv_destroy_qp");
    let dying = std::thread::spawn(move || drop(one));
    let gone = || world.fake("fake0").queue_pairs().len() < before.len();
    block_until("the driver is at it", gone);
    let new = {
        let (device, workq) = (device.clone(), workq.clone());
        std::thread::spawn(move || Side::on(&device, &workq, Setup::new(false, mode)))
    };
    block_until("another one has its number", || {
        world.fake("fake0").queue_pairs() == before
    });
    // The new queue pair is not returned yet.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!new.is_finished() && !dying.is_finished());
    drop(held);
    dying.join().unwrap();
    let new = new.join().unwrap();
    drop(other);
    let third = Side::on(&device, &workq, Setup::new(false, mode));
    connect(&new.rdma, &third.rdma);
    run(ping(&[new, third]));
}

#[test]
fn one_workq_serves_a_signal_and_two_channels() {
    let world = World::new([Description::roce("fake0"), Description::infiniband("fake1")]);
    let verbs = provider(&world);
    let adapters = [open(&verbs, "fake0"), open(&verbs, "fake1")];
    let soft = Soft::builder().defer(true).build().open("pf0").unwrap();
    let devices = [&soft, &adapters[0], &adapters[1]];
    let pool = pool(&devices);
    let workq = WorkQ::builder().depth(8).build().unwrap();
    let dmas = devices.map(|device| Dma::builder(device).attach(&workq).unwrap());
    run(async {
        for _ in 0..300 {
            let bufs = [pair(&pool), pair(&pool), pair(&pool)];
            let copy = |at: usize| dmas[at].copy(&bufs[at].0, &bufs[at].1);
            let all = async { tokio::join!(copy(0), copy(1), copy(2)) };
            assert_eq!(
                in_time("three copies", all).await,
                (Ok(1000), Ok(1000), Ok(1000))
            );
        }
    });
    assert_eq!(devices.map(Device::jobs), [Some(300); 3]);
}

// Attaching a device with its own descriptor drops the registrations of the event handle, and an
// orphan has no `Op` that would register anew.
#[test]
fn an_orphan_is_heard_of_though_a_channel_was_attached_meanwhile() {
    on_fake(|_, adapter| {
        let soft = Soft::builder().defer(true).build();
        let device = soft.open("pf0").unwrap();
        let (pool, workq) = (pool(&[&device, adapter]), WorkQ::builder().build().unwrap());
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        let hold = soft.faults().hold();
        let (src, dst) = pair(&pool);
        run(async {
            let mut copy = Box::pin(dma.copy(&src, &dst));
            poll_pending(copy.as_mut());
            drop(copy);
            let _adapters = Dma::builder(adapter).attach(&workq).unwrap();
            drop(hold);
            until("somebody reaps the orphan", || workq.in_flight() == 0).await;
        });
    });
}

/// A poll of a pending operation polls the completion queue up to 32 times if nothing has
/// completed, and does not reap.
#[test]
fn a_busy_poll_looks_a_few_times_and_takes_no_turn_in_vain() {
    let world = World::new([Description::roce("fake0")]);
    let verbs = provider(&world);
    let device = open(&verbs, "fake0");
    let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let hold = world.fake("fake0").hold();
    let (src, dst) = pair(&pool(&[&device]));
    let mut copy = Box::pin(dma.copy(&src, &dst));
    run(async {
        poll_pending(copy.as_mut());
        let before = (world.polls(), workq.stats().polls);
        for _ in 0..100 {
            poll_pending(copy.as_mut());
        }
        let looks = world.polls() - before.0;
        assert!((100..=3200).contains(&looks), "{looks} looks in 100 polls");
        assert_eq!(workq.stats().polls, before.1, "turns in vain");
        drop(hold);
        assert_eq!(in_time("the copy", copy.as_mut()).await, Ok(1000));
    });
    drop(copy);
}

#[test]
fn a_copy_that_sleeps_makes_one_turn() {
    on_fake(|fake, device| {
        let workq = WorkQ::builder().build().unwrap();
        let dma = Dma::builder(device).attach(&workq).unwrap();
        let pool = pool(&[device]);
        run(async {
            const COPIES: u64 = 20;
            let before = workq.stats().polls;
            for _ in 0..COPIES {
                let (src, dst) = pair(&pool);
                let hold = fake.hold();
                // Only the task that the event resumes reaps the copy.
                let copy = tokio::spawn(dma.copy(&src, &dst).owned().into_future());
                while workq.in_flight() == 0 {
                    tokio::task::yield_now().await;
                }
                drop(hold);
                assert_eq!(in_time("the copy", copy).await.unwrap(), Ok(1000));
            }
            // There may be two more turns: one for the channel that was attached, when the kernel
            // reports it, and one for an event whose copy an earlier poll has reaped.
            let turns = workq.stats().polls - before;
            assert!((COPIES..=COPIES + 2).contains(&turns), "{turns} turns");
        });
    });
}

/// All kinds of objects on an adapter, to be dropped in any order.
enum Thing {
    WorkQ(#[expect(dead_code)] WorkQ),
    Dma(#[expect(dead_code)] Dma),
    Rdma(#[expect(dead_code)] Rdma),
    Mmap(#[expect(dead_code)] Mmap),
    Pool(#[expect(dead_code)] BufPool),
    Buf(#[expect(dead_code)] Buf),
    Remote(#[expect(dead_code)] RemoteMmap),
    Device(#[expect(dead_code)] Device),
    Reset(Rdma),
}

/// Makes objects on the device, with jobs in flight whose `Op`s were forgotten or dropped, and
/// posted receives.
fn things(device: Device, mode: Mode, random: &mut Random) -> Vec<Thing> {
    let setup = Setup::new(false, mode);
    let workqs = [0, 1].map(|_| WorkQ::builder().depth(16).mode(mode).build().unwrap());
    let ends = [0, 1].map(|at| Side::on(&device, &workqs[at], setup));
    connect(&ends[0].rdma, &ends[1].rdma);
    let dma = Dma::builder(&device).attach(&workqs[0]).unwrap();
    let access = Access::LOCAL_READ_WRITE | REMOTE;
    let mmap = Mmap::builder()
        .device(&device)
        .access(access)
        .alloc(1 << 14)
        .unwrap();
    let remote = ends[0].import(&mmap.export_rdma(&device).unwrap());
    let mut things = Vec::new();
    for at in 0..4 {
        let (src, dst) = pair(&ends[0].pool);
        let there = remote.buf(at * 1000..(at + 1) * 1000).unwrap();
        let copy = dma.copy(&src, &dst).start().unwrap();
        let write = ends[0].rdma.write(&src, &there).start();
        let message = ends[1].empty();
        let receive = ends[1].rdma.recv(&message).start().unwrap();
        match random.below(2) {
            0 => drop((copy, write, receive)),
            _ => std::mem::forget((copy, write, receive)),
        }
        things.extend([src, dst, message].map(Thing::Buf));
    }
    for end in ends {
        if random.below(2) == 0 {
            things.push(Thing::Reset(end.rdma.clone()));
        }
        things.push(Thing::Pool(end.pool));
        things.push(Thing::Mmap(end.mmap));
        things.push(Thing::Buf(end.shared));
        things.push(Thing::Rdma(end.rdma));
        things.push(Thing::Device(end.device));
        things.push(Thing::WorkQ(end.workq));
    }
    things.extend(workqs.map(Thing::WorkQ));
    things.extend([
        Thing::Dma(dma),
        Thing::Mmap(mmap),
        Thing::Remote(remote),
        Thing::Device(device),
    ]);
    things
}

#[test]
fn whatever_is_dropped_first_nothing_is_left() {
    let seeds = match setting("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..200,
    };
    for seed in seeds {
        eprintln!("SEED={seed}");
        let mut random = Random(seed);
        let kind = match random.below(3) {
            0 => Description::roce,
            1 => Description::soft_roce,
            _ => Description::infiniband,
        };
        let mode = match random.below(2) {
            0 => Mode::EventDriven,
            _ => Mode::BusyPoll,
        };
        let world = World::new([kind("fake0")]);
        let fake = world.fake("fake0");
        let runtime = runtime();
        let _entered = runtime.enter();
        let verbs = provider(&world);
        let hold = (random.below(3) > 0).then(|| fake.hold());
        let mut things = things(open(&verbs, "fake0"), mode, &mut random);
        let (mut verbs, mut hold) = (Some(verbs), hold);
        // At a random point the device works through its jobs, or is removed.
        let removed = random.below(4) == 0;
        let middle = random.below(things.len() as u64) as usize;
        while !things.is_empty() {
            if things.len() == middle {
                hold = None;
                verbs = None;
                if removed {
                    fake.remove();
                }
            }
            let thing = things.swap_remove(random.below(things.len() as u64) as usize);
            match thing {
                Thing::Reset(rdma) => drop(rdma.reset()),
                thing => drop(thing),
            }
        }
        drop((hold, verbs));
        drop(_entered);
        drop(runtime);
        world.wait_until_empty();
    }
}
