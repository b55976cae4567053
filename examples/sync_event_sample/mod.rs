//! The code that `sync_event_host` and `sync_event_dpu` share: the flags of DOCA's samples, and the
//! two kinds of event.
#![allow(dead_code, unreachable_pub, reason = "each example uses its own part")]

use std::time::Duration;

use tokio::time::timeout;
use tokio_doca::{
    Device, WorkQ,
    sync_event::{BlockingSyncEvent, ImportedSyncEvent, SyncEvent, SyncEventBuilder},
};

use super::Result;
use super::flags::{Flag, Values};

/// The name of the service at which both halves meet.
pub const SERVICE: &str = "sync_event_sample";
/// How long one half waits for the other.
pub const LIMIT: Duration = Duration::from_secs(30);

const fn flag(
    short: &'static str,
    long: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag {
        short,
        long,
        value,
        default,
        help,
    }
}

const DEVICE: Flag = flag(
    "-d",
    "--dev-pci-addr",
    "PCI",
    "",
    "device, which must be said",
);
const ASYNC: Flag = flag(
    "",
    "--async",
    "",
    "",
    "by jobs on a WorkQ, and not by blocking calls",
);
const DEPTH: Flag = flag("", "--qdepth", "N", "10", "depth of that WorkQ");
const ATOMIC: Flag = flag(
    "",
    "--atomic",
    "",
    "",
    "adds to the event, and does not set it",
);

pub const OF_HOST: [Flag; 4] = [DEVICE, ASYNC, DEPTH, ATOMIC];
pub const OF_DPU: [Flag; 5] = [
    DEVICE,
    flag(
        "-r",
        "--rep-pci-addr",
        "PCI",
        "",
        "function of the host, by its representor, which must be said",
    ),
    ASYNC,
    DEPTH,
    ATOMIC,
];

/// Returns the value of a required flag.
pub fn needed<'a>(values: &'a Values, long: &str) -> Result<&'a str> {
    match values.get(long) {
        "" => Err(format!("{long} is needed").into()),
        value => Ok(value),
    }
}

/// A sync event, either asynchronous or blocking.
pub enum Event {
    Async(SyncEvent),
    Blocking(BlockingSyncEvent),
}

fn workq(values: &Values) -> Result<WorkQ> {
    let text = values.get("--qdepth");
    let depth = text
        .parse()
        .map_err(|error| format!("--qdepth {text}: {error}"))?;
    Ok(WorkQ::builder().depth(depth).build()?)
}

impl Event {
    /// Starts an event of the kind that the flags select.
    pub fn start(values: &Values, builder: SyncEventBuilder<'_>) -> Result<Event> {
        Ok(match values.has("--async") {
            true => Event::Async(builder.attach(&workq(values)?)?),
            false => Event::Blocking(builder.start()?),
        })
    }

    pub fn start_imported(values: &Values, imported: ImportedSyncEvent) -> Result<Event> {
        Ok(match values.has("--async") {
            true => Event::Async(imported.attach(&workq(values)?)?),
            false => Event::Blocking(imported.start()?),
        })
    }

    pub fn export(&self, device: &Device) -> Result<Vec<u8>> {
        Ok(match self {
            Event::Async(event) => event.export_dpu(device)?,
            Event::Blocking(event) => event.export_dpu(device)?,
        })
    }

    /// Raises the value of the event by one, to `value`.
    pub async fn signal(&self, values: &Values, value: u64) -> Result<()> {
        match (self, values.has("--atomic")) {
            (Event::Async(event), true) => drop(event.add(1).await?),
            (Event::Async(event), false) => event.set(value).await?,
            (Event::Blocking(event), true) => drop(event.add(1)?),
            (Event::Blocking(event), false) => event.set(value)?,
        }
        Ok(())
    }

    /// Waits until the event is greater than `value`. Fails if the peer ends meanwhile.
    pub async fn wait_gt(&self, value: u64) -> Result<()> {
        match self {
            Event::Async(event) => {
                let late = |_| format!("the event was not signaled within {LIMIT:?}");
                timeout(LIMIT, event.wait_gt(value)).await.map_err(late)??;
            }
            Event::Blocking(event) => drop(event.wait_gt_yield(value, u64::MAX)?),
        }
        Ok(())
    }
}
