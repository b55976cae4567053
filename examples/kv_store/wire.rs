//! What lies in the store's memory, and what client and server say to each other. All numbers are
//! little-endian.
//!
//! ```text
//! memory    | one page: boot, version | index: entries of 32 bytes | log: segments of 1 MiB |
//! entry     | hash 8 | place 8 | version 8 | check 8 |
//! record    | crc 4 | key len 2 | kind 2 | value len 4 | 0 4 | version 8 | segment 8 | superseded 8 | key | value |
//! request   | op 1 | 0 1 | key len 2 | client 4 | id 8 | key | value |
//! answer    | status 1 | 0 7 | id 8 | version 8 | value or text |
//! ```
//!
//! Records begin at multiples of 64. Their CRC-32C is that of all that follows it, without the word
//! `superseded`.

/// The longest key, in bytes; the shortest has one.
pub(crate) const MAX_KEY: usize = 256;
/// The longest value, in bytes.
pub(crate) const MAX_VALUE: usize = 64 << 10;
/// Bytes of a segment of the log.
pub(crate) const SEGMENT: usize = 1 << 20;
/// Bytes of the head of a record.
pub(crate) const HEAD: usize = 40;
/// Where in a record the word is that is not 0 once there is a newer one of its key.
pub(crate) const SUPERSEDED: usize = 32;
/// Where in the memory the number of the server's starts is, and the latest version.
pub(crate) const BOOT: usize = 8;
pub(crate) const VERSION: usize = 16;
/// Bytes that a lookup reads: a key's entry is one of the 8 from the place of its hash on.
pub(crate) const WINDOW: usize = 8 * ENTRY;
pub(crate) const ENTRY: usize = 32;
/// Bytes before the key of a request, and before the value of an answer.
pub(crate) const REQUEST: usize = 16;
pub(crate) const ANSWER: usize = 24;
/// The longest request.
pub(crate) const MAX_REQUEST: usize = REQUEST + MAX_KEY + MAX_VALUE;
/// The first byte that a client sends: it wants memory and messages, or frames over TCP.
pub(crate) const BY_RDMA: u8 = b'R';
pub(crate) const BY_TCP: u8 = b'T';
/// The longest blob of an export.
pub(crate) const MAX_BLOB: usize = 1024;

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..at + 8].try_into();
    u64::from_le_bytes(word.expect("8 bytes"))
}

/// A client that wants to can find keys of one hash, and fill their places of the index.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
        product as u64 ^ (product >> 64) as u64
    };
    let (words, rest) = key.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest
        .iter()
        .fold(1, |rest, &byte| rest << 8 | u64::from(byte));
    words.chain([rest]).fold(key.len() as u64 + 1, mix)
}

/// Where what is, for a memory of that size.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    entries: usize,
    log: usize,
    pub(crate) segments: usize,
}

impl Layout {
    /// The index has an entry for each 256 bytes of the memory, or for up to twice as many.
    pub(crate) fn of(memory: usize) -> Layout {
        let entries = 1 << (memory / 256).max(1).ilog2();
        let log = (4096 + entries * ENTRY + WINDOW).next_multiple_of(4096);
        let segments = memory.saturating_sub(log) / SEGMENT;
        Layout {
            entries,
            log,
            segments,
        }
    }

    pub(crate) fn index(self) -> std::ops::Range<usize> {
        4096..self.log
    }

    pub(crate) fn window(self, hash: u64) -> usize {
        4096 + (hash as usize & (self.entries - 1)) * ENTRY
    }

    pub(crate) fn segment(self, segment: usize) -> usize {
        self.log + segment * SEGMENT
    }
}

/// Where a record is, and how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Place {
    pub(crate) fn pack(self) -> u64 {
        (self.at as u64 / 64) << 24 | self.len as u64
    }

    pub(crate) fn unpack(word: u64) -> Place {
        Place {
            at: (word >> 24) as usize * 64,
            len: word as usize & 0xff_ffff,
        }
    }

    /// Bytes that it takes.
    pub(crate) fn room(self) -> usize {
        self.len.next_multiple_of(64)
    }
}

/// An entry of the index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) place: Place,
    pub(crate) version: u64,
}

impl Entry {
    pub(crate) fn encode(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.place.pack().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.version.to_le_bytes());
        let check = 1 << 32 | u64::from(crc32c::crc32c(&bytes[..24]));
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` if it is empty; an error if it was read while it was written.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Entry>, Torn> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let entry = Entry {
            hash: word(bytes, 0),
            place: Place::unpack(word(bytes, 8)),
            version: word(bytes, 16),
        };
        match word(bytes, 24) == 1 << 32 | u64::from(crc32c::crc32c(&bytes[..24])) {
            true => Ok(Some(entry)),
            false => Err(Torn),
        }
    }
}

/// What was read while somebody wrote it, or is nothing of the kind.
#[derive(Debug)]
pub(crate) struct Torn;

/// The head of a record, without its CRC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    /// The key was deleted: there is no value.
    pub(crate) deleted: bool,
    pub(crate) version: u64,
    /// The number of the segment's use: it grows with each.
    pub(crate) segment: u64,
}

impl Head {
    /// The bytes between CRC and `superseded`.
    fn fields(self) -> [u8; SUPERSEDED - 4] {
        let mut bytes = [0; SUPERSEDED - 4];
        bytes[..2].copy_from_slice(&(self.key_len as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(1 + u16::from(self.deleted)).to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.value_len as u32).to_le_bytes());
        bytes[12..20].copy_from_slice(&self.version.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.segment.to_le_bytes());
        bytes
    }

    /// The CRC so far, which key and value continue.
    pub(crate) fn seed(self) -> u32 {
        crc32c::crc32c(&self.fields())
    }

    pub(crate) fn encode(self, crc: u32) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes[4..SUPERSEDED].copy_from_slice(&self.fields());
        bytes
    }

    /// `None` if it cannot be one. What it says is not checked by the CRC yet.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Head> {
        let kind = u16::from_le_bytes([bytes[6], bytes[7]]);
        let head = Head {
            key_len: u16::from_le_bytes([bytes[4], bytes[5]]).into(),
            value_len: word(bytes, 8) as u32 as usize,
            deleted: kind == 2,
            version: word(bytes, 16),
            segment: word(bytes, 24),
        };
        let possible = (1..=2).contains(&kind)
            && (1..=MAX_KEY).contains(&head.key_len)
            && head.value_len <= MAX_VALUE;
        possible.then_some(head)
    }

    pub(crate) fn len(self) -> usize {
        HEAD + self.key_len + self.value_len
    }
}

/// A whole record, and whether there is a newer one of its key.
pub(crate) struct Record<'a> {
    pub(crate) head: Head,
    pub(crate) superseded: bool,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl Record<'_> {
    /// # Errors
    ///
    /// If these bytes are none: they were read while they were written, or are older.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Record<'_>, Torn> {
        let head = bytes.get(..HEAD).and_then(Head::decode).ok_or(Torn)?;
        let body = bytes.get(HEAD..head.len()).ok_or(Torn)?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[4..SUPERSEDED]), body);
        if bytes[..4] != crc.to_le_bytes() {
            return Err(Torn);
        }
        let (key, value) = body.split_at(head.key_len);
        Ok(Record {
            head,
            superseded: word(bytes, SUPERSEDED) != 0,
            key,
            value,
        })
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    /// Only over TCP.
    Get = 1,
    Put = 2,
    Delete = 3,
    /// The CPU time that the server has had, in nanoseconds, as the version of the answer.
    Time = 4,
}

pub(crate) struct Request<'a> {
    pub(crate) verb: Verb,
    /// A number of the client's choice.
    pub(crate) client: u32,
    /// It grows with each request of the client.
    pub(crate) id: u64,
    pub(crate) key: &'a [u8],
}

impl Request<'_> {
    /// The head of a request for such a key.
    pub(crate) fn head(verb: Verb, client: u32, id: u64, key: &[u8]) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[0] = verb as u8;
        bytes[2..4].copy_from_slice(&(key.len() as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&client.to_le_bytes());
        bytes[8..].copy_from_slice(&id.to_le_bytes());
        bytes
    }

    /// `None` if it is none: what is left behind the key is the value.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Request<'_>> {
        let head = bytes.get(..REQUEST)?;
        let verbs = [Verb::Get, Verb::Put, Verb::Delete, Verb::Time];
        let verb = verbs.into_iter().find(|&verb| verb as u8 == head[0])?;
        let key_len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let key = bytes.get(REQUEST..REQUEST + key_len)?;
        let value = bytes.len() - REQUEST - key_len;
        let possible = match verb {
            Verb::Time => bytes.len() == REQUEST,
            Verb::Put => (1..=MAX_KEY).contains(&key_len) && value <= MAX_VALUE,
            Verb::Get | Verb::Delete => (1..=MAX_KEY).contains(&key_len) && value == 0,
        };
        possible.then_some(Request {
            verb,
            client: (word(head, 0) >> 32) as u32,
            id: word(head, 8),
            key,
        })
    }
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Status {
    Done = 0,
    /// There is no such key.
    Absent = 1,
    /// Refused, or failed: a text says why.
    Refused = 2,
}

pub(crate) struct Answer<'a> {
    pub(crate) status: Status,
    pub(crate) id: u64,
    pub(crate) version: u64,
    /// The value of a get, or a text.
    pub(crate) rest: &'a [u8],
}

impl Answer<'_> {
    pub(crate) fn head(status: Status, id: u64, version: u64) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[0] = status as u8;
        bytes[8..16].copy_from_slice(&id.to_le_bytes());
        bytes[16..].copy_from_slice(&version.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Answer<'_>> {
        let (head, rest) = bytes.split_at_checked(ANSWER)?;
        let statuses = [Status::Done, Status::Absent, Status::Refused];
        let status = statuses
            .into_iter()
            .find(|&status| status as u8 == head[0])?;
        Some(Answer {
            status,
            id: word(head, 8),
            version: word(head, 16),
            rest,
        })
    }
}
