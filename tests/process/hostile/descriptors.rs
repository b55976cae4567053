//! Hostile importers against an honest exporter: attacks with the descriptors that an importer
//! gets.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::forged::victim::{LEN, Victim};
use crate::forged::{Blob, connect, event, receive, send};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::ftruncate;
use support::events::between;
use support::peer::unhex;
use support::test_name;
use support::{LIMIT, pattern, programs};
use tokio_doca::soft::Soft;
use tokio_doca::{
    ErrorKind, Mmap,
    mem::{Access, RemoteMmap},
};

#[test]
fn what_an_importer_may_only_read_cannot_be_changed_by_any_call() {
    if programs::is_emulated("refuse a mapping as the kernel does") {
        return;
    }
    let test = test_name!(what_an_importer_may_only_read_cannot_be_changed_by_any_call);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let [memory, control] = victim.descriptors(&victim.read);
    let [_, same] = victim.descriptors(&victim.write);
    for fd in [&memory, &control, &same] {
        refuses_to_change(fd);
        cannot_be_written(fd);
        // Opens the file again, with all flags that the kernel permits.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        for truncate in [false, true] {
            let mut options = std::fs::OpenOptions::new();
            let opened = options
                .read(true)
                .write(true)
                .truncate(truncate)
                .open(&path);
            if let Ok(file) = opened {
                let fd = OwnedFd::from(file);
                refuses_to_change(&fd);
                cannot_be_written(&fd);
            }
        }
    }
    // This comes last, because a lease would keep this process from opening the memory again.
    assert!(!flips_flags(&memory), "a lease");
    // The control page is not opened again.
    flips_flags(&control);
    victim.survived("all that can be done to what may only be read", false);
    victim.peer.ends();
}

#[test]
fn what_an_importer_may_write_it_may_write_and_nothing_else() {
    let test = test_name!(what_an_importer_may_write_it_may_write_and_nothing_else);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let [memory, _control] = victim.descriptors(&victim.write);
    refuses_to_change(&memory);
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path);
    assert!(opened.is_err(), "it was truncated");
    victim.survived("attempts to resize and to seal", false);
    let punch = || {
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&memory, mode, 0, LEN as i64).unwrap();
    };
    for _ in 0..20 {
        nix::sys::uio::pwrite(&memory, &pattern(3, LEN), 0).unwrap();
        punch();
        let (write, _) = victim.works();
        assert_eq!(write, crc32c::crc32c(&[0; LEN]).to_string());
    }
    // Memory with a hole cannot be imported: the importer would have to pay for its pages.
    punch();
    let error = RemoteMmap::from_export(&victim.device, &victim.blobs[0]).wait();
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotPermitted);
    victim.peer.say("fill");
    victim.peer.hear();
    victim.survived("scribbles and holes", true);
    assert!(!flips_flags(&memory), "a lease");
    victim.survived("flags of the memory", true);
    victim.peer.ends();
}

#[test]
fn a_lease_on_a_memfd_of_the_applications_keeps_nobody_waiting() {
    if programs::is_emulated("populate memory that is mapped") {
        return;
    }
    let test = test_name!(a_lease_on_a_memfd_of_the_applications_keeps_nobody_waiting);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    victim.peer.say("export a memfd");
    let bytes = unhex(&victim.peer.hear());
    let [memory, _] = victim.descriptors(&Blob::parse(&bytes));
    if !flips_flags(&memory) {
        println!("this kernel gives no lease on it");
    } else {
        let import = RemoteMmap::from_export(&victim.device, &bytes).timeout(LIMIT);
        let error = import.wait().unwrap_err();
        assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}");
        victim.honest();
    }
    // A child that another test is starting may have a copy of the descriptor, and thus of the
    // lease, until execve.
    give_lease_back(&memory);
    drop(memory);
    let import = RemoteMmap::from_export(&victim.device, &bytes).timeout(LIMIT);
    import.wait().unwrap();
    victim.peer.say("drop");
    victim.peer.hear();
    victim.survived("a lease", false);
    victim.peer.ends();
}

/// An importer punches a hole into the counter's memory, which delays any thread that touches it.
/// The thread that answers all importers does not touch it.
#[test]
fn an_importer_that_punches_a_counter_holds_up_no_thread_that_answers() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let builder = Mmap::builder().device(&device);
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
    let mmap = builder.access(access).alloc(LEN).unwrap();
    // Without a WorkQ no thread polls the counter by itself.
    let owner = between(&device).backing(&mmap, 64).start().unwrap();
    let blob = owner.export_dpu(&device).unwrap();
    let former = event::knock(&blob);
    let [_page, memory] = event::welcomed(&former);
    // A child that another test is starting may have a copy of the socket until execve.
    shutdown(former.as_raw_fd(), Shutdown::Both).unwrap();
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&memory, mode, 0, LEN as i64).unwrap();
    let paid = || nix::sys::stat::fstat(&memory).unwrap().st_blocks;
    assert_eq!(paid(), 0);
    let next = event::knock(&blob);
    let _memory = event::welcomed(&next);
    // An importer that sends nonsense is disconnected, once the thread is done with the one before.
    let after = connect(&event::name(&blob));
    send(&after, b"x", &[]).unwrap();
    assert!(receive(&after).0.is_empty());
    assert_eq!(paid(), 0, "the thread has touched the counter");
    assert_eq!(owner.get(), Ok(0));
    assert!(paid() > 0, "who asks for the counter touches it");
}

#[test]
fn an_importer_that_takes_the_permissions_away_keeps_nobody_out() {
    let test = test_name!(an_importer_that_takes_the_permissions_away_keeps_nobody_out);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let descriptors = [&victim.write, &victim.read].map(|blob| victim.descriptors(blob));
    for fd in descriptors.iter().flatten() {
        nix::sys::stat::fchmod(fd, nix::sys::stat::Mode::empty()).unwrap();
    }
    drop(descriptors);
    victim.survived("fchmod to nothing", false);
    victim.peer.ends();
}

/// Checks that the file can neither be resized nor get other seals.
fn refuses_to_change(fd: &OwnedFd) {
    let size = nix::sys::stat::fstat(fd).unwrap().st_size;
    for len in [0, 1, size - 1, size + 1, size + LEN as i64] {
        assert!(ftruncate(fd, len).is_err(), "ftruncate to {len}");
    }
    let beyond = fallocate(fd, FallocateFlags::empty(), size, 4096);
    assert!(beyond.is_err(), "it grew");
    for seal in [
        SealFlag::F_SEAL_WRITE,
        SealFlag::F_SEAL_FUTURE_WRITE,
        SealFlag::F_SEAL_GROW,
    ] {
        let added = fcntl(fd, FcntlArg::F_ADD_SEALS(seal));
        assert_eq!(added, Err(Errno::EPERM), "{seal:?}");
    }
}

/// Checks that neither a call nor a mapping can write the file.
fn cannot_be_written(fd: &OwnedFd) {
    assert!(nix::sys::uio::pwrite(fd, b"scribble", 0).is_err());
    let size = nix::sys::stat::fstat(fd).unwrap().st_size;
    for mode in [
        FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
        FallocateFlags::FALLOC_FL_ZERO_RANGE,
        FallocateFlags::FALLOC_FL_COLLAPSE_RANGE,
    ] {
        assert!(fallocate(fd, mode, 0, size).is_err(), "{mode:?}");
    }
    assert!(!writable_mapping(fd), "it was mapped to write");
}

#[expect(unsafe_code, reason = "maps, and tries what must be refused")]
fn writable_mapping(fd: &OwnedFd) -> bool {
    let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let (shared, raw) = (libc::MAP_SHARED, fd.as_raw_fd());
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping does not change existing memory.
    let at = unsafe { libc::mmap(null, 4096, write, shared, raw, 0) };
    if at != libc::MAP_FAILED {
        return true;
    }
    // SAFETY: as above.
    let at = unsafe { libc::mmap(null, 4096, read, shared, raw, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping from above, which is not used.
    let changed = unsafe { libc::mprotect(at, 4096, write) } == 0;
    // SAFETY: as above.
    let punched = unsafe { libc::madvise(at, 4096, libc::MADV_REMOVE) } == 0;
    // SAFETY: as above.
    unsafe { libc::munmap(at, 4096) };
    changed || punched
}

#[expect(unsafe_code, reason = "fcntl(2) that nix does not wrap")]
fn give_lease_back(fd: &OwnedFd) {
    // SAFETY: passes integers only.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Changes flags, locks and leases of the open file, for which no other process may wait. Returns
/// true if it got a lease.
#[expect(unsafe_code, reason = "fcntl(2) that nix does not wrap")]
fn flips_flags(fd: &OwnedFd) -> bool {
    let raw = fd.as_raw_fd();
    let flags = OFlag::O_NONBLOCK | OFlag::O_APPEND | OFlag::O_ASYNC | OFlag::O_NOATIME;
    let _ = fcntl(fd, FcntlArg::F_SETFL(flags));
    let _ = nix::unistd::lseek(fd, 12345, nix::unistd::Whence::SeekSet);
    let call = |call: libc::c_int, value: libc::c_int| {
        // SAFETY: passes integers only.
        unsafe { libc::fcntl(raw, call, value) == 0 }
    };
    let leases = [libc::F_WRLCK, libc::F_RDLCK].map(|kind| call(libc::F_SETLEASE, kind));
    // Asks for no signal when the lease is broken.
    call(libc::F_SETOWN, 0);
    // SAFETY: passes an integer only.
    unsafe { libc::flock(raw, libc::LOCK_EX | libc::LOCK_NB) };
    leases.contains(&true)
}
