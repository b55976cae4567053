//! The orderly end of a connection.

use futures::future::join;
use support::device::{assert_told, needs_soft};
use support::loopback::Loopback;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::{error::Reason, rdma::RdmaState};

fn each(story: impl AsyncFn(Side, Side)) {
    for setup in Setup::all() {
        let loopback = Loopback::device(!setup.defer).1;
        for device in [support::device::under_test(setup.defer), loopback] {
            let side = || {
                let workq = tokio_doca::WorkQ::builder().depth(32).mode(setup.mode);
                Side::on(&device, &workq.build().unwrap(), setup)
            };
            let (here, there) = (side(), side());
            connect(&here.rdma, &there.rdma);
            run(story(here, there));
        }
    }
}

/// The peer posts its receives only after `close` was called.
#[test]
fn a_close_waits_for_all_that_was_sent_before() {
    each(async |here, there| {
        let sends: Vec<_> = (0..5)
            .map(|number| here.rdma.send(here.filled(&[number; 99])).start().unwrap())
            .collect();
        let close = async {
            here.rdma.close().await.unwrap();
            assert_eq!(here.rdma.state(), RdmaState::Init);
        };
        let receives = async {
            for number in 0..5 {
                assert_eq!(there.recv().await, Ok(vec![number; 99]));
            }
        };
        in_time("the close", join(close, receives)).await;
        for send in sends {
            send.await.unwrap();
        }
    });
}

#[test]
fn the_peer_of_a_close_gets_an_error_that_is_a_disconnect() {
    if needs_soft("a peer that has gone is noticed by what is sent alone") {
        return;
    }
    each(async |here, there| {
        let receive = async {
            let error = there.recv().await.unwrap_err();
            assert!(error.is_disconnect(), "{error}");
            assert_eq!(error.cause(), Some(Reason::PeerClosed));
        };
        let close = async { here.rdma.close().await.unwrap() };
        in_time("the close", join(close, receive)).await;
        assert_told(there.failed().await, Reason::PeerClosed);
    });
}

/// The message fails however the peer has left, even if it had posted receives for the message.
#[test]
fn a_message_that_begins_after_the_peer_has_left_is_not_sent() {
    if needs_soft("a peer that has gone is noticed by what is sent alone") {
        return;
    }
    for how in ["drop", "reset", "close", "shutdown"] {
        each(async |here, there| {
            eprintln!(
                "{how} {:?} {}",
                here.workq.mode(),
                here.device.info().name()
            );
            let posted = [(); 6].map(|()| there.rdma.recv(there.empty()).start().unwrap());
            match how {
                "drop" => {
                    drop(posted);
                    drop(there);
                }
                "reset" => there.rdma.reset().unwrap(),
                "shutdown" => in_time("a shutdown", there.workq.shutdown()).await.unwrap(),
                _ => in_time("a close", there.rdma.close()).await.unwrap(),
            }
            for _ in 0..3 {
                let sent = in_time("a message", here.send(b"late")).await;
                let error = sent.unwrap_err();
                assert!(error.is_disconnect(), "{error}");
            }
            here.all_back().await;
        });
    }
}

/// Messages that arrived before the WorkQ is shut down can be received, even if no task has polled
/// since.
#[test]
fn what_has_come_before_a_shutdown_is_not_lost() {
    if needs_soft("an adapter has an acknowledgement before its completion") {
        return;
    }
    each(async |here, there| {
        let receive = there.rdma.recv(there.empty()).start().unwrap();
        here.send(b"came").await.unwrap();
        in_time("a shutdown", there.workq.shutdown()).await.unwrap();
        assert_eq!(in_time("the message", receive).await.unwrap().len, 4);
    });
}

#[test]
fn an_error_that_is_no_end_of_the_peer_is_no_disconnect() {
    each(async |here, there| {
        let small = there.filled(&vec![0; ELEMENT - 1]);
        let receive = there.rdma.recv(small).start().unwrap();
        let error = here.send(&[0; 9]).await.unwrap_err();
        assert!(!error.is_disconnect(), "{error}");
        assert!(!receive.await.unwrap_err().is_disconnect());
        // The connection can no longer be closed in order either.
        assert!(here.rdma.close().await.is_err());
    });
}
