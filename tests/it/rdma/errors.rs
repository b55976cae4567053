//! Failures between two `Rdma`s: the error that each side gets, and how both connect again (RDMA
//! guide 4.3, 5.1.4, 5.2.3).

use std::time::{Duration, Instant};

use support::both_sides;
use support::device::{
    adapter, assert_told, connects_unasked, defers, needs_soft, told_of, under_test,
};
use support::rdma::{REMOTE, Setup, Side, connect, failed};
use support::*;
use tokio_doca::{
    Buf, ErrorKind, Mode,
    error::{JobError, Reason},
    mem::{Access, RemoteBuf},
    rdma::RdmaState,
};

const RNR: Duration = Duration::from_millis(60);

/// Returns two connected sides of this process.
fn pair(setup: Setup) -> (Side, Side) {
    let sides = (Side::new(setup), Side::new(setup));
    connect(&sides.0.rdma, &sides.1.rdma);
    sides
}

/// Resets and connects both sides again.
fn again(one: &Side, other: &Side) {
    one.rdma.reset().unwrap();
    other.rdma.reset().unwrap();
    assert_eq!(one.rdma.state(), RdmaState::Init);
    connect(&one.rdma, &other.rdma);
}

/// Passes a message in each direction.
async fn works(one: &Side, other: &Side) {
    for (from, to) in [(one, other), (other, one)] {
        // The receive is posted before the send, however late this thread is.
        let (received, sent) = tokio::join!(to.recv(), from.send(b"works"));
        assert_eq!((sent, received), (Ok(()), Ok(b"works".to_vec())));
    }
}

/// Checks that an operation was flushed because the peer has ended for the reason `peer`.
#[track_caller]
fn flushed_by<T>(result: Result<T, JobError>, peer: Reason) {
    let (reason, cause) = failed(result);
    let told = told_of(peer);
    assert!(
        reason == Reason::Flushed && cause.is_some_and(|cause| told.contains(&cause)),
        "{reason:?} {cause:?}"
    );
}

fn each(story: impl AsyncFn(Setup)) {
    for setup in Setup::all() {
        eprintln!("{setup:?}");
        run(story(setup));
    }
}

#[test]
fn a_send_without_a_receive_fails_in_time_and_both_begin_anew() {
    each(async |setup| {
        let (one, other) = pair(setup.rnr(RNR));
        let message = one.filled(b"nobody");
        let wakes = one.workq.stats().wake_ups;
        let start = Instant::now();
        let first = one.rdma.send(&message);
        let (result, flushed) = tokio::join!(first, async {
            tokio::task::yield_now().await;
            one.rdma.send(&message).await
        });
        let took = start.elapsed();
        assert_eq!(failed(result), (Reason::NoReceive, None));
        let cause = (Reason::Flushed, Some(Reason::NoReceive));
        assert_eq!(failed(flushed), cause);
        assert!(took >= RNR, "{took:?}");
        assert_quick("a receiver that is not ready", took, 20 * RNR);
        if setup.mode == Mode::EventDriven {
            let wakes = one.workq.stats().wake_ups - wakes;
            assert!(wakes < 10, "{wakes} wake-ups");
        }
        assert_eq!(one.failed().await.reason(), Reason::NoReceive);
        // Later operations fail with the same cause, and the peer is notified.
        assert_eq!(failed(one.rdma.send(&message).await), cause);
        assert_eq!(failed(one.rdma.recv(()).await), cause);
        let heard = in_time("the peer", other.rdma.recv(())).await;
        flushed_by(heard, Reason::PeerFailed);
        again(&one, &other);
        works(&one, &other).await;
        drop(message);
        one.all_back().await;
        other.all_back().await;
    });
}

#[test]
fn a_message_that_is_too_long_is_told_to_both() {
    each(async |setup| {
        let (one, other) = pair(setup);
        for len in [101, 113, 4096] {
            let (message, small) = (one.filled(&pattern(1, len)), other.empty());
            small.set_data(ELEMENT - 100, 0).unwrap();
            let (sent, received) = tokio::join!(one.rdma.send(&message), other.rdma.recv(&small));
            let (sent, received) = (sent.unwrap_err(), received.unwrap_err());
            assert_told(sent, Reason::MessageTooLong);
            assert_told(received, Reason::ReceiveTooSmall);
            assert_eq!(one.failed().await, sent);
            assert_eq!(other.failed().await, received);
            assert_eq!(small.data_len(), 0);
            again(&one, &other);
            works(&one, &other).await;
        }
        one.all_back().await;
        other.all_back().await;
    });
}

/// Makes a write with an immediate, and waits until the receive for it has completed in any case.
async fn write_imm(
    one: &Side,
    other: &Side,
    full: &Buf,
    there: &RemoteBuf,
) -> Result<usize, JobError> {
    let posted = other.rdma.recv(()).start().unwrap();
    let result = one.rdma.write_imm(full, there, 5).await;
    if result.is_err() && one.rdma.state() == RdmaState::Connected {
        one.rdma.send(()).await.unwrap();
    }
    let received = in_time("the receive", posted).await;
    assert_eq!(received.is_ok(), one.rdma.state() == RdmaState::Connected);
    result
}

/// Returns which operations the peer's permissions allow: write, read, compare_swap, fetch_add,
/// write_imm.
async fn permitted(one: &Side, other: &Side, reason: &[Reason]) -> [bool; 5] {
    let there = one.import(&other.memory()).buf(..8).unwrap();
    let mut works = [false; 5];
    for (at, works) in works.iter_mut().enumerate() {
        let (full, empty) = (one.filled(&[1; 8]), one.empty());
        let result = match at {
            0 => one.rdma.write(&full, &there).await.map(|_| ()),
            1 => one.rdma.read(&there, &empty).await.map(|_| ()),
            2 => one.rdma.compare_swap(&there, 0, 1).await.map(|_| ()),
            3 => one.rdma.fetch_add(&there, 1).await.map(|_| ()),
            _ => write_imm(one, other, &full, &there).await.map(|_| ()),
        };
        *works = result.is_ok();
        let Err(error) = result else { continue };
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(reason.contains(&error.reason()), "{error}");
        if error.reason() == Reason::RemoteAccess {
            // The peer refused the operation: both sides have failed.
            assert_eq!(one.failed().await, error);
            let heard = in_time("the peer", other.rdma.recv(())).await;
            flushed_by(heard, Reason::PeerFailed);
            again(one, other);
        }
        // This side refused the operation: both sides are as before.
        assert_eq!(one.rdma.state(), RdmaState::Connected);
    }
    works
}

/// Checks the table in section 5.1.4 of the guide.
#[test]
fn each_permission_is_needed_for_its_own_operations() {
    let flags = [Access::RDMA_WRITE, Access::RDMA_READ, Access::RDMA_ATOMIC];
    let allowed = |access: Access| {
        let [write, read, atomic] = flags.map(|flag| access.contains(flag));
        [write, read, atomic, atomic, write]
    };
    each(async |setup| {
        let refused = [
            Reason::RemoteNotWritable,
            Reason::RemoteNotReadable,
            Reason::RemoteNotAtomic,
        ];
        for flag in flags {
            let less = REMOTE - flag;
            // This side's own permissions do not matter.
            let one = Side::new(Setup {
                permissions: Access::empty(),
                ..setup
            });
            for (permissions, access) in [
                (less, REMOTE),
                (REMOTE, less),
                (flag, REMOTE),
                (REMOTE, flag),
            ] {
                one.rdma.reset().unwrap();
                let other = Side::new(Setup {
                    permissions,
                    access,
                    ..setup
                });
                connect(&one.rdma, &other.rdma);
                let reasons = match access == REMOTE {
                    true => &[Reason::RemoteAccess][..],
                    false => &refused,
                };
                let found = permitted(&one, &other, reasons).await;
                assert_eq!(
                    found,
                    allowed(permissions & access),
                    "{permissions:?} {access:?}"
                );
                works(&one, &other).await;
            }
        }
    });
}

#[test]
fn what_is_refused_before_it_is_posted_changes_nothing() {
    each(async |setup| {
        let (one, other) = pair(setup);
        let remote = one.import(&other.memory());
        let short = remote.buf(..100).unwrap();
        let message = one.filled(&[7; 101]);
        let write = one.rdma.write(&message, &short).await;
        assert_eq!(write.unwrap_err().reason(), Reason::RemoteTooSmall);
        let write = one.rdma.write_imm(&message, &short, 5).await;
        assert_eq!(write.unwrap_err().reason(), Reason::RemoteTooSmall);
        let few = remote.buf(..7).unwrap();
        assert_eq!(
            failed(one.rdma.fetch_add(&few, 1).await).0,
            Reason::RemoteTooSmall
        );
        let odd = remote.buf(1..9).unwrap();
        assert_eq!(
            failed(one.rdma.fetch_add(&odd, 1).await).0,
            Reason::Misaligned
        );
        // With an adapter both sides are on the same device.
        if adapter().is_none() {
            let foreign = other.rdma.write(other.filled(b"x"), &short).await;
            assert_eq!(failed(foreign).0, Reason::ForeignDevice);
        }
        assert_eq!(other.bytes(0, 200), [0; 200]);
        assert_eq!(one.rdma.state(), RdmaState::Connected);
        works(&one, &other).await;
    });
}

/// Connects to a blob that is invalid for this side. Either `connect` is refused, or the first job
/// fails.
async fn wrong(side: &Side, blob: &[u8]) {
    let connected = side.rdma.connect(blob).await;
    if connected.is_ok() && connects_unasked() {
        let sent = in_time("a message to nobody", side.rdma.send(())).await;
        assert_told(sent.unwrap_err(), Reason::PeerGone);
        side.rdma.reset().unwrap();
        return;
    }
    rejected(connected, ErrorKind::ConnectionAborted);
    assert_eq!(side.rdma.state(), RdmaState::Init);
}

/// Connects an `Rdma` in each of its states: only two in their first state can be connected.
#[test]
fn connecting_is_for_two_that_are_in_their_first_state() {
    each(async |setup| {
        let [one, other, third] = [(); 3].map(|()| Side::new(setup));
        let blobs = [&one, &other, &third].map(|side| side.rdma.export().unwrap());
        let itself = rejected(one.rdma.connect(&blobs[0]).await, ErrorKind::InvalidValue);
        assert!(itself.contains("own"), "{itself}");
        rejected(one.rdma.connect(b"no blob").await, ErrorKind::InvalidValue);
        rejected(
            one.rdma.connect(&one.memory()).await,
            ErrorKind::InvalidValue,
        );
        assert_eq!(
            failed(one.rdma.send(()).await),
            (Reason::NotConnected, None)
        );
        one.rdma.connect(&blobs[1]).await.unwrap();
        for blob in [&blobs[1], &blobs[2]] {
            rejected(one.rdma.connect(blob).await, ErrorKind::BadState);
        }
        // `other` does not know `one`, which has connected to it. It connects to `third`, which is
        // accepted instead.
        other.rdma.connect(&blobs[2]).await.unwrap();
        third.rdma.connect(&blobs[1]).await.unwrap();
        works(&other, &third).await;
        let left = in_time("the stranger", one.rdma.recv(())).await;
        flushed_by(left, Reason::PeerClosed);
        rejected(one.rdma.connect(&blobs[1]).await, ErrorKind::BadState);
        rejected(one.rdma.export(), ErrorKind::BadState);
        one.rdma.reset().unwrap();
        // A side that is connected accepts no other peer.
        wrong(&one, &blobs[1]).await;
        // A blob from before a reset is invalid.
        third.rdma.reset().unwrap();
        wrong(&one, &blobs[2]).await;
        assert_ne!(third.rdma.export().unwrap(), blobs[2]);
        connect(&third.rdma, &one.rdma);
        works(&one, &third).await;
    });
}

#[test]
fn whoever_is_reset_or_dropped_is_named_by_its_peer() {
    each(async |setup| {
        let (one, mut other) = pair(setup);
        for drops in [false, true] {
            let (waiting, buf) = (one.empty(), one.filled(&pattern(1, ELEMENT)));
            let recv = one.rdma.recv(&waiting);
            let sends = async {
                // The peer has posted no receive, so the message waits.
                let sent = one.rdma.send(&buf).await;
                failed(sent)
            };
            let ends = async {
                tokio::task::yield_now().await;
                if drops {
                    other = Side::new(setup);
                } else {
                    other.rdma.reset().unwrap();
                }
            };
            let all = async { tokio::join!(recv, sends, ends) };
            let (received, sent, ()) = in_time("the end", all).await;
            let told = told_of(Reason::PeerClosed);
            let cause = sent.1.unwrap_or(sent.0);
            assert!(told.contains(&cause), "{sent:?}");
            assert_eq!(failed(received), (Reason::Flushed, Some(cause)));
            assert_eq!(one.failed().await.reason(), cause);
            drop((waiting, buf));
            one.all_back().await;
            again(&one, &other);
            works(&one, &other).await;
        }
    });
}

/// A watch is the only task that waits.
#[test]
fn a_watch_tells_of_the_peers_end() {
    for &defer in defers() {
        run(async {
            let (one, other) = pair(Setup::new(defer, Mode::EventDriven));
            let mut watch = one.rdma.watch();
            assert_eq!(watch.state(), RdmaState::Connected);
            drop(other);
            in_time("the change", watch.changed()).await.unwrap();
            assert!(matches!(watch.state(), RdmaState::Error(_)));
        });
    }
}

/// The WorkQ becomes event-driven only after the watch has started.
#[test]
fn a_watch_of_a_busy_workq_hears_once_that_is_event_driven() {
    for &defer in defers() {
        run(async {
            let (one, other) = pair(Setup::new(defer, Mode::BusyPoll));
            let mut watch = one.rdma.watch();
            assert_eq!(watch.state(), RdmaState::Connected);
            one.workq.set_mode(Mode::EventDriven).unwrap();
            drop(other);
            in_time("the change", watch.changed()).await.unwrap();
            assert!(matches!(watch.state(), RdmaState::Error(_)));
        });
    }
}

/// Inline jobs do not poll the device; a task that only makes such jobs learns of its peer's end
/// all the same.
#[test]
fn a_loop_of_one_sided_operations_hears_of_the_peers_end() {
    each(async |setup| {
        let (one, other) = pair(setup);
        let there: RemoteBuf = one.import(&other.memory()).buf(..64).unwrap();
        let message = one.filled(&[1; 64]);
        assert_eq!(one.rdma.write(&message, &there).await, Ok(64));
        other.rdma.reset().unwrap();
        let told = async {
            while one.rdma.write(&message, &there).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        in_time("the end", told).await;
        let told = told_of(Reason::PeerClosed);
        assert!(told.contains(&one.failed().await.reason()));
    });
}

#[test]
fn a_reset_flushes_what_is_in_flight_and_gives_all_back() {
    each(async |setup| {
        let (one, other) = pair(setup);
        let bufs: Vec<_> = (0..8).map(|_| one.filled(b"message")).collect();
        let rooms: Vec<_> = (0..8).map(|_| one.empty()).collect();
        let sends = futures::future::join_all(bufs.iter().map(|buf| one.rdma.send(buf)));
        let recvs = futures::future::join_all(rooms.iter().map(|room| one.rdma.recv(room)));
        let resets = async {
            tokio::task::yield_now().await;
            one.rdma.reset().unwrap();
        };
        let all = async { tokio::join!(sends, recvs, resets) };
        let (sent, received, ()) = in_time("the reset", all).await;
        let flushed = (Reason::Flushed, Some(Reason::Reset));
        assert!(sent.into_iter().all(|sent| failed(sent) == flushed));
        assert!(
            received
                .into_iter()
                .all(|received| failed(received) == flushed)
        );
        drop((bufs, rooms));
        one.all_back().await;
        other.failed().await;
        again(&one, &other);
        works(&one, &other).await;
    });
}

/// A peer that leaves removes its receives, perhaps while a sender checks for them: it has left in
/// order, and is not reported as breaking the protocol.
#[test]
fn a_peer_that_leaves_while_a_message_is_sent_breaks_no_rule() {
    if needs_soft("a peer that has gone is noticed by what is sent alone") {
        return;
    }
    let device = under_test(false);
    let (here, there) = both_sides::pair(&device, Mode::BusyPoll);
    for _ in 0..2000 {
        let receives: Vec<_> = (0..16)
            .map(|_| {
                let dst = there.empty();
                there.rdma.recv(&dst).owned().start().unwrap()
            })
            .collect();
        let reset = std::thread::scope(|scope| {
            let leaves = scope.spawn(|| there.rdma.reset().unwrap());
            let sent = (0..).find_map(|_| {
                here.workq
                    .block_on(here.rdma.send(here.filled(b"bye")))
                    .err()
            });
            leaves.join().unwrap();
            sent.unwrap()
        });
        let cause = reset.cause().unwrap_or(reset.reason());
        assert_eq!(cause, Reason::PeerClosed, "{reset}");
        drop(receives);
        here.rdma.reset().unwrap();
        both_sides::connect(&here.rdma, &there.rdma);
    }
}
