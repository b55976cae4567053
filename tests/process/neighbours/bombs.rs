//! Descriptors whose closing takes 20 s, sent to each socket that this process reads or closes: no
//! runtime waits for them.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use support::channel::*;
use support::{test_name, *};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    ErrorKind, Mode, WorkQ,
    channel::Channel,
    mem::{Access, RemoteMmap},
    sync_event::SyncEvent,
};

use super::means::*;
use crate::forged::endpoint::*;
use crate::forged::rdma::*;
use crate::forged::{Blob, EVENT, accept, listen, payload, receive, send};

const STRANGER: u32 = 64_321;

fn name_of(service: &str) -> String {
    let vuid = representor("hpf0").info().vuid().to_owned();
    format!("tokio-doca/{}/{vuid}/{service}", nix::unistd::geteuid())
}

#[test]
fn a_stranger_who_connects_to_a_service_stops_no_runtime() {
    const TEST: &str = test_name!(a_stranger_who_connects_to_a_service_stops_no_runtime);
    both_ways(TEST, || {
        run(async {
            let name = unique("bomb");
            let service = Arc::new(service(Channel::builder(), &name));
            let bystander = Bystander::start().await;
            let quiet = bystander.longest();
            let at = name_of(&name);
            let throws = std::thread::spawn(move || {
                become_a_stranger(STRANGER);
                let thrown = (0..3).map(|_| {
                    let (mut bomb, raw) = (Bomb::new(), Raw::at(&at).unwrap());
                    bomb.throw(&raw.0, b"x");
                    (bomb, raw)
                });
                thrown.collect::<Vec<_>>()
            });
            until("they are thrown", || throws.is_finished()).await;
            let thrown = throws.join().unwrap();
            // An honest connection behind the strangers in the accept queue.
            let pf0 = function("pf0");
            let both =
                async { tokio::join!(Channel::builder().connect(&pf0, &name), service.accept()) };
            let (client, server) = in_time("an honest client", both).await;
            client.unwrap().send(b"x").await.unwrap();
            assert_eq!(server.unwrap().recv().await.unwrap(), "x");
            bystander.went_on(quiet).await;
            drop(thrown);
        });
    });
}

#[test]
fn a_service_that_never_accepted_is_dropped_at_once() {
    const TEST: &str = test_name!(a_service_that_never_accepted_is_dropped_at_once);
    both_ways(TEST, || {
        run(async {
            let name = unique("drop");
            let service = service(Channel::builder(), &name);
            let at = name_of(&name);
            let throws = std::thread::spawn(move || {
                become_a_stranger(STRANGER);
                let thrown = (0..2).map(|_| {
                    let (mut bomb, raw) = (Bomb::new(), Raw::at(&at).unwrap());
                    bomb.throw(&raw.0, b"x");
                    // A stranger that disconnects leaves its messages in the socket.
                    bomb
                });
                thrown.collect::<Vec<_>>()
            });
            until("they are thrown", || throws.is_finished()).await;
            let start = Instant::now();
            drop(service);
            let took = start.elapsed();
            eprintln!("dropped in {took:?}");
            assert!(took < LINGER / 2, "{took:?}");
            drop(throws.join().unwrap());
        });
    });
}

#[test]
fn a_client_and_a_service_that_throw_at_each_other_stop_no_runtime() {
    const TEST: &str = test_name!(a_client_and_a_service_that_throw_at_each_other_stop_no_runtime);
    both_ways(TEST, || {
        run(async {
            let bystander = Bystander::start().await;
            let quiet = bystander.longest();
            // A client was accepted: `recv` reads its messages.
            let service = service(Channel::builder(), &unique("client"));
            let mut raw = Raw::of_pf0(service.name());
            raw.greet(service.name(), 100);
            let server = service.accept().await.unwrap();
            let (mut bomb, text) = (Bomb::new(), frame(b"message"));
            let thrown = bomb.throw(&raw.0, &text);
            if !thrown {
                raw.0.write_all(&text).unwrap();
            }
            let received = in_time("a message, or the end", server.recv()).await;
            assert_eq!(received.is_err(), thrown);
            // A hostile service, to which this process connects.
            let name = unique("service");
            let listener = listen_at(&name_of(&name));
            let plays = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 64]).unwrap() > 0);
                stream.write_all(&frame(b"TDCH\x01\x00\x0f\xf0")).unwrap();
                let mut bomb = Bomb::new();
                let text = frame(b"message");
                let thrown = bomb.throw(&stream, &text);
                if !thrown {
                    stream.write_all(&text).unwrap();
                }
                (bomb, stream, thrown)
            });
            let channel = Channel::builder().connect(&function("pf0"), &name).await;
            let channel = channel.unwrap();
            // The sender's own descriptor is closed before this side reads: the last copy is in the
            // message.
            until("it is thrown", || plays.is_finished()).await;
            let there: (Bomb, UnixStream, bool) = plays.join().unwrap();
            let received = in_time("a message, or the end", channel.recv()).await;
            assert_eq!(received.is_err(), there.2);
            // Unread messages are closed with their socket.
            let mut raw = Raw::of_pf0(service.name());
            raw.greet(service.name(), 100);
            let unread = service.accept().await.unwrap();
            let mut left = Bomb::new();
            left.throw(&raw.0, b"x");
            drop((unread, server, channel));
            bystander.went_on(quiet).await;
        });
    });
}

#[test]
fn a_peer_that_rings_with_a_bomb_stops_no_runtime() {
    const TEST: &str = test_name!(a_peer_that_rings_with_a_bomb_stops_no_runtime);
    both_ways(TEST, || {
        for is_host in [true, false] {
            let victim = Victim::new(Mode::EventDriven);
            let hold = victim.meets(is_host);
            run(async {
                let bystander = Bystander::start().await;
                let quiet = bystander.longest();
                let mut bomb = Bomb::new();
                let bell = hold.bell.as_ref().unwrap();
                let thrown = bomb.throw(bell, &[1]);
                for _ in 0..10 {
                    victim.goes_on().await;
                }
                if thrown {
                    // Polling the doorbell reads the bomb.
                    while !is_hung_up(bell) {
                        victim.goes_on().await;
                    }
                }
                bystander.went_on(quiet).await;
                victim.survived().await;
            });
        }
    });
}

/// A host that sends bombs right behind its greeting, before its guest can refuse descriptors.
#[test]
fn a_host_that_throws_early_stops_no_runtime() {
    const TEST: &str = test_name!(a_host_that_throws_early_stops_no_runtime);
    both_ways(TEST, || {
        let victim = Victim::new(Mode::EventDriven);
        let host = Endpoint::hostile(true, 1);
        let listener = listen(&host.name);
        let blob = host.format();
        run(async {
            let bystander = Bystander::start().await;
            let quiet = bystander.longest();
            let plays = std::thread::spawn(move || {
                let mut bombs = [Bomb::new(), Bomb::new()];
                let knocked = host.knocked(&listener);
                // Sent on the queue of the greeting, for which the guest waits.
                let hold = host.welcome(knocked, 1, 0);
                for bomb in &mut bombs {
                    bomb.throw(hold.bell.as_ref().unwrap(), &[1]);
                }
                (bombs, hold)
            });
            // If a bomb arrives before the greeting was read, the guest rejects the greeting.
            if let Err(error) = victim.rdma.connect(&blob).await {
                assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
            }
            let hostile = plays.join().unwrap();
            for _ in 0..10 {
                victim.goes_on().await;
            }
            victim.survived().await;
            bystander.went_on(quiet).await;
            drop(hostile);
        });
    });
}

#[test]
fn an_owner_that_rings_for_its_event_with_a_bomb_stops_no_runtime() {
    const TEST: &str = test_name!(an_owner_that_rings_for_its_event_with_a_bomb_stops_no_runtime);
    both_ways(TEST, || {
        let mut owner = Endpoint::hostile(true, 1);
        // The export is that of a sync event instead of an `Rdma`.
        owner.of = EVENT;
        owner.payload = payload(&[]);
        let blob = owner.format();
        let listener = listen(&owner.name);
        let plays = std::thread::spawn(move || {
            let knocked = owner.knocked(&listener);
            let page = memfd(PAGE, SEALS);
            // The counter is in the page, and the import has the number 1.
            let greeting = owner.greeting_of(&knocked, &[1]);
            send(&knocked.socket, &greeting, &[page.as_raw_fd(); 2]).unwrap();
            (knocked, page)
        });
        let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
        let imported = SyncEvent::from_export(&dpu, &blob).wait().unwrap();
        let (knocked, page) = plays.join().unwrap();
        let workq = WorkQ::builder().mode(Mode::EventDriven).build().unwrap();
        let event = imported.attach(&workq).unwrap();
        run(async {
            let bystander = Bystander::start().await;
            let quiet = bystander.longest();
            let mut waits = Box::pin(event.wait_gt(5));
            poll_pending(waits.as_mut());
            let mut bomb = Bomb::new();
            if bomb.throw(&knocked.socket, &[1]) {
                let taken = async {
                    while !is_hung_up(&knocked.socket) {
                        tokio::task::yield_now().await
                    }
                };
                let both = futures::future::select(Box::pin(taken), waits);
                in_time("the bell is read", both).await;
            }
            bystander.went_on(quiet).await;
        });
        drop(page);
    });
}

/// Descriptors in place of the memory, and beside it, are closed by another thread too: the time
/// limit holds.
#[test]
fn an_exporter_that_answers_with_bombs_keeps_nobody_past_the_limit() {
    const TEST: &str = test_name!(an_exporter_that_answers_with_bombs_keeps_nobody_past_the_limit);
    both_ways(TEST, || {
        for count in [1, 2, 3] {
            let access = Access::DPU_READ_WRITE.bits();
            let blob = Blob::forged(&crate::forged::name(), access, 4096);
            let listener = listen(&blob.name);
            let mut bombs: Vec<Bomb> = (0..count).map(|_| Bomb::new()).collect();
            let sockets: Vec<_> = bombs.iter_mut().map(Bomb::take).collect();
            let plays = std::thread::spawn({
                let blob = blob.clone();
                move || {
                    let socket = accept(&listener);
                    let (request, _) = receive(&socket);
                    let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
                    send(&socket, &blob.grant(&request, 0), &raw).unwrap();
                    // Unless the importer was faster, it has the last copies of the descriptors
                    // from now on.
                    drop(sockets);
                }
            });
            let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
            let start = Instant::now();
            let imported = RemoteMmap::from_export(&dpu, &blob.format()).wait();
            let took = start.elapsed();
            assert_eq!(imported.unwrap_err().kind(), ErrorKind::NotPermitted);
            assert!(took < LINGER / 2, "{took:?}");
            drop(bombs);
            plays.join().unwrap();
        }
    });
}

/// If a descriptor whose closing takes time is followed by a hundred and more, the importer does
/// not receive those at all.
#[test]
fn an_exporter_that_answers_with_a_bomb_and_many_more_uses_up_few_descriptors() {
    const TEST: &str =
        test_name!(an_exporter_that_answers_with_a_bomb_and_many_more_uses_up_few_descriptors);
    both_ways(TEST, || {
        let access = Access::DPU_READ_WRITE.bits();
        let blob = Blob::forged(&crate::forged::name(), access, 4096);
        let listener = listen(&blob.name);
        let null = std::fs::File::open("/dev/null").unwrap();
        let mut bomb = Bomb::new();
        let lit = bomb.take();
        let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
        let before = descriptors();
        let plays = std::thread::spawn({
            let blob = blob.clone();
            move || {
                let socket = accept(&listener);
                let (request, _) = receive(&socket);
                // As many descriptors as a message can carry. The importer expects two; the next
                // one is the bomb.
                let mut raw = [null.as_raw_fd(); 253];
                raw[2] = lit.as_raw_fd();
                send(&socket, &blob.grant(&request, 0), &raw).unwrap();
                // Unless the importer was faster, it has the last copy of the descriptor from now
                // on. If it was faster, this close lingers until the bomb is dropped.
                std::thread::spawn(move || drop(lit));
                (null, listener, socket)
            }
        });
        let imported = RemoteMmap::from_export(&dpu, &blob.format()).wait();
        assert_eq!(imported.unwrap_err().kind(), ErrorKind::NotPermitted);
        let kept = plays.join().unwrap();
        let after = descriptors();
        eprintln!("{before} descriptors before, {after} after");
        assert!(after < before + 20, "{before} before, {after} after");
        drop((bomb, kept));
    });
}
