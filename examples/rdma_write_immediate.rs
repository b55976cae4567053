//! One side writes to the memory of the other side, and notifies it by an immediate value. The
//! example has the roles of DOCA's samples rdma_write_immediate_requester and _responder, and their
//! flags (`rdma_write_immediate -h`).
//!
//! ```text
//! $ cargo run --example rdma_write_immediate -- responder --tcp 127.0.0.1:18515                (one terminal)
//! $ cargo run --example rdma_write_immediate -- requester --tcp 127.0.0.1:18515 -w "a text"    (another one)
//! ```
mod rdma_sample;

use std::process::ExitCode;

use rdma_sample::{
    Args, Digest, Flag, IMMEDIATE, Meeting, ROOM, Result, Sample, bytes, device, holding, quoted,
    rdma, room, say, text,
};
use tokio_doca::{WorkQ, mem::Access, rdma::RecvOpcode};

const SAMPLE: Sample = Sample {
    name: "rdma_write_immediate",
    about: "Writes to the memory of another process, which is told so.",
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
    rdma.write_imm(&src, &remote.buf(..)?, IMMEDIATE).await?;
    say("Retrieved results successfully")?;

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

    // The write completes this receive, but its bytes go to the exported memory.
    let received = rdma.recv(()).await?;
    let (opcode, immediate) = (received.opcode, received.immediate);
    if (opcode, immediate) != (RecvOpcode::WriteImm, Some(IMMEDIATE)) {
        return Err(format!("got a {opcode:?} with immediate data {immediate:?}").into());
    }
    let memory = bytes(&buf)?;
    let written = text(&memory);
    let sent = Digest::receive(&rdma).await?;
    Digest::of(written).send(&rdma).await?;
    sent.check(written)?;
    let written = quoted(written);
    say(format_args!(
        "Requester has written: {written} with immediate data: {IMMEDIATE}"
    ))
}
