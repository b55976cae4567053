//! The messages of the exchange, before two sides are connected (docs/wire.md). Each message is a
//! frame of a [`Channel`](crate::channel)'s codec: a length of four bytes, and then the bytes of
//! this module.

use std::fmt;

const MAGIC: [u8; 4] = *b"TDST";

/// The version of the exchange and of the frames of a stream.
pub(super) const VERSION: u8 = 2;

/// The maximum number of bytes of the application's data.
pub(super) const DATA_MAX: usize = 16 << 10;

/// The maximum length of the reason of a refusal, in bytes.
const REASON_MAX: usize = 512;

/// The minimum of a side's maximum frame length: each frame with data costs both sides, however
/// short.
pub(super) const FRAME_MIN: u32 = 64;

/// The reason of a refusal if a side cannot connect with its peer. The side's own error says why.
pub(super) const CANNOT_CONNECT: &str = "cannot connect";

/// The reasons of a refusal if a listener has no memory for the peer, and if the listener drains.
pub(super) const BUSY: &str = "all streams are in use";
pub(super) const DRAINS: &str = "the listener drains";

/// The reason of a refusal if one side demands RDMA, and the two sides have none in common.
pub(super) const NO_RDMA: &str = "there is no RDMA between both sides, and one of them demands it";

/// The flag of an offer which permits the stream to continue over the connection of the exchange.
pub(super) const MAY_TCP: u16 = 1;

/// The maximum length of a message, in bytes: an offer with the longest data.
pub(super) const LEN_MAX: usize = 16 + 1024 + DATA_MAX;

/// The first bytes of each side's private data by rdma_cm, after the greeting that each `Rdma`
/// sends.
const CM_HEAD: [u8; 2] = [b'S', VERSION];

/// The maximum length of a reason by rdma_cm, in bytes.
const CM_REASON_MAX: usize = 146;

/// The maximum number of bytes of application data that rdma_cm carries, from a connector
/// (`CM_HELLO_MAX`) and from a listener (`CM_WELCOME_MAX`).
pub(super) const CM_HELLO_MAX: usize = 24;
pub(super) const CM_WELCOME_MAX: usize = 164;

/// A side's offer to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer<'a> {
    /// The length of the longest frame that the side takes, including the header.
    pub(super) frame: u32,
    /// The first credits of a listener. A connector gives its first credits in its first frame
    /// instead.
    pub(super) credits: u16,
    /// [`MAY_TCP`]. The other bits are reserved: a side sends 0, and ignores them.
    pub(super) flags: u16,
    /// The blob with which the other side's `Rdma` connects. It is empty if the stream is to
    /// continue over the connection of the exchange.
    pub(super) blob: &'a [u8],
    /// The application's data.
    pub(super) data: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// The connector's offer (`Hello`), and the listener's offer (`Welcome`).
    Hello(Offer<'a>),
    Welcome(Offer<'a>),
    /// The connector is connected.
    Ready,
    /// The side does not connect, for this reason in plain text.
    Refusal(&'a str),
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The peer speaks this other version.
    Version(u8),
    Nonsense,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Version(theirs) => write!(
                f,
                "the peer speaks version {theirs} of the exchange, and this side version \
                 {VERSION}: use the same release of this library on both sides"
            ),
            Wrong::Nonsense => f.write_str("what the peer says is no message of the exchange"),
        }
    }
}

/// Returns the longest prefix of a reason that has at most `most` bytes.
fn cut(reason: &str, most: usize) -> &str {
    let mut ends = (0..=reason.len().min(most)).rev();
    let end = ends.find(|&end| reason.is_char_boundary(end));
    &reason[..end.unwrap_or(0)]
}

impl Message<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (kind, offer) = match self {
            Message::Hello(offer) => (0, Some(offer)),
            Message::Welcome(offer) => (1, Some(offer)),
            Message::Ready => (2, None),
            Message::Refusal(_) => (3, None),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, kind]);
        if let Some(offer) = offer {
            bytes.extend(offer.frame.to_be_bytes());
            bytes.extend(offer.credits.to_be_bytes());
            bytes.extend(offer.flags.to_be_bytes());
            bytes.extend((offer.blob.len() as u16).to_be_bytes());
            bytes.extend(offer.blob);
            bytes.extend(offer.data);
        }
        if let Message::Refusal(reason) = self {
            bytes.extend(cut(reason, REASON_MAX).as_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Message<'_>, Wrong> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(Wrong::Nonsense)?;
        let (&[version, kind], rest) = rest.split_first_chunk().ok_or(Wrong::Nonsense)?;
        if version != VERSION {
            return Err(Wrong::Version(version));
        }
        let message = match kind {
            0 => Offer::parse(rest).map(Message::Hello),
            1 => Offer::parse(rest).map(Message::Welcome),
            2 if rest.is_empty() => Some(Message::Ready),
            3 if rest.len() <= REASON_MAX => std::str::from_utf8(rest).ok().map(Message::Refusal),
            _ => None,
        };
        message.ok_or(Wrong::Nonsense)
    }
}

impl Offer<'_> {
    /// Returns true if the stream is to continue over the connection of the exchange.
    pub(super) fn is_tcp(&self) -> bool {
        self.blob.is_empty()
    }

    pub(super) fn may_tcp(&self) -> bool {
        self.flags & MAY_TCP != 0
    }

    fn parse(bytes: &[u8]) -> Option<Offer<'_>> {
        let (frame, rest) = bytes.split_first_chunk()?;
        let (credits, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (blob, data) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        let offer = Offer {
            frame: u32::from_be_bytes(*frame),
            credits: u16::from_be_bytes(*credits),
            flags: u16::from_be_bytes(*flags),
            blob,
            data,
        };
        let fits = offer.frame >= FRAME_MIN && data.len() <= DATA_MAX;
        fits.then_some(offer)
    }
}

/// Returns the private data that a side sends by rdma_cm: the length of the longest frame that it
/// takes, and the application's data.
pub(super) fn cm_offer(frame: usize, data: &[u8]) -> Vec<u8> {
    [&CM_HEAD, &(frame as u32).to_be_bytes()[..], data].concat()
}

/// Parses the private data of the other side: its frame length, and the application's data.
pub(super) fn parse_cm_offer(bytes: &[u8]) -> Result<(u32, &[u8]), Wrong> {
    let (frame, data) = cm_rest(bytes)?.split_first_chunk().ok_or(Wrong::Nonsense)?;
    let frame = u32::from_be_bytes(*frame);
    match frame >= FRAME_MIN {
        true => Ok((frame, data)),
        false => Err(Wrong::Nonsense),
    }
}

/// Returns the private data of a refusal, with the reason cut to `CM_REASON_MAX` bytes.
pub(super) fn cm_refusal(reason: &str) -> Vec<u8> {
    [&CM_HEAD, cut(reason, CM_REASON_MAX).as_bytes()].concat()
}

pub(super) fn parse_cm_refusal(bytes: &[u8]) -> Result<&str, Wrong> {
    std::str::from_utf8(cm_rest(bytes)?).map_err(|_| Wrong::Nonsense)
}

/// Returns the bytes after the magic byte and the version.
fn cm_rest(bytes: &[u8]) -> Result<&[u8], Wrong> {
    match bytes {
        [magic, VERSION, rest @ ..] if *magic == CM_HEAD[0] => Ok(rest),
        [magic, version, ..] if *magic == CM_HEAD[0] => Err(Wrong::Version(*version)),
        _ => Err(Wrong::Nonsense),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn offers_are_read_as_they_were_written(
            (frame, credits, flags) in (FRAME_MIN.., any::<u16>(), any::<u16>()),
            blob in prop::collection::vec(any::<u8>(), 0..1024),
            data in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let offer = Offer { frame, credits, flags, blob: &blob, data: &data };
            for message in [Message::Hello(offer), Message::Welcome(offer)] {
                let bytes = message.bytes();
                prop_assert_eq!(Message::parse(&bytes), Ok(message));
            }
        }

        #[test]
        fn what_rdma_cm_carries_has_one_form(
            head in prop::sample::select(vec![&b""[..], b"S", b"S\x02", b"S\x02\0\0\x01"]),
            tail in prop::collection::vec(any::<u8>(), 0..30),
        ) {
            let bytes = [head, &tail].concat();
            if let Ok((frame, data)) = parse_cm_offer(&bytes) {
                prop_assert_eq!(cm_offer(frame as usize, data), bytes.clone());
            }
            if let Ok(reason) = parse_cm_refusal(&bytes) {
                prop_assert_eq!(cm_refusal(reason), bytes);
            }
        }

        #[test]
        fn garbage_is_refused_or_has_one_form(
            head in prop::sample::select(vec![&b""[..], b"TDST", b"TDST\x02", b"TDST\x02\x00"]),
            tail in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let bytes = [head, &tail].concat();
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.bytes(), bytes);
            }
        }
    }

    #[test]
    fn another_version_is_told_from_nonsense_and_reasons_are_cut() {
        assert_eq!(Message::parse(b"TDST\x01?"), Err(Wrong::Version(1)));
        assert_eq!(Message::parse(b"TDSX\x02\x02"), Err(Wrong::Nonsense));
        assert_eq!(Message::parse(&Message::Ready.bytes()), Ok(Message::Ready));
        let other = b"S\x03\0\0\x10\0";
        assert_eq!(parse_cm_offer(other), Err(Wrong::Version(3)));
        assert_eq!(parse_cm_refusal(other), Err(Wrong::Version(3)));
        for wrong in [&b"S\x02\0\0\0\x3f"[..], b"R\x02\0\0\x10\0", b"S\x02\0\0"] {
            assert_eq!(parse_cm_offer(wrong), Err(Wrong::Nonsense));
        }
        assert_eq!(parse_cm_refusal(&cm_refusal("")), Ok(""));
        let long = "ä".repeat(REASON_MAX);
        let bytes = Message::Refusal(&long).bytes();
        let cut = Message::Refusal(&long[..REASON_MAX]);
        assert_eq!(Message::parse(&bytes), Ok(cut));
    }
}
