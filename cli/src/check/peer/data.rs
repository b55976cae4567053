//! The bytes that a check sends in each direction.

use std::io;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::transfer::FRAME;

/// The number of bytes that are sent in each direction.
pub(super) const BYTES: usize = 16 << 20;

pub(super) type Sum = [u8; 32];

/// Sends bytes that differ between chunks and between runs, and returns their SHA-256.
pub(super) async fn give(to: &mut (impl AsyncWrite + Unpin)) -> io::Result<Sum> {
    let mut chunk = vec![0; FRAME];
    getrandom::fill(&mut chunk).map_err(io::Error::other)?;
    let mut sum = Sha256::new();
    for number in 0..(BYTES / FRAME) as u64 {
        chunk[..8].copy_from_slice(&number.to_be_bytes());
        sum.update(&chunk);
        to.write_all(&chunk).await?;
    }
    to.flush().await?;
    Ok(sum.finalize().into())
}

/// Receives the bytes that `give` sends, and returns their SHA-256.
pub(super) async fn take(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Sum> {
    let (mut chunk, mut sum) = (vec![0; FRAME], Sha256::new());
    for _ in 0..BYTES / FRAME {
        from.read_exact(&mut chunk).await?;
        sum.update(&chunk);
    }
    Ok(sum.finalize().into())
}
