//! What the RDMA examples share: the flags of DOCA's samples, how the two processes meet, and how
//! they compare what they have.
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

/// The memory that DOCA's samples have for what a peer sends or writes.
pub const ROOM: usize = 4096;

/// The immediate value of DOCA's samples.
pub const IMMEDIATE: u32 = 0xabcd;

/// Reads the arguments, does what they ask for, and says in one line why not.
pub async fn run(sample: &Sample, session: impl AsyncFnOnce(&Args) -> Result<()>) -> ExitCode {
    let done = async {
        let Some(args) = Args::parse(sample, std::env::args_os().skip(1))? else {
            return Ok(write!(io::stdout(), "{}", sample.help())?);
        };
        // The peer may be there, and take no part.
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

/// The device of `-d`, or any.
pub fn device(args: &Args) -> Result<Device> {
    Ok(match args.get("device") {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    })
}

/// A context with the port of `-g`, of which peers may use memory so.
pub fn rdma(args: &Args, device: &Device, permissions: Access, workq: &WorkQ) -> Result<Rdma> {
    // A peer that is slow to post its receive is waited for.
    let rdma = Rdma::builder(device)
        .permissions(permissions)
        .gid_index(args.gid_index())
        .rnr_timeout(args.timeout())
        .connect_timeout(args.timeout().min(Duration::from_secs(5)))
        .attach(workq)?;
    Ok(rdma)
}

/// A Buf over all of a new Mmap.
pub fn room(device: &Device, access: Access, len: usize) -> Result<(Mmap, Buf)> {
    let mmap = Mmap::builder().device(device).access(access).alloc(len)?;
    let buf = BufInventory::with_capacity(1).buf(&mmap, ..)?;
    Ok((mmap, buf))
}

/// The same, with the bytes in it.
pub fn holding(device: &Device, access: Access, bytes: &[u8]) -> Result<(Mmap, Buf)> {
    let (mmap, buf) = room(device, access, bytes.len())?;
    buf.extend_from_slice(bytes)?;
    Ok((mmap, buf))
}

/// What a Buf holds, also where peers may write it.
pub fn bytes(buf: &Buf) -> Result<Vec<u8>> {
    let mut bytes = vec![0; buf.data_len()];
    buf.copy_out(0, &mut bytes)?;
    Ok(bytes)
}

/// A line on stdout.
pub fn say(line: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// The text in memory that was zero before: what comes before the first zero.
pub fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// In quotes, and with nothing in it that a terminal obeys: it came from another process.
pub fn quoted(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}
