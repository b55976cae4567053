//! A trace for the eye: Chrome's trace format.

use std::fmt::Write as _;

use super::super::plan::Plan;
use super::level::Level;

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

fn spans(level: &Level, path: &str, into: &mut Vec<Span>) {
    let plan: &Plan = &level.graph.0;
    if let Some(trace) = &level.progress.trace {
        into.extend(trace.times().map(|(index, from, to)| Span {
            name: format!("{path}{}", plan.label(index)),
            category: plan.nodes[index as usize].work.name(),
            from,
            to,
        }));
    }
    for &index in &plan.subs {
        if let Some(sub) = level.progress.sub(plan, plan.id(index)) {
            spans(sub, &format!("{path}{}/", plan.label(index)), into);
        }
    }
}

/// The trace as JSON: complete events, each on the first lane that is free.
pub(super) fn json(level: &Level) -> String {
    let mut all = Vec::new();
    spans(level, "", &mut all);
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
