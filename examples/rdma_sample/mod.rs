//! The code that the RDMA examples share: the flags of DOCA's samples, how the two processes meet,
//! and how they compare their data.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each example uses its own part"
)]

mod args;
mod digest;
mod meeting;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::timeout;
use tokio_doca::{
    Buf, Device, Mmap, Rdma, WorkQ,
    mem::{Access, BufInventory},
};

pub use args::{Args, Flag, Sample};
pub use digest::Digest;
pub use meeting::Meeting;

pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The size in bytes of the memory into which a peer sends or writes, as in DOCA's samples.
pub const ROOM: usize = 4096;

/// The immediate value of DOCA's samples.
pub const IMMEDIATE: u32 = 0xabcd;

/// Parses the arguments and runs `session`. If that fails, prints the reason in one line.
pub async fn run(sample: &Sample, session: impl AsyncFnOnce(&Args) -> Result<()>) -> ExitCode {
    let done = async {
        let Some(args) = Args::parse(sample, std::env::args_os().skip(1))? else {
            return Ok(write!(io::stdout(), "{}", sample.help())?);
        };
        // The peer may be connected and yet never do its part.
        let limit = 2 * args.timeout();
        match timeout(limit, session(&args)).await {
            Ok(done) => done,
            Err(_) => Err(format!("it was not over within {limit:?}").into()),
        }
    };
    match done.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{}: {error}", sample.name);
            ExitCode::from(1)
        }
    }
}

/// Opens the device of `-d`. Defaults to any device.
pub fn device(args: &Args) -> Result<Device> {
    Ok(match args.get("device") {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    })
}

/// Makes an Rdma with the GID index of `-g`. `permissions` says how peers may use memory.
pub fn rdma(args: &Args, device: &Device, permissions: Access, workq: &WorkQ) -> Result<Rdma> {
    // Waits for a peer that is slow to post its receive.
    let rdma = Rdma::builder(device)
        .permissions(permissions)
        .gid_index(args.gid_index())
        .rnr_timeout(args.timeout())
        .connect_timeout(args.timeout().min(Duration::from_secs(5)))
        .attach(workq)?;
    Ok(rdma)
}

/// Allocates an Mmap, and an empty Buf over all of it.
pub fn room(device: &Device, access: Access, len: usize) -> Result<(Mmap, Buf)> {
    let mmap = Mmap::builder().device(device).access(access).alloc(len)?;
    let buf = BufInventory::with_capacity(1).buf(&mmap, ..)?;
    Ok((mmap, buf))
}

/// Allocates an Mmap with a Buf that holds the given bytes.
pub fn holding(device: &Device, access: Access, bytes: &[u8]) -> Result<(Mmap, Buf)> {
    let (mmap, buf) = room(device, access, bytes.len())?;
    buf.extend_from_slice(bytes)?;
    Ok((mmap, buf))
}

/// Copies the data of a Buf, which also works for a Buf that peers may write.
pub fn bytes(buf: &Buf) -> Result<Vec<u8>> {
    let mut bytes = vec![0; buf.data_len()];
    buf.copy_out(0, &mut bytes)?;
    Ok(bytes)
}

/// Prints a line on stdout.
pub fn say(line: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// Returns the text at the start of memory that was zeroed before: all bytes before the first zero.
pub fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Returns a peer's text in quotes, with control characters escaped for the terminal.
pub fn quoted(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}
