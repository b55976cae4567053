//! The figures in Prometheus' text format.

use std::fmt::Write;

use tokio_doca::mem::PoolStats;
use tokio_doca::rdma::RdmaStats;
use tokio_doca::workq::Stats;

/// A figure's name, its description, and its value. Counters end in `_total`; the others are
/// gauges.
type Figure = (&'static str, &'static str, f64);

/// Returns the page, with counters since the start and gauges of the current moment.
pub(crate) fn page(workq: &Stats, rdma: &RdmaStats, pool: &PoolStats) -> String {
    let mut page = String::new();
    let groups = [
        ("workq", of_workq(workq)),
        ("rdma", of_rdma(rdma)),
        ("pool", of_pool(pool)),
    ];
    for (group, figures) in groups {
        for (name, help, value) in figures {
            let kind = match name.ends_with("_total") {
                true => "counter",
                false => "gauge",
            };
            let name = format!("tokio_doca_{group}_{name}");
            let lines = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
            page.write_str(&lines).expect("a String takes all");
        }
    }
    page
}

fn of_workq(it: &Stats) -> Vec<Figure> {
    let count = |count: u64| count as f64;
    let time = it.engine_time.as_secs_f64();
    vec![
        (
            "submitted_total",
            "Jobs that devices accepted.",
            count(it.submitted),
        ),
        (
            "completed_total",
            "Jobs, receives and waits that have completed.",
            count(it.completed),
        ),
        (
            "inline_total",
            "Jobs that completed within the submission.",
            count(it.inline),
        ),
        (
            "received_total",
            "Receives that got a message.",
            count(it.received),
        ),
        (
            "failed_total",
            "Jobs that failed, apart from flushed ones.",
            count(it.failed),
        ),
        (
            "flushed_total",
            "Jobs and receives that were flushed.",
            count(it.flushed),
        ),
        (
            "polls_total",
            "Polls of devices for completions.",
            count(it.polls),
        ),
        (
            "empty_polls_total",
            "Polls that found no completion.",
            count(it.empty_polls),
        ),
        (
            "arms_total",
            "Requests for an event at the next completion.",
            count(it.arms),
        ),
        (
            "wake_ups_total",
            "Events that were handled.",
            count(it.wake_ups),
        ),
        (
            "engine_seconds_total",
            "Time for which engines have worked.",
            time,
        ),
        ("in_flight", "Jobs that devices have.", count(it.in_flight)),
        (
            "unfetched",
            "Results that no task has taken.",
            count(it.unfetched),
        ),
        (
            "waiting",
            "Operations that wait for a slot.",
            count(it.waiting),
        ),
    ]
}

fn of_rdma(it: &RdmaStats) -> Vec<Figure> {
    let count = |count: u64| count as f64;
    vec![
        (
            "connects_total",
            "Changes to the state Connected.",
            count(it.connects),
        ),
        (
            "errors_total",
            "Changes to the state Error.",
            count(it.errors),
        ),
        (
            "receives_posted_total",
            "Receives that were posted.",
            count(it.receives_posted),
        ),
        (
            "receives_in_use",
            "Receives posted, and messages not fetched.",
            count(it.receives_in_use),
        ),
        (
            "receives_dropped",
            "Receives whose future was dropped.",
            count(it.receives_dropped),
        ),
        (
            "receives_waiting",
            "Receives that wait for a place.",
            count(it.receives_waiting),
        ),
    ]
}

fn of_pool(it: &PoolStats) -> Vec<Figure> {
    vec![
        ("free", "Bufs that are free.", it.free as f64),
        (
            "high_water",
            "The most Bufs in use at once.",
            it.high_water as f64,
        ),
        (
            "waiting",
            "Allocations that wait for a Buf.",
            it.waiting as f64,
        ),
    ]
}
