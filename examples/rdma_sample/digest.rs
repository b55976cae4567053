//! Digests by which the two sides check that they have the same bytes.

use tokio_doca::{Rdma, mem::Access};

use super::{Result, bytes, holding, room};

/// Length and CRC-32C of some bytes. A digest that is sent as a message also tells the peer that
/// this side has reached that step.
#[derive(Clone, Copy, PartialEq)]
pub struct Digest {
    len: u32,
    crc: u32,
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest {
            len: bytes.len() as u32,
            crc: crc32c::crc32c(bytes),
        }
    }

    /// Sends the digest to the peer.
    pub async fn send(self, rdma: &Rdma) -> Result<()> {
        let mut message = self.len.to_le_bytes().to_vec();
        message.extend(self.crc.to_le_bytes());
        let (_, src) = holding(rdma.device(), Access::default(), &message)?;
        rdma.send(&src).await?;
        Ok(())
    }

    /// Receives the peer's digest.
    pub async fn receive(rdma: &Rdma) -> Result<Digest> {
        let (_, dst) = room(rdma.device(), Access::default(), 8)?;
        rdma.recv(&dst).await?;
        let Ok([a, b, c, d, e, f, g, h]) = <[u8; 8]>::try_from(bytes(&dst)?) else {
            return Err("the peer sent something else than a digest".into());
        };
        Ok(Digest {
            len: u32::from_le_bytes([a, b, c, d]),
            crc: u32::from_le_bytes([e, f, g, h]),
        })
    }

    /// Fails if the digest of `bytes` differs from this one.
    pub fn check(self, bytes: &[u8]) -> Result<()> {
        let here = Digest::of(bytes);
        match here == self {
            true => Ok(()),
            false => Err(format!(
                "{} bytes of CRC-32C {:08x} are here, and {} of {:08x} at the peer",
                here.len, here.crc, self.len, self.crc
            )
            .into()),
        }
    }
}
