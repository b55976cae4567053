//! What the time says of a connection: a message that waits for too long for its receive, and a
//! peer that was not heard of.

use std::time::{Duration, Instant};

use super::super::transport::PeerTimeouts;
use crate::device::{Token, Verb};

/// As long as this at most between two looks: a job that begins is seen by then.
const MOST: Duration = Duration::from_secs(1);
/// As long as this at least between two looks.
pub(super) const LEAST: Duration = Duration::from_millis(5);
/// Bytes that any network moves in a millisecond: a long message may take that much longer than a
/// receive is waited for.
const SLOWEST: usize = 4096;
/// The same of what takes no receive: its time is there to have an end.
const CRAWL: usize = 64;

/// What was seen last.
#[derive(Default)]
pub(in super::super) struct Timeouts {
    front: Option<Token>,
    since: Option<Instant>,
    /// The peer has answered or sent something since the last look.
    pub(super) heard: bool,
    /// Since when a probe of iWARP has waited for its answer, which nobody else gives up.
    probed: Option<Instant>,
}

/// What a look finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// The oldest Job has waited so long, and that is too long.
    pub(super) overdue: Option<Duration>,
    /// Nothing was under way, and nothing came of the peer, for a whole turn.
    pub(super) idle: bool,
    /// A probe has no answer for so long, and that is too long.
    pub(super) silent: Option<Duration>,
    /// When to look again.
    pub(in super::super) again: Duration,
}

impl Timeouts {
    /// A probe was sent, whose limit is kept here.
    pub(super) fn asks(&mut self) {
        self.probed.get_or_insert_with(Instant::now);
    }

    /// Looks at the oldest Job. What takes no receive the transport gives up itself, of a peer that
    /// is silent; one that always asks for another try (RNR NAK) can keep it for ever, and is given
    /// longer than silence takes. An idle peer is asked every `probe`, if that is said.
    pub(super) fn look(
        &mut self,
        now: Instant,
        front: Option<(Token, Verb, usize)>,
        patience: &PeerTimeouts,
        probe: Option<Duration>,
    ) -> Look {
        let token = front.map(|(token, ..)| token);
        let heard = std::mem::take(&mut self.heard);
        if heard {
            self.probed = None;
        }
        if heard && token.is_none() || self.front != token || self.since.is_none() {
            (self.front, self.since) = (token, Some(now));
        }
        let since = |then: Instant| now.saturating_duration_since(then);
        let (waited, probed) = (since(self.since.unwrap_or(now)), self.probed.map(since));
        let silent = probed.filter(|probed| *probed >= patience.probe());
        let mut look = Look {
            overdue: None,
            idle: false,
            silent,
            again: MOST,
        };
        match front {
            Some((_, verb, len)) => {
                let limit;
                (limit, look.again) = patience.of_job(verb, len);
                look.overdue = (waited >= limit).then_some(waited);
            }
            None => {
                let rest = probe.map(|probe| probe.saturating_sub(waited));
                let turned = rest == Some(Duration::ZERO);
                if turned {
                    // It is asked, and the next turn begins.
                    self.since = Some(now);
                }
                look.idle = turned && probed.is_none();
                if probed.is_none() {
                    let again = if turned { probe } else { rest };
                    look.again = again.unwrap_or(MOST).min(MOST);
                }
            }
        }
        if let Some(probed) = probed.filter(|_| silent.is_none()) {
            let rest = patience.probe().saturating_sub(probed);
            look.again = look.again.min(rest.max(LEAST));
        }
        look
    }
}

impl PeerTimeouts {
    /// For how long a probe may have no answer where the transport gives nobody up.
    fn probe(&self) -> Duration {
        2 * self.ack
    }

    /// For how long a Job may wait, and when to look at it again.
    fn of_job(&self, verb: Verb, len: usize) -> (Duration, Duration) {
        // The application may have said longer tries: they end first.
        let tries = match self.ack > self.receive {
            true => 4 * self.ack,
            false => Duration::ZERO,
        };
        let (limit, again, rate) = match takes_receive(verb) {
            true => (tries, (self.receive / 4).clamp(LEAST, MOST), SLOWEST),
            false if self.iwarp => (self.probe(), MOST, CRAWL),
            false => (8 * self.ack, MOST, CRAWL),
        };
        let moved = Duration::from_millis((len / rate) as u64);
        (
            limit.saturating_add(moved).saturating_add(self.receive),
            again,
        )
    }
}

/// Returns true if the peer must have posted a receive for it.
pub(super) fn takes_receive(verb: Verb) -> bool {
    matches!(verb, Verb::Send(_) | Verb::Write(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);
    const PROBE: Option<Duration> = Some(Duration::from_secs(1));
    const PATIENCE: PeerTimeouts = PeerTimeouts {
        ack: Duration::from_millis(250),
        receive: LIMIT,
        iwarp: false,
    };

    #[test]
    fn a_message_is_given_up_when_its_limit_is_over_and_not_before() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let send = |index| Some((Token::new(0, index, 1), Verb::Send(None), 100));
        let mut look = |millis, front| timeouts.look(at(millis), front, &PATIENCE, PROBE);
        assert_eq!(look(0, send(1)).again, LIMIT / 4);
        assert_eq!(look(299, send(1)).overdue, None);
        // Another one: the time begins anew.
        assert_eq!(look(350, send(2)).overdue, None);
        assert_eq!(look(649, send(2)).overdue, None);
        assert_eq!(look(650, send(2)).overdue, Some(LIMIT));
    }

    #[test]
    fn long_messages_have_time_and_others_have_more() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let late = start + Duration::from_secs(1);
        let long = Some((Token::new(0, 1, 1), Verb::Send(None), SLOWEST * 1000));
        timeouts.look(start, long, &PATIENCE, PROBE);
        assert_eq!(timeouts.look(late, long, &PATIENCE, PROBE).overdue, None);
        let read = Some((Token::new(0, 2, 1), Verb::Read, 8));
        timeouts.look(start, read, &PATIENCE, PROBE);
        let look = timeouts.look(late, read, &PATIENCE, PROBE);
        assert_eq!((look.overdue, look.idle), (None, false));
        // Longer than any transport.
        let later = start + LIMIT + 8 * PATIENCE.ack;
        assert!(
            timeouts
                .look(later, read, &PATIENCE, PROBE)
                .overdue
                .is_some()
        );
        // Who waits for ever waits for long messages, too.
        let patient = PeerTimeouts {
            receive: Duration::MAX,
            ..PATIENCE
        };
        assert_eq!(timeouts.look(later, long, &patient, PROBE).overdue, None);
    }

    #[test]
    fn a_message_has_the_time_of_the_transports_tries() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let patience = PeerTimeouts {
            ack: Duration::from_secs(1),
            receive: LIMIT,
            iwarp: false,
        };
        let send = Some((Token::new(0, 1, 1), Verb::Send(None), 100));
        let mut look = |millis| timeouts.look(at(millis), send, &patience, PROBE).overdue;
        assert_eq!([look(0), look(4299)], [None, None]);
        assert!(look(4300).is_some());
    }

    #[test]
    fn who_was_idle_for_a_whole_turn_is_asked_once() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let write = Some((Token::new(0, 1, 1), Verb::Write(None), 8));
        assert!(!timeouts.look(start, write, &PATIENCE, PROBE).idle);
        // Others' turns are looked at in between.
        let mut look = |millis| {
            let look = timeouts.look(
                start + Duration::from_millis(millis),
                None,
                &PATIENCE,
                PROBE,
            );
            (look.idle, look.again.as_millis())
        };
        assert_eq!([look(10), look(510)], [(false, 1000), (false, 500)]);
        assert_eq!([look(1010), look(1015)], [(true, 1000), (false, 995)]);
        assert_eq!(look(2010), (true, 1000));
    }

    #[test]
    fn who_has_just_been_heard_is_not_asked() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let mut look = |millis, heard| {
            timeouts.heard = heard;
            let now = start + Duration::from_millis(millis);
            let look = timeouts.look(now, None, &PATIENCE, PROBE);
            (look.idle, look.again.as_millis())
        };
        assert_eq!([look(0, false), look(1000, true)], [(false, 1000); 2]);
        assert_eq!(
            [look(1500, true), look(2400, false)],
            [(false, 1000), (false, 100)]
        );
        assert_eq!(look(2500, false), (true, 1000));
    }

    #[test]
    fn a_probe_without_an_answer_is_silence_where_the_transport_has_no_limit() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let patience = PeerTimeouts {
            iwarp: true,
            ..PATIENCE
        };
        let at = |millis| start + Duration::from_millis(millis);
        let mut look = |millis, heard, front| {
            timeouts.heard = heard;
            let look = timeouts.look(at(millis), front, &patience, PROBE);
            timeouts.probed = timeouts.probed.or_else(|| look.idle.then(|| at(millis)));
            let silent = look.silent.map(|silent| silent.as_millis());
            (look.idle, silent, look.again.as_millis())
        };
        assert_eq!(look(0, false, None), (false, None, 1000));
        assert_eq!(look(1000, false, None), (true, None, 1000));
        // It is not asked again, until it has answered.
        assert_eq!(look(1100, false, None), (false, None, 400));
        assert_eq!(look(1200, true, None), (false, None, 1000));
        assert_eq!(look(2200, false, None), (true, None, 1000));
        // Jobs that the transport takes meanwhile are no answer.
        let write = |index| Some((Token::new(0, index, 1), Verb::Write(None), 8));
        assert_eq!(look(2400, false, write(1)), (false, None, 300));
        assert_eq!(look(2700, false, write(2)), (false, Some(500), 1000));
        // Of a Job that the transport does not take, too.
        let waited = timeouts.look(at(3499), write(2), &patience, None).overdue;
        assert_eq!(waited, None);
        let waited = timeouts.look(at(3500), write(2), &patience, None).overdue;
        assert_eq!(waited, Some(Duration::from_millis(800)));
    }

    #[test]
    fn an_idle_peer_is_asked_as_often_as_was_said_and_looked_at_once_a_second() {
        let start = Instant::now();
        let looks = |millis: u64, probe: Option<u64>| {
            let mut timeouts = Timeouts::default();
            let probe = probe.map(Duration::from_millis);
            [0, millis].map(|at| {
                let now = start + Duration::from_millis(at);
                let look = timeouts.look(now, None, &PATIENCE, probe);
                (look.idle, look.again.as_millis())
            })
        };
        assert_eq!(looks(20, Some(20)), [(false, 20), (true, 20)]);
        assert_eq!(looks(1500, Some(3000)), [(false, 1000), (false, 1000)]);
        assert_eq!(looks(2100, Some(3000)), [(false, 1000), (false, 900)]);
        assert_eq!(looks(100_000, None), [(false, 1000), (false, 1000)]);
    }
}
