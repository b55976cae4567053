//! The DPU's half of a file transfer: copies a file out of the host's memory, or into it, by DMA.
//! See `file_transfer_host`.
use std::process::ExitCode;

use tokio::time::timeout;
use tokio_doca::{
    Device, Dma, Mmap, WorkQ,
    channel::Channel,
    device::Representor,
    mem::{BufInventory, RemoteBuf, RemoteMmap},
};

mod file_transfer;
mod flags;
use file_transfer::{LIMIT, Message, Part, Progress, SERVICE, SLOT, SLOTS, hear, say};
use flags::{Flag, Program, Values};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PROGRAM: Program = Program {
    name: "file_transfer_dpu",
    about: "Gets a file from file_transfer_host, or sends one to it: the DPU's half, which copies by DMA.",
    flags: &[
        Flag {
            short: "-f",
            long: "--file",
            value: "FILE",
            default: "",
            help: "received if the host sends one, sent if it wants one",
        },
        Flag {
            short: "-p",
            long: "--pci-addr",
            value: "PCI",
            default: "03:00.0",
            help: "device of the DPU",
        },
        Flag {
            short: "-r",
            long: "--rep-pci",
            value: "PCI",
            default: "0b:00.0",
            help: "function of the host, by its representor",
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
    if values.get("--file").is_empty() {
        return Err("which file? -f FILE".into());
    }
    let device = Device::open(values.get("--pci-addr"))?;
    let representor = Representor::open(&device, values.get("--rep-pci"))?;
    let service = Channel::builder()
        .max_peers(1)
        .listen(&representor, SERVICE)?;
    let channel = service.accept().await?;
    match transfer(values, &device, &channel).await {
        Ok(()) => {
            // Ends the connection once the last message to the host was written.
            channel.disconnect().await;
            Ok(())
        }
        Err(error) => file_transfer::fail(&channel, error.to_string()).await,
    }
}

async fn transfer(values: &Values, device: &Device, channel: &Channel) -> Result<()> {
    let (path, wanted) = (values.get("--file"), values.has("--progress"));
    let local = file_transfer::open(path)?;
    match (hear(channel).await?, local) {
        (Message::Offer { .. }, Some(_)) => Err(format!("{path}: it is there already").into()),
        (Message::Offer { len, blob }, None) => {
            let part = Part::create(path)?;
            let copies = Copies::new(device, &blob).await?;
            say(channel, &Message::Accept { len }).await?;
            let mut progress = Progress::new(len, wanted);
            let empty = async |slot: usize, bytes: &mut [u8]| copies.read(slot, bytes).await;
            let (_, crc) = file_transfer::receive(channel, len, part, &mut progress, empty).await?;
            progress.end("received", "CRC-32C", crc)
        }
        (Message::Want { .. }, None) => Err(format!("{path}: no such file").into()),
        (Message::Want { blob }, Some((mut file, len))) => {
            let copies = Copies::new(device, &blob).await?;
            say(channel, &Message::Accept { len }).await?;
            let mut progress = Progress::new(len, wanted);
            let fill = async |slot: usize, bytes: &[u8]| copies.write(slot, bytes).await;
            let crc = file_transfer::send(channel, &mut file, len, &mut progress, fill).await?;
            progress.end("sent", "CRC-32C", crc)
        }
        (other, _) => Err(format!("{other:?} was not to be said").into()),
    }
}

/// The host's slots, a Buf of the DPU, and the Dma that copies between them.
struct Copies {
    slots: Vec<RemoteBuf>,
    dma: Dma,
    here: tokio_doca::Buf,
}

impl Copies {
    async fn new(device: &Device, blob: &[u8]) -> Result<Copies> {
        let remote = RemoteMmap::from_export(device, blob).timeout(LIMIT).await?;
        let slots = (0..SLOTS).map(|slot| remote.buf(slot * SLOT..(slot + 1) * SLOT));
        let mmap = Mmap::builder().device(device).alloc(SLOT)?;
        Ok(Copies {
            slots: slots.collect::<Result<_, _>>()?,
            dma: Dma::builder(device).attach(&WorkQ::builder().build()?)?,
            here: BufInventory::with_capacity(1).buf(&mmap, ..)?,
        })
    }

    async fn read(&self, slot: usize, bytes: &mut [u8]) -> Result<()> {
        self.here.reset_data_len()?;
        let there = self.slots[slot].slice(..bytes.len())?;
        within(self.dma.copy(there, &self.here)).await?;
        self.here.copy_out(0, bytes)?;
        Ok(())
    }

    async fn write(&self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.here.reset_data_len()?;
        self.here.extend_from_slice(bytes)?;
        within(self.dma.copy(&self.here, &self.slots[slot])).await
    }
}

async fn within(
    copy: impl Future<Output = Result<usize, tokio_doca::error::JobError>>,
) -> Result<()> {
    let late = |_| format!("a copy did not end within {LIMIT:?}");
    timeout(LIMIT, copy).await.map_err(late)??;
    Ok(())
}
