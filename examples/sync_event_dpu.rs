//! The DPU's half of a signal there and back: DOCA's sample sync_event_dpu, and its flags (`sync_event_dpu -h`).
//! [`sync_event_host`](sync_event_host.rs) tells how both are run.
mod sync_event_sample;

use std::process::ExitCode;

use sync_event_sample::{Args, Result, Sample, listen, receive, send};
use tokio_doca::{Device, SyncEvent};

const SAMPLE: Sample = Sample {
    name: "sync_event_dpu",
    about: "Waits until the host has signaled a sync event, and signals it back.",
    on_dpu: true,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    SAMPLE.run(session).await
}

async fn session(args: &Args) -> Result<()> {
    // On the DPU, or where TOKIO_DOCA_SOFT=dpu says so.
    let device = Device::open(&args.device)?;
    let function = args.representor.ok_or("-r is needed")?;
    args.say("Listening to host")?;
    let mut host = listen(function).await?;
    let blob = receive(&mut host).await?;
    args.say("Received blob from host")?;
    let event = args.start_imported(SyncEvent::from_export(&device, &blob).await?)?;
    send(&mut host, b"imported").await?;

    args.say("Waiting for sync event to be signaled from host")?;
    event.wait_gt(0).await?;
    args.say("Signaling sync event for host")?;
    event.signal(2, args.atomic).await?;
    // The host keeps the event until it has seen it.
    args.say("Done")
}
