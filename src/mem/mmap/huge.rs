//! The kinds of huge pages, and the error text when there are too few.

use nix::sys::memfd::MFdFlags;

const MIB: usize = 1 << 20;

/// A kind of huge pages for an Mmap's memory (Linux: hugetlbpage, transhuge).
///
/// Huge pages make page faults and address translation cheaper, but hardly speed up copies. They
/// pay off for ranges of many MiB that an adapter accesses at random.
///
/// ```
/// use tokio_doca::{Device, Mmap, mem::HugePages};
///
/// # let device = Device::open_default()?;
/// let pages = |pages| Mmap::builder().device(&device).huge_pages(pages).alloc(4 << 20);
/// // From the pool of the system, or where the kernel finds some.
/// let mmap = pages(HugePages::Size2MiB).or_else(|_| pages(HugePages::Transparent))?;
/// # assert_eq!(mmap.len(), 4 << 20);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Huge pages where the kernel finds some, and usual pages elsewhere. The request is advice
    /// (`MADV_HUGEPAGE`), which never fails.
    Transparent,
    /// Pages of 2 MiB out of the pool that `vm.nr_hugepages` sets. The allocation fails if there
    /// are too few.
    Size2MiB,
    /// Pages of 1 GiB out of their pool. The allocation fails if there are too few.
    Size1GiB,
}

impl HugePages {
    /// Returns the size of a page in bytes, or `None` if pages come from no pool.
    pub(super) fn page(self) -> Option<usize> {
        match self {
            HugePages::Transparent => None,
            HugePages::Size2MiB => Some(2 * MIB),
            HugePages::Size1GiB => Some(1024 * MIB),
        }
    }

    /// Returns the flags of memfd_create(2) that request such pages.
    pub(super) fn flags(self) -> MFdFlags {
        match self {
            HugePages::Transparent => MFdFlags::empty(),
            HugePages::Size2MiB => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
            HugePages::Size1GiB => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
        }
    }
}

/// Returns the error text for `len` bytes in pages of `page` bytes that cannot be allocated.
pub(super) fn too_few(len: usize, page: usize) -> String {
    let need = len.div_ceil(page);
    let kib = page >> 10;
    let pool = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB");
    let read = |name: &str| std::fs::read_to_string(format!("{pool}/{name}")).ok();
    let have = match (read("free_hugepages"), read("nr_hugepages")) {
        (Some(free), Some(all)) => format!("{} of {} are free", free.trim(), all.trim()),
        _ => "the kernel has no such pool".to_owned(),
    };
    let mib = page / MIB;
    let setting = match page / MIB {
        2 => "vm.nr_hugepages".to_owned(),
        _ => format!("vm.nr_hugepages (of that size: {pool}/nr_hugepages)"),
    };
    format!(
        "{len} bytes need {need} huge pages of {mib} MiB, and {have}: raise {setting}, or take HugePages::Transparent"
    )
}
