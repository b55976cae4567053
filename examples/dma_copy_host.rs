//! The host's half of a remote copy: exports a text to the DPU, and waits until the DPU has fetched
//! it. `dma_copy_host [-p PCI] [-t TEXT] [-d EXPORT_DESC] [-b BUFFER_INFO] [--at BYTE]`, the flags
//! of DOCA's sample. `--at` is the offset of the text in the memory and defaults to 0. The bytes
//! before it are zeros, for `dma_copy_dpu --find` to search through.
//!
//! The program writes two files: the export that `dma_copy_dpu` needs to import the memory, and the
//! range of the memory that holds the text. On one machine:
//!
//! ```text
//! $ cargo run --example dma_copy_host                          (one terminal)
//! $ TOKIO_DOCA_SOFT=dpu cargo run --example dma_copy_dpu       (another one)
//! ```
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use tokio_doca::{
    Device, Mmap,
    mem::{Access, BufInventory},
};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

struct Args {
    pci: String,
    text: String,
    desc: String,
    info: String,
    at: String,
}

const USAGE: &str =
    "usage: dma_copy_host [-p PCI] [-t TEXT] [-d EXPORT_DESC] [-b BUFFER_INFO] [--at BYTE]";

fn main() -> ExitCode {
    let mut args = Args {
        pci: "0b:00.0".into(),
        text: "This is a sample piece of text".into(),
        desc: "/tmp/export_desc.txt".into(),
        info: "/tmp/buffer_info.txt".into(),
        at: "0".into(),
    };
    let mut rest = std::env::args().skip(1);
    while let Some(flag) = rest.next() {
        let place = match flag.as_str() {
            "-p" => &mut args.pci,
            "-t" => &mut args.text,
            "-d" => &mut args.desc,
            "-b" => &mut args.info,
            "--at" => &mut args.at,
            _ => return usage(),
        };
        match rest.next() {
            Some(value) if !value.is_empty() => *place = value,
            _ => return usage(),
        }
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "dma_copy_host: {error}");
            ExitCode::from(1)
        }
    }
}

fn usage() -> ExitCode {
    let _ = writeln!(io::stderr(), "{USAGE}");
    ExitCode::from(2)
}

fn run(args: &Args) -> Result<()> {
    let device = Device::open(&args.pci)?;
    let at: usize = args
        .at
        .parse()
        .map_err(|error| format!("--at {}: {error}", args.at))?;
    let len = at.checked_add(args.text.len()).ok_or("--at is too far")?;
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_ONLY;
    let mmap = Mmap::builder().device(&device).access(access).alloc(len)?;
    let buf = BufInventory::with_capacity(1).buf(&mmap, at..)?;
    buf.extend_from_slice(args.text.as_bytes())?;

    secret(&args.desc, &mmap.export_dpu(&device)?)?;
    secret(&args.info, format!("{at} {}", args.text.len()).as_bytes())?;
    let (desc, info) = (&args.desc, &args.info);
    let mut out = io::stdout();
    writeln!(
        out,
        "Please copy {desc} and {info} to the DPU and run DMA Copy DPU sample before closing\npress Enter to close"
    )?;
    io::stdin().read_line(&mut String::new())?;
    // Dropping `mmap` ends the export: DMA jobs that the DPU starts from now on fail.
    Ok(())
}

/// Writes a file that only its owner can read: the export gives access to the memory.
fn secret(path: &str, bytes: &[u8]) -> Result<()> {
    let name = |error: io::Error| format!("{path}: {error}");
    // Writes to a temporary file first, so that no reader finds an incomplete file.
    let part = format!("{path}.part");
    let _ = std::fs::remove_file(&part);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)
        .map_err(name)?;
    file.write_all(bytes).map_err(name)?;
    std::fs::rename(&part, Path::new(path)).map_err(name)?;
    Ok(())
}
