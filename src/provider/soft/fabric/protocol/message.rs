//! The two messages of a connect: the client's [`Request`] and the server's [`Reply`].
//!
//! ```text
//!   request: magic 8, version 2, kind 1, stays 1, slot 4, generation 4, nonce 16, instance 16,
//!            payload 48, proof 32
//!   reply:   magic 8, version 2, status 1, stays 1, errno 4, instance 16, payload 48, proof 32
//! ```
//!
//! Numbers are little-endian. The key of a ticket is never sent: a proof is an HMAC-SHA-256 with
//! that key. The proof of a request covers all bytes before it. The proof of a reply covers all
//! bytes before it, and the request. So a process that takes the server's name does not learn the
//! key, and can neither answer nor replay an answer. The bytes of a request give such a process no
//! access, unless it can pass the request on to the server. A refusal needs no proof.

use hmac::{Hmac, KeyInit, Mac};
use nix::errno::Errno;
use sha2::Sha256;
use zerocopy::little_endian::{I32, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, TryFromBytes};

use super::netns::Id;
use crate::error::Error;

pub(in super::super) const VERSION: u16 = 1;

/// The size of a payload in bytes.
pub(in super::super::super) const PAYLOAD: usize = 48;
/// The bytes that a service puts into a ticket, a request or a reply. The fabric does not interpret
/// them.
pub(in super::super::super) type Payload = [u8; PAYLOAD];

const REQUEST: [u8; 8] = *b"tkdoca\x00\xb2";
const REPLY: [u8; 8] = *b"tkdoca\x00\xb3";
const PROOF: usize = 32;

/// Returns a payload that begins with `fields`, followed by zeros.
pub(in super::super::super) fn payload(fields: &(impl IntoBytes + Immutable)) -> Payload {
    let mut payload = [0; PAYLOAD];
    let fields = fields.as_bytes();
    payload[..fields.len()].copy_from_slice(fields);
    payload
}

/// Reads the fields of a payload. Returns `None` unless all bytes after them are zeros.
pub(in super::super::super) fn fields_of<T: FromBytes>(payload: &Payload) -> Option<T> {
    let (fields, rest) = T::read_from_prefix(payload).ok()?;
    rest.iter().all(|byte| *byte == 0).then_some(fields)
}

/// Returns the HMAC-SHA-256 of `parts`, one after the other.
fn hmac(key: &Id, parts: [&[u8]; 2]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Returns a proof that its maker knows `key`. The proof does not reveal the key.
pub(in super::super::super) fn proof_of(key: &Id, label: &[u8]) -> Id {
    let proof = hmac(key, [label, &[]]).finalize().into_bytes();
    std::array::from_fn(|at| proof[at])
}

/// The start of both messages, which is the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
}

/// The request of a client for the object of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(in super::super) struct Request {
    head: Head,
    /// The number of the ticket's kind.
    pub(in super::super) kind: u8,
    /// True if the connection must stay open, because it is the only means by which the client can
    /// watch the server.
    pub(in super::super) stays: bool,
    pub(in super::super) slot: U32,
    pub(in super::super) generation: U32,
    pub(in super::super) nonce: Id,
    /// The instance of the client's fabric, as the client states it.
    pub(in super::super) instance: Id,
    pub(in super::super) payload: Payload,
    proof: [u8; PROOF],
}

/// The reply of a server to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(in super::super) struct Reply {
    head: Head,
    pub(in super::super) status: Status,
    /// True if the connection must stay open, because it is the only means by which one of the two
    /// processes can watch the other.
    pub(in super::super) stays: bool,
    /// The error number of the system call that failed.
    pub(in super::super) errno: I32,
    /// The instance of the server's fabric.
    pub(in super::super) instance: Id,
    pub(in super::super) payload: Payload,
    proof: [u8; PROOF],
}

pub(in super::super) const REQUEST_LEN: usize = size_of::<Request>();
pub(in super::super) const REPLY_LEN: usize = size_of::<Reply>();

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bad {
    Malformed,
    Version(u16),
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable)]
#[repr(u8)]
pub(in super::super) enum Status {
    /// The request is granted. Two descriptors may come with the reply.
    Granted,
    /// There is no such export, or the proof is wrong.
    Unknown,
    /// The client speaks another version.
    Version,
    /// A system call failed.
    Failed,
    /// Another client is connected.
    Busy,
    /// The service does not expect this client.
    Unexpected,
}

/// The reason why a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) struct Refusal {
    status: Status,
    /// The error number of the system call that failed.
    errno: i32,
}

impl Refusal {
    pub(in super::super::super) const UNKNOWN: Refusal = Refusal::new(Status::Unknown);
    pub(in super::super) const VERSION: Refusal = Refusal::new(Status::Version);
    pub(in super::super::super) const BUSY: Refusal = Refusal::new(Status::Busy);
    pub(in super::super::super) const UNEXPECTED: Refusal = Refusal::new(Status::Unexpected);

    const fn new(status: Status) -> Refusal {
        Refusal { status, errno: 0 }
    }
}

impl From<Error> for Refusal {
    /// Converts an error. An error without an errno becomes `ENOMEM`: this process has reached a
    /// limit of its memory.
    fn from(error: Error) -> Refusal {
        error.errno().map_or(Errno::ENOMEM, Errno::from_raw).into()
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal {
            status: Status::Failed,
            errno: errno as i32,
        }
    }
}

/// Reads a message. Checks the version first, since another version may have another layout.
fn read<T: TryFromBytes>(bytes: &[u8], magic: [u8; 8]) -> Result<T, Bad> {
    let (head, _) = Head::read_from_prefix(bytes).map_err(|_| Bad::Malformed)?;
    if head.magic != magic {
        return Err(Bad::Malformed);
    }
    match head.version.get() {
        VERSION => T::try_read_from_bytes(bytes).map_err(|_| Bad::Malformed),
        other => Err(Bad::Version(other)),
    }
}

/// Returns the bytes of a message before its proof, which comes last.
fn before_proof<T: IntoBytes + Immutable>(message: &T) -> &[u8] {
    let bytes = message.as_bytes();
    &bytes[..bytes.len() - PROOF]
}

impl Request {
    /// Returns a request for a slot, with the proof that the client has the slot's key.
    pub(in super::super) fn new(
        kind: u8,
        (slot, generation): (u32, u32),
        (instance, nonce): (Id, Id),
        stays: bool,
        payload: &Payload,
        key: &Id,
    ) -> Request {
        let mut request = Request {
            head: Head {
                magic: REQUEST,
                version: VERSION.into(),
            },
            kind,
            stays,
            slot: slot.into(),
            generation: generation.into(),
            nonce,
            instance,
            payload: *payload,
            proof: [0; PROOF],
        };
        let proof = hmac(key, [before_proof(&request), &[]]).finalize();
        request.proof = proof.into_bytes().into();
        request
    }

    /// Reads a request, without checking its proof.
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Request, Bad> {
        read(bytes, REQUEST)
    }

    /// Returns true if the sender of the request has the key.
    pub(in super::super) fn is_proved(&self, key: &Id) -> bool {
        let mac = hmac(key, [before_proof(self), &[]]);
        mac.verify(&self.proof.into()).is_ok()
    }
}

impl Reply {
    fn new(outcome: Refusal, instance: Id, stays: bool, payload: &Payload) -> Reply {
        Reply {
            head: Head {
                magic: REPLY,
                version: VERSION.into(),
            },
            status: outcome.status,
            stays,
            errno: outcome.errno.into(),
            instance,
            payload: *payload,
            proof: [0; PROOF],
        }
    }

    /// Returns a reply that grants a request, with the proof that the server has the key.
    pub(in super::super) fn granted(
        instance: Id,
        stays: bool,
        payload: &Payload,
        key: &Id,
        request: &Request,
    ) -> Reply {
        let mut reply = Reply::new(Refusal::new(Status::Granted), instance, stays, payload);
        let proof = hmac(key, [before_proof(&reply), request.as_bytes()]).finalize();
        reply.proof = proof.into_bytes().into();
        reply
    }

    /// Returns a reply that refuses a request.
    pub(in super::super) fn refused(refusal: Refusal) -> Reply {
        Reply::new(refusal, Id::default(), false, &[0; PAYLOAD])
    }

    /// Reads a reply, without checking its proof.
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Reply, Bad> {
        read(bytes, REPLY)
    }

    /// Returns true if the sender of the reply has the key, and answers this request.
    pub(in super::super) fn is_proved(&self, key: &Id, request: &Request) -> bool {
        let mac = hmac(key, [before_proof(self), request.as_bytes()]);
        mac.verify(&self.proof.into()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn said()(bytes in vec(any::<u8>(), PAYLOAD)) -> Payload {
            bytes.try_into().unwrap()
        }
    }

    prop_compose! {
        fn request(key: Id)(
            kind: u8, slot: (u32, u32), ids: (Id, Id), stays: bool, payload in said(),
        ) -> Request {
            Request::new(kind, slot, ids, stays, &payload, &key)
        }
    }

    /// Generates a key, and two requests that are proved with it.
    fn asked() -> impl Strategy<Value = (Id, Request, Request)> {
        any::<Id>().prop_flat_map(|key| (Just(key), request(key), request(key)))
    }

    proptest! {
        #[test]
        fn a_request_is_what_was_sent_and_needs_the_key((key, request, _) in asked(), other: Id) {
            let bytes = request.as_bytes();
            prop_assert_eq!(bytes.len(), 132);
            prop_assert_eq!(Request::parse(bytes), Ok(request));
            prop_assert!(request.is_proved(&key));
            prop_assert!(key == other || !request.is_proved(&other));
        }

        #[test]
        fn a_changed_request_is_refused_or_not_proved((key, request, _) in asked(), flip in 1..=255_u8) {
            let bytes = request.as_bytes();
            for len in 0..bytes.len() {
                prop_assert!(Request::parse(&bytes[..len]).is_err());
            }
            prop_assert!(Request::parse(&[bytes, &[0]].concat()).is_err());
            for at in 0..bytes.len() {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= flip;
                prop_assert!(Request::parse(&bytes).map_or(true, |it| !it.is_proved(&key)), "byte {}", at);
            }
        }

        #[test]
        fn a_reply_is_what_was_sent_and_answers_one_request(
            (key, request, another) in asked(), instance: Id, stays: bool, payload in said(), other: Id,
        ) {
            let reply = Reply::granted(instance, stays, &payload, &key, &request);
            let bytes = reply.as_bytes();
            prop_assert_eq!(bytes.len(), 112);
            prop_assert_eq!(Reply::parse(bytes), Ok(reply));
            prop_assert!(reply.is_proved(&key, &request));
            prop_assert!(key == other || !reply.is_proved(&other, &request));
            // A request that differs in one field.
            for differs in [
                Request { kind: another.kind, ..request },
                Request { slot: another.slot, ..request },
                Request { generation: another.generation, ..request },
                Request { nonce: another.nonce, ..request },
                Request { instance: another.instance, ..request },
                Request { payload: another.payload, ..request },
            ] {
                prop_assert!(differs == request || !reply.is_proved(&key, &differs));
            }
        }

        #[test]
        fn a_changed_reply_is_refused_or_not_proved(
            (key, request, _) in asked(), instance: Id, stays: bool, payload in said(), flip in 1..=255_u8,
        ) {
            let reply = Reply::granted(instance, stays, &payload, &key, &request);
            let bytes = reply.as_bytes();
            for len in 0..bytes.len() {
                prop_assert!(Reply::parse(&bytes[..len]).is_err());
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= flip;
                // A reply that grants nothing needs no proof.
                let harmless = |reply: Reply| {
                    !reply.is_proved(&key, &request) || reply.status != Status::Granted
                };
                prop_assert!(Reply::parse(&bytes).map_or(true, harmless), "byte {}", at);
            }
        }

        #[test]
        fn random_bytes_prove_nothing(bytes in vec(any::<u8>(), 0..150), ours: bool, key: Id) {
            let with = |magic: &[u8]| [if ours { magic } else { &[] }, &bytes].concat();
            prop_assert!(Request::parse(&with(&REQUEST)).map_or(true, |it| !it.is_proved(&key)));
            let request = Request::new(0, (0, 1), (key, key), false, &[0; PAYLOAD], &key);
            let reply = Reply::parse(&with(&REPLY));
            prop_assert!(reply.map_or(true, |it| !it.is_proved(&key, &request)));
        }
    }

    #[test]
    fn refusals_say_why() {
        for refusal in [
            Refusal::UNKNOWN,
            Refusal::VERSION,
            Errno::EMFILE.into(),
            Refusal::BUSY,
            Refusal::UNEXPECTED,
        ] {
            let reply = Reply::refused(refusal);
            assert_eq!(Reply::parse(reply.as_bytes()), Ok(reply));
            assert_eq!(
                (reply.status, reply.errno.get()),
                (refusal.status, refusal.errno)
            );
            assert!(Request::parse(reply.as_bytes()).is_err());
        }
        let key = [1; 16];
        let request = Request::new(0, (1, 1), (key, key), false, &[0; PAYLOAD], &key);
        let mut bytes = request.as_bytes().to_vec();
        bytes[8] = 9;
        assert_eq!(Request::parse(&bytes), Err(Bad::Version(9)));
        // A reply of another release, whose layout and statuses may differ.
        let mut bytes = Reply::refused(Refusal::VERSION).as_bytes().to_vec();
        bytes[8..12].copy_from_slice(&[9, 0, 77, 0]);
        for len in [bytes.len(), 12] {
            assert_eq!(Reply::parse(&bytes[..len]), Err(Bad::Version(9)));
        }
    }

    #[test]
    fn a_payload_has_nothing_behind_its_fields() {
        let said = payload(&U32::new(7));
        assert_eq!(fields_of::<U32>(&said), Some(U32::new(7)));
        for at in 4..PAYLOAD {
            let mut said = said;
            said[at] = 1;
            assert_eq!(fields_of::<U32>(&said), None, "{at}");
        }
    }
}
