//! Subscribers to `tracing`: one that runs code of the test's, and one that writes lines.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Calls the function with the level of each event. It hears of no spans.
pub struct OnEvent<F>(F);

impl<F: Fn(Level) + Send + Sync + 'static> OnEvent<F> {
    /// Another subscriber stays. While there is one alone, `tracing` asks that of the thread which
    /// comes to an event first whether anybody wants it, and believes the answer for all threads.
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

/// Writes each event as a line:
/// `WARN tokio_doca::rdma state rdma=1 state="Error"`.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Subscribes for the whole process, which runs this test alone.
    pub fn everywhere() -> Lines {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(lines.clone()).unwrap();
        lines
    }

    /// The lines that have all of these parts.
    pub fn with(&self, parts: &[&str]) -> Vec<String> {
        let written = self.0.lock().unwrap();
        let has = |line: &&String| parts.iter().all(|part| line.contains(part));
        written.iter().filter(has).cloned().collect()
    }

    /// There is one such line, or more.
    #[track_caller]
    pub fn has(&self, parts: &[&str]) {
        let all = || self.0.lock().unwrap().join("\n");
        assert!(!self.with(parts).is_empty(), "no {parts:?} in:\n{}", all());
    }
}

/// What it is about, and its fields.
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
