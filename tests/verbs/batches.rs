//! Jobs that are started together: they reach the adapter as one list with one doorbell.

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};
use futures::SinkExt;
use futures::future::join_all;
use support::rdma::{REMOTE, Setup, Side, connect};
use support::*;
use tokio_doca::error::Reason;
use tokio_doca::mem::RemoteBuf;
use tokio_doca::op::{Op, StartedAll};
use tokio_doca::rdma::{RdmaOp, RdmaState};
use tokio_doca::{Buf, Device, Mode, Rdma, WorkQ};

const JOBS: usize = 32;

/// Runs `story` in each mode with two connected sides; the first side's WorkQ has `depth` slots.
fn each(depth: u32, story: impl AsyncFn(&World, Side, Side)) {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let world = World::new([Description::roce("fake0")]);
        let verbs = provider(&world);
        let device = open(&verbs, "fake0");
        let side = |depth| side(&device, depth, mode);
        let sides = (side(depth), side(64));
        connect(&sides.0.rdma, &sides.1.rdma);
        eprintln!("{mode:?}");
        run(story(&world, sides.0, sides.1));
    }
}

fn side(device: &Device, depth: u32, mode: Mode) -> Side {
    let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
    let rdma = Rdma::builder(device).permissions(REMOTE).attach(&workq);
    Side {
        rdma: rdma.unwrap(),
        ..Side::on(device, &workq, Setup::new(false, mode))
    }
}

/// Returns eight-byte writes to separate ranges of `other`'s memory.
fn writes(one: &Side, other: &Side) -> Vec<Write> {
    let remote = one.import(&other.memory());
    let write = |number: usize| {
        let there = remote.buf(number * 8..number * 8 + 8).unwrap();
        one.rdma
            .write(one.filled(&[number as u8; 8]), there)
            .owned()
    };
    (0..JOBS).map(write).collect()
}

type Write = RdmaOp<Rdma, Buf, RemoteBuf>;

/// Returns how many lists of sends were posted; each list costs one doorbell.
fn lists(world: &World) -> u64 {
    world.calls("lists of sends")
}

#[test]
fn writes_that_are_started_together_are_one_list() {
    each(64, async |world, one, other| {
        let before = lists(world);
        let StartedAll { started, refused } = Op::start_all(writes(&one, &other));
        assert_eq!((started.len(), refused.is_none()), (JOBS, true));
        assert_eq!(lists(world) - before, 1);
        for wrote in in_time("the writes end", join_all(started)).await {
            assert_eq!(wrote, Ok(8));
        }
        let wanted: Vec<u8> = (0..JOBS).flat_map(|number| [number as u8; 8]).collect();
        assert_eq!(other.bytes(0, 8 * JOBS), wanted);
        one.all_back().await;
    });
}

#[test]
fn messages_of_a_flush_are_one_list() {
    each(64, async |world, one, other| {
        let receives = (0..JOBS).map(|_| other.rdma.recv(other.empty()));
        let receives = Op::start_all(receives).started;
        let mut sink = one.rdma.send_sink(JOBS);
        let before = lists(world);
        for number in 0..JOBS {
            sink.feed(one.filled(&[number as u8; 8])).await.unwrap();
        }
        in_time("the flush", sink.flush()).await.unwrap();
        assert_eq!(lists(world) - before, 1);
        for message in in_time("messages come", join_all(receives)).await {
            assert_eq!(message.unwrap().len, 8);
        }
        drop(sink);
        one.all_back().await;
    });
}

/// If the adapter refuses a job of a list, those before it complete, and the refused job and those
/// behind it come back with their memory.
#[test]
fn what_the_adapter_refuses_of_a_list_comes_back() {
    for refused_one in [1, 2, JOBS as u64] {
        each(64, async |world, one, other| {
            let writes = writes(&one, &other);
            world
                .faults()
                .fail("ibv_post_send", refused_one, libc::EINVAL);
            let StartedAll { started, refused } = Op::start_all(writes);
            assert_eq!(world.faults().clear(), ["ibv_post_send"]);
            let refused = refused.expect("one was refused");
            assert_eq!(refused.reason(), Reason::Device);
            let done = refused_one as usize - 1;
            let rest = refused.into_op();
            assert_eq!((started.len(), rest.len()), (done, JOBS - done));
            assert_eq!(one.rdma.state(), RdmaState::Connected);
            for wrote in in_time("those before it end", join_all(started)).await {
                assert_eq!(wrote, Ok(8));
            }
            // The returned operations are intact, and complete when started again.
            let again = Op::start_all(rest).started;
            assert_eq!(again.len(), JOBS - done);
            for wrote in in_time("the others end", join_all(again)).await {
                assert_eq!(wrote, Ok(8));
            }
            one.all_back().await;
        });
    }
}

/// A sink sends the messages before the refused one, reports the refusal, and keeps nothing.
#[test]
fn a_sink_ends_with_the_refusal_of_one_of_its_list() {
    each(64, async |world, one, other| {
        let receives = (0..3).map(|_| other.rdma.recv(other.empty()));
        let receives = Op::start_all(receives).started;
        let mut sink = one.rdma.send_sink(JOBS);
        world.faults().fail("ibv_post_send", 4, libc::EINVAL);
        for number in 0..8 {
            sink.feed(one.filled(&[number; 8])).await.unwrap();
        }
        let ended = in_time("the flush", sink.flush()).await;
        assert_eq!(ended.unwrap_err().reason(), Reason::Device);
        for message in in_time("messages come", join_all(receives)).await {
            assert_eq!(message.unwrap().len, 8);
        }
        assert_eq!(sink.flush().await.unwrap_err().reason(), Reason::SinkFailed);
        drop(sink);
        one.all_back().await;
    });
}

/// Operations for which there is no slot come back.
#[test]
fn what_has_no_slot_comes_back() {
    each(8, async |world, one, other| {
        let writes = writes(&one, &other);
        let fake = world.fake("fake0");
        let hold = fake.hold();
        let StartedAll { started, refused } = Op::start_all(writes);
        let refused = refused.expect("there are 8 Slots");
        assert_eq!(refused.reason(), Reason::QueueFull);
        let rest = refused.into_op();
        assert_eq!((started.len(), rest.len()), (8, JOBS - 8));
        assert_eq!(one.workq.in_flight(), 8);
        drop(hold);
        for wrote in in_time("those with a Slot end", join_all(started)).await {
            assert_eq!(wrote, Ok(8));
        }
        // When awaited, the returned operations wait for slots.
        for wrote in in_time("the others end", join_all(rest)).await {
            assert_eq!(wrote, Ok(8));
        }
        one.all_back().await;
    });
}
