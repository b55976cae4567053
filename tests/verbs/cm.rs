//! Connections by rdma_cm over the fake adapters and a fake librdmacm: the tests of `support::cm`,
//! and a failure of each step.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::future::{FutureExt, join};
use support::both_sides::Side;
use support::cm::{self, Place, failed, is_iwarp, meet};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_doca::error::Reason;
use tokio_doca::rdma::{CmListener, RdmaState, Transport};
use tokio_doca::verbs::ffi::IBV_QPS_RTS;
use tokio_doca::{ErrorKind, Mode};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};

pub(crate) fn place(world: &World, name: &str) -> Place {
    Place {
        device: open(&provider(world), name),
        ip: world.fake(name).ip(),
    }
}

pub(crate) fn on_one(story: impl AsyncFnOnce(&World, Place)) {
    on(Description::roce("fake0"), story);
}

pub(crate) fn on(description: Description, story: impl AsyncFnOnce(&World, Place)) {
    let world = World::new([description]);
    run(story(&world, place(&world, "fake0")));
}

macro_rules! stories {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            on_one(async |_, place| cm::$name(&place).await);
        }
    )*};
}

stories! {
    two_sides_meet an_idle_connection_stays an_end_is_heard a_refusal_says_why private_data_have_limits
    a_foreign_peer_is_said_to_be_one an_attempt_can_be_given_up a_pool_receives_in_both_roles
    streams_meet streams_end streams_are_refused
}

/// Tests over iWARP, where the kernel connects the queue pairs.
mod over_iwarp {
    use super::*;

    macro_rules! stories {
        ($($name:ident)*) => {$(
            #[test]
            fn $name() {
                let iwarp = Description::iwarp("fake0");
                on(iwarp, async |_, place| cm::$name(&place).await);
            }
        )*};
    }

    stories! {
        two_sides_meet an_idle_connection_stays an_end_is_heard a_refusal_says_why private_data_have_limits
        a_foreign_peer_is_said_to_be_one an_attempt_can_be_given_up a_pool_receives_in_both_roles
        streams_meet streams_end streams_are_refused
    }

    /// Over iWARP a completed send may not have arrived, so a shutdown waits for the peer's
    /// confirmation.
    #[test]
    fn a_shutdown_waits_until_the_peer_has_taken_the_end() {
        for description in [Description::roce("fake0"), Description::iwarp("fake0")] {
            on(description, async |_, place| {
                let (_listener, [mut a, mut b]) = cm::stream(&place, Place::options()).await;
                a.write_all(b"hello").await.unwrap();
                let mut shutdown = pin!(a.shutdown());
                if is_iwarp(&place.device) {
                    let waits = timeout(Duration::from_millis(50), shutdown.as_mut()).await;
                    waits.unwrap_err();
                    let mut read = Vec::new();
                    in_time("the end", b.read_to_end(&mut read)).await.unwrap();
                    assert_eq!(read, b"hello");
                }
                in_time("the shutdown", shutdown).await.unwrap();
            });
        }
    }

    /// The application of one side polls nothing. Its stream has a frame that waits for a credit,
    /// and the peer's end brings one: the stream's own task sends the frame and confirms the end.
    #[test]
    fn an_end_is_confirmed_by_a_stream_that_is_not_polled() {
        on(Description::iwarp("fake0"), async |_, place| {
            let (_listener, [mut a, mut b]) = cm::stream(&place, Place::options()).await;
            // Each write of that many bytes is a frame of its own, and takes a credit.
            let (data, mut frames) = (vec![7; 8 << 10], Vec::new());
            while a.stats().credits > 0 {
                frames.push(in_time("a frame", a.write(&data)).await.unwrap());
            }
            // A frame is begun once an earlier one has returned its Buf.
            while a.write(b"begun").now_or_never().is_none() {
                tokio::task::yield_now().await;
            }
            let mut read = vec![0; frames[0] + frames[1]];
            in_time("two frames", b.read_exact(&mut read))
                .await
                .unwrap();
            in_time("the shutdown", b.shutdown()).await.unwrap();
            // All of it arrives, also the frame that was begun.
            let mut rest = Vec::new();
            let (ended, read) =
                in_time("the rest", join(a.shutdown(), b.read_to_end(&mut rest))).await;
            ended.unwrap();
            assert_eq!(read.unwrap(), frames[2..].iter().sum::<usize>() + 5);
        });
    }

    /// The peer is reset before it has read: a shutdown must not say that the bytes have arrived.
    #[test]
    fn a_shutdown_fails_if_the_peer_goes_without_taking_the_end() {
        on(Description::iwarp("fake0"), async |_, place| {
            let options = Place::options().linger(Duration::ZERO);
            let (_listener, [mut a, b]) = cm::stream(&place, options).await;
            a.write_all(b"hello").await.unwrap();
            a.flush().await.unwrap();
            drop(b);
            let error = in_time("the shutdown", a.shutdown()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        });
    }

    /// Over iWARP the side that connects sends first (RFC 5044, 7.1): the listener's own messages
    /// wait until one has arrived.
    #[test]
    fn a_listener_sends_once_it_was_sent_something() {
        on(Description::iwarp("fake0"), async |world, place| {
            let (a, b) = (place.side(), place.side());
            let listener = place.listen();
            let (from_a, from_b) = (b.empty(), a.empty());
            let _first = b.rdma.recv(&from_a).start().unwrap();
            let answer = a.rdma.recv(&from_b).start().unwrap();
            let (dialled, accepted) = meet(&listener, &a, &b).await;
            dialled.unwrap();
            accepted.unwrap();
            let carried = world.carried_out();
            let mut welcome = pin!(b.rdma.send(b.filled(b"welcome")));
            let mut write = pin!(b.rdma.write((), ()));
            assert!(welcome.as_mut().now_or_never().is_none());
            assert!(write.as_mut().now_or_never().is_none());
            assert_eq!(world.carried_out(), carried);
            assert_eq!(a.rdma.send(a.filled(b"hello")).await, Ok(5));
            assert_eq!(in_time("the answer", welcome).await, Ok(7));
            assert_eq!(in_time("the write", write).await, Ok(0));
            assert_eq!(answer.await.unwrap().len, 7);
        });
    }

    /// The kernel flushes the queue pair of an attempt that was rejected. If the flush is seen
    /// first, the attempt still ends with the reason of the rejection.
    #[test]
    fn a_refusal_says_why_after_its_flush() {
        on(Description::iwarp("fake0"), async |world, place| {
            let a = place.side();
            let dst = a.empty();
            let receive = a.rdma.recv(&dst).start().unwrap();
            let listener = place.listen();
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let refuse = async {
                let request = listener.accept().await.unwrap();
                let held = world.faults().hold_calls("rdma_get_cm_event");
                request.reject(b"no such volume").unwrap();
                let error = receive.await.unwrap_err();
                assert!(error.is_disconnect(), "{error}");
                drop(held);
            };
            let (dialled, ()) = in_time("both", join(dial, refuse)).await;
            let error = dialled.unwrap_err();
            assert!(error.to_string().contains("no such volume"), "{error}");
            assert!(matches!(a.rdma.state(), RdmaState::Error(_)));
        });
    }

    /// An `Rdma` that is reset in the middle of an accept returns the memory of its receives, and
    /// no message lands there.
    #[test]
    fn a_reset_while_it_accepts_takes_the_receives_back() {
        on(Description::iwarp("fake0"), async |world, place| {
            let (a, b) = (place.side(), place.side());
            let listener = place.listen();
            let dst = b.empty();
            let receive = b.rdma.recv(&dst).start().unwrap();
            world.faults().lose_words(true);
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let accept = async {
                let request = listener.accept().await.unwrap();
                request.accept(&b.rdma).timeout(LIMIT).await
            };
            // The accepting side has the queue pair until then.
            let held = world.faults().hold_calls("ibv_destroy_qp(first)");
            let ready = || {
                let pairs = world.fake("fake0").permissions();
                pairs.iter().filter(|pair| pair.0 == IBV_QPS_RTS).count()
            };
            let reset = async {
                dial.await.unwrap();
                assert_eq!(ready(), 2);
                b.rdma.reset().unwrap();
                assert!(receive.await.is_err());
                assert_eq!(ready(), 1);
                drop(held);
            };
            let (accepted, ()) = in_time("both", join(accept, reset)).await;
            let kind = accepted.unwrap_err().kind();
            assert_eq!(kind, ErrorKind::ConnectionAborted);
            world.faults().lose_words(false);
        });
    }

    /// The `siw` driver blocks while it contacts the peer's host. The time limit holds all the
    /// same, and a reset does not wait.
    #[test]
    fn an_ask_that_blocks_has_a_time_limit() {
        on(Description::iwarp("fake0"), async |world, place| {
            let (a, b) = (place.side(), place.side());
            let listener = place.listen();
            let held = world.faults().hold_calls("rdma_connect");
            let dial = a.rdma.connect_to(listener.local_addr());
            let limit = dial.timeout(Duration::from_millis(50));
            let error = in_time("its limit", limit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            a.rdma.reset().unwrap();
            // The blocked call delays no other connection, and `a` gives up its request.
            assert_eq!(a.rdma.state(), RdmaState::Init);
            drop(held);
            let late = in_time("a request", listener.accept()).await.unwrap();
            let accepted = late.accept(&b.rdma).timeout(LIMIT);
            if in_time("the accept", accepted).await.is_ok() {
                assert_eq!(failed(&b).await, Reason::PeerClosed);
            }
            b.rdma.reset().unwrap();
            let (dialled, accepted) = meet(&listener, &a, &b).await;
            dialled.unwrap();
            accepted.unwrap();
        });
    }

    /// A first message that arrives before the accept has completed is received.
    #[test]
    fn a_first_message_may_come_early() {
        on(Description::iwarp("fake0"), async |world, place| {
            let (a, b) = (place.side(), place.side());
            let listener = place.listen();
            let (from_a, from_b) = (b.empty(), a.empty());
            let first = b.rdma.recv(&from_a).start().unwrap();
            let answer = a.rdma.recv(&from_b).start().unwrap();
            world.faults().lose_words(true);
            let dial = a.rdma.connect_to(listener.local_addr()).timeout(LIMIT);
            let accept = async {
                let request = listener.accept().await.unwrap();
                request.accept(&b.rdma).timeout(LIMIT).await
            };
            let early = async {
                dial.await.unwrap();
                assert_eq!(a.rdma.send(a.filled(b"hello")).await, Ok(5));
                assert_eq!(first.await.unwrap().len, 5);
                world.faults().tell_late();
            };
            let (accepted, ()) = in_time("both", join(accept, early)).await;
            accepted.unwrap();
            let sent = in_time("the answer", b.rdma.send(b.filled(b"welcome"))).await;
            assert_eq!((sent, answer.await.unwrap().len), (Ok(7), 7));
            world.faults().lose_words(false);
        });
    }

    /// This transport never gives up on a silent peer, so the library limits how long a probe may
    /// take.
    #[test]
    fn a_silent_peer_is_noticed() {
        let world = World::new(["fake0", "fake1"].map(Description::iwarp));
        let places = ["fake0", "fake1"].map(|name| place(&world, name));
        run(async {
            let mut transport = Transport::default();
            transport.ack_timeout = Some(Duration::from_millis(5));
            transport.probe_interval = Some(Duration::from_millis(10));
            let side = |place: &Place| {
                let mut transport = transport;
                transport.source = Some(place.ip);
                Side::with(&place.device, Mode::EventDriven, |builder| {
                    builder.transport(transport)
                })
            };
            let (a, b) = (side(&places[0]), side(&places[1]));
            let listener = places[1].listen();
            let (dialled, accepted) = meet(&listener, &a, &b).await;
            dialled.unwrap();
            accepted.unwrap();
            // The peer answers probes while this side waits for a message.
            let (before, dst) = (world.carried_out(), a.empty());
            let mut receive = pin!(a.rdma.recv(&dst));
            let asked = async {
                while world.carried_out() < before + 5 {
                    assert!(futures::poll!(receive.as_mut()).is_pending());
                    tokio::task::yield_now().await;
                }
            };
            in_time("probes", asked).await;
            assert_eq!(a.rdma.state(), RdmaState::Connected);
            world.fake("fake1").set_port(false);
            let error = in_time("the receive", receive).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Flushed, "{error}");
            assert_eq!(failed(&a).await, Reason::PeerSilent);
        });
    }
}

/// Over iWARP a flush alone means that the peer's TCP connection has ended; rdma_cm reports it
/// later. On other adapters a peer that has gone is silent, and causes no flush.
#[test]
fn a_flush_alone_is_a_disconnect_over_iwarp_and_nowhere_else() {
    type Of = fn(&str) -> Description;
    for (of, cause) in [
        (Description::iwarp as Of, Reason::PeerClosed),
        (Description::roce, Reason::PeerFailed),
    ] {
        for of_job in [false, true] {
            on(of("fake0"), async |world, place| {
                let [a, b] = place.connected().await;
                // The message waits for a receive that the peer does not post.
                let ended = async {
                    match of_job {
                        true => a.rdma.send(a.filled(b"abc")).await.map(|_| ()),
                        false => b.rdma.recv(b.empty()).await.map(|_| ()),
                    }
                };
                let mut ended = pin!(ended);
                poll_pending(ended.as_mut());
                world.fake("fake0").flush_queue_pairs();
                let error = in_time("its end", ended).await.unwrap_err();
                assert_eq!(error.cause(), Some(cause), "{error}");
                assert_eq!(error.is_disconnect(), cause == Reason::PeerClosed);
            });
        }
    }
}

/// A side that ends its own connection is not notified of a disconnect by the peer.
#[test]
fn a_reset_of_this_side_is_no_disconnect_over_iwarp() {
    on(Description::iwarp("fake0"), async |_, place| {
        let [a, _b] = place.connected().await;
        let receive = a.rdma.recv(a.empty()).start().unwrap();
        a.rdma.reset().unwrap();
        let error = in_time("its end", receive).await.unwrap_err();
        assert_eq!(error.cause(), Some(Reason::Reset), "{error}");
        assert!(!error.is_disconnect());
    });
}

/// The library's own time limits and permissions are kept, whatever rdma_cm suggests.
#[test]
fn the_promises_are_kept_beside_what_rdma_cm_says() {
    on_one(async |world, place| {
        let sides = place.connected().await;
        for side in &sides {
            assert_eq!(side.rdma.transport().retry_count, 6);
        }
        let connected = world.fake("fake0").connected();
        let ours = connected.iter().filter(|(_, inline)| *inline > 0);
        let each: Vec<_> = ours.map(|(attr, _)| attr).collect();
        assert_eq!(each.len(), 2);
        for attr in each {
            // A try takes 134 ms instead of rdma_cm's 2 s, and 0.64 ms instead of its 655 ms.
            assert_eq!(
                (attr.timeout, attr.min_rnr_timer, attr.retry_cnt),
                (15, 12, 6)
            );
        }
    });
}

/// If any call fails, both sides fail, nothing is left behind, and both can connect again.
#[test]
fn a_call_that_fails_ends_the_attempt_on_both_sides() {
    // Each call with the number of the invocation that fails. Both sides make one of each.
    let calls = [
        ("rdma_create_id", 1),
        ("rdma_resolve_addr", 1),
        ("rdma_resolve_route", 1),
        ("rdma_connect", 1),
        ("rdma_accept", 1),
        ("rdma_establish", 1),
        ("rdma_init_qp_attr", 1),
        ("rdma_init_qp_attr", 2),
        ("rdma_init_qp_attr", 3),
        ("rdma_init_qp_attr", 4),
        ("ibv_modify_qp", 1),
        ("ibv_modify_qp", 2),
        ("ibv_modify_qp", 3),
        ("ibv_modify_qp", 4),
    ];
    for (call, nth) in calls {
        on_one(async |world, place| {
            let (listener, sides) = (place.listen(), [place.side(), place.side()]);
            world.faults().fail(call, nth, libc::EAGAIN);
            let dial = sides[0]
                .rdma
                .connect_to(listener.local_addr())
                .timeout(LIMIT);
            let accept = async {
                let request = listener.accept().await.unwrap();
                request.accept(&sides[1].rdma).timeout(LIMIT).await
            };
            // These calls precede the request, so nothing is there to accept.
            let early = [
                "rdma_create_id",
                "rdma_resolve_addr",
                "rdma_resolve_route",
                "rdma_connect",
            ];
            let told = match early.contains(&call) {
                true => [in_time("it hears", dial).await.map(drop), Ok(())],
                false => {
                    let (dialled, accepted) = in_time("both hear", join(dial, accept)).await;
                    [dialled.map(drop), accepted]
                }
            };
            assert!(told[0].is_err(), "{call} {nth}: {told:?}");
            assert!(
                told[1].is_err() || early.contains(&call),
                "{call} {nth}: {told:?}"
            );
            for side in &sides {
                side.rdma.reset().unwrap();
                assert_eq!(side.rdma.state(), RdmaState::Init);
            }
            place.connected().await;
        });
    }
}

/// The event that the peer is ready is lost: a message replaces it; without a message the attempt
/// times out.
#[test]
fn a_message_stands_for_a_lost_word() {
    on_one(async |world, place| {
        world.faults().lose_words(true);
        for proves in [true, false] {
            let (listener, sides) = (place.listen(), [place.side(), place.side()]);
            let dst = sides[1].empty();
            let receive = sides[1].rdma.recv(&dst).start().unwrap();
            let dial = sides[0]
                .rdma
                .connect_to(listener.local_addr())
                .timeout(LIMIT);
            let limit = if proves {
                LIMIT
            } else {
                Duration::from_millis(100)
            };
            let accept = async {
                let request = listener.accept().await.unwrap();
                request.accept(&sides[1].rdma).timeout(limit).await
            };
            let send = async {
                dial.await.unwrap();
                let sent = sides[0].rdma.send(sides[0].filled(b"first")).await;
                if proves {
                    world.faults().messages_come_first();
                }
                sent
            };
            let (accepted, sent) = in_time("both end", join(accept, send)).await;
            assert_eq!(sent, Ok(5));
            match proves {
                true => {
                    accepted.unwrap();
                    assert_eq!(receive.await.unwrap().len, 5);
                }
                false => {
                    let error = accepted.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                    assert!(matches!(sides[1].rdma.state(), RdmaState::Error(_)));
                    // The other side was connected already, and finds that its peer has closed.
                    assert_eq!(failed(&sides[0]).await, Reason::PeerClosed);
                }
            }
        }
        world.faults().lose_words(false);
    });
}

/// A connection leaves through the adapter that reaches the address, or through the one that has
/// the source address.
#[test]
fn another_adapter_is_named() {
    let world = World::new([Description::roce("fake0"), Description::roce("fake1")]);
    let [here, there] = ["fake0", "fake1"].map(|name| place(&world, name));
    run(async {
        let listener = there.listen();
        let plain = here.side();
        let error = plain
            .rdma
            .connect_to(listener.local_addr())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        assert!(error.to_string().contains("fake1"), "{error}");
        let addr = SocketAddr::new(here.ip, 7471);
        let error = CmListener::bind(&there.device, addr).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        assert!(error.to_string().contains("fake0"), "{error}");
        let sourced = Side::with(&here.device, Mode::EventDriven, |builder| {
            let mut transport = Transport::default();
            transport.source = Some(here.ip);
            builder.transport(transport)
        });
        let peer = there.side();
        let dial = sourced
            .rdma
            .connect_to(listener.local_addr())
            .timeout(LIMIT);
        let accept = async {
            let request = listener.accept().await.unwrap();
            assert_eq!(request.peer_addr().ip(), here.ip);
            request.accept(&peer.rdma).timeout(LIMIT).await
        };
        let (dialled, accepted) = in_time("they meet", join(dial, accept)).await;
        dialled.unwrap();
        accepted.unwrap();
        let nowhere = "10.255.255.1:1".parse().unwrap();
        let error = plain.rdma.connect_to(nowhere).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        // The listener cannot accept with an `Rdma` of another device; the peer's attempt is
        // refused.
        let (c, wrong) = (there.side(), here.side());
        let (dialled, accepted) = meet(&listener, &c, &wrong).await;
        assert_eq!(dialled.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(accepted.unwrap_err().kind(), ErrorKind::InvalidValue);
        let other = plain.rdma.connect_to("[::1]:1".parse().unwrap()).await;
        assert!(other.is_err());
    });
}

/// The kernel delays the removal of an adapter until all its rdma_cm ids are destroyed.
#[test]
fn a_removed_adapter_ends_all_of_it() {
    on_one(async |world, place| {
        let (listener, [a, b]) = (place.listen(), place.connected().await);
        let everywhere = CmListener::bind(&place.device, "0.0.0.0:0".parse().unwrap()).unwrap();
        let waiting = place.side();
        let dial = waiting
            .rdma
            .connect_to(listener.local_addr())
            .timeout(LIMIT);
        let removed = async {
            let request = listener.accept().await.unwrap();
            world.fake("fake0").remove();
            let error = in_time("it ends", listener.accept()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
            drop(request);
            let error = in_time("the other ends", everywhere.accept())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
        };
        let (dialled, ()) = in_time("all end", join(dial, removed)).await;
        assert_eq!(dialled.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        for side in [&a, &b] {
            assert_eq!(failed(side).await, Reason::DeviceGone);
        }
    });
}

/// Strangers can queue at most 128 requests; the next one is refused. Once the owner has taken
/// those, other peers can connect.
#[test]
fn requests_beyond_the_line_are_refused() {
    on_one(async |_, place| {
        let (listener, line) = (place.listen(), 128);
        let asks: Vec<_> = (0..=line).map(|_| place.side()).collect();
        let addr = listener.local_addr();
        let mut dials = Vec::new();
        for side in &asks {
            let dial = side.rdma.connect_to(addr).timeout(LIMIT);
            dials.push(tokio::spawn(async move { dial.await.map(drop) }));
        }
        // One of the 129 requests is refused.
        let (first, _, rest) = in_time("one is refused", futures::future::select_all(dials)).await;
        let error = first.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        for _ in 0..line {
            drop(listener.accept().await.unwrap());
        }
        for dial in rest {
            dial.await.unwrap().unwrap_err();
        }
        let side = place.side();
        let (dialled, accepted) = meet(&listener, &asks[0], &side).await;
        dialled.unwrap();
        accepted.unwrap();
    });
}
