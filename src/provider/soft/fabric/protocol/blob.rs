//! What an export looks like outside: the bytes that an importer needs.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 2, 2 | version, total length |
//! | 12 | 1, 1 | audience, port |
//! | 14 | 1, 1 | kind of the socket, length of its name |
//! | 16 | 4, 4, 4, 4 | access, slot, generation, 0 |
//! | 32 | 8 | length of the memory |
//! | 40 | 16, 8, 8 | boot id; device and inode of the network namespace |
//! | 72 | 16, 16 | instance of the exporter's fabric, key |
//! | 104 | 1 to 107 | name of the socket: an abstract name without its first zero, or an absolute path |
//! | | 8 | the first bytes of the SHA-256 of all before |
//!
//! [`envelope`](crate::provider::envelope) has what is around it, [`contact`](super::contact) what other blobs have as well. Whoever has the blob may
//! import, nobody else can.

use std::ops::Deref;

use super::super::envelope::{self, Envelope};
use super::super::layout::Reader;
use super::contact::Contact;
use super::socket::NAME_MAX;
use crate::device::{Access, Audience};
use crate::error::Result;

const FIXED: usize = 104;

const ENVELOPE: Envelope = Envelope {
    kind: envelope::SOFT_MEMORY,
    version: 1,
    fixed: FIXED,
    name_max: NAME_MAX,
};

/// A parsed export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super::super) struct Blob {
    pub(in super::super) audience: Audience,
    pub(in super::super) port: u8,
    /// The flags that concern the audience.
    pub(in super::super) access: Access,
    /// Bytes of memory.
    pub(in super::super) len: u64,
    pub(in super::super) contact: Contact,
}

impl Deref for Blob {
    type Target = Contact;

    fn deref(&self) -> &Contact {
        &self.contact
    }
}

impl Blob {
    /// Whom it is for.
    pub(in super::super::super) fn audience(&self) -> Audience {
        self.audience
    }

    /// The port of the device that exported it.
    pub(in super::super::super) fn port(&self) -> u8 {
        self.port
    }

    pub(in super::super) fn format(&self) -> Vec<u8> {
        let audience = match self.audience {
            Audience::Rdma => 0,
            Audience::Dpu => 1,
        };
        let fields = ENVELOPE
            .begin(self.name().len())
            .u8(audience)
            .u8(self.port)
            .put(&self.socket())
            .u32(self.access.bits())
            .u32(self.slot)
            .u32(self.generation)
            .u32(0)
            .u64(self.len);
        Envelope::end(self.put(fields))
    }

    /// Reads what somebody handed over.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for what is truncated, damaged or no export at all, `UnsupportedVersion` for another version.
    pub(in super::super::super) fn parse(bytes: &[u8]) -> Result<Blob> {
        ENVELOPE.open(bytes, Self::fields)
    }

    fn fields(mut rest: Reader<'_>) -> Option<Blob> {
        let audience = match rest.u8()? {
            0 => Audience::Rdma,
            1 => Audience::Dpu,
            _ => return None,
        };
        let port = rest.u8()?;
        let socket = rest.array()?;
        let access = Access::from_bits(rest.u32()?)?;
        let (slot, generation, zero) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let len = rest.u64()?;
        let contact = Contact::read(socket, (slot, generation), rest)?;
        let right = zero == 0
            && (1..=isize::MAX as u64).contains(&len)
            && !access.is_empty()
            && audience.part_of(access) == access;
        right.then_some(Blob {
            audience,
            port,
            access,
            len,
            contact,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::super::envelope::seal;
    use super::super::contact::tests::contact;
    use super::super::socket::Address;
    use super::*;
    use crate::error::ErrorKind;

    fn blob() -> impl Strategy<Value = Blob> {
        let access = prop_oneof![
            (1..8_u32).prop_map(|bits| (Audience::Rdma, Access::from_bits_retain(bits << 1))),
            Just((Audience::Dpu, Access::DPU_READ_ONLY)),
            Just((Audience::Dpu, Access::DPU_READ_WRITE)),
        ];
        let len = 1..=isize::MAX as u64;
        (access, contact(), len, any::<u8>()).prop_map(
            |((audience, access), contact, len, port)| Blob {
                audience,
                port,
                access,
                len,
                contact,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_formatted_is_parsed(blob in blob()) {
            let bytes = blob.format();
            prop_assert!(bytes.len() <= 256);
            prop_assert_eq!(Blob::parse(&bytes).unwrap(), blob);
        }

        #[test]
        fn every_truncation_and_every_flipped_byte_is_refused(blob in blob(), flip in 1..=255_u8, more: u8) {
            let bytes = blob.format();
            for len in 0..bytes.len() {
                let error = Blob::parse(&bytes[..len]).unwrap_err();
                prop_assert!(error.to_string().contains("truncated"), "{}", error);
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                prop_assert!(Blob::parse(&bytes).is_err(), "byte {}", at);
            }
            let error = Blob::parse(&[&bytes[..], &[more]].concat()).unwrap_err();
            prop_assert!(error.to_string().contains("1 bytes follow"), "{}", error);
        }

        #[test]
        fn whoever_computes_the_checksum_forges_no_nonsense(blob in blob(), at in 12..FIXED, to: u8) {
            let mut bytes = blob.format();
            bytes[at] = to;
            seal(&mut bytes);
            if let Ok(parsed) = Blob::parse(&bytes) {
                prop_assert!(parsed.audience.part_of(parsed.access) == parsed.access);
                prop_assert_eq!(parsed.format(), bytes);
            }
        }

        #[test]
        fn random_bytes_are_no_blob(bytes in vec(any::<u8>(), 0..300), ours: bool) {
            let start = if ours { &ENVELOPE.kind.magic[..] } else { &[] };
            prop_assert!(Blob::parse(&[start, &bytes].concat()).is_err());
        }

        #[test]
        fn a_relative_path_is_no_exporter_s(blob in blob()) {
            let address = Address::Path("run/doca".into());
            let contact = Contact { address, ..blob.contact };
            let bytes = Blob { contact, ..blob }.format();
            prop_assert!(Blob::parse(&bytes).is_err());
        }
    }

    #[test]
    fn each_refusal_says_what_it_is() {
        let kind = |bytes: &[u8]| Blob::parse(bytes).unwrap_err().kind();
        let newer = [&ENVELOPE.kind.magic[..], &[2, 0, 120, 0], &[0; 108]].concat();
        assert_eq!(kind(&newer), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(b"#!/bin/sh\n"), ErrorKind::InvalidValue);
        let long = [&ENVELOPE.kind.magic[..], &[1, 0, 255, 255], &[0; 300]].concat();
        assert_eq!(kind(&long), ErrorKind::InvalidValue);
    }
}
