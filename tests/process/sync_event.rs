//! Sync events between two processes: every mode and both flavours, sums, kills, and a peer that
//! scribbles.
//!
//! `TOKIO_DOCA_KILLS` sets the number of moments (default: 20); `TOKIO_DOCA_KILLS_SEED` repeats a
//! run.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::events::{Setup, between, blob, give, import, imported};
use support::peer::{Peer, footprint, hear, hex, is_as_before, role, say, unhex};
use support::random::{Random, setting};
use support::{test_name, *};
use tokio_doca::{
    ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufInventory},
    sync_event::SyncEvent,
};

/// Number of adds by each side.
const ADDS: u64 = 1_000_000;

/// Number of adds that share a time limit.
const STEP: u64 = 1_000;

/// Returns the setup that the role of this process names.
fn setup() -> Option<Setup> {
    let number: usize = role()?.parse().unwrap();
    Some(Setup::all()[number].clone())
}

/// Runs a future as suits the WorkQ's mode.
fn on<F: Future>(workq: &WorkQ, future: F) -> F::Output {
    match workq.mode() {
        Mode::BusyPoll => workq.block_on(future),
        _ => run(future),
    }
}

#[test]
fn a_million_adds_of_each_side_give_the_exact_sum() {
    const NAME: &str = test_name!(a_million_adds_of_each_side_give_the_exact_sum);
    if let Some(role) = role() {
        let setup = Setup::new(false, Mode::BusyPoll);
        if role == "blocking" {
            let event = imported(&setup.dpu()).start().unwrap();
            for _ in 0..ADDS {
                event.add(1).unwrap();
            }
            hear();
        } else {
            let event = setup.importer(&blob());
            event.workq().block_on(async {
                for _ in 0..ADDS {
                    event.add(1).await.unwrap();
                }
            });
            hear();
        }
        return;
    }
    for role in ["blocking", "busy"] {
        let owner = Setup::new(false, Mode::EventDriven).owner();
        let mut peer = Peer::start(NAME, role);
        give(&mut peer, &owner);
        // Makes the adds in steps, each with its own time limit.
        runtime().block_on(async {
            for _ in 0..ADDS / STEP {
                in_time("a step", async {
                    for _ in 0..STEP {
                        owner.add(1).await.unwrap();
                    }
                })
                .await;
            }
            let mut sum = ADDS;
            while sum < 2 * ADDS {
                let next = (sum + STEP).min(2 * ADDS);
                let grown = in_time("the other side's step", owner.wait_gt(next - 1)).await;
                sum = grown.unwrap();
            }
            assert_eq!(sum, 2 * ADDS);
        });
        peer.ends();
        assert_eq!(run(owner.get()), Ok(2 * ADDS));
    }
}

#[test]
fn ping_and_pong_in_every_mode() {
    const NAME: &str = test_name!(ping_and_pong_in_every_mode);
    const TURNS: u64 = 300;
    if let Some(setup) = setup() {
        let event = setup.importer(&blob());
        on(&event.workq(), async {
            for turn in 0..TURNS {
                event.wait_gt(2 * turn).await.unwrap();
                assert_eq!(event.add(1).await, Ok(2 * turn + 1));
            }
        });
        hear();
        return;
    }
    for (number, setup) in Setup::all().into_iter().enumerate() {
        let owner = setup.owner();
        let mut peer = Peer::start(NAME, &number.to_string());
        give(&mut peer, &owner);
        run(in_time("all turns", async {
            for turn in 0..TURNS {
                assert_eq!(owner.add(1).await, Ok(2 * turn));
                assert_eq!(owner.wait_gt(2 * turn + 1).await, Ok(2 * turn + 2));
            }
        }));
        assert_eq!(owner.workq().in_flight(), 0);
        peer.ends();
    }
}

#[test]
fn the_blocking_flavour_meets_a_sleeper() {
    const NAME: &str = test_name!(the_blocking_flavour_meets_a_sleeper);
    if role().is_some() {
        let setup = Setup::new(false, Mode::EventDriven);
        let event = imported(&setup.dpu()).start().unwrap();
        for turn in 0..300 {
            let seen = match turn % 2 {
                0 => event.wait_gt(2 * turn, u64::MAX),
                _ => event.wait_gt_yield(2 * turn, u64::MAX),
            };
            assert_eq!(seen, Ok(2 * turn + 1));
            event.set(2 * turn + 2).unwrap();
        }
        hear();
        return;
    }
    for setup in [
        Setup::new(false, Mode::EventDriven),
        Setup::new(true, Mode::EventDriven),
    ] {
        let owner = setup.owner();
        let mut peer = Peer::start(NAME, "importer");
        give(&mut peer, &owner);
        run(in_time("all turns", async {
            for turn in 0..300 {
                owner.set(2 * turn + 1).await.unwrap();
                assert_eq!(owner.wait_gt(2 * turn + 1).await, Ok(2 * turn + 2));
            }
        }));
        peer.ends();
    }
}

#[test]
fn what_is_not_greater_wakes_nobody_and_masks_are_kept() {
    const NAME: &str = test_name!(what_is_not_greater_wakes_nobody_and_masks_are_kept);
    if let Some(setup) = setup() {
        let event = setup.importer(&blob());
        on(&event.workq(), async {
            for _ in 0..100 {
                event.set(7).await.unwrap();
            }
            say("set");
            hear();
            event.set(0x0100).await.unwrap();
            say("set");
            hear();
            event.set(0x0308).await.unwrap();
        });
        hear();
        return;
    }
    for number in [0, 1, 4] {
        let owner = Setup::all()[number].owner();
        let mut peer = Peer::start(NAME, &number.to_string());
        workers().block_on(in_time("the waits", async {
            let wait = tokio::spawn(owner.wait_gt_masked(7, 0xff).owned());
            let whole = tokio::spawn(owner.wait_gt(7).owned());
            tokio::task::yield_now().await;
            give(&mut peer, &owner);
            let mut step = async |whole_is_over: bool| {
                let heard = tokio::task::block_in_place(|| peer.hear());
                assert_eq!(heard, "set");
                until("the value comes", || whole.is_finished() == whole_is_over).await;
                assert!(!wait.is_finished());
                peer.say("go on");
            };
            step(false).await;
            step(true).await;
            assert_eq!(wait.await.unwrap(), Ok(0x0308));
            assert_eq!(whole.await.unwrap(), Ok(0x0100));
        }));
        peer.ends();
    }
}

#[test]
fn what_a_peer_sets_serves_those_in_line() {
    const NAME: &str = test_name!(what_a_peer_sets_serves_those_in_line);
    const NEVER: u64 = 1 << 40;
    if let Some(setup) = setup() {
        let event = setup.importer(&blob());
        hear();
        on(&event.workq(), event.set(0x0107)).unwrap();
        hear();
        return;
    }
    for (number, setup) in Setup::all().into_iter().enumerate() {
        let owner = setup.waits(1).owner();
        let mut peer = Peer::start(NAME, &number.to_string());
        give(&mut peer, &owner);
        run(in_time("the waits in line", async {
            let _placed = owner.wait_gt(NEVER).start().unwrap();
            let line = [(0, u64::MAX), (6, 0xff), (0x0106, u64::MAX)].map(|(threshold, mask)| {
                tokio::spawn(owner.wait_gt_masked(threshold, mask).owned())
            });
            tokio::task::yield_now().await;
            peer.say("set");
            for wait in line {
                assert_eq!(wait.await.unwrap(), Ok(0x0107));
            }
        }));
        peer.ends();
    }
}

#[test]
fn the_counter_in_an_mmap_is_shared_with_the_mmap() {
    const NAME: &str = test_name!(the_counter_in_an_mmap_is_shared_with_the_mmap);
    if let Some(setup) = setup() {
        let event = setup.importer(&blob());
        assert_eq!(on(&event.workq(), event.add(2)), Ok(40));
        hear();
        return;
    }
    for number in [0, 1] {
        let setup = &Setup::all()[number];
        let host = setup.host();
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let mmap = Mmap::builder()
            .device(&host)
            .access(access)
            .alloc(1 << 16)
            .unwrap();
        let buf = BufInventory::with_capacity(1)
            .buf_filled(&mmap, 40_000..40_008)
            .unwrap();
        buf.store(0, 40).unwrap();
        let owner = between(&host)
            .backing(&mmap, 40_000)
            .attach(&setup.workq())
            .unwrap();
        let mut peer = Peer::start(NAME, &number.to_string());
        give(&mut peer, &owner);
        assert_eq!(run(in_time("the add", owner.wait_gt(40))), Ok(42));
        assert_eq!(buf.load(0), Ok(42));
        peer.ends();
    }
}

#[test]
fn one_importer_at_a_time() {
    const NAME: &str = test_name!(one_importer_at_a_time);
    if let Some(role) = role() {
        let setup = Setup::new(false, Mode::EventDriven);
        let blob = blob();
        match role.as_str() {
            "refused" => {
                let import = SyncEvent::from_export(&setup.dpu(), &blob).wait();
                rejected(import, ErrorKind::InUse);
            }
            _ => {
                let event = import(&setup.dpu(), &blob).start().unwrap();
                event.add(1).unwrap();
                say("added");
                hear();
            }
        }
        return;
    }
    let owner = Setup::new(false, Mode::EventDriven).owner();
    let mut first = Peer::start(NAME, "first");
    give(&mut first, &owner);
    assert_eq!(first.hear(), "added");
    let mut second = Peer::start(NAME, "refused");
    give(&mut second, &owner);
    second.ends();
    // The importer is killed, or ends by itself.
    first.kill();
    for turn in 1..4 {
        let mut next = Peer::start(NAME, "next");
        give(&mut next, &owner);
        assert_eq!(next.hear(), "added");
        assert_eq!(run(in_time("the add", owner.wait_gt(turn))), Ok(turn + 1));
        next.ends();
    }
}

fn ended(result: Result<u64, JobError>, reason: Reason) {
    let error = result.unwrap_err();
    assert_eq!(
        (error.reason(), error.kind()),
        (reason, ErrorKind::ConnectionReset)
    );
}

#[test]
fn an_owner_that_stops_or_goes_ends_what_the_importer_waits_for() {
    const NAME: &str = test_name!(an_owner_that_stops_or_goes_ends_what_the_importer_waits_for);
    if let Some(setup) = setup() {
        let owner = setup.owner();
        say(&hex(&owner.export_dpu(owner.device()).unwrap()));
        if hear().unwrap() == "stop" {
            owner.stop();
            hear();
        } else {
            drop(owner);
            hear();
        }
        return;
    }
    for (number, setup) in Setup::all().into_iter().enumerate() {
        for how in ["stop", "drop"] {
            let mut peer = Peer::start(NAME, &number.to_string());
            let event = setup.importer(&unhex(&peer.hear()));
            run(in_time("the end", async {
                let mut wait = Box::pin(event.wait_gt(0));
                poll_pending(wait.as_mut());
                peer.say(how);
                ended(wait.await, Reason::EventRevoked);
                ended(event.get().await, Reason::EventRevoked);
                ended(event.wait_gt(0).await, Reason::EventRevoked);
            }));
            peer.ends();
        }
    }
}

/// The child process: one side of an event, which adds or waits until it is killed.
fn victim(number: usize) {
    let setup = &Setup::all()[number % 6];
    let owns = (number / 6).is_multiple_of(2);
    let event = match owns {
        true => {
            let owner = setup.owner();
            say(&hex(&owner.export_dpu(owner.device()).unwrap()));
            owner
        }
        false => setup.importer(&blob()),
    };
    say("begun");
    on(&event.workq(), async {
        let mut turn = 0_u32;
        if number < 12 {
            loop {
                event.add(2).await.unwrap();
                turn += 1;
                if turn.is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
        }
        event.wait_gt(u64::MAX - 1).await.unwrap();
    });
}

/// Kills a peer. Returns how long the notification took.
fn peer_dies(test: &str, random: &mut Random, setup: &Setup) -> Duration {
    let number = random.below(24) as usize;
    let before = footprint(std::process::id() as i32);
    let mut peer = Peer::start(test, &number.to_string());
    let owned = number / 6 % 2 == 1;
    let event = match owned {
        true => {
            let owner = setup.owner();
            give(&mut peer, &owner);
            owner
        }
        false => setup.importer(&unhex(&peer.hear())),
    };
    assert_eq!(peer.hear(), "begun");
    let moment = Duration::from_micros(random.below(10_000));
    let victim = Pid::from_raw(peer.pid());
    let took = std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            std::thread::sleep(moment);
            kill(victim, Signal::SIGKILL).unwrap();
            Instant::now()
        });
        run(in_time("the end", async {
            // Waits for values that are never reached.
            let waits = (0..4).map(|at| event.wait_gt(u64::MAX - 1 - at));
            for end in futures::future::join_all(waits).await {
                ended(end, Reason::EventPeerGone);
            }
            let told = Instant::now();
            match owned {
                true => drop(event.add(1).await.unwrap()),
                false => ended(event.add(1).await, Reason::EventPeerGone),
            }
            told
        }))
        .saturating_duration_since(killer.join().unwrap())
    });
    peer.dies();
    if owned {
        // The owner can export the event to another importer.
        let blob = event.export_dpu(event.device()).unwrap();
        let next = import(&setup.dpu(), &blob).start().unwrap();
        run(in_time("the next", async {
            event.set(0).await.unwrap();
            let mut wait = Box::pin(event.wait_gt(0));
            poll_pending(wait.as_mut());
            next.set(1).unwrap();
            assert_eq!(wait.await, Ok(1));
        }));
    }
    drop(event);
    is_as_before(std::process::id() as i32, before, "the survivor");
    took
}

#[test]
fn a_peer_that_is_killed_ends_what_waits_and_leaves_nothing() {
    const NAME: &str = test_name!(a_peer_that_is_killed_ends_what_waits_and_leaves_nothing);
    if let Some(role) = role() {
        return victim(role.parse().unwrap());
    }
    if !alone(NAME) {
        return;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_KILLS_SEED").unwrap_or(now);
    println!("TOKIO_DOCA_KILLS_SEED={seed}");
    let mut random = Random(seed);
    let setups = Setup::all();
    let mut longest = Duration::ZERO;
    for turn in 0..setting("TOKIO_DOCA_KILLS").unwrap_or(20) {
        let setup = &setups[turn as usize % 6];
        longest = longest.max(peer_dies(NAME, &mut random, setup));
    }
    println!("told after {longest:?} at most");
}

/// Overwrites random parts of all memory that is shared with the peer, except for the counter.
fn scribble(random: &mut Random) {
    use std::io::{Read, Seek, SeekFrom, Write};
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let page = maps
        .lines()
        .find(|line| line.contains("memfd:tokio-doca-arena"))
        .unwrap();
    let start = u64::from_str_radix(page.split('-').next().unwrap(), 16).unwrap();
    let mut memory = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    for _ in 0..3000 {
        let word = match random.below(4) {
            0 => 0,
            1 => u64::MAX,
            2 => random.below(200),
            _ => random.below(u64::MAX),
        };
        let at = 8 * random.below(512);
        memory.seek(SeekFrom::Start(start + at)).unwrap();
        memory.write_all(&word.to_ne_bytes()).unwrap();
        memory.seek(SeekFrom::Start(start)).unwrap();
        memory.read_exact(&mut [0; 8]).unwrap();
    }
}

#[test]
fn a_peer_that_scribbles_harms_nobody_but_itself() {
    const NAME: &str = test_name!(a_peer_that_scribbles_harms_nobody_but_itself);
    if let Some(setup) = setup() {
        let event = setup.importer(&blob());
        let mut random = Random(7);
        say("begun");
        while hear().is_some_and(|line| line == "more") {
            scribble(&mut random);
            say("done");
        }
        drop(event);
        return;
    }
    for (number, setup) in Setup::all().into_iter().enumerate() {
        let owner = setup.owner();
        let mut peer = Peer::start(NAME, &number.to_string());
        give(&mut peer, &owner);
        assert_eq!(peer.hear(), "begun");
        for _ in 0..3 {
            peer.say("more");
            let scribbles = std::sync::atomic::AtomicBool::new(true);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(peer.hear(), "done");
                    scribbles.store(false, std::sync::atomic::Ordering::SeqCst);
                });
                run(in_time("what the owner does", async {
                    let mut turn = 0_u64;
                    while scribbles.load(std::sync::atomic::Ordering::SeqCst) {
                        turn += 1;
                        owner.set(turn).await.unwrap();
                        owner.add(1).await.unwrap();
                        let mut wait = Box::pin(owner.wait_gt(turn + 1000));
                        let _ = poll(wait.as_mut());
                        if turn.is_multiple_of(16) {
                            tokio::task::yield_now().await;
                        }
                        drop(wait);
                        // The owner's sets complete its own waits, whatever the peer overwrites.
                        owner.set(0).await.unwrap();
                    }
                }));
            });
        }
        peer.say("enough");
        peer.ends();
        // The next importer finds the event intact.
        let blob = owner.export_dpu(owner.device()).unwrap();
        let next = setup.importer(&blob);
        run(in_time("the next", async {
            owner.set(0).await.unwrap();
            let wait = owner.wait_gt(0);
            let set = async {
                tokio::task::yield_now().await;
                next.set(5).await.unwrap();
            };
            let (woken, ()) = tokio::join!(wait, set);
            assert_eq!(woken, Ok(5));
        }));
    }
}

#[test]
fn more_doorbells_at_once_than_one_look_reads() {
    const NAME: &str = test_name!(more_doorbells_at_once_than_one_look_reads);
    const EVENTS: usize = 100;
    if role().is_some() {
        let dpu = Setup::new(false, Mode::EventDriven).dpu();
        let events: Vec<_> = (0..EVENTS)
            .map(|_| imported(&dpu).start().unwrap())
            .collect();
        for turn in 1..=3 {
            assert_eq!(hear().unwrap(), "set");
            events.iter().for_each(|event| event.set(turn).unwrap());
            say("done");
        }
        hear();
        return;
    }
    let setup = Setup::new(false, Mode::EventDriven);
    let (host, workq) = (setup.host(), setup.workq());
    let owners: Vec<_> = (0..EVENTS)
        .map(|_| between(&host).waits(1).attach(&workq).unwrap())
        .collect();
    let mut peer = Peer::start(NAME, "importer");
    owners.iter().for_each(|owner| give(&mut peer, owner));
    run(async {
        for turn in 0..3 {
            let waits = owners.iter().map(|owner| owner.wait_gt(turn).owned());
            let waits: Vec<_> = waits.map(tokio::spawn).collect();
            // Lets all waits go to sleep.
            for _ in 0..EVENTS {
                tokio::task::yield_now().await;
            }
            // The runtime does not run until the peer has set all events.
            peer.say("set");
            assert_eq!(peer.hear(), "done");
            for wait in waits {
                assert_eq!(in_time("a wait", wait).await.unwrap(), Ok(turn + 1));
            }
        }
    });
    peer.ends();
}
