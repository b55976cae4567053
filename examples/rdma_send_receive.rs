//! One side sends a message to the other. The example has the roles of DOCA's samples rdma_send and
//! rdma_receive, and their flags (`rdma_send_receive -h`).
//!
//! ```text
//! $ cargo run --example rdma_send_receive -- receive --tcp 127.0.0.1:18515             (one terminal)
//! $ cargo run --example rdma_send_receive -- send --tcp 127.0.0.1:18515 -s "a text"    (another one)
//! ```
mod rdma_sample;

use std::process::ExitCode;

use rdma_sample::{
    Args, Digest, Flag, Meeting, ROOM, Result, Sample, bytes, device, holding, quoted, rdma, room,
    say,
};
use tokio_doca::{WorkQ, mem::Access, rdma::RecvOpcode};

const SAMPLE: Sample = Sample {
    name: "rdma_send_receive",
    about: "Sends a message to another process.",
    roles: ["send", "receive"],
    alone: false,
    flags: &[Flag {
        short: "-s",
        long: "send-string",
        value: "TEXT",
        help: "text to be sent (default: Hi DOCA RDMA!)",
        role: "send",
    }],
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let session = async |args: &Args| match args.listens() {
        true => receive(args).await,
        false => send(args).await,
    };
    rdma_sample::run(&SAMPLE, session).await
}

async fn send(args: &Args) -> Result<()> {
    let device = device(args)?;
    let rdma = rdma(args, &device, Access::empty(), &WorkQ::builder().build()?)?;
    let _meeting = Meeting::connect(args, &rdma).await?;

    let text = args.text("send-string").as_bytes();
    let (_mmap, src) = holding(&device, Access::default(), text)?;
    rdma.send(&src).await?;
    say("Retrieved results successfully")?;

    Digest::of(text).send(&rdma).await?;
    Digest::receive(&rdma).await?.check(text)
}

async fn receive(args: &Args) -> Result<()> {
    let device = device(args)?;
    let (_mmap, dst) = room(&device, Access::default(), ROOM)?;
    let rdma = rdma(args, &device, Access::empty(), &WorkQ::builder().build()?)?;
    let _meeting = Meeting::connect(args, &rdma).await?;

    let received = rdma.recv(&dst).await?;
    let (opcode, immediate) = (received.opcode, received.immediate);
    if (opcode, immediate) != (RecvOpcode::Send, None) {
        return Err(format!("got a {opcode:?} with immediate data {immediate:?}").into());
    }
    let got = bytes(&dst)?;
    let sent = Digest::receive(&rdma).await?;
    Digest::of(&got).send(&rdma).await?;
    sent.check(&got)?;
    say(format_args!("Got from sender: {}", quoted(&got)))
}
