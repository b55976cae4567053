//! Channels between a host and its DPU: which sides can connect, messages and their limits, how
//! channels end, and what a drop does.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::FutureExt;
use futures::future::try_join;
use support::channel::*;
use support::subscriber::OnEvent;
use support::*;
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Error, ErrorKind,
    channel::{Channel, ChannelBuilder},
    device::{RepFilter, Representor},
};

fn builder() -> ChannelBuilder {
    Channel::builder()
}

#[track_caller]
fn is(result: Result<impl std::fmt::Debug, Error>, kind: ErrorKind) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[test]
fn messages_of_all_sizes_go_both_ways_in_order() {
    run(async {
        let (client, server) = pair().await;
        assert_eq!(client.max_message_size(), 4080);
        assert_eq!(server.max_message_size(), 4080);
        let sizes = [0, 1, 64, 4079, 4080, 3, 0];
        for (from, to) in [(&client, &server), (&server, &client)] {
            let send = async {
                for size in sizes {
                    from.send(&pattern(size as u8, size)).await.unwrap();
                }
            };
            let recv = async {
                for size in sizes {
                    assert_eq!(to.recv().await.unwrap(), pattern(size as u8, size));
                }
            };
            tokio::join!(send, recv);
            let text = is(from.send(&[0; 4081]).await, ErrorKind::InvalidValue);
            mentions(&text, &[4081, 4080]);
            is(from.try_send(&[0; 5000]), ErrorKind::InvalidValue);
            is(to.try_recv(), ErrorKind::Again);
            let (sent, received) = (from.stats(), to.stats());
            assert_eq!((sent.sent_messages, sent.sent_bytes), (7, 8227));
            let got = (received.received_messages, received.received_bytes);
            assert_eq!((got, sent.sends_in_flight), ((7, 8227), 0));
        }
    });
}

#[test]
fn both_sides_have_the_smaller_size() {
    run(async {
        let small = builder().max_message_size(100);
        for (client, server) in [(small, builder()), (builder(), small)] {
            let (client, server) = pair_of(client, server).await;
            for (from, to) in [(&client, &server), (&server, &client)] {
                assert_eq!(from.max_message_size(), 100);
                is(from.send(&[1; 101]).await, ErrorKind::InvalidValue);
                from.send(&[1; 100]).await.unwrap();
                assert_eq!(to.recv().await.unwrap(), [1; 100][..]);
            }
        }
    });
}

#[test]
fn only_the_function_of_the_representor_finds_the_service() {
    run(async {
        let name = unique("whose");
        let functions = ["pf0", "pf0vf0", "pf0vf1", "pf1", "pf1vf0"];
        for theirs in functions {
            let service = builder()
                .listen(&representor(&format!("h{theirs}")), &name)
                .unwrap();
            assert_eq!((service.name(), service.local_addr()), (&name[..], None));
            for function_of in functions.into_iter().filter(|name| *name != theirs) {
                let other = builder().connect(&function(function_of), &name).await;
                is(other, ErrorKind::ConnectionAborted);
            }
            let its = function(theirs);
            let (client, server) = tokio::join!(builder().connect(&its, &name), service.accept());
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!(client.device(), &its);
            assert_eq!(server.device(), service.device());
            let us = std::process::id() as i32;
            for channel in [&client, &server] {
                assert_eq!(channel.peer().process_id(), Some(us));
                assert_eq!(channel.peer().to_string(), format!("process {us}"));
            }
        }
    });
}

#[test]
fn a_sub_function_of_the_dpu_and_its_representor_meet_as_well() {
    run(async {
        let name = unique("sf");
        let service = builder().listen(&representor("pf1sf0"), &name).unwrap();
        let dpu = Soft::builder().view(View::Dpu).build();
        let sf = dpu.open("p1s0").unwrap();
        let (client, server) = tokio::join!(builder().connect(&sf, &name), service.accept());
        client.unwrap().send(b"hello").await.unwrap();
        assert_eq!(server.unwrap().recv().await.unwrap(), "hello");
        // A port has representors, but is not the function of any.
        let port = dpu.open("p1").unwrap();
        is(
            builder().connect(&port, &name).await,
            ErrorKind::NotSupported,
        );
    });
}

#[test]
fn a_client_without_a_service_is_told_so_and_a_name_is_given_once() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("once"));
        let alone = builder().connect(&pf0, &name).await;
        assert!(is(alone, ErrorKind::ConnectionAborted).contains(&name));
        let first = service(builder(), &name);
        let again = builder().listen(&representor("hpf0"), &name);
        assert!(is(again, ErrorKind::AlreadyExist).contains(&name));
        // The same name at another function is a different service.
        let other = builder().listen(&representor("hpf1"), &name);
        drop((first, other.unwrap()));
        is(
            builder().connect(&pf0, &name).await,
            ErrorKind::ConnectionAborted,
        );
        // A function that was removed has no services.
        let dpu = Soft::builder().view(View::Dpu).build();
        let device = dpu.open("p0").unwrap();
        let hpf0 = Representor::open(&device, "hpf0").unwrap();
        let without = dpu.topology().unplug("pf0").unwrap();
        dpu.set_topology(without);
        is(builder().listen(&hpf0, &name), ErrorKind::NotFound);
    });
}

#[test]
fn a_service_that_starts_again_has_its_name_and_the_old_channels_go_on() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("again"));
        let first = service(builder(), &name);
        let (old, server) = tokio::join!(builder().connect(&pf0, &name), first.accept());
        let (old, server) = (old.unwrap(), server.unwrap());
        // A client that waits to be greeted gets an error.
        let mut late = pin!(builder().connect(&pf0, &name));
        poll_pending(late.as_mut());
        drop(first);
        is(in_time("the end", late).await, ErrorKind::ConnectionReset);
        let second = service(builder(), &name);
        let (new, other) = tokio::join!(builder().connect(&pf0, &name), second.accept());
        let pairs = [(&old, &server), (&new.unwrap(), &other.unwrap())];
        for (client, server) in pairs {
            client.send(b"still there").await.unwrap();
            assert_eq!(server.recv().await.unwrap(), "still there");
        }
        assert_eq!(second.peers().len(), 1);
    });
}

/// Sends until the queue is full, and returns the number of messages sent.
fn fill(channel: &Channel, len: usize) -> usize {
    let mut sent = 0;
    loop {
        match channel.try_send(&pattern(sent as u8, len)) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Again, "{error}");
                return sent;
            }
        }
    }
}

#[test]
fn a_peer_that_does_not_read_makes_send_wait_and_then_gets_all_of_it() {
    run(async {
        for (queue, len) in [(1, 4080), (10, 4080), (10, 64), (200, 1)] {
            let (client, server) = pair_of(builder().send_queue_size(queue), builder()).await;
            let sent = fill(&client, len);
            assert!(sent > queue && sent < 100_000, "{sent}");
            assert_eq!(client.stats().sends_in_flight, queue);
            assert_eq!(client.stats().sent_messages, sent as u64);
            // Sends that wait are served in order.
            let waits = async {
                for more in 0..3 {
                    client
                        .send(&pattern((sent + more) as u8, len))
                        .await
                        .unwrap();
                }
            };
            let mut waits = pin!(waits);
            poll_pending(waits.as_mut());
            let reads = async {
                for number in 0..sent + 3 {
                    assert_eq!(server.recv().await.unwrap(), pattern(number as u8, len));
                }
            };
            tokio::join!(reads, waits);
            assert_eq!(client.stats().sends_in_flight, 0);
            client.try_send(b"room again").unwrap();
        }
    });
}

#[test]
fn a_send_that_was_dropped_while_it_waited_was_not_sent() {
    run(async {
        let (client, server) = pair_of(builder().send_queue_size(2), builder()).await;
        let sent = fill(&client, 1000);
        {
            let mut dropped = pin!(client.send(b"never"));
            poll_pending(dropped.as_mut());
            let mut forgotten = pin!(client.send(b"nor this"));
            poll_pending(forgotten.as_mut());
        }
        let last = client.clone();
        let waits = tokio::spawn(async move { last.send(b"last").await });
        for number in 0..sent {
            assert_eq!(server.recv().await.unwrap(), pattern(number as u8, 1000));
        }
        assert_eq!(server.recv().await.unwrap(), "last");
        waits.await.unwrap().unwrap();
        is(server.try_recv(), ErrorKind::Again);
    });
}

#[test]
fn a_receive_that_was_dropped_loses_nothing_of_a_message_that_came_in_part() {
    use std::io::Write;
    run(async {
        let name = unique("parts");
        let service = service(builder(), &name);
        let mut raw = Raw::of_pf0(&name);
        raw.greet(&name, 4080);
        let server = service.accept().await.unwrap();
        assert_eq!(raw.answer(), 0);
        let sent = [frame(b"first"), frame(&[7; 300]), frame(b"")].concat();
        for byte in &sent[..sent.len() - 4] {
            {
                let mut recv = pin!(server.recv());
                if poll(recv.as_mut()).is_ready() {
                    // The first message was complete before this byte.
                    assert_eq!(server.stats().received_messages, 1);
                }
            }
            raw.0.write_all(&[*byte]).unwrap();
            // Lets the runtime notice the new data.
            tokio::task::yield_now().await;
        }
        assert_eq!(
            in_time("the second", server.recv()).await.unwrap(),
            [7; 300][..]
        );
        raw.0.write_all(&sent[sent.len() - 4..]).unwrap();
        assert_eq!(in_time("the third", server.recv()).await.unwrap(), "");
        let stats = server.stats();
        assert_eq!((stats.received_messages, stats.received_bytes), (3, 305));
    });
}

#[test]
fn receives_that_wait_get_messages_in_their_order() {
    run(async {
        let (client, server) = pair().await;
        let mut waits = Vec::new();
        for number in 0..4_u8 {
            let server = server.clone();
            waits.push(tokio::spawn(async move {
                (number, server.recv().await.unwrap())
            }));
            tokio::task::yield_now().await;
        }
        assert!(is(server.try_recv(), ErrorKind::Again).contains("another receive"));
        for number in 0..4_u8 {
            client.send(&[number]).await.unwrap();
        }
        for wait in waits {
            let (number, message) = in_time("a message", wait).await.unwrap();
            assert_eq!(message, [number][..]);
        }
    });
}

/// The idle receives stand for branches of a `select!` that is busy with another branch.
#[test]
fn receives_that_nobody_polls_stop_nobody() {
    run(async {
        let (client, server) = pair().await;
        let mut idle: Vec<_> = (0..3).map(|_| Box::pin(server.recv())).collect();
        idle.iter_mut().for_each(|recv| poll_pending(recv.as_mut()));
        let other = server.clone();
        let waits = tokio::spawn(async move {
            let first = other.recv().await.unwrap();
            (first, other.recv().await.unwrap())
        });
        tokio::task::yield_now().await;
        for message in ["first", "second", "third"] {
            client.send(message.as_bytes()).await.unwrap();
        }
        let (first, second) = in_time("two messages", waits).await.unwrap();
        assert_eq!((&first[..], &second[..]), (&b"first"[..], &b"second"[..]));
        let third = in_time("one of them", idle.remove(1)).await;
        assert_eq!(third.unwrap(), "third");
        client.send(b"fourth").await.unwrap();
        // All idle receives were notified; the first non-blocking call may take the message
        // instead.
        until("a message", || {
            server.try_recv().is_ok_and(|it| it == "fourth")
        })
        .await;
    });
}

#[test]
fn an_accept_that_nobody_polls_stops_nobody() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("idle"));
        let service = Arc::new(service(builder(), &name));
        let mut idle = pin!(service.accept());
        poll_pending(idle.as_mut());
        let other = Arc::clone(&service);
        let waits = tokio::spawn(async move { other.accept().await.unwrap() });
        let client = in_time("the client", builder().connect(&pf0, &name)).await;
        let server = in_time("the other accept", waits).await.unwrap();
        client.unwrap().send(b"hello").await.unwrap();
        assert_eq!(server.recv().await.unwrap(), "hello");
        let (client, server) = tokio::join!(builder().connect(&pf0, &name), idle);
        assert!(client.is_ok() && server.is_ok());
    });
}

#[test]
fn sends_that_nobody_polls_stop_nobody() {
    run(async {
        let (client, server) = pair().await;
        let sent = fill(&client, 4080);
        let mut idle: Vec<_> = (0..3).map(|_| Box::pin(client.send(b"idle"))).collect();
        idle.iter_mut().for_each(|send| poll_pending(send.as_mut()));
        let other = client.clone();
        let sends = tokio::spawn(async move { other.send(b"polled").await });
        tokio::task::yield_now().await;
        for _ in 0..sent {
            in_time("a message", server.recv()).await.unwrap();
        }
        in_time("the polled send", sends).await.unwrap().unwrap();
        let message = in_time("its message", server.recv()).await;
        assert_eq!(message.unwrap(), "polled");
        in_time("an idle send", idle.remove(1)).await.unwrap();
        assert_eq!(in_time("its message", server.recv()).await.unwrap(), "idle");
    });
}

/// Sends messages until some of them wait for the peer to read, while the queue has space for more.
async fn fill_in_part(channel: &Channel) -> usize {
    let mut sent = 0;
    while channel.stats().sends_in_flight < 2 {
        channel.send(&[7; 4080]).await.unwrap();
        sent += 1;
    }
    sent
}

/// The peer does not read. Neither a pending flush nor a dropped disconnect in front of a send
/// delays it.
#[test]
fn a_flush_and_a_dropped_disconnect_hold_up_no_sends() {
    run(async {
        let (client, server) = pair().await;
        let sent = fill_in_part(&client).await;
        let mut flush = pin!(client.flush());
        poll_pending(flush.as_mut());
        client.try_send(b"beside a flush").unwrap();
        let mut disconnect = Box::pin(client.disconnect());
        poll_pending(disconnect.as_mut());
        let other = client.clone();
        let mut behind = pin!(other.send(b"behind a disconnect"));
        poll_pending(behind.as_mut());
        drop(disconnect);
        in_time("the send behind it", behind).await.unwrap();
        poll_pending(flush.as_mut());
        for _ in 0..sent {
            in_time("a message", server.recv()).await.unwrap();
        }
        in_time("the flush", flush).await.unwrap();
        for message in ["beside a flush", "behind a disconnect"] {
            assert_eq!(in_time("it", server.recv()).await.unwrap(), message);
        }
    });
}

#[test]
fn sends_keep_their_order_though_the_budget_is_spent() {
    run(async {
        let (client, server) = pair().await;
        let sends = tokio::spawn(async move {
            while tokio::task::consume_budget().now_or_never().is_some() {}
            tokio::join!(client.send(b"first"), client.send(b"second"))
        });
        for message in ["first", "second"] {
            assert_eq!(in_time("it", server.recv()).await.unwrap(), message);
        }
        let (first, second) = sends.await.unwrap();
        assert!(first.is_ok() && second.is_ok());
    });
}

/// Several threads receive and send, and drop futures that wait: each message is received, and no
/// task sleeps while there is a message.
#[test]
fn a_storm_of_receives_and_sends_loses_no_message() {
    const ALL: usize = 6000;
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    let runtimes = [runtime(), runtime()];
    let (client, server) = runtimes[0].block_on(pair());
    let came = Arc::new(AtomicUsize::new(0));
    let receives = |number: usize| {
        let (server, came) = (server.clone(), Arc::clone(&came));
        runtimes[number % 2].spawn(async move {
            for turn in number..usize::MAX {
                let mut recv = pin!(server.recv());
                let received = match turn % 5 {
                    0 => tokio::select! {
                        biased;
                        received = recv.as_mut() => received,
                        () = tokio::task::yield_now() => continue,
                    },
                    _ => recv.await,
                };
                match received {
                    Ok(_) => _ = came.fetch_add(1, SeqCst),
                    Err(_) => return,
                }
            }
        })
    };
    let receivers: Vec<_> = (0..6).map(receives).collect();
    let sends = |number: usize| {
        let client = client.clone();
        runtimes[number % 2].spawn(async move {
            for sent in 0..ALL / 4 {
                let message = vec![1; sent * 797 % 4000];
                let mut send = pin!(client.send(&message));
                if sent % 7 == 0 {
                    // Drops the send if it must wait, and starts it again.
                    if let Some(done) = send.as_mut().now_or_never() {
                        done.unwrap();
                        continue;
                    }
                    send.set(client.send(&message));
                }
                send.await.unwrap();
            }
        })
    };
    let senders: Vec<_> = (0..4).map(sends).collect();
    runtimes[0].block_on(async {
        for sender in senders {
            in_time("the sends", sender).await.unwrap();
        }
        until("all messages", || came.load(SeqCst) == ALL).await;
        client.abort();
        for receiver in receivers {
            in_time("the end", receiver).await.unwrap();
        }
    });
}

/// A queue entry that becomes free belongs to the longest waiting send, even if another call
/// arrives just then.
#[test]
fn sends_that_wait_are_sent_in_their_order() {
    run(async {
        let (client, server) = pair().await;
        let sent = fill(&client, 4080);
        let mut sends: Vec<_> = (0..4_u8)
            .map(|number| {
                let client = client.clone();
                Box::pin(async move { client.send(&[number]).await })
            })
            .collect();
        sends
            .iter_mut()
            .for_each(|send| poll_pending(send.as_mut()));
        let sends = tokio::spawn(futures::future::join_all(sends.into_iter().rev()));
        for _ in 0..sent {
            in_time("a message", server.recv()).await.unwrap();
        }
        assert!(
            in_time("all sends", sends)
                .await
                .unwrap()
                .iter()
                .all(Result::is_ok)
        );
        for number in 0..4_u8 {
            assert_eq!(
                in_time("one of them", server.recv()).await.unwrap(),
                [number][..]
            );
        }
    });
}

#[test]
fn a_peer_that_does_not_read_is_thrown_out() {
    run(async {
        let (client, server) = pair().await;
        let sent = fill(&client, 4080);
        let mut disconnect = pin!(client.disconnect());
        poll_pending(disconnect.as_mut());
        let late = client.clone();
        let late = tokio::spawn(async move { late.send(b"late").await });
        tokio::task::yield_now().await;
        client.abort();
        in_time("the end", disconnect).await;
        is(late.await.unwrap(), ErrorKind::NotConnected);
        is(client.try_send(b"x"), ErrorKind::NotConnected);
        // The peer has received some messages, and perhaps a part of the next one.
        let mut read = 0;
        let error = loop {
            match in_time("a message", server.recv()).await {
                Ok(message) => assert_eq!(message, pattern(read as u8, 4080)),
                Err(error) => break error,
            }
            read += 1;
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(0 < read && read < sent, "{read} of {sent}");
        client.abort();
    });
}

#[test]
fn a_subscriber_that_hears_of_the_end_may_receive() {
    for awaits in [false, true] {
        run(async {
            let (client, server) = pair().await;
            client.disconnect().await;
            let (told, heard) = std::sync::mpsc::channel();
            let same = server.clone();
            let receives = OnEvent::new(move |_| told.send(same.try_recv().map(drop)).unwrap());
            let guard = tracing::subscriber::set_default(receives);
            match awaits {
                true => is(
                    in_time("the end", server.recv()).await,
                    ErrorKind::ConnectionReset,
                ),
                // The end has arrived by now, since both sides are on the same machine.
                false => is(server.try_recv(), ErrorKind::ConnectionReset),
            };
            drop(guard);
            is(heard.try_recv().unwrap(), ErrorKind::ConnectionReset);
        });
    }
}

#[test]
fn disconnecting_writes_what_was_sent_and_ends_both_sides() {
    run(async {
        let (client, server) = pair().await;
        let sent = fill(&client, 4080);
        let mut disconnect = pin!(client.disconnect());
        poll_pending(disconnect.as_mut());
        // A send behind the disconnect finds no connection.
        let late = client.clone();
        let late = tokio::spawn(async move { late.send(b"late").await });
        let reads = async {
            for number in 0..sent {
                assert_eq!(server.recv().await.unwrap(), pattern(number as u8, 4080));
            }
            is(server.recv().await, ErrorKind::ConnectionReset);
        };
        tokio::join!(reads, disconnect);
        is(late.await.unwrap(), ErrorKind::NotConnected);
        assert!(!client.is_connected() && !server.is_connected());
        for _ in 0..2 {
            is(client.send(b"x").await, ErrorKind::NotConnected);
            is(client.try_send(b"x"), ErrorKind::NotConnected);
            is(client.recv().await, ErrorKind::NotConnected);
            is(client.try_recv(), ErrorKind::NotConnected);
            is(server.send(b"x").await, ErrorKind::ConnectionReset);
            is(server.recv().await, ErrorKind::ConnectionReset);
            is(server.try_recv(), ErrorKind::ConnectionReset);
            client.disconnect().await;
            server.disconnect().await;
        }
        // The side that disconnects loses the messages that it has not received yet.
        let (client, server) = pair().await;
        server.send(b"first").await.unwrap();
        server.send(b"second").await.unwrap();
        assert_eq!(client.recv().await.unwrap(), "first");
        client.disconnect().await;
        is(client.recv().await, ErrorKind::NotConnected);
        // Calls that wait fail, on either side.
        let (client, server) = pair().await;
        let waits = [client.clone(), server.clone()]
            .map(|channel| tokio::spawn(async move { channel.recv().await.unwrap_err().kind() }));
        tokio::task::yield_now().await;
        client.disconnect().await;
        let mut told = Vec::new();
        for wait in waits {
            told.push(in_time("an end", wait).await.unwrap());
        }
        assert_eq!(told, [ErrorKind::NotConnected, ErrorKind::ConnectionReset]);
    });
}

#[test]
fn the_last_handle_ends_it_when_all_is_written_and_what_came_can_still_be_read() {
    run(async {
        let (client, server) = pair().await;
        server.send(b"not read").await.unwrap();
        let sent = fill(&client, 2000);
        let second = client.clone();
        drop(client);
        assert!(second.is_connected());
        drop(second);
        for number in 0..sent {
            let message = in_time("a message", server.recv()).await.unwrap();
            assert_eq!(message, pattern(number as u8, 2000));
        }
        is(server.recv().await, ErrorKind::ConnectionReset);

        // A failed send does not hide the messages that the peer sent before.
        let (client, server) = pair().await;
        client.send(b"goodbye").await.unwrap();
        drop(client);
        let mut refused = server.try_send(b"x");
        while refused.is_ok() {
            refused = server.try_send(b"x");
        }
        is(refused, ErrorKind::ConnectionReset);
        assert_eq!(server.recv().await.unwrap(), "goodbye");
        is(server.recv().await, ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_service_knows_its_peers_and_takes_no_more_than_it_was_built_for() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("peers"));
        let service = service(builder().max_peers(3), &name);
        let mut pairs = Vec::new();
        for number in 0..3 {
            let (client, server) = tokio::join!(builder().connect(&pf0, &name), service.accept());
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!(server.user_data(), 0);
            server.set_user_data(number);
            pairs.push((client, server));
        }
        let known: Vec<u64> = service.peers().iter().map(Channel::user_data).collect();
        assert_eq!(known, [0, 1, 2]);
        assert!(service.peers()[1] == pairs[1].1 && service.peers()[0] != pairs[1].1);
        let accept = service.accept();
        let mut accept = pin!(accept);
        let full = async {
            tokio::select! {
                refused = builder().connect(&pf0, &name) => refused,
                _ = accept.as_mut() => panic!("it was let in"),
            }
        };
        is(in_time("the refusal", full).await, ErrorKind::Full);
        // A place becomes free when the service drops its handle, or notices that the client has
        // gone.
        pairs.remove(1);
        let (fourth, server) = tokio::join!(builder().connect(&pf0, &name), accept);
        fourth.unwrap().send(b"hello").await.unwrap();
        assert_eq!(server.unwrap().recv().await.unwrap(), "hello");
        let known: Vec<u64> = service.peers().iter().map(Channel::user_data).collect();
        assert_eq!(known, [0, 2]);
        assert!(format!("{service:?}").contains(&name));
    });
}

#[test]
fn what_is_still_to_be_written_counts_as_a_peer_until_it_is() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("lingers"));
        let service = service(builder().max_peers(1), &name);
        let (client, server) = tokio::join!(builder().connect(&pf0, &name), service.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let sent = fill(&server, 4080);
        drop(server);
        let lingering = service.peers();
        assert_eq!(lingering[0].stats().sends_in_flight, 10);
        drop(lingering);
        let mut accept = pin!(service.accept());
        let refused = tokio::select! {
            refused = builder().connect(&pf0, &name) => refused,
            _ = accept.as_mut() => panic!("it was let in"),
        };
        is(refused, ErrorKind::Full);
        for _ in 0..sent {
            in_time("a message", client.recv()).await.unwrap();
        }
        is(
            in_time("the end", client.recv()).await,
            ErrorKind::ConnectionReset,
        );
        assert!(service.peers().is_empty());
        let (next, server) = tokio::join!(builder().connect(&pf0, &name), accept);
        assert!(next.is_ok() && server.is_ok());
    });
}

#[test]
fn a_task_that_always_finds_a_message_lets_others_have_their_turn() {
    run(async {
        let (client, server) = pair().await;
        let turns = turns_of_another();
        for _ in 0..2000 {
            client.send(b"and on").await.unwrap();
            server.recv().await.unwrap();
        }
        assert!(turns() > 10, "{}", turns());
    });
}

#[test]
fn an_accept_that_was_dropped_loses_no_client() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("dropped"));
        let service = service(builder(), &name);
        let mut connect = pin!(builder().connect(&pf0, &name));
        poll_pending(connect.as_mut());
        // The client reaches the listener, and is greeted in later turns of the runtime.
        for _ in 0..3 {
            let mut accept = pin!(service.accept());
            if poll(accept.as_mut()).is_ready() {
                panic!("a runtime has to hear of it first");
            }
        }
        let (client, server) = tokio::join!(connect, service.accept());
        assert!(client.unwrap().is_connected() && server.unwrap().is_connected());
    });
}

/// Two tasks wait in `accept` and only one is polled: it gets the client, as with a `TcpListener`.
#[test]
fn of_two_tasks_in_accept_one_that_is_polled_gets_the_client() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("two"));
        let service = service(builder(), &name);
        for first_is_dropped in [false, true] {
            let mut first = Box::pin(service.accept());
            poll_pending(first.as_mut());
            let mut second = Box::pin(service.accept());
            poll_pending(second.as_mut());
            if first_is_dropped {
                drop(first);
            }
            let both = try_join(builder().connect(&pf0, &name), second);
            in_time("the connection", both).await.unwrap();
        }
    });
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn by_tcp_the_same_is_had_at_an_address() {
    run(async {
        let (pf0, p0) = (function("pf0"), representor("hpf0").device().clone());
        let name = unique("tcp");
        let service = builder().listen_tcp(&p0, anywhere(), &name).await.unwrap();
        let addr = service.local_addr().unwrap();
        let taken = builder().listen_tcp(&p0, addr, &name).await;
        is(taken, ErrorKind::AlreadyExist);
        let connect = builder().connect_tcp(&pf0, addr, &name);
        let (client, server) = tokio::join!(connect, service.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.peer().tcp_addr(), Some(addr));
        assert_eq!(client.peer().to_string(), addr.to_string());
        assert_eq!(client.device(), &pf0);
        let sent = fill(&client, 4080);
        client.try_recv().unwrap_err();
        let waits = client.send(&[9; 4080]);
        let reads = async {
            for number in 0..sent {
                assert_eq!(server.recv().await.unwrap(), pattern(number as u8, 4080));
            }
            server.recv().await.unwrap()
        };
        let (waited, last) = tokio::join!(waits, reads);
        waited.unwrap();
        assert_eq!(last, [9; 4080][..]);
        server.send(b"bye").await.unwrap();
        drop(server);
        assert_eq!(client.recv().await.unwrap(), "bye");
        is(client.recv().await, ErrorKind::ConnectionReset);
        // Another name at the same address is a different service, which does not exist.
        let other = builder().connect_tcp(&pf0, addr, "another");
        let refused = tokio::select! {
            refused = other => refused,
            _ = service.accept() => panic!("it was let in"),
        };
        is(refused, ErrorKind::ConnectionAborted);
        drop(service);
        let nobody = builder().connect_tcp(&pf0, addr, &name).await;
        is(nobody, ErrorKind::ConnectionAborted);
    });
}

/// The provider implements neither representors nor Channels, so the contract's defaults apply.
#[test]
fn a_device_without_representors_says_so_and_its_channels_go_by_tcp() {
    let (_keep, device) = loopback::Loopback::device(true);
    let caps = device.info().caps();
    assert!(!caps.hotplug_manager && !caps.channel);
    for filter in [RepFilter::All, RepFilter::Net, RepFilter::Emulated] {
        assert!(!caps.representors.supports(filter));
        is(device.representors(filter), ErrorKind::NotSupported);
    }
    is(device.adapter().representors(), ErrorKind::NotSupported);
    is(Representor::open(&device, "hpf0"), ErrorKind::NotSupported);
    run(async {
        let refused = builder().connect(&device, "x").await;
        assert!(is(refused, ErrorKind::NotSupported).contains("connect_tcp"));
        let service = builder().listen_tcp(&device, anywhere(), "x").await;
        let service = service.unwrap();
        let addr = service.local_addr().unwrap();
        let connect = builder().connect_tcp(&device, addr, "x");
        let (client, server) = tokio::join!(connect, service.accept());
        client.unwrap().send(b"by TCP").await.unwrap();
        assert_eq!(server.unwrap().recv().await.unwrap(), "by TCP");
    });
}

#[test]
fn sizes_and_names_that_there_are_not_are_refused() {
    run(async {
        let (pf0, hpf0) = (function("pf0"), representor("hpf0"));
        for wrong in [
            builder().max_message_size(0),
            builder().max_message_size(4081),
            builder().send_queue_size(0),
            builder().send_queue_size(8193),
            builder().recv_queue_size(0),
            builder().recv_queue_size(8193),
            builder().max_peers(0),
        ] {
            is(wrong.listen(&hpf0, "x"), ErrorKind::InvalidValue);
            is(wrong.connect(&pf0, "x").await, ErrorKind::InvalidValue);
            let tcp = wrong.connect_tcp(&pf0, anywhere(), "x").await;
            is(tcp, ErrorKind::InvalidValue);
        }
        for name in ["", &"x".repeat(33), "a\0b"] {
            is(builder().listen(&hpf0, name), ErrorKind::InvalidValue);
            is(builder().connect(&pf0, name).await, ErrorKind::InvalidValue);
            let tcp = builder().listen_tcp(&pf0, anywhere(), name).await;
            is(tcp, ErrorKind::InvalidValue);
        }
        // The longest possible name, in bytes that are not ASCII, on the longest function name.
        let name = "é".repeat(16);
        let longest = "abcdefghijklmno";
        let function = tokio_doca::soft::Function::vf(longest, "0f:00.0".parse().unwrap());
        let topology = tokio_doca::soft::Topology::default()
            .with_card("X".repeat(20))
            .unwrap()
            .plug("p0", function.representor("rep"))
            .unwrap();
        let sides = [View::Host, View::Dpu].map(|view| {
            let builder = Soft::builder().view(view);
            builder.topology(topology.clone()).build()
        });
        let rep = Representor::open(&sides[1].open("p0").unwrap(), "rep").unwrap();
        let service = builder().listen(&rep, &name).unwrap();
        let longest = sides[0].open(longest).unwrap();
        let (client, server) = tokio::join!(builder().connect(&longest, &name), service.accept());
        assert!(client.is_ok() && server.is_ok());
    });
}

#[test]
fn without_a_runtime_it_is_a_bad_state_and_with_one_that_ended_it_is_over() {
    let (pf0, hpf0) = (function("pf0"), representor("hpf0"));
    let name = unique("runtime");
    is(builder().listen(&hpf0, &name), ErrorKind::BadState);
    let connect = || futures::executor::block_on(builder().connect(&pf0, &name));
    is(connect(), ErrorKind::BadState);
    // Both ends are on a runtime that ends while one side has more messages than the socket
    // accepts.
    let gone = runtime();
    let (client, server) = gone.block_on(pair());
    let sent = gone.block_on(async { fill(&client, 4080) });
    assert!(sent > 10);
    drop(gone);
    let ended = |result: Result<(), Error>| {
        let kind = result.unwrap_err().kind();
        let kinds = [ErrorKind::Shutdown, ErrorKind::ConnectionReset];
        assert!(kinds.contains(&kind), "{kind:?}");
    };
    run(async {
        ended(in_time("an end", client.send(b"x")).await);
        let mut received = in_time("an end", server.recv()).await;
        while received.is_ok() {
            received = in_time("an end", server.recv()).await;
        }
        ended(received.map(drop));
    });
}

#[test]
fn a_channel_whose_runtime_ended_while_it_was_idle_blocks_nobody() {
    let gone = runtime();
    let (client, server) = gone.block_on(pair());
    drop(gone);
    // Messages that the socket does not accept would be written by a task, which the ended runtime
    // drops at once.
    let filled = std::thread::spawn(move || {
        let mut end = Ok(());
        while end.is_ok() {
            end = client.try_send(&[7; 4080]);
        }
        end.unwrap_err().kind()
    });
    let deadline = std::time::Instant::now() + LIMIT;
    while !filled.is_finished() {
        assert!(std::time::Instant::now() < deadline, "it blocks");
        std::thread::yield_now();
    }
    assert_eq!(filled.join().unwrap(), ErrorKind::Shutdown);
    drop(server);
}

#[test]
fn a_waker_may_ask_the_channel_that_wakes_it() {
    struct Asks(Channel);
    impl std::task::Wake for Asks {
        fn wake(self: Arc<Self>) {
            let _ = self.0.stats();
        }
    }
    run(async {
        let (client, server) = pair().await;
        fill(&client, 4080);
        let waker = std::task::Waker::from(Arc::new(Asks(client.clone())));
        let mut send = std::pin::pin!(client.send(b"x"));
        let mut cx = std::task::Context::from_waker(&waker);
        assert!(send.as_mut().poll(&mut cx).is_pending());
        while client.stats().sends_in_flight > 0 {
            in_time("a message", server.recv()).await.unwrap();
        }
        in_time("room", send).await.unwrap();
    });
}
