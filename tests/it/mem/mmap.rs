//! The kinds of memory of an `Mmap`: who may access the memory, who keeps it, and with which
//! devices it is registered.
#![expect(
    unsafe_code,
    reason = "raw memory is taken on the caller's word, and a fake device is one"
)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use support::*;
use tokio_doca::device::RegistrationUse;
use tokio_doca::device::contract::{Adapter, Queue, QueueConfig, Region, Registrar, Registration};
use tokio_doca::soft::Soft;
use tokio_doca::{
    BufPool, Device, Dma, Error, ErrorKind, Mmap, Mode, WorkQ,
    device::{Caps, DevInfo, PciAddr, PciFunction},
    error::Reason,
    mem::{Access, BufArray, BufInventory, HugePages, MmapBuilder},
};

const PAGE: usize = 4096;

fn builder() -> MmapBuilder {
    Mmap::builder().device(&Device::open_default().unwrap())
}

// A memfd of the application's
// ----------------------------------------------------------------------------------

fn memfd(flags: MFdFlags, len: usize) -> File {
    let file: OwnedFd = memfd_create("the application's", flags).unwrap();
    let file = File::from(file);
    file.set_len(len as u64).unwrap();
    file
}

fn sealable(len: usize) -> File {
    memfd(MFdFlags::MFD_ALLOW_SEALING, len)
}

fn seal(file: &File, seals: SealFlag) {
    fcntl(file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
}

fn seals(file: &File) -> SealFlag {
    SealFlag::from_bits_retain(fcntl(file, FcntlArg::F_GET_SEALS).unwrap())
}

#[test]
fn a_part_of_a_memfd_is_used_in_place() {
    each(async |bench| {
        let file = sealable(4 * PAGE);
        file.write_all_at(&pattern(1, 4 * PAGE), 0).unwrap();
        let ours = file.try_clone().unwrap();
        let builder = Mmap::builder().device(&bench.device);
        let mmap = builder.from_memfd(ours, PAGE..2 * PAGE + 100).unwrap();
        assert_eq!(mmap.len(), PAGE + 100);
        assert!(mmap.is_exportable() && !mmap.lends_slices());
        let inventory = BufInventory::with_capacity(4);
        let src = inventory.buf_filled(&mmap, 8..1000).unwrap();
        assert_eq!(bytes(&src), pattern(1, 4 * PAGE)[PAGE + 8..PAGE + 1000]);
        let dst = inventory.buf(&mmap, PAGE..PAGE + 100).unwrap();
        assert_eq!(
            bench.dma.copy(&bench.filled(b"by a job"), &dst).await,
            Ok(8)
        );
        let mut seen = [0; 8];
        file.read_exact_at(&mut seen, 2 * PAGE as u64).unwrap();
        assert_eq!(&seen, b"by a job");
        file.write_all_at(b"by", 2 * PAGE as u64 + 3).unwrap();
        assert_eq!(bytes(&dst), b"by byjob");
    });
}

// Other holders of the descriptor may write the file at any time, so no slice is lent.
#[test]
fn a_memfd_that_others_may_write_lends_no_slices() {
    let file = sealable(PAGE);
    let mmap = builder().from_memfd(file.try_clone().unwrap(), ..).unwrap();
    let buf = BufInventory::with_capacity(1)
        .buf_filled(&mmap, ..)
        .unwrap();
    for error in [buf.data().unwrap_err(), buf.data_mut().unwrap_err()] {
        assert_eq!(error.reason(), Reason::PeerWritable);
        let text = error.to_string();
        assert!(
            text.contains("memfd") && text.contains("copy_out"),
            "{text}"
        );
    }
    let error = buf.into_bytes().unwrap_err();
    assert_eq!(error.error().reason(), Reason::PeerWritable);
    let buf = error.into_buf();
    buf.copy_in(0, b"abc").unwrap();
    buf.store(8, 7).unwrap();
    file.write_all_at(b"x", 1).unwrap();
    assert_eq!(bytes(&buf)[..3], *b"axc");
    // SAFETY: nothing writes the file at this time.
    let data = unsafe { buf.data_unchecked() }.unwrap();
    assert_eq!((data[0], data[8], data.len()), (b'a', 7, PAGE));
}

#[test]
fn a_memfd_that_cannot_change_lends_slices_and_is_read_only() {
    each(async |bench| {
        let file = sealable(2 * PAGE);
        file.write_all_at(&pattern(3, 2 * PAGE), 0).unwrap();
        seal(&file, SealFlag::F_SEAL_WRITE);
        let builder = || Mmap::builder().device(&bench.device);
        let text = rejected(
            builder().from_memfd(file.try_clone().unwrap(), ..),
            ErrorKind::NotPermitted,
        );
        assert!(text.contains("LOCAL_READ_ONLY"), "{text}");
        let builder = builder().access(Access::LOCAL_READ_ONLY);
        let mmap = builder.from_memfd(file, PAGE..).unwrap();
        assert!(mmap.lends_slices());
        let buf = BufInventory::with_capacity(1)
            .buf_filled(&mmap, 5..105)
            .unwrap();
        assert_eq!(
            &buf.data().unwrap()[..],
            &pattern(3, 2 * PAGE)[PAGE + 5..PAGE + 105]
        );
        refused(buf.data_mut(), ErrorKind::NotPermitted);
        refused(buf.store(3, 1), ErrorKind::NotPermitted);
        let dst = bench.empty();
        assert_eq!(bench.dma.copy(&buf, &dst).await, Ok(100));
        assert_eq!(buf.into_bytes().unwrap(), bytes(&dst));
    });
}

#[test]
fn a_descriptor_that_may_only_be_read_is_enough_for_read_only_memory() {
    use std::os::fd::AsRawFd;
    let file = sealable(PAGE);
    file.write_all_at(b"seen", 0).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let reader = || File::open(&path).unwrap();
    let read_only = || builder().access(Access::LOCAL_READ_ONLY);
    // A read-only descriptor cannot add seals, and another process that shortens the file could
    // crash this one.
    let text = rejected(
        read_only().from_memfd(reader(), ..),
        ErrorKind::NotPermitted,
    );
    assert!(text.contains("F_SEAL_SHRINK"), "{text}");
    seal(&file, SealFlag::F_SEAL_SHRINK);
    rejected(builder().from_memfd(reader(), ..), ErrorKind::NotPermitted);
    let mmap = read_only().from_memfd(reader(), ..).unwrap();
    let buf = BufInventory::with_capacity(1)
        .buf_filled(&mmap, ..8)
        .unwrap();
    refused(buf.data(), ErrorKind::NotPermitted);
    refused(buf.store(0, 1), ErrorKind::NotPermitted);
    refused(buf.fetch_add(0, 1), ErrorKind::NotPermitted);
    assert_eq!(bytes(&buf), b"seen\0\0\0\0");
    assert_eq!(buf.load(0), Ok(u64::from_ne_bytes(*b"seen\0\0\0\0")));
}

#[test]
fn a_memfd_is_sealed_against_shrinking_and_may_still_grow() {
    let file = sealable(2 * PAGE);
    let _mmap = builder()
        .from_memfd(file.try_clone().unwrap(), ..PAGE)
        .unwrap();
    assert_eq!(seals(&file), SealFlag::F_SEAL_SHRINK);
    let error = file.set_len(PAGE as u64).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    file.set_len(3 * PAGE as u64).unwrap();
    // A file that is sealed already gets no more seals from the library.
    seal(&file, SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL);
    builder().from_memfd(file, PAGE..).unwrap();
}

#[test]
fn a_memfd_that_could_be_cut_under_us_is_refused_with_the_way_out() {
    let file = memfd(MFdFlags::empty(), PAGE);
    let text = rejected(builder().from_memfd(file, ..), ErrorKind::NotPermitted);
    for part in ["F_SEAL_SHRINK", "SIGBUS", "MFD_ALLOW_SEALING"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn what_is_no_memfd_is_refused() {
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let pipe = nix::unistd::pipe().unwrap().0;
    for fd in [
        OwnedFd::from(file),
        pipe,
        File::open("/dev/null").unwrap().into(),
    ] {
        let text = rejected(builder().from_memfd(fd, ..), ErrorKind::InvalidValue);
        assert!(
            text.contains("no memfd") && text.contains("memfd_create"),
            "{text}"
        );
    }
}

#[test]
fn a_range_outside_of_the_memfd_or_within_a_page_is_refused_with_the_numbers() {
    let file = sealable(2 * PAGE);
    let from = |range| builder().from_memfd(file.try_clone().unwrap(), range);
    let invalid = ErrorKind::InvalidValue;
    mentions(&rejected(from(0..2 * PAGE + 1), invalid), &[8193, 8192]);
    mentions(&rejected(from(PAGE + 1..2 * PAGE), invalid), &[4097, 4096]);
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [
        0..0,
        2 * PAGE..2 * PAGE,
        PAGE..0,
        usize::MAX..0,
        0..usize::MAX,
    ] {
        rejected(from(range), invalid);
    }
    // None of the refused calls has sealed the file.
    assert_eq!(seals(&file), SealFlag::empty());
    rejected(builder().from_memfd(sealable(0), ..), invalid);
    rejected(
        builder()
            .huge_pages(HugePages::Transparent)
            .from_memfd(sealable(PAGE), ..),
        invalid,
    );
    rejected(Mmap::builder().from_memfd(sealable(PAGE), ..), invalid);
}

#[test]
fn the_pages_of_a_memfd_are_there_before_the_first_job() {
    use std::os::unix::fs::MetadataExt;
    if programs::is_emulated("populate memory: MADV_POPULATE_WRITE") {
        return;
    }
    for write in [true, false] {
        let file = sealable(256 * PAGE);
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        let builder = match write {
            true => builder(),
            false => builder().access(Access::LOCAL_READ_ONLY),
        };
        let _mmap = builder
            .from_memfd(file.try_clone().unwrap(), 128 * PAGE..)
            .unwrap();
        let blocks = file.metadata().unwrap().blocks();
        assert_eq!(blocks * 512, 128 * PAGE as u64, "{write}");
    }
}

#[test]
fn two_mmaps_of_one_memfd_see_each_other_and_neither_lends_a_slice() {
    each(async |bench| {
        let file = sealable(PAGE);
        let mmap = || {
            let builder = Mmap::builder().device(&bench.device);
            builder.from_memfd(file.try_clone().unwrap(), ..).unwrap()
        };
        let (one, other) = (mmap(), mmap());
        let inventory = BufInventory::with_capacity(2);
        let a = inventory.buf(&one, ..).unwrap();
        let b = inventory.buf_filled(&other, ..4).unwrap();
        assert_eq!(bench.dma.copy(&bench.filled(b"same"), &a).await, Ok(4));
        assert_eq!(bytes(&b), b"same");
        refused(a.data(), ErrorKind::NotPermitted);
        refused(b.data(), ErrorKind::NotPermitted);
    });
}

// Owners
// ----------------------------------------------------------------------------------------------------------

/// Memory whose owner records its events.
struct Owner {
    bytes: Vec<u8>,
    diary: Arc<Diary>,
}

#[derive(Default)]
struct Diary {
    asked: AtomicUsize,
    dropped: AtomicUsize,
    held: Mutex<Vec<u8>>,
}

impl Diary {
    fn counts(&self) -> (usize, usize) {
        (self.asked.load(SeqCst), self.dropped.load(SeqCst))
    }
}

fn owner(bytes: &[u8]) -> (Owner, Arc<Diary>) {
    let diary = Arc::new(Diary::default());
    let owner = Owner {
        bytes: bytes.to_vec(),
        diary: Arc::clone(&diary),
    };
    (owner, diary)
}

impl AsMut<[u8]> for Owner {
    fn as_mut(&mut self) -> &mut [u8] {
        self.diary.asked.fetch_add(1, SeqCst);
        &mut self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.diary.dropped.fetch_add(1, SeqCst);
        *self.diary.held.lock().unwrap() = std::mem::take(&mut self.bytes);
    }
}

#[test]
fn an_owner_is_asked_once_and_dropped_when_the_last_job_is_over() {
    each(async |bench| {
        let (owner, diary) = owner(&pattern(5, 1000));
        let mmap = Mmap::builder()
            .device(&bench.device)
            .from_owner(owner)
            .unwrap();
        assert!(!mmap.is_exportable() && mmap.lends_slices() && mmap.is_started());
        assert_eq!((mmap.len(), diary.counts()), (1000, (1, 0)));
        let inventory = BufInventory::with_capacity(2);
        let src = inventory.buf_filled(&mmap, 0..500).unwrap();
        let dst = inventory.buf(&mmap, 500..1000).unwrap();
        drop((mmap, inventory));
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(src, dst).owned());
        poll_pending(copy.as_mut());
        drop(copy);
        assert_eq!(diary.counts(), (1, 0), "a job has it");
        drop(hold);
        bench.engine_works().await;
        until("the owner is dropped", || diary.counts() == (1, 1)).await;
        let held = diary.held.lock().unwrap();
        assert_eq!(
            held[500..],
            pattern(5, 1000)[..500],
            "the job wrote into it"
        );
    });
}

#[test]
fn owners_of_every_shape_are_used_in_place() {
    each(async |bench| {
        let build = || Mmap::builder().device(&bench.device);
        let array: [u8; 600] = pattern(1, 600).try_into().unwrap();
        let mmaps = [
            build().from_owner(pattern(1, 600)).unwrap(),
            build()
                .from_owner(pattern(1, 600).into_boxed_slice())
                .unwrap(),
            build().from_owner(array).unwrap(),
            build()
                .from_owner(bytes::BytesMut::from(&pattern(1, 600)[..]))
                .unwrap(),
            build()
                .from_owner(Box::leak(pattern(1, 600).into_boxed_slice()))
                .unwrap(),
        ];
        for mmap in mmaps {
            let pool = BufPool::builder(&mmap)
                .element_size(64)
                .alignment(64)
                .build()
                .unwrap();
            let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
            src.set_data(0, 64).unwrap();
            assert!(
                pattern(1, 600)
                    .windows(64)
                    .any(|part| *part == src.data().unwrap()[..])
            );
            assert_eq!(src.data().unwrap().as_ptr() as usize % 64, 0);
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(64));
            assert_eq!(bytes(&src), bytes(&dst));
        }
    });
}

/// Other handles of the same bytes exist.
#[test]
fn bytes_are_read_in_place_and_never_written() {
    each(async |bench| {
        let bytes = bytes::Bytes::from(pattern(1, 600));
        let build = || Mmap::builder().device(&bench.device);
        let mmap = build().from_bytes(bytes.slice(100..)).unwrap();
        assert_eq!((mmap.len(), mmap.is_exportable()), (500, false));
        let inventory = BufInventory::with_capacity(2);
        let (src, dst) = (
            inventory.buf_filled(&mmap, ..).unwrap(),
            bench.pool.try_alloc().unwrap(),
        );
        assert_eq!(src.data().unwrap().as_ptr(), bytes[100..].as_ptr());
        assert_eq!(src.data_mut().unwrap_err().kind(), ErrorKind::NotPermitted);
        let empty = inventory.buf(&mmap, ..0).unwrap();
        let copied = bench.dma.copy(&dst, &empty).await;
        assert_eq!(copied.unwrap_err().kind(), ErrorKind::NotPermitted);
        let len = dst.tailroom().min(500);
        let part = src.slice(..len).unwrap();
        assert_eq!(bench.dma.copy(&part, &dst).await, Ok(len));
        assert_eq!(self::bytes(&dst), bytes[100..100 + len]);
        // The bytes outlive the `Mmap` that registered them.
        drop((part, src, empty, mmap));
        assert_eq!(bytes, pattern(1, 600));
        rejected(
            build().from_bytes(bytes::Bytes::new()),
            ErrorKind::InvalidValue,
        );
        let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE;
        let refused = build().access(access).from_bytes(bytes);
        rejected(refused, ErrorKind::InvalidValue);
    });
}

/// The last handle to the bytes drops their owner.
#[test]
fn bytes_live_as_long_as_the_buf_of_them() {
    struct Told(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Told {
        fn drop(&mut self) {
            self.1.fetch_add(1, Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let owner = Told(pattern(1, 600), Arc::clone(&dropped));
    let mmap = builder().from_bytes(bytes::Bytes::from_owner(owner));
    let inventory = BufInventory::with_capacity(1);
    let buf = inventory.buf_filled(&mmap.unwrap(), ..).unwrap();
    assert_eq!(buf.data().unwrap()[..], pattern(1, 600));
    assert_eq!(dropped.load(Relaxed), 0);
    drop(buf);
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn every_user_of_an_owners_memory_keeps_it() {
    let device = Device::open_default().unwrap();
    let users: [fn(Mmap) -> Box<dyn Send>; 6] = [
        |mmap| Box::new(mmap),
        |mmap| Box::new(BufPool::builder(&mmap).element_size(8).build().unwrap()),
        |mmap| {
            Box::new(
                BufArray::builder(&mmap)
                    .element_size(8)
                    .build()
                    .unwrap()
                    .get(1)
                    .unwrap(),
            )
        },
        |mmap| Box::new(BufInventory::with_capacity(1).buf(&mmap, 3..4).unwrap()),
        |mmap| {
            let buf = BufInventory::with_capacity(1)
                .buf_filled(&mmap, 3..9)
                .unwrap();
            Box::new(buf.into_bytes().unwrap().slice(2..3))
        },
        |mmap| {
            let pool = BufPool::builder(&mmap).element_size(8).build().unwrap();
            Box::new(pool.try_alloc().unwrap().into_bytes().unwrap())
        },
    ];
    for (i, user) in users.into_iter().enumerate() {
        let (owner, diary) = owner(&[1; 16]);
        let user = user(Mmap::builder().device(&device).from_owner(owner).unwrap());
        assert_eq!(diary.counts(), (1, 0), "{i}");
        drop(user);
        assert_eq!(diary.counts(), (1, 1), "{i}");
    }
}

/// Forgetting any of these values keeps the memory for ever, and nothing dangles.
#[test]
fn forgetting_any_user_of_an_owners_memory_leaks_it() {
    let (owner, diary) = owner(&[1; 64]);
    let mmap = builder().from_owner(owner).unwrap();
    let inventory = BufInventory::with_capacity(8);
    let buf = || inventory.buf_filled(&mmap, 32..40).unwrap();
    std::mem::forget(buf().into_bytes().unwrap());
    std::mem::forget(mmap.clone());
    std::mem::forget(
        BufArray::builder(&mmap)
            .range(0..16)
            .element_size(8)
            .build()
            .unwrap(),
    );
    let writing = inventory.buf_filled(&mmap, 40..48).unwrap();
    let guard = writing.data_mut().unwrap();
    std::mem::forget(buf().data().unwrap());
    std::mem::forget(
        inventory
            .buf_filled(&mmap, 44..50)
            .unwrap()
            .into_bytes()
            .unwrap_err(),
    );
    std::mem::forget(guard);
    drop(writing);
    refused(buf().data_mut(), ErrorKind::InUse);
    rejected(mmap.stop(), ErrorKind::InUse);
    drop((mmap, inventory));
    assert_eq!(diary.counts(), (1, 0));
}

#[test]
fn an_owner_whose_memory_became_no_mmap_is_dropped() {
    let (none, diary) = owner(&[]);
    mentions(
        &rejected(builder().from_owner(none), ErrorKind::InvalidValue),
        &[0],
    );
    assert_eq!(diary.counts(), (1, 1));
    let (some, diary) = owner(&[1]);
    rejected(Mmap::builder().from_owner(some), ErrorKind::InvalidValue);
    assert_eq!(diary.counts(), (0, 1));
    let (some, diary) = owner(&[1]);
    let (_, refusing) = fake(0, true);
    rejected(
        Mmap::builder().device(&refusing).from_owner(some),
        ErrorKind::Driver,
    );
    assert_eq!(diary.counts(), (1, 1));
}

#[test]
fn an_owner_that_panics_when_it_is_dropped_stops_nobody() {
    struct Bad(Vec<u8>);
    impl AsMut<[u8]> for Bad {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("the owner does not like to go");
        }
    }
    each(async |bench| {
        let mmap = Mmap::builder().device(&bench.device);
        let mmap = mmap.from_owner(Bad(vec![1; 100])).unwrap();
        let src = BufInventory::with_capacity(1)
            .buf_filled(&mmap, ..)
            .unwrap();
        drop(mmap);
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(src, bench.empty()).owned());
        poll_pending(copy.as_mut());
        drop((copy, hold));
        // The owner's drop panics while completions are reaped, and no other job is lost.
        bench.engine_works().await;
        bench.all_back().await;
    });
}

#[test]
fn an_owner_that_panics_when_it_is_asked_is_dropped() {
    struct Shy {
        _count: Arc<()>,
    }
    impl AsMut<[u8]> for Shy {
        fn as_mut(&mut self) -> &mut [u8] {
            panic!("not now");
        }
    }
    let count = Arc::new(());
    let shy = Shy {
        _count: Arc::clone(&count),
    };
    let asked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder().from_owner(shy)));
    assert!(asked.is_err());
    assert_eq!(Arc::strong_count(&count), 1);
}

// Raw memory
// ------------------------------------------------------------------------------------------------------

/// Returns leaked bytes, with a function that frees them and counts its calls.
fn raw(
    len: usize,
) -> (
    NonNull<u8>,
    Arc<AtomicUsize>,
    impl FnOnce(NonNull<u8>, usize) + Send,
) {
    let bytes: &'static mut [u8] = Box::leak(pattern(9, len).into_boxed_slice());
    let (addr, calls) = (
        NonNull::from(bytes).cast::<u8>(),
        Arc::new(AtomicUsize::new(0)),
    );
    let (at, tally) = (addr.addr(), Arc::clone(&calls));
    let free = move |base: NonNull<u8>, size: usize| {
        assert_eq!((base.addr(), size), (at, len));
        let slice = NonNull::slice_from_raw_parts(base, size);
        // SAFETY: leaked from such a box, and no longer used.
        drop(unsafe { Box::from_raw(slice.as_ptr()) });
        tally.fetch_add(1, SeqCst);
    };
    (addr, calls, free)
}

#[test]
fn raw_memory_is_freed_once_when_its_last_user_has_gone() {
    each(async |bench| {
        let (addr, freed, free) = raw(1000);
        let builder = Mmap::builder().device(&bench.device);
        // SAFETY: leaked, and not accessible elsewhere until `free` runs.
        let mmap = unsafe { builder.from_raw(addr, 1000, free) }.unwrap();
        assert!(!mmap.is_exportable() && mmap.lends_slices());
        let src = BufInventory::with_capacity(1)
            .buf_filled(&mmap, 1..1000)
            .unwrap();
        mmap.stop().unwrap_err();
        drop(mmap);
        let hold = bench.hold();
        let dst = bench.empty();
        let mut copy = Box::pin(bench.dma.copy(&src, &dst));
        poll_pending(copy.as_mut());
        drop(copy);
        drop(src);
        assert_eq!(freed.load(SeqCst), 0, "a job has it");
        drop(hold);
        bench.engine_works().await;
        until("it is freed", || freed.load(SeqCst) == 1).await;
        assert_eq!(bytes(&dst), pattern(9, 1000)[1..]);
    });
}

#[test]
fn raw_memory_that_became_no_mmap_is_still_the_callers() {
    let (addr, freed, free) = raw(100);
    let (_, refusing) = fake(0, true);
    // SAFETY: leaked, and not accessible elsewhere until `free` runs.
    let result = unsafe { Mmap::builder().device(&refusing).from_raw(addr, 100, free) };
    rejected(result, ErrorKind::Driver);
    assert_eq!(
        (freed.load(SeqCst), Arc::strong_count(&freed)),
        (0, 1),
        "dropped, and not run"
    );
    for len in [0, usize::MAX, isize::MAX as usize] {
        // SAFETY: the call is refused, and the address is never accessed.
        let result = unsafe { builder().from_raw(addr, len, |_, _| unreachable!()) };
        mentions(&rejected(result, ErrorKind::InvalidValue), &[len as u64]);
    }
    let slice = NonNull::slice_from_raw_parts(addr, 100);
    // SAFETY: leaked by `raw`, and not freed elsewhere.
    assert_eq!(*unsafe { Box::from_raw(slice.as_ptr()) }, pattern(9, 100));
}

#[test]
fn a_free_callback_that_panics_stops_nobody() {
    let (addr, freed, free) = raw(64);
    let free = move |addr, len| {
        free(addr, len);
        panic!("after the work");
    };
    // SAFETY: leaked, and not accessible elsewhere until `free` runs.
    let mmap = unsafe { builder().from_raw(addr, 64, free) }.unwrap();
    drop(mmap);
    assert_eq!(freed.load(SeqCst), 1);
}

// Huge pages
// ------------------------------------------------------------------------------------------------------

const MIB: usize = 1 << 20;

/// Locked by tests that take huge pages or count the free ones.
static POOL: Mutex<()> = Mutex::new(());

fn pool() -> MutexGuard<'static, ()> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of free huge pages of this size; `None` if the system has none of that size.
fn free_pages(kib: usize) -> Option<usize> {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
    Some(std::fs::read_to_string(path).ok()?.trim().parse().unwrap())
}

#[test]
fn huge_pages_that_are_not_there_are_an_error_that_names_the_way_out() {
    let _alone = pool();
    for (pages, kib) in [(HugePages::Size2MiB, 2048), (HugePages::Size1GiB, MIB)] {
        let free = free_pages(kib);
        let kind = free.map_or(ErrorKind::NotSupported, |_| ErrorKind::NoMemory);
        let need = free.unwrap_or(0) + 1;
        let len = need * kib * 1024 - 5;
        let text = rejected(builder().huge_pages(pages).alloc(len), kind);
        mentions(&text, &[len as u64, need as u64, kib as u64 / 1024]);
        assert!(
            text.contains("vm.nr_hugepages") && text.contains("Transparent"),
            "{text}"
        );
        assert_eq!(free_pages(kib), free, "what it got it gave back");
    }
    rejected(
        builder().huge_pages(HugePages::Size2MiB).alloc(0),
        ErrorKind::InvalidValue,
    );
    rejected(
        builder().huge_pages(HugePages::Size2MiB).alloc(usize::MAX),
        ErrorKind::InvalidValue,
    );
}

/// Tests that need huge pages, which `.ci/run` lets the system reserve; they are ignored by
/// default.
mod needs_huge_pages {
    use super::*;

    #[test]
    #[ignore = "needs vm.nr_hugepages of 4"]
    fn huge_pages_that_are_there_are_taken_whole_and_given_back() {
        let _alone = pool();
        let free = free_pages(2048).unwrap();
        each(async |bench| {
            let builder = Mmap::builder().device(&bench.device);
            let mmap = builder
                .huge_pages(HugePages::Size2MiB)
                .alloc(2 * MIB + 1)
                .unwrap();
            assert_eq!(
                (mmap.len(), free_pages(2048)),
                (2 * MIB + 1, Some(free - 2))
            );
            let inventory = BufInventory::with_capacity(2);
            let src = inventory
                .buf_filled(&mmap, 2 * MIB - 1000..2 * MIB + 1)
                .unwrap();
            let dst = inventory.buf(&mmap, 0..2000).unwrap();
            src.data_mut().unwrap().copy_from_slice(&pattern(2, 1001));
            assert_eq!(bench.dma.copy(&src, &dst).await, Ok(1001));
            assert_eq!(bytes(&dst), pattern(2, 1001));
            drop((mmap, src, dst));
            assert_eq!(free_pages(2048), Some(free));
        });
    }

    #[test]
    #[ignore = "needs vm.nr_hugepages of 4"]
    fn a_memfd_of_huge_pages_begins_at_one_of_them() {
        let _alone = pool();
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
        let file = memfd(flags, 4 * MIB);
        let from = |range| builder().from_memfd(file.try_clone().unwrap(), range);
        let text = rejected(from(PAGE..4 * MIB), ErrorKind::InvalidValue);
        mentions(&text, &[PAGE as u64, 2 * MIB as u64]);
        let mmap = from(2 * MIB..2 * MIB + 100).unwrap();
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        buf.extend_from_slice(&pattern(1, 100)).unwrap();
        assert_eq!((mmap.len(), bytes(&buf)), (100, pattern(1, 100)));
    }
}

// Devices
// ---------------------------------------------------------------------------------------------------------

/// A device that counts registrations, or refuses them.
struct Fake {
    info: DevInfo,
    tally: Arc<AtomicUsize>,
    refuses: bool,
    key: u64,
}

struct Registered(Arc<AtomicUsize>);

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

// SAFETY: this device opens no queues.
unsafe impl Adapter for Fake {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, _: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        Err(Error::new(
            ErrorKind::NotSupported,
            "open_queue",
            "no queues",
        ))
    }
}

// SAFETY: no queue uses the keys, and nothing is exported or imported.
unsafe impl Registrar for Fake {
    fn register(&self, _: &Region, _: RegistrationUse) -> tokio_doca::Result<Registration> {
        if self.refuses {
            return Err(Error::new(ErrorKind::Driver, "register", "not this one"));
        }
        self.tally.fetch_add(1, SeqCst);
        Ok(Registration::new(
            self.key,
            Some(Box::new(Registered(Arc::clone(&self.tally)))),
        ))
    }
}

/// Returns the number of registrations that the device holds, and the device.
fn fake(key: u64, refuses: bool) -> (Arc<AtomicUsize>, Device) {
    let (addr, caps) = (PciAddr::new(1, 0, 0), Caps::for_dma(1, 1, 1));
    let tally = Arc::new(AtomicUsize::new(0));
    let fake = Fake {
        info: DevInfo::new("fake", format!("fake{key}"), addr, PciFunction::Pf, caps),
        tally: Arc::clone(&tally),
        refuses,
        key,
    };
    (tally, Device::from_adapter(Arc::new(fake)))
}

#[test]
fn when_one_device_refuses_none_holds_the_memory() {
    let (first, a) = fake(1, false);
    let (second, b) = fake(2, false);
    let (_, refusing) = fake(3, true);
    let builder = || Mmap::builder().device(&a).device(&b).device(&refusing);
    let text = rejected(builder().alloc(PAGE), ErrorKind::Driver);
    assert!(text.contains("not this one"), "{text}");
    rejected(builder().from_owner(vec![1; 10]), ErrorKind::Driver);
    assert_eq!((first.load(SeqCst), second.load(SeqCst)), (0, 0));

    // The same when the `Mmap` is started again with a refusing device; then it is started with the
    // others.
    let mmap = Mmap::builder().device(&a).alloc(PAGE).unwrap();
    assert_eq!(first.load(SeqCst), 1);
    mmap.stop().unwrap();
    assert_eq!(first.load(SeqCst), 0);
    rejected(mmap.start([&a, &refusing]), ErrorKind::Driver);
    assert_eq!((first.load(SeqCst), mmap.is_started()), (0, false));
    mmap.start([&b, &a]).unwrap();
    assert_eq!((first.load(SeqCst), second.load(SeqCst)), (1, 1));
    drop(mmap);
    assert_eq!((first.load(SeqCst), second.load(SeqCst)), (0, 0));
}

#[test]
fn an_mmap_has_room_for_sixteen_devices() {
    let softs: Vec<Soft> = (0..4).map(|_| Soft::builder().build()).collect();
    let names = ["pf0", "pf1", "pf0vf0", "pf0vf1", "pf1vf0"];
    let open = |soft: &Soft| names.map(|name| soft.open(name).unwrap());
    let devices: Vec<Device> = softs.iter().flat_map(open).collect();
    let with = |count: usize| {
        let named = devices[..count]
            .iter()
            .fold(Mmap::builder(), |mmap, device| mmap.device(device));
        named.alloc(8192)
    };
    assert_eq!(Mmap::MAX_DEVICES, 16);
    mentions(&rejected(with(17), ErrorKind::NoMemory), &[17, 16]);
    let mmap = with(16).unwrap();
    assert_eq!(mmap.devices(), devices[..16]);
    let pool = BufPool::builder(&mmap).build().unwrap();
    let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    src.extend_from_slice(b"on each").unwrap();
    for (i, device) in devices.iter().enumerate() {
        let workq = WorkQ::builder().build().unwrap();
        let dma = Dma::builder(device).attach(&workq).unwrap();
        dst.reset_data_len().unwrap();
        match run(async { dma.copy(&src, &dst).await }) {
            Ok(copied) => assert!(copied == 7 && i < 16, "{i}"),
            Err(error) => assert!(error.reason() == Reason::ForeignDevice && i >= 16, "{i}"),
        }
    }
    drop((src, dst, pool));
    mmap.stop().unwrap();
    mentions(
        &rejected(mmap.start(&devices[..17]), ErrorKind::NoMemory),
        &[17, 16],
    );
    mmap.start(&devices[4..]).unwrap();
}

#[test]
fn an_unused_mmap_stops_and_starts_with_other_devices_and_its_bytes_stay() {
    each(async |bench| {
        let mmap = bench.mmap(8192);
        let inventory = BufInventory::with_capacity(4);
        inventory
            .buf(&mmap, ..)
            .unwrap()
            .extend_from_slice(&pattern(8, 100))
            .unwrap();
        assert!(mmap.is_started() && !mmap.is_in_use());
        assert_eq!(mmap.devices(), std::slice::from_ref(&bench.device));
        mmap.stop().unwrap();
        assert!(!mmap.is_started() && mmap.devices().is_empty());
        rejected(mmap.stop(), ErrorKind::BadState);

        let stopped = ErrorKind::BadState;
        for text in [
            rejected(inventory.buf(&mmap, ..), stopped),
            rejected(BufPool::builder(&mmap).build(), stopped),
            rejected(BufArray::builder(&mmap).build(), stopped),
        ] {
            assert!(text.contains("Mmap::start"), "{text}");
        }
        rejected(mmap.start([]), ErrorKind::InvalidValue);
        rejected(mmap.start([&bench.device, &bench.device]), ErrorKind::InUse);

        let other = bench.soft.open("pf1").unwrap();
        mmap.start([&other]).unwrap();
        rejected(mmap.start([&other]), ErrorKind::BadState);
        let src = inventory.buf_filled(&mmap, 0..100).unwrap();
        let dst = inventory.buf(&mmap, 100..200).unwrap();
        let error = bench.dma.copy(&src, &dst).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ForeignDevice);
        let workq = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let dma = Dma::builder(&other).attach(&workq).unwrap();
        assert_eq!(dma.copy(&src, &dst).await, Ok(100));
        assert_eq!(bytes(&dst), pattern(8, 100));
    });
}

#[test]
fn whatever_uses_an_mmap_keeps_it_from_stopping() {
    each(async |bench| {
        let mmap = bench.mmap(8192);
        let in_use = |what: &str| {
            assert!(mmap.is_in_use() && mmap.is_started(), "{what}");
            let text = rejected(mmap.stop(), ErrorKind::InUse);
            assert!(mmap.is_started(), "{what}: {text}");
            text
        };
        let pool = BufPool::builder(&mmap)
            .range(..4096)
            .element_size(64)
            .build()
            .unwrap();
        let inventory = BufInventory::with_capacity(2);
        let bufs = [0, 1].map(|i| inventory.buf(&mmap, 4096 + i..5000).unwrap());
        mentions(&in_use("both"), &[1, 2]);
        drop(bufs);
        mentions(&in_use("a pool"), &[1, 0]);
        let buf = pool.try_alloc().unwrap();
        drop(pool);
        in_use("a Buf of a pool that has gone");
        let bytes = buf.into_bytes().unwrap();
        in_use("Bytes");
        drop(bytes);
        let array = BufArray::builder(&mmap).elements(1).build().unwrap();
        in_use("an array");
        drop(array);

        let src = inventory.buf_filled(&mmap, 0..100).unwrap();
        let hold = bench.hold();
        let mut copy = Box::pin(bench.dma.copy(src, bench.empty()).owned());
        poll_pending(copy.as_mut());
        drop(copy);
        mentions(&in_use("a job that nobody awaits"), &[0, 1]);
        drop(hold);
        bench.engine_works().await;
        until("it is unused", || !mmap.is_in_use()).await;
        mmap.stop().unwrap();
        assert!(!mmap.is_in_use());
    });
}

/// The first key of an element is stored in the element: it must be the key of the devices that
/// hold the memory now.
#[test]
fn stopping_in_a_loop_beside_users_gives_nobody_an_old_key() {
    const RESTARTS: usize = 100;
    let soft = Soft::builder().build();
    let devices = ["pf0", "pf1"].map(|name| soft.open(name).unwrap());
    let mmap = Mmap::builder().device(&devices[0]).alloc(8192).unwrap();
    let (uses, restarts) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
            let dmas = [0, 1].map(|i| Dma::builder(&devices[i]).attach(&workq).unwrap());
            let inventory = BufInventory::with_capacity(2);
            while restarts.load(SeqCst) < RESTARTS {
                let Ok(src) = inventory.buf_filled(&mmap, 0..10) else {
                    std::thread::yield_now();
                    continue;
                };
                let dst = inventory
                    .buf(&mmap, 10..20)
                    .expect("what is in use does not stop");
                let now = mmap.devices();
                let current = usize::from(now == devices[1..]);
                assert_eq!(now, devices[current..=current]);
                let results = dmas
                    .each_ref()
                    .map(|dma| workq.block_on(async { dma.copy(&src, &dst).await }));
                assert_eq!(results[current], Ok(10));
                assert_eq!(
                    results[1 - current].unwrap_err().reason(),
                    Reason::ForeignDevice
                );
                drop((src, dst));
                uses.fetch_add(1, SeqCst);
                std::thread::yield_now();
            }
        });
        for restart in 1..=RESTARTS {
            block_until("it was used, and stops", || {
                assert!(!user.is_finished(), "the user has failed");
                uses.load(SeqCst) >= restart && mmap.stop().is_ok()
            });
            mmap.start([&devices[restart % 2]]).unwrap();
            restarts.store(restart, SeqCst);
        }
    });
}

#[test]
fn an_mmap_needs_a_device_bytes_and_flags_that_agree() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let builder = || Mmap::builder().device(&device);
    let invalid = ErrorKind::InvalidValue;
    rejected(Mmap::builder().alloc(4096), invalid);
    mentions(&rejected(builder().alloc(0), invalid), &[0]);
    let twice = rejected(builder().device(&device).alloc(4096), ErrorKind::InUse);
    assert!(twice.contains("pf0"), "{twice}");
    for access in [
        Access::DPU_READ_ONLY | Access::DPU_READ_WRITE | Access::LOCAL_READ_WRITE,
        Access::RDMA_WRITE,
        Access::RDMA_ATOMIC,
        Access::DPU_READ_WRITE,
        Access::from_bits_retain(1 << 20),
    ] {
        rejected(builder().access(access).alloc(4096), invalid);
    }
    for access in [
        Access::LOCAL_READ_ONLY,
        Access::RDMA_READ,
        Access::DPU_READ_ONLY,
        Access::all() - Access::DPU_READ_ONLY,
    ] {
        assert_eq!(
            builder().access(access).alloc(4096).unwrap().access(),
            access
        );
    }
    assert_eq!(builder().alloc(1).unwrap().len(), 1);
}

#[test]
fn a_size_that_no_file_can_have_is_refused() {
    let device = Soft::builder().build().open("pf0").unwrap();
    for len in [usize::MAX, 1 << 63] {
        let builder = Mmap::builder().device(&device);
        let text = rejected(builder.alloc(len), ErrorKind::InvalidValue);
        mentions(&text, &[len as u64]);
    }
}
