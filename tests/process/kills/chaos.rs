//! Eight processes meet in pairs, do random operations with checksummed memory, and are killed at
//! random moments.
//!
//! `TOKIO_DOCA_CHAOS_SECONDS` sets the duration (default: 2 s); `TOKIO_DOCA_CHAOS_SEED` repeats the
//! choices of a run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use support::peer::{Peer, footprint, hear, hex, role, say, unhex};
use support::random::{Random, setting};
use support::rdma::{Setup, Side};
use support::{test_name, *};
use tokio_doca::{
    error::{JobError, Reason},
    mem::RemoteMmap,
};

const TEST: &str = test_name!(processes_meet_and_are_killed);
const PROCESSES: usize = 8;
const OPERATIONS: usize = 60;
/// The latest moment of a kill, in microseconds.
const LATEST: u64 = 10_000;
/// Size in bytes of the counter at the start of the exported memory; the peer writes behind it.
const COUNTER: usize = 8;

/// Returns random bytes with their checksum.
fn checked(random: &mut Random) -> Vec<u8> {
    let len = match random.below(3) {
        0 => random.below(110) as usize,
        _ => random.below(ELEMENT as u64 - 8) as usize,
    };
    let mut bytes = pattern(random.below(256) as u8, len);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

#[track_caller]
fn check(bytes: &[u8]) {
    let (bytes, sum) = bytes.split_at(bytes.len() - 4);
    assert_eq!(crc32c::crc32c(bytes).to_le_bytes(), sum, "corrupted");
}

/// Sends messages, and reads and writes the peer's memory.
async fn asks(side: &Side, remote: &RemoteMmap, random: &mut Random) -> Result<(), JobError> {
    let counter = remote.buf(..COUNTER).unwrap();
    let mut count = 0;
    for _ in 0..OPERATIONS {
        let bytes = checked(random);
        match random.below(4) {
            0 => {
                let there = remote.buf(COUNTER..COUNTER + bytes.len()).unwrap();
                let (full, back) = (side.filled(&bytes), side.empty());
                side.rdma.write(&full, &there).await?;
                side.rdma.read(&there, &back).await?;
                assert_eq!(support::bytes(&back), bytes);
            }
            1 => {
                let before = side.rdma.fetch_add(&counter, 1).await?;
                assert_eq!(before, count);
                count += 1;
            }
            _ => side.send(&bytes).await?,
        }
    }
    side.rdma.send_imm((), count as u32).await?;
    Ok(())
}

/// Receives until the peer reports its end, with the number of its atomic operations.
async fn hears(side: &Side) -> Result<(), JobError> {
    loop {
        let buf = side.empty();
        let received = side.rdma.recv(&buf).await?;
        if let Some(count) = received.immediate {
            assert_eq!(side.shared.load(0), Ok(u64::from(count)));
            return Ok(());
        }
        check(&bytes(&buf));
    }
}

/// Runs in each child process: for each request of the parent, connects to the peer that the parent
/// names, and runs a session with it.
fn member(seed: u64) {
    let mut random = Random(seed);
    let pid = std::process::id() as i32;
    let side = Side::new(Setup::all()[random.below(6) as usize]);
    // The fabric's resources stay until the process ends.
    let exported = hex(&side.memory());
    let mut before = None;
    while hear().is_some() {
        side.shared.copy_in(0, &[0; COUNTER]).unwrap();
        side.meet_parent(random.below(2) == 0);
        say(&exported);
        let remote = side.import(&unhex(&hear().unwrap()));
        say("begun");
        let result = run(async {
            let all = async { tokio::try_join!(asks(&side, &remote, &mut random), hears(&side)) };
            in_time("a session", all).await
        });
        match result {
            Ok(_) => say("done"),
            Err(error) => say(&format!("{:?}", error.cause().unwrap_or(error.reason()))),
        }
        // Waits until the peer has been notified as well.
        hear();
        drop(remote);
        side.rdma.reset().unwrap();
        run(side.all_back());
        before.get_or_insert_with(|| footprint(pid));
        say("reset");
    }
    let before = before.map(|(descriptors, _, threads)| (descriptors, threads));
    block_until("no more is there than before", || {
        let (descriptors, _, threads) = footprint(pid);
        before.is_none_or(|before| descriptors <= before.0 && threads <= before.1)
    });
}

fn start(random: &mut Random) -> Peer {
    Peer::start(TEST, &random.below(u64::MAX).to_string())
}

/// Lets two processes meet, one of which may be killed. Returns those that live.
fn session(mut one: Peer, mut other: Peer, random: &mut Random) -> Vec<Peer> {
    one.say("meet");
    other.say("meet");
    one.swap(&mut other);
    // The side that connects second waits for this.
    one.say("go on");
    other.say("go on");
    assert_eq!((&*one.hear(), &*other.hear()), ("connected", "connected"));
    one.swap(&mut other);
    assert_eq!((&*one.hear(), &*other.hear()), ("begun", "begun"));
    let kills = random.below(3) == 0;
    let mut left = vec![one];
    if kills {
        std::thread::sleep(Duration::from_micros(random.below(LATEST)));
        other.kill();
    } else {
        left.push(other);
    }
    for peer in &mut left {
        let said = peer.hear();
        // The peer may have finished before the kill.
        let told = [Reason::PeerGone, Reason::ExporterGone].map(|reason| format!("{reason:?}"));
        assert!(said == "done" || (kills && told.contains(&said)), "{said}");
    }
    for peer in &mut left {
        peer.say("reset");
    }
    for peer in &mut left {
        assert_eq!(peer.hear(), "reset");
    }
    left
}

#[test]
fn processes_meet_and_are_killed() {
    if let Some(seed) = role() {
        return member(seed.parse().unwrap());
    }
    let seconds = setting("TOKIO_DOCA_CHAOS_SECONDS").unwrap_or(2);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_CHAOS_SEED").unwrap_or(now);
    println!("{seconds} s, TOKIO_DOCA_CHAOS_SEED={seed}");
    let mut random = Random(seed);
    let peers: Vec<Peer> = (0..PROCESSES).map(|_| start(&mut random)).collect();
    let peers = Mutex::new(peers);
    let (sessions, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES / 2 {
            let mut random = Random(random.below(u64::MAX));
            let (peers, sessions, killed) = (&peers, &sessions, &killed);
            scope.spawn(move || {
                // A slow machine takes longer to reach the minimum number of sessions.
                let few = || sessions.load(Ordering::Relaxed) <= PROCESSES;
                while Instant::now() < end || few() {
                    let [one, other] = [(); 2].map(|()| {
                        let mut peers = peers.lock().unwrap();
                        let at = random.below(peers.len() as u64) as usize;
                        peers.swap_remove(at)
                    });
                    let mut left = session(one, other, &mut random);
                    if left.len() == 1 {
                        killed.fetch_add(1, Ordering::Relaxed);
                        left.push(start(&mut random));
                    }
                    sessions.fetch_add(1, Ordering::Relaxed);
                    peers.lock().unwrap().extend(left);
                }
            });
        }
    });
    println!("{sessions:?} sessions, {killed:?} of them killed");
    assert!(sessions.into_inner() > PROCESSES);
    peers.into_inner().unwrap().into_iter().for_each(Peer::ends);
}
