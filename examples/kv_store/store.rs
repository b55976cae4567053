//! A log of records, and an index of the newest record of each key, in memory that clients read.
//!
//! A put appends a record, marks the key's old record as superseded, writes the index, and is then
//! acknowledged, in this order. So
//!
//! - a client has the newest value if it reads a record where the index has or had it, and finds
//!   that record whole, of the expected version, and not superseded: no client can have got a newer
//!   value before that read began;
//! - the log has all acknowledged writes, at whatever point the server is killed. A record counts
//!   once its head is written, which happens last. The bytes behind it are not taken for a record,
//!   because their head was cleared before.
//!
//! The server never takes a value that looks like a record for one. A client does, if a value
//! contains a forged record of a key and a version at exactly the place where the client has read
//! that record. Only a client that puts it there on purpose can bring this about, and such a client
//! could as well put a value of that key.
//!
//! A deletion only marks the record, before it clears the index entry. When no segment is free, the
//! oldest segment is cleaned: its live records are appended again, and the segment is cleared.

use std::collections::{HashMap, VecDeque};

use tokio_doca::mem::{BufSlice, Source};
use zerocopy::IntoBytes;

use super::Result;
use super::memory::Memory;
use super::wire::*;

pub(crate) struct Store {
    memory: Memory,
    layout: Layout,
    /// The segments in use, the oldest first. Records are appended to the last.
    used: VecDeque<usize>,
    free: Vec<usize>,
    /// The number in the heads of the last segment's records. It grows by one each time a free
    /// segment is taken into use.
    segment: u64,
    /// The offset at which the next record is written.
    tail: usize,
    version: u64,
    /// The total size in bytes of the records that the index refers to.
    live: usize,
}

/// The result of looking a key up in the index.
struct Found {
    old: Option<(usize, Entry)>,
    /// The offset of an empty entry that the key could take.
    free: Option<usize>,
}

impl Store {
    /// Opens the store, with the records that an earlier server has left in the memory.
    pub(crate) async fn open(memory: Memory) -> Result<Store> {
        let len = memory.mmap().len();
        let layout = Layout::of(len);
        if layout.segments < 4 {
            return Err(format!("a memory of {len} bytes: it takes {} or more", 8 << 20).into());
        }
        let mut store = Store {
            version: memory.load(VERSION)?,
            memory,
            layout,
            used: VecDeque::new(),
            free: Vec::new(),
            segment: 0,
            tail: 0,
            live: 0,
        };
        store.recover().await?;
        Ok(store)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Rebuilds the index. Clients of a server that was killed may still read. What they find is
    /// valid, but a key that they do not find counts as absent only if BOOT has not changed.
    async fn recover(&mut self) -> Result<()> {
        let boot = self.memory.load(BOOT)?;
        self.memory.store(BOOT, boot + 1)?;
        let index = self.layout.index();
        self.memory.write(index.start, &vec![0; index.len()])?;
        let mut used = Vec::new();
        for segment in (0..self.layout.segments).rev() {
            match self.record(self.layout.segment(segment), None)? {
                Some((head, _)) => used.push((head.segment.get(), segment)),
                None => self.free.push(segment),
            }
        }
        used.sort_unstable();
        let mut newest = HashMap::new();
        for (number, segment) in used {
            (self.segment, self.tail) = (number, self.layout.segment(segment));
            self.used.push_back(segment);
            while let Some((head, key)) = self.record(self.tail, Some(number))? {
                self.version = self.version.max(head.version.get());
                let place = Place::new(self.tail, head.len());
                self.tail += room(head.len());
                // The records of a key are in the order of their versions.
                if head.is_live()
                    && let Some((_, old)) = newest.insert(key, (head, place))
                {
                    self.memory.store(old.at() + LIVE, 0)?;
                }
            }
        }
        // Entries are added in the order of their windows. In another order a key might find no
        // free entry.
        let mut newest: Vec<_> = newest.into_iter().collect();
        newest.sort_by_key(|(key, _)| self.layout.window(hash(key)));
        for (key, (head, place)) in newest {
            self.publish(&key, head, place)?;
        }
        match self.used.is_empty() {
            true => self.advance()?,
            // The last record may have been written in part.
            false => self.memory.write(self.tail, &[0; HEAD])?,
        }
        Ok(())
    }

    /// Returns the head and the key of the record at `at`. Returns `None` if there is no record, or
    /// if it belongs to another use of its segment.
    fn record(&self, at: usize, segment: Option<u64>) -> Result<Option<(Head, Vec<u8>)>> {
        let end = at + SEGMENT - (at - self.layout.segment(0)) % SEGMENT;
        let mut bytes = vec![0; HEAD.min(end - at)];
        self.memory.read(at, &mut bytes)?;
        let head = match Head::decode(&bytes) {
            Some(head) if at + head.len() <= end => head,
            _ => return Ok(None),
        };
        if segment.is_some_and(|segment| head.segment != segment) {
            return Ok(None);
        }
        bytes.resize(head.len(), 0);
        self.memory.read(at + HEAD, &mut bytes[HEAD..])?;
        let record = record(&bytes).ok();
        Ok(record.map(|(head, key, _)| (head, key.to_vec())))
    }

    fn find(&self, key: &[u8]) -> Result<Found> {
        let hash = hash(key);
        let (start, mut window) = (self.layout.window(hash), [0; WINDOW]);
        self.memory.read(start, &mut window)?;
        let mut free = None;
        for (at, bytes) in (start..).step_by(ENTRY).zip(window.chunks_exact(ENTRY)) {
            let entry = Entry::decode(bytes).map_err(|Torn| "the index is damaged")?;
            let Some(entry) = entry else {
                free = free.or(Some(at));
                continue;
            };
            if entry.hash == hash && self.is_of(entry.place(), key)? {
                let old = Some((at, entry));
                return Ok(Found { old, free });
            }
        }
        Ok(Found { old: None, free })
    }

    fn is_of(&self, place: Place, key: &[u8]) -> Result<bool> {
        let mut head = [0; HEAD];
        self.memory.read(place.at(), &mut head)?;
        let mut other = [0; MAX_KEY];
        let len = Head::decode(&head).map_or(0, |head| head.key_len());
        self.memory.read(place.at() + HEAD, &mut other[..len])?;
        Ok(&other[..len] == key)
    }

    /// Appends a record for a put request, and returns its version. Returns `Ok(Err(text))` if the
    /// store is full.
    pub(crate) async fn put(&mut self, key: &[u8], body: &BufSlice) -> Result<Result<u64, String>> {
        let len = HEAD + body.len();
        let found = self.find(key)?;
        let old = found.old.map_or(0, |(_, old)| room(old.place().len()));
        let (live, capacity) = (self.live + room(len) - old, self.capacity());
        if live > capacity {
            let text =
                format!("full: the log takes {capacity} bytes of records, and would have {live}");
            return Ok(Err(text));
        }
        if found.old.is_none() && found.free.is_none() {
            let text = "full: all 8 places of this key in the index are taken";
            return Ok(Err(text.to_owned()));
        }
        self.make_room(len).await?;
        let version = self.next_version()?;
        let head = Head::new(key.len(), body.len() - key.len(), version);
        let place = self.append(head, body).await?;
        self.publish(key, head, place)?;
        Ok(Ok(version))
    }

    /// Deletes a key, and returns the version from which on it is absent. Returns `None` if it was
    /// absent.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let Some((at, old)) = self.find(key)?.old else {
            return Ok(None);
        };
        let version = self.next_version()?;
        self.supersede(old)?;
        self.memory.write(at, &[0; ENTRY])?;
        Ok(Some(version))
    }

    /// Returns the next version, and stores it: after a restart no record shows the version of a
    /// deletion.
    fn next_version(&mut self) -> Result<u64> {
        self.version += 1;
        self.memory.store(VERSION, self.version)?;
        Ok(self.version)
    }

    fn supersede(&mut self, old: Entry) -> Result<()> {
        self.memory.store(old.place().at() + LIVE, 0)?;
        self.live -= room(old.place().len());
        Ok(())
    }

    /// Appends the value of a key to `out`, and returns its version.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<u64>> {
        let Some((_, entry)) = self.find(key)?.old else {
            return Ok(None);
        };
        let (place, from, skip) = (entry.place(), out.len(), HEAD + key.len());
        out.resize(from + place.len() - skip, 0);
        self.memory.read(place.at() + skip, &mut out[from..])?;
        Ok(Some(entry.version.get()))
    }

    /// Returns the maximum size in bytes of all live records. With one segment free and one being
    /// filled, cleaning always finds space. An eighth of it is left to superseded records.
    fn capacity(&self) -> usize {
        let largest = room(HEAD + MAX_KEY + MAX_VALUE);
        (self.layout.segments - 2) * (SEGMENT - largest) / 8 * 7
    }

    /// Makes sure that a record of `len` bytes and a cleared head fit into the last segment, and
    /// that another segment is free.
    async fn make_room(&mut self, len: usize) -> Result<()> {
        // Each segment is cleaned at most once before there is enough space.
        for _ in 0..=2 * self.layout.segments {
            if self.free.is_empty() {
                self.clean().await?;
            }
            let last = *self.used.back().ok_or("no segment is in use")?;
            if self.tail + room(len) + HEAD <= self.layout.segment(last + 1) {
                return Ok(());
            }
            self.advance()?;
        }
        Err("cleaning has found no room".into())
    }

    /// Continues in a free segment, which does not begin with a record.
    fn advance(&mut self) -> Result<()> {
        let segment = self.free.pop().ok_or("no segment is free")?;
        self.used.push_back(segment);
        self.segment += 1;
        self.tail = self.layout.segment(segment);
        Ok(())
    }

    /// Appends the live records of the oldest segment again, and clears the segment. They fit into
    /// the last segment, which was empty when the last free segment was taken.
    async fn clean(&mut self) -> Result<()> {
        let start = self.layout.segment(self.used[0]);
        let (mut at, mut number) = (start, None);
        while let Some((head, key)) = self.record(at, number)? {
            if head.is_live() {
                let body = self.memory.source(at + HEAD..at + head.len())?;
                let place = self.append(head, &body).await?;
                self.publish(&key, head, place)?;
            }
            number = Some(head.segment.get());
            at += room(head.len());
        }
        self.memory.write(start, &[0; HEAD])?;
        self.free.extend(self.used.pop_front());
        Ok(())
    }

    /// Appends a record, which no reader can find until it is published.
    async fn append(&mut self, mut head: Head, body: impl Source) -> Result<Place> {
        let (at, len) = (self.tail, head.len());
        self.memory.write(at + room(len), &[0; HEAD])?;
        head.segment = self.segment.into();
        let crc = self.memory.copy(body, at + HEAD..at + len, head.seed());
        head.crc = crc.await?.into();
        self.memory.write(at, head.as_bytes())?;
        self.tail = at + room(len);
        Ok(Place::new(at, len))
    }

    /// Makes a record the newest of its key.
    fn publish(&mut self, key: &[u8], head: Head, place: Place) -> Result<()> {
        let Found { old, free } = self.find(key)?;
        if let Some((_, old)) = old {
            self.supersede(old)?;
        }
        let at = old
            .map(|(at, _)| at)
            .or(free)
            .ok_or("the index has no place for a key")?;
        let entry = Entry::new(hash(key), place, head.version.get());
        self.memory.write(at, entry.as_bytes())?;
        self.live += room(place.len());
        Ok(())
    }
}
