//! Where, when and by which command line a run was measured.

use std::ffi::OsString;
use std::path::Path;
use std::time::SystemTime;

use humantime::format_rfc3339_seconds;
use serde::Serialize;
use tokio_doca::device::DevInfo;

use crate::about::About;
use crate::system;

#[derive(Debug, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) about: About,
    /// The model of the first CPU.
    pub(super) cpu: Option<String>,
    /// The CPUs that this process may use.
    pub(super) cpus: Option<usize>,
    /// When the run began.
    pub(super) date: String,
    pub(super) command: String,
}

impl Run {
    pub(super) fn of(info: &DevInfo, default: bool) -> Run {
        let cpus = std::thread::available_parallelism();
        Run {
            about: About::of(info, default),
            cpu: cpu(),
            cpus: cpus.ok().map(Into::into),
            date: format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: command(std::env::args_os().skip(1)),
        }
    }

    /// Returns a run in which every text field is `text`.
    #[cfg(test)]
    pub(super) fn of_text(text: &str) -> Run {
        let text = || text.to_owned();
        Run {
            about: About {
                version: "0.1.0",
                kernel: Some(text()),
                device: text(),
                default: false,
                provider: text(),
                pci_address: Some(text()),
                driver: Some(text()),
                firmware: Some(text()),
                link: None,
                settings: vec![text()],
                peer: None,
            },
            cpu: Some(text()),
            cpus: None,
            date: text(),
            command: text(),
        }
    }

    /// Returns the fields as rows of a label and a value, for the readable report.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = self.about.lines();
        lines.extend(self.cpu.clone().map(|it| ("CPU", it)));
        lines.extend(self.cpus.map(|it| ("CPUs of the process", it.to_string())));
        lines.push(("begun", self.date.clone()));
        lines.push(("command", self.command.clone()));
        lines
    }
}

/// Returns the model name of the first CPU from `/proc/cpuinfo`. Some architectures do not give
/// one.
fn cpu() -> Option<String> {
    let text = system::text(Path::new("/proc/cpuinfo")).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, model) = fields.find(|(name, _)| name.trim() == "model name")?;
    Some(model.trim().to_owned())
}

/// Returns the command line, quoted so that a shell reads the same arguments.
fn command(args: impl Iterator<Item = OsString>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    args.fold("tokio-doca".to_owned(), |line, arg| {
        let arg = arg.to_string_lossy();
        match !arg.is_empty() && arg.chars().all(plain) {
            true => format!("{line} {arg}"),
            false => format!("{line} '{}'", arg.replace('\'', r"'\''")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_command_line() {
        let line = |args: &[&str]| command(args.iter().map(OsString::from));
        assert_eq!(
            line(&["bench", "--size", "64..1M"]),
            "tokio-doca bench --size 64..1M"
        );
        assert_eq!(line(&["a b", "it's", ""]), r"tokio-doca 'a b' 'it'\''s' ''");
    }
}
