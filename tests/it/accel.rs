//! Jobs of a provider's own kinds: what is refused before the device sees it, which memory is
//! leased, and what happens when an `Op` is dropped or forgotten.

use outside_provider::{ECHO, FILL, Outside, Sin, XOR};
use support::*;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    accel::{Accel, AccelCall},
    error::{JobError, Reason},
    mem::{Access, BufChain},
};

/// The device, its memory, and a WorkQ with contexts of both kinds.
struct Bench {
    outside: Outside,
    device: Device,
    pool: BufPool,
    workq: WorkQ,
    accel: Accel,
    dma: Dma,
}

impl Bench {
    fn new(mode: Mode, depth: u32) -> Bench {
        let outside = Outside::new(Sin::None);
        let device = outside.device();
        let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
        let workq = WorkQ::builder().mode(mode).depth(depth).build().unwrap();
        Bench {
            pool: BufPool::builder(&mmap).element_size(4096).build().unwrap(),
            accel: Accel::builder(&device).attach(&workq).unwrap(),
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            outside,
            device,
            workq,
        }
    }

    fn empty(&self) -> Buf {
        let buf = self.pool.try_alloc().unwrap();
        buf.reset_data_len().unwrap();
        buf
    }

    fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.empty();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }
}

/// Runs `story` on a runtime in each mode.
fn each_mode(story: impl AsyncFn(&Bench)) {
    for mode in modes() {
        eprintln!("{mode:?}");
        let bench = Bench::new(mode, 8);
        run(story(&bench));
    }
}

fn xor(key: u64) -> AccelCall {
    AccelCall::new(XOR).arg(key)
}

#[track_caller]
fn is(result: Result<u64, JobError>, kind: ErrorKind, reason: Reason) {
    let error = result.expect_err("it must be refused");
    assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
}

#[test]
fn a_call_reads_its_source_appends_to_its_destination_and_answers() {
    each_mode(async |bench| {
        let accel = &bench.accel;
        let (src, dst) = (bench.filled(b"abc"), bench.filled(b"x"));
        assert_eq!(accel.call(xor(1).src(&src).dst(&dst)).await, Ok(3));
        assert_eq!(bytes(&dst), b"x`cb");
        assert_eq!(bytes(&src), b"abc");
        // A job without a source may write all of the tailroom.
        dst.set_data(4000, 90).unwrap();
        let fill = AccelCall::new(FILL).arg(7);
        assert_eq!(accel.call(fill.dst(&dst)).await, Ok(6));
        assert_eq!(rooms(&dst), (4000, 96, 0));
        assert_eq!(bytes(&dst)[90..], [7; 6]);
        // A job without a destination, or without any operands, may return any number.
        let big = AccelCall::new(ECHO).arg(u64::MAX);
        assert_eq!(accel.call(big.clone().src(&src)).await, Ok(u64::MAX));
        assert_eq!(accel.call(big).await, Ok(u64::MAX));
        assert_eq!(rooms(&src), (0, 3, 4093));
    });
}

#[test]
fn calls_and_copies_share_a_workq() {
    each_mode(async |bench| {
        let (src, coded, copied) = (bench.filled(&[5; 1000]), bench.empty(), bench.empty());
        for _ in 0..100 {
            coded.reset_data_len().unwrap();
            copied.reset_data_len().unwrap();
            let call = bench.accel.call(xor(1).src(&src).dst(&coded));
            let (called, done) = futures::join!(call, bench.dma.copy(&src, &copied));
            assert_eq!((called, done), (Ok(1000), Ok(1000)));
            assert_eq!(
                (bytes(&coded), bytes(&copied)),
                (vec![4; 1000], vec![5; 1000])
            );
        }
    });
}

#[test]
fn chains_are_gathered_and_scattered() {
    each_mode(async |bench| {
        let (sources, targets) = (BufChain::with_capacity(2), BufChain::with_capacity(2));
        let (first, second) = (bench.empty(), bench.empty());
        first.set_data(4095, 0).unwrap();
        for (from, to) in [(b"ab", &first), (b"cd", &second)] {
            sources.push(bench.filled(from)).unwrap();
            targets.push(to).unwrap();
        }
        let call = xor(0).src(&sources).dst(&targets);
        assert_eq!(bench.accel.call(call).await, Ok(4));
        assert_eq!(
            (&bytes(&first)[..], &bytes(&second)[..]),
            (&b"a"[..], &b"bcd"[..])
        );
    });
}

#[test]
fn an_unknown_opcode_is_refused_before_anything_is_leased() {
    each_mode(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        // The guards make any lease fail with `InUse`, so another error comes before the leases.
        let (_writing, _reading) = (src.data_mut().unwrap(), dst.data().unwrap());
        let call = AccelCall::new(0xbad).src(&src).dst(&dst);
        let error = bench.accel.call(call.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        assert!(error.to_string().contains("0xbad"), "{error}");
        refused(bench.accel.call(call).start(), ErrorKind::NotSupported);
        assert!(!bench.accel.caps().supports(0xbad) && bench.accel.caps().supports(XOR));
        assert_eq!(bench.workq.in_flight(), 0);
    });
}

#[test]
fn a_device_without_an_accelerator_says_so_when_asked_and_when_attached() {
    let device = Soft::builder().build().open("pf0").unwrap();
    assert_eq!(device.info().caps().accel, None);
    for mode in modes() {
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let attached = Accel::builder(&device).attach(&workq);
        let text = rejected(attached, ErrorKind::NotSupported);
        assert!(text.contains("pf0") && text.contains("accel"), "{text}");
    }
}

#[test]
fn what_is_wrong_with_the_operands_is_said() {
    use ErrorKind::{InUse, InvalidValue, NotPermitted};
    each_mode(async |bench| {
        let call = async |src: &Buf, dst: &Buf| bench.accel.call(xor(1).src(src).dst(dst)).await;
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        is(
            call(&bench.empty(), &dst).await,
            InvalidValue,
            Reason::NoData,
        );
        let full = bench.filled(&[1; 4096]);
        is(call(&src, &full).await, InvalidValue, Reason::NoTailroom);
        is(call(&src, &src).await, InvalidValue, Reason::Overlap);
        let guard = src.data_mut().unwrap();
        is(call(&src, &dst).await, InUse, Reason::SourceInUse);
        drop(guard);
        // An empty Buf with a write guard is reported as in use, and not as empty.
        let empty = bench.empty();
        let guard = empty.data_mut().unwrap();
        is(call(&empty, &dst).await, InUse, Reason::SourceInUse);
        drop(guard);
        is(call(&full, &full).await, InvalidValue, Reason::Overlap);
        let guard = dst.data().unwrap();
        is(call(&src, &dst).await, InUse, Reason::DestinationInUse);
        drop(guard);
        let foreign = Bench::new(Mode::BusyPoll, 8);
        let other = foreign.filled(b"abc");
        is(
            call(&other, &dst).await,
            InvalidValue,
            Reason::ForeignDevice,
        );
        let builder = Mmap::builder().device(&bench.device);
        let mmap = builder.access(Access::LOCAL_READ_ONLY).alloc(4096).unwrap();
        let locked = BufPool::builder(&mmap)
            .build()
            .unwrap()
            .try_alloc()
            .unwrap();
        is(call(&src, &locked).await, NotPermitted, Reason::ReadOnly);
        // The device takes lists of at most 5 pieces, and at most 128 KiB.
        let chain = BufChain::with_capacity(6);
        for _ in 0..6 {
            chain.push(bench.filled(b"x")).unwrap();
        }
        let listed = bench.accel.call(xor(1).src(&chain).dst(&dst)).await;
        is(listed, InvalidValue, Reason::ListTooLong);
        let large = |len| {
            let mmap = Mmap::builder().device(&bench.device).alloc(len).unwrap();
            let pool = BufPool::builder(&mmap).element_size(len).alignment(1);
            pool.build().unwrap().try_alloc().unwrap()
        };
        let (most, more) = (large(1 << 17), large((1 << 17) + 1));
        let fill = AccelCall::new(FILL).arg(1);
        let filled = bench.accel.call(fill.clone().dst(&more)).await;
        is(filled, InvalidValue, Reason::TooLarge);
        assert_eq!(bench.accel.call(fill.dst(&most)).await, Ok(1 << 17));
        more.set_data(0, (1 << 17) + 1).unwrap();
        let echo = AccelCall::new(ECHO);
        let read = bench.accel.call(echo.clone().src(&more)).await;
        is(read, InvalidValue, Reason::TooLarge);
        assert_eq!(bench.accel.call(echo.src(&most)).await, Ok(0));
        assert_eq!(call(&src, &dst).await, Ok(3), "nothing of that is leased");
    });
}

#[test]
fn both_sides_are_leased_while_a_dropped_call_goes_on() {
    each_mode(async |bench| {
        let hold = bench.outside.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let mut call = Box::pin(bench.accel.call(xor(1).src(&src).dst(&dst)));
        poll_pending(call.as_mut());
        drop(call);
        assert_eq!(bench.workq.in_flight(), 1);
        refused(src.data_mut(), ErrorKind::InUse);
        drop(src.data().unwrap());
        refused(dst.data(), ErrorKind::InUse);
        drop(hold);
        // The device works in order, and reaping this job finds the orphan too.
        assert_eq!(bench.accel.call(AccelCall::new(ECHO)).await, Ok(0));
        until("the orphan's Slot is free", || bench.workq.in_flight() == 0).await;
        assert_eq!(bytes(&dst), b"`cb");
        drop(src.data_mut().unwrap());
    });
}

#[test]
fn a_forgotten_call_keeps_its_memory_and_its_slot() {
    each_mode(async |bench| {
        let hold = bench.outside.hold();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let call = xor(1).src(src.clone()).dst(dst.clone());
        let mut call = Box::pin(bench.accel.call(call).owned());
        poll_pending(call.as_mut());
        std::mem::forget(call);
        refused(dst.data(), ErrorKind::InUse);
        drop(hold);
        // This job is too long to run inline, so the device runs it after the other one.
        let (more, other) = (bench.filled(&[b'd'; 65]), bench.empty());
        let after = bench.accel.call(xor(1).src(&more).dst(&other)).await;
        assert_eq!(after, Ok(65));
        assert_eq!(bytes(&dst), b"`cb", "its Leases went back at its end");
        assert_eq!(bench.workq.in_flight(), 1, "nobody fetches its result");
    });
}

#[test]
fn a_full_workq_has_calls_wait_their_turn() {
    for mode in modes() {
        let bench = Bench::new(mode, 2);
        run(async {
            let hold = bench.outside.hold();
            let (src, dst) = (
                bench.filled(b"abc"),
                [bench.empty(), bench.empty(), bench.empty()],
            );
            let mut calls: Vec<_> = dst
                .iter()
                .map(|dst| Box::pin(bench.accel.call(xor(1).src(&src).dst(dst))))
                .collect();
            for call in &mut calls {
                poll_pending(call.as_mut());
            }
            let fourth = bench.accel.call(AccelCall::new(ECHO)).start();
            refused(fourth, ErrorKind::Again);
            drop(hold);
            for call in calls {
                assert_eq!(call.await, Ok(3));
            }
        });
    }
}

#[test]
fn a_call_can_be_spawned_and_its_context_detached() {
    let bench = Bench::new(Mode::EventDriven, 8);
    run(async {
        let tasks: Vec<_> = (0..32u64)
            .map(|key| {
                let (src, dst) = (bench.filled(&[0; 5]), bench.empty());
                let call = bench
                    .accel
                    .call(xor(key).src(src.clone()).dst(dst.clone()))
                    .owned();
                let task = tokio::spawn(call);
                (key, src, dst, task)
            })
            .take(8)
            .collect();
        for (key, _src, dst, task) in tasks {
            assert_eq!(task.await.unwrap(), Ok(5));
            assert_eq!(bytes(&dst), [key as u8; 5]);
        }
        let clone = bench.accel.clone();
        rejected(clone.detach(), ErrorKind::InUse);
        let other = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        bench.accel.attach(&other).unwrap().detach().unwrap();
        bench.workq.shutdown().await.unwrap();
        let late = bench.accel.call(AccelCall::new(ECHO)).await;
        is(late, ErrorKind::Shutdown, Reason::Shutdown);
    });
}
