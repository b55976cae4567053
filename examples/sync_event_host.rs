//! The host's half of a signal there and back: DOCA's sample sync_event_host, and its flags
//! (`sync_event_host -h`).
//!
//! ```text
//! $ cargo run --example sync_event_host -- -d 0b:00.0                                      (one terminal)
//! $ TOKIO_DOCA_SOFT=dpu cargo run --example sync_event_dpu -- -d 03:00.0 -r 0b:00.0        (another one)
//! ```
//!
//! Either half may be started first. `--async` and `--atomic` apply to one half only.
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_doca::{
    Device, ErrorKind,
    channel::Channel,
    sync_event::{Location, SyncEvent},
};

mod flags;
mod sync_event_sample;
use flags::{Program, Values};
use sync_event_sample::{Event, LIMIT, OF_HOST, SERVICE, needed};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PROGRAM: Program = Program {
    name: "sync_event_host",
    about: "Signals a sync event to sync_event_dpu, and waits until that has signaled it back.",
    flags: &OF_HOST,
};

fn main() -> ExitCode {
    PROGRAM.run(|values| tokio::runtime::Runtime::new()?.block_on(run(values)))
}

async fn run(values: &Values) -> Result<()> {
    let mut out = io::stdout();
    let device = Device::open(needed(values, "--dev-pci-addr")?)?;
    let builder = SyncEvent::builder();
    let builder = builder
        .publisher(Location::Cpu(&device))
        .subscriber(Location::Dpu);
    let event = Event::start(values, builder)?;

    writeln!(out, "Connecting to DPU")?;
    let dpu = connect(&device).await?;
    writeln!(out, "Connection to DPU has been established")?;
    dpu.send(&event.export(&device)?).await?;
    writeln!(
        out,
        "Exported DOCA Sync Event has been sent to DPU successfully"
    )?;
    // The DPU's message says that it has imported the event. From now on the end of the DPU is
    // detected.
    dpu.recv().await?;

    writeln!(out, "Signaling sync event for DPU")?;
    event.signal(values, 1).await?;
    writeln!(out, "Waiting for sync event to be signaled from DPU")?;
    event.wait_gt(1).await?;
    writeln!(out, "Done")?;
    Ok(())
}

/// Connects to the DPU's half, which may be started later.
async fn connect(device: &Device) -> Result<Channel> {
    let end = Instant::now() + LIMIT;
    loop {
        match Channel::builder().connect(device, SERVICE).await {
            Err(error) if error.kind() == ErrorKind::ConnectionAborted && Instant::now() < end => {
                sleep(Duration::from_millis(10)).await;
            }
            connected => return Ok(connected?),
        }
    }
}
