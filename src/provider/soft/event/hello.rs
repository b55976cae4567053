//! What the two sides of a sync event say to each other when they meet: in a blob, in an importer's question, and in the owner's
//! answer.

use super::super::fabric::{HELLO, Hello};
use super::words::PAGE;

/// Tells a sync event from an endpoint.
const EVENT: u64 = u64::from_le_bytes(*b"tkdocaev");

/// What a blob says of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Card {
    /// Of the device that exported it.
    pub(in super::super) port: u8,
}

/// Where the counter lies in memory of the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where that begins in its memfd, and its length.
    pub(super) from: u64,
    pub(super) len: u64,
    /// Where the counter begins in it.
    pub(super) offset: u64,
}

/// What the owner answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Where the counter is, if not in the page.
    pub(super) place: Option<Place>,
    /// What a side writes when it closes the event, and not 0.
    pub(super) number: u64,
}

fn format<const N: usize>(words: [u64; N]) -> Hello {
    let mut hello = [0; HELLO];
    for (bytes, word) in hello.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    hello
}

/// The words behind the first, which says that it is a sync event.
fn parse<const N: usize>(hello: &Hello) -> Option<[u64; N]> {
    let mut words = hello
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    (words.next() == Some(EVENT)).then(|| std::array::from_fn(|_| words.next().unwrap_or(0)))
}

impl Card {
    pub(in super::super) fn format(&self) -> Hello {
        format([EVENT, self.port.into()])
    }

    /// `None` for what no event says.
    pub(in super::super) fn parse(hello: &Hello) -> Option<Card> {
        let [port] = parse(hello)?;
        let port = u8::try_from(port).ok()?;
        Some(Card { port })
    }
}

/// What an importer says.
pub(super) fn question() -> Hello {
    format([EVENT])
}

pub(super) fn is_question(hello: &Hello) -> bool {
    parse::<0>(hello).is_some()
}

impl Answer {
    pub(super) fn format(&self) -> Hello {
        let number = self.number;
        match self.place {
            None => format([EVENT, 0, number]),
            Some(Place { from, len, offset }) => format([EVENT, 1, number, from, len, offset]),
        }
    }

    /// `None` for what no owner answers: eight aligned bytes lie in the memory.
    pub(super) fn parse(hello: &Hello) -> Option<Answer> {
        let [kind, number, rest @ ..] = parse::<5>(hello)?;
        let place = match (kind, rest) {
            (0, _) => None,
            (1, [from, len, offset]) => {
                let within = offset.is_multiple_of(8)
                    && offset.checked_add(8).is_some_and(|end| end <= len)
                    && from.is_multiple_of(PAGE as u64);
                Some(within.then_some(Place { from, len, offset })?)
            }
            _ => return None,
        };
        (number != 0).then_some(Answer { place, number })
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_bytes_are_no_hello(bytes in vec(any::<u8>(), HELLO)) {
            let hello: Hello = bytes.try_into().unwrap();
            prop_assert!(Card::parse(&hello).is_none() && Answer::parse(&hello).is_none() && !is_question(&hello));
        }

        #[test]
        fn an_answer_within_its_memory_comes_back_and_no_other(kind in 0..3_u64, number: u64, from: u64, len: u64, offset: u64) {
            let (from, offset) = (from & !0xfff, offset & !7);
            let hello = format([EVENT, kind, number, from, len, offset]);
            let within = len >= 8 && offset <= len - 8;
            let place = Place { from, len, offset };
            match Answer::parse(&hello) {
                Some(Answer { place: None, .. }) => prop_assert_eq!(kind, 0),
                Some(answer) => {
                    prop_assert!(kind == 1 && within);
                    prop_assert_eq!(answer, Answer { place: Some(place), number });
                    prop_assert_eq!(answer.format(), hello);
                }
                None => prop_assert!(number == 0 || kind == 2 || kind == 1 && !within),
            }
            prop_assert!(Answer::parse(&format([EVENT, 1, 7, from, len, offset | 4])).is_none());
            prop_assert!(Answer::parse(&format([EVENT, 1, 7, from | 8, len, offset])).is_none());
        }
    }

    #[test]
    fn a_card_comes_back() {
        let card = Card { port: 1 };
        assert_eq!(Card::parse(&card.format()), Some(card));
        assert_eq!(Card::parse(&format([EVENT, 256])), None);
        assert!(is_question(&question()));
    }
}
