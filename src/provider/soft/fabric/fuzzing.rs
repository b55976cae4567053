//! What a peer may send, as a fuzzer makes it up: bytes in, a decision out, without a socket. Built with `cfg(fuzzing)` only; .ci/fuzz
//! runs it.
//!
//! What is found wrong is a panic. An input is what the peer sends as it is, and `repair` makes right again what no mutation hits:
//! checksums and proofs, which a hostile peer computes as well as anybody. It calls no parser: what those do wrong shall be found when an
//! input is taken, which is then known.

use std::any::Any;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, Weak};

use arrayvec::ArrayVec;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::client::{exporter, granted};
use super::control::{Control, Words};
use super::envelope;
use super::exporter::{Verdict, judge};
use super::layout::Reader;
use super::memory::received;
use super::protocol::wire::{self, ANSWER_LEN, Answer, Grant, REQUEST_LEN, Request, Status};
use super::protocol::{Address, Blob, Contact, DESCRIPTORS, Id, Place, SLOTS};
use super::table::{Entry, Table};
use crate::device::{Access, Audience};
use crate::process::Guarded;

mod visits;

pub use visits::{Guest, Host};

const NONCE: Id = [7; 16];
const INSTANCE: Id = [8; 16];
const KEY: Id = [9; 16];
const HERE: Place = Place {
    boot: [1; 16],
    net: (4, 4_026_531_840),
};

/// Bytes of the exporter's memory.
const MEMORY: usize = 3 * 4096;
/// Where in [`Importer::sendable`] the control page is: what stands before may be mapped, and it as well, as memory to be read.
const CONTROL: usize = 3;

fn memfd(paid: bool, seals: SealFlag) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"fuzzing", flags)?;
    ftruncate(&memfd, MEMORY as i64)?;
    if paid {
        fallocate(&memfd, FallocateFlags::empty(), 0, MEMORY as i64)?;
    }
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(memfd)
}

/// An importer, to which the exporter of a blob answers. The input: which descriptors come (two bytes), the blob, the answer.
pub struct Importer {
    /// What may come along.
    sendable: [OwnedFd; 7],
    _control: Control,
}

impl Importer {
    /// One with descriptors of each kind.
    #[expect(clippy::new_without_default, reason = "it opens files")]
    pub fn new() -> Importer {
        let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let control = Control::new().expect("a control page");
        let page = control.memfd().try_clone_to_owned().expect("a descriptor");
        let memfd = |paid, seals| memfd(paid, seals).expect("a memfd");
        Importer {
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

    /// Takes an input.
    pub fn take(&self, input: &[u8]) {
        let _ = Blob::parse(input).map_err(|error| error.to_string());
        let Some((which, blob, answer)) = split(input) else {
            return;
        };
        let bytes = blob;
        let Ok(blob) = Blob::parse(bytes).map_err(|error| error.to_string()) else {
            return;
        };
        assert_eq!(blob.format(), bytes, "what no exporter writes is refused");
        assert!(blob.address.resolve().is_ok(), "{}", blob.address);
        let _ = exporter(&blob)
            .reachable(&HERE)
            .map_err(|error| error.to_string());

        let which = which.map(|byte| usize::from(byte) % (self.sendable.len() + 1));
        let descriptors: ArrayVec<Guarded, DESCRIPTORS> = which
            .iter()
            .filter_map(|&which| self.sendable.get(which))
            .map(|descriptor| Guarded::new(descriptor.try_clone().expect("a descriptor"), true))
            .collect();
        let count = descriptors.len();
        let granted = granted(&blob, &NONCE, answer, descriptors);
        let Ok(([memory, control], offset)) = granted.map_err(|error| error.to_string()) else {
            return;
        };
        let right = grant(&blob, offset);
        assert_eq!(count, DESCRIPTORS);
        assert_eq!(right.format(&blob.key, &NONCE), answer, "it was not proved");

        let write =
            blob.audience.may_write(blob.access) || blob.audience.may_do_atomics(blob.access);
        let deadline = crate::sync::deadline(std::time::Duration::from_secs(5));
        let mapped = received::map(&memory, offset, blob.len, write, deadline);
        if mapped.map_err(|error| error.to_string()).is_ok() {
            let size = match which[0] {
                CONTROL => 4 * (SLOTS + 1),
                _ => MEMORY,
            };
            assert!(which[0] <= CONTROL, "{which:?}");
            assert!(offset % 4096 == 0 && offset + blob.len <= size as u64);
        }
        if let Ok(words) = Words::received(&control) {
            assert_eq!(which[1], CONTROL);
            let word = words.word(blob.slot).expect("a slot that a blob may have");
            assert_eq!(word.get(), 0);
            assert!(!words.owner().is_marked());
        }
    }

    /// Repairs an input, each part of it if a bit of `choice` says so.
    pub fn repair(input: &mut [u8], choice: u32) {
        let Some((_, blob, _)) = split(input) else {
            return;
        };
        let len = blob.len();
        let (blob, answer) = input[2..].split_at_mut(len);
        if choice & 1 != 0 {
            // The name has what the 112 bytes of all other fields leave.
            if let (true, Some(name)) = (choice & 8 != 0, len.checked_sub(112)) {
                blob[15] = name as u8;
            }
            envelope::seal(blob);
        }
        if choice & 2 != 0 {
            prove(blob, answer, choice & 4 != 0);
        }
    }

    /// What honest exporters send.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        let accesses = [
            (Audience::Dpu, Access::DPU_READ_ONLY),
            (Audience::Dpu, Access::DPU_READ_WRITE),
            (Audience::Rdma, Access::RDMA_READ),
            (Audience::Rdma, Access::RDMA_WRITE | Access::RDMA_ATOMIC),
        ];
        let addresses = [
            Address::Abstract(b"tokio-doca-0".to_vec()),
            Address::Path("/run/doca".into()),
        ];
        let (mut offset, mut which) = (0, 0);
        for (audience, access) in accesses {
            for address in &addresses {
                let blob = Blob {
                    audience,
                    port: 1,
                    access,
                    len: 4096 - which,
                    contact: Contact {
                        slot: which as u32,
                        generation: 1,
                        place: HERE,
                        instance: INSTANCE,
                        key: KEY,
                        address: address.clone(),
                    },
                };
                let mut seed = vec![which as u8, CONTROL as u8];
                seed.extend(blob.format());
                seed.extend(grant(&blob, offset).format(&blob.key, &NONCE));
                seeds.push(seed);
                (offset, which) = ((offset + 4096) % MEMORY as u64, (which + 1) % 7);
            }
        }
        for status in [Status::Unknown, Status::Version, Status::Failed(24)] {
            let mut seed = seeds[0][..seeds[0].len() - ANSWER_LEN].to_vec();
            seed.extend(wire::refusal(status));
            seeds.push(seed);
        }
        seeds
    }
}

fn grant(blob: &Blob, offset: u64) -> Grant {
    Grant {
        access: blob.access.bits(),
        instance: blob.instance,
        offset,
        len: blob.len,
    }
}

/// Makes an answer that the importer of this blob believes; to what it says itself, if it is to lie.
fn prove(blob: &[u8], answer: &mut [u8], lie: bool) -> Option<()> {
    let mut said = Reader(answer.get(16..)?);
    let (access, _) = (said.u32()?, said.u32()?);
    let lies = Grant {
        access,
        instance: said.array()?,
        offset: said.u64()?,
        len: said.u64()?,
    };
    let key = Reader(blob.get(88..)?).array()?;
    let right = Grant {
        access: Reader(&blob[16..]).u32()?,
        instance: Reader(&blob[72..]).array()?,
        offset: lies.offset,
        len: Reader(&blob[32..]).u64()?,
    };
    let proved = if lie { lies } else { right }.format(&key, &NONCE);
    (answer.len() == proved.len()).then(|| answer.copy_from_slice(&proved))
}

/// What a request asks for, if it has the length of one.
fn asked(message: &[u8]) -> Option<Request> {
    let mut rest = Reader(message.get(10..REQUEST_LEN)?);
    (message.len() == REQUEST_LEN).then_some(Request {
        keep: rest.u16()? == 1,
        slot: rest.u32()?,
        generation: rest.u32()?,
        nonce: rest.array()?,
    })
}

/// Which descriptors come, the blob, as long as it says that it is, and the answer.
fn split(input: &[u8]) -> Option<([u8; 2], &[u8], &[u8])> {
    let mut rest = Reader(input);
    let which = rest.array()?;
    let total = rest.0.get(10..12)?;
    let total = u16::from_le_bytes([total[0], total[1]]);
    let blob = rest.slice(rest.0.len().min(total.into()))?;
    Some((which, blob, rest.0))
}

/// An exporter, to which importers send requests. The input: whether there is room for a connection (a byte), the request.
pub struct Exporter {
    table: Mutex<Table>,
    _control: Control,
}

/// What it exports, and has exported before: slot, generation and key.
const EXPORTS: [(u32, u32, Id); 4] = [
    (0, 2, [1; 16]),
    (1, 1, [2; 16]),
    (2, 1, [3; 16]),
    // Taken back.
    (3, 1, [4; 16]),
];

impl Exporter {
    /// One with some exports.
    #[expect(clippy::new_without_default, reason = "it opens files")]
    pub fn new() -> Exporter {
        let control = Control::new().expect("a control page");
        let page = Arc::new(control.memfd().try_clone_to_owned().expect("a descriptor"));
        let owner: Weak<dyn Any + Send + Sync> = Weak::<u32>::new();
        let entry = |key| Entry {
            key,
            memfd: Arc::clone(&page),
            write: false,
            offset: 0,
            len: MEMORY,
            audience: Audience::Dpu,
            access: Access::DPU_READ_ONLY,
            addr: Arc::new(AtomicPtr::default()),
            owner: owner.clone(),
        };
        let mut table = Table::default();
        assert_eq!(table.insert(&control, entry([0; 16])), Some((0, 1)));
        table.remove(&control, 0);
        for (slot, generation, key) in EXPORTS {
            let number = table.insert(&control, entry(key));
            assert_eq!(number, Some((slot, generation)));
        }
        table.remove(&control, 3);
        Exporter {
            table: Mutex::new(table),
            _control: control,
        }
    }

    /// Takes an input.
    pub fn take(&self, input: &[u8]) {
        let Some((&room, message)) = input.split_first() else {
            return;
        };
        let room = room & 1 != 0;
        let answer = match judge(&self.table, message, room) {
            Verdict::Silence => return,
            Verdict::Refuse(status) => {
                let answer = wire::refusal(status);
                assert_eq!(Answer::parse(&answer).map(|it| it.status), Ok(status));
                answer
            }
            Verdict::Grant(request, entry) => {
                assert_eq!(request.format(&entry.key), message, "it was not proved");
                assert!(room || !request.keep);
                let export = (request.slot, request.generation, entry.key);
                assert!(EXPORTS[..3].contains(&export), "{export:?}");
                let grant = Grant {
                    access: entry.access.bits(),
                    instance: INSTANCE,
                    offset: entry.offset,
                    len: entry.len as u64,
                };
                grant.format(&entry.key, &request.nonce)
            }
        };
        assert_eq!(answer.len(), ANSWER_LEN);
    }

    /// Proves what an input asks for, if a bit of `choice` says so.
    pub fn repair(input: &mut [u8], choice: u32) {
        let Some((_, message)) = input.split_first_mut() else {
            return;
        };
        let Some(asked) = asked(message).filter(|_| choice & 1 != 0) else {
            return;
        };
        let (slot, generation, key) = EXPORTS[asked.slot as usize % EXPORTS.len()];
        let request = match choice & 2 != 0 {
            true => Request {
                slot,
                generation,
                ..asked
            },
            false => asked,
        };
        message.copy_from_slice(&request.format(&key));
    }

    /// What honest importers send.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        for (slot, generation, key) in EXPORTS {
            for keep in [false, true] {
                let request = Request {
                    slot,
                    generation,
                    nonce: NONCE,
                    keep,
                };
                seeds.push([&[slot as u8 & 1][..], &request.format(&key)].concat());
            }
        }
        seeds
    }
}
