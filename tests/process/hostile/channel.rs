//! Channel peers that break the protocol: they send nonsense or too much, send nothing, or stop.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::time::Duration;

use support::channel::*;
use support::peer::{Peer, hear, role, say};
use support::{test_name, *};
use tokio_doca::{
    ErrorKind,
    channel::{Channel, Service},
};

/// Checks that the service accepts an honest client and exchanges messages with it.
async fn works(service: &Service) {
    let (pf0, builder) = (function("pf0"), Channel::builder());
    let connect = builder.connect(&pf0, service.name());
    let talk = async { tokio::join!(connect, service.accept()) };
    let (client, server) = in_time("a proper client", talk).await;
    let (client, server) = (client.unwrap(), server.unwrap());
    client.send(b"proper").await.unwrap();
    assert_eq!(in_time("a message", server.recv()).await.unwrap(), "proper");
}

#[test]
fn greetings_that_are_none_let_nobody_in() {
    run(async {
        let name = unique("greetings");
        let service = service(Channel::builder(), &name);
        let mut version = hello(&name, 100);
        version[8] = 7;
        for (what, says, answer) in [
            ("nothing", vec![], None),
            ("a giant frame", vec![0xff; 4], None),
            ("a frame that is too long", frame(&[1; 100]), None),
            ("half a frame", hello(&name, 100)[..9].to_vec(), None),
            ("junk", frame(b"GET / HTTP/1.1"), Some(4)),
            ("no bytes", frame(b""), Some(4)),
            ("no size", hello(&name, 0), Some(4)),
            ("no name", hello("", 100), Some(4)),
            ("another name", hello("another", 100), Some(1)),
            ("another version", version, Some(3)),
        ] {
            let mut raw = Raw::of_pf0(&name);
            raw.0.write_all(&says).unwrap();
            raw.0.shutdown(std::net::Shutdown::Write).unwrap();
            works(&service).await;
            if let Some(status) = answer {
                assert_eq!(raw.answer(), status, "{what}");
            }
            assert!(raw.is_over(), "{what}");
        }
        assert!(service.peers().is_empty());
    });
}

#[test]
fn a_frame_longer_than_agreed_or_torn_ends_its_connection_and_what_came_before_is_received() {
    run(async {
        let name = unique("frames");
        let service = service(Channel::builder(), &name);
        for (bad, says) in [
            (frame(&[1; 101]), "longer"),
            (0xffff_ffff_u32.to_be_bytes().to_vec(), "longer"),
            (b"\0\0\0\x05ab".to_vec(), "within a message"),
            (b"\0\0".to_vec(), "within a message"),
        ] {
            let mut raw = Raw::of_pf0(&name);
            raw.greet(&name, 100);
            let server = service.accept().await.unwrap();
            assert_eq!((raw.answer(), server.max_message_size()), (0, 100));
            raw.0.write_all(&frame(b"good")).unwrap();
            raw.0.write_all(&bad).unwrap();
            raw.0.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(in_time("a message", server.recv()).await.unwrap(), "good");
            for _ in 0..2 {
                let error = in_time("an end", server.recv()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                assert!(error.to_string().contains(says), "{error}");
            }
            let error = server.send(b"x").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(raw.is_over());
            works(&service).await;
        }
    });
}

#[test]
fn a_service_that_answers_nonsense_or_ends_is_an_error_of_connect() {
    run(async {
        let name = unique("answers");
        let vuid = representor("hpf0").info().vuid().to_owned();
        let user = nix::unistd::geteuid();
        let listener = listen_at(&format!("tokio-doca/{user}/{vuid}/{name}"));
        for says in [
            vec![],
            b"hello".to_vec(),
            vec![0xff; 64],
            frame(b"TDCH\x01\x09\x10\x00"),
            frame(b"TDCH\x01\x00\x00\x00"),
            frame(b"TDCH\x01\x00\x10"),
        ] {
            let answers = listener.try_clone().unwrap();
            let answers = std::thread::spawn(move || {
                let (mut stream, _) = answers.accept().unwrap();
                assert!(stream.read(&mut [0; 64]).unwrap() > 11);
                stream.write_all(&says).unwrap();
            });
            let pf0 = function("pf0");
            let connect = Channel::builder().connect(&pf0, &name);
            let error = in_time("a refusal", connect).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            answers.join().unwrap();
        }
    });
}

#[test]
fn strangers_who_say_nothing_stand_in_nobodys_way() {
    if !alone(test_name!(strangers_who_say_nothing_stand_in_nobodys_way)) {
        return;
    }
    run(async {
        let name = unique("silent");
        let service = service(Channel::builder(), &name);
        let before = descriptors();
        let mut silent: Vec<Raw> = (0..300).map(|_| Raw::of_pf0(&name)).collect();
        works(&service).await;
        // 64 silent clients have a place, and the oldest ones have lost theirs.
        until("the others are turned away", || {
            let mut accept = pin!(service.accept());
            assert!(poll(accept.as_mut()).is_pending());
            descriptors() <= before + 300 + 70
        })
        .await;
        assert!(silent[0].is_over());
        silent.last_mut().unwrap().greet(&name, 100);
        let server = in_time("the last", service.accept()).await.unwrap();
        assert_eq!(server.max_message_size(), 100);
        drop(silent);
        works(&service).await;
        until("nothing is left of them", || {
            let mut accept = pin!(service.accept());
            assert!(poll(accept.as_mut()).is_pending());
            descriptors() <= before + 4
        })
        .await;
    });
}

/// The client loses the processor between its connect and its greeting.
#[test]
fn a_client_that_greets_late_keeps_its_place_when_many_come() {
    run(async {
        // The machine may be busy for longer than a client may be silent.
        for _ in 0..100 {
            let name = unique("crowd");
            let service = service(Channel::builder(), &name);
            let mut client = Raw::of_pf0(&name);
            client.0.set_nonblocking(true).unwrap();
            let _silent: Vec<Raw> = (1..200).map(|_| Raw::of_pf0(&name)).collect();
            let mut accept = pin!(service.accept());
            for _ in 0..5 {
                assert!(poll(accept.as_mut()).is_pending());
                // Lets the runtime notice the new connections.
                tokio::task::yield_now().await;
            }
            if !client.is_over() {
                client.greet(&name, 100);
                tokio::task::yield_now().await;
                let server = in_time("the client", accept).await.unwrap();
                assert_eq!(server.max_message_size(), 100);
                return;
            }
        }
        panic!("each client has lost its place");
    });
}

#[test]
fn strangers_at_a_tcp_port_stand_in_nobodys_way_either() {
    run(async {
        let (pf0, name) = (function("pf0"), unique("strangers"));
        let addr: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let service = Channel::builder().listen_tcp(&pf0, addr, &name).await;
        let service = service.unwrap();
        let addr = service.local_addr().unwrap();
        let mut strangers = Vec::new();
        for number in 0..100 {
            let mut stream = TcpStream::connect(addr).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            }
            strangers.push(stream);
        }
        let connect = Channel::builder().connect_tcp(&pf0, addr, &name);
        let talk = async { tokio::join!(connect, service.accept()) };
        let (client, server) = in_time("a proper client", talk).await;
        client.unwrap().send(b"proper").await.unwrap();
        assert_eq!(server.unwrap().recv().await.unwrap(), "proper");
    });
}

/// Returns the bytes of memory that this process has resident.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() << 10
}

#[test]
fn floods_fill_the_flooders_sockets_and_no_memory_of_ours() {
    const TEST: &str = test_name!(floods_fill_the_flooders_sockets_and_no_memory_of_ours);
    if role().is_some() {
        // The flooder sends as much as it can on many connections, and never reads.
        let name = hear().unwrap();
        let mut floods: Vec<Raw> = (0..20).map(|_| Raw::of_pf0(&name)).collect();
        for flood in &mut floods {
            flood.greet(&name, 4080);
            flood.0.set_nonblocking(true).unwrap();
        }
        let bytes = frame(&[7; 4080]).repeat(64);
        let mut full = 0;
        while full < floods.len() {
            full = floods
                .iter_mut()
                .filter_map(|flood| flood.0.write(&bytes).err())
                .count();
        }
        say("full");
        hear();
        return;
    }
    if !alone(TEST) {
        return;
    }
    let name = unique("flood");
    let mut flooder = Peer::start(TEST, "flooder");
    run(async {
        let service = service(Channel::builder(), &name);
        works(&service).await;
        let before = resident();
        flooder.say(&name);
        let mut flooded = Vec::new();
        for _ in 0..20 {
            flooded.push(in_time("a client", service.accept()).await.unwrap());
        }
        assert_eq!(flooder.hear(), "full");
        for channel in &flooded {
            // The flooders do not read, so the channel's sends fill up too.
            while channel.try_send(&[1; 4080]).is_ok() {}
            assert_eq!(channel.stats().sends_in_flight, 10);
            let first = in_time("a message", channel.recv()).await.unwrap();
            assert_eq!(first, [7; 4080][..]);
        }
        works(&service).await;
        // The number of messages that a channel reads ahead is limited as well.
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 << 20, "{grown} bytes");
        // Sends that wait fail once the flooder has ended.
        let mut sends: Vec<_> = flooded
            .iter()
            .map(|channel| Box::pin(channel.send(b"waits")))
            .collect();
        for send in &mut sends {
            poll_pending(send.as_mut());
        }
        flooder.kill();
        for send in sends {
            let error = in_time("an end", send).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        works(&service).await;
    });
}

#[test]
fn a_client_that_is_stopped_holds_up_itself_alone() {
    const TEST: &str = test_name!(a_client_that_is_stopped_holds_up_itself_alone);
    if role().is_some() {
        let name = hear().unwrap();
        run(async {
            let pf0 = function("pf0");
            let channel = Channel::builder().connect(&pf0, &name).await.unwrap();
            say("connected");
            let mut got = 0;
            while let Ok(message) = channel.recv().await {
                assert_eq!(message, pattern(got as u8, 4080));
                got += 1;
            }
            say(&got.to_string());
        });
        return;
    }
    use nix::sys::signal::{Signal, kill};
    run(async {
        let name = unique("stopped");
        let service = service(Channel::builder(), &name);
        let mut client = Peer::start(TEST, "client");
        client.say(&name);
        let server = service.accept().await.unwrap();
        assert_eq!(client.hear(), "connected");
        let pid = nix::unistd::Pid::from_raw(client.pid());
        kill(pid, Signal::SIGSTOP).unwrap();
        until("all of it has stopped", || client.is_stopped()).await;
        let mut sent = 0;
        while server.try_send(&pattern(sent as u8, 4080)).is_ok() {
            sent += 1;
        }
        let limit = Duration::from_millis(20);
        let waits = tokio::time::timeout(limit, server.send(b"never")).await;
        assert!(waits.is_err(), "{waits:?}");
        works(&service).await;
        kill(pid, Signal::SIGCONT).unwrap();
        in_time("the rest is written", server.disconnect()).await;
        assert_eq!(client.hear(), sent.to_string());
        client.ends();
    });
}
