//! The bytes that go each way.

use std::io;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::transfer::FRAME;

/// How many go each way.
pub(super) const BYTES: usize = 16 << 20;

pub(super) type Sum = [u8; 32];

/// Sends bytes that no other run sends, each chunk another one, and returns their sum.
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

/// Receives them, and returns their sum.
pub(super) async fn take(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Sum> {
    let (mut chunk, mut sum) = (vec![0; FRAME], Sha256::new());
    for _ in 0..BYTES / FRAME {
        from.read_exact(&mut chunk).await?;
        sum.update(&chunk);
    }
    Ok(sum.finalize().into())
}
