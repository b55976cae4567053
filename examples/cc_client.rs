//! The host's half of DOCA's Comm Channel sample: sends one message to `cc_server` and prints the
//! answer.
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::timeout;
use tokio_doca::{Device, channel::Channel};

mod flags;
use flags::{Flag, Program, Values};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PROGRAM: Program = Program {
    name: "cc_client",
    about: "Sends one message to cc_server, and prints the answer: the client on a host.",
    flags: &[
        Flag {
            short: "-p",
            long: "--pci-addr",
            value: "PCI",
            default: "0b:00.0",
            help: "device of the host",
        },
        Flag {
            short: "-t",
            long: "--text",
            value: "TEXT",
            default: "Message from the client",
            help: "what it sends",
        },
    ],
};

const LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    PROGRAM.run(|values| tokio::runtime::Runtime::new()?.block_on(run(values)))
}

async fn run(values: &Values) -> Result<()> {
    let device = Device::open(values.get("--pci-addr"))?;
    let talk = async {
        let channel = Channel::builder()
            .connect(&device, "cc_sample_server")
            .await?;
        channel.send(values.get("--text").as_bytes()).await?;
        let answer = channel.recv().await?;
        channel.disconnect().await;
        Ok::<_, tokio_doca::Error>(answer)
    };
    let late = |_| format!("the server did not answer within {LIMIT:?}");
    let answer = timeout(LIMIT, talk).await.map_err(late)??;
    let answer = String::from_utf8_lossy(&answer);
    writeln!(io::stdout(), "Server response: {}", answer.escape_debug())?;
    Ok(())
}
