//! Exported memory, in the form that programs without this library use.

use super::blob::{BlobOrigin, MemoryBlob};
use crate::device::Access;
use crate::error::{Error, ErrorKind, Result};

/// The address, the length and the key of exported memory, as the peers of a connection use them.
///
/// [`Mmap::export_rdma`](crate::Mmap::export_rdma) and
/// [`RemoteMmap::from_export`](crate::mem::RemoteMmap::from_export) carry the address in a blob. A
/// program without this library has another format for the same data. This type is for exchanging
/// addresses with such a program.
///
/// ```no_run
/// use tokio_doca::verbs::MemoryAddress;
/// use tokio_doca::{Device, Mmap, mem::{Access, RemoteMmap}};
///
/// # async fn both(theirs: MemoryAddress) -> tokio_doca::Result<()> {
/// let device = Device::open("mlx5_0")?;
/// let access = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
/// let mmap = Mmap::builder().device(&device).access(access).alloc(4096)?;
/// // Send these two numbers to the peer:
/// let MemoryAddress { addr, len, rkey } = MemoryAddress::of(&mmap.export_rdma(&device)?)?;
/// println!("{len} bytes at {addr:#x}, key {rkey:#x}");
/// // The peer has sent these numbers of its own:
/// let remote = RemoteMmap::from_export(&device, &theirs.to_blob(Access::RDMA_READ)?).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAddress {
    /// The address of the first byte, in the exporter's address space.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// The adapter's key for the memory (`ibv_mr::rkey`).
    pub rkey: u32,
}

impl MemoryAddress {
    /// Reads the address from a blob that an Mmap on an adapter has exported.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `blob` is not such a blob.
    pub fn of(blob: &[u8]) -> Result<MemoryAddress> {
        let blob = MemoryBlob::parse(blob).map_err(|error| error.with_call("MemoryAddress::of"))?;
        let MemoryBlob {
            addr, len, rkey, ..
        } = blob;
        Ok(MemoryAddress { addr, len, rkey })
    }

    /// Returns a blob for [`RemoteMmap::from_export`](crate::mem::RemoteMmap::from_export), for
    /// memory of a peer that does not use this library, and that permits `access`. The peer's
    /// adapter checks the access: an operation that the peer does not permit fails, and ends the
    /// connection.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the memory is empty, begins at 0 or ends beyond the last address, or for
    /// an access other than `RDMA_READ`, `RDMA_WRITE` and `RDMA_ATOMIC`.
    pub fn to_blob(&self, access: Access) -> Result<Vec<u8>> {
        let MemoryAddress { addr, len, rkey } = *self;
        let blob = MemoryBlob {
            origin: BlobOrigin::FOREIGN,
            addr,
            len,
            rkey,
            access,
        };
        let bytes = blob.format();
        // The rules are those for a blob that was received.
        if MemoryBlob::parse(&bytes).is_ok() {
            return Ok(bytes);
        }
        let text = format!(
            "{self:?} with {access:?}: {len} bytes at {addr:#x} must be some, end below 2^64, and permit RDMA_READ, RDMA_WRITE or RDMA_ATOMIC"
        );
        Err(Error::new(
            ErrorKind::InvalidValue,
            "MemoryAddress::to_blob",
            text,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_program_becomes_a_blob() {
        let address = MemoryAddress {
            addr: 0x7f00_0000_1000,
            len: 64,
            rkey: 0x1234,
        };
        let blob = address.to_blob(Access::RDMA_READ).unwrap();
        assert_eq!(MemoryAddress::of(&blob).unwrap(), address);
        let parsed = MemoryBlob::parse(&blob).unwrap();
        assert_eq!(parsed.access, Access::RDMA_READ);
        assert!(parsed.origin.is_foreign() && !parsed.origin.is_own());
        let wrong = [
            MemoryAddress { addr: 0, ..address },
            MemoryAddress { len: 0, ..address },
            MemoryAddress {
                len: u64::MAX,
                ..address
            },
        ];
        for address in wrong {
            let error = address.to_blob(Access::RDMA_READ).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
        }
        for access in [Access::empty(), Access::LOCAL_READ_WRITE] {
            let error = address.to_blob(access).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
        }
    }
}
