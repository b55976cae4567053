//! What becomes of other receives, and of memory, once a receive was dropped or forgotten.

use support::rdma::{Setup, Side, connect, failed};
use support::*;
use tokio_doca::{Buf, ErrorKind, error::Reason, rdma::RdmaState};

fn pair(setup: Setup) -> (Side, Side) {
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    (one, other)
}

fn is_in_use(buf: &Buf) -> bool {
    match buf.reset_data_len() {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InUse);
            true
        }
    }
}

/// Drops a receive into `dropped`, and starts another one into `adopter`, which adopts the dropped
/// one.
fn adopted<'a>(
    side: &'a Side,
    dropped: &'a Buf,
    adopter: &'a Buf,
) -> std::pin::Pin<Box<tokio_doca::rdma::RdmaRecv<&'a tokio_doca::Rdma, &'a Buf>>> {
    poll_pending(Box::pin(side.rdma.recv(dropped)).as_mut());
    let mut recv = Box::pin(side.rdma.recv(adopter));
    poll_pending(recv.as_mut());
    assert!(is_in_use(dropped) && !is_in_use(adopter));
    recv
}

#[test]
fn a_reset_frees_the_memory_of_a_dropped_receive_whose_adopter_was_forgotten() {
    for setup in Setup::all() {
        for message in [false, true] {
            run(async {
                let (one, other) = pair(setup);
                let (dropped, adopter) = (one.empty(), one.empty());
                std::mem::forget(adopted(&one, &dropped, &adopter));
                if message {
                    other.send(b"lost").await.unwrap();
                    assert_eq!(one.rdma.state(), RdmaState::Connected);
                }
                assert!(is_in_use(&dropped));
                one.rdma.reset().unwrap();
                assert!(!is_in_use(&dropped), "{setup:?} {message}");
            });
        }
    }
}

#[test]
fn an_adopter_that_was_not_polled_since_its_message_came_ends_with_a_reset() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup);
            let (dropped, adopter) = (one.empty(), one.empty());
            let recv = adopted(&one, &dropped, &adopter);
            other.send(b"lost").await.unwrap();
            assert_eq!(one.rdma.state(), RdmaState::Connected);
            one.rdma.reset().unwrap();
            let ended = in_time("the adopter", recv).await;
            assert_eq!(failed(ended), (Reason::Flushed, Some(Reason::Reset)));
            assert!(!is_in_use(&dropped) && !is_in_use(&adopter));
            assert_eq!(adopter.data_len(), 0);
            // All entries for receives are free again.
            other.rdma.reset().unwrap();
            connect(&one.rdma, &other.rdma);
            let all: Vec<_> = (0..16)
                .map(|_| one.rdma.recv(()).start().expect("a place"))
                .collect();
            assert!(one.rdma.recv(()).start().is_err());
            drop(all);
        });
    }
}

#[test]
fn receives_that_are_dropped_newest_first_are_adopted_oldest_first() {
    run(async {
        let setup = Setup {
            receives: 1024,
            ..Setup::new(false, tokio_doca::Mode::EventDriven)
        };
        let (one, other) = pair(setup);
        let mut all: Vec<_> = (0..1024)
            .map(|_| one.rdma.recv(()).start().unwrap())
            .collect();
        while all.pop().is_some() {}
        for number in 0..1024_u32 {
            in_time("a message", other.rdma.send_imm((), number))
                .await
                .unwrap();
            let received = in_time("a message", one.rdma.recv(())).await.unwrap();
            assert_eq!(received.immediate, Some(number));
        }
    });
}
