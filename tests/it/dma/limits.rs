//! A device with the limits of an adapter refuses exactly the jobs that exceed its capabilities,
//! before anything is leased.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use support::*;
use tokio_doca::device::contract::Provider;
use tokio_doca::soft::{Limits, Soft};
use tokio_doca::{
    Buf, ErrorKind, Mode,
    error::{JobError, Reason},
    mem::BufChain,
};

fn soft(limits: Limits, defer: bool) -> Soft {
    Soft::builder().limits(limits).defer(defer).build()
}

/// Runs `story` in each configuration on a device with these limits.
fn each_within(limits: &Limits, story: impl AsyncFn(&Bench)) {
    for config in configs() {
        eprintln!("{config:?}");
        let bench = Bench::with_soft(config, soft(limits.clone(), config.defer));
        run(story(&bench));
    }
}

/// Returns a chain of `bufs` buffers, each with `data` bytes of data; the rest of each is tailroom.
fn chain(bench: &Bench, bufs: usize, data: usize) -> (BufChain, Vec<Buf>) {
    let chain = BufChain::with_capacity(bufs.max(1));
    let bufs: Vec<Buf> = (0..bufs).map(|_| bench.filled(&vec![7; data])).collect();
    for buf in &bufs {
        chain.push(buf).unwrap();
    }
    (chain, bufs)
}

#[track_caller]
fn is(result: Result<usize, JobError>, reason: Reason, numbers: [u64; 2]) {
    let error = result.expect_err("it is beyond the limits");
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::InvalidValue, reason),
        "{error}"
    );
    mentions(&error.to_string(), &numbers);
    assert!(
        error.to_string().contains("split it"),
        "the way out: {error}"
    );
}

#[test]
fn the_largest_copy_is_done_and_one_byte_more_is_refused() {
    each_within(&Limits::unlimited().max_buf_size(1000), async |bench| {
        let jobs = bench.device.jobs();
        let (src, dst) = (bench.filled(&[1; 1001]), bench.empty());
        is(
            bench.dma.copy(&src, &dst).await,
            Reason::TooLarge,
            [1001, 1000],
        );
        let tried = bench
            .dma
            .copy(&src, &dst)
            .start()
            .map(|_| 0)
            .map_err(JobError::from);
        is(tried, Reason::TooLarge, [1001, 1000]);
        assert_eq!(bench.device.jobs(), jobs, "the device was not asked");
        assert_eq!(dst.data_len(), 0);
        let part = src.slice(1..).unwrap();
        assert_eq!(bench.dma.copy(part, &dst).await, Ok(1000), "its way out");
        src.set_data(0, 1000).unwrap();
        assert_eq!(bench.dma.copy(&src, &dst).await, Ok(1000));
        // The pieces of a list are added up.
        let (sources, bufs) = chain(bench, 2, 500);
        assert_eq!(bench.dma.copy(&sources, &dst).await, Ok(1000));
        bufs[0].extend_from_slice(b"x").unwrap();
        let copied = bench.dma.copy(&sources, &dst).await;
        is(copied, Reason::TooLarge, [1001, 1000]);
    });
}

#[test]
fn the_longest_list_is_done_and_one_buf_more_is_refused_on_either_side() {
    each_within(&Limits::unlimited().max_list_len(3), async |bench| {
        let (src, dst) = (bench.filled(&[1; 90]), bench.empty());
        let (three, _bufs) = chain(bench, 3, 30);
        let (four, bufs) = chain(bench, 4, 20);
        assert_eq!(bench.dma.copy(&three, &dst).await, Ok(90));
        is(
            bench.dma.copy(&four, &dst).await,
            Reason::ListTooLong,
            [4, 3],
        );
        assert_eq!(bench.dma.copy(&src, &three).await, Ok(90));
        is(
            bench.dma.copy(&src, &four).await,
            Reason::ListTooLong,
            [4, 3],
        );
        // Empty sources, and destinations without tailroom, do not count.
        bufs[2].reset_data_len().unwrap();
        assert_eq!(bench.dma.copy(&four, &dst).await, Ok(60));
        bufs[2].set_data(0, ELEMENT).unwrap();
        assert_eq!(bench.dma.copy(&src, &four).await, Ok(90));
        let text = refused(bench.dma.copy(&four, &dst).await, ErrorKind::InvalidValue);
        mentions(&text, &[4, 3]);
    });
}

#[test]
fn beyond_the_limits_is_said_before_anything_is_leased() {
    let limits = Limits::unlimited().max_buf_size(100).max_list_len(2);
    each_within(&limits, async |bench| {
        let (src, dst) = (bench.filled(&[1; 101]), bench.empty());
        let (three, bufs) = chain(bench, 3, 1);
        // The guards make any lease fail with `InUse`, so another error comes before the leases.
        let (_writing, _reading) = (src.data_mut().unwrap(), dst.data().unwrap());
        let _last = bufs[2].data_mut().unwrap();
        is(
            bench.dma.copy(&src, &dst).await,
            Reason::TooLarge,
            [101, 100],
        );
        is(
            bench.dma.copy(&three, &dst).await,
            Reason::ListTooLong,
            [3, 2],
        );
        is(
            bench.dma.copy(&src, &three).await,
            Reason::ListTooLong,
            [3, 2],
        );
        assert_eq!(bench.workq.in_flight(), 0);
    });
}

#[test]
fn a_device_without_lists_takes_chains_of_one() {
    each_within(&Limits::bluefield2(), async |bench| {
        let (one, _bufs) = chain(bench, 1, 10);
        let (two, _more) = chain(bench, 2, 5);
        let dst = bench.empty();
        assert_eq!(bench.dma.copy(&one, &dst).await, Ok(10));
        is(
            bench.dma.copy(&two, &dst).await,
            Reason::ListTooLong,
            [2, 1],
        );
        bench.works().await;
    });
}

#[test]
fn each_profile_is_what_its_devices_say() {
    for (limits, bytes, bufs) in [
        (Limits::unlimited(), isize::MAX as u64, u32::MAX),
        (Limits::bluefield2(), 1 << 20, 1),
        (Limits::bluefield3(), 2 << 20, 64),
        (Limits::unlimited().max_buf_size(5).max_list_len(6), 5, 6),
    ] {
        for info in soft(limits, false).devices().unwrap() {
            let dma = info.caps().dma.as_ref().unwrap();
            assert_eq!((dma.max_buf_size, dma.max_list_len), (bytes, bufs));
            assert!(dma.event_driven && info.caps().accel.is_none());
        }
    }
}

/// Another thread may change the operands between their check and their leases: a job that is
/// executed never exceeds the limits.
#[test]
fn operands_that_change_meanwhile_are_not_done_beyond_the_limits() {
    let limits = Limits::unlimited().max_buf_size(100);
    let config = Config::new(false, Mode::BusyPoll);
    let bench = Bench::with_soft(config, soft(limits, false));
    // A long list, so that time passes between the check of its first Buf and the lease on it.
    let (src, bufs) = chain(&bench, 50, 2);
    let (first, over) = (&bufs[0], AtomicBool::new(false));
    let copied = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for len in [2, 3] {
                    // This fails while the Buf is being copied.
                    let _ = first.set_data(0, len);
                }
            }
        });
        let (mut copied, mut refused, dst) = ([0; 2], 0, bench.empty());
        let end = std::time::Instant::now() + LIMIT;
        while (copied[0] < 2000 || refused < 100) && std::time::Instant::now() < end {
            dst.reset_data_len().unwrap();
            match bench
                .workq
                .block_on(async { bench.dma.copy(&src, &dst).await })
            {
                Ok(len) => copied[usize::from(len > 100)] += 1,
                Err(error) => match error.reason() {
                    Reason::TooLarge => refused += 1,
                    reason => assert_eq!(reason, Reason::SourceInUse, "{error}"),
                },
            }
        }
        over.store(true, Ordering::Relaxed);
        copied
    });
    assert!(copied[0] >= 2000, "within the limits they are done");
    assert_eq!(copied[1], 0, "beyond the limits");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the limits and the operands are, a job is refused if and only if the capabilities
    /// exclude it.
    #[test]
    fn capabilities_and_refusals_agree(
        bytes in 1u64..60,
        bufs in 1u32..6,
        sources in proptest::collection::vec(0usize..20, 1..7),
        rooms in proptest::collection::vec(0usize..40, 1..7),
    ) {
        let limits = Limits::unlimited().max_buf_size(bytes).max_list_len(bufs);
        let config = Config::new(false, Mode::BusyPoll);
        let bench = Bench::with_soft(config, soft(limits, false));
        let (from, to) = (BufChain::with_capacity(8), BufChain::with_capacity(8));
        for &len in &sources {
            from.push(bench.filled(&vec![3; len])).unwrap();
        }
        for &room in &rooms {
            let buf = bench.empty();
            buf.set_data(ELEMENT - room, 0).unwrap();
            to.push(&buf).unwrap();
        }
        let caps = bench.dma.caps();
        prop_assert_eq!((caps.max_buf_size, caps.max_list_len), (bytes, bufs));
        let pieces = |list: &[usize]| list.iter().filter(|&&len| len > 0).count() as u64;
        let longest = pieces(&sources).max(pieces(&rooms));
        let (data, room): (usize, usize) = (sources.iter().sum(), rooms.iter().sum());
        let copied = bench.workq.block_on(async { bench.dma.copy(&from, &to).await });
        let reason = copied.map_err(|error| error.reason());
        let want = if longest > u64::from(caps.max_list_len) {
            Err(Reason::ListTooLong)
        } else if data as u64 > caps.max_buf_size {
            Err(Reason::TooLarge)
        } else if data > room {
            Err(Reason::TailroomTooSmall)
        } else {
            Ok(data)
        };
        prop_assert_eq!(reason, want);
    }
}
