//! Time limits of a connection: for a message that waits for its receive, and for a peer that is
//! silent.

use std::time::{Duration, Instant};

use super::super::transport::PeerTimeouts;
use crate::device::{Token, Verb};

/// The longest time between two checks. The next check after a job begins comes within this time.
const MOST: Duration = Duration::from_secs(1);
/// The shortest time between two checks.
pub(super) const LEAST: Duration = Duration::from_millis(5);
/// The number of bytes that any network moves in a millisecond. The time limit of a message is
/// longer by its bytes at this rate.
const SLOWEST: usize = 4096;
/// The same rate for operations that take no receive. Their limit only ensures that they end.
const CRAWL: usize = 64;

/// The state that the last check has left.
#[derive(Default)]
pub(in super::super) struct Timeouts {
    front: Option<Token>,
    since: Option<Instant>,
    /// True if the peer has answered or sent something since the last check.
    pub(super) heard: bool,
    /// The time at which a probe was sent on iWARP, if it has no answer yet. The transport does not
    /// limit that wait.
    probed: Option<Instant>,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// How long the oldest Job has waited, if that is too long.
    pub(super) overdue: Option<Duration>,
    /// True if for a whole probe interval no Job was in flight, and nothing came from the peer.
    pub(super) idle: bool,
    /// How long a probe has had no answer, if that is too long.
    pub(super) silent: Option<Duration>,
    /// The time after which to check again.
    pub(in super::super) again: Duration,
}

impl Timeouts {
    /// Starts the time limit of a probe that was sent.
    pub(super) fn asks(&mut self) {
        self.probed.get_or_insert_with(Instant::now);
    }

    /// Checks the oldest Job. The transport itself fails an operation that takes no receive, if the
    /// peer is silent. A peer that always asks for another try (RNR NAK) could keep such an
    /// operation for ever, so that the operation has a limit too, which is longer than the
    /// transport's. An idle peer is probed every `probe`, if that is set.
    pub(super) fn check_oldest(
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
                    // The caller sends a probe, and the next interval begins.
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
    /// Returns how long a probe may stay unanswered if the transport itself sets no limit.
    fn probe(&self) -> Duration {
        2 * self.ack
    }

    /// Returns how long a Job may wait, and the time after which to check it again.
    fn of_job(&self, verb: Verb, len: usize) -> (Duration, Duration) {
        // If the application has set longer tries, the transport's own tries end before this limit.
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

/// Returns true if the operation needs a receive of the peer.
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
        let mut look = |millis, front| timeouts.check_oldest(at(millis), front, &PATIENCE, PROBE);
        assert_eq!(look(0, send(1)).again, LIMIT / 4);
        assert_eq!(look(299, send(1)).overdue, None);
        // Another Job is the oldest, so that the time begins again.
        assert_eq!(look(350, send(2)).overdue, None);
        assert_eq!(look(649, send(2)).overdue, None);
        assert_eq!(look(650, send(2)).overdue, Some(LIMIT));
    }

    #[test]
    fn long_messages_have_time_and_others_have_more() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let late = start + Duration::from_secs(1);
        let long = Some((Token::new(0, 1, 1), Verb::Send(None), SLOWEST * 1000));
        timeouts.check_oldest(start, long, &PATIENCE, PROBE);
        assert_eq!(
            timeouts.check_oldest(late, long, &PATIENCE, PROBE).overdue,
            None
        );
        let read = Some((Token::new(0, 2, 1), Verb::Read, 8));
        timeouts.check_oldest(start, read, &PATIENCE, PROBE);
        let look = timeouts.check_oldest(late, read, &PATIENCE, PROBE);
        assert_eq!((look.overdue, look.idle), (None, false));
        // This is longer than any transport's limit.
        let later = start + LIMIT + 8 * PATIENCE.ack;
        assert!(
            timeouts
                .check_oldest(later, read, &PATIENCE, PROBE)
                .overdue
                .is_some()
        );
        // A side that waits for ever waits for long messages, too.
        let patient = PeerTimeouts {
            receive: Duration::MAX,
            ..PATIENCE
        };
        assert_eq!(
            timeouts.check_oldest(later, long, &patient, PROBE).overdue,
            None
        );
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
        let mut look = |millis| {
            timeouts
                .check_oldest(at(millis), send, &patience, PROBE)
                .overdue
        };
        assert_eq!([look(0), look(4299)], [None, None]);
        assert!(look(4300).is_some());
    }

    #[test]
    fn who_was_idle_for_a_whole_turn_is_asked_once() {
        let (mut timeouts, start) = (Timeouts::default(), Instant::now());
        let write = Some((Token::new(0, 1, 1), Verb::Write(None), 8));
        assert!(!timeouts.check_oldest(start, write, &PATIENCE, PROBE).idle);
        // The limits are also checked between two intervals.
        let mut look = |millis| {
            let look = timeouts.check_oldest(
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
            let look = timeouts.check_oldest(now, None, &PATIENCE, PROBE);
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
            let look = timeouts.check_oldest(at(millis), front, &patience, PROBE);
            timeouts.probed = timeouts.probed.or_else(|| look.idle.then(|| at(millis)));
            let silent = look.silent.map(|silent| silent.as_millis());
            (look.idle, silent, look.again.as_millis())
        };
        assert_eq!(look(0, false, None), (false, None, 1000));
        assert_eq!(look(1000, false, None), (true, None, 1000));
        // The peer is not probed again until it has answered.
        assert_eq!(look(1100, false, None), (false, None, 400));
        assert_eq!(look(1200, true, None), (false, None, 1000));
        assert_eq!(look(2200, false, None), (true, None, 1000));
        // Jobs that the transport takes meanwhile are not answers.
        let write = |index| Some((Token::new(0, index, 1), Verb::Write(None), 8));
        assert_eq!(look(2400, false, write(1)), (false, None, 300));
        assert_eq!(look(2700, false, write(2)), (false, Some(500), 1000));
        // A Job that the transport does not take has the same limit.
        let waited = timeouts
            .check_oldest(at(3499), write(2), &patience, None)
            .overdue;
        assert_eq!(waited, None);
        let waited = timeouts
            .check_oldest(at(3500), write(2), &patience, None)
            .overdue;
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
                let look = timeouts.check_oldest(now, None, &PATIENCE, probe);
                (look.idle, look.again.as_millis())
            })
        };
        assert_eq!(looks(20, Some(20)), [(false, 20), (true, 20)]);
        assert_eq!(looks(1500, Some(3000)), [(false, 1000), (false, 1000)]);
        assert_eq!(looks(2100, Some(3000)), [(false, 1000), (false, 900)]);
        assert_eq!(looks(100_000, None), [(false, 1000), (false, 1000)]);
    }
}
