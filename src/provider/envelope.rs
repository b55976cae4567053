//! The envelope of every exported blob: magic, version and length in front, a checksum behind.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 2, 2 | version, total length |
//! | 12 | | the fields of the blob, then its name |
//! | | 8 | the first bytes of the SHA-256 of all before |
//!
//! Numbers are little-endian. The checksum detects accidental damage alone. Against forgery, each
//! blob of a software device contains a secret key: a process that has the blob may use what it
//! exports, and no other process can.

use sha2::{Digest, Sha256};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{Error, ErrorKind, Result};

/// The header in front of the fields of a blob.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
    /// The length of the whole blob in bytes.
    total: U16,
}

pub(in crate::provider) const HEAD: usize = size_of::<Head>();
pub(in crate::provider) const CHECKSUM: usize = 8;

/// A kind of blob: which object it exports, of which devices. Every kind of blob of the built-in
/// providers is one of [`KINDS`].
#[derive(Clone, Copy)]
pub(in crate::provider) struct Kind {
    pub(in crate::provider) magic: [u8; 8],
    /// The family of devices that exports and imports it.
    device: &'static str,
    /// The object that was exported.
    object: &'static str,
    /// The public call that takes blobs of this kind.
    call: &'static str,
}

pub(in crate::provider) const SOFT_MEMORY: Kind = Kind {
    magic: *b"tkdoca\x00\xb1",
    device: "a software device",
    object: "an Mmap",
    call: "RemoteMmap::from_export",
};

pub(in crate::provider) const SOFT_ENDPOINT: Kind = Kind {
    magic: *b"tkdoca\x00\xb4",
    device: "a software device",
    object: "an Rdma",
    call: "Rdma::connect",
};

pub(in crate::provider) const SOFT_EVENT: Kind = Kind {
    magic: *b"tkdoca\x00\xb7",
    device: "a software device",
    object: "a SyncEvent",
    call: "SyncEvent::from_export",
};

pub(in crate::provider) const ADAPTER_MEMORY: Kind = Kind {
    magic: *b"tkdoca\x00\xb8",
    device: "an adapter",
    object: "an Mmap",
    call: "RemoteMmap::from_export",
};

pub(in crate::provider) const ADAPTER_ENDPOINT: Kind = Kind {
    magic: *b"tkdoca\x00\xb9",
    device: "an adapter",
    object: "an Rdma",
    call: "Rdma::connect",
};

const KINDS: [Kind; 5] = [
    SOFT_MEMORY,
    SOFT_ENDPOINT,
    SOFT_EVENT,
    ADAPTER_MEMORY,
    ADAPTER_ENDPOINT,
];

/// How blobs of one kind are laid out.
pub(in crate::provider) struct Envelope {
    pub(in crate::provider) kind: Kind,
    pub(in crate::provider) version: u16,
    /// The maximum length of the name in bytes; 0 if blobs of this kind have no name.
    pub(in crate::provider) name_max: usize,
}

impl Kind {
    /// Returns the error text that says what `bytes` are, which begin with another magic.
    fn not(&self, bytes: &[u8], known: usize) -> String {
        let Kind {
            device,
            object,
            call,
            ..
        } = self;
        match KINDS.iter().find(|kind| bytes.starts_with(&kind.magic)) {
            Some(other) if other.call != *call => format!(
                "this blob is of {}, and {call} takes one of {object}: hand it to {}",
                other.object, other.call
            ),
            Some(other) => format!(
                "this blob is of {} on {}, and this device takes one of {object} on {device}: \
                 call {call} with {} of this machine",
                other.object, other.device, other.device
            ),
            None => format!(
                "these {} bytes are no blob of {object} on {device}: they begin with {:02x?}",
                bytes.len(),
                &bytes[..known]
            ),
        }
    }
}

impl Envelope {
    /// Returns a blob with these fields and this name.
    pub(in crate::provider) fn format(
        &self,
        fields: &(impl IntoBytes + Immutable),
        name: &[u8],
    ) -> Vec<u8> {
        let total = HEAD + size_of_val(fields) + name.len() + CHECKSUM;
        let head = Head {
            magic: self.kind.magic,
            version: self.version.into(),
            total: (total as u16).into(),
        };
        let mut bytes = [head.as_bytes(), fields.as_bytes(), name].concat();
        bytes.extend(checksum(&bytes));
        bytes
    }

    /// Checks and reads a blob that the application handed over. `read` gets the fields and the
    /// name, and returns `None` for values that no exporter writes.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the bytes are truncated, damaged or no blob of this kind at all,
    /// `UnsupportedVersion` for another version.
    pub(in crate::provider) fn open<F: FromBytes, T>(
        &self,
        bytes: &[u8],
        read: impl FnOnce(F, &[u8]) -> Option<T>,
    ) -> Result<T> {
        let least = HEAD + size_of::<F>() + CHECKSUM;
        let known = bytes.len().min(self.kind.magic.len());
        if bytes[..known] != self.kind.magic[..known] {
            return self.refuse(self.kind.not(bytes, known));
        }
        let Ok((head, _)) = Head::read_from_prefix(bytes) else {
            return self.truncated(bytes.len(), least);
        };
        let (version, total) = (head.version.get(), head.total.get());
        if version != self.version {
            let text = format!(
                "the export has version {version}, and this library reads version {}: use one release on both sides",
                self.version
            );
            return Err(Error::new(ErrorKind::UnsupportedVersion, None, text));
        }
        let total = usize::from(total);
        if !(least..=least + self.name_max).contains(&total) {
            return self.refuse(format!(
                "the export says that it has {total} bytes: it was damaged on its way"
            ));
        }
        if bytes.len() < total {
            return self.truncated(bytes.len(), total);
        }
        if bytes.len() > total {
            return self.refuse(format!(
                "{} bytes follow the export, which has {total}: hand over just those",
                bytes.len() - total
            ));
        }
        let (body, sum) = bytes.split_at(total - CHECKSUM);
        if checksum(body) != sum {
            return self.refuse(format!(
                "the checksum of the export of {total} bytes is wrong: it was changed on its way"
            ));
        }
        let fields = F::read_from_prefix(&body[HEAD..]).ok();
        match fields.and_then(|(fields, name)| read(fields, name)) {
            Some(read) => Ok(read),
            None => self.refuse(
                "the export's checksum is right and its fields are not: it was forged".to_owned(),
            ),
        }
    }

    fn refuse<T>(&self, text: String) -> Result<T> {
        Err(Error::new(ErrorKind::InvalidValue, None, text))
    }

    fn truncated<T>(&self, have: usize, of: usize) -> Result<T> {
        self.refuse(format!(
            "the export is truncated: {have} bytes of {of}, or more: hand over all of it"
        ))
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&Sha256::digest(bytes)[..CHECKSUM]);
    sum
}

/// Writes the right checksum into a changed blob, as a forger of an export does.
#[cfg(any(test, fuzzing))]
pub(in crate::provider) fn seal(bytes: &mut [u8]) {
    if let Some((body, sum)) = bytes.split_last_chunk_mut() {
        *sum = checksum(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a blob of each kind as each other kind, and checks the error text.
    #[test]
    fn a_blob_of_another_kind_is_named_with_the_call_or_the_device_that_takes_it() {
        for (own, mine) in KINDS.iter().enumerate() {
            let envelope = Envelope {
                kind: *mine,
                version: 1,
                name_max: 0,
            };
            for (other, theirs) in KINDS.iter().enumerate() {
                let blob = [&theirs.magic[..], &[1, 0, 20, 0], &[0; 8]].concat();
                let error = envelope.open(&blob, |(), _| Some(())).unwrap_err();
                let text = error.to_string();
                let says = format!("this blob is of {}", theirs.object);
                assert_eq!(text.starts_with(&says), own != other, "{text}");
                if own != other {
                    let out = if mine.call == theirs.call {
                        theirs.device
                    } else {
                        theirs.call
                    };
                    assert!(text.split(": ").last().unwrap().contains(out), "{text}");
                }
            }
            for bytes in [&b"#!/bin/sh\n"[..], &mine.magic[..7], b""] {
                let text = envelope
                    .open(bytes, |(), _| Some(()))
                    .unwrap_err()
                    .to_string();
                assert!(!text.contains("this blob is of"), "{text}");
            }
        }
    }
}
