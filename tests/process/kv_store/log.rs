//! The log and the index of the store, whose process may die in the middle of any write.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use support::random::{Random, setting};
use support::run;
use tokio_doca::mem::BufSlice;
use tokio_doca::soft::Soft;
use tokio_doca::{BufPool, Device, Mmap, WorkQ};
use zerocopy::IntoBytes;

use super::memory::Memory;
use super::store::Store;
use super::wire::*;

pub(super) const MEMORY: usize = 8 << 20;
/// The keys and values that gets must find.
type Model = HashMap<Vec<u8>, Vec<u8>>;

/// Memory that outlives its servers.
pub(super) struct Host {
    memfd: OwnedFd,
    pub(super) device: Device,
    pool: BufPool,
    pub(super) workq: WorkQ,
}

impl Host {
    pub(super) fn new() -> Host {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&memfd, MEMORY as i64).unwrap();
        let device = Soft::builder().build().open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(4 << 17).unwrap();
        Host {
            memfd,
            pool: BufPool::builder(&mmap)
                .element_size(1 << 17)
                .build()
                .unwrap(),
            device,
            workq: WorkQ::builder().build().unwrap(),
        }
    }

    fn memory(&self) -> Memory {
        let memfd = self.memfd.try_clone().unwrap();
        Memory::open(memfd, &self.device, &self.workq).unwrap()
    }

    pub(super) async fn store(&self) -> Store {
        Store::open(self.memory()).await.unwrap()
    }

    fn body(&self, key: &[u8], value: &[u8]) -> BufSlice {
        let buf = self.pool.try_alloc().unwrap();
        buf.extend_from_slice(key).unwrap();
        buf.extend_from_slice(value).unwrap();
        buf.slice(..).unwrap()
    }

    pub(super) async fn put(
        &self,
        store: &mut Store,
        key: &[u8],
        value: &[u8],
    ) -> super::Result<u64> {
        let body = self.body(key, value);
        store.put(key, &body).await?.map_err(Into::into)
    }
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store.get(key, &mut value).unwrap().map(|_| value)
}

#[track_caller]
fn check(store: &Store, model: &Model, but: &[u8]) {
    for (key, value) in model.iter().filter(|(key, _)| *key != but) {
        assert!(get(store, key).as_ref() == Some(value), "{key:?}");
    }
}

/// An operation during which the process may die.
#[derive(Clone, Copy)]
enum Step {
    Put(usize),
    Delete,
}

/// For each n, fills a store with `fill` records, and lets the process die in its n-th write of
/// `step`. Afterwards the key has its old value or the new one, and the store works.
async fn dies_anywhere(fill: usize, step: Step) {
    let mut deaths = 0;
    let mut ended = false;
    while !ended {
        let (host, mut model) = (Host::new(), Model::new());
        let mut store = host.store().await;
        for number in 0..fill {
            // Each key is put twice, so that the last old record stays live for long.
            let key = format!("key {}", number % (fill / 2)).into_bytes();
            let value = support::pattern(number as u8, 50_000 + number);
            host.put(&mut store, &key, &value).await.unwrap();
            model.insert(key, value);
        }
        store.delete(b"key 0").unwrap();
        model.remove(&b"key 0"[..]);
        let key = b"key 1".to_vec();
        let old = model.get(&key).cloned();
        store.memory().lives.set(Some(deaths));
        let (new, done) = match step {
            Step::Put(len) => {
                let value = support::pattern(77, len);
                let put = host.put(&mut store, &key, &value).await;
                (Some(value), put.is_ok())
            }
            Step::Delete => (None, store.delete(&key).is_ok()),
        };
        ended = done;
        // The next server may die too, while it takes over.
        let memory = host.memory();
        memory.lives.set(Some(deaths % 50));
        drop(Store::open(memory).await);
        let mut store = host.store().await;
        let now = get(&store, &key);
        assert!(now == new || (!done && now == old), "after {deaths} writes");
        check(&store, &model, &key);
        assert_eq!(get(&store, b"key 0"), None);
        host.put(&mut store, &key, b"once more").await.unwrap();
        let store = host.store().await;
        assert_eq!(get(&store, &key).unwrap(), b"once more");
        check(&store, &model, &key);
        deaths += 1;
    }
    assert!(deaths > 3, "{deaths} writes");
}

#[test]
fn a_put_is_there_as_a_whole_or_not_at_all_whatever_it_died_amid() {
    run(dies_anywhere(8, Step::Put(100)));
}

#[test]
fn so_is_a_deletion() {
    run(dies_anywhere(8, Step::Delete));
}

#[test]
fn so_is_a_put_that_cleans_a_segment() {
    // These records fill all segments but one, so that the put takes the last free segment.
    let records = SEGMENT / 50_200 * (Layout::of(MEMORY).segments - 1);
    run(dies_anywhere(records - 1, Step::Put(60_000)));
}

/// A value that is full of records is never parsed as records, wherever its own record was cut off.
#[test]
fn a_value_that_looks_like_records_is_none() {
    run(async {
        for lives in 0..16 {
            let host = Host::new();
            let mut store = host.store().await;
            let body = b"fakefake";
            let mut head = Head::new(4, 4, 1 << 40);
            head.segment = 1.into();
            head.crc = crc32c::crc32c_append(head.seed(), body).into();
            let mut record = head.as_bytes().to_vec();
            record.extend_from_slice(body);
            record.resize(64, 0);
            // Records begin at multiples of 64 bytes, and so do the fake ones.
            let mut value = vec![0; 64 - HEAD - 4];
            value.extend(record.repeat(100));
            store.memory().lives.set(Some(lives));
            let put = host.put(&mut store, b"full", &value).await;
            // The next record is short, and begins where the cut one began or would have begun.
            let mut store = host.store().await;
            host.put(&mut store, b"tiny", b"").await.unwrap();
            let store = host.store().await;
            assert_eq!(get(&store, b"fake"), None, "{lives}");
            assert_eq!(get(&store, b"tiny").unwrap(), b"");
            assert!(put.is_err() || get(&store, b"full").unwrap() == value);
        }
    });
}

/// A value whose record overwrites those of a cleaned segment: the rest of the value is not parsed
/// as records.
#[test]
fn nor_is_one_that_continues_the_records_of_a_cleaned_segment() {
    run(async {
        for lives in 0.. {
            let host = Host::new();
            let mut store = host.store().await;
            host.put(&mut store, b"full", b"").await.unwrap();
            // The next record is the first one of the segment that contained `full`.
            let (segments, len) = (Layout::of(MEMORY).segments, room(HEAD + 3 + 60_000));
            for number in 0..segments * ((SEGMENT - HEAD - 64) / len) {
                let value = support::pattern(number as u8, 60_000);
                host.put(&mut store, b"big", &value).await.unwrap();
            }
            let body = b"fakefake";
            let mut head = Head::new(4, 4, 1 << 40);
            head.segment = 1.into();
            head.crc = crc32c::crc32c_append(head.seed(), body).into();
            let mut value = vec![0; 64 - HEAD - 4];
            value.extend([head.as_bytes(), body].concat());
            value.resize(60_000, 0);
            store.memory().lives.set(Some(lives));
            let ended = host.put(&mut store, b"full", &value).await.is_ok();
            let store = host.store().await;
            assert_eq!(get(&store, b"fake"), None, "{lives}");
            if ended {
                let mut head = [0; HEAD];
                let start = Layout::of(MEMORY).segment(0);
                store.memory().read(start, &mut head).unwrap();
                let head = Head::decode(&head).unwrap();
                assert_eq!((head.key_len(), head.len()), (4, HEAD + 4 + value.len()));
                return;
            }
        }
    });
}

/// Keys share entries of the index, and the order of their puts decides which keys find one.
#[test]
fn a_store_whose_index_has_full_windows_is_opened_again() {
    run(async {
        let (host, mut model, mut full) = (Host::new(), Model::new(), 0);
        let mut store = host.store().await;
        for number in 0.. {
            let key = format!("key {number}").into_bytes();
            match host.put(&mut store, &key, b"x").await {
                Ok(_) => _ = model.insert(key, b"x".to_vec()),
                Err(_) => full += 1,
            }
            if full > 200 {
                break;
            }
        }
        // Afterwards other keys come first in the log.
        let count = model.len() / 2;
        for number in 0..count {
            let key = format!("key {number}").into_bytes();
            if let Some(value) = model.get_mut(&key) {
                host.put(&mut store, &key, b"y").await.unwrap();
                *value = b"y".to_vec();
            }
        }
        check(&host.store().await, &model, b"");
    });
}

#[test]
fn random_puts_and_deletions_leave_what_a_map_has() {
    let seed = setting("TOKIO_DOCA_CHAOS_SEED").unwrap_or(7);
    let mut random = Random(seed);
    run(async {
        let (host, mut model) = (Host::new(), Model::new());
        let (mut store, mut last, mut refused) = (host.store().await, 0, 0);
        for round in 0..3000 {
            let key = format!("{}", random.below(150)).into_bytes();
            let version = if random.below(4) == 0 {
                let deleted = store.delete(&key).unwrap();
                assert_eq!(deleted.is_some(), model.remove(&key).is_some());
                deleted
            } else {
                let value = support::pattern(round as u8, random.below(MAX_VALUE as u64) as usize);
                let put = host.put(&mut store, &key, &value).await;
                match put {
                    Ok(version) => {
                        model.insert(key, value);
                        Some(version)
                    }
                    Err(error) => {
                        assert!(error.to_string().starts_with("full: "), "{error}");
                        refused += 1;
                        None
                    }
                }
            };
            if let Some(version) = version {
                assert!(version > last);
                last = version;
            }
            if random.below(200) == 0 {
                store = host.store().await;
            }
            if random.below(50) == 0 {
                check(&store, &model, b"");
                let live: usize = model.values().map(|value| value.len() + HEAD).sum();
                assert!(live < MEMORY);
            }
        }
        check(&store, &model, b"");
        for number in 0..150 {
            let key = number.to_string().into_bytes();
            assert_eq!(get(&store, &key).as_ref(), model.get(&key));
        }
        // About 80 records of 32 KiB are live, and most of the puts succeed.
        assert!(refused < 1500, "seed {seed}: {refused} puts found no room");
    });
}

#[test]
fn torn_entries_and_records_are_told_from_whole_ones() {
    let entry = Entry::new(hash(b"key"), Place::new(4096, 77), 9);
    let bytes: [u8; ENTRY] = entry.as_bytes().try_into().unwrap();
    assert_eq!(Entry::decode(&bytes).unwrap(), Some(entry));
    assert_eq!((entry.place().at(), entry.place().len()), (4096, 77));
    let body = support::pattern(1, 103);
    let mut head = Head::new(3, 100, 9);
    head.crc = crc32c::crc32c_append(head.seed(), &body).into();
    let mut bytes_of = head.as_bytes().to_vec();
    bytes_of.extend(&body);
    let whole = record(&bytes_of).unwrap();
    assert_eq!(whole, (head, &body[..3], &body[3..]));
    for at in 0..ENTRY {
        let mut torn = bytes;
        torn[at] ^= 1;
        assert!(Entry::decode(&torn).is_err(), "{at}");
    }
    for at in (0..bytes_of.len()).filter(|at| !(LIVE..HEAD).contains(at)) {
        let mut torn = bytes_of.clone();
        torn[at] ^= 1;
        assert!(record(&torn).is_err(), "{at}");
    }
    assert!(record(&bytes_of).unwrap().0.is_live());
    // A record has these bytes once it is superseded, and while its place is cleared.
    bytes_of[LIVE..HEAD].fill(0);
    assert!(!record(&bytes_of).unwrap().0.is_live());
}
