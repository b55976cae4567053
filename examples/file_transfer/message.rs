//! The messages that both sides send over the Channel.

use super::Result;

#[derive(Debug)]
pub enum Message {
    /// The host offers a file of `len` bytes, in memory with this export blob.
    Offer { len: u64, blob: Vec<u8> },
    /// The host requests a file, to be written into memory with this export blob.
    Want { blob: Vec<u8> },
    /// The DPU agrees. `len` is the file's size in bytes.
    Accept { len: u64 },
    /// The sender of this message gives up.
    Refuse { why: String },
    /// A slot has `len` bytes for the other side.
    Full { slot: usize, len: usize },
    /// A slot can be filled again.
    Free { slot: usize },
    /// The whole file was sent: `len` bytes, with this CRC-32C.
    End { crc: u32, len: u64 },
    /// The file is complete, and the receiver has kept it.
    Kept,
}

impl Message {
    pub fn bytes(&self) -> Vec<u8> {
        let with = |kind: u8, first: u64, second: u64, rest: &[u8]| {
            let mut bytes = vec![kind];
            bytes.extend_from_slice(&first.to_be_bytes());
            bytes.extend_from_slice(&second.to_be_bytes());
            // A reason may be too long for a message, so that it is cut off.
            bytes.extend_from_slice(&rest[..rest.len().min(2000)]);
            bytes
        };
        match self {
            Message::Offer { len, blob } => with(b'O', *len, 0, blob),
            Message::Want { blob } => with(b'W', 0, 0, blob),
            Message::Accept { len } => with(b'A', *len, 0, &[]),
            Message::Refuse { why } => with(b'R', 0, 0, why.as_bytes()),
            Message::Full { slot, len } => with(b'F', *slot as u64, *len as u64, &[]),
            Message::Free { slot } => with(b'f', *slot as u64, 0, &[]),
            Message::End { crc, len } => with(b'E', (*crc).into(), *len, &[]),
            Message::Kept => with(b'K', 0, 0, &[]),
        }
    }

    pub fn parse(bytes: &[u8]) -> Result<Message> {
        let parts = || {
            let (&kind, rest) = bytes.split_first()?;
            let (first, rest) = rest.split_first_chunk()?;
            let (second, rest) = rest.split_first_chunk()?;
            Some((
                kind,
                u64::from_be_bytes(*first),
                u64::from_be_bytes(*second),
                rest,
            ))
        };
        let message = |(kind, first, second, rest): (u8, u64, u64, &[u8])| {
            Some(match kind {
                b'O' => Message::Offer {
                    len: first,
                    blob: rest.to_vec(),
                },
                b'W' => Message::Want {
                    blob: rest.to_vec(),
                },
                b'A' => Message::Accept { len: first },
                b'R' => Message::Refuse {
                    why: String::from_utf8_lossy(rest).escape_debug().to_string(),
                },
                b'F' => Message::Full {
                    slot: first.try_into().ok()?,
                    len: second.try_into().ok()?,
                },
                b'f' => Message::Free {
                    slot: first.try_into().ok()?,
                },
                b'E' => Message::End {
                    crc: first.try_into().ok()?,
                    len: second,
                },
                b'K' => Message::Kept,
                _ => return None,
            })
        };
        let message = parts().and_then(message);
        message.ok_or_else(|| "the other side speaks another language".into())
    }
}
