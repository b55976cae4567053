//! The exchange of two sides as plain state: what each of them makes of what it hears, and may say
//! then. It has no socket, clock or lock: `connector` and `incoming` drive it.

use std::fmt;
use std::mem::replace;

use super::wire::{CANNOT_CONNECT, Message, Offer, Wrong};

/// Why an exchange is over without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over<'a> {
    /// The peer says why.
    Refused(&'a str),
    Wrong(Wrong),
    /// A message, and not the one that is due.
    Unexpected,
    /// It was over before.
    Already,
}

impl fmt::Display for Over<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Refused(reason) => write!(f, "the peer refuses: {reason}"),
            Over::Wrong(wrong) => wrong.fmt(f),
            Over::Unexpected => f.write_str("what the peer says is not due now"),
            Over::Already => f.write_str("the exchange is over"),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Message<'_>, Over<'_>> {
    match Message::parse(bytes) {
        Ok(Message::Refusal(reason)) => Err(Over::Refused(reason)),
        Ok(message) => Ok(message),
        Err(wrong) => Err(Over::Wrong(wrong)),
    }
}

/// The side that connects. Its hello is said. `again`: it was said a second time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Connecting {
    Asks {
        again: bool,
    },
    /// It was welcome, and dials.
    Dials {
        again: bool,
    },
    Over,
}

impl Default for Connecting {
    fn default() -> Connecting {
        Connecting::Asks { again: false }
    }
}

impl Connecting {
    /// Hears the answer to its hello, and returns whom to dial.
    pub(super) fn hear<'a>(&mut self, bytes: &'a [u8]) -> Result<Offer<'a>, Over<'a>> {
        match (replace(self, Connecting::Over), parse(bytes)?) {
            (Connecting::Asks { again }, Message::Welcome(offer)) => {
                *self = Connecting::Dials { again };
                Ok(offer)
            }
            (Connecting::Over, _) => Err(Over::Already),
            _ => Err(Over::Unexpected),
        }
    }

    /// It has dialled. Returns what it says of that.
    pub(super) fn dialled(&mut self, connected: bool) -> Option<Message<'static>> {
        match (replace(self, Connecting::Over), connected) {
            (Connecting::Dials { .. }, true) => Some(Message::Ready),
            (Connecting::Dials { .. }, false) => Some(Message::Refusal(CANNOT_CONNECT)),
            _ => None,
        }
    }

    /// The path carries no packets of this size. Returns whether it may ask for smaller ones, by
    /// another hello: once.
    pub(super) fn asks_again(&mut self) -> bool {
        let may = *self == Connecting::Dials { again: false };
        if may {
            *self = Connecting::Asks { again: true };
        }
        may
    }
}

/// The side that listens.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Listening {
    #[default]
    Hears,
    /// The peer has said what it wants: the application decides.
    Decides,
    /// It is welcome. A stream needs its word and itself: either may be first. `again`: it has said
    /// hello a second time.
    Waits {
        ready: bool,
        came: bool,
        again: bool,
    },
    /// It has said hello a second time: its first connection is nothing any more.
    DecidesAgain,
    Over,
}

impl Listening {
    /// Hears a hello, and returns it.
    pub(super) fn asked<'a>(&mut self, bytes: &'a [u8]) -> Result<Offer<'a>, Over<'a>> {
        match (replace(self, Listening::Over), parse(bytes)?) {
            (Listening::Hears, Message::Hello(offer)) => {
                *self = Listening::Decides;
                Ok(offer)
            }
            (Listening::Over, _) => Err(Over::Already),
            _ => Err(Over::Unexpected),
        }
    }

    /// Says that the peer is welcome, with this offer.
    pub(super) fn welcome<'a>(&mut self, offer: Offer<'a>) -> Option<Message<'a>> {
        match replace(self, Listening::Over) {
            before @ (Listening::Decides | Listening::DecidesAgain) => {
                *self = Listening::Waits {
                    ready: false,
                    came: false,
                    again: before == Listening::DecidesAgain,
                };
                Some(Message::Welcome(offer))
            }
            _ => None,
        }
    }

    /// Hears whether the peer is connected. Returns its other offer if it is not, and asks for
    /// smaller packets.
    pub(super) fn hear<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Offer<'a>>, Over<'a>> {
        match (replace(self, Listening::Over), parse(bytes)?) {
            (
                Listening::Waits {
                    ready: false,
                    came,
                    again,
                },
                Message::Ready,
            ) => {
                *self = Listening::Waits {
                    ready: true,
                    came,
                    again,
                };
                Ok(None)
            }
            (
                Listening::Waits {
                    ready: false,
                    again: false,
                    ..
                },
                Message::Hello(offer),
            ) => {
                *self = Listening::DecidesAgain;
                Ok(Some(offer))
            }
            (Listening::Over, _) => Err(Over::Already),
            _ => Err(Over::Unexpected),
        }
    }

    /// The peer has come: its first frame is here.
    pub(super) fn came(&mut self) {
        if let Listening::Waits { came, .. } = self {
            *came = true;
        }
    }

    /// Whether there is a stream.
    pub(super) fn is_done(&self) -> bool {
        matches!(
            self,
            Listening::Waits {
                ready: true,
                came: true,
                ..
            }
        )
    }

    /// Refuses the peer, for this reason. A peer is told once that it is.
    pub(super) fn refuse<'a>(&mut self, reason: &'a str) -> Option<Message<'a>> {
        match replace(self, Listening::Over) {
            Listening::Hears | Listening::Over => None,
            _ => Some(Message::Refusal(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stream::wire::FRAME_MIN;

    const OFFER: Offer<'static> = Offer {
        frame: FRAME_MIN,
        credits: 3,
        flags: 0,
        blob: b"blob",
        data: b"data",
    };

    /// What a peer may say: each message, whole or cut, and nonsense.
    fn said() -> impl Strategy<Value = Vec<u8>> {
        let messages = [
            Message::Hello(OFFER),
            Message::Welcome(OFFER),
            Message::Ready,
            Message::Refusal("no"),
        ];
        let message = prop::sample::select(messages.map(|message| message.bytes()).to_vec());
        let cut = (message.clone(), any::<prop::sample::Index>())
            .prop_map(|(bytes, at)| bytes[..at.index(bytes.len())].to_vec());
        prop_oneof![
            4 => message,
            1 => cut,
            1 => prop::collection::vec(any::<u8>(), 0..40),
        ]
    }

    #[derive(Clone, Debug)]
    enum Event {
        Asked(Vec<u8>),
        Welcome,
        Heard(Vec<u8>),
        Came,
        Refuse,
    }

    /// What a listener knows of its peer.
    #[derive(Default)]
    struct Known {
        asked: bool,
        welcome: bool,
        ready: bool,
        came: bool,
        refused: usize,
        again: usize,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            said().prop_map(Event::Asked),
            said().prop_map(Event::Heard),
            Just(Event::Welcome),
            Just(Event::Came),
            Just(Event::Refuse),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Whatever a peer says and whenever: there is a stream only for one that asked, was
        /// welcome, said that it is connected and came, in this order but for the last two.
        #[test]
        fn a_listener_has_a_stream_for_those_that_came_alone(
            events in prop::collection::vec(event(), 0..12),
        ) {
            let (mut side, mut it) = (Listening::default(), Known::default());
            for event in &events {
                match event {
                    Event::Asked(bytes) => it.asked |= side.asked(bytes).is_ok(),
                    Event::Welcome => it.welcome |= side.welcome(OFFER).is_some(),
                    Event::Heard(bytes) => match side.hear(bytes) {
                        Ok(None) => it.ready = true,
                        // What it was welcome for, and came to, is over.
                        Ok(Some(_)) => {
                            (it.welcome, it.came) = (false, false);
                            it.again += 1;
                        }
                        Err(_) => {}
                    },
                    Event::Came => {
                        it.came |= it.welcome;
                        side.came();
                    }
                    Event::Refuse => it.refused += usize::from(side.refuse("no").is_some()),
                }
                let steps = [it.asked, it.welcome, it.ready];
                prop_assert!(steps.is_sorted_by(|first, then| first >= then), "{steps:?}");
                prop_assert!(!side.is_done() || it.ready && it.came && it.refused == 0);
                prop_assert!(it.refused <= 1 && it.again <= 1);
            }
        }

        #[test]
        fn a_connector_dials_whoever_welcomes_it_and_nobody_twice(
            answers in prop::collection::vec(said(), 0..4),
            connected in any::<bool>(),
        ) {
            let mut side = Connecting::default();
            let mut offers = 0;
            for answer in &answers {
                if let Ok(offer) = side.hear(answer) {
                    prop_assert_eq!(Message::parse(answer), Ok(Message::Welcome(offer)));
                    offers += 1;
                }
            }
            let is_welcome = |answer: &Vec<u8>| {
                matches!(Message::parse(answer), Ok(Message::Welcome(_)))
            };
            let first = answers.first().is_some_and(is_welcome);
            prop_assert_eq!(offers, usize::from(first));
            let says = side.dialled(connected);
            prop_assert_eq!(says.is_some(), first && answers.len() == 1);
            prop_assert_eq!(side.dialled(true), None);
        }
    }

    #[test]
    fn an_exchange_that_goes_well() {
        let (mut connector, mut listener) = (Connecting::default(), Listening::default());
        assert_eq!(listener.asked(&Message::Hello(OFFER).bytes()), Ok(OFFER));
        let welcome = listener.welcome(OFFER).unwrap().bytes();
        assert_eq!(connector.hear(&welcome), Ok(OFFER));
        let ready = connector.dialled(true).unwrap().bytes();
        assert_eq!(listener.hear(&ready), Ok(None));
        assert!(!listener.is_done());
        listener.came();
        assert!(listener.is_done());
    }

    #[test]
    fn a_connector_asks_again_once_and_a_listener_hears_it() {
        let (mut connector, mut listener) = (Connecting::default(), Listening::default());
        assert!(!connector.asks_again(), "nobody has welcomed it");
        let hello = Message::Hello(OFFER).bytes();
        assert_eq!(listener.asked(&hello), Ok(OFFER));
        let welcome = listener.welcome(OFFER).unwrap().bytes();
        assert_eq!(connector.hear(&welcome), Ok(OFFER));
        listener.came();
        assert!(connector.asks_again());
        assert_eq!(listener.hear(&hello), Ok(Some(OFFER)));
        let welcome = listener.welcome(OFFER).unwrap().bytes();
        assert_eq!(connector.hear(&welcome), Ok(OFFER));
        assert!(!connector.asks_again(), "it has asked again before");
        let ready = connector.dialled(true).unwrap().bytes();
        assert_eq!(listener.hear(&ready), Ok(None));
        assert!(!listener.is_done(), "who has come is the first one");
        listener.came();
        assert!(listener.is_done());
    }

    #[test]
    fn a_listener_hears_no_third_hello() {
        let mut listener = Listening::default();
        let hello = Message::Hello(OFFER).bytes();
        listener.asked(&hello).unwrap();
        listener.welcome(OFFER).unwrap();
        listener.hear(&hello).unwrap();
        listener.welcome(OFFER).unwrap();
        assert_eq!(listener.hear(&hello), Err(Over::Unexpected));
        assert_eq!(listener.welcome(OFFER), None);
    }
}
