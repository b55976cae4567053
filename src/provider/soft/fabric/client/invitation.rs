//! What an endpoint, or a sync event, looks like outside: the bytes that a guest needs.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 12 | magic, version, total length |
//! | 12 | 2 | 0 |
//! | 14 | 1, 1 | kind of the socket, length of its name |
//! | 16 | 4, 4 | slot, generation |
//! | 24 | 96 | what the blob says of the endpoint |
//! | 120 | 16, 8, 8 | boot id; device and inode of the network namespace |
//! | 152 | 16, 16 | instance of the fabric, key |
//! | 184 | 1 to 107 | name of the socket |
//! | | 8 | checksum |
//!
//! [`envelope`](crate::provider::envelope) and [`Contact`] have what is the same in blobs of memory. A reset exports anew: the slot's
//! next generation has a key of its own, and nobody knows the one before.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use super::super::current;
use super::super::envelope::{self, Envelope};
use super::super::host::{Host, Seat};
use super::super::layout::Reader;
use super::super::process::Fabric;
use super::super::protocol::greeting::Hello;
use super::super::protocol::{Contact, Id, NAME_MAX, SLOTS, place};
use super::talk::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// What is exported so, in words and in bytes.
pub(in super::super::super) struct Kind {
    envelope: Envelope,
    pub(super) role: Role,
    /// One of them, and several.
    pub(super) noun: &'static str,
    nouns: &'static str,
    /// What a guest is told where another one is.
    pub(super) busy: (ErrorKind, &'static str),
}

/// An endpoint of an Rdma.
pub(in super::super::super) static ENDPOINT: Kind = Kind {
    envelope: Envelope {
        kind: envelope::SOFT_ENDPOINT,
        version: 1,
        fixed: 184,
        name_max: NAME_MAX,
    },
    role: Role {
        who: "peer",
        what: "Rdma",
    },
    noun: "Rdma",
    nouns: "Rdmas",
    busy: (
        ErrorKind::ConnectionAborted,
        "the peer's Rdma is connected to another: reset it first",
    ),
};

/// A sync event.
pub(in super::super::super) static EVENT: Kind = Kind {
    envelope: Envelope {
        kind: envelope::SOFT_EVENT,
        version: 1,
        fixed: 184,
        name_max: NAME_MAX,
    },
    role: Role {
        who: "exporter",
        what: "SyncEvent",
    },
    noun: "SyncEvent",
    nouns: "Rdmas and SyncEvents",
    busy: (
        ErrorKind::InUse,
        "another importer has it: it must drop it first",
    ),
};

/// An exported endpoint. Dropped, nobody finds it any more.
pub(in super::super::super) struct Invited {
    fabric: Arc<Fabric>,
    contact: Contact,
    blob: Vec<u8>,
}

/// A parsed blob.
#[derive(Clone)]
pub(in super::super::super) struct Invitation {
    /// What the blob says of the endpoint. The endpoint itself says more, and is to be believed more.
    pub(in super::super::super) hello: Hello,
    pub(in super::super) contact: Contact,
    pub(in super::super) kind: &'static Kind,
}

/// The instance of this process's fabric. It is the same as long as something holds the fabric: an [`Invited`], for one.
///
/// # Errors
///
/// `BadState` in a fork of a process that has a fabric; what could not be had.
pub(in super::super::super) fn instance() -> Result<Id> {
    Ok(current::fabric()?.instance)
}

/// Exports one. The blob has at most 1,024 bytes.
///
/// # Errors
///
/// `Full`; `BadState` in a fork of a process that has a fabric; what could not be had.
pub(in super::super::super) fn invite(
    kind: &'static Kind,
    hello: &Hello,
    host: Weak<dyn Host>,
) -> Result<Invited> {
    let fabric = current::fabric()?;
    let station = fabric.open_station()?;
    let key = place::random()?;
    let seat = Seat {
        key,
        host,
        fabric: Arc::downgrade(&fabric),
    };
    let Some(slot) = lock(&station.seats).insert(seat) else {
        let text = format!(
            "this process exports {SLOTS} {}, as many as it can: drop some",
            kind.nouns
        );
        return Err(Error::new(ErrorKind::Full, None, text));
    };
    let contact = fabric.contact(station, slot, key);
    let invitation = Invitation {
        hello: *hello,
        contact,
        kind,
    };
    let blob = invitation.format();
    Ok(Invited {
        fabric,
        contact: invitation.contact,
        blob,
    })
}

impl Invited {
    /// What a guest needs.
    pub(in super::super::super) fn blob(&self) -> &[u8] {
        &self.blob
    }
}

impl Deref for Invited {
    type Target = Contact;

    fn deref(&self) -> &Contact {
        &self.contact
    }
}

impl Drop for Invited {
    fn drop(&mut self) {
        if self.fabric.is_inherited() {
            return;
        }
        let Some(station) = self.fabric.station() else {
            return;
        };
        let removed = lock(&station.seats).remove(self.slot);
        drop(removed);
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.kind.noun)
            .field("hello", &self.hello)
            .field("contact", &self.contact)
            .finish()
    }
}

impl Deref for Invitation {
    type Target = Contact;

    fn deref(&self) -> &Contact {
        &self.contact
    }
}

impl Invitation {
    pub(in super::super) fn format(&self) -> Vec<u8> {
        let fields = self
            .kind
            .envelope
            .begin(self.name().len())
            .u16(0)
            .put(&self.socket())
            .u32(self.slot)
            .u32(self.generation)
            .put(&self.hello);
        Envelope::end(self.put(fields))
    }

    /// Reads what somebody handed over.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for what is truncated, damaged or no export of this kind at all, `UnsupportedVersion` for another version.
    pub(in super::super::super) fn parse(kind: &'static Kind, blob: &[u8]) -> Result<Invitation> {
        kind.envelope.open(blob, |rest| Self::fields(kind, rest))
    }

    fn fields(kind: &'static Kind, mut rest: Reader<'_>) -> Option<Invitation> {
        let zero = rest.u16()?;
        let socket = rest.array()?;
        let slot = (rest.u32()?, rest.u32()?);
        let hello = rest.array()?;
        let contact = Contact::read(socket, slot, rest)?;
        (zero == 0).then_some(Invitation {
            hello,
            contact,
            kind,
        })
    }

    /// The endpoint, if it is of this process; `None` if it is another's.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if it was reset or dropped, `BadState` in a fork.
    pub(in super::super::super) fn own(&self) -> Option<Result<Arc<dyn Host>>> {
        let fabric = match current::fabric() {
            Ok(fabric) => fabric,
            Err(error) => return Some(Err(error)),
        };
        if self.instance != fabric.instance {
            return None;
        }
        let seat = fabric.station().and_then(|station| {
            let seats = lock(&station.seats);
            let seat = seats.claimed((self.slot, self.generation), |key| *key == self.key);
            seat.cloned()
        });
        let host = seat.and_then(|seat| seat.host.upgrade());
        Some(host.ok_or_else(|| self.unknown()))
    }

    /// Whether this process is the host of the two: its instance is the smaller one.
    ///
    /// # Errors
    ///
    /// As for [`instance`].
    pub(in super::super::super) fn we_host(&self) -> Result<bool> {
        Ok(instance()? < self.instance)
    }

    /// The endpoint is not there any more.
    pub(super) fn unknown(&self) -> Error {
        let text = format!(
            "the peer's {} (slot {}, generation {}) was reset or dropped since it was exported, or stopped, or the bytes are forged: export \
             anew, and use what that gives",
            self.kind.noun, self.slot, self.generation
        );
        Error::new(ErrorKind::ConnectionAborted, None, text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::super::envelope::{HEAD, seal};
    use super::super::super::protocol::contact::tests::contact;
    use super::super::super::protocol::greeting::HELLO;
    use super::*;

    prop_compose! {
        fn invitation()(hello in vec(any::<u8>(), HELLO), contact in contact()) -> Invitation {
            Invitation { hello: hello.try_into().unwrap(), contact, kind: &ENDPOINT }
        }
    }

    proptest! {
        #[test]
        fn what_is_formatted_is_parsed(invitation in invitation()) {
            let bytes = invitation.format();
            prop_assert!(bytes.len() <= 1024);
            let parsed = Invitation::parse(&ENDPOINT, &bytes).unwrap();
            prop_assert_eq!((parsed.hello, parsed.contact), (invitation.hello, invitation.contact));
        }

        #[test]
        fn every_truncation_and_every_flipped_byte_is_refused(invitation in invitation(), flip in 1..=255_u8) {
            let bytes = invitation.format();
            for len in 0..bytes.len() {
                let error = Invitation::parse(&ENDPOINT, &bytes[..len]).unwrap_err();
                prop_assert!(error.to_string().contains("truncated"), "{}", error);
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                prop_assert!(Invitation::parse(&ENDPOINT, &bytes).is_err(), "byte {}", at);
            }
        }

        #[test]
        fn whoever_computes_the_checksum_forges_no_nonsense(invitation in invitation(), at in HEAD..184_usize, to: u8) {
            let mut bytes = invitation.format();
            bytes[at] = to;
            seal(&mut bytes);
            if let Ok(parsed) = Invitation::parse(&ENDPOINT, &bytes) {
                prop_assert_eq!(parsed.format(), bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn a_blob_of_one_kind_is_none_of_the_other(mut invitation in invitation()) {
            prop_assert!(Invitation::parse(&EVENT, &invitation.format()).is_err());
            invitation.kind = &EVENT;
            prop_assert!(Invitation::parse(&ENDPOINT, &invitation.format()).is_err());
            prop_assert!(Invitation::parse(&EVENT, &invitation.format()).is_ok());
        }
    }

    #[test]
    fn a_blob_of_memory_is_none_of_an_endpoint() {
        let memory = [&b"tkdoca\x00\xb1"[..], &[1, 0, 255, 0], &[0; 300]].concat();
        let error = Invitation::parse(&ENDPOINT, &memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.to_string().contains("Rdma"), "{error}");
    }
}
