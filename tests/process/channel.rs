//! Channels between two processes: messages, the death of either side, a service that is restarted,
//! and peers of another user.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::channel::*;
use support::peer::{Peer, footprint, hear, is_as_before, role, say};
use support::{test_name, *};
use tokio_doca::{ErrorKind, channel::Channel};

use crate::stream::descriptors_are_short;

/// The host process: connects, echoes messages until the channel ends, and reports how it ended.
fn echo(function_of: &str) {
    let name = hear().unwrap();
    run(async {
        let device = function(function_of);
        let channel = match Channel::builder().connect(&device, &name).await {
            Ok(channel) => channel,
            Err(error) => return say(&format!("{:?}", error.kind())),
        };
        say("connected");
        loop {
            let message = channel.recv().await;
            let sent = match &message {
                Ok(message) => channel.send(message).await,
                Err(_) => Ok(()),
            };
            if let Err(error) = message.map(drop).and(sent) {
                return say(&format!("{:?}", error.kind()));
            }
        }
    });
}

#[test]
fn a_host_and_its_dpu_talk_in_order_and_the_end_of_either_is_told() {
    const TEST: &str = test_name!(a_host_and_its_dpu_talk_in_order_and_the_end_of_either_is_told);
    if role().is_some() {
        return echo("pf0vf1");
    }
    for kills in [false, true] {
        run(async {
            // Uses a new name each time: a process that another test starts holds the old socket
            // until it calls exec.
            let name = unique("talk");
            let hpf0vf1 = representor("hpf0vf1");
            let service = Channel::builder().listen(&hpf0vf1, &name).unwrap();
            let mut host = Peer::start(TEST, "host");
            host.say(&name);
            let channel = in_time("the host", service.accept()).await.unwrap();
            assert_eq!(host.hear(), "connected");
            assert_eq!(channel.peer().process_id(), Some(host.pid()));
            let sends = async {
                for number in 0..500_usize {
                    let len = (number * 37) % 4081;
                    channel.send(&pattern(number as u8, len)).await.unwrap();
                }
            };
            let reads = async {
                for number in 0..500_usize {
                    let message = in_time("an echo", channel.recv()).await.unwrap();
                    assert_eq!(message, pattern(number as u8, (number * 37) % 4081));
                }
            };
            tokio::join!(sends, reads);
            if kills {
                host.kill();
                let error = in_time("an end", channel.recv()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                let error = in_time("an end", channel.send(b"x")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            } else {
                channel.disconnect().await;
                assert_eq!(host.hear(), "ConnectionReset");
                host.ends();
            }
        });
    }
}

#[test]
fn a_service_that_was_killed_is_told_to_its_clients_and_comes_back_under_its_name() {
    const TEST: &str =
        test_name!(a_service_that_was_killed_is_told_to_its_clients_and_comes_back_under_its_name);
    if role().is_some() {
        let name = hear().unwrap();
        run(async {
            let service = service(Channel::builder(), &name);
            say("listening");
            let mut all = Vec::new();
            loop {
                let channel = service.accept().await.unwrap();
                channel.send(b"welcome").await.unwrap();
                all.push(channel);
            }
        });
        return;
    }
    if !alone(TEST) {
        return;
    }
    let name = unique("killed");
    run(async {
        let pf0 = function("pf0");
        let before = footprint(std::process::id() as i32);
        for _ in 0..3 {
            let mut dpu = Peer::start(TEST, "dpu");
            dpu.say(&name);
            assert_eq!(dpu.hear(), "listening");
            let mut channels = Vec::new();
            for _ in 0..3 {
                let connect = Channel::builder().connect(&pf0, &name);
                let channel = in_time("a connection", connect).await.unwrap();
                let message = in_time("a message", channel.recv()).await.unwrap();
                assert_eq!(message, "welcome");
                channels.push(channel);
            }
            dpu.kill();
            for channel in &channels {
                let error = in_time("an end", channel.recv()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
            let nobody = Channel::builder().connect(&pf0, &name).await.unwrap_err();
            assert_eq!(nobody.kind(), ErrorKind::ConnectionAborted);
        }
        // The pipes of the peers, and the threads that read them, end with the peers.
        is_as_before(std::process::id() as i32, before, "the last channel");
    });
}

/// Tests that need root, since only root can start a process of another user.
mod needs_root {
    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn another_user_reaches_no_service_and_is_none() {
        const TEST: &str = test_name!(another_user_reaches_no_service_and_is_none);
        match role().as_deref() {
            Some("stranger") => {
                // Connects once with the library, and once by hand, with the name of the other
                // user's socket, which is no secret.
                let (name, user) = (hear().unwrap(), hear().unwrap());
                run(async {
                    let pf0 = function("pf0");
                    let error = Channel::builder().connect(&pf0, &name).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
                });
                let vuid = representor("hpf0").info().vuid().to_owned();
                let path = format!("tokio-doca/{user}/{vuid}/{name}");
                let mut raw = Raw::at(&path).unwrap();
                // The service hangs up, perhaps before it has read the greeting.
                let _ = std::io::Write::write_all(&mut raw.0, &hello(&name, 100));
                assert!(raw.is_over());
                let squatted = format!("tokio-doca/{user}/{vuid}/{name} squatted");
                let _squatter = listen_at(&squatted);
                say("turned away");
                hear();
                return;
            }
            Some(other) => panic!("{other}"),
            None => {}
        }
        programs::assert_root();
        let name = unique("user");
        run(async {
            let service = service(Channel::builder(), &name);
            let mut stranger = Peer::start_as_nobody(TEST, "stranger");
            stranger.say(&name);
            stranger.say(&nix::unistd::geteuid().to_string());
            let accepts =
                tokio::spawn(async move { service.accept().await.unwrap().peer().clone() });
            let said = tokio::task::spawn_blocking(move || {
                assert_eq!(stranger.hear(), "turned away");
                stranger
            });
            let mut stranger = said.await.unwrap();
            assert!(!accepts.is_finished());
            // A process of another user that takes the service's name is not accepted as the
            // service.
            let squatted = format!("{name} squatted");
            let pf0 = function("pf0");
            let refused = Channel::builder()
                .connect(&pf0, &squatted)
                .await
                .unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotPermitted, "{refused}");
            stranger.say("end");
            stranger.ends();
            let proper = Channel::builder().connect(&pf0, &name).await.unwrap();
            let us = Some(std::process::id() as i32);
            assert_eq!(proper.peer().process_id(), us);
            assert_eq!(accepts.await.unwrap().process_id(), us);
        });
    }
}

/// A server loop with `service.accept().await?` does not end when descriptors run out.
#[test]
fn a_service_without_descriptors_waits_until_it_has_some() {
    if !alone(test_name!(
        a_service_without_descriptors_waits_until_it_has_some
    )) {
        return;
    }
    run(async {
        let name = unique("short");
        let service = service(Channel::builder(), &name);
        let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // The client waits in the socket's accept queue.
        let mut client = Raw::of_pf0(&name);
        client.greet(&name, 4080);
        descriptors_are_short();
        let soon = Duration::from_millis(250);
        let accepted = tokio::time::timeout(soon, service.accept()).await;
        assert!(accepted.is_err(), "it waits, and is no error: {accepted:?}");
        setrlimit(Resource::RLIMIT_NOFILE, limits.0, limits.1).unwrap();
        let channel = in_time("the client", service.accept()).await.unwrap();
        assert!(channel.is_connected());
    });
}
