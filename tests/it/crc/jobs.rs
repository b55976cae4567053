//! CRC jobs and their memory: leases, appended data, mismatches, refusals, and operations that are
//! dropped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use support::crc::bitwise;
use support::*;
use tokio_doca::crc::{Crc, CrcOptions};
use tokio_doca::device::CrcCaps;
use tokio_doca::soft::{Fault, Limits, Soft};
use tokio_doca::{
    ErrorKind, Mmap, Mode, WorkQ,
    device::JobKind,
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory},
};

use super::{attach, seeded};

fn is<T: std::fmt::Debug>(result: Result<T, JobError>, kind: ErrorKind, reason: Reason) -> String {
    let error = result.expect_err("it must be refused");
    assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
    error.to_string()
}

#[test]
fn a_copy_appends_to_what_is_there_and_a_mismatch_appends_nothing() {
    each_on_any(&configs(), async |bench| {
        let (crc, data) = (attach(bench), pattern(2, 1000));
        let (src, dst, good) = (
            bench.filled(&data),
            bench.filled(b"head"),
            bitwise(0, &data),
        );
        let wrong = CrcOptions::new().expected(good ^ 1);
        let refused = crc.copy_crc_with(wrong, &src, &dst).await;
        let text = is(refused, ErrorKind::IoFailed, Reason::CrcMismatch);
        for number in [good, good ^ 1] {
            assert!(text.contains(&format!("{number:#010x}")), "{text}");
        }
        let alone = crc.crc32c_with(wrong, &src).await;
        assert_eq!(is(alone, ErrorKind::IoFailed, Reason::CrcMismatch), text);
        assert_eq!(rooms(&dst), (0, 4, ELEMENT - 4), "the data did not grow");
        assert_eq!(bytes(&dst), b"head");
        let right = CrcOptions::new().expected(good);
        assert_eq!(
            crc.copy_crc_with(right, &src, &dst).await.unwrap().bytes,
            1000
        );
        assert_eq!(crc.crc32c_with(right, &src).await, Ok(good));
        assert_eq!(bytes(&dst), [&b"head"[..], &data].concat());
        assert_eq!(rooms(&dst), (0, 1004, ELEMENT - 1004));
    });
}

/// Another holder of the source's memory writes it all the time.
#[test]
fn the_crc_is_of_the_bytes_that_were_copied_even_if_others_write_the_source() {
    const LEN: usize = 1 << 20;
    for defer in [false, true] {
        let device = Soft::builder().defer(defer).build().open("pf0").unwrap();
        let file = File::from(memfd_create("crc", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(LEN as u64).unwrap();
        let builder = Mmap::builder().device(&device);
        let shared = builder.from_memfd(file.try_clone().unwrap(), ..).unwrap();
        let inventory = BufInventory::with_capacity(2);
        let src = inventory.buf_filled(&shared, ..).unwrap();
        let dst = Mmap::builder().device(&device).alloc(LEN).unwrap();
        let dst = inventory.buf(&dst, ..).unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        let crc = Crc::builder(&device).attach(&workq).unwrap();
        let over = AtomicBool::new(false);
        let mut torn = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut byte = 0_u8;
                while !over.load(Ordering::Relaxed) {
                    byte = byte.wrapping_add(1);
                    file.write_all_at(&vec![byte; LEN], 0).unwrap();
                }
            });
            let copies = std::panic::AssertUnwindSafe(|| {
                block_until("the writer was often in the middle of a copy", || {
                    let copied = workq.block_on(crc.copy_crc(&src, &dst)).unwrap();
                    let data = bytes(&dst);
                    assert_eq!(copied.crc, crc32c::crc32c(&data), "of other bytes");
                    dst.reset_data_len().unwrap();
                    torn += u32::from([LEN / 2, LEN - 1].iter().any(|at| data[*at] != data[0]));
                    torn == 20
                });
            });
            let copied = std::panic::catch_unwind(copies);
            over.store(true, Ordering::Relaxed);
            copied.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}

#[test]
fn a_dropped_copy_keeps_its_memory_until_it_is_over() {
    each(async |bench| {
        let (crc, data) = (attach(bench), pattern(4, 64));
        let (src, dst) = (bench.filled(&data), bench.empty());
        let hold = bench.hold();
        {
            let mut op = pin!(crc.copy_crc(&src, &dst));
            poll_pending(op.as_mut());
            let mut other = pin!(crc.crc32c(&src).owned());
            poll_pending(other.as_mut());
        }
        refused(src.data_mut(), ErrorKind::InUse);
        refused(dst.data(), ErrorKind::InUse);
        let again = crc.copy_crc(&src, &dst).await;
        is(again, ErrorKind::InUse, Reason::DestinationInUse);
        assert_eq!(bench.workq.in_flight(), 2);
        drop(hold);
        until("they are over", || bench.workq.in_flight() == 0).await;
        assert_eq!(bytes(&dst), data, "it went on");
        drop((src, dst));
        bench.all_back().await;
    });
}

#[test]
fn an_operation_is_started_owned_and_awaited_in_a_task() {
    each(async |bench| {
        let (crc, data) = (attach(bench), pattern(6, 2000));
        let (src, dst, expected) = (bench.filled(&data), bench.empty(), bitwise(9, &data));
        let started = crc.copy_crc_with(seeded(9), &src, &dst).start().unwrap();
        let task = tokio::spawn(crc.crc32c_with(seeded(9), src.clone()).owned());
        assert_eq!(started.await.unwrap().crc, expected);
        assert_eq!(task.await.unwrap(), Ok(expected));
        assert_eq!(bytes(&dst), data);
    });
}

#[test]
fn a_job_that_fails_appends_nothing() {
    each_of(&[Config::new(true, Mode::BusyPoll)], async |bench| {
        let (crc, src, dst) = (attach(bench), bench.filled(b"abc"), bench.empty());
        bench
            .soft
            .faults()
            .push(Fault::Error(ErrorKind::IoFailed, 7));
        let failed = crc.copy_crc(&src, &dst).await;
        is(failed, ErrorKind::IoFailed, Reason::Device);
        assert_eq!(dst.data_len(), 0);
        assert_eq!(crc.copy_crc(&src, &dst).await.unwrap().bytes, 3);
    });
}

#[test]
fn what_is_wrong_with_the_operands_is_said_before_anything_happens() {
    use ErrorKind::{InUse, InvalidValue, NotPermitted};
    each(async |bench| {
        let crc = attach(bench);
        let jobs = bench.device.jobs();
        let (src, dst) = (bench.filled(&pattern(1, 1000)), bench.filled(&[9; ELEMENT]));
        dst.set_data(0, ELEMENT - 999).unwrap();
        let text = is(
            crc.copy_crc(&src, &dst).await,
            InvalidValue,
            Reason::TailroomTooSmall,
        );
        mentions(&text, &[999, 1000]);
        is(
            crc.copy_crc(&src, &src).await,
            InvalidValue,
            Reason::Overlap,
        );
        {
            let _writing = src.data_mut().unwrap();
            is(crc.crc32c(&src).await, InUse, Reason::SourceInUse);
            is(crc.copy_crc(&src, &dst).await, InUse, Reason::SourceInUse);
        }
        let read_only = bench.mmap_with(4096, Access::LOCAL_READ_ONLY);
        let inventory = BufInventory::with_capacity(4);
        let fixed = inventory.buf(&read_only, ..).unwrap();
        is(
            crc.copy_crc(&src, &fixed).await,
            NotPermitted,
            Reason::ReadOnly,
        );
        let other = bench.soft.open("pf1").unwrap();
        let foreign = Mmap::builder().device(&other).alloc(4096).unwrap();
        let foreign = inventory.buf_filled(&foreign, ..).unwrap();
        is(
            crc.crc32c(&foreign).await,
            InvalidValue,
            Reason::ForeignDevice,
        );
        assert_eq!(bench.device.jobs(), jobs, "the device was not asked");
        bench.workq.shutdown().await.unwrap();
        is(
            crc.crc32c(&src).await,
            ErrorKind::Shutdown,
            Reason::Shutdown,
        );
    });
}

#[test]
fn what_is_beyond_the_limits_is_refused() {
    let limits = Limits::unlimited().max_buf_size(100).max_list_len(2);
    let soft = Soft::builder().limits(limits).build();
    let bench = Bench::with_soft(Config::new(false, Mode::BusyPoll), soft);
    run(async {
        let (crc, chain) = (attach(&bench), BufChain::with_capacity(3));
        assert_eq!((crc.caps().max_buf_size, crc.caps().max_list_len), (100, 2));
        let (src, dst) = (bench.filled(&[1; 101]), bench.empty());
        for refused in [
            crc.crc32c(&src).await.map(|_| ()),
            crc.copy_crc(&src, &dst).await.map(|_| ()),
        ] {
            let text = is(refused, ErrorKind::InvalidValue, Reason::TooLarge);
            mentions(&text, &[101, 100]);
        }
        for _ in 0..3 {
            chain.push(bench.filled(&[1])).unwrap();
        }
        let refused = crc.crc32c(&chain).await;
        let text = is(refused, ErrorKind::InvalidValue, Reason::ListTooLong);
        mentions(&text, &[3, 2]);
        assert!(crc.crc32c(src.slice(0..100).unwrap()).await.is_ok());
    });
    // A job returns the CRC and the number of bytes in one number, which leaves 32 bits for the
    // bytes.
    assert_eq!(CrcCaps::new(u64::MAX, 1).max_buf_size, u64::from(u32::MAX));
}

/// A list may contain the same memory many times.
#[test]
fn more_than_four_gigabytes_are_refused() {
    const PIECE: usize = 1 << 20;
    let bench = Bench::new(Config::new(false, Mode::BusyPoll));
    let mmap = bench.mmap(PIECE);
    let piece = BufInventory::with_capacity(1)
        .buf_filled(&mmap, ..)
        .unwrap();
    let list = BufChain::with_capacity(4096);
    for _ in 0..4096 {
        list.push(&piece).unwrap();
    }
    run(async {
        let refused = attach(&bench).crc32c(&list).await;
        let text = is(refused, ErrorKind::InvalidValue, Reason::TooLarge);
        mentions(&text, &[1 << 32, u64::from(u32::MAX)]);
    });
}

#[test]
fn crcs_that_cannot_ring_are_for_polling_alone() {
    let soft = Soft::builder().limits(Limits::unlimited().crc_event_driven(false));
    let device = soft.build().open("pf0").unwrap();
    for mode in modes() {
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let attached = Crc::builder(&device).attach(&workq);
        match mode {
            Mode::BusyPoll => drop(attached.unwrap()),
            _ => drop(rejected(attached, ErrorKind::NotSupported)),
        }
    }
}

#[test]
fn a_device_says_whether_it_computes_crcs() {
    let device = Soft::builder().build().open("pf0").unwrap();
    assert!(device.info().caps().supports(JobKind::Crc));
    let bench = Bench::new(Config::new(false, Mode::BusyPoll));
    let crc = attach(&bench);
    let clone = crc.clone();
    rejected(crc.detach(), ErrorKind::InUse);
    clone.detach().unwrap();
}
