//! The flags of DOCA's samples: each has a short and a long name. All samples have `-h`, `-v` and
//! `-l`.
#![allow(dead_code, unreachable_pub, reason = "each program uses its own part")]

mod log;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// One flag. A flag without a value is a switch.
pub struct Flag {
    pub short: &'static str,
    pub long: &'static str,
    pub value: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

/// The name of a program, and its flags.
pub struct Program {
    pub name: &'static str,
    pub about: &'static str,
    pub flags: &'static [Flag],
}

/// The values of the flags, by their long names.
pub struct Values(HashMap<&'static str, String>);

impl Values {
    /// Returns the value of a flag, or its default.
    pub fn get(&self, long: &str) -> &str {
        self.0.get(long).map_or("", String::as_str)
    }

    /// Returns true if the switch is set.
    pub fn has(&self, long: &str) -> bool {
        self.get(long) == "yes"
    }
}

const SWITCHES: [(&str, &str); 2] = [("-h", "--help"), ("-v", "--version")];

impl Program {
    /// Parses the flags, and runs `body`. `-h` prints the help, `-v` the version. A wrong flag is
    /// reported.
    pub fn run(&self, body: impl FnOnce(&Values) -> super::Result<()>) -> ExitCode {
        let name = self.name;
        match self.read(std::env::args().skip(1)) {
            Ok(Some(values)) => match body(&values) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let _ = writeln!(io::stderr(), "{name}: {error}");
                    ExitCode::from(1)
                }
            },
            Ok(None) => ExitCode::SUCCESS,
            Err(wrong) => {
                let _ = writeln!(io::stderr(), "{name}: {wrong}: see {name} -h");
                ExitCode::from(2)
            }
        }
    }

    fn read(&self, mut words: impl Iterator<Item = String>) -> Result<Option<Values>, String> {
        let defaults = self
            .flags
            .iter()
            .map(|flag| (flag.long, flag.default.to_owned()));
        let mut values: HashMap<_, _> = defaults.collect();
        while let Some(word) = words.next() {
            let is = |at: usize| word == SWITCHES[at].0 || word == SWITCHES[at].1;
            if is(0) {
                let _ = io::stdout().write_all(self.help().as_bytes());
                return Ok(None);
            }
            if is(1) {
                let version = env!("CARGO_PKG_VERSION");
                let _ = writeln!(io::stdout(), "{} {version}", self.name);
                return Ok(None);
            }
            let mut value = || match words.next() {
                Some(value) if !value.is_empty() => Ok(value),
                _ => Err(format!("{word} needs a value")),
            };
            if word == "-l" || word == "--log-level" {
                let level = value()?;
                let number = level.parse();
                log::show(number.map_err(|_| format!("-l {level}: it is a number"))?);
                continue;
            }
            let known = self
                .flags
                .iter()
                .find(|flag| (word == flag.short && !flag.short.is_empty()) || word == flag.long);
            let flag = known.ok_or_else(|| format!("there is no flag {word:?}"))?;
            let value = match flag.value {
                "" => "yes".to_owned(),
                _ => value()?,
            };
            values.insert(flag.long, value);
        }
        Ok(Some(Values(values)))
    }

    fn help(&self) -> String {
        let mut help = format!(
            "{}\n\nusage: {} [FLAG [VALUE]]...\n\n",
            self.about, self.name
        );
        let mut line = |short: &str, long: &str, text: &str| {
            let comma = if short.is_empty() { ' ' } else { ',' };
            let _ = writeln!(help, "  {short:>3}{comma} {long:<24} {text}");
        };
        for flag in self.flags {
            let default = match flag.default {
                "" => String::new(),
                default => format!(" (default: {default})"),
            };
            let long = format!("{} {}", flag.long, flag.value);
            line(flag.short, &long, &format!("{}{default}", flag.help));
        }
        let levels =
            "what to log: 30 errors, 40 warnings, 60 events, 70 jobs (default: 10, nothing)";
        line("-l", "--log-level LEVEL", levels);
        line("-v", "--version", "the version");
        line("-h", "--help", "this");
        help
    }
}
