//! Checks of the capabilities that a device declares for its endpoints.

use super::memory::{ALL, Memory};
use super::workq::Bench;
use super::{Peers, watched};
use tokio_doca::error::{ErrorKind, JobError, Reason};
use tokio_doca::{Buf, BufPool, Mmap, Mode, Rdma, WorkQ, mem::BufChain, rdma::RdmaBuilder};

/// Limits from these values on are not tried, to keep the test small.
const LARGE: usize = 1 << 24;
const LONG: usize = 1 << 12;
const QUEUE: u32 = 1 << 14;

/// Checks that an Rdma attaches only with settings within the capabilities. The largest and the
/// longest operation that they allow must succeed. One more byte or Buf, and operations that the
/// device lacks, must be refused, and the connection must survive a refusal.
///
/// # Panics
///
/// Panics if the device has no remote operations, or if a limit is not kept.
pub fn rdma_caps_are_kept(peers: impl Into<Peers>) {
    watched("rdma_caps_are_kept", peers, |peers| {
        for side in [0, 1] {
            sizes(peers, side);
        }
        let pair = [0, 1].map(|side| {
            let longest = peers.caps(side).max_recv_list_len.min(LONG as u32);
            Bench::new(peers, side, Mode::BusyPoll, longest)
        });
        Bench::connect(&pair);
        largest(peers, &pair);
        longest_lists(peers, &pair);
        unsupported(peers, &pair);
        for bench in &pair {
            assert!(
                bench.is_connected(),
                "what is refused leaves the state as it is"
            );
        }
    });
}

fn workq(mode: Mode) -> WorkQ {
    WorkQ::builder()
        .depth(1)
        .mode(mode)
        .build()
        .expect("a WorkQ of a legal depth")
}

/// Tries queues of the maximum size and one larger, and the same for lists and addresses.
fn sizes(peers: &Peers, side: usize) {
    let (device, caps) = (&peers.devices[side], peers.caps(side));
    assert!(
        caps.max_message_size >= 1
            && caps.max_message_size <= 1 << 31
            && caps.max_send_queue_size >= 1
            && caps.max_recv_queue_size >= 1
            && caps.max_send_list_len >= 1
            && (1..=caps.max_send_list_len).contains(&caps.max_read_list_len)
            && caps.max_recv_list_len >= 1
            && caps.gid_table_size >= 1,
        "one of each is the least, and 2 GiB the longest message: {caps:?}"
    );
    let attach = |builder: RdmaBuilder<'_>, mode| {
        let attached = builder.attach(&workq(mode));
        attached.err().map(|error| error.kind())
    };
    let builder = || Rdma::builder(device);
    // The sizes of queues are powers of two.
    let largest = |limit: u32| (1 << limit.ilog2()).min(QUEUE);
    let (send, recv) = (caps.max_send_queue_size, caps.max_recv_queue_size);
    let fits = builder()
        .send_queue_size(largest(send))
        .recv_queue_size(largest(recv))
        .recv_chain_len(caps.max_recv_list_len)
        .gid_index(caps.gid_table_size - 1);
    assert_eq!(
        attach(fits, Mode::BusyPoll),
        None,
        "the capabilities are not kept: queues, lists and address as large as they may be"
    );
    let beyond = [
        send.checked_add(1)
            .map(|size| builder().send_queue_size(size)),
        recv.checked_add(1)
            .map(|size| builder().recv_queue_size(size)),
        (caps.max_recv_list_len.checked_add(1)).map(|len| builder().recv_chain_len(len)),
    ];
    for builder in beyond.into_iter().flatten() {
        let what = format!("beyond the capabilities: {builder:?}");
        let refused = attach(builder, Mode::BusyPoll);
        assert_eq!(refused, Some(ErrorKind::NotSupported), "{what}");
    }
    let address = builder().gid_index(caps.gid_table_size);
    let refused = attach(address, Mode::BusyPoll);
    assert_eq!(
        refused,
        Some(ErrorKind::InvalidValue),
        "an address too many"
    );
    if !caps.event_driven {
        let refused = attach(builder(), Mode::EventDriven);
        assert_eq!(
            refused,
            Some(ErrorKind::NotSupported),
            "it says that it cannot signal"
        );
    }
}

fn pool(peers: &Peers, side: usize, elements: usize, size: usize) -> BufPool {
    let mmap = Mmap::builder()
        .device(&peers.devices[side])
        .alloc(elements * size);
    let pool = BufPool::builder(&mmap.expect("memory"))
        .element_size(size)
        .alignment(1)
        .build();
    pool.expect("a pool")
}

fn filled(pool: &BufPool, len: usize) -> Buf {
    let buf = pool.try_alloc().expect("enough");
    let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + 7) as u8).collect();
    buf.extend_from_slice(&bytes).expect("it fits");
    buf
}

/// Tries a message, a write and a read of the maximum size, and of one byte more.
fn largest(peers: &Peers, [here, there]: &[Bench; 2]) {
    let limit = peers.caps(0).max_message_size as usize;
    if limit >= LARGE || peers.within(limit) < limit {
        return;
    }
    let (ours, theirs) = (pool(peers, 0, 2, limit + 1), pool(peers, 1, 1, limit + 1));
    let memory = Memory::new(peers, 1, limit + 1, ALL);
    let remote = memory.remote().buf(..limit + 1).expect("all of it");
    for len in [limit, limit + 1] {
        let (src, dst) = (filled(&ours, len), theirs.try_alloc().expect("one"));
        let fits = len <= limit;
        let what = format!("{len} bytes, and max_message_size is {limit}");
        let posted = fits.then(|| there.rdma.recv(&dst).start().expect("a place"));
        expect(here.block_on(there, here.rdma.send(&src)), fits, &what);
        if let Some(posted) = posted {
            let received = there.block_on(here, posted).map(|received| received.len);
            assert_eq!(received, Ok(len), "{what}");
            assert!(
                dst.data().ok().as_deref() == src.data().ok().as_deref(),
                "{what}"
            );
        }
        let written = here.block_on(there, here.rdma.write(&src, &remote));
        expect(written, fits, &what);
        let back = ours.try_alloc().expect("two");
        let remote = remote.slice(..len).expect("a part");
        let read = here.block_on(there, here.rdma.read(&remote, &back));
        expect(read, fits, &what);
        if fits {
            assert!(
                back.data().ok().as_deref() == src.data().ok().as_deref(),
                "{what}"
            );
        }
    }
}

/// Tries a message with lists as long as both sides allow, writes and reads with the maximum number
/// of Bufs and with one more, and a receive with one more than its maximum.
fn longest_lists(peers: &Peers, [here, there]: &[Bench; 2]) {
    let limit = peers.caps(0).max_send_list_len as usize;
    let receives = peers.caps(1).max_recv_list_len as usize;
    let most = limit.max(receives) + 1;
    if most > LONG || peers.within(most) < most {
        return;
    }
    let (ours, theirs) = (pool(peers, 0, most, 1), pool(peers, 1, most, 1));
    let list = |pool: &BufPool, len: usize, data: usize| {
        let chain = BufChain::with_capacity(most);
        for _ in 0..len {
            chain.push(filled(pool, data)).expect("room");
        }
        chain
    };
    let room = list(&theirs, receives, 0);
    let data = list(&ours, limit.min(receives), 1);
    let what = format!("a list of {}, and max_send_list_len is {limit}", data.len());
    let posted = there.rdma.recv(&room).start().expect("a place");
    expect(here.block_on(there, here.rdma.send(&data)), true, &what);
    let received = there.block_on(here, posted).map(|received| received.len);
    assert_eq!(received, Ok(data.len()), "{what}");
    drop((data, room));
    let memory = Memory::new(peers, 1, most, ALL);
    let remote = memory.remote().buf(..).expect("all of it");
    for len in [limit, limit + 1] {
        let what = format!("a list of {len}, and max_send_list_len is {limit}");
        let data = list(&ours, len, 1);
        let written = here.block_on(there, here.rdma.write(&data, &remote));
        expect(written, len <= limit, &what);
    }
    let limit = peers.caps(0).max_read_list_len as usize;
    for len in [limit, limit + 1] {
        let what = format!("a list of {len}, and max_read_list_len is {limit}");
        let (remote, room) = (remote.slice(..len).expect("a part"), list(&ours, len, 0));
        let read = here.block_on(there, here.rdma.read(&remote, &room));
        expect(read, len <= limit, &what);
    }
    let room = list(&theirs, receives + 1, 0);
    let refused = there
        .rdma
        .recv(&room)
        .start()
        .err()
        .map(|error| error.reason());
    assert_eq!(
        refused,
        Some(Reason::ListTooLong),
        "a receive of {} Bufs, and max_recv_list_len is {receives}",
        receives + 1
    );
}

fn expect(answer: Result<usize, JobError>, allowed: bool, what: &str) {
    match answer.map_err(|error| error.kind()) {
        Ok(_) if allowed => {}
        Err(ErrorKind::InvalidValue) if !allowed => {}
        other => panic!("the capabilities are not kept: {what}, and the answer is {other:?}"),
    }
}

/// Operations that the capabilities lack must be refused without asking the device.
fn unsupported(peers: &Peers, [here, there]: &[Bench; 2]) {
    let memory = Memory::new(peers, 1, 64, ALL);
    let remote = memory.remote().buf(..8).expect("a word");
    let caps = peers.caps(0);
    let jobs = here.rdma.device().jobs();
    let mut refused = Vec::new();
    if !caps.atomics {
        let added = here.block_on(there, here.rdma.fetch_add(&remote, 1));
        let swapped = here.block_on(there, here.rdma.compare_swap(&remote, 0, 1));
        refused.extend([added.err(), swapped.err()]);
    }
    if !caps.send_imm {
        let sent = here.block_on(there, here.rdma.send_imm((), 1));
        refused.push(sent.err());
    }
    if !caps.write_imm {
        let src = filled(&pool(peers, 0, 1, 1), 1);
        let written = here.block_on(there, here.rdma.write_imm(&src, &remote, 1));
        refused.push(written.err());
    }
    for error in refused {
        assert_eq!(
            error.map(|error| error.reason()),
            Some(Reason::RdmaUnsupported),
            "an operation that is not in the capabilities"
        );
    }
    assert_eq!(
        (here.rdma.device().jobs(), memory.read(0, 8)),
        (jobs, vec![0; 8]),
        "the device was asked for what is not in the capabilities"
    );
}
