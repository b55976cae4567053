//! A file as the memory of an Mmap.
#![expect(
    unsafe_code,
    reason = "nobody but this process may change the file, which its lock says"
)]

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use tokio_doca::{Device, Mmap};

use super::Result;

/// Opens the file, or makes one of so many bytes, locks and maps it. Other programs must leave the
/// file alone as long as it is locked (flock(2)).
pub(crate) fn open(device: &Device, path: &Path, size: usize) -> Result<(Mmap, Flock<File>)> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false);
    let file = Flock::lock(file.open(path)?, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, errno)| format!("{}: another process has it: {errno}", path.display()))?;
    if file.metadata()?.len() == 0 {
        file.set_len(size as u64)?;
    }
    let len = usize::try_from(file.metadata()?.len())?;
    let bytes = NonZeroUsize::new(len).ok_or("a disk has a byte or more")?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, at an address of the kernel's choice, takes the place of none.
    let at = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, &*file, 0) }?;
    let builder = Mmap::builder().device(device);
    let unmap = |at: NonNull<u8>, len| {
        // SAFETY: it is the mapping, whose last user has gone.
        let _ = unsafe { munmap(at.cast(), len) };
    };
    // SAFETY: the mapping is readable, writable, and as long as the file; it stays until `unmap`.
    // Its address goes nowhere else, and who keeps to the lock does not touch the file.
    let mmap = unsafe { builder.from_raw(at.cast(), len, unmap) }?;
    Ok((mmap, file))
}
