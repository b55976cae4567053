//! Models of messages, their payload and the stream, and of the last message before a peer leaves.

use std::sync::Arc;

use super::super::connection::Connection;
use super::super::messages::{Got, INLINE, Presence, STREAM, Sent};
use super::{End, SHORT, ends, head, is_hinted, publish_and_notify};
use crate::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use crate::sync::loom::{check, mutant, spawn};

/// Sends two messages through one entry. The second message follows the receive which shows that
/// the first was taken.
fn arrive(
    send: fn(&mut End, number: u64),
    take: fn(&mut End, number: u64),
) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        let receiver = spawn(move || {
            for number in 0..2 {
                take(&mut receiver, number);
            }
        });
        for number in 0..2 {
            send(&mut sender, number);
        }
        receiver.join().unwrap();
    }
}

fn send_short(end: &mut End, number: u64) {
    end.send_all(SHORT, number as u8 + 1);
}

fn post_and_take(end: &mut End, number: u64) {
    end.post(SHORT);
    end.take_all(SHORT, number as u8 + 1);
}

#[test]
fn a_message_that_was_published_is_there() {
    check(3, arrive(send_short, post_and_take));
}

#[test]
fn mutant_that_publishes_a_message_before_it_is_there_is_found() {
    fn publish_and_send(end: &mut End, number: u64) {
        let messages = end.messages();
        while messages.capacity(number).is_none() {
            ::loom::thread::yield_now();
        }
        messages.publish(number, head(SHORT));
        messages.outgoing(number, SHORT);
    }
    mutant("Causality violation", || {
        check(3, arrive(publish_and_send, post_and_take));
    });
}

#[test]
fn mutant_that_posts_a_receive_before_it_took_the_last_message_is_found() {
    fn post_too_early(end: &mut End, number: u64) {
        if number == 0 {
            end.post(SHORT);
        }
        while !end.messages().has(number) {
            ::loom::thread::yield_now();
        }
        if number == 0 {
            end.post(SHORT);
        }
        end.messages().incoming(number, SHORT);
    }
    mutant("Causality violation", || {
        check(3, arrive(send_short, post_too_early));
    });
}

/// A length that exceeds the stream, so that the message is sent in pieces.
const LONG: usize = STREAM + STREAM / 2;

fn streams(send: fn(&mut End), take: fn(&mut End)) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        receiver.post(LONG);
        let receiver = spawn(move || take(&mut receiver));
        send(&mut sender);
        receiver.join().unwrap();
    }
}

#[test]
fn a_long_message_is_taken_while_it_is_sent() {
    check(
        2,
        streams(|end| end.send_all(LONG, 9), |end| end.take_all(LONG, 9)),
    );
}

#[test]
fn mutant_that_says_what_it_produced_before_it_is_there_is_found() {
    fn produce_too_early(end: &mut End) {
        end.messages().publish(0, head(LONG));
        end.messages().set_produced(INLINE as u64);
        end.messages().stream_out(0, INLINE);
    }
    fn take_once(end: &mut End) {
        end.take(&mut [0; LONG]);
    }
    mutant("Causality violation", || {
        check(2, streams(produce_too_early, take_once));
    });
}

#[test]
fn mutant_that_says_what_it_consumed_before_it_was_taken_is_found() {
    fn consume_too_early(end: &mut End) {
        while end.messages().stream_len(0) != Ok(STREAM) {
            ::loom::thread::yield_now();
        }
        end.messages().set_consumed(STREAM as u64);
        end.messages().stream_in(0, STREAM);
    }
    fn send_more(end: &mut End) {
        while end.send(LONG, 9) != Sent::All {
            ::loom::thread::yield_now();
        }
    }
    mutant("Causality violation", || {
        check(2, streams(send_more, consume_too_early));
    });
}

/// Models a peer that leaves while it has a receive posted. A message that begins afterwards finds
/// no receive, and its sender then sees that the peer has left.
fn is_not_sent(leave: fn(Connection)) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        receiver.post(SHORT);
        let has_left = Arc::new(AtomicBool::new(false));
        let leaver = {
            let has_left = Arc::clone(&has_left);
            spawn(move || {
                leave(receiver.connection);
                has_left.store(true, Release);
            })
        };
        let begins_after = has_left.load(Acquire);
        let sent = sender.send(SHORT, 1);
        assert!(
            !begins_after || sent == Sent::NoReceive,
            "sent to no receive"
        );
        if sent == Sent::NoReceive {
            let peer = sender.messages().peer();
            assert_eq!(peer, Presence::Closed, "waits for an ended peer");
        }
        leaver.join().unwrap();
    }
}

#[test]
fn a_message_that_begins_after_the_peer_has_left_is_not_sent() {
    check(3, is_not_sent(|end| end.leave(Presence::Closed, 7)));
}

#[test]
fn mutant_that_leaves_its_receives_is_found() {
    mutant("sent to no receive", || {
        check(3, is_not_sent(|end| end.messages.say(Presence::Closed)));
    });
}

#[test]
fn mutant_that_withdraws_its_receives_before_it_says_that_it_leaves_is_found() {
    mutant("waits for an ended peer", || {
        check(
            3,
            is_not_sent(|end| {
                end.receiving.withdraw(&end.messages);
                end.leave(Presence::Closed, 7);
            }),
        );
    });
}

/// Models a peer that sends its last message and leaves: a receiver that sees the end must have
/// seen the message.
fn is_taken_first(look: fn(&mut End) -> (bool, bool)) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        receiver.post(SHORT);
        let leaver = spawn(move || {
            publish_and_notify(&mut sender);
            sender.connection.leave(Presence::Closed, 7);
        });
        let (has_left, taken) = look(&mut receiver);
        assert!(taken || !has_left, "the last message is lost");
        leaver.join().unwrap();
        assert!(is_hinted(&receiver), "no side polls any more");
    }
}

fn takes(end: &mut End) -> bool {
    matches!(end.take(&mut [0; SHORT]), Got::All(_))
}

#[test]
fn the_last_message_of_who_leaves_is_taken() {
    check(
        3,
        is_taken_first(|end| (end.connection.presence().is_err(), takes(end))),
    );
}

#[test]
fn mutant_that_takes_and_then_asks_who_has_left_is_found() {
    mutant("the last message is lost", || {
        check(
            3,
            is_taken_first(|end| {
                let taken = takes(end);
                (end.connection.presence().is_err(), taken)
            }),
        );
    });
}
