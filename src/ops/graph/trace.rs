//! When each node of a run started and ended, for the eye: Chrome's trace format.

use std::fmt::Write as _;
use std::time::Instant;

use super::instance::Inner;
use super::plan::Plan;

/// It did not happen.
const NEVER: u64 = u64::MAX;

/// Start and end of every node, in nanoseconds since the process first traced something.
#[derive(Clone, Debug)]
pub(super) struct Trace(Box<[(u64, u64)]>);

/// One clock for all instances, so that their traces can be laid side by side.
fn now() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Trace {
    pub(super) fn new(nodes: usize) -> Trace {
        Trace(vec![(NEVER, NEVER); nodes].into())
    }

    pub(super) fn reset(&mut self) {
        self.0.fill((NEVER, NEVER));
    }

    pub(super) fn started(&mut self, node: u32) {
        self.0[node as usize].0 = now();
    }

    /// It has not started after all.
    pub(super) fn blocked(&mut self, node: u32) {
        self.0[node as usize].0 = NEVER;
    }

    pub(super) fn ended(&mut self, node: u32) {
        let (from, to) = &mut self.0[node as usize];
        *to = now();
        // One that was refused in line starts and ends at once.
        *from = (*from).min(*to);
    }
}

/// One node that ran: its path of labels, and its times.
struct Span {
    name: String,
    category: &'static str,
    from: u64,
    to: u64,
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(json, "\\u{:04x}", c as u32);
            }
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

fn spans(inner: &Inner, path: &str, into: &mut Vec<Span>) {
    let plan: &Plan = &inner.graph.0;
    if let Some(trace) = &inner.progress.trace {
        for (&(from, to), index) in trace.0.iter().zip(0..) {
            if from != NEVER {
                into.push(Span {
                    name: format!("{path}{}", plan.label(index)),
                    category: plan.nodes[index as usize].work.name(),
                    from,
                    // One that still runs, or was dropped, ends where it was seen last.
                    to: if to == NEVER { from } else { to },
                });
            }
        }
    }
    for &index in &plan.subs {
        if let Some(sub) = inner.progress.sub(plan, plan.id(index)) {
            spans(sub, &format!("{path}{}/", plan.label(index)), into);
        }
    }
}

/// The trace as JSON: complete events, each on the first lane that is free.
pub(super) fn json(inner: &Inner) -> String {
    let mut all = Vec::new();
    spans(inner, "", &mut all);
    all.sort_by_key(|span| (span.from, span.to));
    let mut lanes: Vec<u64> = Vec::new();
    let events: Vec<String> = all
        .iter()
        .map(|span| {
            let free = lanes.iter().position(|&until| until <= span.from);
            let lane = free.unwrap_or(lanes.len());
            match lanes.get_mut(lane) {
                Some(until) => *until = span.to,
                None => lanes.push(span.to),
            }
            format!(
                "{{\"name\":{},\"cat\":{},\"ph\":\"X\",\"pid\":1,\"tid\":{lane},\"ts\":{}.{:03},\"dur\":{}.{:03}}}",
                quoted(&span.name),
                quoted(span.category),
                span.from / 1000,
                span.from % 1000,
                (span.to - span.from) / 1000,
                (span.to - span.from) % 1000,
            )
        })
        .collect();
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[{}]}}",
        events.join(",\n")
    )
}
