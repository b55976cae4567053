//! The exchange of two sides as a state machine: how each side takes a message, and which message
//! it may send next. It has no socket, clock or lock: `connector` and `incoming` drive it.
//! DESIGN.md ("Streams") draws the states.

use std::fmt;
use std::mem::replace;

use super::wire::{CANNOT_CONNECT, Message, Offer, Wrong};

/// Why an exchange has ended without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fail<'a> {
    /// The peer has refused, for this reason.
    Refused(&'a str),
    Wrong(Wrong),
    /// The peer has sent a message that is not due.
    Unexpected,
    /// The exchange had completed before.
    Already,
}

impl fmt::Display for Fail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fail::Refused(reason) => write!(f, "the peer refuses: {reason}"),
            Fail::Wrong(wrong) => wrong.fmt(f),
            Fail::Unexpected => f.write_str("the peer has sent a message that is not due"),
            Fail::Already => f.write_str("the exchange has ended"),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Message<'_>, Fail<'_>> {
    match Message::parse(bytes) {
        Ok(Message::Refusal(reason)) => Err(Fail::Refused(reason)),
        Ok(message) => Ok(message),
        Err(wrong) => Err(Fail::Wrong(wrong)),
    }
}

/// The transport that the last hello of a connector asks for: RDMA, RDMA with small packets, or the
/// connection of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Rdma,
    Again,
    Tcp,
}

/// The side that connects. It has sent its hello.
#[derive(Debug)]
pub(super) struct Connecting {
    /// `may_tcp` is true if this side's hellos permit the stream to continue over the connection of
    /// the exchange; `both_may` if the welcome permits it too.
    may_tcp: bool,
    both_may: bool,
    step: Dial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    Asks(Ask),
    /// The peer has answered with a welcome, and this side dials.
    Dials(Ask),
    Done,
}

impl Connecting {
    /// Returns the state of a connector that has sent its first hello. `has_rdma` is true if that
    /// hello has a blob to connect with.
    pub(super) fn new(may_tcp: bool, has_rdma: bool) -> Connecting {
        let ask = if has_rdma { Ask::Rdma } else { Ask::Tcp };
        Connecting {
            may_tcp,
            both_may: false,
            step: Dial::Asks(ask),
        }
    }

    /// Takes the answer to the hello. Returns the offer with the blob to dial, which is empty if
    /// the stream continues over the connection of the exchange.
    pub(super) fn receive<'a>(&mut self, bytes: &'a [u8]) -> Result<Offer<'a>, Fail<'a>> {
        match (replace(&mut self.step, Dial::Done), parse(bytes)?) {
            (Dial::Asks(ask), Message::Welcome(offer)) => {
                self.both_may = self.may_tcp && offer.may_tcp();
                let ask = match (ask, offer.is_tcp()) {
                    (_, true) if self.both_may => Ask::Tcp,
                    (Ask::Rdma | Ask::Again, false) => ask,
                    _ => return Err(Fail::Unexpected),
                };
                self.step = Dial::Dials(ask);
                Ok(offer)
            }
            (Dial::Done, _) => Err(Fail::Already),
            _ => Err(Fail::Unexpected),
        }
    }

    /// Notes whether dialling has succeeded, and returns the message that tells the peer.
    pub(super) fn dialled(&mut self, connected: bool) -> Option<Message<'static>> {
        match (replace(&mut self.step, Dial::Done), connected) {
            (Dial::Dials(_), true) => Some(Message::Ready),
            (Dial::Dials(_), false) => Some(Message::Refusal(CANNOT_CONNECT)),
            _ => None,
        }
    }

    /// Notes that the path does not carry large packets. Returns true if this side may send another
    /// hello that asks for small packets, which it may do once.
    pub(super) fn asks_again(&mut self) -> bool {
        let may = self.step == Dial::Dials(Ask::Rdma);
        if may {
            self.step = Dial::Asks(Ask::Again);
        }
        may
    }

    /// Returns true if both sides may continue over the connection of the exchange.
    pub(super) fn both_may(&self) -> bool {
        self.both_may
    }

    /// Notes that the sides cannot connect by RDMA, even with small packets. Returns true if this
    /// side may send another hello that asks to continue over the connection of the exchange, which
    /// it may do once, and only if both sides allow it.
    pub(super) fn falls_back(&mut self) -> bool {
        let tried = [
            Dial::Dials(Ask::Rdma),
            Dial::Dials(Ask::Again),
            Dial::Asks(Ask::Again),
        ];
        let may = self.both_may && tried.contains(&self.step);
        if may {
            self.step = Dial::Asks(Ask::Tcp);
        }
        may
    }
}

/// The side that listens.
#[derive(Debug)]
pub(super) struct Listening {
    /// True if this side's welcomes permit the stream to continue over the connection of the
    /// exchange.
    may_tcp: bool,
    step: Listen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listen {
    Hears,
    /// The peer has sent a hello, and the application decides. With `again` this is the peer's
    /// second hello, which gives up the connection of the first; the application has already
    /// accepted the peer.
    Decides {
        asked: Asked,
        again: bool,
    },
    /// This side has sent a welcome. The stream begins once the peer has sent `Ready` and its first
    /// frame has arrived, in either order. With `tcp`, the stream continues over the connection of
    /// the exchange, and `Ready` is enough.
    Waits {
        tcp: bool,
        ready: bool,
        came: bool,
        again: bool,
    },
    Done,
}

/// The content of a hello: `tcp` if it has no blob for RDMA, and `both_may` if both sides allow a
/// stream without RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    tcp: bool,
    both_may: bool,
}

impl Listening {
    pub(super) fn new(may_tcp: bool) -> Listening {
        Listening {
            may_tcp,
            step: Listen::Hears,
        }
    }

    fn decides(&mut self, offer: &Offer<'_>, again: bool) {
        let asked = Asked {
            tcp: offer.is_tcp(),
            both_may: self.may_tcp && offer.may_tcp(),
        };
        self.step = Listen::Decides { asked, again };
    }

    /// Takes a hello, and returns it.
    pub(super) fn asked<'a>(&mut self, bytes: &'a [u8]) -> Result<Offer<'a>, Fail<'a>> {
        match (replace(&mut self.step, Listen::Done), parse(bytes)?) {
            (Listen::Hears, Message::Hello(offer)) => {
                self.decides(&offer, false);
                Ok(offer)
            }
            (Listen::Done, _) => Err(Fail::Already),
            _ => Err(Fail::Unexpected),
        }
    }

    /// Returns the welcome with this offer, or `None` if it is not allowed. RDMA needs a blob of
    /// both sides; the connection of the exchange needs the permission of both sides.
    pub(super) fn welcome<'a>(&mut self, offer: Offer<'a>) -> Option<Message<'a>> {
        let Listen::Decides { asked, again } = self.step else {
            self.step = Listen::Done;
            return None;
        };
        let tcp = offer.is_tcp();
        let may = if tcp { asked.both_may } else { !asked.tcp };
        if !may {
            return None;
        }
        self.step = Listen::Waits {
            tcp,
            ready: false,
            came: tcp,
            again,
        };
        Some(Message::Welcome(offer))
    }

    /// Takes the message that tells whether the peer is connected. If the peer asks instead for
    /// RDMA with small packets, or to continue over the socket of the exchange, this returns its
    /// second hello.
    pub(super) fn receive<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Offer<'a>>, Fail<'a>> {
        let before = replace(&mut self.step, Listen::Done);
        match (before, parse(bytes)?) {
            (Listen::Waits { ready: false, .. }, Message::Ready) => {
                self.step = before;
                if let Listen::Waits { ready, .. } = &mut self.step {
                    *ready = true;
                }
                Ok(None)
            }
            (
                Listen::Waits {
                    tcp: false,
                    ready: false,
                    again,
                    ..
                },
                Message::Hello(offer),
            ) => {
                let may = match offer.is_tcp() {
                    true => self.may_tcp && offer.may_tcp(),
                    false => !again,
                };
                if !may {
                    return Err(Fail::Unexpected);
                }
                self.decides(&offer, true);
                Ok(Some(offer))
            }
            (Listen::Done, _) => Err(Fail::Already),
            _ => Err(Fail::Unexpected),
        }
    }

    /// Notes that the peer's first frame has arrived.
    pub(super) fn came(&mut self) {
        if let Listen::Waits { came, .. } = &mut self.step {
            *came = true;
        }
    }

    /// Returns true if the peer has sent a valid hello, and the exchange has not ended.
    pub(super) fn is_asked(&self) -> bool {
        !matches!(self.step, Listen::Hears | Listen::Done)
    }

    /// Returns true if the stream has begun.
    pub(super) fn is_done(&self) -> bool {
        matches!(
            self.step,
            Listen::Waits {
                ready: true,
                came: true,
                ..
            }
        )
    }

    /// Returns the refusal with this reason. The peer gets at most one refusal, and none at a time
    /// when it might take the refusal for a frame.
    pub(super) fn refuse<'a>(&mut self, reason: &'a str) -> Option<Message<'a>> {
        match replace(&mut self.step, Listen::Done) {
            Listen::Hears | Listen::Done | Listen::Waits { tcp: true, .. } => None,
            _ => Some(Message::Refusal(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stream::wire::{FRAME_MIN, MAY_TCP};

    const OFFER: Offer<'static> = Offer {
        frame: FRAME_MIN,
        credits: 3,
        flags: 0,
        blob: b"blob",
        data: b"data",
    };

    /// An offer that permits to continue over the connection of the exchange.
    const MAY: Offer<'static> = Offer {
        flags: MAY_TCP,
        ..OFFER
    };
    const TCP: Offer<'static> = Offer { blob: b"", ..MAY };

    /// Generates what a peer may send: each message, whole or cut, and garbage.
    fn said() -> impl Strategy<Value = Vec<u8>> {
        let offers = [OFFER, MAY, TCP, Offer { flags: 0, ..TCP }];
        let offers = offers.map(|offer| [Message::Hello(offer), Message::Welcome(offer)]);
        let messages = [
            offers.as_flattened(),
            &[Message::Ready, Message::Refusal("no")],
        ]
        .concat();
        let messages: Vec<_> = messages.iter().map(Message::bytes).collect();
        let message = prop::sample::select(messages);
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
        Welcome(Offer<'static>),
        Heard(Vec<u8>),
        Came,
        Refuse,
    }

    /// What the test knows of a listener's peer.
    #[derive(Default)]
    struct Known {
        asked: bool,
        welcome: bool,
        ready: bool,
        came: bool,
        refused: usize,
        again: usize,
        /// The peer's last hello permits TCP.
        may_tcp: bool,
        /// The peer's last hello offers RDMA.
        has_rdma: bool,
        /// The listener has welcomed that hello without RDMA.
        tcp: bool,
    }

    impl Known {
        fn hears(&mut self, hello: Offer<'_>) {
            (self.may_tcp, self.has_rdma) = (hello.may_tcp(), !hello.is_tcp());
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            said().prop_map(Event::Asked),
            said().prop_map(Event::Heard),
            prop::sample::select(vec![OFFER, TCP]).prop_map(Event::Welcome),
            Just(Event::Came),
            Just(Event::Refuse),
        ]
    }

    proptest! {
        #![proptest_config(crate::stream::cases(4_000))]

        /// Whatever a peer sends and whenever: a stream begins only with a peer that sent a hello,
        /// got a welcome, sent `Ready` and whose first frame came; the last two may be in either
        /// order. A stream without RDMA begins only if both sides permit it.
        #[test]
        fn a_listener_has_a_stream_for_those_that_came_alone(
            events in prop::collection::vec(event(), 0..12),
            may_tcp in any::<bool>(),
        ) {
            let (mut side, mut it) = (Listening::new(may_tcp), Known::default());
            for event in &events {
                match event {
                    Event::Asked(bytes) => {
                        if let Ok(hello) = side.asked(bytes) {
                            it.asked = true;
                            it.hears(hello);
                        }
                    }
                    Event::Welcome(offer) => {
                        if side.welcome(*offer).is_some() {
                            it.welcome = true;
                            it.tcp = offer.is_tcp();
                            let may = if it.tcp { may_tcp && it.may_tcp } else { it.has_rdma };
                            prop_assert!(may);
                            it.came |= it.tcp;
                        }
                    }
                    Event::Heard(bytes) => match side.receive(bytes) {
                        Ok(None) => it.ready = true,
                        // The peer asks again, so the earlier welcome and the earlier first frame
                        // no longer count.
                        Ok(Some(hello)) => {
                            prop_assert!(!it.tcp, "it is agreed");
                            (it.welcome, it.came) = (false, false);
                            it.again += usize::from(!hello.is_tcp());
                            it.hears(hello);
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
            (connected, may_tcp, has_rdma) in any::<(bool, bool, bool)>(),
        ) {
            let mut side = Connecting::new(may_tcp, has_rdma);
            prop_assert!(!side.asks_again() && !side.falls_back(), "no peer has welcomed it");
            let mut offers = 0;
            for answer in &answers {
                if let Ok(offer) = side.receive(answer) {
                    prop_assert_eq!(Message::parse(answer), Ok(Message::Welcome(offer)));
                    offers += 1;
                }
            }
            let is_welcome = |answer: &Vec<u8>| match Message::parse(answer) {
                Ok(Message::Welcome(offer)) if offer.is_tcp() => may_tcp && offer.may_tcp(),
                Ok(Message::Welcome(_)) => has_rdma,
                _ => false,
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
        let (mut connector, mut listener) = (Connecting::new(false, true), Listening::new(false));
        assert_eq!(listener.asked(&Message::Hello(OFFER).bytes()), Ok(OFFER));
        let welcome = listener.welcome(OFFER).unwrap().bytes();
        assert_eq!(connector.receive(&welcome), Ok(OFFER));
        let ready = connector.dialled(true).unwrap().bytes();
        assert_eq!(listener.receive(&ready), Ok(None));
        assert!(!listener.is_done());
        listener.came();
        assert!(listener.is_done());
    }

    #[test]
    fn a_connector_asks_again_once_and_a_listener_hears_it() {
        let (mut connector, mut listener) = (Connecting::new(false, true), Listening::new(false));
        assert!(!connector.asks_again(), "no peer has welcomed it");
        let hello = Message::Hello(OFFER).bytes();
        assert_eq!(listener.asked(&hello), Ok(OFFER));
        let welcome = listener.welcome(OFFER).unwrap().bytes();
        assert_eq!(connector.receive(&welcome), Ok(OFFER));
        listener.came();
        assert!(connector.asks_again());
        assert_eq!(listener.receive(&hello), Ok(Some(OFFER)));
        let welcome = listener.welcome(OFFER).unwrap().bytes();
        assert_eq!(connector.receive(&welcome), Ok(OFFER));
        assert!(!connector.asks_again(), "it has asked again before");
        let ready = connector.dialled(true).unwrap().bytes();
        assert_eq!(listener.receive(&ready), Ok(None));
        assert!(!listener.is_done(), "who has come is the first one");
        listener.came();
        assert!(listener.is_done());
    }

    #[test]
    fn a_listener_hears_no_third_hello() {
        let mut listener = Listening::new(false);
        let hello = Message::Hello(OFFER).bytes();
        listener.asked(&hello).unwrap();
        listener.welcome(OFFER).unwrap();
        listener.receive(&hello).unwrap();
        listener.welcome(OFFER).unwrap();
        assert_eq!(listener.receive(&hello), Err(Fail::Unexpected));
        assert_eq!(listener.welcome(OFFER), None);
    }

    #[test]
    fn two_that_may_go_on_without_rdma_after_a_second_try_that_fails() {
        let (mut connector, mut listener) = (Connecting::new(true, true), Listening::new(true));
        let hellos = [MAY, MAY, TCP].map(|offer| Message::Hello(offer).bytes());
        assert_eq!(listener.asked(&hellos[0]), Ok(MAY));
        for (again, hello) in hellos[1..].iter().enumerate() {
            let welcome = listener.welcome(MAY).unwrap().bytes();
            assert_eq!(connector.receive(&welcome), Ok(MAY));
            let asks = if again == 0 {
                connector.asks_again()
            } else {
                connector.falls_back()
            };
            assert!(asks);
            assert!(listener.receive(hello).unwrap().is_some());
        }
        assert_eq!(listener.welcome(MAY), None, "the peer has no address");
        let welcome = listener.welcome(TCP).unwrap().bytes();
        assert_eq!(connector.receive(&welcome), Ok(TCP));
        assert!(!connector.falls_back(), "it has");
        let ready = connector.dialled(true).unwrap().bytes();
        assert_eq!(listener.receive(&ready), Ok(None));
        assert!(listener.is_done());
    }

    proptest! {
        #![proptest_config(crate::stream::cases(4_000))]

        /// However its attempts fail, a connector sends at most three hellos. Only the last may
        /// have no blob, and only if both sides permit a stream without RDMA.
        #[test]
        fn a_connector_asks_for_less_each_time(
            steps in prop::collection::vec((said(), 0..3_u8), 0..6),
            (may_tcp, has_rdma) in any::<(bool, bool)>(),
        ) {
            let mut side = Connecting::new(may_tcp, has_rdma);
            let (mut again, mut tcp, mut offers) = (0, 0, 0);
            for (answer, then) in &steps {
                if let Ok(offer) = side.receive(answer) {
                    offers += 1;
                    prop_assert!(!offer.is_tcp() || may_tcp && offer.may_tcp());
                    prop_assert!(offer.is_tcp() || has_rdma && tcp == 0);
                }
                match then {
                    0 => again += usize::from(side.asks_again()),
                    1 => {
                        let falls_back = side.falls_back();
                        tcp += usize::from(falls_back);
                        prop_assert!(!falls_back || may_tcp && side.both_may());
                    }
                    _ => {}
                }
                prop_assert!(again <= 1 && tcp <= 1 && offers <= 1 + again + tcp);
            }
        }
    }

    /// A connector, a listener, and a stranger between them that delays, repeats, drops, cuts and
    /// makes up messages. Each side sends what its state permits.
    struct Both {
        connector: Connecting,
        listener: Listening,
        may_tcp: [bool; 2],
        /// The messages on their way to the listener, and to the connector.
        to_listener: Vec<Vec<u8>>,
        to_connector: Vec<Vec<u8>>,
        /// True if the connector has a welcome that it has not dialled yet.
        welcomed: bool,
        hellos: usize,
        welcomes: usize,
        refusals: usize,
        readies: usize,
        heard: bool,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Delivers the message at this index, and keeps it for another delivery if the bool is
        /// true. `MadeUp` delivers an invented one.
        ToListener(prop::sample::Index, bool),
        ToConnector(prop::sample::Index, bool),
        MadeUp(bool, Vec<u8>),
        Cut(bool, prop::sample::Index, prop::sample::Index),
        Dialled(bool),
        AsksAgain,
        FallsBack,
        Comes,
        Refuses,
    }

    fn step() -> impl Strategy<Value = Step> {
        let position = any::<prop::sample::Index>;
        prop_oneof![
            6 => (position(), any::<bool>()).prop_map(|(at, again)| Step::ToListener(at, again)),
            6 => (position(), any::<bool>()).prop_map(|(at, again)| Step::ToConnector(at, again)),
            1 => (any::<bool>(), said()).prop_map(|(to, bytes)| Step::MadeUp(to, bytes)),
            1 => (any::<bool>(), position(), position()).prop_map(|(to, at, cut)| Step::Cut(to, at, cut)),
            3 => any::<bool>().prop_map(Step::Dialled),
            1 => Just(Step::AsksAgain),
            1 => Just(Step::FallsBack),
            2 => Just(Step::Comes),
            1 => Just(Step::Refuses),
        ]
    }

    impl Both {
        fn new(may_tcp: [bool; 2], has_rdma: bool) -> Both {
            let offer = Offer {
                flags: u16::from(may_tcp[0]) * MAY_TCP,
                blob: if has_rdma { OFFER.blob } else { b"" },
                ..OFFER
            };
            Both {
                connector: Connecting::new(may_tcp[0], has_rdma),
                listener: Listening::new(may_tcp[1]),
                may_tcp,
                to_listener: vec![Message::Hello(offer).bytes()],
                to_connector: Vec::new(),
                welcomed: false,
                hellos: 0,
                welcomes: 0,
                refusals: 0,
                readies: 0,
                heard: false,
            }
        }

        /// Acts for the listener: it accepts the peer over RDMA if both sides have that, else over
        /// TCP, or refuses.
        fn listens(&mut self, bytes: &[u8]) {
            let hello = match self.heard {
                false => self.listener.asked(bytes).map(Some),
                true => self.listener.receive(bytes),
            };
            self.heard = true;
            let Ok(Some(hello)) = hello else { return };
            self.hellos += 1;
            let flags = u16::from(self.may_tcp[1]) * MAY_TCP;
            let blob = if hello.is_tcp() { &b""[..] } else { OFFER.blob };
            let offer = Offer {
                flags,
                blob,
                ..OFFER
            };
            match self.listener.welcome(offer) {
                Some(welcome) => {
                    self.welcomes += 1;
                    self.to_connector.push(welcome.bytes());
                }
                None => self.refuses(),
            }
        }

        fn refuses(&mut self) {
            if let Some(refusal) = self.listener.refuse("no") {
                self.refusals += 1;
                self.to_connector.push(refusal.bytes());
            }
        }

        fn connects(&mut self, bytes: &[u8]) {
            self.welcomed = self.connector.receive(bytes).is_ok();
        }

        /// Has the connector send another hello, with a blob or without.
        fn says_hello(&mut self, tcp: bool) {
            let flags = u16::from(self.may_tcp[0]) * MAY_TCP;
            let blob = if tcp { &b""[..] } else { OFFER.blob };
            let hello = Message::Hello(Offer {
                flags,
                blob,
                ..OFFER
            });
            self.to_listener.push(hello.bytes());
            self.welcomed = false;
        }

        fn deliver(&mut self, to_listener: bool, bytes: &[u8]) {
            match to_listener {
                true => self.listens(bytes),
                false => self.connects(bytes),
            }
        }

        fn line(&mut self, to_listener: bool) -> &mut Vec<Vec<u8>> {
            match to_listener {
                true => &mut self.to_listener,
                false => &mut self.to_connector,
            }
        }

        fn takes(&mut self, step: &Step) {
            match step {
                Step::ToListener(at, again) => self.delivers(true, at, *again),
                Step::ToConnector(at, again) => self.delivers(false, at, *again),
                Step::MadeUp(to_listener, bytes) => self.deliver(*to_listener, bytes),
                Step::Cut(to_listener, at, cut) => {
                    let line = self.line(*to_listener);
                    if !line.is_empty() {
                        let mut bytes = line.remove(at.index(line.len()));
                        bytes.truncate(cut.index(bytes.len()));
                        self.deliver(*to_listener, &bytes);
                    }
                }
                Step::Dialled(connected) => {
                    let welcomed = std::mem::take(&mut self.welcomed);
                    if let Some(said) = self.connector.dialled(*connected) {
                        assert!(welcomed, "no peer has welcomed it");
                        self.readies += usize::from(said == Message::Ready);
                        self.to_listener.push(said.bytes());
                    }
                }
                Step::AsksAgain => {
                    if self.connector.asks_again() {
                        self.says_hello(false);
                    }
                }
                Step::FallsBack => {
                    if self.connector.falls_back() {
                        self.says_hello(true);
                    }
                }
                Step::Comes => self.listener.came(),
                Step::Refuses => self.refuses(),
            }
        }

        fn delivers(&mut self, to_listener: bool, at: &prop::sample::Index, again: bool) {
            let line = self.line(to_listener);
            if line.is_empty() {
                return;
            }
            let at = at.index(line.len());
            let bytes = match again {
                true => line[at].clone(),
                false => line.remove(at),
            };
            self.deliver(to_listener, &bytes);
        }
    }

    proptest! {
        #![proptest_config(crate::stream::cases(3_000))]

        /// Whatever becomes of the messages, each side sends a bounded number of them, so that it
        /// ends or waits. A side that has completed sends nothing more.
        #[test]
        fn two_sides_with_a_stranger_between_them_end_or_agree(
            steps in prop::collection::vec(step(), 0..40),
            (may_tcp, has_rdma) in any::<([bool; 2], bool)>(),
        ) {
            let mut both = Both::new(may_tcp, has_rdma);
            for step in &steps {
                let was_done = both.listener.is_done();
                both.takes(step);
                prop_assert!(both.hellos <= 3 && both.welcomes <= both.hellos);
                prop_assert!(both.refusals <= 1 && both.readies <= 1);
                prop_assert!(both.to_listener.len() <= 4 && both.to_connector.len() <= 4);
                prop_assert!(!both.listener.is_done() || both.welcomes > 0);
                // Another message or hello ends what was agreed, and no message restores it.
                prop_assert!(!(was_done && both.listener.is_asked()) || both.listener.is_done());
            }
            // Repeated messages do not revive a side that has ended.
            if !both.listener.is_asked() && both.heard {
                for bytes in [&Message::Hello(OFFER), &Message::Ready].map(Message::bytes) {
                    prop_assert!(both.listener.receive(&bytes).is_err());
                    prop_assert!(both.listener.asked(&bytes).is_err());
                }
                prop_assert_eq!(both.listener.welcome(OFFER), None);
                prop_assert_eq!(both.listener.refuse("no"), None);
                both.listener.came();
                prop_assert!(!both.listener.is_done());
            }
        }
    }

    /// A side stores only a few bytes of an exchange, however long the messages are.
    #[test]
    fn a_side_keeps_no_message() {
        assert!(size_of::<Listening>() <= 8 && size_of::<Connecting>() <= 8);
        assert!(!std::mem::needs_drop::<Listening>() && !std::mem::needs_drop::<Connecting>());
    }

    #[test]
    fn a_side_that_demands_rdma_agrees_to_nothing_else() {
        let mut listener = Listening::new(false);
        assert_eq!(listener.asked(&Message::Hello(TCP).bytes()), Ok(TCP));
        assert_eq!(listener.welcome(TCP), None);
        assert!(listener.refuse("no").is_some(), "it can say so");
        let mut connector = Connecting::new(false, true);
        let welcome = Message::Welcome(TCP).bytes();
        assert_eq!(connector.receive(&welcome), Err(Fail::Unexpected));
        let mut connector = Connecting::new(true, true);
        assert!(connector.receive(&Message::Welcome(OFFER).bytes()).is_ok());
        assert!(!connector.falls_back(), "the listener demands it");
    }
}
