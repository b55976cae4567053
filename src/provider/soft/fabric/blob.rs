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
//! Numbers are little-endian. The checksum finds accidents. Against forgery there is the key: whoever has the blob may import,
//! nobody else can.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use sha2::{Digest, Sha256};

use super::control::SLOTS;
use super::layout::{Fields, Reader};
use super::place::{Id, Place};
use super::socket::{Address, NAME_MAX};
use crate::device::{Access, Audience};
use crate::error::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"tkdoca\x00\xb1";
const VERSION: u16 = 1;
const FIXED: usize = 104;
const CHECKSUM: usize = 8;
const OP: &str = "import";

/// A parsed export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Blob {
    pub(super) audience: Audience,
    pub(super) port: u8,
    /// The flags that concern the audience.
    pub(super) access: Access,
    /// Bytes of memory.
    pub(super) len: u64,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) place: Place,
    pub(super) instance: Id,
    pub(super) key: Id,
    pub(super) address: Address,
}

impl Blob {
    /// Whom it is for.
    pub(in super::super) fn audience(&self) -> Audience {
        self.audience
    }

    /// The port of the device that exported it.
    pub(in super::super) fn port(&self) -> u8 {
        self.port
    }

    pub(super) fn format(&self) -> Vec<u8> {
        let (kind, name) = match &self.address {
            Address::Abstract(name) => (0, &name[..]),
            Address::Path(path) => (1, path.as_os_str().as_bytes()),
        };
        let audience = match self.audience {
            Audience::Rdma => 0,
            Audience::Dpu => 1,
        };
        let fields = Fields::default()
            .put(&MAGIC)
            .u16(VERSION)
            .u16((FIXED + name.len() + CHECKSUM) as u16)
            .u8(audience)
            .u8(self.port)
            .u8(kind)
            .u8(name.len() as u8)
            .u32(self.access.bits())
            .u32(self.slot)
            .u32(self.generation)
            .u32(0)
            .u64(self.len)
            .put(&self.place.boot)
            .u64(self.place.net.0)
            .u64(self.place.net.1)
            .put(&self.instance)
            .put(&self.key)
            .put(name);
        let sum = checksum(fields.bytes());
        fields.put(&sum).done()
    }

    /// Reads what somebody handed over.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for what is truncated, damaged or no export at all, `UnsupportedVersion` for another version.
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Blob> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            let text = format!(
                "these {} bytes are no export of a software device: they begin with {:02x?}",
                bytes.len(),
                &bytes[..known]
            );
            return refuse(ErrorKind::InvalidValue, text);
        }
        let mut head = Reader(&bytes[known..]);
        let (Some(version), Some(total)) = (head.u16(), head.u16()) else {
            return truncated(bytes.len(), FIXED + CHECKSUM);
        };
        if version != VERSION {
            let text = format!(
                "the export has version {version}, and this library reads version {VERSION}: use one release on both sides"
            );
            return refuse(ErrorKind::UnsupportedVersion, text);
        }
        let total = usize::from(total);
        if !(FIXED + CHECKSUM..=FIXED + NAME_MAX + CHECKSUM).contains(&total) {
            let text =
                format!("the export says that it has {total} bytes: it was damaged on its way");
            return refuse(ErrorKind::InvalidValue, text);
        }
        if bytes.len() < total {
            return truncated(bytes.len(), total);
        }
        if bytes.len() > total {
            let text = format!(
                "{} bytes follow the export, which has {total}: hand over just those",
                bytes.len() - total
            );
            return refuse(ErrorKind::InvalidValue, text);
        }
        let (body, sum) = bytes.split_at(total - CHECKSUM);
        if checksum(body) != sum {
            let text = format!(
                "the checksum of the export of {total} bytes is wrong: it was changed on its way"
            );
            return refuse(ErrorKind::InvalidValue, text);
        }
        Self::fields(&body[12..]).map_or_else(
            || {
                let text = "the export's checksum is right and its fields are not: it was forged";
                refuse(ErrorKind::InvalidValue, text.to_owned())
            },
            Ok,
        )
    }

    /// What stands behind the total length; `None` for what no exporter writes.
    fn fields(body: &[u8]) -> Option<Blob> {
        let mut rest = Reader(body);
        let audience = match rest.u8()? {
            0 => Audience::Rdma,
            1 => Audience::Dpu,
            _ => return None,
        };
        let port = rest.u8()?;
        let (kind, name_len) = (rest.u8()?, rest.u8()?);
        let access = Access::from_bits(rest.u32()?)?;
        let (slot, generation, zero) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let len = rest.u64()?;
        let place = Place {
            boot: rest.array()?,
            net: (rest.u64()?, rest.u64()?),
        };
        let (instance, key) = (rest.array()?, rest.array()?);
        let name = rest.slice(name_len.into())?;
        let address = match kind {
            0 => Address::Abstract(name.to_vec()),
            1 => Address::Path(OsStr::from_bytes(name).into()),
            _ => return None,
        };
        let right = rest.is_empty()
            && zero == 0
            && generation != 0
            && (slot as usize) < SLOTS
            && (1..=isize::MAX as u64).contains(&len)
            && !access.is_empty()
            && audience.part_of(access) == access
            && !name.is_empty()
            && (kind == 0 || name.starts_with(b"/") && !name.contains(&0));
        right.then_some(Blob {
            audience,
            port,
            access,
            len,
            slot,
            generation,
            place,
            instance,
            key,
            address,
        })
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&Sha256::digest(bytes)[..CHECKSUM]);
    sum
}

/// Makes the checksum right, as somebody does who forges an export.
#[cfg(any(test, fuzzing))]
pub(super) fn seal(bytes: &mut [u8]) {
    if let Some((body, sum)) = bytes.split_last_chunk_mut() {
        *sum = checksum(body);
    }
}

fn refuse(kind: ErrorKind, text: String) -> Result<Blob> {
    Err(Error::new(kind, OP, text))
}

fn truncated(have: usize, of: usize) -> Result<Blob> {
    let text =
        format!("the export is truncated: {have} bytes of {of}, or more: hand over all of it");
    refuse(ErrorKind::InvalidValue, text)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn blob() -> impl Strategy<Value = Blob> {
        let access = prop_oneof![
            (1..8_u32).prop_map(|bits| (Audience::Rdma, Access::from_bits_retain(bits << 1))),
            Just((Audience::Dpu, Access::DPU_READ_ONLY)),
            Just((Audience::Dpu, Access::DPU_READ_WRITE)),
        ];
        let address = prop_oneof![
            vec(any::<u8>(), 1..=107).prop_map(Address::Abstract),
            "/[a-z/]{1,100}".prop_map(|path| Address::Path(path.into())),
        ];
        let ids = any::<(Id, (u64, u64), Id, Id)>();
        let slot = (0..SLOTS as u32, 1..=u32::MAX);
        let len = 1..=isize::MAX as u64;
        (access, address, ids, slot, len, any::<u8>()).prop_map(
            |((audience, access), address, (boot, net, instance, key), slot, len, port)| Blob {
                audience,
                port,
                access,
                len,
                slot: slot.0,
                generation: slot.1,
                place: Place { boot, net },
                instance,
                key,
                address,
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
            let start = if ours { &MAGIC[..] } else { &[] };
            prop_assert!(Blob::parse(&[start, &bytes].concat()).is_err());
        }

        #[test]
        fn a_relative_path_is_no_exporter_s(blob in blob()) {
            let address = Address::Path("run/doca".into());
            let bytes = Blob { address, ..blob }.format();
            prop_assert!(Blob::parse(&bytes).is_err());
        }
    }

    #[test]
    fn each_refusal_says_what_it_is() {
        let kind = |bytes: &[u8]| Blob::parse(bytes).unwrap_err().kind();
        let newer = [&MAGIC[..], &[2, 0, 120, 0], &[0; 108]].concat();
        assert_eq!(kind(&newer), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(b"#!/bin/sh\n"), ErrorKind::InvalidValue);
        let long = [&MAGIC[..], &[1, 0, 255, 255], &[0; 300]].concat();
        assert_eq!(kind(&long), ErrorKind::InvalidValue);
    }
}
