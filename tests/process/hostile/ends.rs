//! Peers that end in unusual ways: by execve(2), or leaving a child that holds their descriptors;
//! and a former importer of a sync event that still has its page.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::forged::rdma::RECEIVES;
use crate::forged::{self, event};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::events::{Setup, blob, give, import};
use support::peer::{Peer, hear, hex, role, say, unhex};
use support::{test_name, *};
use tokio_doca::soft::Soft;
use tokio_doca::{
    Mode, Rdma, WorkQ,
    error::{JobError, Reason},
    rdma::RdmaState,
};

/// Replaces this process by another program, which inherits all descriptors without close-on-exec,
/// and ends when its input does.
pub(super) fn replace() -> ! {
    let error = Command::new("cat").exec();
    panic!("execve: {error}");
}

fn reason<T>(result: Result<T, JobError>) -> Reason {
    result.err().expect("an error").reason()
}

fn context(workq: &WorkQ) -> Rdma {
    let device = Soft::builder().build().open("pf0").unwrap();
    let builder = Rdma::builder(&device).recv_queue_size(RECEIVES);
    builder.attach(workq).unwrap()
}

#[test]
fn a_peer_that_replaces_its_program_has_gone() {
    const NAME: &str = test_name!(a_peer_that_replaces_its_program_has_gone);
    if role().is_some() {
        let workq = WorkQ::builder().build().unwrap();
        let rdma = context(&workq);
        say(&hex(&rdma.export().unwrap()));
        rdma.connect(&unhex(&hear().unwrap())).wait().unwrap();
        say("connected");
        hear();
        replace();
    }
    for mode in modes() {
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let [rdma, one, other] = [(); 3].map(|()| context(&workq));
        one.connect(&other.export().unwrap()).wait().unwrap();
        other.connect(&one.export().unwrap()).wait().unwrap();
        // Either side may become the host.
        for _ in 0..4 {
            let mut peer = Peer::start(NAME, "peer");
            let theirs = unhex(&peer.hear());
            peer.say(&hex(&rdma.export().unwrap()));
            rdma.connect(&theirs).wait().unwrap();
            assert_eq!(peer.hear(), "connected");
            run(in_time("the end of the peer", async {
                let mut received = Box::pin(rdma.recv(()));
                poll_pending(received.as_mut());
                peer.say("exec");
                let error = received.await.unwrap_err();
                assert_eq!(error.cause(), Some(Reason::PeerGone), "{error}");
                assert!(matches!(rdma.state(), RdmaState::Error(_)));
                // The other connections on the WorkQ continue.
                let (received, sent) = tokio::join!(other.recv(()), one.send(()));
                assert_eq!((received.unwrap().len, sent), (0, Ok(0)));
            }));
            rdma.reset().unwrap();
            peer.ends();
        }
    }
}

#[test]
fn an_importer_that_replaces_its_program_has_gone_and_another_may_come() {
    const NAME: &str =
        test_name!(an_importer_that_replaces_its_program_has_gone_and_another_may_come);
    if role().is_some() {
        let event = import(&Setup::new(false, Mode::EventDriven).dpu(), &blob());
        let event = event.start().unwrap();
        event.add(1).unwrap();
        say("added");
        hear();
        replace();
    }
    for setup in Setup::all() {
        let owner = setup.owner();
        let mut peer = Peer::start(NAME, "importer");
        give(&mut peer, &owner);
        assert_eq!(peer.hear(), "added");
        run(in_time("the end of the importer", async {
            let mut wait = Box::pin(owner.wait_gt(7));
            poll_pending(wait.as_mut());
            peer.say("exec");
            assert_eq!(reason(wait.await), Reason::EventPeerGone);
        }));
        let next = setup.importer(&owner.export_dpu(owner.device()).unwrap());
        run(in_time("the next", async {
            next.set(8).await.unwrap();
            assert_eq!(owner.wait_gt(7).await, Ok(8));
        }));
        peer.ends();
    }
}

#[test]
fn an_owner_that_replaces_its_program_has_gone() {
    const NAME: &str = test_name!(an_owner_that_replaces_its_program_has_gone);
    if role().is_some() {
        let owner = Setup::new(false, Mode::EventDriven).owner();
        say(&hex(&owner.export_dpu(owner.device()).unwrap()));
        hear();
        replace();
    }
    for setup in Setup::all() {
        let mut peer = Peer::start(NAME, "owner");
        let event = setup.importer(&unhex(&peer.hear()));
        run(in_time("the end of the owner", async {
            let mut wait = Box::pin(event.wait_gt(7));
            poll_pending(wait.as_mut());
            peer.say("exec");
            assert_eq!(reason(wait.await), Reason::EventPeerGone);
            assert_eq!(reason(event.get().await), Reason::EventPeerGone);
        }));
        peer.ends();
    }
}

#[test]
fn an_importer_whose_child_holds_all_it_had_makes_room_for_the_next() {
    const NAME: &str = test_name!(an_importer_whose_child_holds_all_it_had_makes_room_for_the_next);
    if role().is_some() {
        let setup = Setup::new(false, Mode::EventDriven);
        let _event = import(&setup.dpu(), &blob()).start().unwrap();
        say(&forged::fork_and_linger().to_string());
        hear();
        forged::die();
    }
    let setup = Setup::new(false, Mode::EventDriven);
    let owner = setup.owner();
    let mut peer = Peer::start(NAME, "importer");
    give(&mut peer, &owner);
    let heir = Pid::from_raw(peer.hear().parse().unwrap());
    let blob = owner.export_dpu(owner.device()).unwrap();
    peer.kill();
    // Imports at once: the exporter asks the kernel whether the former importer has ended.
    let next = setup.importer(&blob);
    run(in_time("the next", async {
        next.set(8).await.unwrap();
        assert_eq!(owner.wait_gt(7).await, Ok(8));
    }));
    kill(heir, Signal::SIGKILL).unwrap();
}

#[test]
fn a_former_importer_closes_nothing_of_its_successors() {
    const NAME: &str = test_name!(a_former_importer_closes_nothing_of_its_successors);
    if role().is_some() {
        let event = Setup::new(false, Mode::EventDriven).importer(&blob());
        say("imported");
        run(in_time("the owner", async {
            assert_eq!(event.wait_gt(0).await, Ok(1));
            event.set(2).await.unwrap();
        }));
        hear();
        return;
    }
    let owner = Setup::new(false, Mode::EventDriven).owner();
    let socket = event::knock(&owner.export_dpu(owner.device()).unwrap());
    let [page, _] = event::welcomed(&socket);
    drop(socket);
    let mut peer = Peer::start(NAME, "importer");
    give(&mut peer, &owner);
    assert_eq!(peer.hear(), "imported");
    // Writes the word `closed` of both sides.
    let write = |word: u64| {
        for at in [384, 512] {
            nix::sys::uio::pwrite(&page, &word.to_le_bytes(), at).unwrap();
        }
    };
    run(in_time("both sides", async {
        for word in [1, u64::MAX, 0xEE] {
            write(word);
        }
        owner.set(1).await.unwrap();
        assert_eq!(owner.wait_gt(1).await, Ok(2));
        // The importer's end is noticed, although the page says that it has left already.
        let mut wait = Box::pin(owner.wait_gt(7));
        poll_pending(wait.as_mut());
        peer.kill();
        assert_eq!(reason(wait.await), Reason::EventPeerGone);
    }));
}
