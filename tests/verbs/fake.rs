//! Tests that the fake adapters behave as the man pages say: a program written as in C drives them
//! without the provider.
#![expect(unsafe_code, reason = "it calls what C would call")]

use std::ptr;
use std::time::{Duration, Instant};

use crate::fake_verbs::{Description, LIMIT, World};
use crate::program::{INLINE, LEN, Request, SIGNALED, Settings, Side, call};
use support::block_until;
use tokio_doca::verbs::ffi::*;

/// How long to wait for events that must not come.
const SHORT: Duration = Duration::from_millis(20);

/// Connects two sides on two devices of this kind, and checks that nothing of them is left
/// afterwards.
fn connected(
    kind: fn(&str) -> Description,
    settings: Settings,
    test: impl FnOnce(&World, &Side, &Side),
) {
    let world = World::new([kind("fake0"), kind("fake1")]);
    let (a, b) = (
        Side::new(&world, "fake0", settings),
        Side::new(&world, "fake1", settings),
    );
    a.connect(&b);
    b.connect(&a);
    test(&world, &a, &b);
    a.close();
    b.close();
}

fn infiniband() -> Settings {
    Settings {
        gid_index: 0,
        is_global: false,
        ..Settings::default()
    }
}

fn ends(wcs: &[tokio_doca::verbs::ffi::Wc]) -> Vec<(u64, ibv_wc_status)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn all_operations_move_what_they_say() {
    let all = |_: &World, a: &Side, b: &Side| {
        a.fill(0, b"hello, world");
        a.post_one(
            b,
            Request {
                pieces: vec![(0, 5), (7, 5)],
                ..Request::new(IBV_WR_RDMA_WRITE, 1, 0, 0, 100)
            },
        );
        assert_eq!(
            (a.poll_one().wr_id, b.bytes(100, 11)),
            (1, b"helloworld\0".to_vec())
        );
        a.post_one(b, Request::new(IBV_WR_RDMA_READ, 2, 200, 10, 100));
        let wc = a.poll_one();
        assert_eq!(
            (wc.status, wc.byte_len, wc.opcode),
            (IBV_WC_SUCCESS, 10, IBV_WC_RDMA_READ)
        );
        assert_eq!(a.bytes(200, 10), b"helloworld");
        // A message into two pieces, and a message with an immediate.
        assert_eq!(b.receive(30, &[(300, 3), (400, 100)]), 0);
        assert_eq!(b.receive(31, &[(500, 100)]), 0);
        a.post_one(b, Request::new(IBV_WR_SEND, 3, 0, 5, 0));
        a.post_one(
            b,
            Request {
                imm: 0x01020304,
                ..Request::new(IBV_WR_SEND_WITH_IMM, 4, 7, 5, 0)
            },
        );
        let wcs = b.poll_all(2);
        assert_eq!(ends(&wcs), [(30, IBV_WC_SUCCESS), (31, IBV_WC_SUCCESS)]);
        assert_eq!((wcs[0].byte_len, wcs[0].wc_flags), (5, 0));
        assert_eq!(
            (wcs[1].wc_flags, wcs[1].imm_data.to_ne_bytes()),
            (ibv_wc_flags::IBV_WC_WITH_IMM.0, [1, 2, 3, 4])
        );
        assert_eq!(
            (b.bytes(300, 3), b.bytes(400, 2), b.bytes(500, 5)),
            (b"hel".to_vec(), b"lo".to_vec(), b"world".to_vec())
        );
        assert_eq!(
            ends(&a.poll_all(2)),
            [(3, IBV_WC_SUCCESS), (4, IBV_WC_SUCCESS)]
        );
        // A write with an immediate completes a receive that has no memory.
        assert_eq!(b.receive(32, &[]), 0);
        a.post_one(
            b,
            Request {
                imm: 9,
                ..Request::new(IBV_WR_RDMA_WRITE_WITH_IMM, 5, 0, 5, 600)
            },
        );
        let wc = b.poll_one();
        assert_eq!(
            (wc.wr_id, wc.opcode, wc.byte_len),
            (32, IBV_WC_RECV_RDMA_WITH_IMM, 5)
        );
        assert_eq!(
            (a.poll_one().wr_id, b.bytes(600, 5)),
            (5, b"hello".to_vec())
        );
        // Atomics.
        b.fill(800, &40u64.to_ne_bytes());
        a.post_one(
            b,
            Request {
                atomic: (2, 0),
                ..Request::new(IBV_WR_ATOMIC_FETCH_AND_ADD, 6, 1000, 8, 800)
            },
        );
        a.post_one(
            b,
            Request {
                atomic: (42, 7),
                ..Request::new(IBV_WR_ATOMIC_CMP_AND_SWP, 7, 1008, 8, 800)
            },
        );
        a.post_one(
            b,
            Request {
                atomic: (42, 8),
                ..Request::new(IBV_WR_ATOMIC_CMP_AND_SWP, 8, 1016, 8, 800)
            },
        );
        a.poll_all(3);
        let word = |side: &Side, at| u64::from_ne_bytes(side.bytes(at, 8).try_into().unwrap());
        assert_eq!(
            [word(a, 1000), word(a, 1008), word(a, 1016), word(b, 800)],
            [40, 42, 7, 7]
        );
        // Requests of no bytes, with invalid keys.
        let nothing = Request {
            rkey: Some(1),
            lkey: Some(1),
            ..Request::new(IBV_WR_RDMA_WRITE, 9, 0, 0, 0)
        };
        a.post_one(
            b,
            Request {
                pieces: vec![],
                ..nothing
            },
        );
        assert_eq!(a.poll_one().status, IBV_WC_SUCCESS);
    };
    connected(Description::roce, Settings::default(), all);
    connected(Description::soft_roce, Settings::default(), all);
    connected(Description::infiniband, infiniband(), all);
}

#[test]
fn inline_data_may_change_once_it_is_posted() {
    connected(Description::roce, Settings::default(), |world, a, b| {
        let hold = world.fake("fake0").hold();
        a.fill(0, b"before");
        let request = Request {
            flags: SIGNALED | INLINE,
            lkey: Some(0),
            ..Request::new(IBV_WR_RDMA_WRITE, 1, 0, 6, 0)
        };
        a.post_one(b, request.clone());
        a.fill(0, b"after!");
        drop(hold);
        assert_eq!(
            (a.poll_one().status, b.bytes(0, 6)),
            (IBV_WC_SUCCESS, b"before".to_vec())
        );
        let long = Request {
            pieces: vec![(0, 65)],
            ..request
        };
        assert_eq!(a.post(b, &[long]), (libc::EINVAL, Some(0)));
    });
}

/// A request that the peer refuses takes both sides to the state Error; all other requests are
/// flushed.
#[test]
fn a_refusal_fails_both_sides() {
    let write = |wr_id| Request::new(IBV_WR_RDMA_WRITE, wr_id, 0, 8, 0);
    let no_qp = Settings {
        qp_access: 1,
        ..Settings::default()
    };
    let no_mr = Settings {
        mr_access: 1,
        ..Settings::default()
    };
    let far = Request {
        remote: LEN - 4,
        ..write(1)
    };
    let key = Request {
        rkey: Some(3),
        ..write(1)
    };
    let read = Request::new(IBV_WR_RDMA_READ, 1, 0, 8, 0);
    let add = Request {
        pieces: vec![(0, 8)],
        remote: 4,
        ..Request::new(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, 0)
    };
    let cases = [
        (
            no_qp,
            write(1),
            IBV_WC_REM_INV_REQ_ERR,
            IBV_EVENT_QP_REQ_ERR,
        ),
        (
            no_qp,
            read.clone(),
            IBV_WC_REM_INV_REQ_ERR,
            IBV_EVENT_QP_REQ_ERR,
        ),
        (
            no_mr,
            write(1),
            IBV_WC_REM_ACCESS_ERR,
            IBV_EVENT_QP_ACCESS_ERR,
        ),
        (no_mr, read, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR),
        (
            Settings::default(),
            far,
            IBV_WC_REM_ACCESS_ERR,
            IBV_EVENT_QP_ACCESS_ERR,
        ),
        (
            Settings::default(),
            key,
            IBV_WC_REM_ACCESS_ERR,
            IBV_EVENT_QP_ACCESS_ERR,
        ),
        (
            Settings::default(),
            add,
            IBV_WC_REM_INV_REQ_ERR,
            IBV_EVENT_QP_REQ_ERR,
        ),
    ];
    for (settings, request, status, event) in cases {
        connected(Description::roce, settings, |world, a, b| {
            assert_eq!(b.receive(50, &[(0, 8)]), 0);
            let hold = world.fake("fake0").hold();
            let unsignaled = Request {
                flags: 0,
                ..request.clone()
            };
            a.post_one(b, unsignaled);
            a.post_one(b, write(2));
            drop(hold);
            let wcs = a.poll_all(2);
            assert_eq!(ends(&wcs), [(1, status), (2, IBV_WC_WR_FLUSH_ERR)]);
            assert_ne!(
                wcs[0].opcode, IBV_WC_RDMA_WRITE,
                "it is not valid, and is spoilt"
            );
            assert_eq!(ends(&b.poll_all(1)), [(50, IBV_WC_WR_FLUSH_ERR)]);
            // Requests that are posted from then on are flushed too, on both sides.
            a.post_one(b, write(3));
            assert_eq!(b.receive(51, &[(0, 8)]), 0);
            assert_eq!(
                ends(&[a.poll_one(), b.poll_one()]),
                [(3, IBV_WC_WR_FLUSH_ERR), (51, IBV_WC_WR_FLUSH_ERR)]
            );
            let mut raised = b.async_event(LIMIT).expect("an event");
            assert_eq!(raised.event_type, event);
            call!(b.table, ack_async_event, &mut raised);
        });
    }
}

#[test]
fn a_message_that_is_too_long_fails_both_sides() {
    connected(Description::roce, Settings::default(), |_, a, b| {
        assert_eq!(b.receive(50, &[(0, 4), (8, 3)]), 0);
        a.post_one(b, Request::new(IBV_WR_SEND, 1, 0, 8, 0));
        assert_eq!(
            ends(&[a.poll_one(), b.poll_one()]),
            [(1, IBV_WC_REM_INV_REQ_ERR), (50, IBV_WC_LOC_LEN_ERR)]
        );
    });
}

#[test]
fn what_is_wrong_here_fails_here_alone() {
    let write = Request::new(IBV_WR_RDMA_WRITE, 1, 0, 8, 0);
    let read_only = Settings {
        mr_access: 4,
        ..Settings::default()
    };
    let cases = [
        (
            Settings::default(),
            Request {
                lkey: Some(5),
                ..write.clone()
            },
            IBV_WC_LOC_PROT_ERR,
        ),
        (
            Settings::default(),
            Request {
                pieces: vec![(LEN - 1, 2)],
                ..write.clone()
            },
            IBV_WC_LOC_PROT_ERR,
        ),
        (
            read_only,
            Request {
                opcode: IBV_WR_RDMA_READ,
                ..write.clone()
            },
            IBV_WC_LOC_PROT_ERR,
        ),
        (
            Settings::default(),
            Request {
                opcode: IBV_WR_ATOMIC_FETCH_AND_ADD,
                pieces: vec![(0, 4)],
                ..write
            },
            IBV_WC_LOC_LEN_ERR,
        ),
    ];
    for (settings, request, status) in cases {
        connected(Description::roce, settings, |_, a, b| {
            a.post_one(b, request);
            assert_eq!(ends(&[a.poll_one()]), [(1, status)]);
            // The other side has no event.
            assert!(b.async_event(Duration::ZERO).is_none());
        });
    }
}

#[test]
fn a_message_waits_for_its_receive_as_long_as_was_said() {
    let endless = Settings {
        rnr_timer: 12,
        ..Settings::default()
    };
    connected(Description::roce, endless, |_, a, b| {
        a.post_one(b, Request::new(IBV_WR_SEND, 1, 0, 8, 0));
        // This is longer than seven waits of 0.64 ms: any other number of retries would fail.
        std::thread::sleep(SHORT);
        assert_eq!(a.poll().0, 0);
        assert_eq!(b.receive(50, &[(0, 8)]), 0);
        assert_eq!(
            ends(&[a.poll_one(), b.poll_one()]),
            [(1, IBV_WC_SUCCESS), (50, IBV_WC_SUCCESS)]
        );
    });
    let twice = Settings {
        rnr_timer: 16,
        rnr_retries: 2,
        ..Settings::default()
    };
    connected(Description::roce, twice, |_, a, b| {
        let start = Instant::now();
        a.post_one(b, Request::new(IBV_WR_SEND, 1, 0, 8, 0));
        assert_eq!(ends(&[a.poll_one()]), [(1, IBV_WC_RNR_RETRY_EXC_ERR)]);
        assert!(start.elapsed() >= Duration::from_micros(2 * 2560));
        assert!(b.async_event(Duration::ZERO).is_none(), "the peer is well");
    });
}

#[test]
fn a_peer_that_has_gone_does_not_answer() {
    type Gone = fn(&World, &mut Side);
    let gone: [Gone; 4] = [
        |_, b| assert_eq!(b.to_state(IBV_QPS_RESET), 0),
        |_, b| assert_eq!(b.to_state(IBV_QPS_ERR), 0),
        |_, b| {
            assert_eq!(
                call!(
                    b.table,
                    destroy_qp,
                    std::mem::replace(&mut b.qp, ptr::null_mut())
                ),
                0
            )
        },
        |world, _| world.fake("fake1").set_port(false),
    ];
    for leave in gone {
        let world = World::new([Description::roce("fake0"), Description::roce("fake1")]);
        let settings = Settings {
            timeout: 8,
            retries: 2,
            ..Settings::default()
        };
        let (a, mut b) = (
            Side::new(&world, "fake0", settings),
            Side::new(&world, "fake1", settings),
        );
        a.connect(&b);
        b.connect(&a);
        let request = Request::new(IBV_WR_RDMA_WRITE, 1, 0, 8, 0);
        // A first write succeeds while the peer is there.
        a.post_one(&b, request.clone());
        assert_eq!(a.poll_one().status, IBV_WC_SUCCESS);
        leave(&world, &mut b);
        let start = Instant::now();
        a.post_one(&b, request);
        assert_eq!(ends(&[a.poll_one()]), [(1, IBV_WC_RETRY_EXC_ERR)]);
        assert!(start.elapsed() >= 3 * Duration::from_nanos(4096 << 8));
        if let Some(mut event) = b.async_event(Duration::ZERO) {
            assert_eq!(event.event_type, IBV_EVENT_PORT_ERR);
            call!(b.table, ack_async_event, &mut event);
        }
        a.close();
        b.close();
    }
}

#[test]
fn packets_must_be_those_that_are_expected() {
    let world = World::new([Description::roce("fake0")]);
    let settings = Settings::default();
    let other = Settings {
        sq_psn: 78,
        ..settings
    };
    let (a, b) = (
        Side::new(&world, "fake0", other),
        Side::new(&world, "fake0", settings),
    );
    a.connect(&b);
    b.connect(&a);
    a.post_one(&b, Request::new(IBV_WR_RDMA_WRITE, 1, 0, 8, 0));
    assert_eq!(a.poll_one().status, IBV_WC_RETRY_EXC_ERR);
    // With equal packet numbers requests arrive, also after many of them.
    a.close();
    let a = Side::new(&world, "fake0", settings);
    assert_eq!(b.to_state(IBV_QPS_RESET), 0);
    assert_eq!(b.init(), 0);
    b.connect(&a);
    a.connect(&b);
    for round in 0..20 {
        let len = if round % 2 == 0 { 4000 } else { 1 };
        b.post_one(&a, Request::new(IBV_WR_RDMA_READ, round, 0, len, 8000));
        assert_eq!(ends(&[b.poll_one()]), [(round, IBV_WC_SUCCESS)]);
    }
    a.close();
    b.close();
}

#[test]
fn a_queue_pair_takes_the_legal_ways_only() {
    let world = World::new([Description::roce("fake0")]);
    let side = Side::open(&world, "fake0", Settings::default());
    let peer = Side::new(&world, "fake0", Settings::default());
    let side = Side {
        qp: side.create_qp(),
        ..side
    };
    let post = |expected| {
        assert_eq!(
            side.post(&peer, &[Request::new(IBV_WR_RDMA_WRITE, 1, 0, 8, 0)])
                .0,
            expected
        )
    };
    assert_eq!(
        side.to_state(IBV_QPS_ERR),
        libc::EINVAL,
        "the kernel has no such way"
    );
    assert_eq!([side.to_receive(&peer), side.to_send()], [libc::EINVAL; 2]);
    assert_eq!(side.receive(1, &[]), libc::EINVAL);
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        port_num: 1,
        ..ibv_qp_attr::default()
    };
    let given = [
        ibv_qp_attr_mask::IBV_QP_STATE,
        ibv_qp_attr_mask::IBV_QP_PORT,
    ];
    assert_eq!(
        side.modify(&mut attr, &given),
        libc::EINVAL,
        "not all that is required"
    );
    assert_eq!(side.init(), 0);
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        timeout: 1,
        ..ibv_qp_attr::default()
    };
    let given = [
        ibv_qp_attr_mask::IBV_QP_STATE,
        ibv_qp_attr_mask::IBV_QP_TIMEOUT,
    ];
    assert_eq!(
        side.modify(&mut attr, &given),
        libc::EINVAL,
        "what is of another way"
    );
    assert_eq!(side.to_send(), libc::EINVAL);
    post(libc::EINVAL);
    assert_eq!(side.receive(1, &[]), 0);
    // An empty entry of the GID table, and a path without an address.
    for settings in [
        Settings {
            gid_index: 2,
            ..side.settings
        },
        Settings {
            is_global: false,
            ..side.settings
        },
    ] {
        assert_eq!(
            Side {
                settings,
                ..Side {
                    qp: side.qp,
                    ..clone(&side)
                }
            }
            .to_receive(&peer),
            libc::EINVAL
        );
    }
    assert_eq!(side.to_receive(&peer), 0);
    post(libc::EINVAL);
    assert_eq!(side.to_send(), 0);
    assert_eq!(side.to_state(IBV_QPS_ERR), 0);
    assert_eq!(side.poll_one().status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!([side.init(), side.to_send()], [libc::EINVAL; 2]);
    assert_eq!([side.to_state(IBV_QPS_RESET), side.init()], [0, 0]);
    side.close();
    peer.close();
}

fn clone(side: &Side) -> Side {
    Side { ..*side }
}

#[test]
fn a_place_is_free_once_a_later_completion_was_polled() {
    let settings = Settings {
        sends: 4,
        receives: 2,
        ..Settings::default()
    };
    connected(Description::roce, settings, |world, a, b| {
        let silent = |wr_id| Request {
            flags: 0,
            ..Request::new(IBV_WR_RDMA_WRITE, wr_id, 0, 8, 0)
        };
        let last = Request::new(IBV_WR_RDMA_WRITE, 4, 0, 8, 0);
        let list = [silent(1), silent(2), silent(3), last.clone(), last.clone()];
        assert_eq!(a.post(b, &list), (libc::ENOMEM, Some(4)));
        block_until("all is carried out", || world.carried_out() >= 4);
        assert_eq!(
            a.post(b, &[silent(5)]),
            (libc::ENOMEM, Some(0)),
            "carried out, but not polled"
        );
        assert_eq!(ends(&[a.poll_one()]), [(4, IBV_WC_SUCCESS)]);
        assert_eq!(a.post(b, &list[..3]), (0, None));
        assert_eq!(
            [b.receive(1, &[]), b.receive(2, &[]), b.receive(3, &[])],
            [0, 0, libc::ENOMEM]
        );
    });
}

#[test]
fn a_refused_request_leaves_those_before_it_posted() {
    connected(Description::roce, Settings::default(), |world, a, b| {
        let write = |wr_id| Request::new(IBV_WR_RDMA_WRITE, wr_id, 0, 8, 0);
        world.faults().fail("ibv_post_send", 3, libc::EINVAL);
        assert_eq!(
            a.post(b, &[write(1), write(2), write(3), write(4)]),
            (libc::EINVAL, Some(2))
        );
        assert_eq!(
            ends(&a.poll_all(2)),
            [(1, IBV_WC_SUCCESS), (2, IBV_WC_SUCCESS)]
        );
        assert_eq!(world.faults().clear(), ["ibv_post_send"]);
        world.faults().end_with(2, IBV_WC_REM_OP_ERR, 0x55);
        a.post(b, &[write(5), write(6), write(7)]);
        let wcs = a.poll_all(3);
        assert_eq!(
            ends(&wcs),
            [
                (5, IBV_WC_SUCCESS),
                (6, IBV_WC_REM_OP_ERR),
                (7, IBV_WC_WR_FLUSH_ERR)
            ]
        );
        assert_eq!(wcs[1].vendor_err, 0x55);
    });
}

#[test]
fn a_completion_queue_rings_once_for_each_request_and_only_for_what_comes_later() {
    connected(Description::roce, Settings::default(), |world, a, b| {
        let write = |wr_id| Request::new(IBV_WR_RDMA_WRITE, wr_id, 0, 8, 0);
        let done = |count| {
            block_until("all is carried out", || world.carried_out() >= count);
        };
        a.post_one(b, write(1));
        done(1);
        a.arm();
        assert!(a.event(SHORT).is_none(), "it was there before");
        a.post(b, &[write(2), write(3)]);
        assert!(a.event(LIMIT).is_some());
        done(3);
        assert!(a.event(SHORT).is_none(), "it rings once");
        // An event stays queued although its completions are polled.
        a.arm();
        a.post_one(b, write(4));
        a.poll_all(4);
        assert!(a.event(LIMIT).is_some());
        assert_eq!(call!(a.table, destroy_cq, a.cq), libc::EBUSY);
        a.ack(2);
        // A doubled event, a spurious one, and one that the program never reads.
        world.faults().double_events(true);
        a.arm();
        a.post_one(b, write(5));
        assert!(a.event(LIMIT).is_some() && a.event(LIMIT).is_some());
        a.poll_one();
        world.fake("fake0").spurious_events(3);
        assert!(a.event(LIMIT).is_some());
        a.ack(3);
        assert_eq!(world.sins(), ["ibv_destroy_cq before its queue pairs"]);
    });
}

#[test]
fn a_full_completion_queue_dies() {
    let settings = Settings {
        cqe: 2,
        ..Settings::default()
    };
    connected(Description::roce, settings, |world, a, b| {
        let write = |wr_id| Request::new(IBV_WR_RDMA_WRITE, wr_id, 0, 8, 0);
        a.post(b, &[write(1), write(2), write(3)]);
        let mut event = a.async_event(LIMIT).expect("an event");
        assert_eq!((event.event_type, a.poll().0), (IBV_EVENT_CQ_ERR, -1));
        call!(a.table, ack_async_event, &mut event);
        assert_eq!(world.sins(), ["a completion queue was overrun"]);
        // The other side's completion queue is resized in time.
        assert_eq!(call!(b.table, resize_cq, b.cq, 3), 0);
        assert_eq!(
            [b.receive(1, &[]), b.receive(2, &[]), b.receive(3, &[])],
            [0; 3]
        );
        assert_eq!(b.to_state(IBV_QPS_ERR), 0);
        assert_eq!(b.poll_all(3).len(), 3);
    });
}

#[test]
fn completions_outlive_their_queue_pair_on_some_adapters() {
    for (kind, left) in [
        (Description::roce as fn(&str) -> Description, 0),
        (Description::soft_roce, 2),
    ] {
        let world = World::new([kind("fake0")]);
        let settings = Settings::default();
        let (mut a, b) = (
            Side::new(&world, "fake0", settings),
            Side::new(&world, "fake0", settings),
        );
        a.connect(&b);
        b.connect(&a);
        let write = |wr_id| Request::new(IBV_WR_RDMA_WRITE, wr_id, 0, 8, 0);
        a.post(&b, &[write(1), write(2)]);
        block_until("all is carried out", || world.carried_out() >= 2);
        let qp = std::mem::replace(&mut a.qp, ptr::null_mut());
        assert_eq!(call!(a.table, destroy_qp, qp), 0);
        assert_eq!(a.poll().0, left);
        a.close();
        b.close();
    }
}

#[test]
fn a_queue_pair_is_not_destroyed_before_its_event_was_acknowledged() {
    let world = World::new([Description::roce("fake0")]);
    let mut side = Side::new(&world, "fake0", Settings::default());
    world.fake("fake0").fail_queue_pairs(true);
    let mut event = side.async_event(LIMIT).expect("an event");
    assert_eq!(event.event_type, IBV_EVENT_QP_FATAL);
    // This event is discarded with the queue pair, because the program has not read it.
    world.fake("fake0").fail_queue_pairs(true);
    let qp = std::mem::replace(&mut side.qp, ptr::null_mut()) as usize;
    let table = side.table;
    let ended = std::thread::spawn(move || call!(table, destroy_qp, qp as *mut ibv_qp));
    std::thread::sleep(SHORT);
    assert!(!ended.is_finished(), "it waits for the acknowledgement");
    call!(table, ack_async_event, &mut event);
    assert_eq!(ended.join().unwrap(), 0);
    assert!(side.async_event(Duration::ZERO).is_none());
    side.close();
}

#[test]
fn whoever_uses_what_is_gone_or_destroys_what_is_used_is_found_out() {
    connected(Description::roce, Settings::default(), |world, a, b| {
        assert_eq!(call!(a.table, dealloc_pd, a.pd), libc::EBUSY);
        assert_eq!(call!(a.table, destroy_cq, a.cq), libc::EBUSY);
        assert_eq!(call!(a.table, destroy_comp_channel, a.channel), libc::EBUSY);
        assert_eq!(call!(a.table, close_device, a.context), -1);
        let qp = a.create_qp();
        assert_eq!(
            [
                call!(a.table, destroy_qp, qp),
                call!(a.table, destroy_qp, qp)
            ],
            [0, libc::EINVAL]
        );
        assert_eq!(
            Side { qp, ..clone(a) }
                .post(b, &[Request::new(IBV_WR_SEND, 1, 0, 1, 0)])
                .0,
            libc::EINVAL
        );
        assert_eq!(world.sins().len(), 6);
        assert_eq!(world.live_objects(), 12);
    });
}

#[test]
fn set_up_fails_as_planned_and_limits_are_kept() {
    let world = World::new([Description::iwarp("fake0")]);
    let side = Side::open(&world, "fake0", Settings::default());
    for asked in [
        Settings {
            sends: (1 << 14) + 1,
            ..side.settings
        },
        Settings {
            inline: 129,
            ..side.settings
        },
    ] {
        assert!(
            Side {
                settings: asked,
                ..clone(&side)
            }
            .create_qp()
            .is_null()
        );
    }
    world.faults().fail("ibv_create_qp", 2, libc::ENOMEM);
    let qps = [side.create_qp(), side.create_qp()];
    assert_eq!(
        (qps[1], std::io::Error::last_os_error().raw_os_error()),
        (ptr::null_mut(), Some(libc::ENOMEM))
    );
    world
        .faults()
        .fail_always("ibv_get_device_list", libc::ENOSYS);
    assert!(call!(world.table(), get_device_list, ptr::null_mut()).is_null());
    let write_only = call!(side.table, reg_mr, side.pd, side.memory.cast(), 8, 2);
    assert!(
        write_only.is_null(),
        "a peer may not write what its owner may not"
    );
    // No partitions, no atomics, and no writes with immediates.
    let side = Side { qp: qps[0], ..side };
    assert_eq!(side.init(), libc::EINVAL);
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        qp_access_flags: side.settings.qp_access,
        ..ibv_qp_attr::default()
    };
    let given = [
        ibv_qp_attr_mask::IBV_QP_STATE,
        ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
    ];
    assert_eq!(side.modify(&mut attr, &given), 0);
    side.connect(&side);
    for opcode in [IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM] {
        assert_eq!(
            side.post(&side, &[Request::new(opcode, 1, 0, 8, 0)]),
            (libc::EINVAL, Some(0))
        );
    }
    // A queue pair may be connected to itself.
    side.post_one(&side, Request::new(IBV_WR_RDMA_WRITE, 1, 0, 8, 64));
    assert_eq!(side.poll_one().status, IBV_WC_SUCCESS);
    side.close();
}

#[test]
fn a_device_that_was_removed_says_eio_and_completes_nothing() {
    let world = World::new([Description::roce("fake0")]);
    let settings = Settings::default();
    let (a, b) = (
        Side::new(&world, "fake0", settings),
        Side::new(&world, "fake0", settings),
    );
    a.connect(&b);
    b.connect(&a);
    let hold = world.fake("fake0").hold();
    a.post_one(&b, Request::new(IBV_WR_RDMA_WRITE, 1, 0, 8, 0));
    world.fake("fake0").remove();
    drop(hold);
    let mut event = a.async_event(LIMIT).expect("an event");
    assert_eq!(event.event_type, IBV_EVENT_DEVICE_FATAL);
    call!(a.table, ack_async_event, &mut event);
    assert_eq!([a.poll().0, a.to_state(IBV_QPS_ERR)], [0, libc::EIO]);
    for side in [a, b] {
        let table = side.table;
        let said = [
            call!(table, destroy_qp, side.qp),
            call!(table, destroy_cq, side.cq),
            call!(table, destroy_comp_channel, side.channel),
            call!(table, dereg_mr, side.mr),
            call!(table, dealloc_pd, side.pd),
            call!(table, close_device, side.context),
        ];
        assert_eq!(said, [libc::EIO, libc::EIO, 0, libc::EIO, libc::EIO, 0]);
        side.free();
    }
}
