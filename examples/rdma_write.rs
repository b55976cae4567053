//! One side writes to the memory of the other side, which takes no part in the write. The example
//! has the roles of DOCA's samples rdma_write_requester and _responder, and their flags
//! (`rdma_write -h`).
//!
//! ```text
//! $ cargo run --example rdma_write -- responder --tcp 127.0.0.1:18515                (one terminal)
//! $ cargo run --example rdma_write -- requester --tcp 127.0.0.1:18515 -w "a text"    (another one)
//! ```
mod rdma_sample;

use std::process::ExitCode;

use rdma_sample::{
    Args, Digest, Flag, Meeting, ROOM, Result, Sample, bytes, device, holding, quoted, rdma, room,
    say, text,
};
use tokio_doca::{WorkQ, mem::Access};

const SAMPLE: Sample = Sample {
    name: "rdma_write",
    about: "Writes to the memory of another process.",
    roles: ["requester", "responder"],
    alone: false,
    flags: &[Flag {
        short: "-w",
        long: "write-string",
        value: "TEXT",
        help: "text to be written (default: Hi DOCA RDMA!)",
        role: "requester",
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

    let text = args.text("write-string").as_bytes();
    let (_mmap, src) = holding(&device, Access::default(), text)?;
    rdma.write(&src, &remote.buf(..)?).await?;
    say("Retrieved results successfully")?;

    // The responder learns only by this digest that something was written.
    Digest::of(text).send(&rdma).await?;
    Digest::receive(&rdma).await?.check(text)
}

async fn responder(args: &Args) -> Result<()> {
    let device = device(args)?;
    let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE;
    let (mmap, buf) = room(&device, access, ROOM)?;
    buf.set_data(0, ROOM)?;
    let rdma = rdma(
        args,
        &device,
        Access::RDMA_WRITE,
        &WorkQ::builder().build()?,
    )?;
    let mut meeting = Meeting::connect(args, &rdma).await?;
    meeting.offer(&mmap, &device).await?;

    let sent = Digest::receive(&rdma).await?;
    let memory = bytes(&buf)?;
    let written = text(&memory);
    Digest::of(written).send(&rdma).await?;
    sent.check(written)?;
    say(format_args!("Requester has written: {}", quoted(written)))
}
