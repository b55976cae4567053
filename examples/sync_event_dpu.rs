//! The DPU's half of a signal there and back: DOCA's sample sync_event_dpu, and its flags
//! (`sync_event_dpu -h`). `sync_event_host` describes how to run both halves.
use std::io::{self, Write};
use std::process::ExitCode;

use tokio::time::timeout;
use tokio_doca::{Device, channel::Channel, device::Representor, sync_event::SyncEvent};

mod flags;
mod sync_event_sample;
use flags::{Program, Values};
use sync_event_sample::{Event, LIMIT, OF_DPU, SERVICE, needed};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PROGRAM: Program = Program {
    name: "sync_event_dpu",
    about: "Waits until sync_event_host has signaled a sync event, and signals it back.",
    flags: &OF_DPU,
};

fn main() -> ExitCode {
    PROGRAM.run(|values| tokio::runtime::Runtime::new()?.block_on(run(values)))
}

async fn run(values: &Values) -> Result<()> {
    let mut out = io::stdout();
    let device = Device::open(needed(values, "--dev-pci-addr")?)?;
    let representor = Representor::open(&device, needed(values, "--rep-pci-addr")?)?;

    writeln!(out, "Listening to host")?;
    let service = Channel::builder().listen(&representor, SERVICE)?;
    let meet = async {
        let host = service.accept().await?;
        let blob = host.recv().await?;
        Ok::<_, tokio_doca::Error>((host, blob))
    };
    let late = |_| format!("no host has come within {LIMIT:?}");
    let (host, blob) = timeout(LIMIT, meet).await.map_err(late)??;
    writeln!(out, "Received blob from host")?;
    let imported = SyncEvent::from_export(&device, &blob).await?;
    let event = Event::start_imported(values, imported)?;
    host.send(b"imported").await?;

    writeln!(out, "Waiting for sync event to be signaled from host")?;
    event.wait_gt(0).await?;
    writeln!(out, "Signaling sync event for host")?;
    event.signal(values, 2).await?;
    writeln!(out, "Done")?;
    Ok(())
}
