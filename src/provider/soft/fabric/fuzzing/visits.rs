//! What guests and hosts may send: as [`super`], for endpoints.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use nix::fcntl::SealFlag;

use super::super::client::{ENDPOINT, Invitation};
use super::super::envelope;
use super::super::host::{self, Refused, Seat, Verdict, Welcome, judge};
use super::super::layout::Reader;
use super::super::memory::Arena;
use super::super::protocol::greeting::{
    self, ANSWER_LEN, Answer, Greeting, HELLO, Hello, KNOCK_LEN, Knock, is_knock,
};
use super::super::protocol::wire::Status;
use super::super::protocol::{Address, Contact, Id, Slots};
use crate::process::Guarded;

use super::{EXPORTS, HERE, INSTANCE, KEY, MEMORY, NONCE, memfd, split};

const OURS: Hello = [2; HELLO];
const THEIRS: Hello = [3; HELLO];

fn knock(invitation: &Invitation, keep: bool) -> Knock {
    Knock {
        slot: invitation.slot,
        generation: invitation.generation,
        nonce: NONCE,
        keep,
        instance: [6; 16],
        hello: OURS,
    }
}

/// A guest, to which the host of an invitation answers. The input: which descriptors come (two bytes), the blob, the answer.
pub struct Guest {
    /// What may come along. The first is what an honest host sends.
    sendable: [OwnedFd; 5],
}

impl Guest {
    /// One with descriptors of each kind.
    #[expect(clippy::new_without_default, reason = "it opens files")]
    pub fn new() -> Guest {
        let right = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let memfd = |seals| memfd(false, seals).expect("a memfd");
        Guest {
            sendable: [
                memfd(right),
                memfd(right | SealFlag::F_SEAL_FUTURE_WRITE),
                memfd(right | SealFlag::F_SEAL_WRITE),
                memfd(right - SealFlag::F_SEAL_SHRINK),
                std::fs::File::open("/dev/null").expect("/dev/null").into(),
            ],
        }
    }

    /// Takes an input.
    pub fn take(&self, input: &[u8]) {
        let _ = Invitation::parse(&ENDPOINT, input).map_err(|error| error.to_string());
        let Some((which, bytes, answer)) = split(input) else {
            return;
        };
        let Ok(invitation) = Invitation::parse(&ENDPOINT, bytes).map_err(|error| error.to_string())
        else {
            return;
        };
        assert_eq!(invitation.format(), bytes, "what no host writes is refused");
        assert!(bytes.len() <= 1024);
        assert!(invitation.address.resolve().is_ok());
        let reachable = invitation.host().reachable(&HERE);
        let _ = reachable.map_err(|error| error.to_string());

        let knock = knock(&invitation, which[0] & 0x80 != 0);
        let which = which.map(|byte| usize::from(byte & 0x7f) % (self.sendable.len() + 1));
        let descriptors = which
            .iter()
            .filter_map(|&which| self.sendable.get(which))
            .map(|descriptor| Guarded::new(descriptor.try_clone().expect("a descriptor"), true))
            .collect();
        let greeted = invitation.greeted(&knock, answer, descriptors);
        let Ok((said, memfds)) = greeted.map_err(|error| error.to_string()) else {
            return;
        };
        assert_eq!(said.greeting.instance, invitation.instance);
        let right = said.greeting.format(&invitation.key, &knock);
        assert_eq!(right, answer, "it was not proved");
        for (which, memfd) in which.into_iter().zip(&memfds) {
            let mapped = Arena::received(memfd, MEMORY).map_err(|error| error.to_string());
            assert_eq!(mapped.is_ok(), which == 0, "{which}");
        }
    }

    /// Repairs an input, each part of it if a bit of `choice` says so.
    pub fn repair(input: &mut [u8], choice: u32) {
        let Some((which, blob, _)) = split(input) else {
            return;
        };
        let (keep, len) = (which[0] & 0x80 != 0, blob.len());
        let (blob, answer) = input[2..].split_at_mut(len);
        if choice & 1 != 0 {
            // The name has what the 192 bytes of all other fields leave.
            if let (true, Some(name)) = (choice & 8 != 0, len.checked_sub(192)) {
                blob[15] = name as u8;
            }
            envelope::seal(blob);
        }
        if choice & 2 != 0 {
            prove(blob, answer, keep, choice & 4 != 0);
        }
    }

    /// What honest hosts send.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        let addresses = [
            Address::Abstract(b"tokio-doca-0".to_vec()),
            Address::Path("/run/doca".into()),
        ];
        for (slot, address) in (0..).zip(addresses) {
            let contact = Contact {
                slot,
                generation: 1,
                place: HERE,
                instance: INSTANCE,
                key: KEY,
                address,
            };
            let invitation = Invitation {
                hello: THEIRS,
                contact,
                kind: &ENDPOINT,
            };
            let begin = |keep: bool| {
                let mut seed = vec![u8::from(keep) << 7, 0];
                seed.extend(invitation.format());
                seed
            };
            for keep in [false, true] {
                let greeting = Greeting {
                    keep,
                    instance: INSTANCE,
                    hello: THEIRS,
                };
                let answer = greeting.format(&KEY, &knock(&invitation, keep));
                seeds.push([begin(keep), answer].concat());
            }
            for status in [Status::Unknown, Status::Failed(24), Status::Busy] {
                seeds.push([begin(false), greeting::refusal(status)].concat());
            }
        }
        seeds
    }
}

/// Makes an answer that the guest of this blob believes; of whom it says itself, if it is to lie.
fn prove(blob: &[u8], answer: &mut [u8], keep: bool, lie: bool) -> Option<()> {
    let mut said = Reader(answer.get(16..)?);
    let flags = said.u32()?;
    let instance = said.array()?;
    let hello = said.array()?;
    let knock = Knock {
        slot: Reader(blob.get(16..)?).u32()?,
        generation: Reader(blob.get(20..)?).u32()?,
        nonce: NONCE,
        keep,
        instance: [6; 16],
        hello: OURS,
    };
    let greeting = Greeting {
        keep: flags & 1 != 0,
        instance: match lie {
            true => instance,
            false => Reader(blob.get(152..)?).array()?,
        },
        hello,
    };
    let key: Id = Reader(blob.get(168..)?).array()?;
    let proved = greeting.format(&key, &knock);
    (answer.len() == proved.len()).then(|| answer.copy_from_slice(&proved))
}

/// A host, to which guests knock. The input: whether there is room for a connection (a byte), the knock.
pub struct Host {
    seats: Mutex<Slots<Seat>>,
}

struct Nobody;

impl host::Host for Nobody {
    fn welcome(&self, _: &host::Guest) -> Result<Welcome, Refused> {
        Err(Refused::Busy)
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Host {
    /// One with some endpoints.
    #[expect(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Host {
        let seat = |key| Seat {
            key,
            host: Weak::<Nobody>::new(),
            fabric: Weak::new(),
        };
        let mut seats = Slots::default();
        assert_eq!(seats.insert(seat([0; 16])), Some((0, 1)));
        seats.remove(0);
        for (slot, generation, key) in EXPORTS {
            assert_eq!(seats.insert(seat(key)), Some((slot, generation)));
        }
        seats.remove(3);
        Host {
            seats: Mutex::new(seats),
        }
    }

    /// Takes an input.
    pub fn take(&self, input: &[u8]) {
        let Some((&room, message)) = input.split_first() else {
            return;
        };
        let room = room & 1 != 0;
        match judge(&self.seats, message, room) {
            Verdict::Silence => {}
            Verdict::Refuse(status) => {
                assert!(is_knock(message));
                let answer = greeting::refusal(status);
                assert_eq!(answer.len(), ANSWER_LEN);
                assert_eq!(Answer::parse(&answer).map(|it| it.status), Ok(status));
            }
            Verdict::Admit(knock, seat) => {
                assert!(is_knock(message));
                assert_eq!(knock.format(&seat.key), message, "it was not proved");
                assert!(room || !knock.keep);
                let export = (knock.slot, knock.generation, seat.key);
                assert!(EXPORTS[..3].contains(&export), "{export:?}");
            }
        }
    }

    /// Proves what an input says, if a bit of `choice` says so.
    pub fn repair(input: &mut [u8], choice: u32) {
        let Some((_, message)) = input.split_first_mut() else {
            return;
        };
        let Some(said) = said(message).filter(|_| choice & 1 != 0) else {
            return;
        };
        let (slot, generation, key) = EXPORTS[said.slot as usize % EXPORTS.len()];
        let knock = match choice & 2 != 0 {
            true => Knock {
                slot,
                generation,
                ..said
            },
            false => said,
        };
        message.copy_from_slice(&knock.format(&key));
    }

    /// What honest guests send.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        for (slot, generation, key) in EXPORTS {
            for keep in [false, true] {
                let knock = Knock {
                    slot,
                    generation,
                    nonce: NONCE,
                    keep,
                    instance: INSTANCE,
                    hello: OURS,
                };
                seeds.push([&[slot as u8 & 1][..], &knock.format(&key)].concat());
            }
        }
        seeds
    }
}

/// What a knock says, if it has the length of one.
fn said(message: &[u8]) -> Option<Knock> {
    let mut rest = Reader(message.get(10..KNOCK_LEN)?);
    (message.len() == KNOCK_LEN).then_some(Knock {
        keep: rest.u16()? == 1,
        slot: rest.u32()?,
        generation: rest.u32()?,
        nonce: rest.array()?,
        instance: rest.array()?,
        hello: rest.array()?,
    })
}
