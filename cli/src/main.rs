//! `tokio-doca`: devices and their capabilities, whether they work, what of the system hinders
//! them, how fast they are, and files that a device copies and hashes.
//!
//! One file or folder for each command; `send` and `serve` share `transfer`. `failure` says how a
//! command ends, `output` prints, `open` finds the device that a name means, `target` is a file
//! that is written, `about` tells where a command ran, and `system` reads the kernel's files.

mod about;
mod adapters;
mod args;
mod bench;
mod caps;
mod check;
mod completions;
mod copy;
mod devices;
mod doctor;
mod failure;
mod hash;
mod open;
mod output;
mod signals;
mod system;
mod target;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let caught = signals::outlive_file_limit();
    match args::Args::try_parse() {
        Ok(args) => failure::exit_code(caught.and_then(|()| args.command.run())),
        Err(error) => failure::usage(&error),
    }
}
