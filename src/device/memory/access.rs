//! The access that an Mmap grants: the seven flags of DOCA, and their rules.

use crate::error::{Error, ErrorKind, Result};

bitflags::bitflags! {
    /// Access flags of an Mmap (DOCA Core guide 3.3.1; `doca_access_flags`).
    ///
    /// The default is `LOCAL_READ_WRITE`. A local device may always read, whatever the flags say.
    ///
    /// An [`Rdma`](crate::Rdma) therefore sends and writes from `LOCAL_READ_ONLY` memory; it
    /// refuses to receive or read into such memory (`NotPermitted`). NVIDIA's RDMA guide is
    /// stricter: its table of permissions (5.1.4) asks for `LOCAL_READ_WRITE` on the requester's
    /// side of every operation. The source of a send or a write is only read, which `doca_types.h`
    /// always permits a local device, and adapters register such memory (`ibv_reg_mr(3)` always
    /// grants local reads). A program that must also run on DOCA should give all its RDMA memory
    /// `LOCAL_READ_WRITE`.
    ///
    /// ```
    /// use tokio_doca::{Device, Mmap, mem::Access};
    ///
    /// # let device = Device::open_default()?;
    /// // Peers may read the memory and do atomics in it, and may not write it.
    /// let access = Access::LOCAL_READ_WRITE | Access::RDMA_READ | Access::RDMA_ATOMIC;
    /// let mmap = Mmap::builder().device(&device).access(access).alloc(4096)?;
    /// assert!(!mmap.access().contains(Access::RDMA_WRITE));
    /// assert!(mmap.access().peer_writable());             // by an atomic
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "doca_access_flags")]
    #[doc(alias = "doca_access_flag")]
    pub struct Access: u32 {
        /// Local devices may only read. This is the value 0: the absence of `LOCAL_READ_WRITE`.
        #[doc(alias = "DOCA_ACCESS_LOCAL_READ_ONLY")]
        #[doc(alias = "DOCA_ACCESS_FLAG_LOCAL_READ_ONLY")]
        const LOCAL_READ_ONLY = 0;
        /// Local devices may read and write.
        #[doc(alias = "DOCA_ACCESS_LOCAL_READ_WRITE")]
        #[doc(alias = "DOCA_ACCESS_FLAG_LOCAL_READ_WRITE")]
        const LOCAL_READ_WRITE = 1;
        /// A remote peer may read.
        #[doc(alias = "DOCA_ACCESS_RDMA_READ")]
        #[doc(alias = "DOCA_ACCESS_FLAG_RDMA_READ")]
        const RDMA_READ = 2;
        /// A remote peer may write.
        #[doc(alias = "DOCA_ACCESS_RDMA_WRITE")]
        #[doc(alias = "DOCA_ACCESS_FLAG_RDMA_WRITE")]
        const RDMA_WRITE = 4;
        /// A remote peer may do atomic operations.
        #[doc(alias = "DOCA_ACCESS_RDMA_ATOMIC")]
        #[doc(alias = "DOCA_ACCESS_FLAG_RDMA_ATOMIC")]
        const RDMA_ATOMIC = 8;
        /// The DPU may read.
        #[doc(alias = "DOCA_ACCESS_DPU_READ_ONLY")]
        #[doc(alias = "DOCA_ACCESS_FLAG_PCI_READ_ONLY")]
        const DPU_READ_ONLY = 16;
        /// The DPU may read and write.
        #[doc(alias = "DOCA_ACCESS_DPU_READ_WRITE")]
        #[doc(alias = "DOCA_ACCESS_FLAG_PCI_READ_WRITE")]
        const DPU_READ_WRITE = 32;
    }
}

impl Default for Access {
    fn default() -> Access {
        Access::LOCAL_READ_WRITE
    }
}

impl Access {
    /// Returns true if another process may write the memory. Such memory never lends safe slices.
    pub const fn peer_writable(self) -> bool {
        self.intersects(
            Access::RDMA_WRITE
                .union(Access::RDMA_ATOMIC)
                .union(Access::DPU_READ_WRITE),
        )
    }

    /// Returns true if local devices and this process may write the memory.
    pub const fn local_writable(self) -> bool {
        self.contains(Access::LOCAL_READ_WRITE)
    }

    /// Checks the rules between the flags.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for unknown flags, for both `DPU_*` flags at once, and for flags that let a
    /// peer write memory that this process may not write (the rule of `ibv_reg_mr(3)`). The error
    /// names `op` as the call that failed.
    pub fn validate(self, op: &'static str) -> Result<()> {
        let unknown = self.bits() & !Access::all().bits();
        let text = if unknown != 0 {
            format!("unknown access flags {unknown:#x}")
        } else if self.contains(Access::DPU_READ_ONLY | Access::DPU_READ_WRITE) {
            "DPU_READ_ONLY and DPU_READ_WRITE exclude each other: choose one".to_owned()
        } else if self.peer_writable() && !self.local_writable() {
            "a peer may not write what LOCAL_READ_ONLY forbids its owner: add LOCAL_READ_WRITE"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidValue, op, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_have_docas_values_and_rules() {
        let bits: Vec<u32> = Access::all().iter().map(|flag| flag.bits()).collect();
        assert_eq!(bits, [1, 2, 4, 8, 16, 32]);
        assert_eq!(Access::default(), Access::LOCAL_READ_WRITE);
        assert!(Access::default().validate("t").is_ok());
        assert!(Access::LOCAL_READ_ONLY.validate("t").is_ok());
        assert!(
            (Access::DPU_READ_ONLY | Access::DPU_READ_WRITE | Access::LOCAL_READ_WRITE)
                .validate("t")
                .is_err()
        );
        assert!(Access::RDMA_WRITE.validate("t").is_err());
        assert!(Access::from_bits_retain(64).validate("t").is_err());
    }

    #[test]
    fn peer_writable_is_decided_by_the_flags_of_the_mmap() {
        for flag in [
            Access::RDMA_WRITE,
            Access::RDMA_ATOMIC,
            Access::DPU_READ_WRITE,
        ] {
            assert!(flag.peer_writable());
        }
        for flag in [
            Access::LOCAL_READ_WRITE,
            Access::RDMA_READ,
            Access::DPU_READ_ONLY,
        ] {
            assert!(!flag.peer_writable());
        }
    }
}
