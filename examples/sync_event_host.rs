//! The host's half of a signal there and back: DOCA's sample sync_event_host, and its flags (`sync_event_host -h`).
//!
//! ```text
//! $ cargo run --example sync_event_host -- -d 0b:00.0                                      (one terminal)
//! $ TOKIO_DOCA_SOFT=dpu cargo run --example sync_event_dpu -- -d 03:00.0 -r 0b:00.0        (another one)
//! ```
//!
//! Either may be started first. Each takes `--async` and `--atomic` for itself.
mod sync_event_sample;

use std::process::ExitCode;

use sync_event_sample::{Args, Result, Sample, connect, receive, send};
use tokio_doca::{Device, Location, SyncEvent};

const SAMPLE: Sample = Sample {
    name: "sync_event_host",
    about: "Signals a sync event to the DPU, and waits until the DPU has signaled it back.",
    on_dpu: false,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    SAMPLE.run(session).await
}

async fn session(args: &Args) -> Result<()> {
    let device = Device::open(&args.device)?;
    let function = device
        .info()
        .pci_addr()
        .ok_or("the device has no PCI address")?;
    let builder = SyncEvent::builder()
        .publisher(Location::Cpu(&device))
        .subscriber(Location::Dpu);
    let event = args.start(builder)?;

    args.say("Connecting to DPU")?;
    let mut dpu = connect(function).await?;
    args.say("Connection to DPU has been established")?;
    send(&mut dpu, &event.export(&device)?).await?;
    // It has imported it: what is signaled before would be there all the same, but nobody would hear of its end.
    receive(&mut dpu).await?;
    args.say("Exported DOCA Sync Event has been sent to DPU successfully")?;

    args.say("Signaling sync event for DPU")?;
    event.signal(1, args.atomic).await?;
    args.say("Waiting for sync event to be signaled from DPU")?;
    event.wait_gt(1).await?;
    args.say("Done")
}
