//! Subscribers to `tracing`: one that calls a function of the test, and one that collects lines.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Calls a function with the level of each event. Spans are ignored.
pub struct OnEvent<F>(F);

impl<F: Fn(Level) + Send + Sync + 'static> OnEvent<F> {
    /// Makes a subscriber, and keeps a second one alive. With a single subscriber, `tracing` asks
    /// the subscriber of the thread that first comes to an event whether the event is enabled, and
    /// caches the answer for all threads.
    pub fn new(call: F) -> OnEvent<F> {
        static OTHER: OnceLock<Dispatch> = OnceLock::new();
        OTHER.get_or_init(|| Dispatch::new(OnEvent(|_| {})));
        OnEvent(call)
    }
}

impl<F: Fn(Level) + Send + Sync + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        (self.0)(*event.metadata().level());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Collects each event as a line, for example `WARN tokio_doca::rdma state rdma=1 state="Error"`.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Subscribes for the whole process, which must run only this test.
    pub fn everywhere() -> Lines {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(lines.clone()).unwrap();
        lines
    }

    /// Returns the lines that contain all of these parts.
    pub fn with(&self, parts: &[&str]) -> Vec<String> {
        let written = self.0.lock().unwrap();
        let has = |line: &&String| parts.iter().all(|part| line.contains(part));
        written.iter().filter(has).cloned().collect()
    }

    /// Checks that at least one line contains all of these parts.
    #[track_caller]
    pub fn has(&self, parts: &[&str]) {
        let all = || self.0.lock().unwrap().join("\n");
        assert!(!self.with(parts).is_empty(), "no {parts:?} in:\n{}", all());
    }
}

/// The text of a line: level, target, message and fields.
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio_doca")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let about = event.metadata();
        let mut fields = Fields(format!("{} {}", about.level(), about.target()));
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
