//! What the time says of a connection: a message that waits for too long for its receive, and a peer that was not heard of.

use std::time::{Duration, Instant};

use crate::device::{Token, Verb};

/// How often an idle peer is asked whether it is there.
pub(super) const IDLE: Duration = Duration::from_secs(1);
/// As long as this at least between two looks.
const LEAST: Duration = Duration::from_millis(5);
/// Bytes that any network moves in a millisecond: a long message may take that much longer than a receive is waited for.
const SLOWEST: usize = 4096;

/// What was seen last.
#[derive(Default)]
pub(super) struct Watch {
    front: Option<Token>,
    since: Option<Instant>,
}

/// What a look finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// The oldest message has waited so long, and that is too long.
    pub(super) no_receive: Option<Duration>,
    /// Nothing was under way for a whole turn.
    pub(super) idle: bool,
    /// When to look again.
    pub(super) again: Duration,
}

impl Watch {
    /// Looks at the oldest Job. Reads, writes and atomics need no watching: the transport gives up itself.
    pub(super) fn look(
        &mut self,
        now: Instant,
        front: Option<(Token, Verb, usize)>,
        limit: Duration,
    ) -> Look {
        let token = front.map(|(token, ..)| token);
        if self.front != token || self.since.is_none() {
            (self.front, self.since) = (token, Some(now));
        }
        let waited = now.saturating_duration_since(self.since.unwrap_or(now));
        let Some((_, verb, len)) = front else {
            let idle = waited >= IDLE;
            if idle {
                // It is asked, and the next turn begins.
                self.since = Some(now);
            }
            return Look {
                no_receive: None,
                idle,
                again: if idle { IDLE } else { IDLE - waited },
            };
        };
        let patience = limit + Duration::from_millis((len / SLOWEST) as u64);
        let told = matches!(verb, Verb::Send(_) | Verb::Write(Some(_)));
        Look {
            no_receive: (told && waited >= patience).then_some(waited),
            idle: false,
            again: match told {
                true => (limit / 4).clamp(LEAST, IDLE),
                false => IDLE,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    #[test]
    fn a_message_is_given_up_when_its_limit_is_over_and_not_before() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let send = |index| Some((Token::new(0, index, 1), Verb::Send(None), 100));
        let mut look = |millis, front| watch.look(at(millis), front, LIMIT);
        assert_eq!(look(0, send(1)).again, LIMIT / 4);
        assert_eq!(look(299, send(1)).no_receive, None);
        // Another one: the time begins anew.
        assert_eq!(look(350, send(2)).no_receive, None);
        assert_eq!(look(649, send(2)).no_receive, None);
        assert_eq!(look(650, send(2)).no_receive, Some(LIMIT));
    }

    #[test]
    fn long_messages_have_time_and_others_are_not_watched() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let late = start + Duration::from_secs(1);
        let long = Some((Token::new(0, 1, 1), Verb::Send(None), SLOWEST * 1000));
        watch.look(start, long, LIMIT);
        assert_eq!(watch.look(late, long, LIMIT).no_receive, None);
        let read = Some((Token::new(0, 2, 1), Verb::Read, 8));
        watch.look(start, read, LIMIT);
        let look = watch.look(late, read, LIMIT);
        assert_eq!((look.no_receive, look.idle), (None, false));
    }

    #[test]
    fn who_was_idle_for_a_whole_turn_is_asked_once() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let write = Some((Token::new(0, 1, 1), Verb::Write(None), 8));
        assert!(!watch.look(start, write, LIMIT).idle);
        // Others' turns are looked at in between.
        let mut look = |millis| {
            let look = watch.look(start + Duration::from_millis(millis), None, LIMIT);
            (look.idle, look.again.as_millis())
        };
        assert_eq!([look(10), look(510)], [(false, 1000), (false, 500)]);
        assert_eq!([look(1010), look(1015)], [(true, 1000), (false, 995)]);
        assert_eq!(look(2010), (true, 1000));
    }
}
