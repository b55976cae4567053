//! Parses the flags of `ibv_rc_pingpong`, with their long and short names.

use tokio_doca::rdma::Mtu;

/// The values of the flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) port: u16,
    pub(crate) device: Option<String>,
    pub(crate) size: usize,
    pub(crate) mtu: Mtu,
    pub(crate) rx_depth: u32,
    pub(crate) iters: u64,
    pub(crate) events: bool,
    pub(crate) gid_index: Option<u32>,
    pub(crate) check: bool,
    /// The server's host, or `None` if this side is the server.
    pub(crate) host: Option<String>,
}

/// The short and the long name of each flag.
const FLAGS: [(char, &str); 12] = [
    ('p', "port"),
    ('d', "ib-dev"),
    ('i', "ib-port"),
    ('s', "size"),
    ('m', "mtu"),
    ('r', "rx-depth"),
    ('n', "iters"),
    ('l', "sl"),
    ('e', "events"),
    ('g', "gid-idx"),
    ('c', "chk"),
    ('h', "help"),
];

/// Splits a word into a flag and the value that follows it in the same word.
fn flag(word: &str) -> Option<(char, Option<&str>)> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let known = FLAGS.iter().find(|(_, long)| *long == name)?;
        return Some((known.0, value));
    }
    let mut rest = word.strip_prefix('-')?.chars();
    let short = rest.next()?;
    let known = FLAGS.iter().any(|&(known, _)| known == short);
    let value = rest.as_str();
    known.then_some((short, (!value.is_empty()).then_some(value)))
}

impl Args {
    /// Parses the arguments. Returns `None` if they ask for help.
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Option<Args>, String> {
        let mut args = Args {
            port: 18515,
            device: None,
            size: 4096,
            mtu: Mtu::Bytes1024,
            rx_depth: 16,
            iters: 1000,
            events: false,
            gid_index: None,
            check: false,
            host: None,
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                if let Some(host) = args.host.replace(word) {
                    return Err(format!("{host:?} is a host already"));
                }
                continue;
            }
            let (short, value) = flag(&word).ok_or_else(|| format!("there is no flag {word:?}"))?;
            let alone = matches!(short, 'e' | 'c' | 'h');
            if alone && value.is_some() {
                return Err(format!("{word:?}: the flag takes no value"));
            }
            let value = match value {
                Some(value) => value.to_owned(),
                None if alone => String::new(),
                None => words
                    .next()
                    .ok_or_else(|| format!("{word} needs a value"))?,
            };
            match short {
                'p' => args.port = number(&word, &value, 1)?,
                'd' => args.device = Some(value),
                'i' => only(&word, &value, 1)?,
                's' => args.size = number(&word, &value, 1)?,
                'm' => args.mtu = mtu(&word, &value)?,
                'r' => args.rx_depth = number(&word, &value, 1)?,
                'n' => args.iters = number(&word, &value, 1)?,
                'l' => only(&word, &value, 0)?,
                'e' => args.events = true,
                'g' => args.gid_index = Some(number(&word, &value, 0)?),
                'c' => args.check = true,
                _ => return Ok(None),
            }
        }
        Ok(Some(args))
    }
}

fn number<N: TryFrom<u64>>(flag: &str, value: &str, least: u64) -> Result<N, String> {
    let number = value.parse().ok().filter(|&number: &u64| number >= least);
    let number = number.and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| format!("{flag} {value:?} is no number that it can be"))
}

fn only(flag: &str, value: &str, one: u64) -> Result<(), String> {
    if number::<u64>(flag, value, 0)? != one {
        return Err(format!("{flag} {value}: it is {one} here, and no other"));
    }
    Ok(())
}

fn mtu(flag: &str, value: &str) -> Result<Mtu, String> {
    let bytes: u32 = number(flag, value, 0)?;
    let known = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes);
    known.ok_or_else(|| format!("{flag} {value}: an MTU is 256, 512, 1024, 2048 or 4096"))
}
