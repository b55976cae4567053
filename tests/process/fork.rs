//! Forks in the middle of jobs: the parent's jobs complete, and the child does not have the memory.
#![expect(unsafe_code, reason = "forks")]

use std::io::{PipeReader, PipeWriter, Read, pipe};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use support::{test_name, *};
use tokio_doca::{Mmap, mem::HugePages};

/// Forks a child that makes system calls only. It waits for a byte from the parent, or not at all,
/// and exits with 7.
fn child(waits: bool) -> (Pid, PipeWriter) {
    use std::os::fd::AsRawFd;
    let (said, say): (PipeReader, PipeWriter) = pipe().unwrap();
    let (from, other) = (said.as_raw_fd(), say.as_raw_fd());
    // SAFETY: the child allocates nothing, takes no lock and runs no destructor: it only calls
    // close, read and _exit.
    match unsafe { libc::fork() } {
        0 => {
            let mut byte = 0_u8;
            if waits {
                // SAFETY: closes the child's copy of the descriptor; otherwise the child would wait
                // for itself.
                unsafe { libc::close(other) };
                // SAFETY: reads one byte into the child's stack.
                unsafe { libc::read(from, (&raw mut byte).cast(), 1) };
            }
            // SAFETY: ends the child process only.
            unsafe { libc::_exit(7) }
        }
        -1 => panic!("{}", std::io::Error::last_os_error()),
        pid => (Pid::from_raw(pid), say),
    }
}

fn ends(pid: Pid) {
    assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 7));
}

/// Counts the `Mmap`s that a process has mapped.
fn mapped(pid: Pid) -> usize {
    let mut maps = String::new();
    let mut file = std::fs::File::open(format!("/proc/{pid}/maps")).unwrap();
    file.read_to_string(&mut maps).unwrap();
    maps.matches("memfd:").count()
}

fn jobs_go_on(waits: bool) {
    each(async |bench| {
        let hold = bench.hold();
        let bufs: Vec<_> = (0..8)
            .map(|i| (bench.filled(&pattern(i, 4000)), bench.empty()))
            .collect();
        let copies = bufs.iter().map(|(src, dst)| bench.dma.copy(src, dst));
        let mut copies = Box::pin(futures::future::join_all(copies));
        poll_pending(copies.as_mut());
        assert_eq!(bench.workq.in_flight(), 8);
        let (pid, say) = child(waits);
        if !waits {
            ends(pid);
        }
        drop(hold);
        let results = in_time("the parent's jobs", copies).await;
        assert!(
            results.iter().all(|result| *result == Ok(4000)),
            "{results:?}"
        );
        for (i, (_, dst)) in bufs.iter().enumerate() {
            assert_eq!(bytes(dst), pattern(i as u8, 4000));
        }
        bench.engine_works().await;
        if waits {
            drop(say);
            ends(pid);
        }
        bench.works().await;
    });
}

#[test]
fn a_child_that_exits_at_once_leaves_the_parents_jobs_alone() {
    if alone(test_name!(
        a_child_that_exits_at_once_leaves_the_parents_jobs_alone
    )) {
        jobs_go_on(false);
    }
}

#[test]
fn a_child_that_touches_nothing_leaves_the_parents_jobs_alone() {
    if alone(test_name!(
        a_child_that_touches_nothing_leaves_the_parents_jobs_alone
    )) {
        jobs_go_on(true);
    }
}

#[test]
fn a_child_does_not_inherit_the_memory() {
    if programs::is_emulated("pass madvise on: MADV_DONTFORK") {
        return;
    }
    if !alone(test_name!(a_child_does_not_inherit_the_memory)) {
        return;
    }
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let bench = Bench::new(configs()[0]);
    let memfd = memfd_create("the application's", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    nix::unistd::ftruncate(&memfd, 8192).unwrap();
    let builder = || Mmap::builder().device(&bench.device);
    let _mmaps = [
        builder().from_memfd(memfd, ..).unwrap(),
        builder()
            .huge_pages(HugePages::Transparent)
            .alloc(8192)
            .unwrap(),
    ];
    let (pid, say) = child(true);
    assert_eq!(mapped(nix::unistd::getpid()), 3);
    assert_eq!(mapped(pid), 0);
    drop(say);
    ends(pid);
}
