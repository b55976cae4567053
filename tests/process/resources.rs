//! The kernel resources of a process: memory, mappings, descriptors and threads are all given back.

use std::fs::File;
use std::time::{Duration, Instant};

use futures::future::join;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::{RdmaStream, StreamOptions};

use crate::refused::refuse;
use support::device::under_test;
use support::peer::{again, role};
use support::stream::Net;
use support::{test_name, *};
use tokio_doca::soft::Soft;
use tokio_doca::{
    Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    mem::{Access, BufInventory, HugePages},
};

/// Returns the machine's shared memory in use, in KiB.
fn shmem() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find(|line| line.starts_with("Shmem:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

/// Runs in its own process, whose parent ends it before it takes the machine's memory.
fn ask_for_more_memory_than_there_is() {
    let device = Soft::builder().build().open("pf0").unwrap();
    for len in [1 << 60, 1 << 44] {
        let builder = Mmap::builder().device(&device);
        let text = rejected(builder.alloc(len), ErrorKind::NoMemory);
        mentions(&text, &[len as u64]);
    }
}

/// Runs `what` while files of this process are limited to `most` bytes.
fn limited<T>(most: u64, what: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, most, hard).unwrap();
    let said = what();
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
    said
}

#[test]
fn a_limit_of_files_is_an_error_and_not_sigxfsz() {
    if !alone(test_name!(a_limit_of_files_is_an_error_and_not_sigxfsz)) {
        return;
    }
    let device = Soft::builder().build().open("pf0").unwrap();
    let memory = || {
        Mmap::builder()
            .device(&device)
            .access(Access::LOCAL_READ_WRITE | Access::RDMA_READ)
    };
    const MOST: u64 = 1 << 20;
    for pages in [None, Some(HugePages::Transparent)] {
        let alloc = |len| match pages {
            Some(huge) => memory().huge_pages(huge).alloc(len),
            None => memory().alloc(len),
        };
        let text = rejected(limited(MOST, || alloc(2 << 20)), ErrorKind::NoMemory);
        mentions(&text, &[2 << 20, MOST]);
        assert!(text.contains("ulimit -f"), "{text}");
        limited(MOST, || alloc(MOST as usize)).unwrap();
    }
    // Memory shared between processes is in files as well.
    let memory = memory().alloc(4096).unwrap();
    let exported = limited(100, || memory.export_rdma(&device));
    let text = rejected(exported, ErrorKind::NoMemory);
    assert!(text.contains("ulimit -f"), "{text}");
    memory.export_rdma(&device).unwrap();
}

// The kernel does not check the available memory when a memfd is made longer, so the library
// compares the length with the available memory before.
#[test]
fn more_memory_than_there_is_is_an_error_and_not_the_oom_killer() {
    if role().is_some() {
        return ask_for_more_memory_than_there_is();
    }
    let test = test_name!(more_memory_than_there_is_is_an_error_and_not_the_oom_killer);
    let mut child = again(test, "asks").spawn().unwrap();
    let before = shmem();
    let mut took = 0;
    block_until("the child ends", || {
        took = took.max(shmem().saturating_sub(before));
        if took > 1 << 20 {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
        child.try_wait().unwrap().is_some()
    });
    assert!(
        took <= 1 << 20,
        "it began to fill the memory of the machine"
    );
    assert!(child.wait().unwrap().success());
}

/// Calls `f` with every order of `n` items (Heap's algorithm).
fn permutations(n: usize, f: &mut impl FnMut(&[usize])) {
    fn go(k: usize, order: &mut [usize], f: &mut impl FnMut(&[usize])) {
        if k <= 1 {
            return f(order);
        }
        for i in 0..k {
            go(k - 1, order, f);
            let other = if k.is_multiple_of(2) { i } else { 0 };
            order.swap(other, k - 1);
        }
    }
    go(n, &mut (0..n).collect::<Vec<_>>(), f);
}

#[test]
fn everything_may_be_dropped_in_every_order() {
    if !alone(test_name!(everything_may_be_dropped_in_every_order)) {
        return;
    }
    let runtime = runtime();
    let _context = runtime.enter();
    let before = (descriptors(), engines(), mappings());
    let mut count = 0;
    permutations(8, &mut |order| {
        count += 1;
        if count % 7 != 0 {
            return;
        }
        let bench = Bench::new(configs()[count % 4]);
        let hold = bench.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut copy = Box::pin(bench.dma.copy(src.clone(), dst.clone()).owned());
        poll_pending(copy.as_mut());
        let (mut device, mut mmap, mut pool) =
            (Some(bench.device), Some(bench.mmap), Some(bench.pool));
        let (mut bufs, mut workq, mut dma) = (Some((src, dst)), Some(bench.workq), Some(bench.dma));
        let (mut copy, mut rest) = (Some(copy), Some((hold, bench.soft)));
        for what in order {
            match what {
                0 => drop(device.take()),
                1 => drop(mmap.take()),
                2 => drop(pool.take()),
                3 => drop(bufs.take()),
                4 => drop(workq.take()),
                5 => drop(dma.take()),
                6 => drop(copy.take()),
                _ => drop(rest.take()),
            }
        }
    });
    assert_eq!(count, 40_320);
    block_until("engines, mappings and descriptors are gone", || {
        (descriptors(), engines(), mappings()) == before
    });
}

/// The waker, the WorkQ and the `AsyncFd` would keep each other alive if the waker did not hold a
/// `Weak`.
#[test]
fn workqs_that_were_awaited_on_are_freed() {
    if !alone(test_name!(workqs_that_were_awaited_on_are_freed)) {
        return;
    }
    for flavour in [runtime, workers] {
        let outside = descriptors();
        flavour().block_on(async {
            let bench = Bench::new(Config::new(true, Mode::EventDriven));
            bench.works().await;
            let before = descriptors();
            for _ in 0..100 {
                for mode in modes() {
                    let workq = WorkQ::builder().mode(mode).build().unwrap();
                    let dma = Dma::builder(&bench.device).attach(&workq).unwrap();
                    let (src, dst) = (bench.filled(b"abc"), bench.empty());
                    assert_eq!(dma.copy(&src, &dst).await, Ok(3));
                }
            }
            until("the descriptors are closed", || descriptors() == before).await;
        });
        // The engine may close its queue after the last drop of the `Bench`: waits, so that the
        // next flavour does not count that queue.
        block_until("the Bench's are closed", || descriptors() == outside);
    }
}

#[test]
fn engines_end_with_their_devices() {
    if !alone(test_name!(engines_end_with_their_devices)) {
        return;
    }
    let before = (engines(), mappings(), descriptors());
    for round in 0..40 {
        let bench = Bench::new(configs()[round % 4]);
        run(bench.works());
        assert!(engines() > 0);
    }
    block_until("engines, mappings and descriptors are gone", || {
        (engines(), mappings(), descriptors()) == before
    });
}

#[test]
fn an_mmap_of_a_memfd_gives_its_descriptor_and_its_mapping_back() {
    if !alone(test_name!(
        an_mmap_of_a_memfd_gives_its_descriptor_and_its_mapping_back
    )) {
        return;
    }
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.matches("memfd:the application's").count()
    };
    let device = Device::open_default().unwrap();
    let before = descriptors();
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("the application's", flags).unwrap());
    file.set_len(4096).unwrap();
    let mmap = Mmap::builder()
        .device(&device)
        .from_memfd(file, ..)
        .unwrap();
    assert_eq!((descriptors(), mapped()), (before + 1, 1));
    let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
    drop(mmap);
    assert_eq!((descriptors(), mapped()), (before + 1, 1));
    drop(buf);
    assert_eq!((descriptors(), mapped()), (before, 0));
}

#[test]
fn transparent_huge_pages_are_advice_that_the_kernel_has_heard() {
    if programs::is_emulated("pass madvise on: MADV_HUGEPAGE") {
        return;
    }
    if !alone(test_name!(
        transparent_huge_pages_are_advice_that_the_kernel_has_heard
    )) {
        return;
    }
    let advised = || {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps
            .lines()
            .skip_while(|line| !line.contains("memfd:tokio-doca"));
        let mut field = |name: &str| {
            lines
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned()
        };
        let (rss, flags) = (field("Rss:"), field("VmFlags:"));
        // Almost all of the memory is resident; the kernel may be moving some pages.
        let kib: u64 = rss.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!((8192 - 512..=8192).contains(&kib), "populated: {rss}");
        flags.split_whitespace().any(|flag| flag == "hg")
    };
    run(async {
        let bench = Mmap::builder()
            .device(&Device::open_default().unwrap())
            .alloc(8 << 20)
            .unwrap();
        assert!(!advised());
        drop(bench);
        let mmap = Mmap::builder()
            .device(&Device::open_default().unwrap())
            .huge_pages(HugePages::Transparent)
            .alloc(8 << 20)
            .unwrap();
        let known = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(advised(), known);
        let buf = BufInventory::with_capacity(1)
            .buf_filled(&mmap, ..)
            .unwrap();
        assert!(buf.data().unwrap().iter().all(|&byte| byte == 0));
    });
}

/// The error names `madvise`, and not the `mmap` before it.
#[test]
fn advice_that_the_kernel_refuses_is_named() {
    if programs::is_emulated("filter system calls") {
        return;
    }
    for (advice, name) in [
        (libc::MADV_DONTFORK, "madvise(MADV_DONTFORK)"),
        (libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)"),
    ] {
        let refused = std::thread::spawn(move || {
            let device = Device::open_default().unwrap();
            refuse(libc::SYS_madvise, (2, advice as u32), libc::EACCES);
            let builder = Mmap::builder().device(&device);
            let builder = builder.huge_pages(HugePages::Transparent);
            let text = builder.alloc(1 << 20).unwrap_err().to_string();
            assert!(text.contains(name) && !text.contains("mmap of"), "{text}");
        });
        refused.join().unwrap();
    }
}

/// Returns how many KiB of this process's message rings are resident.
fn rings() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ring = false;
    let mut sum = 0;
    for line in maps.lines() {
        if let Some((range, rest)) = line.split_once(' ')
            && range.contains('-')
            && !range.ends_with(':')
        {
            is_ring = rest.contains("tokio-doca-arena");
        }
        if let Some(kib) = line.strip_prefix("Rss:").filter(|_| is_ring) {
            sum += kib.trim_end_matches(" kB").trim().parse::<u64>().unwrap();
        }
    }
    sum
}

/// Idle streams return the memory of their message rings after some seconds, when their queue is
/// polled, and work again when they are written.
#[test]
fn idle_streams_give_the_memory_of_their_rings_back() {
    if !alone(test_name!(idle_streams_give_the_memory_of_their_rings_back)) {
        return;
    }
    const IDLE: usize = 4;
    const LEN: usize = 1 << 20;
    let options = StreamOptions::new().timeout(LIMIT).connections(IDLE + 1);
    run(async {
        let (mut others, mut idle) = (Vec::new(), Vec::new());
        for mode in [Mode::EventDriven, Mode::BusyPoll] {
            let net = Net::new(&under_test(false), mode, options).await;
            others.push(net.pair().await);
            for _ in 0..IDLE {
                idle.push(net.pair().await);
            }
        }
        let before = rings();
        let bytes = vec![7; LEN];
        let carry = async |from: &mut RdmaStream, to: &mut RdmaStream| {
            let mut came = vec![0; LEN];
            let both = join(from.write_all(&bytes), to.read_exact(&mut came));
            let (wrote, read) = in_time("a MiB", both).await;
            wrote.and(read.map(drop)).unwrap();
            assert!(came == bytes);
        };
        for (here, there) in &mut idle {
            carry(here, there).await;
            carry(there, here).await;
        }
        // Half a MiB in each direction.
        assert!(rings() - before >= 900 * idle.len() as u64, "{}", rings());
        let end = Instant::now() + LIMIT;
        while rings() > before + 64 {
            assert!(Instant::now() < end, "{} KiB, {before} before", rings());
            for (here, there) in &mut others {
                // A short message does not use the stream of the ring.
                here.write_all(b"a word").await.unwrap();
                let mut came = [0; 6];
                let read = there.read_exact(&mut came);
                in_time("a word", read).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for (here, there) in &mut idle {
            carry(here, there).await;
            carry(there, here).await;
        }
    });
}
