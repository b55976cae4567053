//! Checks that attaching and submitting respect the capabilities that a device declares.

use crate::rig::{Attached, Subject};
use tokio_doca::error::{ErrorKind, JobError};
use tokio_doca::{
    Buf, BufPool, Mmap, Mode, WorkQ,
    accel::{Accel, AccelCall},
    mem::BufChain,
    sha::{Algorithm, Sha},
};

/// The maximum depth with which a WorkQ can be built.
const DEEPEST: u32 = 1 << 20;
/// Limits from these values on are not tried, to keep the test small.
const LARGE: usize = 1 << 24;
const LONG: usize = 1 << 12;

/// Checks that a context attaches only to a WorkQ within the capabilities. The largest and the
/// longest Job that the capabilities allow must succeed, and one more byte or Buf must be refused.
///
/// # Panics
///
/// Panics if the device does not have the subject's kind of Job, or if a limit is not kept.
pub fn caps_are_kept(subject: impl Into<Subject>) {
    let subject = &subject.into();
    let max_depth = subject.max_depth();
    assert!(max_depth >= 1, "a queue takes at least one Job");
    assert!(
        subject.max_list_len() >= 1 && subject.max_buf_size() >= 1,
        "one piece of one byte is the least"
    );
    if max_depth < DEEPEST {
        let deeper = max_depth + 1;
        refused(subject, deeper, Mode::BusyPoll, ErrorKind::InvalidValue);
    }
    if !subject.event_driven() {
        refused(subject, 1, Mode::EventDriven, ErrorKind::NotSupported);
    }
    let vectors = subject.device.info().caps().completion_vectors.max(1);
    let on = |vector| {
        let builder = WorkQ::builder().depth(1).completion_vector(vector);
        let workq = builder.mode(Mode::BusyPoll).build();
        subject.attach(&workq.expect("a WorkQ")).map(drop)
    };
    on(vectors - 1).expect("the last completion vector");
    let kind = on(vectors).map_err(|error| error.kind());
    let refused = Err(ErrorKind::InvalidValue);
    assert_eq!(kind, refused, "completion vector {vectors} must be refused");
    // As deep as allowed, up to a limit that suits a test.
    let workq = workq(max_depth.min(4096), Mode::BusyPoll);
    let context = subject.attach(&workq).expect("within the capabilities");
    largest(subject, &workq, &context);
    longest(subject, &workq, &context);
    match &context {
        Attached::Dma(_) | Attached::Crc(..) => {}
        Attached::Accel(accel, _) => unknown_opcode(subject, &workq, accel),
        Attached::Sha(sha, _) => unknown_algorithm(subject, &workq, sha),
    }
}

fn workq(depth: u32, mode: Mode) -> WorkQ {
    WorkQ::builder()
        .depth(depth)
        .mode(mode)
        .build()
        .expect("a WorkQ of a legal depth")
}

fn refused(subject: &Subject, depth: u32, mode: Mode, want: ErrorKind) {
    let attached = subject.attach(&workq(depth, mode));
    let kind = attached.err().map(|error| error.kind());
    assert_eq!(
        kind,
        Some(want),
        "depth {depth}, {mode:?}: attaching must be refused"
    );
}

fn pool(subject: &Subject, elements: usize, size: usize) -> BufPool {
    let mmap = Mmap::builder()
        .device(&subject.device)
        .alloc(elements * size)
        .expect("memory");
    BufPool::builder(&mmap)
        .element_size(size)
        .alignment(1)
        .build()
        .expect("a pool")
}

/// Tries a Job of the maximum size, and one that is a byte larger, if the size suits a test.
fn largest(subject: &Subject, workq: &WorkQ, context: &Attached) {
    let Ok(limit) = usize::try_from(subject.max_buf_size()) else {
        return;
    };
    if limit >= LARGE {
        return;
    }
    // A digest may be longer than its source, so the destination has `least` bytes more.
    let least = subject.room_for(1) - 1;
    let pool = pool(subject, 2, limit + 1 + least);
    for size in [limit, limit + 1] {
        let buf = || pool.try_alloc().expect("two");
        let (src, dst): (Buf, Buf) = (buf(), buf());
        src.set_data(0, size).expect("all of it");
        dst.set_data(limit + 1 - size, 0).expect("all of it");
        let answer = workq.block_on(context.work(&src, &dst));
        let what = format!("{size} bytes, and max_buf_size is {limit}");
        expect(answer, size <= limit, &what);
    }
}

/// Tries a list with the maximum number of Bufs, and one with one Buf more.
fn longest(subject: &Subject, workq: &WorkQ, context: &Attached) {
    let limit = subject.max_list_len() as usize;
    // Each Buf of the list needs at least one byte.
    if limit >= LONG || subject.within(limit + 1) <= limit {
        return;
    }
    let pool = pool(subject, 2 * (limit + 1), subject.room_for(1));
    for len in [limit, limit + 1] {
        let (sources, targets) = (
            BufChain::with_capacity(limit + 1),
            BufChain::with_capacity(limit + 1),
        );
        for _ in 0..len {
            let (src, dst) = (
                pool.try_alloc().expect("enough"),
                pool.try_alloc().expect("enough"),
            );
            src.set_data(0, 1).expect("all of it");
            sources.push(&src).expect("room");
            if targets.len() < subject.targets(len) {
                targets.push(&dst).expect("room");
            }
        }
        let answer = workq.block_on(context.work(&sources, &targets));
        let what = format!("a list of {len}, and max_list_len is {limit}");
        expect(answer, len <= limit, &what);
    }
}

fn expect(answer: Result<u64, JobError>, allowed: bool, what: &str) {
    match answer.map_err(|error| error.kind()) {
        Ok(_) if allowed => {}
        Err(ErrorKind::InvalidValue) if !allowed => {}
        other => panic!("the capabilities are not kept: {what}, and the answer is {other:?}"),
    }
}

/// Checks that an opcode that the capabilities do not list is refused.
fn unknown_opcode(subject: &Subject, workq: &WorkQ, accel: &Accel) {
    let unknown = (0..=u32::MAX).find(|&opcode| !subject.accel_caps().supports(opcode));
    let unknown = unknown.expect("no device knows 2^32 opcodes");
    let jobs = subject.device.jobs();
    let answer = workq.block_on(accel.call(AccelCall::new(unknown)));
    let kind = answer.map_err(|error| error.kind());
    assert_eq!(
        (kind, subject.device.jobs()),
        (Err(ErrorKind::NotSupported), jobs),
        "opcode {unknown} is not in the capabilities"
    );
}

/// A hash that the capabilities do not list must be refused without asking the device, and nothing
/// may be written.
fn unknown_algorithm(subject: &Subject, workq: &WorkQ, sha: &Sha) {
    let pool = pool(subject, 2, Algorithm::Sha512.digest_len());
    let (src, dst) = (
        pool.try_alloc().expect("two"),
        pool.try_alloc().expect("two"),
    );
    src.set_data(0, 1).expect("all of it");
    let jobs = subject.device.jobs();
    for algorithm in Algorithm::ALL {
        if sha.caps().supports(algorithm) {
            continue;
        }
        let answer = workq.block_on(sha.hash(algorithm, &src, &dst));
        let answer = answer.map_err(|error| error.kind());
        let session = sha.session(algorithm).err().map(|error| error.kind());
        assert_eq!(
            (answer, session),
            (Err(ErrorKind::NotSupported), Some(ErrorKind::NotSupported)),
            "{algorithm} is not in the capabilities"
        );
    }
    assert_eq!(
        (dst.data_len(), subject.device.jobs()),
        (0, jobs),
        "the device was asked for what is not in the capabilities"
    );
}
