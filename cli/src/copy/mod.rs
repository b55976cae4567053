//! `tokio-doca copy`: copies a file by a DMA context.
//!
//! The bytes go to a temporary file beside DST, which gets DST's name at the end. So DST is either
//! a complete copy or unchanged.

mod lanes;
mod verify;

use std::io::{Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_blocking;
use tokio_doca::Device;
use tokio_doca::sha::Algorithm;

use crate::failure::{Failure, Result, cannot, name, panicked};
use crate::hash::{Hasher, line};
use crate::open::{self, Source};
use crate::output::{bar, print_bytes};
use crate::signals::Signals;
use crate::target::Target;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to copy
    src: PathBuf,
    /// The copy
    dst: PathBuf,
    /// Read the copy back and compare it with SRC
    #[arg(long)]
    verify: bool,
    /// Print the copy's SHA-256 in the format of sha256sum
    #[arg(long)]
    hash: bool,
    /// The device [default: the first that copies]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Bytes of one DMA job, also as 64K, 1M, 1G [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk: Option<u64>,
    /// Replace DST if it exists
    #[arg(short, long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let device = open::device(args.device.as_deref())?;
    let chunk = chunk(args.chunk, &device)?;
    let src = open::source("copy", &args.src)?;
    let runtime = open::runtime()?;
    let result = runtime.block_on(async {
        // Signals are caught first, so that none leaves the temporary file behind.
        let mut signals = Signals::new().map_err(cannot("catch", "signals".as_ref()))?;
        let target = Target::create(&args.dst, &src.meta, args.force)?;
        tokio::select! {
            done = copy(args, &device, chunk, src, target) => done,
            () = signals.recv() => {
                let dst = name(&args.dst);
                Err(Failure::Failed(format!("interrupted: {dst} is what it was before")))
            }
        }
    });
    // A thread may be in a long read or write, for which there is no need to wait.
    runtime.shutdown_background();
    match result? {
        Some(line) => print_bytes(&line),
        None => Ok(()),
    }
}

/// Copies the file. Returns the line with its SHA-256 if `--hash` asks for it.
async fn copy(
    args: &Args,
    device: &Device,
    chunk: usize,
    src: Source,
    target: Target,
) -> Result<Option<Vec<u8>>> {
    let size = src.meta.size();
    let begun = Instant::now();
    let bar = bar(size, "copying");
    lanes::copy(device, chunk, (&args.src, &src.file), &target, size, &bar).await?;
    bar.finish_and_clear();
    let took = begun.elapsed();
    let (file, dst) = (Arc::clone(&target.file), args.dst.clone());
    // A full disk may be reported only at this point.
    let synced = spawn_blocking(move || file.sync_all()).await;
    synced.map_err(panicked)?.map_err(cannot("write", &dst))?;
    if args.verify {
        let bar = crate::output::bar(size, "verifying");
        let (a, b) = (Arc::clone(&src.file), Arc::clone(&target.file));
        let names = (args.src.clone(), args.dst.clone());
        let shown = bar.clone();
        let equal = spawn_blocking(move || verify::equal((&names.0, &a), (&names.1, &b), &shown));
        let equal = equal.await.map_err(panicked)?;
        bar.finish_and_clear();
        equal?;
    }
    let mut sum = None;
    if args.hash {
        let read = || {
            let mut file = target.file.try_clone()?;
            file.rewind()?;
            Ok(file)
        };
        let file = read().map_err(cannot("read", &dst))?;
        let hasher = Hasher::new(device, Algorithm::Sha256)?;
        sum = Some(line(&hasher.sum(Box::new(file), &dst).await?, &dst));
    }
    target.publish()?;
    let verified = if args.verify { ", verified" } else { "" };
    let rate = size as f64 / 1e6 / took.as_secs_f64();
    let device = device.info().name();
    let text = format!("copied {size} bytes by {device} in {took:.1?}, {rate:.0} MB/s{verified}");
    let _ = writeln!(anstream::stderr(), "{text}");
    Ok(sum)
}

/// Returns the size of a job in bytes: the given size, or at most 1 MiB. Fails if the given size is
/// too large for the device.
fn chunk(asked: Option<u64>, device: &Device) -> Result<usize> {
    let info = device.info();
    let most = info.caps().dma.as_ref().map_or(0, |dma| dma.max_buf_size);
    let chunk = match asked {
        _ if most == 0 => {
            let text = format!(
                "device {} copies nothing: try another --device",
                info.name()
            );
            return Err(Failure::Failed(text));
        }
        Some(asked) if asked > most => {
            let name = info.name();
            return Err(Failure::Usage(format!(
                "--chunk is {asked} bytes, and device {name} copies {most} at once: say at most {most}"
            )));
        }
        Some(asked) => asked,
        None => most.min(1 << 20),
    };
    let fits = usize::try_from(chunk).map_err(|_| "--chunk does not fit into memory".to_owned());
    Ok(fits?)
}

fn size(text: &str) -> Result<u64, String> {
    open::size(text, MOST).ok_or_else(|| "write 1 to 1G, for example 64K, 1M or 4096".to_owned())
}

/// The maximum chunk size in bytes.
const MOST: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_units() {
        for (text, bytes) in [("1", 1), ("64K", 65536), ("2MiB", 2 << 20), ("1G", MOST)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "K",
            "-1",
            "1.5M",
            "1T",
            "2G",
            "99999999999999999999",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
