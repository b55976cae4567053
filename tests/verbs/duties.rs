//! Duties that the adapter provider has where an adapter misbehaves: tests drive its queues and
//! endpoints without a WorkQ, on fake adapters.
#![expect(unsafe_code, reason = "drives a provider as the crate does")]

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, Fake, LIMIT, World};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::block_until;
use tokio_doca::device::contract::{
    Armed, Completion, Endpoint, EndpointConfig, EndpointState, Queue, QueueConfig, RdmaJob,
    Receive, Segments, Signal, Submitted, Token, Verb,
};
use tokio_doca::device::{Device, Liveness};
use tokio_doca::error::{JobError, Reason};
use tokio_doca::verbs::ffi::Wc;

/// Two endpoints of one device, each with its own queue.
struct Bench {
    queues: [Arc<dyn Queue>; 2],
    ends: [Arc<dyn Endpoint>; 2],
    _device: Device,
    fake: Fake,
}

impl Bench {
    fn new(world: &World, rnr_timeout: Duration) -> Bench {
        let device = open(&provider(world), "fake0");
        let queue = || {
            let config = QueueConfig::new(8, Arc::new(Signal::new().unwrap()));
            device.adapter().open_queue(config).unwrap()
        };
        let queues = [queue(), queue()];
        let ends = [0, 1].map(|number: usize| {
            let mut config = EndpointConfig::new(Arc::new(|| {}));
            config.rnr_timeout = rnr_timeout;
            queues[number].open_endpoint(config).unwrap()
        });
        let bench = Bench {
            queues,
            ends,
            _device: device,
            fake: world.fake("fake0"),
        };
        bench.connect();
        bench
    }

    fn connect(&self) {
        let [one, other] = &self.ends;
        let blobs = [one.export().unwrap(), other.export().unwrap()];
        one.connect(&blobs[1], Instant::now() + LIMIT).unwrap();
        other.connect(&blobs[0], Instant::now() + LIMIT).unwrap();
    }

    /// Submits a message of no bytes.
    fn send(&self, from: usize, number: u32) -> Submitted {
        let job = RdmaJob {
            verb: Verb::Send(None),
            local: Segments::none(),
            remote: None,
            len: 0,
        };
        // SAFETY: the job names no memory, and each test uses distinct slot numbers.
        unsafe { self.ends[from].submit(&[(Token::new(0, number, 1), (&job).into())]) }
    }

    /// Posts a receive of no bytes.
    fn post_recv(&self, to: usize, number: u32) -> Result<(), JobError> {
        let posted = self.post_recvs(to, number..number + 1);
        posted.refused.map_or(Ok(()), Err)
    }

    /// Posts receives of no bytes in one call.
    fn post_recvs(&self, to: usize, numbers: Range<u32>) -> Submitted {
        let receive = |number| Receive {
            token: Token::new(1, number, 1),
            dst: Segments::none(),
            len: 0,
        };
        let receives: Vec<_> = numbers.map(receive).collect();
        // SAFETY: the receives name no memory.
        unsafe { self.ends[to].post_recvs(&receives) }
    }

    fn reap(&self, of: usize) -> Vec<Completion> {
        let mut out = [Completion::new(Token::new(0, 0, 0), Ok(0)); 32];
        // SAFETY: only this thread reaps.
        let reaped = unsafe { self.queues[of].reap(&mut out) };
        out[..reaped].to_vec()
    }

    fn reap_one(&self, of: usize) -> Completion {
        let mut reaped = None;
        block_until("a completion", || {
            reaped = self.reap(of).first().copied();
            reaped.is_some()
        });
        reaped.unwrap()
    }

    /// Retires all endpoints and queues. Returns a weak reference to the `keep` of each, queues
    /// first.
    fn retire(self) -> [Weak<()>; 4] {
        let keeps = [(); 4].map(Arc::new);
        let kept = keeps.each_ref().map(Arc::downgrade);
        let [a, b, c, d] = keeps;
        for (end, keep) in self.ends.iter().zip([c, d]) {
            // SAFETY: nothing that names memory was posted.
            unsafe { end.retire(keep) };
        }
        for (queue, keep) in self.queues.iter().zip([a, b]) {
            // SAFETY: nothing that names memory was posted.
            unsafe { queue.retire(keep, 0) };
        }
        kept
    }
}

const PATIENT: Duration = support::LIMIT;

/// A queue pair that cannot be destroyed may access memory at any time: the queue keeps what it was
/// given for ever, and accepts no more jobs.
#[test]
fn what_could_not_be_destroyed_is_kept_by_the_queue_too() {
    let mut world = World::new([Description::roce("fake0")]);
    world.expect_leaks();
    let bench = Bench::new(&world, PATIENT);
    let hold = bench.fake.hold();
    assert_eq!(bench.send(0, 1).accepted, 1);
    world.faults().fail("ibv_destroy_qp", 1, libc::EBUSY);
    bench.ends[0].reset();
    assert!(matches!(bench.ends[0].state(), EndpointState::Error(_)));
    let ended = bench.reap_one(0);
    assert_eq!(ended.token, Token::new(0, 1, 1));
    assert_eq!(ended.result, Err(JobError::memory_kept()));
    let late = bench.send(0, 2);
    assert_eq!(late.accepted, 0);
    assert_eq!(late.refused.map(|why| why.reason()), Some(Reason::Flushed));
    assert!(bench.post_recv(0, 1).is_err());
    let kept = bench.retire().map(|keep| keep.strong_count());
    assert_eq!(kept, [1, 0, 1, 0], "queues, endpoints");
    drop(hold);
}

/// A message that arrived in time is received however late it is polled for; it does not fail with
/// `NoReceive`.
#[test]
fn a_message_that_nobody_looked_for_has_arrived() {
    const LIMIT: Duration = Duration::from_millis(20);
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, LIMIT);
    bench.post_recv(1, 1).unwrap();
    assert_eq!(bench.send(0, 1).accepted, 1);
    // Waits far longer than the limit for a missing receive, which a thread of the provider checks
    // at least once in 5 ms.
    let start = Instant::now();
    while start.elapsed() < 10 * LIMIT + Duration::from_secs(1) {
        assert_eq!(bench.ends[0].state(), EndpointState::Connected);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bench.reap_one(0).result, Ok(0));
    assert_eq!(bench.reap_one(1).result.map(|_| ()), Ok(()));
    assert_eq!(bench.reap(0), []);
    assert_eq!(bench.ends[0].state(), EndpointState::Connected);
    // A message for which the peer has no receive fails once any thread polls.
    assert_eq!(bench.send(0, 2).accepted, 1);
    let failed = bench.reap_one(0).result.map_err(|error| error.reason());
    assert_eq!(failed, Err(Reason::NoReceive));
    bench.retire();
}

/// The adapter queues all requests, but its doorbell fails without naming a request: the requests
/// are accepted, and complete with errors.
#[test]
fn requests_that_may_have_been_taken_end() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    let hold = bench.fake.hold();
    world
        .faults()
        .fail("ibv_post_send(doorbell)", 1, libc::EINVAL);
    let submitted = bench.send(0, 1);
    assert_eq!((submitted.accepted, submitted.refused), (1, None));
    let error = bench.reap_one(0).result.unwrap_err();
    assert_eq!(error.vendor_code(), Some(libc::EINVAL as u64));
    assert!(matches!(bench.ends[0].state(), EndpointState::Error(_)));
    drop(hold);
    bench.retire();
}

/// The adapter may have posted a list of receives or not, because its doorbell failed: each receive
/// completes once, and the connection fails.
#[test]
fn receives_that_may_have_been_taken_end() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    bench.post_recv(1, 0).unwrap();
    world
        .faults()
        .fail("ibv_post_recv(doorbell)", 1, libc::EINVAL);
    let submitted = bench.post_recvs(1, 1..4);
    assert_eq!((submitted.accepted, submitted.refused), (3, None));
    let EndpointState::Error(cause) = bench.ends[1].state() else {
        panic!("it is not known what the adapter has");
    };
    assert_eq!(cause.vendor_code(), Some(libc::EINVAL as u64));
    let flushed = |number| Completion::new(Token::new(1, number, 1), Err(JobError::flushed(cause)));
    // The provider takes the posted receives from the adapter in another thread.
    let mut over = Vec::new();
    block_until("all have ended", || {
        over.extend(bench.reap(1));
        over.len() == 4
    });
    assert_eq!(over, [0, 1, 2, 3].map(flushed));
    bench.ends[1].reset();
    bench.ends[0].reset();
    bench.connect();
    bench.post_recv(1, 5).unwrap();
    assert_eq!(bench.send(0, 1).accepted, 1);
    assert_eq!(bench.reap_one(1).token, Token::new(1, 5, 1));
    bench.retire();
}

/// If the adapter refuses a receive in the middle of a list, those before it are posted; it and
/// those behind it never reached the adapter.
#[test]
fn receives_before_a_refused_one_are_posted() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    world.faults().fail("ibv_post_recv", 3, libc::ENOMEM);
    let submitted = bench.post_recvs(1, 0..5);
    assert_eq!(submitted.accepted, 2);
    let code = submitted.refused.and_then(|why| why.vendor_code());
    assert_eq!(code, Some(libc::ENOMEM as u64));
    assert_eq!(bench.fake.posted(), (0, 2));
    assert_eq!(bench.ends[1].state(), EndpointState::Connected);
    bench.post_recv(1, 2).unwrap();
    for number in 0..3 {
        assert_eq!(bench.send(0, number).accepted, 1);
        assert_eq!(bench.reap_one(1).token, Token::new(1, number, 1));
    }
    bench.retire();
}

/// A whole batch of unknown completions does not hide the valid ones behind it.
#[test]
fn completions_behind_strangers_are_ready() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    for _ in 0..16 {
        bench.fake.stray(Wc::default());
    }
    bench.post_recv(1, 1).unwrap();
    bench.send(0, 1);
    block_until("the message is sent", || world.carried_out() > 0);
    assert_eq!(bench.queues[0].arm(), Armed::Ready);
    assert_eq!(bench.reap_one(0).result, Ok(0));
    bench.retire();
}

/// A completion queue that fails is reported once: it does not keep signaling those that armed it,
/// and accepts nothing new.
#[test]
fn a_broken_queue_is_quiet_and_takes_nothing() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    world.faults().fail_always("ibv_poll_cq", libc::EIO);
    assert_eq!(bench.queues[0].arm(), Armed::Ready);
    // Polls after the failure return nothing.
    assert_eq!([bench.reap(0), bench.reap(0)], [[], []]);
    assert!(matches!(bench.ends[0].state(), EndpointState::Error(_)));
    // The thread that ended the connection polls once more, and so does the thread of the copies.
    let mut asked = 0;
    for _ in 0..1000 {
        asked += u32::from(bench.queues[0].ready());
        asked += u32::from(bench.queues[0].arm() == Armed::Ready);
        assert_eq!(bench.reap(0), []);
    }
    assert!(asked <= 4, "it is said once, and not {asked} times");
    world.faults().clear();
    bench.ends[0].reset();
    assert!(
        matches!(bench.ends[0].state(), EndpointState::Error(_)),
        "connected it would hear of nothing"
    );
    let config = EndpointConfig::new(Arc::new(|| {}));
    assert!(bench.queues[0].open_endpoint(config).is_err());
    bench.retire();
}

/// Completions that a poll has set aside are returned once and in order, whatever happens in
/// between.
#[test]
fn what_a_look_has_kept_is_handed_out_once_and_in_order() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    let queue = &bench.queues[0];
    let mut next = 1;
    for arms in [false, true] {
        for most in [1, 2, 8] {
            let first = next;
            for _ in 0..3 {
                bench.post_recv(1, next).unwrap();
                assert_eq!(bench.send(0, next).accepted, 1);
                next += 1;
            }
            block_until("a completion", || queue.ready());
            if arms {
                assert_eq!(queue.arm(), Armed::Ready, "what was kept is there");
            }
            let mut tokens = Vec::new();
            block_until("the rest of the completions", || {
                let mut out = vec![Completion::new(Token::new(0, 0, 0), Ok(0)); most];
                // SAFETY: only this thread reaps.
                let reaped = unsafe { queue.reap(&mut out) };
                tokens.extend(out[..reaped].iter().map(|completion| completion.token));
                tokens.len() >= 3
            });
            let sent: Vec<_> = (first..next)
                .map(|number| Token::new(0, number, 1))
                .collect();
            assert_eq!(tokens, sent);
            let mut received = 0;
            block_until("the messages", || {
                received += bench.reap(1).len();
                received >= 3
            });
            assert_eq!(bench.reap(0), []);
        }
    }
    // The endpoint is reset while a completion of it is set aside: the completion is still
    // returned, with the old generation.
    bench.post_recv(1, next).unwrap();
    bench.send(0, next);
    block_until("a completion", || queue.ready());
    bench.ends[0].reset();
    let ended = bench.reap_one(0);
    assert_eq!(ended.token, Token::new(0, next, 1));
    assert_eq!(bench.reap(0), []);
    bench.retire();
}

/// A completion event that arrives after a poll found nothing is read by the next poll.
#[test]
fn an_event_that_comes_late_is_read() {
    let world = World::new([Description::roce("fake0")]);
    let bench = Bench::new(&world, PATIENT);
    let queue = &bench.queues[0];
    let is_readable = || {
        let fd = queue.event_fd().expect("a channel");
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    };
    assert_eq!(queue.arm(), Armed::Armed);
    queue.clear();
    bench.post_recv(1, 1).unwrap();
    bench.send(0, 1);
    assert_eq!(bench.reap_one(0).result, Ok(0));
    assert!(is_readable());
    queue.clear();
    assert!(!is_readable());
    bench.retire();
}

/// The event thread does not spin on a removed device, and treats a device that replaces it as a
/// new one.
#[test]
fn a_device_that_is_gone_is_left_alone() {
    let world = World::new([Description::roce("fake0")]);
    let verbs = provider(&world);
    let device = open(&verbs, "fake0");
    let fake = world.fake("fake0");
    fake.remove();
    block_until("its loss is noticed", || {
        device.liveness() != Liveness::Alive
    });
    // The thread may still be reading the events of the removal, which takes a few calls. After
    // that nothing wakes it. A thread that spins makes more than 20 calls.
    let (before, start) = (world.calls("ibv_get_async_event"), Instant::now());
    while start.elapsed() < Duration::from_millis(300) {
        let calls = world.calls("ibv_get_async_event") - before;
        assert!(calls <= 20, "{calls} looks");
        std::thread::sleep(Duration::from_millis(1));
    }
    fake.put_back();
    let back = open(&verbs, "fake0");
    assert_ne!(back, device);
    assert_eq!(open(&verbs, "fake0"), back);
    assert_eq!(back.liveness(), Liveness::Alive);
}
