//! The flags of DOCA's RDMA samples. They are parsed by hand, because two of the short flags have
//! two letters.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::Result;

/// One flag with a value.
pub struct Flag {
    /// The short name with its dash, or an empty string.
    pub short: &'static str,
    /// The long name without dashes. The value is looked up by this name.
    pub long: &'static str,
    pub value: &'static str,
    pub help: &'static str,
    /// The role that has this flag; empty if both have it.
    pub role: &'static str,
}

const fn flag(
    short: &'static str,
    long: &'static str,
    value: &'static str,
    help: &'static str,
) -> Flag {
    Flag {
        short,
        long,
        value,
        help,
        role: "",
    }
}

/// The flags of all samples.
const COMMON: [Flag; 7] = [
    flag("-d", "device", "NAME", "device (default: any)"),
    flag(
        "-ld",
        "local-descriptor-path",
        "PATH",
        "file that this side writes for its peer (default: /tmp/local_connection_desc_path.txt)",
    ),
    flag(
        "-re",
        "remote-descriptor-path",
        "PATH",
        "file that the peer writes (default: /tmp/remote_connection_desc_path.txt)",
    ),
    flag(
        "-m",
        "mmap-descriptor-path",
        "PATH",
        "file with the responder's memory (default: /tmp/mmap_connection_desc_path.txt)",
    ),
    flag(
        "-g",
        "gid-index",
        "N",
        "GID index (default: the device chooses)",
    ),
    flag(
        "",
        "tcp",
        "ADDR",
        "meet by one TCP connection, without files",
    ),
    flag(
        "",
        "timeout",
        "SECONDS",
        "how long to wait for the peer (default: 30)",
    ),
];

/// The description of an example.
pub struct Sample {
    pub name: &'static str,
    pub about: &'static str,
    /// The roles: first the side that connects to a TCP address, then the side that listens there.
    pub roles: [&'static str; 2],
    /// True if the example also runs without a role.
    pub alone: bool,
    pub flags: &'static [Flag],
}

impl Sample {
    fn all(&self) -> impl Iterator<Item = &Flag> {
        COMMON.iter().chain(self.flags)
    }

    pub fn help(&self) -> String {
        let [calls, listens] = self.roles;
        let roles = match self.alone {
            true => format!("[{calls}|{listens}]"),
            false => format!("{calls}|{listens}"),
        };
        let (name, about) = (self.name, self.about);
        let mut help = format!("{about}\n\nusage: {name} {roles} [FLAG VALUE]...\n\n");
        let mut line = |short: &str, long: &str, help_of: String| {
            let comma = if short.is_empty() { ' ' } else { ',' };
            let _ = writeln!(help, "  {short:>3}{comma} --{long:<30} {help_of}");
        };
        for flag in self.all() {
            let who = match flag.role {
                "" => String::new(),
                role => format!("{role}: "),
            };
            let long = format!("{} {}", flag.long, flag.value);
            line(flag.short, &long, format!("{who}{}", flag.help));
        }
        line("-h", "help", "this".into());
        let _ = write!(
            help,
            "\nThe files of a pair on one machine: what one side writes (-ld) the other one reads (-re).\n\
             With --tcp the {listens} listens at the address, and the {calls} connects to it.\n"
        );
        help
    }
}

/// The values of the arguments.
#[derive(Clone)]
pub struct Args {
    roles: [&'static str; 2],
    role: &'static str,
    values: HashMap<&'static str, String>,
    gid_index: Option<u32>,
    timeout: Duration,
}

impl Args {
    /// Parses the arguments. Returns `None` if they ask for help.
    pub fn parse(sample: &Sample, words: impl Iterator<Item = OsString>) -> Result<Option<Args>> {
        let see = format!("see {} -h", sample.name);
        let mut words = words.map(|word| {
            let word = word.into_string();
            word.map_err(|word| format!("{word:?} is no UTF-8: {see}"))
        });
        let [calls, listens] = sample.roles;
        let mut first = words.next().transpose()?;
        let role = |word: &String| sample.roles.into_iter().find(|role| role == word);
        let role = match first.as_ref().and_then(role) {
            Some(role) => {
                first = words.next().transpose()?;
                role
            }
            None if first.as_deref().is_some_and(is_help) => return Ok(None),
            None if sample.alone => "",
            None => return Err(format!("the first word is {calls} or {listens}: {see}").into()),
        };
        let mut values = HashMap::new();
        while let Some(word) = first {
            if is_help(&word) {
                return Ok(None);
            }
            let (name, mut value) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (&word[..], None),
            };
            let named = |flag: &&Flag| {
                name.strip_prefix("--") == Some(flag.long)
                    || (!flag.short.is_empty() && name == flag.short)
            };
            let flag = sample.all().find(named);
            let Some(flag) = flag else {
                return Err(format!("there is no flag {name:?}: {see}").into());
            };
            if !role.is_empty() && !flag.role.is_empty() && role != flag.role {
                return Err(format!("{name} is for the {}: {see}", flag.role).into());
            }
            if value.is_none() {
                value = words.next().transpose()?;
            }
            match value {
                Some(value) if !value.is_empty() => values.insert(flag.long, value),
                _ => return Err(format!("{name} needs a value: {see}").into()),
            };
            first = words.next().transpose()?;
        }
        let mut args = Args {
            roles: sample.roles,
            role,
            values,
            gid_index: None,
            timeout: Duration::ZERO,
        };
        args.gid_index = match args.get("gid-index") {
            Some(_) => Some(args.number("gid-index", 0)?),
            None => None,
        };
        let seconds: u32 = args.number("timeout", 30)?;
        if seconds == 0 {
            return Err(format!("--timeout is not 0: {see}").into());
        }
        args.timeout = Duration::from_secs(seconds.into());
        Ok(Some(args))
    }

    /// Returns the value of the flag, if it is set.
    pub fn get(&self, long: &str) -> Option<&str> {
        self.values.get(long).map(String::as_str)
    }

    /// Returns a copy of the arguments with one more flag.
    pub fn with(&self, long: &'static str, value: String) -> Args {
        let mut args = self.clone();
        args.values.insert(long, value);
        args
    }

    /// Returns the value of a flag as a number, or `default` if the flag is not set.
    pub fn number<N: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        long: &str,
        default: N,
    ) -> Result<N> {
        let Some(text) = self.get(long) else {
            return Ok(default);
        };
        let number = text.parse();
        Ok(number.map_err(|error| format!("--{long} {text:?}: {error}"))?)
    }

    /// Returns the text of the flag, or DOCA's default text.
    pub fn text(&self, long: &str) -> &str {
        self.get(long).unwrap_or("Hi DOCA RDMA!")
    }

    pub fn local(&self) -> &Path {
        let path = self.get("local-descriptor-path");
        Path::new(path.unwrap_or("/tmp/local_connection_desc_path.txt"))
    }

    pub fn remote(&self) -> &Path {
        let path = self.get("remote-descriptor-path");
        Path::new(path.unwrap_or("/tmp/remote_connection_desc_path.txt"))
    }

    pub fn mmap(&self) -> &Path {
        let path = self.get("mmap-descriptor-path");
        Path::new(path.unwrap_or("/tmp/mmap_connection_desc_path.txt"))
    }

    pub fn gid_index(&self) -> Option<u32> {
        self.gid_index
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn role(&self) -> &'static str {
        self.role
    }

    /// Returns true if this side listens.
    pub fn listens(&self) -> bool {
        self.role == self.roles[1]
    }
}

fn is_help(word: &str) -> bool {
    matches!(word, "-h" | "--help")
}
