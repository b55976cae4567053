//! What a peer may send, as a fuzzer generates it. The code under test gets bytes and makes a
//! decision, without a socket. This is built with `cfg(fuzzing)` only; `.ci/fuzz` runs it.
//!
//! A panic is a bug. An input is what the peer sends. `repair` makes the parts valid that no
//! mutation gets right: checksums and proofs, which a hostile peer can compute as well. It calls no
//! parser, so that an error of a parser shows when the input is taken, and the fuzzer then knows
//! the input.

use std::any::Any;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use zerocopy::IntoBytes;

use super::client::Answer;
use super::control::{Control, Words};
use super::envelope;
use super::export::MemoryInfo;
use super::memory::{Arena, received};
use super::protocol::{
    Address, DESCRIPTORS, ENDPOINT, EVENT, Id, Kind, MEMORY, Netns, PAYLOAD, Payload, REPLY_LEN,
    REQUEST_LEN, Refusal, Reply, Request, SLOTS, Slots, Ticket,
};
use super::server::{Verdict, judge};
use super::service::{self, Grant, PublishedService, Service};
use crate::device::{Access, Audience};
use crate::process::Guarded;

const NONCE: Id = [7; 16];
const INSTANCE: Id = [8; 16];
const KEY: Id = [9; 16];
const OURS: Id = [6; 16];
const HERE: Netns = Netns {
    boot: [1; 16],
    net: (4, 4_026_531_840),
};
const KINDS: [&Kind; 3] = [&MEMORY, &ENDPOINT, &EVENT];

/// The length of a ticket before its name, by the table in `protocol/ticket.rs`.
const FIXED: usize = 134;
const CHECKSUM: usize = 8;

/// The size of the memory of the descriptors, in bytes.
const LEN: usize = 3 * 4096;
/// The index of the control page in [`Client::sendable`]. The descriptors before it may be mapped;
/// the control page may be mapped too, for reading.
const CONTROL: usize = 3;

fn memfd(paid: bool, seals: SealFlag) -> OwnedFd {
    let made = || -> nix::Result<OwnedFd> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = memfd_create(c"fuzzing", flags)?;
        ftruncate(&memfd, LEN as i64)?;
        if paid {
            fallocate(&memfd, FallocateFlags::empty(), 0, LEN as i64)?;
        }
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(memfd)
    };
    made().expect("a memfd")
}

/// The fuzz target for a client, to which the server of a ticket replies. The input is: the
/// descriptors of the reply (two bytes; the highest bit of the first means that the connection
/// stays), the ticket, and the reply.
pub struct Client {
    /// The descriptors that may come with a reply.
    sendable: [OwnedFd; 7],
    _control: Control,
}

impl Client {
    /// Returns a client with descriptors of each kind.
    #[expect(clippy::new_without_default, reason = "it opens files")]
    pub fn new() -> Client {
        let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let control = Control::new().expect("a control page");
        let page = control.memfd().try_clone().expect("a descriptor");
        Client {
            sendable: [
                memfd(true, needed),
                memfd(true, needed | SealFlag::F_SEAL_FUTURE_WRITE),
                memfd(true, needed | SealFlag::F_SEAL_WRITE),
                page,
                memfd(true, needed - SealFlag::F_SEAL_SHRINK),
                memfd(false, needed),
                File::open("/dev/null").expect("/dev/null").into(),
            ],
            _control: control,
        }
    }

    /// Runs one input: a ticket, and the reply that its server sends, with descriptors.
    pub fn take(&self, input: &[u8]) {
        let Some((which, bytes, reply)) = split(input) else {
            return;
        };
        let parsed = KINDS.map(|kind| Ticket::parse(kind, bytes));
        let mut tickets = parsed
            .into_iter()
            .filter_map(|parsed| parsed.map_err(|error| error.to_string()).ok());
        let Some(ticket) = tickets.next() else {
            return;
        };
        assert!(tickets.next().is_none(), "it is of one kind");
        assert_eq!(ticket.format(), bytes, "what no exporter writes is refused");
        assert!(ticket.address.resolve().is_ok(), "{}", ticket.address);
        let _ = ticket.reachable(&HERE).map_err(|error| error.to_string());

        let request = ticket.request(OURS, NONCE, which[0] & 0x80 != 0, &[0; PAYLOAD]);
        let which = which.map(|byte| usize::from(byte & 0x7f) % (self.sendable.len() + 1));
        let descriptors = which
            .iter()
            .filter_map(|&which| self.sendable.get(which))
            .map(|descriptor| Guarded::new(descriptor.try_clone().expect("a descriptor"), true))
            .collect();
        let Some(answer) = Answer::made_up(reply, descriptors) else {
            return;
        };
        let granted = ticket.granted(&request, answer);
        let Ok((said, descriptors)) = granted.map_err(|error| error.to_string()) else {
            return;
        };
        assert_eq!(said.instance, ticket.instance);
        let stays = said.stays;
        let right = Reply::granted(said.instance, stays, &said.payload, &ticket.key, &request);
        assert_eq!(right.as_bytes(), reply, "it was not proved");
        let Some(descriptors) = descriptors else {
            return;
        };
        match ticket.kind.number == MEMORY.number {
            true => maps(&ticket, &said.payload, which, &descriptors),
            false => {
                for (which, memfd) in which.into_iter().zip(&descriptors) {
                    let mapped = Arena::received(memfd, LEN).map_err(|error| error.to_string());
                    assert_eq!(mapped.is_ok(), [0, 5].contains(&which), "{which}");
                }
            }
        }
    }

    /// Repairs each part of an input for which `choice` has a bit.
    pub fn repair(input: &mut [u8], choice: u32) {
        let Some((which, ticket, _)) = split(input) else {
            return;
        };
        let (stays, len) = (which[0] & 0x80 != 0, ticket.len());
        let (ticket, reply) = input[2..].split_at_mut(len);
        if choice & 1 != 0 {
            // The name takes the bytes that are left by all other fields.
            let name = len.checked_sub(FIXED + CHECKSUM);
            if let (true, Some(name)) = (choice & 8 != 0, name) {
                ticket[13] = name as u8;
            }
            envelope::seal(ticket);
        }
        if choice & 2 != 0 {
            prove(ticket, reply, stays, choice & 4 != 0);
        }
    }

    /// Returns inputs that honest exporters send.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        let addresses = [
            Address::Abstract(b"tokio-doca-0".to_vec()),
            Address::Path("/run/doca".into()),
        ];
        let accesses = [
            (Audience::Dpu, Access::DPU_READ_ONLY),
            (Audience::Dpu, Access::DPU_READ_WRITE),
            (Audience::Rdma, Access::RDMA_READ),
            (Audience::Rdma, Access::RDMA_WRITE | Access::RDMA_ATOMIC),
        ];
        let payload = |(audience, access)| {
            let (port, len) = (1, LEN as u64);
            let info = MemoryInfo {
                audience,
                port,
                access,
                len,
            };
            info.format()
        };
        let tickets = accesses
            .map(|of| (KINDS[0], payload(of)))
            .into_iter()
            .chain([(KINDS[1], [3; PAYLOAD]), (KINDS[2], [0; PAYLOAD])]);
        for (slot, (kind, payload)) in (0..).zip(tickets) {
            let ticket = Ticket {
                kind,
                slot,
                generation: 1,
                netns: HERE,
                instance: INSTANCE,
                key: KEY,
                address: addresses[slot as usize % 2].clone(),
                payload,
            };
            for stays in [false, true] {
                let request = ticket.request(OURS, NONCE, stays, &[0; PAYLOAD]);
                let granted = Reply::granted(INSTANCE, stays, &payload, &KEY, &request);
                let refused = [Refusal::UNKNOWN, Errno::EMFILE.into()].map(Reply::refused);
                for reply in [granted].into_iter().chain(refused) {
                    let mut seed = vec![u8::from(stays) << 7, CONTROL as u8];
                    seed.extend(ticket.format());
                    seed.extend(reply.as_bytes());
                    seeds.push(seed);
                }
            }
        }
        seeds
    }
}

/// Maps the descriptors of a reply for memory, as an importer does.
fn maps(ticket: &Ticket, said: &Payload, which: [usize; 2], with: &[Guarded; DESCRIPTORS]) {
    let info = ticket.info(MemoryInfo::parse);
    let Ok(info) = info.map_err(|error| error.to_string()) else {
        return;
    };
    assert_eq!(info.format(), ticket.payload);
    if *said != ticket.payload {
        return;
    }
    let deadline = crate::sync::deadline(std::time::Duration::from_secs(5));
    let mapped = received::map(&with[0], info.len, info.may_write(), deadline);
    if mapped.map_err(|error| error.to_string()).is_ok() {
        let size = match which[0] {
            CONTROL => 4 * (SLOTS + 1),
            _ => LEN,
        };
        assert!(which[0] <= CONTROL, "{which:?}");
        assert!(info.len <= size as u64);
    }
    if let Ok(words) = Words::received(&with[1]) {
        assert_eq!(which[1], CONTROL);
        let word = words
            .word(ticket.slot)
            .expect("a slot that a ticket may have");
        assert_eq!(word.get(), 0);
        assert!(!words.owner().is_marked());
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Makes a reply that the client of this ticket accepts as proved. With `lie` the reply keeps the
/// instance and the payload that it states.
fn prove(ticket: &[u8], reply: &mut [u8], stays: bool, lie: bool) -> Option<()> {
    let said = array::<REPLY_LEN>(reply, 0).filter(|_| reply.len() == REPLY_LEN)?;
    let kind = match ticket.get(7)? {
        0xb1 => 0,
        0xb4 => 1,
        _ => 2,
    };
    let (key, slot) = (
        array(ticket, 70)?,
        (number(ticket, 14)?, number(ticket, 18)?),
    );
    let request = Request::new(kind, slot, (OURS, NONCE), stays, &[0; PAYLOAD], &key);
    let (instance, payload) = match lie {
        true => (array(&said, 16)?, array(&said, 32)?),
        false => (array(ticket, 54)?, array(ticket, 86)?),
    };
    let proved = Reply::granted(instance, said[11] & 1 != 0, &payload, &key, &request);
    reply.copy_from_slice(proved.as_bytes());
    Some(())
}

/// Splits an input into the choice of descriptors, the ticket (of the length that it states), and
/// the reply.
fn split(input: &[u8]) -> Option<([u8; 2], &[u8], &[u8])> {
    let (which, rest) = input.split_first_chunk()?;
    let total = usize::from(u16::from_le_bytes(array(rest, 10)?));
    let (ticket, reply) = rest.split_at(total.min(rest.len()));
    Some((*which, ticket, reply))
}

/// The fuzz target for a server, to which clients send requests. The input is: whether one more
/// connection may stay (one byte), and the request.
pub struct Server {
    table: Mutex<Slots<PublishedService>>,
}

/// The services that the server has, and one that it had before: kind, slot, generation and key.
const SERVED: [(u8, u32, u32, Id); 4] = [
    (0, 0, 2, [1; 16]),
    (1, 1, 1, [2; 16]),
    (2, 2, 1, [3; 16]),
    // This service was taken back.
    (0, 3, 1, [4; 16]),
];

struct Nobody;

impl Service for Nobody {
    fn accept(&self, _: &service::Client<'_>) -> Result<Grant, Refusal> {
        Err(Refusal::BUSY)
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Server {
    /// Returns a server with some services.
    #[expect(clippy::new_without_default, reason = "as the client")]
    pub fn new() -> Server {
        let entry = |kind| PublishedService {
            kind,
            service: Weak::<Nobody>::new(),
        };
        let mut slots = Slots::default();
        assert_eq!(slots.insert([0; 16], entry(0)), Some((0, 1)));
        slots.remove(0);
        for (kind, slot, generation, key) in SERVED {
            assert_eq!(slots.insert(key, entry(kind)), Some((slot, generation)));
        }
        slots.remove(3);
        Server {
            table: Mutex::new(slots),
        }
    }

    /// Runs one input, which is a request that a server gets.
    pub fn take(&self, input: &[u8]) {
        let Some((&capacity, message)) = input.split_first() else {
            return;
        };
        let capacity = capacity & 1 != 0;
        match judge(&self.table, message, capacity) {
            Verdict::Silence => {}
            Verdict::Refuse(refusal) => {
                let reply = Reply::refused(refusal);
                assert_eq!(Reply::parse(reply.as_bytes()), Ok(reply));
            }
            Verdict::Admit(request, key, _) => {
                let slot = (request.slot.get(), request.generation.get());
                let (ids, stays) = ((request.instance, request.nonce), request.stays);
                let right = Request::new(request.kind, slot, ids, stays, &request.payload, &key);
                assert_eq!(right.as_bytes(), message, "it was not proved");
                assert!(capacity || !stays);
                let served = (request.kind, slot.0, slot.1, key);
                assert!(SERVED[..3].contains(&served), "{served:?}");
            }
        }
    }

    /// Makes the proof of an input valid if `choice` has the bit for it.
    pub fn repair(input: &mut [u8], choice: u32) {
        if let (Some((_, message)), true) = (input.split_first_mut(), choice & 1 != 0) {
            ask(message, choice & 2 != 0);
        }
    }

    /// Returns inputs that honest clients send.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        for (kind, slot, generation, key) in SERVED {
            for stays in [false, true] {
                let ids = (INSTANCE, NONCE);
                let request =
                    Request::new(kind, (slot, generation), ids, stays, &[0; PAYLOAD], &key);
                seeds.push([&[slot as u8 & 1][..], request.as_bytes()].concat());
            }
        }
        seeds
    }
}

/// Makes the proof of a message with a request's length valid. With `right` the message first names
/// a service that exists.
fn ask(message: &mut [u8], right: bool) -> Option<()> {
    let said = array::<REQUEST_LEN>(message, 0).filter(|_| message.len() == REQUEST_LEN)?;
    let mut asked = (said[10], number(&said, 12)?, number(&said, 16)?);
    let (kind, slot, generation, key) = SERVED[asked.1 as usize % SERVED.len()];
    if right {
        asked = (kind, slot, generation);
    }
    let ids = (array(&said, 36)?, array(&said, 20)?);
    let (stays, payload) = (said[11] & 1 != 0, array(&said, 52)?);
    let request = Request::new(asked.0, (asked.1, asked.2), ids, stays, &payload, &key);
    message.copy_from_slice(request.as_bytes());
    Some(())
}
