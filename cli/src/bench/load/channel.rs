//! Round trips of messages over a Channel. The service is on a thread of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel as link};
use std::thread;

use tokio_doca::channel::{Channel, ChannelBuilder, Service};
use tokio_doca::device::{DevInfo, RepFilter, Representor};
use tokio_doca::soft::{Soft, View};

use super::worker::runtime;
use super::{Failed, Lanes, Plan, Result};

pub(super) struct Lane {
    channel: Channel,
    message: Vec<u8>,
}

fn builder(depth: usize) -> ChannelBuilder {
    let builder = Channel::builder().max_peers(1);
    builder.send_queue_size(depth).recv_queue_size(depth)
}

pub(super) async fn lanes(plan: &Plan) -> Result<Lanes<Lane>> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("bench {} {number}", std::process::id());
    let (info, depth, service) = (plan.device.info().clone(), plan.depth, name.clone());
    let (ready, heard) = link();
    let other = thread::Builder::new().name("bench-answers".to_owned());
    let other = other.spawn(move || answers(&info, depth, &service, &ready))?;
    let gone = |_| Failed::Said("the service ended early".to_owned());
    heard.recv().map_err(gone)??;
    let channel = builder(depth).connect(&plan.device, &name).await?;
    let lane = |_| Lane {
        channel: channel.clone(),
        message: vec![7; plan.size],
    };
    Ok(Lanes {
        lanes: (0..depth).map(lane).collect(),
        // A Channel needs the runtime in every mode.
        spins: None,
        other: Some(other),
    })
}

impl super::Lane for Lane {
    async fn once(&mut self) -> Result {
        self.channel.send(&self.message).await?;
        self.channel.recv().await?;
        Ok(())
    }
}

/// Listens, reports to `ready` whether that worked, and echoes messages until the client has gone.
fn answers(info: &DevInfo, depth: usize, name: &str, ready: &Sender<Result>) {
    let begun = runtime().and_then(|runtime| {
        let service = runtime.block_on(async { listen(info, depth, name) })?;
        Ok((runtime, service))
    });
    match begun {
        Ok((runtime, service)) => {
            let _ = ready.send(Ok(()));
            // The echo ends, with an error, once the client has gone.
            let _ = runtime.block_on(echo(&service));
        }
        Err(failed) => {
            let _ = ready.send(Err(failed));
        }
    }
}

async fn echo(service: &Service) -> Result {
    let channel = service.accept().await?;
    loop {
        let message = channel.recv().await?;
        channel.send(&message).await?;
    }
}

/// Listens on the DPU's side of the device, through its representor. The software device has such a
/// side as well.
fn listen(info: &DevInfo, depth: usize, name: &str) -> Result<Service> {
    let dpu = Soft::builder().view(View::Dpu).build();
    for port in ["p0", "p1"] {
        let port = dpu.open(port)?;
        let known = port.representors(RepFilter::Net)?;
        if let Some(of) = known.iter().find(|it| it.pci_addr() == info.pci_addr()) {
            let representor = Representor::open_info(&port, of)?;
            return Ok(builder(depth).listen(&representor, name)?);
        }
    }
    let text = "no representor of the software device is of this function".to_owned();
    Err(Failed::Said(text))
}
