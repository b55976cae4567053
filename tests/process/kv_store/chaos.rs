//! Clients put and get while they and the server are killed at random moments.
//!
//! Each client process owns its keys, and notes in a file which puts it has begun and which were
//! acknowledged; each reads the keys of all. `TOKIO_DOCA_CHAOS_SECONDS` sets the duration (default:
//! 2 s); `TOKIO_DOCA_CHAOS_SEED` repeats the choices of a run.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::device::needs_soft;
use support::peer::{Peer, hear, role, say};
use support::programs::*;
use support::random::{Random, setting};
use support::{LIMIT, pattern, run, test_name};
use tokio_doca::{Device, WorkQ};

use super::client::Client;
use super::service::Service;
use super::wire::{HEAD, Head, Layout};

const TEST: &str = test_name!(what_was_acknowledged_is_never_lost_nor_torn_nor_older);
const CLIENTS: usize = 4;
/// Number of keys of each process.
const KEYS: usize = 4;
/// Sizes in bytes of the memory and of a value: the log has few segments, and wraps about every 200
/// puts.
const MEMORY: usize = 8 << 20;
const VALUE: usize = 30_000;
/// How many owners per client have keys that are read: the living process, and the one before it.
const KEPT: usize = 2;

/// The notes for the keys of one process: the numbers of the last put that it has begun and of the
/// last one that was acknowledged. The file survives the process.
struct Notes(File);

impl Notes {
    fn path(folder: &Path, owner: usize) -> PathBuf {
        folder.join(owner.to_string())
    }

    fn create(folder: &Path, owner: usize) -> Notes {
        let path = Notes::path(folder, owner);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path);
        Notes(file.unwrap())
    }

    fn at(key: usize, acknowledged: bool) -> u64 {
        key as u64 * 16 + u64::from(acknowledged) * 8
    }

    fn get(&self, key: usize, acknowledged: bool) -> u64 {
        let mut word = [0; 8];
        let at = Notes::at(key, acknowledged);
        // A word that was never written reads as 0.
        self.0.read_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    }

    fn set(&self, key: usize, acknowledged: bool, number: u64) {
        let at = Notes::at(key, acknowledged);
        self.0.write_all_at(&number.to_le_bytes(), at).unwrap();
    }
}

fn name(owner: usize, key: usize) -> Vec<u8> {
    format!("{owner} {key}").into_bytes()
}

/// Returns the value of a put. All values have the same length, so that new records replace old
/// ones exactly.
fn value(owner: usize, key: usize, number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.extend(pattern((owner + key) as u8 ^ number as u8, VALUE));
    value
}

/// A client, with the version and the number that it has last seen of each key.
struct Member {
    client: Client,
    folder: PathBuf,
    seen: HashMap<Vec<u8>, (u64, u64)>,
}

impl Member {
    /// Reads a key, and compares it with the notes of its owner, read before and after the get.
    async fn check(&mut self, owner: usize, notes: &Notes, key: usize) {
        let kept = Notes::path(&self.folder, owner);
        let least = notes.get(key, true);
        let name = name(owner, key);
        let got = self.client.get(&name).await.unwrap();
        let most = notes.get(key, false);
        // The notes of an old owner are deleted before its keys.
        if got.is_none() && !kept.exists() {
            return;
        }
        let Some(got) = got else {
            assert_eq!(least, 0, "a value of owner {owner} is lost");
            assert!(!self.seen.contains_key(&name), "it was there before");
            return;
        };
        let number = u64::from_le_bytes(got.data[..8].try_into().unwrap());
        assert!(got.data == value(owner, key, number), "a torn value");
        assert!(
            (least..=most).contains(&number),
            "{least} to {most}: {number}"
        );
        let now = (got.version, number);
        let before = self.seen.insert(name, now).unwrap_or_default();
        assert!(
            now.0 >= before.0 && now.1 >= before.1,
            "{before:?}, {now:?}"
        );
    }
}

/// A client process. Its arguments are its number, the address of the server, and the folder of the
/// notes. A client that replaces a killed one gets the next number.
fn member(args: &str) {
    let [owner, address, folder] = args.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("{args}");
    };
    let (owner, folder) = (owner.parse::<usize>().unwrap(), Path::new(folder));
    let device = Device::open_default().unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let mut random = Random(owner as u64);
    let mut member = Member {
        client: Client::new(address, &device, &workq, LIMIT).unwrap(),
        folder: folder.to_owned(),
        seen: HashMap::new(),
    };
    let notes = Notes::create(folder, owner);
    let (end, ended) = channel();
    thread::spawn(move || {
        // The parent sends nothing else, or closes the pipe.
        hear();
        end.send(()).unwrap();
    });
    say("begun");
    let mut gets = 0;
    run(async {
        while ended.try_recv().is_err() {
            match random.below(4) {
                0 => {
                    let key = random.below(KEYS as u64) as usize;
                    let number = notes.get(key, false) + 1;
                    notes.set(key, false, number);
                    let value = value(owner, key, number);
                    member.client.put(&name(owner, key), &value).await.unwrap();
                    notes.set(key, true, number);
                }
                _ => gets += usize::from(member.random_check(&mut random).await),
            }
        }
    });
    let puts: u64 = (0..KEYS).map(|key| notes.get(key, true)).sum();
    say(&format!("{gets} {puts}"));
}

impl Member {
    /// Checks a random key of a random process. Returns false if that process has no notes any
    /// more.
    async fn random_check(&mut self, random: &mut Random) -> bool {
        let owners = std::fs::read_dir(&self.folder).unwrap();
        let owners = owners.map(|entry| entry.unwrap().file_name());
        let mut owners: Vec<usize> = owners
            .map(|name| name.to_str().unwrap().parse().unwrap())
            .collect();
        owners.sort_unstable();
        let some = owners.len().min(CLIENTS * KEPT);
        let owner = owners[owners.len() - 1 - random.below(some as u64) as usize];
        // Old notes are removed.
        let Ok(notes) = File::open(Notes::path(&self.folder, owner)) else {
            return false;
        };
        let key = random.below(KEYS as u64) as usize;
        self.check(owner, &Notes(notes), key).await;
        true
    }
}

/// Returns the number of segments that the log has used so far.
fn segments(service: &Service) -> u64 {
    let memory = File::open(format!("/proc/{}/fd/0", service.server)).unwrap();
    let layout = Layout::of(MEMORY);
    let head = |segment| {
        let mut head = [0; HEAD];
        let at = layout.segment(segment) as u64;
        memory.read_exact_at(&mut head, at).unwrap();
        Head::decode(&head).map_or(0, |head| head.segment.get())
    };
    (0..layout.segments).map(head).max().unwrap()
}

#[test]
fn what_was_acknowledged_is_never_lost_nor_torn_nor_older() {
    if let Some(args) = role() {
        return member(&args);
    }
    let soft = needs_soft("its processes open the default device");
    if soft || is_emulated("start what a program starts itself") {
        return;
    }
    let seconds = setting("TOKIO_DOCA_CHAOS_SECONDS").unwrap_or(2);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_CHAOS_SEED").unwrap_or(now);
    println!("TOKIO_DOCA_CHAOS_SEED={seed}");
    let (mut random, folder) = (Random(seed), Folder::new());
    let mut service = Service::start(&["--memory", &MEMORY.to_string()]);
    let (mut owners, device) = (0_usize, Device::open_default().unwrap());
    let mut start = |service: &Service| {
        let path = folder.0.to_str().unwrap();
        let peer = Peer::start(TEST, &format!("{owners} {} {path}", service.address));
        // The keys of old owners are no longer read, and the memory cannot hold all of them.
        if let Some(old) = owners.checked_sub(CLIENTS * (KEPT + 1)) {
            std::fs::remove_file(Notes::path(&folder.0, old)).unwrap();
            run(async {
                let workq = WorkQ::builder().build().unwrap();
                let client = Client::new(&service.address, &device, &workq, LIMIT);
                let mut client = client.unwrap();
                for key in 0..KEYS {
                    client.delete(&name(old, key)).await.unwrap();
                }
            });
        }
        owners += 1;
        peer
    };
    let mut clients: Vec<Peer> = (0..CLIENTS).map(|_| start(&service)).collect();
    clients.iter_mut().for_each(|client| _ = client.hear());
    let (begun, mut kills) = (Instant::now(), [0, 0]);
    let (time, wrapped) = (
        Duration::from_secs(seconds),
        3 * Layout::of(MEMORY).segments,
    );
    let (mut used, mut moved) = (segments(&service), Instant::now());
    while begun.elapsed() < time || used < wrapped as u64 {
        // Each kill delays the clients, so a slow log does not mean that it is stuck.
        let now = segments(&service);
        if now > used {
            (used, moved) = (now, Instant::now());
        }
        assert!(moved.elapsed() < LIMIT, "the log stays at segment {used}");
        // Kills at a random moment.
        thread::sleep(Duration::from_micros(random.below(150_000)));
        if random.below(2) == 0 {
            service.kill_server();
            kills[0] += 1;
        } else {
            let client = &mut clients[random.below(CLIENTS as u64) as usize];
            let killed = std::mem::replace(client, start(&service));
            kill(Pid::from_raw(killed.pid()), Signal::SIGKILL).unwrap();
            // Makes sure that the client died of the signal, and not of a failed check.
            killed.dies();
            client.hear();
            kills[1] += 1;
        }
    }
    let (mut gets, mut puts) = (0, 0);
    for mut client in clients {
        client.say("end");
        let done = client.hear();
        let (got, put) = done.split_once(' ').unwrap();
        gets += got.parse::<u64>().unwrap();
        puts += put.parse::<u64>().unwrap();
        client.ends();
    }
    let used = segments(&service);
    println!(
        "{gets} gets and {puts} puts of those alive; {kills:?} servers and clients killed; \
         {used} segments used"
    );
    assert!(gets > 0 && puts > 0);
}
