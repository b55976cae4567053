//! Hostile importers against an honest exporter: what they send, and what they do not.
//!
//! The exporter runs in its own process; this process is hostile. After each attack the exporter
//! lives, has the same resources as before, completes its jobs, and answers an honest importer
//! within a second.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::forged::victim::Victim;
use crate::forged::*;
use nix::errno::Errno;
use support::peer::{Peer, footprint, hear, hex, role, say, unhex};
use support::test_name;

/// Limits of an exporter: connections that have sent nothing, connections that have asked and may
/// ask again, and connections that asked to stay open.
const SILENT: usize = 64;
const AGAIN: usize = 64;
const KEPT: usize = 256;

#[test]
fn an_importer_that_talks_nonsense_gets_nothing() {
    let test = test_name!(an_importer_that_talks_nonsense_gets_nothing);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let (write, read) = (victim.write.clone(), victim.read.clone());
    let name = write.name.clone();
    let right = write.request([7; 16], 0);
    let flipped = |at: usize| {
        let mut bytes = right.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut no_flag = right.clone();
    no_flag[11] = 2;
    // The exporter does not answer these messages at all.
    for message in [
        &[][..],
        &[0],
        &right[..REQUEST_LEN / 2],
        &right[..REQUEST_LEN - 1],
        &[&right[..], &[0]].concat(),
        &[&right[..], &right].concat(),
        &[7; REQUEST_LEN],
        &[7; 60_000],
        &flipped(0),
        &no_flag,
    ] {
        let socket = connect(&name);
        send(&socket, message, &[]).unwrap();
        let (answer, descriptors) = receive(&socket);
        assert!(answer.is_empty() && descriptors.is_empty(), "{message:?}");
    }
    victim.survived("messages that are none", false);
    let with = |change: &dyn Fn(&mut Blob)| {
        let mut blob = write.clone();
        change(&mut blob);
        blob.request([7; 16], 0)
    };
    let refused = [
        with(&|blob| blob.key[0] ^= 1),
        with(&|blob| blob.key = read.key),
        with(&|blob| blob.slot = read.slot),
        with(&|blob| blob.slot = 1 << 14),
        with(&|blob| blob.slot = u32::MAX),
        with(&|blob| blob.generation += 1),
        with(&|blob| blob.generation = 0),
        // Changes the kind, flag, slot, generation, nonce, instance, payload and proof of a
        // request.
        flipped(10),
        flipped(11),
        flipped(12),
        flipped(16),
        flipped(20),
        flipped(36),
        flipped(52),
        flipped(REQUEST_LEN - 1),
    ];
    for request in &refused {
        let socket = connect(&name);
        send(&socket, request, &[]).unwrap();
        let (answer, descriptors) = receive(&socket);
        assert_eq!(status(&answer).0, UNKNOWN, "{request:?}");
        assert!(descriptors.is_empty());
    }
    victim.survived("requests without the key", false);
    // A recorded request is refused once the export has been revoked, even if another export has
    // its slot.
    victim.peer.say("export anew");
    let anew = Blob::parse(&unhex(&victim.peer.hear()));
    let recorded = anew.request([8; 16], 0);
    assert_eq!(status(&ask(&anew).0), (0, 0));
    victim.peer.say("drop");
    victim.peer.hear();
    for round in 0..2 {
        if round == 1 {
            victim.peer.say("export anew");
            assert_eq!(Blob::parse(&unhex(&victim.peer.hear())).slot, anew.slot);
        }
        let socket = connect(&name);
        send(&socket, &recorded, &[]).unwrap();
        assert_eq!(status(&receive(&socket).0).0, UNKNOWN);
    }
    victim.peer.say("drop");
    victim.peer.hear();
    victim.survived("a recorded request", false);
    victim.peer.ends();
}

#[test]
fn importers_that_are_silent_slow_or_many_stand_in_nobodys_way() {
    let test = test_name!(importers_that_are_silent_slow_or_many_stand_in_nobodys_way);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let (blob, name) = (victim.write.clone(), victim.write.name.clone());
    let request = blob.request([7; 16], 0);
    let open = |victim: &Victim| footprint(victim.peer.pid()).0 - victim.before.0;

    let silent: Vec<OwnedFd> = (0..300).map(|_| connect(&name)).collect();
    victim.honest();
    let held = open(&victim);
    assert!(
        held <= SILENT + 2,
        "{held} descriptors for those that say nothing"
    );
    // The exporter disconnects silent connections after a time.
    for socket in &silent {
        assert!(receive(socket).0.is_empty());
    }
    victim.survived("300 that say nothing", false);
    drop(silent);

    for ask in [false, true] {
        for _ in 0..300 {
            let socket = connect(&name);
            if ask {
                send(&socket, &request, &[]).unwrap();
            }
        }
    }
    victim.survived("300 that close in the middle", false);

    // Each unread answer has two descriptors in flight, whose number is limited per user.
    let asked = |request: &[u8]| {
        let socket = connect(&name);
        send(&socket, request, &[]).unwrap();
        socket
    };
    let deaf: Vec<OwnedFd> = (0..200).map(|_| asked(&request)).collect();
    victim.honest();
    let held = open(&victim);
    assert!(
        held <= AGAIN + 2,
        "{held} descriptors for those that may ask again"
    );
    drop(deaf);
    victim.survived("200 that do not read the answer", false);

    let stay = blob.request([7; 16], KEEP);
    let kept: Vec<OwnedFd> = (0..KEPT + 20).map(|_| asked(&stay)).collect();
    let mut refused = 0;
    for socket in &kept {
        let (answer, descriptors) = receive(socket);
        match status(&answer) {
            (0, 0) => assert_eq!(descriptors.len(), 2),
            (FAILED, libc::EUSERS) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, 20);
    victim.honest();
    let held = open(&victim);
    assert!(held <= KEPT + 2, "{held} descriptors for those that stay");
    // The exporter ignores messages on connections that it keeps open.
    for socket in &kept[..10] {
        send(socket, &stay, &[]).unwrap();
    }
    drop(kept);
    victim.survived("as many as may stay", false);
    victim.peer.ends();
}

#[test]
fn strangers_who_connect_without_end_do_not_keep_importers_out() {
    let test = test_name!(strangers_who_connect_without_end_do_not_keep_importers_out);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let name = victim.write.name.clone();
    let over = AtomicBool::new(false);
    let flood = || {
        let mut held = VecDeque::new();
        while !over.load(Relaxed) {
            held.push_back(try_connect(&name));
            if held.len() > 500 {
                held.pop_front();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(flood);
        }
        let honest = AssertUnwindSafe(|| (0..12).for_each(|_| victim.honest()));
        let result = catch_unwind(honest);
        over.store(true, Relaxed);
        result.unwrap();
    });
    victim.survived("a flood", false);
    victim.peer.ends();
}

#[test]
fn descriptors_that_an_importer_sends_are_not_taken() {
    let test = test_name!(descriptors_that_an_importer_sends_are_not_taken);
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    let (blob, name) = (victim.write.clone(), victim.write.name.clone());
    let file = std::fs::File::open("/dev/null").unwrap();
    for count in [1, 2, 16, 253] {
        for message in [&blob.request([7; 16], 0)[..], b"x"] {
            for itself in [false, true] {
                let socket = connect(&name);
                let raw = if itself {
                    socket.as_raw_fd()
                } else {
                    file.as_raw_fd()
                };
                // From Linux 6.16 on the exporter can refuse these descriptors; before, it closes
                // them when they arrive.
                match send(&socket, message, &vec![raw; count]) {
                    Ok(()) => drop(receive(&socket)),
                    Err(errno) => assert_eq!(errno, Errno::EPERM),
                }
            }
        }
    }
    victim.survived("descriptors for the exporter", false);
    victim.peer.ends();
}

#[test]
fn an_importer_that_dies_at_any_step_leaves_nothing() {
    let test = test_name!(an_importer_that_dies_at_any_step_leaves_nothing);
    if role().as_deref() == Some("hostile") {
        let blob = Blob::parse(&unhex(&hear().unwrap()));
        let step: u32 = hear().unwrap().parse().unwrap();
        let heir = step >= 10;
        let step = step % 10;
        let end = || {
            if heir {
                // The forked child keeps the socket open.
                say(&fork_and_linger().to_string());
            }
            die()
        };
        let socket = connect(&blob.name);
        if step == 0 {
            end();
        }
        let request = blob.request([7; 16], if step.is_multiple_of(2) { 0 } else { KEEP });
        if step == 1 {
            send(&socket, &request[..30], &[]).unwrap();
            end();
        }
        send(&socket, &request, &[]).unwrap();
        if step <= 3 {
            end();
        }
        let (answer, descriptors) = receive(&socket);
        assert_eq!((status(&answer), descriptors.len()), ((0, 0), 2));
        end();
    }
    let Some(mut victim) = Victim::start(test) else {
        return;
    };
    for step in (0..=5).chain(10..=15) {
        let mut hostile = Peer::start(test, "hostile");
        hostile.say(&hex(&victim.blobs[0]));
        hostile.say(&step.to_string());
        let heir: Option<i32> = (step >= 10).then(|| hostile.hear().parse().unwrap());
        hostile.dies();
        victim.honest();
        if let Some(heir) = heir {
            let heir = nix::unistd::Pid::from_raw(heir);
            nix::sys::signal::kill(heir, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        victim.survived(&format!("a death at step {step}"), false);
    }
    victim.peer.ends();
}
