//! `tokio-doca`: lists devices and their capabilities, checks them and the system, measures their
//! speed, and copies, hashes and sends files with them.
//!
//! Each command has a file or folder; `send` and `serve` share `transfer`. `failure` defines how a
//! command ends, `output` prints, `open` finds the device that a name means, `target` is a file
//! that is written, `about` describes where a command ran, and `system` reads the kernel's files.

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
