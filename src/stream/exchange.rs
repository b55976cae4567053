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

/// The side that connects. Its hello is said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Connecting {
    #[default]
    Asks,
    /// It was welcome, and dials.
    Dials,
    Over,
}

impl Connecting {
    /// Hears the answer to its hello, and returns whom to dial.
    pub(super) fn hear<'a>(&mut self, bytes: &'a [u8]) -> Result<Offer<'a>, Over<'a>> {
        match (replace(self, Connecting::Over), parse(bytes)?) {
            (Connecting::Asks, Message::Welcome(offer)) => {
                *self = Connecting::Dials;
                Ok(offer)
            }
            (Connecting::Over, _) => Err(Over::Already),
            _ => Err(Over::Unexpected),
        }
    }

    /// It has dialled. Returns what it says of that.
    pub(super) fn dialled(&mut self, connected: bool) -> Option<Message<'static>> {
        match (replace(self, Connecting::Over), connected) {
            (Connecting::Dials, true) => Some(Message::Ready),
            (Connecting::Dials, false) => Some(Message::Refusal(CANNOT_CONNECT)),
            _ => None,
        }
    }
}

/// The side that listens.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Listening {
    #[default]
    Hears,
    /// The peer has said what it wants: the application decides.
    Decides,
    /// It is welcome. A stream needs its word and itself: either may be first.
    Waits {
        ready: bool,
        came: bool,
    },
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
            Listening::Decides => {
                *self = Listening::Waits {
                    ready: false,
                    came: false,
                };
                Some(Message::Welcome(offer))
            }
            _ => None,
        }
    }

    /// Hears whether the peer is connected.
    pub(super) fn hear<'a>(&mut self, bytes: &'a [u8]) -> Result<(), Over<'a>> {
        match (replace(self, Listening::Over), parse(bytes)?) {
            (Listening::Waits { ready: false, came }, Message::Ready) => {
                *self = Listening::Waits { ready: true, came };
                Ok(())
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
        *self
            == Listening::Waits {
                ready: true,
                came: true,
            }
    }

    /// Refuses the peer, for this reason. A peer is told once that it is.
    pub(super) fn refuse<'a>(&mut self, reason: &'a str) -> Option<Message<'a>> {
        match replace(self, Listening::Over) {
            Listening::Decides | Listening::Waits { .. } => Some(Message::Refusal(reason)),
            Listening::Hears | Listening::Over => None,
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
            let mut side = Listening::default();
            let (mut asked, mut welcome, mut ready, mut came, mut refused) =
                (false, false, false, false, 0);
            for event in &events {
                match event {
                    Event::Asked(bytes) => asked |= side.asked(bytes).is_ok(),
                    Event::Welcome => welcome |= side.welcome(OFFER).is_some(),
                    Event::Heard(bytes) => ready |= side.hear(bytes).is_ok(),
                    Event::Came => {
                        came |= welcome;
                        side.came();
                    }
                    Event::Refuse => refused += usize::from(side.refuse("no").is_some()),
                }
                let steps = [asked, welcome, ready];
                prop_assert!(steps.is_sorted_by(|first, then| first >= then), "{steps:?}");
                prop_assert!(!side.is_done() || ready && came && refused == 0);
                prop_assert!(refused <= 1);
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
        assert_eq!(listener.hear(&ready), Ok(()));
        assert!(!listener.is_done());
        listener.came();
        assert!(listener.is_done());
    }
}
