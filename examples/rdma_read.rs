//! One side reads the memory of the other side, which takes no part in the read. The example has
//! the roles of DOCA's samples rdma_read_requester and _responder, and their flags
//! (`rdma_read -h`).
//!
//! ```text
//! $ cargo run --example rdma_read -- responder --tcp 127.0.0.1:18515 -r "a text"    (one terminal)
//! $ cargo run --example rdma_read -- requester --tcp 127.0.0.1:18515                (another one)
//! ```
mod rdma_sample;

use std::process::ExitCode;

use rdma_sample::{
    Args, Digest, Flag, Meeting, Result, Sample, bytes, device, holding, quoted, rdma, room, say,
};
use tokio_doca::{WorkQ, mem::Access};

const SAMPLE: Sample = Sample {
    name: "rdma_read",
    about: "Reads the memory of another process.",
    roles: ["requester", "responder"],
    alone: false,
    flags: &[Flag {
        short: "-r",
        long: "read-string",
        value: "TEXT",
        help: "text to be read (default: Hi DOCA RDMA!)",
        role: "responder",
    }],
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let session = async |args: &Args| match args.listens() {
        true => responder(args).await,
        false => requester(args).await,
    };
    rdma_sample::run(&SAMPLE, session).await
}

async fn requester(args: &Args) -> Result<()> {
    let device = device(args)?;
    let rdma = rdma(args, &device, Access::empty(), &WorkQ::builder().build()?)?;
    let mut meeting = Meeting::connect(args, &rdma).await?;
    let remote = meeting.import(&device).await?;

    let (_mmap, dst) = room(&device, Access::default(), remote.len())?;
    rdma.read(&remote.buf(..)?, &dst).await?;
    say("Retrieved results successfully")?;
    let read = bytes(&dst)?;

    // The responder waits for the digest of the data that was read.
    Digest::of(&read).send(&rdma).await?;
    Digest::receive(&rdma).await?.check(&read)?;
    say(format_args!("Read from responder: {}", quoted(&read)))
}

async fn responder(args: &Args) -> Result<()> {
    let device = device(args)?;
    let text = args.text("read-string").as_bytes();
    let access = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
    let (mmap, _buf) = holding(&device, access, text)?;
    let rdma = rdma(args, &device, Access::RDMA_READ, &WorkQ::builder().build()?)?;
    let mut meeting = Meeting::connect(args, &rdma).await?;
    meeting.offer(&mmap, &device).await?;

    let read = Digest::receive(&rdma).await?;
    Digest::of(text).send(&rdma).await?;
    read.check(text)?;
    say("The requester has read it")
}
