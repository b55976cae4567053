//! The layout of the memory, which is the same for a primary and its replica, and the messages
//! between clients and the primary.
//!
//! ```text
//! memory  | one page: whole | entries, two for each block | data, two slots for each block |
//! request | Ask | data |
//! answer  | Reply | data, or a text |
//! ```
//!
//! The versions of a block alternate between its two slots. A version is valid once its entry is
//! written, which happens last. Until then the slot of the version before is unchanged.

use std::ops::Range;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The maximum number of bytes in a block.
pub(crate) const BLOCK: usize = 64 << 10;
/// Range of a word in the replica's memory. It is not zero once the replica has every acknowledged
/// write.
pub(crate) const WHOLE: Range<usize> = 0..8;
const PAGE: usize = 4096;
pub(crate) const ENTRY: usize = size_of::<Entry>();
pub(crate) const ASK: usize = size_of::<Ask>();
pub(crate) const REPLY: usize = size_of::<Reply>();

/// The ranges of the entries and of the data in the memory of a store with `blocks` blocks.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) blocks: usize,
}

impl Layout {
    pub(crate) fn bytes(self) -> usize {
        self.entries().end.next_multiple_of(PAGE) + 2 * self.blocks * BLOCK
    }

    pub(crate) fn entries(self) -> Range<usize> {
        PAGE..PAGE + 2 * self.blocks * ENTRY
    }

    fn place(self, block: usize, version: u64) -> usize {
        2 * block + (version % 2) as usize
    }

    pub(crate) fn entry(self, block: usize, version: u64) -> Range<usize> {
        let at = PAGE + self.place(block, version) * ENTRY;
        at..at + ENTRY
    }

    pub(crate) fn data(self, block: usize, version: u64) -> Range<usize> {
        let data = self.entries().end.next_multiple_of(PAGE);
        let at = data + self.place(block, version) * BLOCK;
        at..at + BLOCK
    }
}

/// Describes one version of a block; all zeroes if there is no version.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Entry {
    version: U64,
    len: U32,
    /// The CRC of all other fields. An entry that was written in part has another one.
    crc: U32,
    /// The SHA-256 of the data.
    pub(crate) digest: [u8; 32],
    _unused: [u8; 16],
}

impl Entry {
    pub(crate) fn new(version: u64, len: usize, digest: [u8; 32]) -> Entry {
        let mut entry = Entry {
            version: version.into(),
            len: (len as u32).into(),
            digest,
            ..Entry::default()
        };
        entry.crc = entry.sum().into();
        entry
    }

    fn sum(&self) -> u32 {
        let rest = Entry {
            crc: 0.into(),
            ..*self
        };
        crc32c::crc32c(rest.as_bytes())
    }

    /// Decodes an entry. Returns `None` if there is none, or if it was written in part.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Entry> {
        let entry = Entry::read_from_bytes(bytes).ok()?;
        let counts = entry.version() > 0 && entry.len() <= BLOCK;
        (counts && entry.crc.get() == entry.sum()).then_some(entry)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get() as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    Get = 1,
    Put,
}

/// The head of a request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Ask {
    verb: U32,
    pub(crate) block: U32,
    /// A number that the client has chosen, and below it the number of the request.
    pub(crate) client: U64,
    pub(crate) id: U64,
}

impl Ask {
    pub(crate) fn new(verb: Verb, block: usize, client: u64, id: u64) -> Ask {
        Ask {
            verb: (verb as u32).into(),
            block: (block as u32).into(),
            client: client.into(),
            id: id.into(),
        }
    }

    /// Decodes the head of a request. Returns `None` if the message is not a request.
    pub(crate) fn decode(message: &[u8]) -> Option<(Ask, Verb)> {
        let (ask, _) = Ask::read_from_prefix(message).ok()?;
        let verbs = [Verb::Get, Verb::Put].into_iter();
        let verb = verbs
            .into_iter()
            .find(|&verb| verb as u32 == ask.verb.get())?;
        Some((ask, verb))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Status {
    Done = 1,
    Refused,
}

/// The head of an answer. Version 0 means that the block was never written.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Reply {
    status: U64,
    pub(crate) id: U64,
    pub(crate) version: U64,
}

impl Reply {
    pub(crate) fn new(status: Status, id: u64, version: u64) -> Reply {
        Reply {
            status: (status as u64).into(),
            id: id.into(),
            version: version.into(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.status.get() == Status::Done as u64
    }
}
