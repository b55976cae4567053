//! Connection attempts by rdma_cm over the fake adapters: how an attempt ends, and events that come
//! twice, late or for another id.
#![expect(unsafe_code, reason = "ends a child of fork(2)")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::task::Context;
use std::time::Duration;

use futures::future::join;
use futures::{Future, FutureExt};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use support::both_sides::Side;
use support::cm::{self, Place, ended, failed, is_iwarp, meet};
use support::*;
use tokio_doca::error::Reason;
use tokio_doca::rdma::{CmListener, RdmaState};
use tokio_doca::verbs::ffi::IBV_GID_TYPE_ROCE_V2;
use tokio_doca::{Error, ErrorKind};

use crate::cm::{on, on_one, place};
use crate::fake_verbs::{Description, Gid, World};

/// Runs `story` over RoCE and over iWARP.
fn on_each(story: impl AsyncFn(&World, Place)) {
    for description in [Description::roce("fake0"), Description::iwarp("fake0")] {
        on(description, &story);
    }
}

/// Passes a message each way, first from the side that dialled, as iWARP requires.
async fn passes(dialled: &Side, accepted: &Side) {
    for (from, to) in [(dialled, accepted), (accepted, dialled)] {
        let dst = to.empty();
        let both = join(to.rdma.recv(&dst), from.rdma.send(from.filled(b"hello")));
        let (received, sent) = in_time("a message", both).await;
        assert_eq!((received.unwrap().len, sent), (5, Ok(5)));
    }
}

/// Shuts down the WorkQ of the dialling side, before and after the peer has its request.
#[test]
fn a_shutdown_ends_the_side_that_dials() {
    on_each(async |_, place| {
        let (listener, b) = (place.listen(), place.side());
        for has_asked in [false, true] {
            let a = place.side();
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let mut dial = pin!(dial);
            poll_pending(dial.as_mut());
            let request = match has_asked {
                true => Some(in_time("a request", listener.accept()).await.unwrap()),
                false => None,
            };
            in_time("it is shut down", a.workq.shutdown())
                .await
                .unwrap();
            is_shut_down(&a, in_time("the attempt", dial).await.unwrap_err());
            let request = match request {
                Some(request) => request,
                // The request may have reached the listener before the shutdown.
                None => match listener.accept().now_or_never() {
                    Some(request) => request.unwrap(),
                    None => continue,
                },
            };
            let accept = request.accept(&b.rdma).timeout(LIMIT);
            match in_time("the accept", accept).await {
                Ok(()) => assert!(is_iwarp(&place.device)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}"),
            }
            b.rdma.reset().unwrap();
        }
    });
}

/// Shuts down the accepting side before it hears that the peer is ready.
#[test]
fn a_shutdown_ends_the_side_that_accepts() {
    on_each(async |world, place| {
        let (listener, [a, b]) = (place.listen(), [place.side(), place.side()]);
        world.faults().lose_words(true);
        let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
        let accept = async {
            let request = listener.accept().await.unwrap();
            request.accept(&b.rdma).timeout(LIMIT).await
        };
        let shut_down = async {
            dial.await.unwrap();
            b.workq.shutdown().await.unwrap();
        };
        let (accepted, ()) = in_time("it is shut down", join(accept, shut_down)).await;
        is_shut_down(&b, accepted.unwrap_err());
        assert_eq!(failed(&a).await, Reason::PeerClosed);
        world.faults().lose_words(false);
    });
}

fn is_shut_down(side: &Side, error: Error) {
    assert_eq!(error.kind(), ErrorKind::BadState, "{error}");
    assert!(error.to_string().contains("shut down"), "{error}");
    assert_eq!(side.rdma.state(), RdmaState::Reset);
}

/// Takes the port down, and waits until the sides `others` have failed.
async fn goes_down(world: &World, place: &Place, others: [Side; 2]) {
    world.fake("fake0").set_port(false);
    for side in &others {
        assert_eq!(failed(side).await, Reason::PortDown);
    }
    drop(others);
    assert_eq!(place.device.info().name(), "fake0");
}

/// No answers pass through a port that is down: both sides end at their time limits.
#[test]
fn a_port_that_is_down_ends_an_attempt_in_time() {
    on_each(async |world, place| {
        let (listener, [a, b]) = (place.listen(), [place.side(), place.side()]);
        let (others, limit) = (place.connected().await, Duration::from_secs(1));
        let dial = a.rdma.connect_to(listener.local_addr()).timeout(limit);
        let accept = async {
            let request = listener.accept().await.unwrap();
            goes_down(world, &place, others).await;
            request.accept(&b.rdma).timeout(limit).await
        };
        let (dialled, accepted) = in_time("both end", join(dial, accept)).await;
        let error = dialled.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        place.again(&a);
        world.fake("fake0").set_port(true);
        match is_iwarp(&place.device) {
            // Over iWARP the kernel completes the accept without waiting for the peer.
            true => {
                accepted.unwrap();
                assert_eq!(failed(&b).await, Reason::PeerClosed);
            }
            false => {
                let error = accepted.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            }
        }
        b.rdma.reset().unwrap();
        let (dialled, accepted) = meet(&listener, &a, &b).await;
        dialled.unwrap();
        accepted.unwrap();
        passes(&a, &b).await;
    });
}

/// The connection manager retransmits until the port is up again.
#[test]
fn an_attempt_outlasts_a_port_that_is_down_for_a_while() {
    on_each(async |world, place| {
        let (listener, [a, b]) = (place.listen(), [place.side(), place.side()]);
        let others = place.connected().await;
        let (request, dialled) = {
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let dialled = tokio::spawn(dial);
            let request = in_time("a request", listener.accept()).await.unwrap();
            (request, dialled)
        };
        goes_down(world, &place, others).await;
        let accepts = world.calls("rdma_accept");
        let accepted = tokio::spawn(request.accept(&b.rdma).timeout(LIMIT));
        let answered = async {
            while world.calls("rdma_accept") == accepts {
                tokio::task::yield_now().await;
            }
        };
        in_time("an answer", answered).await;
        assert!(!dialled.is_finished());
        world.fake("fake0").set_port(true);
        in_time("it dials", dialled).await.unwrap().unwrap();
        in_time("it accepts", accepted).await.unwrap().unwrap();
        passes(&a, &b).await;
    });
}

/// A first message that comes before, with or after the event `ESTABLISHED` connects its receiver
/// exactly once. iWARP has no such event.
#[test]
fn a_message_may_come_before_with_and_after_the_word() {
    for when in 0..3 {
        on_one(async |world, place| {
            let (listener, [a, b]) = (place.listen(), [place.side(), place.side()]);
            let faults = world.faults();
            let came = || faults.messages_came(&world.fake("fake0").queue_pairs());
            let dst = b.empty();
            let receive = b.rdma.recv(&dst).start().unwrap();
            faults.lose_words(true);
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let accept = async {
                let request = listener.accept().await.unwrap();
                request.accept(&b.rdma).timeout(LIMIT).await
            };
            let send = async {
                dial.await.unwrap();
                assert_eq!(a.rdma.send(a.filled(b"first")).await, Ok(5));
                match when {
                    0 => came(),
                    1 => faults.find_words(2),
                    _ => faults.find_words(0),
                }
            };
            let (accepted, ()) = in_time("both", join(accept, send)).await;
            accepted.unwrap();
            assert_eq!(receive.await.unwrap().len, 5);
            if when > 0 {
                came();
            }
            for _ in 0..10 {
                passes(&a, &b).await;
            }
            let states = [&a, &b].map(|side| side.rdma.state());
            assert_eq!(states, [RdmaState::Connected; 2], "{when}");
            assert!(world.calls("rdma_notify") >= 1 || when > 0);
            faults.lose_words(false);
        });
    }
}

/// A connection request wakes all tasks that accept: a task that is dropped or not polled then does
/// not keep the request from the others.
#[test]
fn a_request_is_not_lost_with_a_task_that_waits_for_it() {
    on_each(async |_, place| {
        let (listener, [a, b]) = (place.listen(), [place.side(), place.side()]);
        for is_dropped in [true, false] {
            let first = Count::new();
            let mut dropped = Box::pin(listener.accept());
            let mut others = [(); 2].map(|()| Box::pin(listener.accept()));
            let waker = first.waker();
            let mut cx = Context::from_waker(&waker);
            assert!(dropped.as_mut().poll(&mut cx).is_pending());
            others.iter_mut().for_each(|it| poll_pending(it.as_mut()));
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let dialled = tokio::spawn(async { dial.await.map(Vec::from) });
            let comes = async {
                while first.wakes() == 0 {
                    tokio::task::yield_now().await;
                }
            };
            in_time("a request", comes).await;
            if is_dropped {
                drop(dropped);
            }
            let [second, third] = &mut others;
            let request = in_time("the request", second.as_mut()).await.unwrap();
            poll_pending(third.as_mut());
            let accept = request.accept(&b.rdma).timeout(LIMIT);
            in_time("the accept", accept).await.unwrap();
            ended(dialled).await.unwrap();
            a.rdma.reset().unwrap();
            b.rdma.reset().unwrap();
        }
    });
}

/// A child of fork(2) has copies of all handles. Dropping them neither answers nor refuses requests
/// for the parent, and ends no connection.
#[test]
fn a_child_of_fork_says_nothing_to_peers() {
    if !alone(test_name!(a_child_of_fork_says_nothing_to_peers)) {
        return;
    }
    on_each(async |world, place| {
        let (listener, [a, b]) = (place.listen(), place.connected().await);
        // Makes the WorkQs known to the runtime before the fork.
        passes(&a, &b).await;
        let (c, d) = (place.side(), place.side());
        let mut dial = Box::pin(c.rdma.connect_to(listener.local_addr()).timeout(LIMIT));
        poll_pending(dial.as_mut());
        let request = in_time("a request", listener.accept()).await.unwrap();
        let said = || {
            let calls = ["destroy_id", "reject", "accept", "disconnect"];
            let said: u64 = calls
                .map(|it| world.calls(&format!("rdma_{it}")))
                .iter()
                .sum();
            said + world.calls("ibv_destroy_qp")
        };
        let before = said();
        // The child drops its copies, then checks that the fake received no calls.
        match world.fork() {
            0 => {
                let bound = CmListener::bind(&place.device, SocketAddr::new(place.ip, 0));
                let refused = bound.is_err_and(|error| error.kind() == ErrorKind::BadState);
                drop((request, dial, listener, a, b, c, d));
                // Waits for the child's threads: one of them might send something late.
                let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
                block_until("the child's threads end", || threads() == 1);
                let is_silent = said() == before;
                // SAFETY: ends the child process only.
                unsafe { libc::_exit(if refused && is_silent { 7 } else { 8 }) }
            }
            pid => {
                let pid = Pid::from_raw(pid);
                assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 7));
            }
        }
        let accept = request.accept(&d.rdma).timeout(LIMIT);
        let (dialled, accepted) = in_time("both", join(dial, accept)).await;
        dialled.unwrap();
        accepted.unwrap();
        passes(&c, &d).await;
        passes(&a, &b).await;
        let e = place.side();
        c.rdma.reset().unwrap();
        let (dialled, accepted) = meet(&listener, &c, &e).await;
        dialled.unwrap();
        accepted.unwrap();
        drop(a);
        assert_eq!(failed(&b).await, Reason::PeerClosed);
    });
}

/// Runs the tests with IPv6: an address of the adapter, the address of the source, and the
/// unspecified address.
mod by_ipv6 {
    use super::*;

    /// Adds an IPv6 address beside the adapter's IPv4 address.
    fn described(mut description: Description) -> (Description, IpAddr) {
        let ip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let (raw, kind) = (ip.octets(), IBV_GID_TYPE_ROCE_V2);
        description.gids[7] = Some(Gid { raw, kind });
        (description, ip.into())
    }

    fn on_each(story: impl AsyncFn(&World, Place)) {
        for description in [Description::roce("fake0"), Description::iwarp("fake0")] {
            let (description, ip) = described(description);
            on(description, async |world, place| {
                story(world, Place { ip, ..place }).await;
            });
        }
    }

    #[test]
    fn two_sides_meet() {
        on_each(async |_, place| cm::two_sides_meet(&place).await);
    }

    #[test]
    fn an_end_is_heard() {
        on_each(async |_, place| cm::an_end_is_heard(&place).await);
    }

    #[test]
    fn streams_meet() {
        let (description, ip) = described(Description::roce("fake0"));
        on(description, async |_, place| {
            cm::streams_meet(&Place { ip, ..place }).await;
        });
    }

    /// A listener at `::` accepts both IPv4 and IPv6 peers, and reports the address of each peer.
    #[test]
    fn a_listener_at_all_addresses_has_both() {
        let (description, ip) = described(Description::roce("fake0"));
        let world = World::new([description]);
        let place = place(&world, "fake0");
        run(async {
            let anywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
            let listener = CmListener::bind(&place.device, anywhere).unwrap();
            let port = listener.local_addr().port();
            for ip in [ip, place.ip] {
                let (a, b) = (place.side(), place.side());
                let dial = a.rdma.connect_to(SocketAddr::new(ip, port)).timeout(LIMIT);
                let accept = async {
                    let request = listener.accept().await.unwrap();
                    assert_eq!(request.peer_addr().ip(), ip);
                    request.accept(&b.rdma).timeout(LIMIT).await
                };
                let (dialled, accepted) = in_time("they meet", join(dial, accept)).await;
                dialled.unwrap();
                accepted.unwrap();
                passes(&a, &b).await;
            }
        });
    }
}
