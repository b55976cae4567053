//! Remote operations: the effect of each, the errors with which they are refused, and the states of
//! a context.

use std::time::Duration;

use futures::executor::block_on;
use support::both_sides::*;
use support::device::{needs_soft, under_test};
use support::loopback::Loopback;
use support::{LIMIT, in_time, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_doca::{
    Buf, BufPool, Device, ErrorKind, Mmap, Mode, Rdma, Result, WorkQ,
    device::Caps,
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory, RemoteMmap},
    rdma::{Mtu, RdmaState, RecvOpcode, Transport},
};

/// Awaits the future, and fails the test if it does not complete in time.
async fn within<F: Future>(future: F) -> F::Output {
    in_time("it", future).await
}

const MODES: [Mode; 3] = [
    Mode::EventDriven,
    Mode::BusyPoll,
    Mode::Hybrid {
        spin: Duration::from_micros(20),
    },
];

/// Runs `test` in every mode, inline and queued, on the loopback device and on the software device,
/// or on the adapter.
async fn everywhere<F: Future<Output = ()>>(test: impl Fn(Side, Side) -> F) {
    for mode in MODES {
        for inline in [false, true] {
            for device in [Loopback::device(inline).1, under_test(!inline)] {
                let (here, there) = pair(&device, mode);
                within(test(here, there)).await;
            }
        }
    }
}

#[tokio::test]
async fn each_operation_does_what_it_says() {
    everywhere(|here, there| async move {
        let (a, b) = (&here.rdma, &there.rdma);
        let dst = there.empty();
        // Messages.
        let (sent, received) = tokio::join!(a.send(here.filled(b"hello")), b.recv(&dst));
        let received = received.unwrap();
        assert_eq!((sent, received.len), (Ok(5), 5));
        assert_eq!(
            (received.opcode, received.immediate),
            (RecvOpcode::Send, None)
        );
        assert_eq!(dst.data().unwrap()[..], *b"hello");
        let (sent, received) = tokio::join!(a.send_imm(here.filled(b", you"), 7), b.recv(&dst));
        let received = received.unwrap();
        assert_eq!((sent, received.len), (Ok(5), 5));
        assert_eq!(
            (received.opcode, received.immediate),
            (RecvOpcode::SendImm, Some(7))
        );
        assert_eq!(dst.data().unwrap()[..], *b"hello, you", "appended");
        // One-sided operations.
        let (mmap, remote) = remote(&there, &here, 64, all_access());
        assert_eq!(a.write(&here.filled(b"12345678"), &remote).await, Ok(8));
        let back = here.empty();
        assert_eq!(a.read(&remote.slice(2..6).unwrap(), &back).await, Ok(4));
        assert_eq!(back.data().unwrap()[..], *b"3456");
        let was = u64::from_ne_bytes(*b"12345678");
        assert_eq!(a.fetch_add(&remote, 5).await, Ok(was));
        assert_eq!(a.compare_swap(&remote, was, 1).await, Ok(was + 5), "not it");
        assert_eq!(a.compare_swap(&remote, was + 5, 1).await, Ok(was + 5));
        assert_eq!(a.fetch_add(remote.clone(), 0).await, Ok(1));
        let src = here.filled(b"abc");
        let (written, received) = tokio::join!(a.write_imm(&src, &remote, 9), b.recv(()));
        let received = received.unwrap();
        assert_eq!((written, received.len), (Ok(3), 3));
        assert_eq!(
            (received.opcode, received.immediate),
            (RecvOpcode::WriteImm, Some(9))
        );
        drop(remote);
        let owner = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        owner.set_data(0, 4).unwrap();
        let mut start = [0; 4];
        owner.copy_out(0, &mut start).unwrap();
        assert_eq!(start, *b"abc\0");
        assert_eq!((here.workq.in_flight(), there.workq.in_flight()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn nothing_can_be_sent_written_and_read() {
    everywhere(|here, there| async move {
        let (a, b) = (&here.rdma, &there.rdma);
        let dst = there.empty();
        for (immediate, opcode) in [(None, RecvOpcode::Send), (Some(3), RecvOpcode::SendImm)] {
            let send = async {
                match immediate {
                    None => a.send(()).await,
                    Some(immediate) => a.send_imm((), immediate).await,
                }
            };
            let (sent, received) = tokio::join!(send, b.recv(&dst));
            assert_eq!(sent, Ok(0));
            let received = received.unwrap();
            assert_eq!(
                (received.len, received.opcode, received.immediate),
                (0, opcode, immediate)
            );
            assert_eq!(dst.data_len(), 0);
        }
        assert_eq!(a.write((), ()).await, Ok(0));
        assert_eq!(a.read((), ()).await, Ok(0));
        let (written, received) = tokio::join!(a.write_imm((), (), 4), b.recv(()));
        assert_eq!((written, received.unwrap().immediate), (Ok(0), Some(4)));
        let (_mmap, remote) = remote(&there, &here, 64, all_access());
        assert_eq!(a.write((), &remote).await, Ok(0));
        assert_eq!(a.read(&remote, ()).await, Ok(0));
    })
    .await;
}

#[tokio::test]
async fn lists_are_gathered_and_scattered() {
    everywhere(|here, _| async move {
        let mode = here.workq.mode();
        let [here, there] = [(); 2].map(|()| {
            Side::with(&here.device, mode, |builder| {
                builder.permissions(all_access()).recv_chain_len(3)
            })
        });
        connect(&here.rdma, &there.rdma);
        let (src, dst) = (BufChain::with_capacity(3), BufChain::with_capacity(3));
        for part in [&b"one"[..], b"two", b"three"] {
            src.push(here.filled(part)).unwrap();
            let room = there.filled(&[b'.'; ELEMENT - 4]);
            dst.push(&room).unwrap();
        }
        let (sent, received) = tokio::join!(here.rdma.send(&src), there.rdma.recv(&dst));
        assert_eq!((sent, received.unwrap().len), (Ok(11), 11));
        assert_eq!(dst.data_len(), 3 * (ELEMENT - 4) + 11);
        let (_mmap, remote) = remote(&there, &here, 64, all_access());
        assert_eq!(here.rdma.write(&src, &remote).await, Ok(11));
        let back = BufChain::with_capacity(2);
        for _ in 0..2 {
            back.push(here.filled(&[b'.'; ELEMENT - 4])).unwrap();
        }
        assert_eq!(here.rdma.read(&remote, &back).await, Ok(8), "the shorter");
        // A chain takes no more Bufs than its capacity, and the context refuses a chain that is
        // longer than it was built for.
        dst.push(there.empty()).unwrap_err();
        let long = BufChain::with_capacity(4);
        for _ in 0..4 {
            long.push(there.empty()).unwrap();
        }
        let error = there.rdma.recv(&long).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ListTooLong);
    })
    .await;
}

#[tokio::test]
async fn each_element_of_a_list_holds_its_part() {
    everywhere(|here, _| async move {
        let (device, mode) = (&here.device, here.workq.mode());
        let [here, there] = [(); 2].map(|()| {
            Side::with(device, mode, |builder| {
                builder.permissions(all_access()).recv_chain_len(3)
            })
        });
        connect(&here.rdma, &there.rdma);
        let small = Mmap::builder().device(device).alloc(4096).unwrap();
        let small = BufPool::builder(&small).element_size(64).build().unwrap();
        let bytes = pattern(1, 100);
        let (_mmap, remote) = remote(&there, &here, 100, all_access());
        let written = here.rdma.write(here.filled(&bytes), &remote).await;
        assert_eq!(written, Ok(100));

        let list = || {
            let chain = BufChain::with_capacity(3);
            let bufs = [(); 3].map(|()| small.try_alloc().unwrap());
            bufs.iter().for_each(|buf| chain.push(buf).unwrap());
            (chain, bufs)
        };
        let holds = |chain: &BufChain, bufs: &[Buf; 3]| {
            assert_eq!(bufs.each_ref().map(Buf::data_len), [64, 36, 0]);
            assert_eq!(chain.data_len(), 100);
            let parts = bufs.each_ref().map(|buf| buf.data().unwrap().to_vec());
            assert_eq!(parts.concat(), bytes);
        };
        let (chain, bufs) = list();
        let message = here.filled(&bytes);
        let (sent, received) = tokio::join!(here.rdma.send(message), there.rdma.recv(&chain));
        assert_eq!((sent, received.unwrap().len), (Ok(100), 100));
        holds(&chain, &bufs);
        let (chain, bufs) = list();
        assert_eq!(here.rdma.read(&remote, &chain).await, Ok(100));
        holds(&chain, &bufs);
    })
    .await;
}

#[tokio::test]
async fn memory_that_is_read_only_is_sent_and_not_received_into() {
    everywhere(|here, there| async move {
        let builder = Mmap::builder().device(&here.device);
        let builder = builder.access(Access::LOCAL_READ_ONLY);
        let mmap = builder.from_owner(vec![7_u8; 64]).unwrap();
        let inventory = BufInventory::with_capacity(3);
        let full = inventory.buf_filled(&mmap, ..).unwrap();
        let empty = || inventory.buf(&mmap, ..).unwrap();
        let (_mmap, remote) = remote(&there, &here, 64, all_access());
        let refused = |error: JobError| {
            assert_eq!(
                (error.reason(), error.kind()),
                (Reason::ReadOnly, ErrorKind::NotPermitted)
            );
        };
        refused(here.rdma.recv(&empty()).await.unwrap_err());
        refused(here.rdma.recv(empty()).start().unwrap_err().into());
        refused(here.rdma.read(&remote, &empty()).await.unwrap_err());
        // The Buf is refused as a part of a list, too.
        let list = BufChain::with_capacity(2);
        list.push(here.empty()).unwrap();
        list.push(empty()).unwrap();
        refused(here.rdma.read(&remote, &list).await.unwrap_err());
        assert_eq!(here.rdma.state(), RdmaState::Connected);
        // A device may always read memory that is sent or written.
        let dst = there.empty();
        let (sent, received) = tokio::join!(here.rdma.send(&full), there.rdma.recv(&dst));
        assert_eq!((sent, received.unwrap().len), (Ok(64), 64));
        assert_eq!(dst.data().unwrap()[..], [7; 64]);
        assert_eq!(here.rdma.write(&full, &remote).await, Ok(64));
        let back = here.empty();
        assert_eq!(here.rdma.read(&remote, &back).await, Ok(64));
        assert_eq!(back.data().unwrap()[..], [7; 64]);
    })
    .await;
}

#[tokio::test]
async fn what_is_refused_leaves_the_state_as_it_is() {
    everywhere(|here, there| async move {
        let a = &here.rdma;
        let src = here.filled(&[1; 16]);
        let (_mmap, small) = remote(&there, &here, 64, all_access());
        let small = small.slice(..12).unwrap();
        assert_eq!(
            a.write(&src, &small).await.unwrap_err().reason(),
            Reason::RemoteTooSmall
        );
        assert_eq!(
            a.write(&src, ()).await.unwrap_err().reason(),
            Reason::RemoteTooSmall
        );
        assert_eq!(
            a.fetch_add(small.slice(5..12).unwrap(), 1)
                .await
                .unwrap_err()
                .reason(),
            Reason::RemoteTooSmall
        );
        assert_eq!(
            a.fetch_add(small.slice(4..12).unwrap(), 1)
                .await
                .unwrap_err()
                .reason(),
            Reason::Misaligned
        );
        assert_eq!(
            a.fetch_add((), 1).await.unwrap_err().reason(),
            Reason::RemoteTooSmall
        );
        let full = here.filled(&[0; ELEMENT]);
        assert_eq!(
            a.recv(&full).await.unwrap_err().reason(),
            Reason::NoTailroom
        );
        // Each operation needs the access flag of the memory.
        let without = |access| remote(&there, &here, 64, all_access() - access);
        let (_keep, remote) = without(Access::RDMA_WRITE);
        assert_eq!(
            a.write(&src, &remote).await.unwrap_err().reason(),
            Reason::RemoteNotWritable
        );
        let (_keep, remote) = without(Access::RDMA_READ);
        assert_eq!(
            a.read(&remote, here.empty()).await.unwrap_err().reason(),
            Reason::RemoteNotReadable
        );
        let (_keep, remote) = without(Access::RDMA_ATOMIC);
        assert_eq!(
            a.compare_swap(&remote, 0, 1).await.unwrap_err().reason(),
            Reason::RemoteNotAtomic
        );
        // Memory of another device is refused.
        let (_loopback, other) = Loopback::device(false);
        let stranger = Side::new(&other, Mode::BusyPoll);
        assert_eq!(
            a.send(stranger.filled(b"x")).await.unwrap_err().reason(),
            Reason::ForeignDevice
        );
        let (_keep, foreign) = support::both_sides::remote(&stranger, &stranger, 64, all_access());
        assert_eq!(
            a.write(&src, &foreign).await.unwrap_err().reason(),
            Reason::ForeignDevice
        );
        // Memory that is in use is refused.
        let guard = src.data_mut().unwrap();
        assert_eq!(
            a.send(&src).await.unwrap_err().reason(),
            Reason::SourceInUse
        );
        drop(guard);
        assert_eq!([a.state(), there.rdma.state()], [RdmaState::Connected; 2]);
        assert_eq!(here.workq.in_flight(), 0);
    })
    .await;
}

#[tokio::test]
async fn memory_that_was_exported_to_the_dpu_is_refused() {
    let (_loopback, device) = Loopback::device(false);
    let (here, _there) = pair_of(&device);
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
    let builder = Mmap::builder().device(&device).access(access);
    let mmap = builder.alloc(64).unwrap();
    let blob = mmap.export_dpu(&device).unwrap();
    let dpu = RemoteMmap::from_export(&device, &blob).wait().unwrap();
    let written = here.rdma.write(here.filled(b"x"), dpu.buf(..).unwrap());
    assert_eq!(written.await.unwrap_err().reason(), Reason::NotForRdma);
    assert_eq!(here.rdma.state(), RdmaState::Connected);
}

#[tokio::test]
async fn what_a_device_does_not_have_is_refused() {
    let mut caps = tokio_doca::device::RdmaCaps::new(8, 64, 2);
    (caps.atomics, caps.write_imm) = (false, false);
    let (_loopback, device) = Loopback::with_caps(true, caps);
    let (here, there) = pair_of(&device);
    let a = &here.rdma;
    let (_mmap, remote) = remote(&there, &here, 64, all_access());
    let reason = |result: Result<u64, tokio_doca::error::JobError>| result.unwrap_err().reason();
    assert_eq!(
        reason(a.fetch_add(&remote, 1).await),
        Reason::RdmaUnsupported
    );
    assert_eq!(
        reason(a.compare_swap(&remote, 1, 2).await),
        Reason::RdmaUnsupported
    );
    let error = a.write_imm((), (), 1).await.unwrap_err();
    assert_eq!(error.reason(), Reason::RdmaUnsupported);
    let error = a.send(here.filled(&[0; 9])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::TooLarge);
    assert_eq!(a.write(here.filled(&[7; 8]), &remote).await, Ok(8));
    // The shorter side determines the length, which is eight.
    let back = here.filled(&[0; ELEMENT - 8]);
    assert_eq!(a.read(&remote, &back).await, Ok(8));
    let error = a.read(&remote, here.empty()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::TooLarge);
    assert_eq!(a.state(), RdmaState::Connected);
}

fn pair_of(device: &Device) -> (Side, Side) {
    pair(device, Mode::EventDriven)
}

#[tokio::test]
async fn the_builder_rounds_up_and_refuses() {
    let (_loopback, device) = Loopback::device(false);
    let workq = WorkQ::builder().build().unwrap();
    let builder = Rdma::builder(&device)
        .permissions(Access::LOCAL_READ_WRITE | Access::RDMA_READ)
        .send_queue_size(33)
        .recv_queue_size(1000)
        .mtu(Mtu::Bytes4096)
        .gid_index(1)
        .recv_chain_len(8)
        .rnr_timeout(Duration::from_millis(5));
    let rdma = builder.attach(&workq).unwrap();
    assert_eq!((rdma.send_queue_size(), rdma.recv_queue_size()), (64, 1024));
    assert_eq!(rdma.permissions(), Access::RDMA_READ);
    assert_eq!(
        (rdma.mtu().bytes(), rdma.gid_index(), rdma.recv_chain_len()),
        (4096, Some(1), 8)
    );
    assert_eq!(rdma.rnr_timeout(), Duration::from_millis(5));
    assert_eq!(rdma.state(), RdmaState::Init);
    assert_eq!(rdma.caps().max_recv_queue_size, 1024);
    assert_eq!(rdma.transport(), Transport::default());
    let mut transport = Transport::default();
    transport.traffic_class = 4;
    let refused =
        |builder: tokio_doca::rdma::RdmaBuilder<'_>| builder.attach(&workq).unwrap_err().kind();
    let begin = || Rdma::builder(&device);
    for (builder, kind) in [
        (begin().send_queue_size(0), ErrorKind::InvalidValue),
        (begin().recv_queue_size(0), ErrorKind::InvalidValue),
        (begin().recv_chain_len(0), ErrorKind::InvalidValue),
        (begin().gid_index(2), ErrorKind::InvalidValue),
        (
            begin().permissions(Access::DPU_READ_ONLY),
            ErrorKind::InvalidValue,
        ),
        (begin().send_queue_size(1025), ErrorKind::NotSupported),
        (begin().recv_queue_size(u32::MAX), ErrorKind::NotSupported),
        (begin().recv_chain_len(9), ErrorKind::NotSupported),
        (begin().transport(transport), ErrorKind::NotSupported),
    ] {
        assert_eq!(refused(builder), kind);
    }
    let clone = rdma.clone();
    assert_eq!(rdma.detach().unwrap_err().kind(), ErrorKind::InUse);
    clone.detach().unwrap();
}

#[tokio::test]
async fn before_it_is_connected_it_takes_receives_alone() {
    for inline in [false, true] {
        let (_loopback, device) = Loopback::device(inline);
        let (here, there) = (
            Side::new(&device, Mode::EventDriven),
            Side::new(&device, Mode::EventDriven),
        );
        let (_mmap, remote) = remote(&there, &here, 64, all_access());
        let error = here.rdma.send(here.filled(b"x")).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NotConnected);
        let error = here.rdma.fetch_add(&remote, 1).await.unwrap_err();
        assert_eq!(
            (error.reason(), error.kind()),
            (Reason::NotConnected, ErrorKind::NotConnected)
        );
        let dst = there.empty();
        let received = there.rdma.recv(&dst).start().unwrap();
        connect(&here.rdma, &there.rdma);
        let (sent, received) = tokio::join!(here.rdma.send(here.filled(b"early")), received);
        assert_eq!((sent, received.unwrap().len), (Ok(5), 5));
    }
}

#[tokio::test]
async fn a_failure_flushes_the_rest_with_the_first_cause_and_both_recover() {
    for mode in MODES {
        let (_loopback, device) = Loopback::device(false);
        let side = || {
            Side::with(&device, mode, |builder| {
                builder.rnr_timeout(Duration::from_millis(20))
            })
        };
        let (here, there) = (side(), side());
        connect(&here.rdma, &there.rdma);
        let (_mmap, memory) = remote(&there, &here, 64, all_access());
        let mut watch = here.rdma.watch();
        assert_eq!(watch.state(), RdmaState::Connected);
        let (first, second, dst) = (here.filled(b"1"), here.filled(b"2"), here.empty());
        // The peer has no receive posted: the first send fails, and the others are flushed.
        let (first_sent, second_sent, received) = within(async {
            tokio::join!(
                here.rdma.send(&first),
                here.rdma.send(&second),
                here.rdma.recv(&dst)
            )
        })
        .await;
        let cause = first_sent.unwrap_err();
        assert_eq!(
            (cause.reason(), cause.kind()),
            (Reason::NoReceive, ErrorKind::TimedOut)
        );
        for flushed in [second_sent.unwrap_err(), received.unwrap_err()] {
            assert_eq!(flushed.reason(), Reason::Flushed);
            assert_eq!(flushed.cause(), Some(Reason::NoReceive));
            assert_eq!(flushed.kind(), ErrorKind::TimedOut);
        }
        assert_eq!(here.rdma.state(), RdmaState::Error(cause));
        within(watch.wait_for(|state| state == RdmaState::Error(cause)))
            .await
            .unwrap();
        let error = here.rdma.recv(&dst).await.unwrap_err();
        assert_eq!(error.cause(), Some(Reason::NoReceive));
        let error = here.rdma.send(&first).await.unwrap_err();
        assert_eq!(error.cause(), Some(Reason::NoReceive));
        assert_eq!(here.rdma.export().unwrap_err().kind(), ErrorKind::BadState);
        // The peer stays connected until this side is reset. Once the peer is reset too, its old
        // blob is invalid.
        let old = there.rdma.export().unwrap();
        assert_eq!(there.rdma.state(), RdmaState::Connected);
        here.rdma.reset().unwrap();
        assert_eq!(here.rdma.state(), RdmaState::Init);
        assert!(matches!(there.rdma.state(), RdmaState::Error(_)));
        there.rdma.reset().unwrap();
        let error = here.rdma.connect(&old).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        // Connects again, with the same memory.
        connect(&here.rdma, &there.rdma);
        let theirs = there.empty();
        let (received, sent) =
            within(async { tokio::join!(there.rdma.recv(&theirs), here.rdma.send(&first)) }).await;
        assert_eq!((sent, received.unwrap().len), (Ok(1), 1));
        // An operation that the peer does not permit fails both sides.
        let error = within(here.rdma.write(&first, &memory)).await.unwrap_err();
        assert_eq!(error.reason(), Reason::RemoteAccess);
        for side in [&here, &there] {
            assert!(
                matches!(side.rdma.state(), RdmaState::Error(error) if error.reason() == Reason::RemoteAccess)
            );
        }
    }
}

#[tokio::test]
async fn a_reset_flushes_and_the_memory_goes_back() {
    for mode in MODES {
        let (loopback, device) = Loopback::device(false);
        let (here, there) = pair(&device, mode);
        loopback.hold();
        let bufs = here.free_bufs();
        let sends: Vec<_> = (0..3)
            .map(|_| here.rdma.send(here.filled(b"x")).start().unwrap())
            .collect();
        let receive = here.rdma.recv(here.empty()).start().unwrap();
        assert_eq!(here.workq.in_flight(), 3);
        here.rdma.reset().unwrap();
        for send in sends {
            let error = within(send).await.unwrap_err();
            assert_eq!(error.cause(), Some(Reason::Reset));
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        }
        let error = within(receive).await.unwrap_err();
        assert_eq!(error.cause(), Some(Reason::Reset));
        assert_eq!((here.free_bufs(), here.workq.in_flight()), (bufs, 0));
        assert!(
            matches!(there.rdma.state(), RdmaState::Error(error) if error.reason() == Reason::PeerClosed)
        );
    }
}

#[tokio::test]
async fn dropped_and_forgotten_jobs_keep_their_memory_until_they_are_over() {
    let (loopback, device) = Loopback::device(true);
    let (here, there) = pair_of(&device);
    let (_mmap, remote) = remote(&there, &here, 64, all_access());
    let (src, forgotten) = (here.filled(b"abc"), here.filled(b"def"));
    loopback.hold();
    let [first, second] = [0..8, 8..16].map(|range| remote.slice(range).unwrap());
    drop(here.rdma.write(&src, &first).start().unwrap());
    std::mem::forget(here.rdma.write(forgotten.clone(), second).start().unwrap());
    assert_eq!(here.workq.in_flight(), 2);
    assert_eq!(src.data_mut().unwrap_err().kind(), ErrorKind::InUse);
    loopback.release();
    assert_eq!(here.rdma.write((), ()).await, Ok(0));
    within(async {
        while src.data_mut().is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(forgotten.data_mut().is_ok(), "its memory is free");
    assert_eq!(here.workq.in_flight(), 1, "its Slot is not");
}

#[tokio::test]
async fn jobs_wait_for_slots_in_order_and_are_refused_without_one() {
    let (loopback, device) = Loopback::device(false);
    let (here, there) = pair_of(&device);
    loopback.hold();
    let full: Vec<_> = (0..32)
        .map(|_| here.rdma.write((), ()).start().unwrap())
        .collect();
    let error = here.rdma.send(()).start().err().unwrap();
    assert_eq!(error.reason(), Reason::QueueFull);
    let late = tokio::spawn(here.rdma.write((), ()).owned());
    loopback.release();
    for job in full {
        assert_eq!(within(job).await, Ok(0));
    }
    assert_eq!(within(late).await.unwrap(), Ok(0));
    drop(there);
}

#[tokio::test]
async fn owned_operations_can_be_spawned() {
    let (_loopback, device) = Loopback::device(false);
    let (here, there) = pair_of(&device);
    let (_mmap, remote) = remote(&there, &here, 64, all_access());
    let receives = tokio::spawn(there.rdma.recv(there.empty()).owned());
    let sends = tokio::spawn(here.rdma.send(here.filled(b"hello")).owned());
    assert_eq!(within(sends).await.unwrap(), Ok(5));
    assert_eq!(within(receives).await.unwrap().unwrap().len, 5);
    let adds = tokio::spawn(here.rdma.fetch_add(remote.clone(), 3).owned());
    assert_eq!(within(adds).await.unwrap(), Ok(0));
    let read = tokio::spawn(here.rdma.read(remote, here.empty()).owned());
    assert_eq!(within(read).await.unwrap(), Ok(64));
}

async fn shake(rdma: &Rdma, accepts: bool, stream: &mut DuplexStream) -> Result<()> {
    match accepts {
        true => rdma.handshake_accept(stream).await,
        false => rdma.handshake(stream).await,
    }
}

#[tokio::test]
async fn a_handshake_connects_over_a_stream_and_leaves_the_rest_of_it() {
    let (_loopback, device) = Loopback::device(false);
    let side = || Side::new(&device, Mode::EventDriven);
    for accepts in [[false, false], [false, true], [true, false]] {
        let (here, there) = (side(), side());
        // The pipe is narrower than a blob.
        let (mut one, mut other) = duplex(3);
        let both = async {
            let (a, b) = tokio::join!(
                shake(&here.rdma, accepts[0], &mut one),
                shake(&there.rdma, accepts[1], &mut other)
            );
            a.unwrap();
            b.unwrap();
            let states = [here.rdma.state(), there.rdma.state()];
            assert_eq!(states, [RdmaState::Connected; 2]);
            let (wrote, read) = tokio::join!(one.write_all(b"!"), other.read_u8());
            wrote.unwrap();
            assert_eq!(read.unwrap(), b'!');
        };
        within(both).await;
    }
    // Two servers wait for each other.
    let (here, there) = (side(), side());
    let (mut one, mut other) = duplex(4096);
    let shaken = tokio::join!(
        shake(&here.rdma, true, &mut one),
        shake(&there.rdma, true, &mut other)
    );
    for (shaken, side) in [(shaken.0, here), (shaken.1, there)] {
        let error = shaken.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("`handshake_connect`"), "{error}");
        assert_eq!(side.rdma.state(), RdmaState::Init);
    }
}

#[tokio::test]
async fn a_handshake_with_a_stranger_leaves_the_context_as_it_was() {
    let (_loopback, device) = Loopback::device(false);
    let side = || Side::new(&device, Mode::EventDriven);
    for accepts in [false, true] {
        // An answer that is too long, an answer that is no blob, and a peer that has gone.
        for (answer, kind) in [
            (&[0, 1, 0, 0][..], ErrorKind::InvalidValue),
            (&[0, 0, 0, 1, 7, 1], ErrorKind::InvalidValue),
            (&[0, 0], ErrorKind::IoFailed),
        ] {
            let (mut stream, mut stranger) = duplex(4096);
            stranger.write_all(answer).await.unwrap();
            stranger.shutdown().await.unwrap();
            let side = side();
            let error = within(shake(&side.rdma, accepts, &mut stream)).await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(side.rdma.state(), RdmaState::Init);
        }
        // The peer cannot connect to this side's blob.
        let (mut stream, mut stranger) = duplex(4096);
        let (side, blob) = (side(), side());
        let theirs = blob.rdma.export().unwrap();
        stranger.write_u32(theirs.len() as u32).await.unwrap();
        stranger.write_all(&theirs).await.unwrap();
        stranger.write_u8(0).await.unwrap();
        let error = within(shake(&side.rdma, accepts, &mut stream)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(side.rdma.state(), RdmaState::Init);
    }
}

#[tokio::test]
async fn connections_are_refused_by_kind() {
    let (_loopback, device) = Loopback::device(false);
    let side = || Side::new(&device, Mode::EventDriven);
    let (here, there, third) = (side(), side(), side());
    let kind = async |rdma: &Rdma, blob: &[u8]| rdma.connect(blob).await.unwrap_err().kind();
    assert_eq!(kind(&here.rdma, b"nonsense").await, ErrorKind::InvalidValue);
    let gone = side().rdma.export().unwrap();
    assert_eq!(kind(&here.rdma, &gone).await, ErrorKind::ConnectionReset);
    connect(&here.rdma, &there.rdma);
    let taken = there.rdma.export().unwrap();
    assert_eq!(kind(&here.rdma, &taken).await, ErrorKind::BadState);
    assert_eq!(
        kind(&third.rdma, &taken).await,
        ErrorKind::ConnectionAborted
    );
    assert_eq!(third.rdma.state(), RdmaState::Init);
}

#[tokio::test]
async fn a_shutdown_leaves_the_peer_and_refuses() {
    let (_loopback, device) = Loopback::device(false);
    let (here, there) = pair_of(&device);
    let mut watch = here.rdma.watch();
    within(here.workq.shutdown()).await.unwrap();
    assert_eq!(here.rdma.state(), RdmaState::Reset);
    within(watch.wait_for(|state| state == RdmaState::Reset))
        .await
        .unwrap();
    let error = here.rdma.send(()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(here.rdma.reset().unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(here.rdma.export().unwrap_err().kind(), ErrorKind::BadState);
    assert!(matches!(there.rdma.state(), RdmaState::Error(_)));
}

#[test]
fn a_shutdown_while_it_is_attached_is_told_to_its_watch() {
    let (loopback, device) = Loopback::device(false);
    let workq = WorkQ::builder().build().unwrap();
    let other = workq.clone();
    loopback.when_opened(move || block_on(other.shutdown()).unwrap());
    let rdma = Rdma::builder(&device).attach(&workq).unwrap();
    assert_eq!(rdma.state(), RdmaState::Reset);
    assert_eq!(rdma.watch().state(), RdmaState::Reset);
}

#[test]
fn without_a_runtime_it_works_in_block_on() {
    for mode in MODES {
        let (_loopback, device) = Loopback::device(false);
        let (here, there) = pair(&device, mode);
        let thread = std::thread::spawn(move || {
            let received = there.workq.block_on(there.rdma.recv(there.empty()));
            received.unwrap().len
        });
        let sent = here.workq.block_on(here.rdma.send(here.filled(b"hi")));
        assert_eq!((sent, thread.join().unwrap()), (Ok(2), 2));
    }
}

#[test]
fn an_event_driven_one_without_a_runtime_says_so() {
    let (_loopback, device) = Loopback::device(false);
    let (here, _there) = pair_of(&device);
    for error in [
        block_on(here.rdma.send(())).unwrap_err(),
        block_on(here.rdma.recv(())).unwrap_err(),
    ] {
        assert_eq!(error.reason(), Reason::NoRuntime);
    }
}

#[test]
fn a_device_without_endpoints_is_refused() {
    let workq = WorkQ::builder().build().unwrap();
    let mut caps = Caps::for_dma(1 << 20, 1, 1 << 10);
    caps.rdma = None;
    let (_loopback, device) = Loopback::of(false, caps);
    let error = Rdma::builder(&device).attach(&workq).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
}

/// The device gives the entry of a dropped endpoint to the next one, which must refuse the old
/// blob.
#[test]
fn a_blob_of_an_rdma_that_has_gone_is_not_taken_for_its_successors_own() {
    if needs_soft("an adapter's endpoints are known by their numbers") {
        return;
    }
    let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
    let rdma = || Rdma::builder(&device).attach(&workq).unwrap();
    for _ in 0..100 {
        let blob = rdma().export().unwrap();
        let connected = rdma().connect(&blob).timeout(LIMIT).wait();
        let error = connected.unwrap_err();
        let gone = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
        assert!(gone.contains(&error.kind()), "{error}");
    }
}

/// A visitor connects to an `Rdma` and goes; then another `Rdma` of the visitor's WorkQ becomes the
/// peer. A task that sleeps must be woken by this peer, although the visitor had its place before.
#[tokio::test]
async fn a_peer_that_replaces_a_visitor_wakes_who_sleeps() {
    if needs_soft("an adapter connects nobody before both sides have asked for it") {
        return;
    }
    let device = under_test(true);
    let [here, there] = [(); 2].map(|()| WorkQ::builder().build().unwrap());
    let rdma = |workq: &WorkQ| Rdma::builder(&device).attach(workq).unwrap();
    // The two WorkQs share a doorbell page while these two are connected.
    let (one, other) = (rdma(&here), rdma(&there));
    let (first, second) = (one.export().unwrap(), other.export().unwrap());
    one.connect(&second).await.unwrap();
    other.connect(&first).await.unwrap();

    let sleeper = rdma(&there);
    let blob = sleeper.export().unwrap();
    let visitor = rdma(&here);
    visitor.connect(&blob).await.unwrap();
    drop(visitor);
    let peer = rdma(&here);
    peer.connect(&blob).await.unwrap();
    sleeper.connect(&peer.export().unwrap()).await.unwrap();
    for number in 0..5 {
        let both = async { tokio::join!(sleeper.recv(()), peer.send_imm((), number)) };
        let (received, sent) = within(both).await;
        assert_eq!(received.unwrap().immediate, Some(number));
        sent.unwrap();
    }
}
