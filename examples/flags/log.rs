//! The output of `-l`: a line on standard error for each event of the crate.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Log {
    most: LevelFilter,
    spans: AtomicU64,
}

struct Line(String);

/// Shows events that are at least as urgent as this number of DOCA's log levels.
pub(super) fn show(level: u8) {
    let most = match level {
        0..30 => return,
        30..40 => LevelFilter::ERROR,
        40..50 => LevelFilter::WARN,
        50..60 => LevelFilter::INFO,
        60..70 => LevelFilter::DEBUG,
        70.. => LevelFilter::TRACE,
    };
    let log = Log {
        most,
        spans: AtomicU64::new(1),
    };
    // If the program has set another subscriber, that one stays in place.
    let _ = tracing::subscriber::set_global_default(log);
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Log {
    fn line(about: &Metadata<'_>, record: impl FnOnce(&mut Line)) {
        let mut line = Line(format!("{:>5} {}:", about.level(), about.target()));
        record(&mut line);
        eprintln!("{}", line.0);
    }
}

impl Subscriber for Log {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.target().starts_with("tokio_doca") && *about.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        Log::line(span.metadata(), |line| {
            let _ = write!(line.0, " {}", span.metadata().name());
            span.record(line);
        });
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        Log::line(event.metadata(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
