//! CRC-32C (Castagnoli) by a device, alone or together with a copy: the checksum of iSCSI, NVMe
//! over TCP, ext4 and Btrfs.
//!
//! ```
//! use tokio_doca::crc::{Crc, CrcOptions};
//! # use tokio_doca::{error::Reason, BufPool, Device, Mmap, WorkQ};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tokio_doca::Error> {
//! let device = Device::open_default()?;
//! let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
//! let crc = Crc::builder(&device).attach(&WorkQ::builder().build()?)?;
//!
//! let (block, copy) = (pool.alloc().await, pool.alloc().await);
//! block.extend_from_slice(b"123456789")?;
//! assert_eq!(crc.crc32c(&block).await?, 0xe306_9283);
//!
//! // The same message in two parts.
//! let begun = crc.crc32c(block.slice(0..4)?).await?;
//! let so_far = CrcOptions::new().seed(begun);
//! assert_eq!(crc.crc32c_with(so_far, block.slice(4..9)?).await?, 0xe306_9283);
//!
//! // Copies the block and checks its CRC: if it differs, no data is added to `copy`.
//! let digest = CrcOptions::new().expected(0xe306_9283);
//! let copied = crc.copy_crc_with(digest, &block, &copy).await?;
//! assert_eq!((copied.bytes, copied.crc), (9, 0xe306_9283));
//! let wrong = CrcOptions::new().expected(1);
//! let error = crc.copy_crc_with(wrong, &block, &copy).await.unwrap_err();
//! assert_eq!((error.reason(), copy.data_len()), (Reason::CrcMismatch, 9));
//! # Ok(())
//! # }
//! ```

mod context;
mod node;
mod request;

pub use crate::device::{CrcCaps, CrcOptions};
pub use context::{Crc, CrcBuilder};
pub use node::{CopyCrcData, CopyCrcNode, CrcData, CrcNode};
use request::CrcRequest;
pub use request::{CopyCrcOp, CrcCopied, CrcOp, combine};
