//! The DPU's half of a remote copy: fetches by DMA what `dma_copy_host` exported, and prints it.
//! `TOKIO_DOCA_SOFT=dpu dma_copy_dpu [-p PCI] [-d EXPORT_DESC] [-b BUFFER_INFO]`, the flags of DOCA's sample.
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio_doca::{BufInventory, Device, Dma, Mmap, RemoteMmap, WorkQ};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

struct Args {
    pci: String,
    desc: String,
    info: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = Args {
        pci: "03:00.0".into(),
        desc: "/tmp/export_desc.txt".into(),
        info: "/tmp/buffer_info.txt".into(),
    };
    let mut rest = std::env::args().skip(1);
    while let Some(flag) = rest.next() {
        let place = match flag.as_str() {
            "-p" => &mut args.pci,
            "-d" => &mut args.desc,
            "-b" => &mut args.info,
            _ => return usage(),
        };
        match rest.next() {
            Some(value) => *place = value,
            None => return usage(),
        }
    }
    match run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "dma_copy_dpu: {error}");
            ExitCode::from(1)
        }
    }
}

fn usage() -> ExitCode {
    let text = "usage: dma_copy_dpu [-p PCI] [-d EXPORT_DESC] [-b BUFFER_INFO]";
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::from(2)
}

async fn run(args: &Args) -> Result<()> {
    // On the DPU, or where TOKIO_DOCA_SOFT=dpu says so.
    let device = Device::open(&args.pci)?;
    let read = |path: &str| std::fs::read(path).map_err(|error| format!("{path}: {error}"));
    let blob = read(&args.desc)?;
    let info = String::from_utf8(read(&args.info)?)?;
    let numbers: Vec<usize> = info
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{}: {error}", args.info))?;
    let [offset, len] = numbers[..] else {
        return Err(format!("{}: it has an offset and a length", args.info).into());
    };

    let remote = RemoteMmap::from_export(&device, &blob)
        .timeout(Duration::from_secs(2))
        .await?;
    let end = offset.checked_add(len).ok_or("the range has no end")?;
    let there = remote.buf(offset..end)?;
    let mmap = Mmap::builder().device(&device).alloc(len)?;
    let here = BufInventory::with_capacity(1).buf(&mmap, ..)?;
    let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;

    dma.copy(&there, &here).await?;
    let text = String::from_utf8_lossy(&here.data()?).into_owned();
    let mut out = io::stdout();
    writeln!(out, "Remote DMA copy was done Successfully")?;
    writeln!(out, "Memory content: {text}")?;
    writeln!(out, "Host sample can be closed, DMA copy ended")?;
    Ok(())
}
