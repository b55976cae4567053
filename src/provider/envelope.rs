//! What is around every blob: magic, version and length before it, a checksum behind.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 2, 2 | version, total length |
//! | 12 | | what the blob says, its name last |
//! | | 8 | the first bytes of the SHA-256 of all before |
//!
//! Numbers are little-endian. The checksum finds accidents. Against forgery there is a key in each blob: whoever has the blob may do what
//! it says, nobody else can.

use sha2::{Digest, Sha256};

use super::layout::{Fields, Reader};
use crate::error::{Error, ErrorKind, Result};

/// Magic, version and length.
pub(in crate::provider) const HEAD: usize = 12;
pub(in crate::provider) const CHECKSUM: usize = 8;

/// A kind of blob.
pub(in crate::provider) struct Envelope {
    pub(in crate::provider) magic: [u8; 8],
    pub(in crate::provider) version: u16,
    /// Bytes before the name.
    pub(in crate::provider) fixed: usize,
    /// The longest name; 0 if there is none.
    pub(in crate::provider) name_max: usize,
    /// Who reads it.
    pub(in crate::provider) op: &'static str,
    /// Whose export it is.
    pub(in crate::provider) of: &'static str,
}

impl Envelope {
    /// Begins a blob whose name has this length.
    pub(in crate::provider) fn begin(&self, name: usize) -> Fields {
        Fields::default()
            .put(&self.magic)
            .u16(self.version)
            .u16((self.fixed + name + CHECKSUM) as u16)
    }

    /// Ends it.
    pub(in crate::provider) fn end(fields: Fields) -> Vec<u8> {
        let sum = checksum(fields.bytes());
        fields.put(&sum).done()
    }

    /// Reads what somebody handed over. `fields` reads what stands between head and checksum; `None` for what nobody writes.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for what is truncated, damaged or no blob of this kind at all, `UnsupportedVersion` for another version.
    pub(in crate::provider) fn open<T>(
        &self,
        bytes: &[u8],
        fields: impl FnOnce(Reader<'_>) -> Option<T>,
    ) -> Result<T> {
        let least = self.fixed + CHECKSUM;
        let known = bytes.len().min(self.magic.len());
        if bytes[..known] != self.magic[..known] {
            return self.refuse(format!(
                "these {} bytes are no export of {}: they begin with {:02x?}",
                bytes.len(),
                self.of,
                &bytes[..known]
            ));
        }
        let mut head = Reader(&bytes[known..]);
        let (Some(version), Some(total)) = (head.u16(), head.u16()) else {
            return self.truncated(bytes.len(), least);
        };
        if version != self.version {
            let text = format!(
                "the export has version {version}, and this library reads version {}: use one release on both sides",
                self.version
            );
            return Err(Error::new(ErrorKind::UnsupportedVersion, self.op, text));
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
        match fields(Reader(&body[HEAD..])) {
            Some(read) => Ok(read),
            None => self.refuse(
                "the export's checksum is right and its fields are not: it was forged".to_owned(),
            ),
        }
    }

    fn refuse<T>(&self, text: String) -> Result<T> {
        Err(Error::new(ErrorKind::InvalidValue, self.op, text))
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

/// Makes the checksum right, as somebody does who forges an export.
#[cfg(any(test, fuzzing))]
pub(in crate::provider) fn seal(bytes: &mut [u8]) {
    if let Some((body, sum)) = bytes.split_last_chunk_mut() {
        *sum = checksum(body);
    }
}
