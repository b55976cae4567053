//! The command line.

use clap::{Parser, Subcommand};

use crate::failure::Result;
use crate::{bench, caps, check, completions, copy, devices, doctor, hash, transfer};

const AFTER: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage. NO_COLOR=1 turns colours off.
TOKIO_DOCA_SOFT=dpu shows the DPU's side of the software device.";

/// See, check and measure DMA and RDMA devices; copy, hash and send files by them
#[derive(Parser)]
#[command(name = "tokio-doca", version, after_help = AFTER)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the devices, their links, addresses and representors
    Devices(devices::Args),
    /// Show the limits and operations of a device
    Caps(caps::Args),
    /// Try every operation of a device, and report what works
    Check(check::Args),
    /// Check this system: limits, CPUs, clock, kernel, RDMA, containers
    Doctor(doctor::Args),
    /// Measure latency, rate and CPU time of an operation
    Bench(bench::Args),
    /// Copy a file by a device
    Copy(copy::Args),
    /// Hash files by a device, in the format of sha256sum
    Hash(hash::Args),
    /// Send a file or stdin to another host, where serve runs
    Send(transfer::SendArgs),
    /// Receive files that send sends
    Serve(transfer::ServeArgs),
    /// Print the completions of a shell
    Completions(completions::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Command::Devices(args) => devices::run(&args),
            Command::Caps(args) => caps::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Copy(args) => copy::run(&args),
            Command::Hash(args) => hash::run(&args),
            Command::Send(args) => transfer::send(&args),
            Command::Serve(args) => transfer::serve(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Args;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
