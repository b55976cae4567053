//! The DPU's half of DOCA's Comm Channel sample: a service on the representor of a host's function,
//! which answers one client.
//!
//! ```text
//! $ TOKIO_DOCA_SOFT=dpu cargo run --example cc_server                (one terminal)
//! $ cargo run --example cc_client                                    (another one)
//! ```
use std::io::{self, Write};
use std::process::ExitCode;

use tokio_doca::{Device, ErrorKind, channel::Channel, device::Representor};

mod flags;
use flags::{Flag, Program, Values};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PROGRAM: Program = Program {
    name: "cc_server",
    about: "Answers one message of cc_client: the service of a DPU on a representor.",
    flags: &[
        Flag {
            short: "-p",
            long: "--pci-addr",
            value: "PCI",
            default: "03:00.0",
            help: "device of the DPU",
        },
        Flag {
            short: "-r",
            long: "--rep-pci",
            value: "PCI",
            default: "0b:00.0",
            help: "function of the host, by its representor",
        },
        Flag {
            short: "-t",
            long: "--text",
            value: "TEXT",
            default: "Message from the server",
            help: "what it answers",
        },
    ],
};

fn main() -> ExitCode {
    PROGRAM.run(|values| tokio::runtime::Runtime::new()?.block_on(run(values)))
}

async fn run(values: &Values) -> Result<()> {
    let device = Device::open(values.get("--pci-addr"))?;
    let representor = Representor::open(&device, values.get("--rep-pci"))?;
    let service = Channel::builder().listen(&representor, "cc_sample_server")?;
    let mut out = io::stdout();
    writeln!(out, "Started Listening, waiting for new connection")?;

    let client = service.accept().await?;
    let message = client.recv().await?;
    writeln!(
        out,
        "Received message: {}",
        String::from_utf8_lossy(&message).escape_debug()
    )?;
    client.send(values.get("--text").as_bytes()).await?;
    // The client ends the connection when it has the answer.
    match client.recv().await {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the client had one message to send, and has sent another".into()),
    }
}
