//! The first frame of each side: the service that the client asks for, whether it is admitted, and
//! how long messages may be.
//!
//! ```text
//! client:  "TDCH" version:u8 max_message:u16 name...        service:  "TDCH" version:u8 status:u8 max_message:u16
//! ```
//!
//! Numbers are big-endian. Both sides take the smaller of the two lengths.

use crate::error::ErrorKind;

const MAGIC: &[u8; 4] = b"TDCH";
const VERSION: u8 = 1;
/// The maximum length of a service's name, in bytes. A socket's name (unix(7)) can hold it beside
/// the user's id and the longest domain.
pub(super) const NAME_MAX: usize = 32;
/// The maximum length of a greeting, in bytes.
pub(super) const LEN_MAX: usize = MAGIC.len() + 3 + NAME_MAX;

/// The greeting of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hello<'a> {
    pub(super) max_message: u16,
    pub(super) service: &'a str,
}

impl<'a> Hello<'a> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.max_message.to_be_bytes());
        bytes.extend_from_slice(self.service.as_bytes());
        bytes
    }

    /// Parses a client's greeting. If the bytes are no greeting, fails with the answer for the
    /// client.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Hello<'a>, Answer> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(Answer::Nonsense)?;
        let (&version, rest) = rest.split_first().ok_or(Answer::Nonsense)?;
        if version != VERSION {
            return Err(Answer::Version);
        }
        let (&max_message, name) = rest.split_first_chunk().ok_or(Answer::Nonsense)?;
        let service = std::str::from_utf8(name).map_err(|_| Answer::Nonsense)?;
        let max_message = u16::from_be_bytes(max_message);
        match max_message > 0 && is_name(service) {
            true => Ok(Hello {
                max_message,
                service,
            }),
            false => Err(Answer::Nonsense),
        }
    }
}

/// Returns true if `service` is a valid name of a service.
pub(super) fn is_name(service: &str) -> bool {
    (1..=NAME_MAX).contains(&service.len()) && !service.contains('\0')
}

/// The answer of a service to a client's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Welcome,
    NoSuchService,
    Full,
    Version,
    Nonsense,
}

impl Answer {
    const ALL: [Answer; 5] = [
        Answer::Welcome,
        Answer::NoSuchService,
        Answer::Full,
        Answer::Version,
        Answer::Nonsense,
    ];

    pub(super) fn bytes(self, max_message: u16) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[VERSION, self as u8]);
        bytes.extend_from_slice(&max_message.to_be_bytes());
        bytes
    }

    /// Parses a service's answer. Returns it with the service's maximum message size, or `None` if
    /// the bytes are no answer.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Answer, u16)> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let &[_version, answer, high, low] = rest else {
            return None;
        };
        let answer = *Answer::ALL.get(usize::from(answer))?;
        let max_message = u16::from_be_bytes([high, low]);
        (max_message > 0 || answer != Answer::Welcome).then_some((answer, max_message))
    }

    /// Returns the client's error for this answer.
    pub(super) fn refusal(self) -> Option<(ErrorKind, &'static str)> {
        match self {
            Answer::Welcome => None,
            Answer::NoSuchService => Some((
                ErrorKind::ConnectionAborted,
                "a service with another name listens there",
            )),
            Answer::Full => Some((ErrorKind::Full, "the service has as many peers as it takes")),
            Answer::Version => Some((
                ErrorKind::UnsupportedVersion,
                "the service speaks another version",
            )),
            Answer::Nonsense => Some((
                ErrorKind::ConnectionAborted,
                "the service does not understand this client",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_read_as_they_were_written_and_what_was_touched_is_not_one() {
        let hello = Hello {
            max_message: 4080,
            service: "a name",
        };
        let bytes = hello.bytes();
        assert_eq!(Hello::parse(&bytes), Ok(hello));
        for len in 0..8 {
            assert_eq!(Hello::parse(&bytes[..len.min(7)]), Err(Answer::Nonsense));
        }
        let mut other = bytes.clone();
        other[4] = 2;
        assert_eq!(Hello::parse(&other), Err(Answer::Version));
        for (max_message, service) in [(0, "x"), (1, ""), (1, &"x".repeat(33)), (1, "x\0")] {
            let bytes = Hello {
                max_message,
                service,
            };
            assert_eq!(Hello::parse(&bytes.bytes()), Err(Answer::Nonsense));
        }
        for answer in Answer::ALL {
            assert_eq!(Answer::parse(&answer.bytes(7)), Some((answer, 7)));
            assert_eq!(answer.refusal().is_none(), answer == Answer::Welcome);
            assert_eq!(Answer::parse(&answer.bytes(7)[..7]), None);
        }
        assert_eq!(Answer::parse(&Answer::Welcome.bytes(0)), None);
        assert_eq!(Answer::parse(b"TDCH\x01\x05\x01\x01"), None);
    }
}
