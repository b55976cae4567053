//! How a command ends: its exit code, and a sentence on stderr if it failed.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::error::{ContextKind, ErrorKind};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// The reason why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command failed, with this sentence as the reason.
    Failed(String),
    /// The arguments do not fit the device.
    Usage(String),
    /// The reader of the output has closed the pipe, because it needs no more.
    Closed,
    /// The command failed, and has already printed the reason.
    Said,
}

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Failed(text)
    }
}

impl From<tokio_doca::Error> for Failure {
    fn from(error: tokio_doca::Error) -> Failure {
        Failure::Failed(text(&error))
    }
}

/// Returns the text of a library error without the name of the Rust function that failed.
pub(crate) fn text(error: &tokio_doca::Error) -> String {
    let text = error.to_string();
    let plain = error
        .call()
        .and_then(|call| text.strip_prefix(call)?.strip_prefix(": "));
    without_numbers(plain.unwrap_or(&text))
}

/// Returns the text of a system error without its number. If the limit for the length of files made
/// a write fail, the text names that limit.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = without_numbers(&error.to_string());
    match (error.kind(), getrlimit(Resource::RLIMIT_FSIZE)) {
        (io::ErrorKind::FileTooLarge, Ok((limit, _))) if limit != RLIM_INFINITY => format!(
            "{text}: one of this process may have {limit} bytes: raise the limit with ulimit -f \
             (LimitFSIZE= of a service)"
        ),
        _ => text,
    }
}

/// Removes each ` (os error 2)`: the words before it have the same meaning.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once(')').map_or("", |(_, rest)| rest));
    rest.fold(first, |text, rest| text + rest)
}

/// Returns a file's name for use in a sentence: in quotes if it has control characters.
pub(crate) fn name(path: &Path) -> String {
    let name = path.display().to_string();
    match name.contains(char::is_control) || name.is_empty() {
        true => format!("{name:?}"),
        false => name,
    }
}

/// Returns a function that adds the failed action and the file's name to a system error.
pub(crate) fn cannot(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what} {}: {}", name(path), reason(&error))
}

/// Returns the sentence for a thread that has panicked.
pub(crate) fn panicked(error: tokio::task::JoinError) -> String {
    format!("a thread of this program ended early: {error}")
}

/// Prints a sentence on stderr.
pub(crate) fn say(text: &str) {
    let style = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let _ = writeln!(anstream::stderr(), "{style}tokio-doca:{style:#} {text}");
}

/// Prints why a command failed, and returns the exit code.
pub(crate) fn exit_code(result: Result) -> ExitCode {
    match result {
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Said) => ExitCode::from(1),
        Err(Failure::Failed(text)) => {
            say(&text);
            ExitCode::from(1)
        }
        Err(Failure::Usage(text)) => {
            say(&text);
            ExitCode::from(2)
        }
    }
}

/// Prints the help or the version if the arguments ask for it. Otherwise prints in one sentence
/// what is wrong with the arguments.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A failed write is ignored: a reader that closes the pipe has seen enough.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            let text = match error.get(ContextKind::InvalidSubcommand) {
                // clap's text for a second word explains the rules of clap, not what to change.
                Some(word) if error.kind() == ErrorKind::ArgumentConflict => {
                    format!("'{word}' does not go with what is before it: see --help")
                }
                _ => sentence(&error.render().to_string()),
            };
            say(&text);
            ExitCode::from(2)
        }
    }
}

/// Makes one sentence of clap's paragraphs: the error, its tips, the usage, and where to read more.
fn sentence(text: &str) -> String {
    let paragraphs = text.trim().split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        let words = words.join(" ");
        let words = words.strip_prefix("error: ").unwrap_or(&words);
        match words.starts_with("For more information") {
            true => "see --help".to_owned(),
            false => words.replacen("Usage: ", "usage: ", 1),
        }
    });
    paragraphs.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_become_one_sentence() {
        let text = "error: unrecognized subcommand 'devs'\n\n  tip: a similar one exists: \
                    'devices'\n\nUsage: tokio-doca <COMMAND>\n\nFor more information, try --help.\n";
        assert_eq!(
            sentence(text),
            "unrecognized subcommand 'devs'; tip: a similar one exists: 'devices'; \
             usage: tokio-doca <COMMAND>; see --help"
        );
    }

    #[test]
    fn a_sentence_has_neither_rust_calls_nor_numbers_of_the_system() {
        let error = tokio_doca::Device::open("nope").unwrap_err();
        assert!(text(&error).starts_with("no device \"nope\"; there are: "));
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(reason(&error), "No such file or directory");
        let both = "a (os error 2): b (os error 38); c";
        assert_eq!(without_numbers(both), "a: b; c");
        assert_eq!(name(Path::new("a\nb")), "\"a\\nb\"");
    }
}
