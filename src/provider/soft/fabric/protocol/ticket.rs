//! A ticket: the bytes by which other processes name exported memory, an endpoint or a sync event.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 12 | magic, version, total length |
//! | 12 | 1, 1 | kind of the socket (0 abstract, 1 a path), length of its name |
//! | 14 | 4, 4 | slot, generation |
//! | 22 | 16, 8, 8 | boot id; device and inode of the network namespace |
//! | 54 | 16, 16 | instance of the exporting fabric, key |
//! | 86 | 48 | payload: the service's description of the object |
//! | 134 | 1 to 107 | name of the socket: an abstract name without its first zero, or an absolute path |
//! | | 8 | checksum |
//!
//! [`envelope`](crate::provider::envelope) has the magic, the version, the length and the checksum.
//! Only a process that has a ticket can connect. A reset exports the object anew: the next
//! generation of the slot has a new key, and the old ticket opens nothing.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::super::envelope::{self, Envelope};
use super::message::{Payload, Request};
use super::netns::{Id, Netns};
use super::slots::SLOTS;
use super::socket::{Address, NAME_MAX};
use crate::error::{Error, ErrorKind, Result};

/// The fields between the envelope's header and the name.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Fields {
    socket: u8,
    name: u8,
    slot: U32,
    generation: U32,
    boot: Id,
    net: [U64; 2],
    instance: Id,
    key: Id,
    payload: Payload,
}

/// A kind of object: its number, its words in error texts, and its errors.
pub(in super::super::super) struct Kind {
    envelope: Envelope,
    /// The number of the kind in requests.
    pub(in super::super) number: u8,
    /// The name of the side that exported the object.
    pub(in super::super) who: &'static str,
    /// The name of the object.
    pub(in super::super) what: &'static str,
    /// The error of a client whose ticket is no longer valid.
    pub(in super::super) unknown: ErrorKind,
    /// The error of a client while another client is connected.
    pub(in super::super) busy: (ErrorKind, &'static str),
    /// The text of the error of a client that the service does not expect.
    pub(in super::super) unexpected: &'static str,
    /// True if all clients of one process share the watch of the server's process. If not, a
    /// connection that must stay belongs to its client, which may end it.
    pub(in super::super) shares_watch: bool,
}

const fn envelope(kind: envelope::Kind) -> Envelope {
    Envelope {
        kind,
        version: 1,
        name_max: NAME_MAX,
    }
}

/// The kind of an Mmap's memory.
pub(in super::super::super) static MEMORY: Kind = Kind {
    envelope: envelope(envelope::SOFT_MEMORY),
    number: 0,
    who: "exporter",
    what: "memory",
    unknown: ErrorKind::NotPermitted,
    busy: (ErrorKind::InUse, "another importer has the memory"),
    unexpected: "the exporter does not understand the request: use one release on both sides",
    shares_watch: true,
};

/// The kind of an Rdma's endpoint.
pub(in super::super::super) static ENDPOINT: Kind = Kind {
    envelope: envelope(envelope::SOFT_ENDPOINT),
    number: 1,
    who: "peer",
    what: "endpoint",
    unknown: ErrorKind::ConnectionAborted,
    busy: (
        ErrorKind::ConnectionAborted,
        "the peer's Rdma is connected to another: reset it first",
    ),
    unexpected: "the peer does not expect this one: connect each of two Rdmas to what the other exported",
    shares_watch: false,
};

/// The kind of a sync event.
pub(in super::super::super) static EVENT: Kind = Kind {
    envelope: envelope(envelope::SOFT_EVENT),
    number: 2,
    who: "exporter",
    what: "SyncEvent",
    unknown: ErrorKind::ConnectionAborted,
    busy: (
        ErrorKind::InUse,
        "another importer has it: it must drop it first",
    ),
    unexpected: "the exporter does not understand the request: use one release on both sides",
    shares_watch: false,
};

/// A parsed ticket.
#[derive(Clone)]
pub(in super::super::super) struct Ticket {
    pub(in super::super::super) kind: &'static Kind,
    pub(in super::super::super) slot: u32,
    pub(in super::super::super) generation: u32,
    pub(in super::super) netns: Netns,
    pub(in super::super::super) instance: Id,
    pub(in super::super::super) key: Id,
    pub(in super::super) address: Address,
    /// The service's description of the object at the time of the export.
    pub(in super::super) payload: Payload,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.kind.what)
            .field("slot", &self.slot)
            .field("generation", &self.generation)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    pub(in super::super) fn format(&self) -> Vec<u8> {
        let (socket, name) = match &self.address {
            Address::Abstract(name) => (0, &name[..]),
            Address::Path(path) | Address::NoLink(path) => (1, path.as_os_str().as_bytes()),
        };
        let fields = Fields {
            socket,
            name: name.len() as u8,
            slot: self.slot.into(),
            generation: self.generation.into(),
            boot: self.netns.boot,
            net: [self.netns.net.0.into(), self.netns.net.1.into()],
            instance: self.instance,
            key: self.key,
            payload: self.payload,
        };
        self.kind.envelope.format(&fields, name)
    }

    /// Reads the bytes of a ticket, which may come from anywhere.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for bytes that are truncated, damaged or no ticket of this kind,
    /// `UnsupportedVersion` for another version.
    pub(in super::super::super) fn parse(kind: &'static Kind, bytes: &[u8]) -> Result<Ticket> {
        let read = |fields, name: &[u8]| Self::read(kind, fields, name);
        kind.envelope.open(bytes, read)
    }

    /// Returns `None` for fields that no fabric writes.
    fn read(kind: &'static Kind, fields: Fields, name: &[u8]) -> Option<Ticket> {
        let address = match fields.socket {
            0 => Address::Abstract(name.to_vec()),
            1 if name.starts_with(b"/") && !name.contains(&0) => {
                Address::Path(OsStr::from_bytes(name).into())
            }
            _ => return None,
        };
        let (slot, generation) = (fields.slot.get(), fields.generation.get());
        let right = !name.is_empty()
            && name.len() == usize::from(fields.name)
            && generation != 0
            && (slot as usize) < SLOTS;
        let [device, inode] = fields.net.map(U64::get);
        right.then_some(Ticket {
            kind,
            slot,
            generation,
            netns: Netns {
                boot: fields.boot,
                net: (device, inode),
            },
            instance: fields.instance,
            key: fields.key,
            address,
            payload: fields.payload,
        })
    }

    /// Reads the service's description of the object. `read` returns `None` if the description is
    /// invalid.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the ticket was forged.
    pub(in super::super::super) fn info<T>(
        &self,
        read: impl FnOnce(&Payload) -> Option<T>,
    ) -> Result<T> {
        read(&self.payload).ok_or_else(|| {
            let text = format!(
                "the checksum is right and the fields of the {} are not: the blob was forged",
                self.kind.what
            );
            Error::new(ErrorKind::InvalidValue, None, text)
        })
    }

    /// Returns a request for the object, by a client of a fabric with this instance.
    pub(in super::super) fn request(
        &self,
        instance: Id,
        nonce: Id,
        stays: bool,
        payload: &Payload,
    ) -> Request {
        let slot = (self.slot, self.generation);
        let ids = (instance, nonce);
        Request::new(self.kind.number, slot, ids, stays, payload, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::message::PAYLOAD;
    use super::envelope::{HEAD, seal};
    use super::*;

    const FIXED: usize = HEAD + size_of::<Fields>();

    fn ticket() -> impl Strategy<Value = Ticket> {
        let kind = 0..3_usize;
        let address = prop_oneof![
            vec(any::<u8>(), 1..=107).prop_map(Address::Abstract),
            "/[a-z/]{1,100}".prop_map(|path| Address::Path(path.into())),
        ];
        let ids = any::<(Id, (u64, u64), Id, Id)>();
        let slot = (0..SLOTS as u32, 1..=u32::MAX);
        let payload = vec(any::<u8>(), PAYLOAD);
        (kind, address, ids, slot, payload).prop_map(
            |(kind, address, (boot, net, instance, key), slot, payload)| Ticket {
                kind: [&MEMORY, &ENDPOINT, &EVENT][kind],
                slot: slot.0,
                generation: slot.1,
                netns: Netns { boot, net },
                instance,
                key,
                address,
                payload: payload.try_into().unwrap(),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_formatted_is_parsed_by_its_kind_alone(ticket in ticket()) {
            let bytes = ticket.format();
            prop_assert!(bytes.len() <= 256);
            for kind in [&MEMORY, &ENDPOINT, &EVENT] {
                let parsed = Ticket::parse(kind, &bytes);
                prop_assert_eq!(parsed.is_ok(), kind.number == ticket.kind.number);
                if let Ok(parsed) = parsed {
                    prop_assert_eq!(parsed.format(), &bytes[..]);
                    prop_assert_eq!((parsed.netns, parsed.address), (ticket.netns, ticket.address.clone()));
                    prop_assert_eq!((parsed.key, parsed.instance), (ticket.key, ticket.instance));
                    prop_assert_eq!(parsed.payload, ticket.payload);
                }
            }
        }

        #[test]
        fn every_truncation_and_every_flipped_byte_is_refused(
            ticket in ticket(), flip in 1..=255_u8, more: u8,
        ) {
            let bytes = ticket.format();
            for len in 0..bytes.len() {
                let error = Ticket::parse(ticket.kind, &bytes[..len]).unwrap_err();
                prop_assert!(error.to_string().contains("truncated"), "{}", error);
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                prop_assert!(Ticket::parse(ticket.kind, &bytes).is_err(), "byte {}", at);
            }
            let error = Ticket::parse(ticket.kind, &[&bytes[..], &[more]].concat()).unwrap_err();
            prop_assert!(error.to_string().contains("1 bytes follow"), "{}", error);
        }

        #[test]
        fn whoever_computes_the_checksum_forges_no_nonsense(ticket in ticket(), at in HEAD..FIXED, to: u8) {
            let mut bytes = ticket.format();
            bytes[at] = to;
            seal(&mut bytes);
            if let Ok(parsed) = Ticket::parse(ticket.kind, &bytes) {
                prop_assert_eq!(parsed.format(), bytes);
            }
        }

        #[test]
        fn random_bytes_are_no_ticket(bytes in vec(any::<u8>(), 0..300), ours: bool) {
            let start = if ours { &MEMORY.envelope.kind.magic[..] } else { &[] };
            prop_assert!(Ticket::parse(&MEMORY, &[start, &bytes].concat()).is_err());
        }

        #[test]
        fn a_relative_path_is_no_exporter_s(ticket in ticket()) {
            let address = Address::Path("run/doca".into());
            let bytes = Ticket { address, ..ticket }.format();
            prop_assert!(Ticket::parse(ticket.kind, &bytes).is_err());
        }
    }

    #[test]
    fn each_refusal_says_what_it_is() {
        let kind = |bytes: &[u8]| Ticket::parse(&MEMORY, bytes).unwrap_err().kind();
        let magic = &MEMORY.envelope.kind.magic[..];
        let newer = [magic, &[2, 0, 120, 0], &[0; 108]].concat();
        assert_eq!(kind(&newer), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(b"#!/bin/sh\n"), ErrorKind::InvalidValue);
        let long = [magic, &[1, 0, 255, 255], &[0; 300]].concat();
        assert_eq!(kind(&long), ErrorKind::InvalidValue);
    }
}
