//! A file as the memory of an Mmap.
#![expect(
    unsafe_code,
    reason = "only this process may change the file, and its lock says so"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::NonNull;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, posix_fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use tokio_doca::mem::Access;
use tokio_doca::{Device, Mmap};

use super::{Result, file_limit};

/// How long to wait for the lock: a process that was killed holds it until its memory is freed.
const DYING: Duration = Duration::from_secs(2);

fn lock(mut file: File) -> Result<Flock<File>, Errno> {
    let end = Instant::now() + DYING;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((again, Errno::EAGAIN)) if Instant::now() < end => file = again,
            Err((_, errno)) => return Err(errno),
        }
        sleep(Duration::from_millis(10));
    }
}

/// Returns the length of the disk for a file that has `had` bytes.
fn len_of(had: u64, size: usize, write: bool) -> Result<usize> {
    match had {
        0 if write => Ok(size),
        _ => Ok(had.try_into()?),
    }
}

/// Opens the file, or creates it. Returns the file, and true if it was created.
fn open_or_create(options: &mut OpenOptions, path: &Path, write: bool) -> io::Result<(File, bool)> {
    if write {
        match options.create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return Ok((created?, true)),
        }
    }
    Ok((options.create_new(false).open(path)?, false))
}

/// Opens the file, or creates one of `size` bytes, then locks and maps it. Other programs must not
/// touch the file while it is locked (flock(2)). If a file was created but cannot become a disk, it
/// is removed.
///
/// All blocks of a writable file are allocated here, because the kernel kills a process that writes
/// to a hole of a mapping when the file system is full. A bad sector still has this effect, and so
/// has a full file system that copies on write.
pub(crate) fn open(
    device: &Device,
    path: &Path,
    size: usize,
    read_only: bool,
) -> Result<(Mmap, Flock<File>)> {
    let (write, mut options) = (!read_only, File::options());
    if write {
        // The limit is checked before a file is created.
        let had = std::fs::metadata(path).map_or(0, |it| it.len());
        file_limit::allows(len_of(had, size, write)?)?;
    }
    let (file, created) = open_or_create(options.read(true).write(write), path, write)?;
    let file = lock(file)
        .map_err(|errno| format!("{}: another process has it: {errno}", path.display()))?;
    if file.metadata()?.nlink() == 0 {
        return Err(format!("{}: another process has removed it", path.display()).into());
    }
    let mapped = map(device, path, &file, size, write);
    if mapped.is_err() && created {
        // The file is removed under its lock. If that fails, the error of `map` is the more useful
        // one.
        let _ = std::fs::remove_file(path);
    }
    Ok((mapped?, file))
}

fn map(device: &Device, path: &Path, file: &File, size: usize, write: bool) -> Result<Mmap> {
    let had = file.metadata()?.len();
    let len = len_of(had, size, write)?;
    let bytes = NonZeroUsize::new(len).ok_or("a disk has a byte or more")?;
    let (access, protection) = match write {
        true => (
            Access::LOCAL_READ_WRITE,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        ),
        false => (Access::LOCAL_READ_ONLY, ProtFlags::PROT_READ),
    };
    if write && let Err(errno) = posix_fallocate(file, 0, len.try_into()?) {
        // The failed allocation may have extended the file in part.
        file.set_len(had)?;
        return Err(format!("{}: no room for the disk: {errno}", path.display()).into());
    }
    // SAFETY: a new mapping, at an address that the kernel chooses, replaces no other mapping.
    let at = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, 0) }?;
    let builder = Mmap::builder().device(device).access(access);
    let unmap = |at: NonNull<u8>, len| {
        // SAFETY: this is the whole mapping, and it has no user left.
        let _ = unsafe { munmap(at.cast(), len) };
    };
    // SAFETY: the mapping is as long as the file, readable, and writable if `access` says so. It
    // stays until `unmap`. Its address is passed to nothing else, and processes that respect the
    // lock do not touch the file.
    let mmap = unsafe { builder.from_raw(at.cast(), len, unmap) }?;
    Ok(mmap)
}
