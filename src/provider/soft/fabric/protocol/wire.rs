//! What importer and exporter say to each other: one request and one answer, each one message of a fixed length.
//!
//! The key of an export never travels. Each side shows that it has it by a hash over the key, a nonce of the importer's and what it
//! says: who took the exporter's name in its place learns nothing, and can answer nothing.
//!
//! ```text
//!   request: magic 8, version 2, flags 2, slot 4, generation 4, nonce 16, proof 32
//!   answer:  magic 8, version 2, status 2, errno 4, access 4, 0 4, instance 16, offset 8, length 8, proof 32
//! ```

use sha2::{Digest, Sha256};

use super::super::layout::{Fields, Reader};
use super::place::Id;

const REQUEST: [u8; 8] = *b"tkdoca\x00\xb2";
const ANSWER: [u8; 8] = *b"tkdoca\x00\xb3";
pub(in super::super) const VERSION: u16 = 1;
pub(in super::super) const REQUEST_LEN: usize = 68;
pub(in super::super) const ANSWER_LEN: usize = 88;

/// A flag of requests.
pub(super) const KEEP: u16 = 1;

pub(super) type Proof = [u8; 32];

/// An importer asks for an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Request {
    pub(in super::super) slot: u32,
    pub(in super::super) generation: u32,
    pub(in super::super) nonce: Id,
    /// Whether the connection shall stay, since its end is all that the importer can watch.
    pub(in super::super) keep: bool,
}

/// A request as it came, not believed yet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Claim {
    pub(in super::super) request: Request,
    proof: Proof,
}

/// Why a message is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bad {
    Malformed,
    Version(u16),
}

/// How a request is taken, by an exporter or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Status {
    /// Two descriptors come along.
    Granted,
    /// There is no such export, or the proof is wrong.
    Unknown,
    /// Who asks speaks another version.
    Version,
    /// A system call failed.
    Failed(i32),
    /// The endpoint has a guest.
    Busy,
    /// The endpoint does not want this guest.
    Unwanted,
}

impl Status {
    /// The status and an errno.
    pub(in super::super) fn put(self, fields: Fields) -> Fields {
        let (status, errno) = match self {
            Status::Granted => (0, 0),
            Status::Unknown => (1, 0),
            Status::Version => (2, 0),
            Status::Failed(errno) => (3, errno),
            Status::Busy => (4, 0),
            Status::Unwanted => (5, 0),
        };
        fields.u16(status).u32(errno as u32)
    }

    pub(in super::super) fn read(rest: &mut Reader<'_>) -> Option<Status> {
        Some(match (rest.u16()?, rest.u32()?) {
            (0, 0) => Status::Granted,
            (1, 0) => Status::Unknown,
            (2, 0) => Status::Version,
            (3, errno) => Status::Failed(errno as i32),
            (4, 0) => Status::Busy,
            (5, 0) => Status::Unwanted,
            _ => return None,
        })
    }
}

/// What a granted request gets. It is what the proof covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Grant {
    pub(in super::super) access: u32,
    pub(in super::super) instance: Id,
    /// Where the memory begins in the memfd.
    pub(in super::super) offset: u64,
    pub(in super::super) len: u64,
}

/// An answer as it came, not believed yet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Answer {
    pub(in super::super) status: Status,
    pub(in super::super) grant: Grant,
    proof: Proof,
}

/// What is behind magic and version. The version is looked at first: another one may have another layout.
pub(super) fn head(bytes: &[u8], magic: [u8; 8]) -> Result<Reader<'_>, Bad> {
    let mut rest = Reader(bytes);
    match (rest.array(), rest.u16()) {
        (Some(found), Some(VERSION)) if found == magic => Ok(rest),
        (Some(found), Some(version)) if found == magic => Err(Bad::Version(version)),
        _ => Err(Bad::Malformed),
    }
}

impl Request {
    fn proof(&self, key: &Id) -> Proof {
        let said = Fields::default()
            .put(b"tokio-doca import")
            .put(key)
            .put(&self.nonce)
            .u32(self.slot)
            .u32(self.generation);
        Sha256::digest(said.bytes()).into()
    }

    pub(in super::super) fn format(&self, key: &Id) -> Vec<u8> {
        Fields::default()
            .put(&REQUEST)
            .u16(VERSION)
            .u16(if self.keep { KEEP } else { 0 })
            .u32(self.slot)
            .u32(self.generation)
            .put(&self.nonce)
            .put(&self.proof(key))
            .done()
    }
}

impl Claim {
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Claim, Bad> {
        Self::fields(head(bytes, REQUEST)?).ok_or(Bad::Malformed)
    }

    fn fields(mut rest: Reader<'_>) -> Option<Claim> {
        let flags = rest.u16()?;
        let request = Request {
            slot: rest.u32()?,
            generation: rest.u32()?,
            nonce: rest.array()?,
            keep: flags == KEEP,
        };
        let proof = rest.array()?;
        (flags <= KEEP && rest.is_empty()).then_some(Claim { request, proof })
    }

    /// Whether it is from one who has the key.
    pub(in super::super) fn is_proved(&self, key: &Id) -> bool {
        same(&self.request.proof(key), &self.proof)
    }
}

impl Grant {
    fn proof(&self, key: &Id, nonce: &Id) -> Proof {
        let said = Fields::default()
            .put(b"tokio-doca export")
            .put(key)
            .put(nonce)
            .put(&self.instance)
            .u32(self.access)
            .u64(self.offset)
            .u64(self.len);
        Sha256::digest(said.bytes()).into()
    }

    /// The answer to a request that is granted.
    pub(in super::super) fn format(&self, key: &Id, nonce: &Id) -> Vec<u8> {
        answer(Status::Granted, self, &self.proof(key, nonce))
    }
}

/// The answer to a request that is not.
pub(in super::super) fn refusal(status: Status) -> Vec<u8> {
    let none = Grant {
        access: 0,
        instance: Id::default(),
        offset: 0,
        len: 0,
    };
    answer(status, &none, &[0; 32])
}

fn answer(status: Status, grant: &Grant, proof: &Proof) -> Vec<u8> {
    status
        .put(Fields::default().put(&ANSWER).u16(VERSION))
        .u32(grant.access)
        .u32(0)
        .put(&grant.instance)
        .u64(grant.offset)
        .u64(grant.len)
        .put(proof)
        .done()
}

impl Answer {
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Answer, Bad> {
        Self::fields(head(bytes, ANSWER)?).ok_or(Bad::Malformed)
    }

    fn fields(mut rest: Reader<'_>) -> Option<Answer> {
        let status = Status::read(&mut rest)?;
        let (access, zero) = (rest.u32()?, rest.u32()?);
        let grant = Grant {
            access,
            instance: rest.array()?,
            offset: rest.u64()?,
            len: rest.u64()?,
        };
        let proof = rest.array()?;
        (zero == 0 && rest.is_empty()).then_some(Answer {
            status,
            grant,
            proof,
        })
    }

    /// Whether it is from one who has the key, and is about this request.
    pub(in super::super) fn is_proved(&self, key: &Id, nonce: &Id) -> bool {
        same(&self.grant.proof(key, nonce), &self.proof)
    }
}

/// In a time that does not depend on where they differ.
pub(in super::super) fn same(one: &Proof, other: &Proof) -> bool {
    let differ = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn request()(slot: u32, generation: u32, nonce: Id, keep: bool) -> Request {
            Request { slot, generation, nonce, keep }
        }
    }

    prop_compose! {
        fn grant()(access: u32, instance: Id, offset: u64, len: u64) -> Grant {
            Grant { access, instance, offset, len }
        }
    }

    proptest! {
        #[test]
        fn a_request_is_what_was_sent_and_needs_the_key(request in request(), key: Id, other: Id) {
            let bytes = request.format(&key);
            prop_assert_eq!(bytes.len(), REQUEST_LEN);
            let claim = Claim::parse(&bytes).unwrap();
            prop_assert_eq!(claim.request, request);
            prop_assert!(claim.is_proved(&key));
            prop_assert!(key == other || !claim.is_proved(&other));
        }

        #[test]
        fn a_changed_request_is_refused_or_not_proved(request in request(), key: Id, flip in 1..=255_u8) {
            let bytes = request.format(&key);
            for len in 0..bytes.len() {
                prop_assert!(Claim::parse(&bytes[..len]).is_err());
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                // The flags are a wish, and nothing that is proved.
                let harmless = |claim: Claim| !claim.is_proved(&key) || (10..12).contains(&at);
                prop_assert!(Claim::parse(&bytes).map_or(true, harmless), "byte {}", at);
            }
        }

        #[test]
        fn an_answer_is_what_was_sent_and_needs_key_and_nonce(grant in grant(), key: Id, nonce: Id, other: Id) {
            let bytes = grant.format(&key, &nonce);
            prop_assert_eq!(bytes.len(), ANSWER_LEN);
            let answer = Answer::parse(&bytes).unwrap();
            prop_assert_eq!((answer.status, answer.grant), (Status::Granted, grant));
            prop_assert!(answer.is_proved(&key, &nonce));
            prop_assert!(key == other || !answer.is_proved(&other, &nonce));
            prop_assert!(nonce == other || !answer.is_proved(&key, &other));
        }

        #[test]
        fn a_changed_answer_is_refused_or_not_proved(grant in grant(), key: Id, nonce: Id, flip in 1..=255_u8) {
            let bytes = grant.format(&key, &nonce);
            for len in 0..bytes.len() {
                prop_assert!(Answer::parse(&bytes[..len]).is_err());
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                // What grants nothing needs no proof.
                let harmless = |answer: Answer| !answer.is_proved(&key, &nonce) || answer.status != Status::Granted;
                prop_assert!(Answer::parse(&bytes).map_or(true, harmless), "byte {}", at);
            }
        }

        #[test]
        fn random_bytes_prove_nothing(bytes in vec(any::<u8>(), 0..120), ours: bool, key: Id) {
            let with = |magic: &[u8]| [if ours { magic } else { &[] }, &bytes].concat();
            prop_assert!(Claim::parse(&with(&REQUEST)).map_or(true, |claim| !claim.is_proved(&key)));
            prop_assert!(Answer::parse(&with(&ANSWER)).map_or(true, |answer| !answer.is_proved(&key, &key)));
        }
    }

    #[test]
    fn refusals_say_why() {
        for status in [
            Status::Unknown,
            Status::Version,
            Status::Failed(24),
            Status::Busy,
            Status::Unwanted,
        ] {
            assert_eq!(Answer::parse(&refusal(status)).unwrap().status, status);
        }
        let request = Request {
            slot: 1,
            generation: 1,
            nonce: [7; 16],
            keep: false,
        };
        let mut bytes = request.format(&[1; 16]);
        bytes[8] = 9;
        assert_eq!(Claim::parse(&bytes).unwrap_err(), Bad::Version(9));
        // Of another release, whatever its layout and its words for a refusal.
        let mut bytes = refusal(Status::Version);
        bytes[8..12].copy_from_slice(&[9, 0, 77, 0]);
        for len in [bytes.len(), 12] {
            assert_eq!(Answer::parse(&bytes[..len]).unwrap_err(), Bad::Version(9));
        }
    }
}
