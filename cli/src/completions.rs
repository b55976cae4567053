//! `tokio-doca completions`: prints the completions for a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::Result;
use crate::output::print_bytes;

#[derive(clap::Args)]
#[command(after_help = "Example: source <(tokio-doca completions bash)")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut text = Vec::new();
    let mut command = crate::args::Args::command();
    clap_complete::generate(args.shell, &mut command, "tokio-doca", &mut text);
    print_bytes(&text)
}
