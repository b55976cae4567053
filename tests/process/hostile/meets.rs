//! Hostile endpoints that connect to an honest one: wrong answers, wrong requests, and numbers that
//! are in use.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::channel;

use crate::forged::endpoint::*;
use crate::forged::rdma::*;
use crate::forged::{PAYLOAD, UNEXPECTED, UNKNOWN};
use nix::fcntl::SealFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::Pid;
use support::peer::{Peer, hear, hex, role, say, unhex};
use support::{test_name, *};
use tokio_doca::{ErrorKind, Mode, error::Reason, mem::Access, rdma::RdmaState};

#[test]
fn a_host_that_answers_wrongly_is_refused() {
    type Play = fn(&Endpoint, Knocked) -> Option<OwnedFd>;
    fn answer(
        host: &Endpoint,
        knocked: Knocked,
        link: u64,
        index: u64,
        sizes: [usize; 2],
        seals: SealFlag,
    ) -> Option<OwnedFd> {
        let memfds = sizes.map(|size| memfd(size, seals));
        let raw = memfds.each_ref().map(|memfd| memfd.as_raw_fd());
        let greeting = host.greeting(&knocked, link, index);
        crate::forged::send(&knocked.socket, &greeting, &raw).unwrap();
        Some(knocked.socket)
    }
    fn len(knocked: &Knocked) -> usize {
        channel_len([RECEIVES, knocked.receives])
    }
    let plays: [(&str, Play); 10] = [
        ("no link", |host, it| {
            let len = len(&it);
            answer(host, it, 0, 0, [PAGE, len], SEALS)
        }),
        ("an index beyond all", |host, it| {
            let len = len(&it);
            answer(host, it, 1, 4096, [PAGE, len], SEALS)
        }),
        ("a huge index", |host, it| {
            let len = len(&it);
            answer(host, it, 1, u64::MAX, [PAGE, len], SEALS)
        }),
        ("a short page", |host, it| {
            let len = len(&it);
            answer(host, it, 1, 0, [PAGE / 2, len], SEALS)
        }),
        ("a short channel", |host, it| {
            let len = len(&it) - 4096;
            answer(host, it, 1, 0, [PAGE, len], SEALS)
        }),
        ("swapped", |host, it| {
            let len = len(&it);
            answer(host, it, 1, 0, [len, PAGE], SEALS)
        }),
        ("no seals", |host, it| {
            let len = len(&it);
            answer(host, it, 1, 0, [PAGE, len], SealFlag::empty())
        }),
        ("nothing", |_, it| {
            drop(it);
            None
        }),
        ("garbage", |_, it| {
            crate::forged::send(&it.socket, &[7; 164], &[]).unwrap();
            Some(it.socket)
        }),
        ("silence", |_, it| Some(it.socket)),
    ];
    let victim = Victim::new(Mode::EventDriven);
    for (play, does) in plays {
        eprintln!("{play}");
        let host = Endpoint::hostile(true, 1);
        let listener = crate::forged::listen(&host.name);
        let (over, is_over) = channel::<()>();
        let hostile = std::thread::spawn({
            let host = host.clone();
            move || {
                let kept = does(&host, host.knocked(&listener));
                // Waits until the victim has given up.
                let _ = is_over.recv();
                drop(kept);
            }
        });
        // Without an answer the victim waits until its time limit.
        let limit = match play {
            "nothing" | "silence" => 5 * PATIENCE,
            _ => LIMIT,
        };
        let connecting = victim.rdma.connect(&host.format()).timeout(limit);
        let error = connecting.wait().expect_err(play);
        let is_late = error.kind() == ErrorKind::TimedOut;
        assert_eq!(is_late, limit < LIMIT, "{play}: {error}");
        assert!(error.to_string().len() > 20, "{play}: {error}");
        drop(over);
        hostile.join().unwrap();
        assert_eq!(victim.rdma.state(), RdmaState::Init, "{play}");
        run(victim.survived());
    }
    // Nothing of the hostile host is left.
    let hold = victim.meets(true);
    hold.post(0, 48);
    run(async { assert_eq!(victim.send(48).await, Ok(48)) });
}

#[test]
fn a_guest_that_asks_wrongly_is_refused() {
    let test = test_name!(a_guest_that_asks_wrongly_is_refused);
    if !alone(test) {
        return;
    }
    let victim = Victim::new(Mode::EventDriven);
    let host = victim.blob();
    let mut guest = Endpoint::hostile(false, 1);
    guest.slot = 2;
    let right = guest.question(RECEIVES, 0);
    let with = |at: usize, word: u64| {
        let mut question = right.clone();
        question[at..at + 8].copy_from_slice(&word.to_le_bytes());
        question
    };
    let dpu = u64::from(Access::DPU_READ_ONLY.bits());
    let wrong = [
        ("no queue", with(0, 0)),
        ("no receives", with(8, 0)),
        ("3 receives", with(8, 3)),
        ("too many receives", with(8, 1 << 15)),
        ("no permission that there is", with(8, 0xffff << 32 | 4)),
        ("a permission of the DPU's", with(8, dpu << 32 | 4)),
        ("zeros", vec![0; PAYLOAD]),
        ("ones", vec![0xff; PAYLOAD]),
    ];
    for (play, question) in &wrong {
        let refused = guest.visit(&host, question).err();
        assert_eq!(refused, Some(UNEXPECTED), "{play}");
    }
    // A guest visits again and again, each time as another endpoint: only one visitor is kept.
    let once = guest.visit(&host, &right).unwrap();
    let (before, mapped) = (descriptors(), mappings());
    for link in 0..200 {
        let again = guest
            .visit(&host, &guest.question(RECEIVES, link % 3))
            .unwrap();
        // The earlier visitor is notified that it was replaced.
        drop(again);
    }
    block_until("one visitor is kept", || {
        descriptors() <= before + 1 && mappings() <= mapped + 1
    });
    assert_eq!(once.get(once.peers(0)), 2);
    // Once the victim has connected to another endpoint, it refuses strangers.
    let hold = victim.meets(false);
    assert_eq!(guest.visit(&host, &right).err(), Some(UNEXPECTED));
    hold.post(0, 48);
    run(async {
        assert_eq!(victim.send(48).await, Ok(48));
        victim.survived().await;
    });
    let gone = guest.visit(&host, &right).err();
    assert_eq!(gone, Some(UNKNOWN), "an old blob");
}

/// Two hosts give their links the same number: the victim reads the doorbells of both.
#[test]
fn a_bell_is_read_whatever_number_its_host_gave_it() {
    let victim = Victim::new(Mode::EventDriven);
    let _first = victim.meets(true);
    let rdma = victim.another();
    let second = welcomed(&rdma, &Endpoint::hostile(true, 2), 1, 0);
    run(async {
        for _ in 0..1000 {
            // A waiting task has armed the doorbell.
            until("there is room in the bell", || second.ring()).await;
            victim.goes_on().await;
        }
        victim.survived().await;
    });
}

/// A host closes a channel, and reuses its number for another before the first channel's `Rdma` has
/// noticed: that `Rdma` still learns of its end.
#[test]
fn who_loses_the_number_of_its_channel_looks_at_it() {
    for mode in modes() {
        let victim = Victim::new(mode);
        let host = Endpoint::hostile(true, 1);
        let first = welcomed(&victim.rdma, &host, 1, 5);
        run(async {
            let received = victim.rdma.recv(());
            let mut received = std::pin::pin!(received);
            poll_pending(received.as_mut());
            victim.goes_on().await;
            first.put(first.own(0), 2);
            let rdma = victim.another();
            // The new channel is on the first one's link. A child that another test is starting may
            // have a copy of the first listener until execve, so this one has another name.
            let mut host = host.clone();
            host.name = crate::forged::name();
            let listener = crate::forged::listen(&host.name);
            let hold = std::thread::spawn({
                let host = host.clone();
                move || host.welcome(host.knocked(&listener), 1, 5)
            });
            rdma.connect(&host.format()).await.unwrap();
            let error = in_time("the end of a peer", received).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Flushed, "{error}");
            assert_eq!(error.cause(), Some(Reason::PeerClosed));
            drop(hold.join().unwrap());
            victim.survived().await;
        });
    }
}

/// The `Rdma` is dropped or reset while its host does not answer; then the host answers.
#[test]
fn who_is_dropped_while_it_connects_leaves() {
    for resets in [false, true] {
        let victim = Victim::new(Mode::EventDriven);
        let rdma = victim.another();
        let host = Endpoint::hostile(true, 1);
        let listener = crate::forged::listen(&host.name);
        run(async {
            let mut connecting = Box::pin(rdma.connect(&host.format()));
            poll_pending(connecting.as_mut());
            let knocked = host.knocked(&listener);
            match resets {
                true => {
                    rdma.reset().unwrap();
                    let hold = host.welcome(knocked, 1, 0);
                    let error = in_time("a connection", connecting).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BadState, "{error}");
                    assert_eq!(rdma.state(), RdmaState::Init);
                    assert_eq!(hold.get(hold.peers(0)), 2);
                }
                false => {
                    drop((connecting, rdma));
                    let hold = host.welcome(knocked, 1, 0);
                    until("it leaves", || hold.get(hold.peers(0)) == 2).await;
                }
            }
            victim.survived().await;
        });
    }
}

/// A guest sends its request and then gives up, as after a time limit, while its host is stopped.
#[test]
fn a_guest_that_gives_up_before_its_answer_may_come_again() {
    const TEST: &str = test_name!(a_guest_that_gives_up_before_its_answer_may_come_again);
    if role().is_some() {
        let victim = Victim::new(Mode::EventDriven);
        say(&hex(&victim.rdma.export().unwrap()));
        let guest = unhex(&hear().unwrap());
        victim.rdma.connect(&guest).wait().unwrap();
        say("connected");
        hear();
        return;
    }
    let guest = Endpoint::hostile(false, 1);
    let there = crate::forged::listen(&guest.name);
    let mut peer = Peer::start(TEST, "host");
    let host = Endpoint::parse(&unhex(&peer.hear()));
    std::thread::scope(|scope| {
        scope.spawn(|| guest.refuse(&guest.knocked(&there), UNEXPECTED));
        peer.say(&hex(&guest.format()));
        assert_eq!(peer.hear(), "connected");
    });
    let pid = Pid::from_raw(peer.pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    block_until("all of it has stopped", || peer.is_stopped());
    let question = guest.question(RECEIVES, 0);
    let knocked = guest.knock(&host, &question);
    shutdown(knocked.as_raw_fd(), Shutdown::Both).unwrap();
    kill(pid, Signal::SIGCONT).unwrap();
    let again = guest.visit(&host, &question);
    assert_eq!(again.err(), None, "it comes again");
    peer.ends();
}
