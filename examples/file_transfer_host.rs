//! The host's half of a file transfer: offers a file to the DPU, or has it send one, through memory
//! that it exports.
//!
//! ```text
//! $ TOKIO_DOCA_SOFT=dpu cargo run --example file_transfer_dpu -- -f copy      (one terminal)
//! $ cargo run --example file_transfer_host -- -f Cargo.lock                  (another one)
//! ```
//!
//! If FILE exists, it is sent to the DPU. Otherwise the DPU's file is received, as with DOCA's
//! `dma_copy`. Either side may start first.
use std::process::ExitCode;

use tokio::time::{Duration, Instant, sleep};
use tokio_doca::{
    Device, ErrorKind, Mmap,
    channel::Channel,
    mem::{Access, BufInventory},
};

mod file_transfer;
mod flags;
use file_transfer::{LIMIT, Message, Part, Progress, SERVICE, SLOT, SLOTS, hear, say};
use flags::{Flag, Program, Values};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PROGRAM: Program = Program {
    name: "file_transfer_host",
    about: "Sends a file to file_transfer_dpu, or gets one from it: the host's half, whose memory the DPU copies.",
    flags: &[
        Flag {
            short: "-f",
            long: "--file",
            value: "FILE",
            default: "",
            help: "sent if it is there, received if it is not",
        },
        Flag {
            short: "-p",
            long: "--pci-addr",
            value: "PCI",
            default: "0b:00.0",
            help: "device of the host",
        },
        Flag {
            short: "",
            long: "--progress",
            value: "",
            default: "",
            help: "draws a bar where there is no terminal, too",
        },
    ],
};

fn main() -> ExitCode {
    PROGRAM.run(|values| tokio::runtime::Runtime::new()?.block_on(run(values)))
}

async fn run(values: &Values) -> Result<()> {
    let path = values.get("--file");
    if path.is_empty() {
        return Err("which file? -f FILE".into());
    }
    let device = Device::open(values.get("--pci-addr"))?;
    let file = file_transfer::open(path)?;
    // The DPU may only read a file that is offered to it.
    let dpu_may = match file {
        Some(_) => Access::DPU_READ_ONLY,
        None => Access::DPU_READ_WRITE,
    };
    let builder = Mmap::builder().device(&device);
    let mmap = builder
        .access(Access::LOCAL_READ_WRITE | dpu_may)
        .alloc(SLOT * SLOTS)?;
    let blob = mmap.export_dpu(&device)?;
    let inventory = BufInventory::with_capacity(SLOTS);
    let slot = |slot: usize| inventory.buf_filled(&mmap, slot * SLOT..(slot + 1) * SLOT);
    let slots = (0..SLOTS).map(slot).collect::<Result<Vec<_>, _>>()?;

    let channel = connect(&device).await?;
    let wanted = values.has("--progress");
    let transfer = async {
        match file {
            Some((mut file, len)) => {
                say(&channel, &Message::Offer { len, blob }).await?;
                accepted(&channel).await?;
                let mut progress = Progress::new(len, wanted);
                let fill = async |slot: usize, bytes: &[u8]| Ok(slots[slot].copy_in(0, bytes)?);
                let crc =
                    file_transfer::send(&channel, &mut file, len, &mut progress, fill).await?;
                progress.end("sent", "CRC-32C", crc)
            }
            None => {
                let part = Part::create(path)?;
                say(&channel, &Message::Want { blob }).await?;
                let len = accepted(&channel).await?;
                let mut progress = Progress::new(len, wanted);
                let empty =
                    async |slot: usize, bytes: &mut [u8]| Ok(slots[slot].copy_out(0, bytes)?);
                let (_, crc) =
                    file_transfer::receive(&channel, len, part, &mut progress, empty).await?;
                progress.end("received", "CRC-32C", crc)
            }
        }
    };
    match transfer.await {
        Ok(()) => {
            channel.disconnect().await;
            Ok(())
        }
        Err(error) => file_transfer::fail(&channel, error.to_string()).await,
    }
}

/// Waits for the DPU's half, which may not have started yet.
async fn connect(device: &Device) -> Result<Channel> {
    let end = Instant::now() + LIMIT;
    loop {
        let connect = Channel::builder().connect(device, SERVICE);
        match tokio::time::timeout_at(end, connect).await {
            Ok(Err(error))
                if error.kind() == ErrorKind::ConnectionAborted && Instant::now() < end =>
            {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(connected) => return Ok(connected?),
            Err(_) => {
                return Err(format!("file_transfer_dpu did not accept within {LIMIT:?}").into());
            }
        }
    }
}

async fn accepted(channel: &Channel) -> Result<u64> {
    match hear(channel).await? {
        Message::Accept { len } => Ok(len),
        other => Err(format!("{other:?} was not to be said").into()),
    }
}
