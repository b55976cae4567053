//! The layout of the store's memory, and the messages between clients and the server.
//!
//! ```text
//! memory  | one page: 8 unused bytes, boot, version | index: entries | log: segments of 1 MiB |
//! record  | head | key | value |            begins at a multiple of 64
//! request | ask | key | value |
//! answer  | reply | text, or by TCP a value |
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The maximum length of a key in bytes. The minimum is 1.
pub(crate) const MAX_KEY: usize = 256;
/// The maximum length of a value in bytes.
pub(crate) const MAX_VALUE: usize = 64 << 10;
/// Bytes of a segment of the log.
pub(crate) const SEGMENT: usize = 1 << 20;
/// The offsets in the memory of the number of the server's starts and of the latest version.
pub(crate) const BOOT: usize = 8;
pub(crate) const VERSION: usize = 16;
/// The size of an index entry and of a lookup: a key's entry is one of 8, from its hash's position
/// on.
pub(crate) const ENTRY: usize = size_of::<Entry>();
pub(crate) const WINDOW: usize = 8 * ENTRY;
/// The size of a record's head, and the offset of the word `live` in it.
pub(crate) const HEAD: usize = size_of::<Head>();
pub(crate) const LIVE: usize = HEAD - 8;
/// The number of bytes before the key of a request, and before the text of an answer.
pub(crate) const ASK: usize = size_of::<Ask>();
pub(crate) const REPLY: usize = size_of::<Reply>();
pub(crate) const MAX_REQUEST: usize = ASK + MAX_KEY + MAX_VALUE;
/// The first byte that a client sends chooses between RDMA, with messages, and frames over TCP.
pub(crate) const BY_RDMA: u8 = b'R';
pub(crate) const BY_TCP: u8 = b'T';
/// The maximum size of an export blob in bytes.
pub(crate) const MAX_BLOB: usize = 1024;

/// Hashes a key. The hash is not keyed: a client can find keys of one hash, and fill their index
/// entries.
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

/// The offsets of the index and of the log in a memory of a given size.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    entries: usize,
    log: usize,
    pub(crate) segments: usize,
}

impl Layout {
    /// Computes the layout. The index has one entry for every 256 to 512 bytes of the memory.
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

/// The offset and the length of a record, in one word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place(pub(crate) u64);

impl Place {
    pub(crate) fn new(at: usize, len: usize) -> Place {
        Place((at as u64 / 64) << 24 | len as u64)
    }

    pub(crate) fn at(self) -> usize {
        (self.0 >> 24) as usize * 64
    }

    pub(crate) fn len(self) -> usize {
        self.0 as usize & 0xff_ffff
    }
}

/// The space that `len` bytes take in the log or in a pool.
pub(crate) fn room(len: usize) -> usize {
    len.next_multiple_of(64)
}

/// Error: the bytes were read while they were being written, or are not of the expected kind.
#[derive(Debug)]
pub(crate) struct Torn;

/// An entry of the index. An empty entry is all zeroes.
#[derive(
    Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) hash: U64,
    place: U64,
    pub(crate) version: U64,
    check: U64,
}

impl Entry {
    pub(crate) fn new(hash: u64, place: Place, version: u64) -> Entry {
        let mut entry = Entry {
            hash: hash.into(),
            place: place.0.into(),
            version: version.into(),
            check: 0.into(),
        };
        entry.check = entry.sum();
        entry
    }

    fn sum(&self) -> U64 {
        (1 << 32 | u64::from(crc32c::crc32c(&self.as_bytes()[..ENTRY - 8]))).into()
    }

    /// Decodes an entry. Returns `None` if the entry is empty.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Entry>, Torn> {
        match Entry::read_from_bytes(bytes) {
            Ok(entry) if entry.check == entry.sum() => Ok(Some(entry)),
            _ if bytes.iter().all(|&byte| byte == 0) => Ok(None),
            _ => Err(Torn),
        }
    }

    pub(crate) fn place(&self) -> Place {
        Place(self.place.get())
    }
}

/// The head of a record.
#[derive(
    Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Head {
    /// The CRC-32C of the fields below except `live`, and of the key and the value.
    pub(crate) crc: U32,
    key_len: U32,
    value_len: U32,
    zero: U32,
    pub(crate) version: U64,
    /// The number of the segment's use, which grows with each use.
    pub(crate) segment: U64,
    /// The version while the record is the newest of its key, and 0 afterwards. Clearing a record's
    /// place therefore never makes it live again.
    live: U64,
}

impl Head {
    /// Makes the head of a record. The segment and the CRC are set later.
    pub(crate) fn new(key: usize, value: usize, version: u64) -> Head {
        Head {
            crc: 0.into(),
            key_len: (key as u32).into(),
            value_len: (value as u32).into(),
            zero: 0.into(),
            version: version.into(),
            segment: 0.into(),
            live: version.into(),
        }
    }

    /// Returns true if the key has no newer record.
    pub(crate) fn is_live(&self) -> bool {
        self.live == self.version
    }

    /// Returns the CRC of the head, which the CRC of the key and the value continues.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[4..LIVE])
    }

    /// Decodes a head if its lengths are valid. The CRC is not checked.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Head> {
        let head = Head::read_from_prefix(bytes).ok()?.0;
        fits(head.key_len(), head.value_len.get() as usize).then_some(head)
    }

    pub(crate) fn key_len(&self) -> usize {
        self.key_len.get() as usize
    }

    pub(crate) fn len(&self) -> usize {
        HEAD + self.key_len() + self.value_len.get() as usize
    }
}

/// Decodes a whole record, and checks its CRC. Returns its head, key and value.
pub(crate) fn record(bytes: &[u8]) -> Result<(Head, &[u8], &[u8]), Torn> {
    let head = Head::decode(bytes).ok_or(Torn)?;
    let body = bytes.get(HEAD..head.len()).ok_or(Torn)?;
    if head.crc != crc32c::crc32c_append(head.seed(), body) {
        return Err(Torn);
    }
    let (key, value) = body.split_at(head.key_len());
    Ok((head, key, value))
}

/// Returns true if the lengths of a key and a value are valid.
pub(crate) fn fits(key: usize, value: usize) -> bool {
    (1..=MAX_KEY).contains(&key) && value <= MAX_VALUE
}

/// The kinds of request.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Verb {
    /// The server answers this only over TCP.
    Get = 1,
    Put = 2,
    Delete = 3,
    /// Asks for the server's CPU time in nanoseconds, which is returned as the version of the
    /// reply.
    Time = 4,
}

/// The head of a request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Ask {
    verb: u8,
    zero: u8,
    key_len: U16,
    /// A number of the client's choice.
    pub(crate) client: U32,
    /// The number of the request, which grows with each request of the client.
    pub(crate) id: U64,
}

impl Ask {
    pub(crate) fn new(verb: Verb, client: u32, id: u64, key: &[u8]) -> Ask {
        Ask {
            verb: verb as u8,
            zero: 0,
            key_len: (key.len() as u16).into(),
            client: client.into(),
            id: id.into(),
        }
    }

    /// Decodes a request. Returns its head, verb and key.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Ask, Verb, &[u8])> {
        let (ask, body) = Ask::read_from_prefix(bytes).ok()?;
        let (key, value) = body.split_at_checked(ask.key_len.get().into())?;
        let verbs = [Verb::Get, Verb::Put, Verb::Delete, Verb::Time];
        let verb = verbs.into_iter().find(|&verb| verb as u8 == ask.verb)?;
        let possible = match verb {
            Verb::Time => body.is_empty(),
            Verb::Put => fits(key.len(), value.len()),
            Verb::Get | Verb::Delete => fits(key.len(), 0) && value.is_empty(),
        };
        possible.then_some((ask, verb, key))
    }
}

/// The head of an answer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Reply {
    /// `DONE`, `ABSENT` or `REFUSED`.
    pub(crate) status: U64,
    /// The `id` of the request.
    pub(crate) id: U64,
    pub(crate) version: U64,
}

pub(crate) const DONE: u64 = 0;
/// There is no such key.
pub(crate) const ABSENT: u64 = 1;
/// The request was refused or has failed. A text gives the reason.
pub(crate) const REFUSED: u64 = 2;

impl Reply {
    pub(crate) fn new(status: u64, id: U64, version: u64) -> Reply {
        Reply {
            status: status.into(),
            id,
            version: version.into(),
        }
    }
}
