//! Tests that neither of two processes accepts a blob from before a reset of its `Rdma`, whichever
//! of them is the host.

use std::time::Instant;

use support::peer::{Peer, hear, hex, role, say, unhex};
use support::rdma::{Setup, Side};
use support::{test_name, *};
use tokio_doca::{ErrorKind, Mode, rdma::RdmaState};

fn side() -> Side {
    Side::new(Setup::new(false, Mode::EventDriven))
}

/// Connects, and returns how that ended, as text.
fn connected(side: &Side, blob: &[u8]) -> String {
    let connect = side.rdma.connect(blob).timeout(LIMIT);
    match connect.wait() {
        Ok(()) => "connected".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// The other process, which obeys commands.
fn obey() {
    let side = side();
    while let Some(line) = hear() {
        match line.split_once(' ') {
            None if line == "export" => say(&hex(&side.rdma.export().unwrap())),
            None if line == "reset" => {
                side.rdma.reset().unwrap();
                say("reset");
            }
            Some(("connect", blob)) => say(&connected(&side, &unhex(blob))),
            _ => panic!("{line}"),
        }
    }
}

fn ask(peer: &mut Peer, line: &str) -> String {
    peer.say(line);
    peer.hear()
}

#[test]
fn neither_process_accepts_a_blob_from_before_a_reset() {
    if role().is_some() {
        return obey();
    }
    let mut peer = Peer::start(
        test_name!(neither_process_accepts_a_blob_from_before_a_reset),
        "peer",
    );
    let aborted = format!("{:?}", ErrorKind::ConnectionAborted);
    let side = side();
    for round in 0..3 {
        let (theirs, ours) = (ask(&mut peer, "export"), side.rdma.export().unwrap());
        assert_eq!(ask(&mut peer, "reset"), "reset");
        side.rdma.reset().unwrap();
        // Each of the two processes is the host for one of these.
        let begun = Instant::now();
        assert_eq!(connected(&side, &unhex(&theirs)), aborted, "here {round}");
        assert_eq!(side.rdma.state(), RdmaState::Init);
        let connect = format!("connect {}", hex(&ours));
        assert_eq!(ask(&mut peer, &connect), aborted, "there {round}");
        assert!(begun.elapsed() < LIMIT, "neither waits for the time limit");
        // With current blobs they connect, in both orders.
        let theirs = unhex(&ask(&mut peer, "export"));
        let connect = format!("connect {}", hex(&side.rdma.export().unwrap()));
        if round % 2 == 0 {
            assert_eq!(connected(&side, &theirs), "connected");
            assert_eq!(ask(&mut peer, &connect), "connected");
        } else {
            assert_eq!(ask(&mut peer, &connect), "connected");
            assert_eq!(connected(&side, &theirs), "connected");
        }
        assert_eq!(ask(&mut peer, "reset"), "reset");
        side.rdma.reset().unwrap();
    }
}
