//! What both sides of the file transfer share: the messages, the slots of the exported memory, and
//! the file itself.
//!
//! ```text
//!   host                                              DPU
//!   Offer or Want: slots, a blob   ---------------->  imports the memory
//!                                  <----------------  Accept, or Refuse and why
//!   the sender, either side: fills a slot, says Full -> the receiver: empties it, says Free
//!                     all sent: End, its CRC-32C --->  the same? keeps the file, says Kept
//! ```
//!
//! The host's CPU fills or empties the slots, and DMA jobs of the DPU do the opposite, depending on
//! the direction of the transfer.
#![allow(dead_code, unreachable_pub, reason = "each side uses its own part")]

mod file;
mod message;
mod progress;

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::timeout;
use tokio_doca::channel::Channel;

use super::Result;
pub use file::{Part, open};
pub use message::Message;
pub(crate) use progress::Progress;

pub const SERVICE: &str = "file transfer";
/// The size of a slot in bytes. The last slot of a file may be partly filled.
pub const SLOT: usize = 1 << 20;
/// The number of slots. The host reads or writes one while the DPU copies another.
pub const SLOTS: usize = 3;
/// The time limit for an answer of the other side, and for a copy.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Receives the next message. If the other side refuses, fails with its reason.
pub async fn hear(channel: &Channel) -> Result<Message> {
    let late = |_| format!("the other side said nothing within {LIMIT:?}");
    let bytes = timeout(LIMIT, channel.recv()).await.map_err(late)??;
    match Message::parse(&bytes)? {
        Message::Refuse { why } => Err(format!("the other side: {why}").into()),
        message => Ok(message),
    }
}

pub async fn say(channel: &Channel, message: &Message) -> Result<()> {
    let late = |_| format!("the other side took nothing within {LIMIT:?}");
    let bytes = message.bytes();
    let sent = timeout(LIMIT, channel.send(&bytes)).await.map_err(late)?;
    match sent {
        Ok(()) => Ok(()),
        Err(error) => Err(last_words(channel).await.unwrap_or_else(|| error.into())),
    }
}

/// Returns the reason why the other side has gone, if it gave one.
async fn last_words(channel: &Channel) -> Option<Box<dyn std::error::Error + Send + Sync>> {
    while let Ok(bytes) = channel.recv().await {
        if let Ok(Message::Refuse { why }) = Message::parse(&bytes) {
            return Some(format!("the other side: {why}").into());
        }
    }
    None
}

/// Tells the other side why the transfer ends, disconnects, and returns the reason as an error.
pub async fn fail<T>(channel: &Channel, why: String) -> Result<T> {
    let _ = say(channel, &Message::Refuse { why: why.clone() }).await;
    let _ = timeout(LIMIT, channel.disconnect()).await;
    Err(why.into())
}

/// Sends a file of `len` bytes. `fill` writes bytes into a slot.
pub async fn send(
    channel: &Channel,
    file: &mut std::fs::File,
    len: u64,
    progress: &mut Progress,
    fill: impl AsyncFn(usize, &[u8]) -> Result<()>,
) -> Result<u32> {
    use std::io::Read;
    let mut free: VecDeque<usize> = (0..SLOTS).collect();
    let mut hasher = 0;
    let mut piece = vec![0; SLOT];
    let mut sent = 0;
    while sent < len {
        let slot = match free.pop_front() {
            Some(slot) => slot,
            None => freed(channel).await?,
        };
        let bytes = &mut piece[..SLOT.min((len - sent) as usize)];
        file.read_exact(bytes)?;
        hasher = crc32c::crc32c_append(hasher, bytes);
        fill(slot, bytes).await?;
        say(
            channel,
            &Message::Full {
                slot,
                len: bytes.len(),
            },
        )
        .await?;
        sent += bytes.len() as u64;
        progress.at(sent);
    }
    let crc = hasher;
    say(channel, &Message::End { crc, len }).await?;
    loop {
        match hear(channel).await? {
            Message::Free { .. } => {}
            Message::Kept => return Ok(crc),
            other => return Err(format!("{other:?} was not to be said").into()),
        }
    }
}

async fn freed(channel: &Channel) -> Result<usize> {
    match hear(channel).await? {
        Message::Free { slot } if slot < SLOTS => Ok(slot),
        other => Err(format!("{other:?} was not to be said").into()),
    }
}

/// Receives a file of `whole` bytes, and keeps it if it is complete. `empty` reads bytes out of a
/// slot.
pub async fn receive(
    channel: &Channel,
    whole: u64,
    mut part: Part,
    progress: &mut Progress,
    empty: impl AsyncFn(usize, &mut [u8]) -> Result<()>,
) -> Result<(u64, u32)> {
    let mut hasher = 0;
    let mut piece = vec![0; SLOT];
    let mut got = 0;
    loop {
        match hear(channel).await? {
            Message::Full { len, .. } if len as u64 > whole - got => {
                return Err(format!("more than the {whole} bytes that were said").into());
            }
            Message::Full { slot, len } if slot < SLOTS && len <= SLOT => {
                let bytes = &mut piece[..len];
                empty(slot, bytes).await?;
                say(channel, &Message::Free { slot }).await?;
                hasher = crc32c::crc32c_append(hasher, bytes);
                part.write(bytes)?;
                got += len as u64;
                progress.at(got);
            }
            Message::End { crc, len } => {
                let ours = hasher;
                if (ours, got) != (crc, len) {
                    return Err(format!(
                        "{got} bytes with the CRC-32C {ours:08x} came, and {len} with {crc:08x} were sent"
                    )
                    .into());
                }
                part.keep()?;
                say(channel, &Message::Kept).await?;
                return Ok((got, crc));
            }
            other => return Err(format!("{other:?} was not to be said").into()),
        }
    }
}
