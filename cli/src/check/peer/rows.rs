//! The rows of a check between two hosts.

use std::io;
use std::time::Instant;

use indicatif::ProgressBar;

use super::super::bar;
use super::super::row::{Row, State, words};
use crate::transfer::NoMessage;

/// The way in which a stream is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Exchange,
    Tcp,
    Cm,
}

impl Way {
    fn title(self) -> &'static str {
        match self {
            Way::Exchange => "RDMA, by the exchange",
            Way::Tcp => "TCP, in place of RDMA",
            Way::Cm => "RDMA, by rdma_cm",
        }
    }

    fn subject(self) -> &'static str {
        match self {
            Way::Exchange => "rdma",
            Way::Tcp => "tcp",
            Way::Cm => "rdma_cm",
        }
    }

    /// Returns the number of checks for this way.
    fn checks(self) -> usize {
        match self {
            Way::Tcp => 5,
            _ => 10,
        }
    }
}

/// The result that a passed check has measured, if any.
pub(super) type Found = Option<String>;

/// The reason why a check has not passed, as a sentence.
pub(super) enum Fault {
    /// One of the two sides lacks the feature.
    Lacks(String),
    /// The check failed, but later checks can be made.
    Differs(String),
    /// The check failed, and the stream can no longer be used.
    Lost(String),
}

impl From<NoMessage> for Fault {
    fn from(error: NoMessage) -> Fault {
        let text = error.to_string();
        Fault::Lost(match text.strip_prefix("it ") {
            Some(rest) => format!("the peer {rest}"),
            None => text,
        })
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        NoMessage::Io(error).into()
    }
}

pub(super) struct Rows {
    rows: Vec<Row>,
    /// The current way, and the number of rows before it.
    way: Option<(Way, usize)>,
    /// The number of checks of the ways that have not begun.
    planned: usize,
    bar: ProgressBar,
}

impl Rows {
    pub(super) fn new() -> Rows {
        let planned = Way::Exchange.checks() + Way::Cm.checks();
        Rows {
            rows: Vec::new(),
            way: None,
            planned,
            bar: bar(planned as u64),
        }
    }

    /// Begins a way. Checks that the last way has left out are not made any more.
    pub(super) fn begin(&mut self, way: Way) {
        // TCP comes before the other ways, and its checks are not in `planned`.
        if way != Way::Tcp {
            self.planned -= way.checks();
        }
        self.way = Some((way, self.rows.len()));
        let all = self.rows.len() + way.checks() + self.planned;
        self.bar.set_length(all as u64);
        self.bar.set_position(self.rows.len() as u64);
    }

    /// Shows the name of the check that begins.
    pub(super) fn announce(&self, check: &str) {
        let way = self.way.map_or("", |(way, _)| way.subject());
        self.bar.set_message(format!("{way}: {}", words(check)));
    }

    /// Adds the result of a check. Returns `None` if the stream can no longer be used.
    pub(super) fn row(
        &mut self,
        check: &str,
        begun: Instant,
        made: Result<Found, Fault>,
    ) -> Option<()> {
        let (way, _) = self.way?;
        let is_lost = matches!(made, Err(Fault::Lost(_)));
        let (state, why, found) = match made {
            Ok(found) => (State::Passed, None, found),
            Err(Fault::Lacks(why)) => (State::NotSupported, Some(why), None),
            Err(Fault::Differs(why) | Fault::Lost(why)) => (State::Failed, Some(why), None),
        };
        self.rows.push(Row {
            group: way.title().to_owned(),
            subject: way.subject().to_owned(),
            check: check.to_owned(),
            state,
            why,
            found,
            took: begun.elapsed(),
        });
        self.bar.inc(1);
        (!is_lost).then_some(())
    }

    /// Ends the current way: it has no more checks to make.
    pub(super) fn end(&mut self) {
        self.way = None;
    }

    /// Returns the rows, and the number of checks that were to be made.
    pub(super) fn finish(self) -> (Vec<Row>, usize) {
        self.bar.finish_and_clear();
        let made = |begun: usize| self.rows.len() - begun;
        let current = self
            .way
            .map_or(0, |(way, begun)| way.checks() - made(begun));
        let checks = self.rows.len() + current + self.planned;
        (self.rows, checks)
    }
}
