//! The DPU's half of a remote copy: fetches by DMA the text that `dma_copy_host` exported, and
//! prints it.
//! `TOKIO_DOCA_SOFT=dpu dma_copy_dpu [-p PCI] [-d EXPORT_DESC] [-b BUFFER_INFO] [--find TEXT]`, the
//! flags of DOCA's sample.
//!
//! With `--find` it scans all of the host's memory for TEXT, a piece at a time, as the receiver of
//! the DMA guide does (chapter 6).
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio_doca::{
    Device, Dma, Mmap, WorkQ,
    mem::{BufInventory, RemoteMmap},
};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

struct Args {
    pci: String,
    desc: String,
    info: String,
    find: Option<String>,
}

const USAGE: &str = "usage: dma_copy_dpu [-p PCI] [-d EXPORT_DESC] [-b BUFFER_INFO] [--find TEXT]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = Args {
        pci: "03:00.0".into(),
        desc: "/tmp/export_desc.txt".into(),
        info: "/tmp/buffer_info.txt".into(),
        find: None,
    };
    let mut rest = std::env::args().skip(1);
    while let Some(flag) = rest.next() {
        let place = match flag.as_str() {
            "-p" => &mut args.pci,
            "-d" => &mut args.desc,
            "-b" => &mut args.info,
            "--find" => args.find.insert(String::new()),
            _ => return usage(),
        };
        match rest.next() {
            Some(value) if !value.is_empty() => *place = value,
            _ => return usage(),
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
    let _ = writeln!(io::stderr(), "{USAGE}");
    ExitCode::from(2)
}

async fn run(args: &Args) -> Result<()> {
    // Works on the DPU, or with a software device if TOKIO_DOCA_SOFT is `dpu`.
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
    if let Some(text) = &args.find {
        return find(&device, &remote, text).await;
    }
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

/// The number of bytes that are copied and scanned at a time.
const PIECE: usize = 1 << 20;

/// Prints where in the host's memory the text is. Copies the memory piece by piece, and searches
/// each piece.
async fn find(device: &Device, remote: &RemoteMmap, text: &str) -> Result<()> {
    let (text, len) = (text.as_bytes(), remote.len());
    // Pieces overlap, so that a text that spans two of them is found.
    let room = (PIECE + text.len()).min(len);
    let mmap = Mmap::builder().device(device).alloc(room)?;
    let here = BufInventory::with_capacity(1).buf(&mmap, ..)?;
    let dma = Dma::builder(device).attach(&WorkQ::builder().build()?)?;
    let mut found = 0;
    for start in (0..len).step_by(PIECE) {
        let piece = remote.buf(start..len.min(start + PIECE + text.len() - 1))?;
        here.reset_data_len()?;
        dma.copy(&piece, &here).await?;
        let data = here.data()?;
        for at in data.windows(text.len()).enumerate() {
            if at.1 == text {
                found += 1;
                let at = start + at.0;
                let mut out = io::stdout();
                writeln!(out, "Found at byte {at} of the host's memory")?;
            }
        }
    }
    if found == 0 {
        let text = String::from_utf8_lossy(text);
        return Err(format!("{text:?} is not in the {len} bytes of the host's memory").into());
    }
    writeln!(io::stdout(), "Host sample can be closed, DMA copy ended")?;
    Ok(())
}
