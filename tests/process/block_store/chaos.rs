//! Clients write and read while a primary and its replica run; one of the two at a time is killed
//! at a random moment.
//!
//! `TOKIO_DOCA_CHAOS_SECONDS` sets the duration (default: 2 s); `TOKIO_DOCA_CHAOS_SEED` repeats the
//! choices of a run.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use support::device::needs_soft;
use support::programs::*;
use support::random::{Random, setting};
use support::{LIMIT, pattern, run};
use tokio_doca::{Device, WorkQ};

use super::client::Client;

const CLIENTS: usize = 3;
/// Number of blocks of each client.
const BLOCKS: usize = 4;
/// Sizes of blocks in bytes: some are copied, and others are registered.
const LENS: [usize; 3] = [1_000, 30_000, 65_536];

/// A primary and its replica.
pub(super) struct Pair {
    primary: Option<Running>,
    replica: Running,
    pub(super) addrs: [SocketAddr; 2],
}

pub(super) fn listens(program: &Running) -> SocketAddr {
    let line = program.line();
    let addr = line.strip_prefix("Listening on ").expect(&line);
    addr.parse().unwrap()
}

fn lender(addr: &str) -> Command {
    let mut command = example("block_store");
    command.args(["replica", addr, "--blocks", "64"]);
    command
}

fn replica(addr: &str) -> Running {
    Running::start(lender(addr))
}

/// Starts a replica with this limit of descriptors.
fn replica_with(descriptors: u32, addr: &str) -> Running {
    Running::start(limited(&format!("-n {descriptors}"), &lender(addr)))
}

fn primary(addr: &str, replica: SocketAddr) -> Running {
    let mut command = example("block_store");
    command.args(["serve", addr, "--blocks", "64"]);
    command.args(["--replica", &replica.to_string()]);
    Running::start(command)
}

/// Returns a different loopback address for each pair. On a shared address the port of a dead
/// program could be taken by any other socket, even by a client's.
fn host() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high | 1, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Pair {
    pub(super) fn start() -> Pair {
        Pair::start_by(replica)
    }

    /// Starts a pair whose replica has this limit of descriptors.
    pub(super) fn start_with(descriptors: u32) -> Pair {
        Pair::start_by(|addr| replica_with(descriptors, addr))
    }

    fn start_by(replica: impl FnOnce(&str) -> Running) -> Pair {
        let here = format!("{}:0", host());
        let replica = replica(&here);
        let there = listens(&replica);
        let primary = primary(&here, there);
        let pair = Pair {
            addrs: [listens(&primary), there],
            primary: Some(primary),
            replica,
        };
        pair.is_whole();
        pair
    }

    /// Waits until the primary reports that the replica has all blocks.
    fn is_whole(&self) {
        let primary = self.primary.as_ref().unwrap();
        while primary.line() != "The replica is whole" {}
    }

    pub(super) fn kill_replica(&mut self) {
        self.replica.kill();
    }

    pub(super) fn start_replica(&mut self) {
        self.replica = replica(&self.addrs[1].to_string());
        listens(&self.replica);
        self.is_whole();
    }

    pub(super) fn kill_primary(&mut self) {
        // Kills the old primary first, since the new one listens at the same address.
        self.primary = None;
        let primary = primary(&self.addrs[0].to_string(), self.addrs[1]);
        while !primary.line().starts_with("Listening on ") {}
        self.primary = Some(primary);
        self.is_whole();
    }
}

fn value(block: usize, number: u64) -> Bytes {
    let len = LENS[number as usize % LENS.len()];
    let mut value = number.to_le_bytes().to_vec();
    value.extend(pattern(block as u8 ^ number as u8, len - 8));
    value.into()
}

/// Writes and reads its blocks until the end, and returns the count of each. A read must return the
/// last acknowledged write, or a later one whose answer was lost.
fn client(addr: SocketAddr, first: usize, end: &AtomicBool) -> [u64; 2] {
    let (device, workq) = (
        Device::open_default().unwrap(),
        WorkQ::builder().build().unwrap(),
    );
    let mut client = Client::new(addr, &device, &workq, LIMIT).unwrap();
    let (mut random, mut counts) = (Random(first as u64 + 1), [0; 2]);
    let (mut numbers, mut versions) = ([0; BLOCKS], [0; BLOCKS]);
    run(async {
        while !end.load(Ordering::Relaxed) {
            let at = random.below(BLOCKS as u64) as usize;
            let block = first + at;
            if random.below(2) == 0 {
                let number = numbers[at] + 1;
                let version = client.put(block, &value(block, number)).await.unwrap();
                assert!(version > versions[at]);
                (numbers[at], versions[at]) = (number, version);
                counts[0] += 1;
            } else {
                let got = client.get(block).await.unwrap();
                let number = numbers[at];
                let Some((version, data)) = got else {
                    assert_eq!(number, 0, "block {block} is lost");
                    continue;
                };
                assert_eq!(version, versions[at]);
                assert!(data == value(block, number), "block {block} is torn or old");
                counts[1] += 1;
            }
        }
    });
    counts
}

#[test]
fn acknowledged_blocks_are_neither_lost_nor_torn_while_one_side_lives() {
    let soft = needs_soft("its processes open the default device");
    if soft || is_emulated("start what a program starts itself") {
        return;
    }
    let seconds = setting("TOKIO_DOCA_CHAOS_SECONDS").unwrap_or(2);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_CHAOS_SEED").unwrap_or(now);
    println!("TOKIO_DOCA_CHAOS_SEED={seed}");
    let (mut random, mut pair) = (Random(seed), Pair::start());
    let (end, addr) = (AtomicBool::new(false), pair.addrs[0]);
    let (mut kills, begun) = ([0; 2], Instant::now());
    let counts: Vec<[u64; 2]> = thread::scope(|scope| {
        let first = (0..CLIENTS).map(|client| client * BLOCKS);
        let clients: Vec<_> = first
            .map(|first| {
                let end = &end;
                scope.spawn(move || client(addr, first, end))
            })
            .collect();
        let fine = || clients.iter().all(|client| !client.is_finished());
        while fine() && (begun.elapsed() < Duration::from_secs(seconds) || kills.contains(&0)) {
            // Kills at a random moment.
            thread::sleep(Duration::from_micros(random.below(150_000)));
            let which = random.below(2) as usize;
            kills[which] += 1;
            if which == 0 {
                pair.kill_primary();
            } else {
                pair.kill_replica();
                // Meanwhile the primary writes without a replica.
                thread::sleep(Duration::from_micros(random.below(100_000)));
                pair.start_replica();
            }
        }
        end.store(true, Ordering::Relaxed);
        let ended = clients.into_iter().map(|client| client.join().unwrap());
        ended.collect()
    });
    let all = |which: usize| counts.iter().map(|counts| counts[which]).sum::<u64>();
    println!(
        "{} puts and {} gets; {kills:?} primaries and replicas killed",
        all(0),
        all(1)
    );
    assert!(all(0) > 0 && all(1) > 0);
}
