//! The greeting that two sides with this library exchange when they connect by rdma_cm. The
//! greeting precedes the data of their applications. rdma_cm itself carries addresses, numbers and
//! the MTU.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::blob::BlobOrigin;
use crate::device::{Access, Audience};
use crate::error::{Error, ErrorKind, Result};

/// The maximum number of bytes of private data in a request, on RoCE and InfiniBand (librdmacm
/// refuses 57). `ACCEPT` is the maximum in an acceptance, and `REJECT` in a refusal.
pub(in super::super) const CONNECT: usize = 56;
pub(in super::super) const ACCEPT: usize = 196;
pub(in super::super) const REJECT: usize = 148;

const MAGIC: [u8; 6] = *b"tkdoca";
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Greeting {
    pub(in super::super) origin: BlobOrigin,
    /// The access that the side grants its peer.
    pub(in super::super) permissions: Access,
    /// The number of concurrent reads and atomics that the side answers.
    pub(in super::super) answers: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    magic: [u8; 6],
    version: u8,
    permissions: u8,
    answers: u8,
    /// The length of the application's data, which the transport pads.
    len: u8,
    origin: [U64; 2],
}

/// The size of a greeting in bytes.
pub(in super::super) const LEN: usize = size_of::<Fields>();

const RIGHTS: [Access; 3] = [Access::RDMA_READ, Access::RDMA_WRITE, Access::RDMA_ATOMIC];

impl Greeting {
    /// Returns the greeting, followed by the application's data, which has at most 255 bytes.
    pub(in super::super) fn format(&self, said: &[u8]) -> Vec<u8> {
        let has = |right: &Access| u8::from(self.permissions.contains(*right));
        let bits = RIGHTS.iter().zip(0..).map(|(right, at)| has(right) << at);
        let fields = Fields {
            magic: MAGIC,
            version: VERSION,
            permissions: bits.sum(),
            answers: self.answers,
            len: said.len().min(255) as u8,
            origin: self.origin.format(),
        };
        [fields.as_bytes(), said].concat()
    }

    /// Returns the greeting, and the application's data after it. Returns `None` for a peer without
    /// this library.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for a greeting that makes no sense, `UnsupportedVersion` for one of another
    /// release.
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Option<(Greeting, &[u8])>> {
        let refuse = |kind, text: &'static str| Err(Error::new(kind, None, text));
        let Ok((fields, said)) = Fields::ref_from_prefix(bytes) else {
            return Ok(None);
        };
        if fields.magic != MAGIC {
            return Ok(None);
        }
        if fields.version != VERSION {
            let text = "the peer has another release of this library: use the same on both sides";
            return refuse(ErrorKind::UnsupportedVersion, text);
        }
        let each = RIGHTS.into_iter().zip(0..);
        let permissions = each.filter(|(_, at)| fields.permissions >> at & 1 == 1);
        let permissions: Access = permissions.map(|(right, _)| right).collect();
        let greeting = Greeting {
            origin: BlobOrigin::parse(fields.origin),
            permissions,
            answers: fields.answers,
        };
        let said = said.get(..fields.len.into());
        // A peer that answers no reads cannot be probed.
        let right = fields.permissions < 8
            && greeting.answers > 0
            && !greeting.origin.is_foreign()
            && Audience::Rdma.part_of(permissions) == permissions;
        match said.filter(|_| right) {
            Some(said) => Ok(Some((greeting, said))),
            None => refuse(
                ErrorKind::InvalidValue,
                "the peer's private data begins as this library's does, and makes no sense",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn greeting(permissions: u8, answers: u8) -> Greeting {
        let each = RIGHTS.into_iter().zip(0..);
        let has = each.filter(|(_, at)| permissions >> at & 1 == 1);
        Greeting {
            origin: BlobOrigin::new(),
            permissions: has.map(|(right, _)| right).collect(),
            answers,
        }
    }

    proptest! {
        #[test]
        fn greetings_are_read_as_they_were_written(
            permissions in 0..8_u8, answers in 1..=u8::MAX, said in vec(any::<u8>(), 0..=ACCEPT - LEN),
        ) {
            let greeting = greeting(permissions, answers);
            let mut bytes = greeting.format(&said);
            prop_assert_eq!(bytes.len(), LEN + said.len());
            // The transport pads it like this.
            bytes.resize(ACCEPT, 0);
            let read = Greeting::parse(&bytes).unwrap();
            prop_assert_eq!(read, Some((greeting, &said[..])));
            // A prefix is refused, or is taken for the data of another program.
            for len in 0..LEN + said.len() {
                prop_assert!(!matches!(Greeting::parse(&bytes[..len]), Ok(Some(_))));
            }
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..=ACCEPT)) {
            prop_assert_eq!(Greeting::parse(&bytes).unwrap(), None);
            let begun = [&MAGIC, &bytes[..]].concat();
            let _ = Greeting::parse(&begun);
        }
    }

    #[test]
    fn a_greeting_leaves_room_for_the_application() {
        assert_eq!((LEN, CONNECT - LEN, ACCEPT - LEN), (26, 30, 170));
        let mut bytes = greeting(7, 1).format(b"");
        assert!(Greeting::parse(&bytes).unwrap().is_some());
        for (at, to, kind) in [
            (6, 2, ErrorKind::UnsupportedVersion),
            (7, 8, ErrorKind::InvalidValue),
            (8, 0, ErrorKind::InvalidValue),
            (9, 1, ErrorKind::InvalidValue),
        ] {
            let kept = std::mem::replace(&mut bytes[at], to);
            assert_eq!(Greeting::parse(&bytes).unwrap_err().kind(), kind, "{at}");
            bytes[at] = kept;
        }
    }
}
