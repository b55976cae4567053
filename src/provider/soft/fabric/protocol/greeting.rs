//! What guest and host say to each other: one knock and one answer, each one message of a fixed length.
//!
//! As in [`wire`](super::wire) the key never travels. The proof of a knock is a hash over the key and all that stands before it; that of
//! an answer covers the knock as well, so that it is an answer to this one, and by nobody who only took the host's name.
//!
//! ```text
//!   knock:  magic 8, version 2, flags 2, slot 4, generation 4, nonce 16, instance 16, hello 96, proof 32
//!   answer: magic 8, version 2, status 2, errno 4, flags 4, instance 16, hello 96, proof 32
//! ```

use sha2::{Digest, Sha256};

use super::super::layout::{Fields, Reader};
use super::place::Id;
use super::wire::{Bad, KEEP, Proof, Status, VERSION, head, same};

const KNOCK: [u8; 8] = *b"tkdoca\x00\xb5";
const ANSWER: [u8; 8] = *b"tkdoca\x00\xb6";
pub(in super::super) const KNOCK_LEN: usize = 84 + HELLO;
pub(in super::super) const ANSWER_LEN: usize = 68 + HELLO;

/// Bytes of what endpoints say to each other.
pub(in super::super::super) const HELLO: usize = 96;
/// What an endpoint says to another. The fabric carries it, and knows nothing of what is in it.
pub(in super::super::super) type Hello = [u8; HELLO];

/// A guest comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Knock {
    pub(in super::super) slot: u32,
    pub(in super::super) generation: u32,
    pub(in super::super) nonce: Id,
    /// Whether the connection shall stay, since its end is all that the guest can watch.
    pub(in super::super) keep: bool,
    /// Of the guest's fabric, as the guest says.
    pub(in super::super) instance: Id,
    pub(in super::super) hello: Hello,
}

/// A knock as it came, not believed yet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Claim {
    pub(in super::super) knock: Knock,
    proof: Proof,
}

/// How a guest is welcomed. The proof covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Greeting {
    /// Whether the connection has to stay, since its end is all that one of the two can watch.
    pub(in super::super) keep: bool,
    /// Of the host's fabric.
    pub(in super::super) instance: Id,
    pub(in super::super) hello: Hello,
}

/// An answer as it came, not believed yet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Answer {
    pub(in super::super) status: Status,
    pub(in super::super) greeting: Greeting,
    proof: Proof,
}

/// Whether a message is for a host, and not for an exporter of memory.
pub(in super::super) fn is_knock(message: &[u8]) -> bool {
    message.starts_with(&KNOCK)
}

fn proof(of: &[u8], key: &Id, said: [&[u8]; 2]) -> Proof {
    let hash = Sha256::new().chain_update(of).chain_update(key);
    let [first, second] = said;
    hash.chain_update(first)
        .chain_update(second)
        .finalize()
        .into()
}

impl Knock {
    fn said(&self) -> Fields {
        Fields::default()
            .put(&KNOCK)
            .u16(VERSION)
            .u16(if self.keep { KEEP } else { 0 })
            .u32(self.slot)
            .u32(self.generation)
            .put(&self.nonce)
            .put(&self.instance)
            .put(&self.hello)
    }

    fn proof(&self, key: &Id) -> Proof {
        proof(b"tokio-doca knock", key, [self.said().bytes(), &[]])
    }

    pub(in super::super) fn format(&self, key: &Id) -> Vec<u8> {
        self.said().put(&self.proof(key)).done()
    }
}

impl Claim {
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Claim, Bad> {
        Self::fields(head(bytes, KNOCK)?).ok_or(Bad::Malformed)
    }

    fn fields(mut rest: Reader<'_>) -> Option<Claim> {
        let flags = rest.u16()?;
        let knock = Knock {
            slot: rest.u32()?,
            generation: rest.u32()?,
            nonce: rest.array()?,
            keep: flags == KEEP,
            instance: rest.array()?,
            hello: rest.array()?,
        };
        let proof = rest.array()?;
        (flags <= KEEP && rest.is_empty()).then_some(Claim { knock, proof })
    }

    /// Whether it is from one who has the key.
    pub(in super::super) fn is_proved(&self, key: &Id) -> bool {
        same(&self.knock.proof(key), &self.proof)
    }
}

impl Greeting {
    fn said(&self, status: Status) -> Fields {
        status
            .put(Fields::default().put(&ANSWER).u16(VERSION))
            .u32(if self.keep { KEEP.into() } else { 0 })
            .put(&self.instance)
            .put(&self.hello)
    }

    fn proof(&self, key: &Id, knock: &Knock) -> Proof {
        let (asked, said) = (knock.said(), self.said(Status::Granted));
        proof(b"tokio-doca greeting", key, [asked.bytes(), said.bytes()])
    }

    /// The answer to a guest who is welcome.
    pub(in super::super) fn format(&self, key: &Id, knock: &Knock) -> Vec<u8> {
        let proof = self.proof(key, knock);
        self.said(Status::Granted).put(&proof).done()
    }
}

/// The answer to one who is not.
pub(in super::super) fn refusal(status: Status) -> Vec<u8> {
    let none = Greeting {
        keep: false,
        instance: Id::default(),
        hello: [0; HELLO],
    };
    none.said(status).put(&[0; 32]).done()
}

impl Answer {
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Answer, Bad> {
        Self::fields(head(bytes, ANSWER)?).ok_or(Bad::Malformed)
    }

    fn fields(mut rest: Reader<'_>) -> Option<Answer> {
        let status = Status::read(&mut rest)?;
        let flags = rest.u32()?;
        let greeting = Greeting {
            keep: flags == KEEP.into(),
            instance: rest.array()?,
            hello: rest.array()?,
        };
        let proof = rest.array()?;
        (flags <= KEEP.into() && rest.is_empty()).then_some(Answer {
            status,
            greeting,
            proof,
        })
    }

    /// Whether it is from one who has the key, and answers this knock.
    pub(in super::super) fn is_proved(&self, key: &Id, knock: &Knock) -> bool {
        same(&self.greeting.proof(key, knock), &self.proof)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn hello()(bytes in vec(any::<u8>(), HELLO)) -> Hello {
            bytes.try_into().unwrap()
        }
    }

    prop_compose! {
        fn knock()(slot: u32, generation: u32, nonce: Id, keep: bool, instance: Id, hello in hello()) -> Knock {
            Knock { slot, generation, nonce, keep, instance, hello }
        }
    }

    prop_compose! {
        fn greeting()(keep: bool, instance: Id, hello in hello()) -> Greeting {
            Greeting { keep, instance, hello }
        }
    }

    proptest! {
        #[test]
        fn a_knock_is_what_was_sent_and_needs_the_key(knock in knock(), key: Id, other: Id) {
            let bytes = knock.format(&key);
            prop_assert_eq!(bytes.len(), KNOCK_LEN);
            prop_assert!(is_knock(&bytes));
            let claim = Claim::parse(&bytes).unwrap();
            prop_assert_eq!(claim.knock, knock);
            prop_assert!(claim.is_proved(&key));
            prop_assert!(key == other || !claim.is_proved(&other));
        }

        #[test]
        fn a_changed_knock_is_refused_or_not_proved(knock in knock(), key: Id, flip in 1..=255_u8) {
            let bytes = knock.format(&key);
            for len in 0..bytes.len() {
                prop_assert!(Claim::parse(&bytes[..len]).is_err());
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                prop_assert!(Claim::parse(&bytes).map_or(true, |claim| !claim.is_proved(&key)), "byte {}", at);
            }
        }

        #[test]
        fn an_answer_is_what_was_sent_and_answers_one_knock(
            greeting in greeting(), knock in knock(), key: Id, other: Id, another in knock(),
        ) {
            let bytes = greeting.format(&key, &knock);
            prop_assert_eq!(bytes.len(), ANSWER_LEN);
            let answer = Answer::parse(&bytes).unwrap();
            prop_assert_eq!((answer.status, answer.greeting), (Status::Granted, greeting));
            prop_assert!(answer.is_proved(&key, &knock));
            prop_assert!(key == other || !answer.is_proved(&other, &knock));
            for differs in [
                Knock { slot: another.slot, ..knock },
                Knock { generation: another.generation, ..knock },
                Knock { nonce: another.nonce, ..knock },
                Knock { instance: another.instance, ..knock },
                Knock { hello: another.hello, ..knock },
            ] {
                prop_assert!(differs == knock || !answer.is_proved(&key, &differs));
            }
        }

        #[test]
        fn a_changed_answer_is_refused_or_not_proved(
            greeting in greeting(), knock in knock(), key: Id, flip in 1..=255_u8,
        ) {
            let bytes = greeting.format(&key, &knock);
            for len in 0..bytes.len() {
                prop_assert!(Answer::parse(&bytes[..len]).is_err());
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                // What welcomes nobody needs no proof.
                let harmless = |answer: Answer| !answer.is_proved(&key, &knock) || answer.status != Status::Granted;
                prop_assert!(Answer::parse(&bytes).map_or(true, harmless), "byte {}", at);
            }
        }
    }

    #[test]
    fn refusals_say_why_and_no_other_message_is_a_knock() {
        for status in [
            Status::Unknown,
            Status::Version,
            Status::Failed(24),
            Status::Busy,
            Status::Unwanted,
        ] {
            let bytes = refusal(status);
            assert_eq!(bytes.len(), ANSWER_LEN);
            assert_eq!(Answer::parse(&bytes).unwrap().status, status);
            assert!(!is_knock(&bytes) && !is_knock(&super::super::wire::refusal(status)));
        }
    }
}
