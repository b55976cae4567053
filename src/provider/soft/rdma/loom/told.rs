//! Models of a side that parks, arms or waits. Such a side must not sleep through a change.

use super::super::messages::{Got, STREAM, Sent, Watch};
use super::{End, SHORT, ends, is_hinted, is_rung, publish_and_notify};
use crate::sync::atomic::{Ordering::SeqCst, fence};
use crate::sync::loom::{check, mutant, spawn};

/// A length that exceeds the stream.
const LONG: usize = STREAM + STREAM / 2;

/// Models one side that publishes while the other side stops polling by itself. `looks` is the last
/// poll of that other side: this poll, or an earlier notification, must find what was published.
fn is_told(
    publishes: fn(&mut End),
    looks: fn(&mut End) -> bool,
    is_told: fn(&End) -> bool,
) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        receiver.post(SHORT);
        let publisher = spawn(move || {
            publishes(&mut sender);
            sender
        });
        let found = looks(&mut receiver);
        publisher.join().unwrap();
        assert!(found || is_told(&receiver), "slept through it");
    }
}

fn finds(end: &End) -> bool {
    Watch::Message(0).finds(end.messages())
}

fn cool_and_look(end: &mut End) -> bool {
    end.messages().set_parked(true);
    fence(SeqCst);
    finds(end)
}

#[test]
fn who_turns_cold_and_then_looks_is_hinted_at_or_sees_it() {
    check(3, is_told(publish_and_notify, cool_and_look, is_hinted));
}

#[test]
fn mutant_that_looks_and_then_turns_cold_is_found() {
    fn look_and_cool(end: &mut End) -> bool {
        let found = finds(end);
        end.messages().set_parked(true);
        found
    }
    mutant("slept through it", || {
        check(3, is_told(publish_and_notify, look_and_cool, is_hinted));
    });
}

#[test]
fn mutant_that_asks_who_is_cold_without_a_fence_is_found() {
    fn publish_and_hint(end: &mut End) {
        assert_eq!(end.send(SHORT, 1), Sent::All);
        if end.messages().peer_is_parked() {
            end.connection.doorbell.hint_peer(0);
        }
    }
    mutant("slept through it", || {
        check(3, is_told(publish_and_hint, cool_and_look, is_hinted));
    });
}

/// As `is_told`, for a side that sleeps. Its message ring is parked, so that side polls its hints.
fn is_rung_for(publishes: fn(&mut End), looks: fn(&mut End) -> bool) -> impl Fn() + Send + Sync {
    is_rung_for_after(|_| {}, publishes, looks)
}

fn is_rung_for_after(
    begins: fn(&mut End),
    publishes: fn(&mut End),
    looks: fn(&mut End) -> bool,
) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        receiver.post(SHORT);
        receiver.messages().set_parked(true);
        begins(&mut receiver);
        let publisher = spawn(move || publishes(&mut sender));
        let found = looks(&mut receiver);
        publisher.join().unwrap();
        assert!(found || is_rung(&receiver.signal), "slept through it");
        assert!(is_hinted(&receiver), "woken for nothing");
    }
}

fn arm_and_look(end: &mut End) -> bool {
    end.connection.doorbell.arm();
    fence(SeqCst);
    end.connection.doorbell.is_hinted()
}

#[test]
fn who_arms_a_link_and_then_looks_is_rung_for_or_sees_it() {
    check(3, is_rung_for(publish_and_notify, arm_and_look));
}

#[test]
fn mutant_that_looks_and_then_arms_a_link_is_found() {
    fn look_and_arm(end: &mut End) -> bool {
        let found = end.connection.doorbell.is_hinted();
        end.connection.doorbell.arm();
        found
    }
    mutant("slept through it", || {
        check(3, is_rung_for(publish_and_notify, look_and_arm));
    });
}

#[test]
fn mutant_that_wakes_before_it_hints_is_found() {
    fn wake_and_hint(end: &mut End) {
        assert_eq!(end.send(SHORT, 1), Sent::All);
        end.connection.doorbell.wake_peer();
        end.connection.doorbell.hint_peer(0);
    }
    mutant("slept through it", || {
        check(3, is_rung_for(wake_and_hint, arm_and_look));
    });
}

/// Arms and polls, for a queue that relies on the bell of the page.
fn arm_and_look_at_pages(end: &mut End) -> bool {
    end.pages.arm();
    fence(SeqCst);
    end.pages.has_hints()
}

/// Arms twice: the second time, the page is armed already.
fn leave_to_bell(end: &mut End) {
    assert!(!arm_and_look_at_pages(end));
    assert!(!arm_and_look_at_pages(end));
}

#[test]
fn who_leaves_a_page_to_its_bell_is_rung_for_or_sees_it() {
    let looks = arm_and_look_at_pages;
    let left = is_rung_for_after(leave_to_bell, publish_and_notify, looks);
    check(3, left);
    check(3, is_rung_for(publish_and_notify, looks));
}

#[test]
fn mutant_that_looks_at_pages_and_then_arms_them_is_found() {
    fn look_and_arm(end: &mut End) -> bool {
        let found = end.pages.has_hints();
        end.pages.arm();
        found
    }
    mutant("slept through it", || {
        check(3, is_rung_for(publish_and_notify, look_and_arm));
    });
}

/// A page has woken its queue, and a poll has taken the message without a hint. The page must wake
/// the queue for the next message.
#[test]
fn who_was_rung_for_without_a_hint_is_rung_for_again() {
    check(3, || {
        let [mut sender, mut receiver] = ends();
        receiver.post(SHORT);
        receiver.messages().set_parked(false);
        leave_to_bell(&mut receiver);
        publish_and_notify(&mut sender);
        assert!(is_rung(&receiver.signal));
        receiver.take_all(SHORT, 1);
        receiver.post(SHORT);
        let publisher = spawn(move || publish_and_notify(&mut sender));
        let hinted = arm_and_look_at_pages(&mut receiver);
        let found = hinted || Watch::Message(1).finds(receiver.messages());
        publisher.join().unwrap();
        assert!(found || is_rung(&receiver.signal), "slept through it");
    });
}

/// Models a hint that exists already. The receiver takes it by `takes` and polls, while the sender
/// publishes.
fn is_found_by_who_takes_hints(takes: fn(&mut End) -> bool) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        receiver.post(SHORT);
        receiver.messages().set_parked(true);
        sender.connection.doorbell.hint_peer(0);
        let publisher = spawn(move || publish_and_notify(&mut sender));
        let found = takes(&mut receiver);
        publisher.join().unwrap();
        assert!(found || is_hinted(&receiver), "slept through it");
    }
}

#[test]
fn who_takes_hints_and_then_looks_is_hinted_at_or_sees_it() {
    fn take_and_look(end: &mut End) -> bool {
        end.connection.doorbell.take_hints(|_| {});
        finds(end)
    }
    check(3, is_found_by_who_takes_hints(take_and_look));
}

#[test]
fn mutant_that_looks_and_then_takes_hints_is_found() {
    fn look_and_take(end: &mut End) -> bool {
        let found = finds(end);
        end.connection.doorbell.take_hints(|_| {});
        found
    }
    mutant("slept through it", || {
        check(3, is_found_by_who_takes_hints(look_and_take));
    });
}

/// Models a sender that waits for a receive, or for capacity, while the receiver provides it.
fn is_not_waited_for(
    len: usize,
    comes: fn(&mut End),
    waits: fn(&mut End, usize) -> bool,
) -> impl Fn() + Send + Sync {
    move || {
        let [mut sender, mut receiver] = ends();
        if len > STREAM {
            receiver.post(len);
            assert_eq!(sender.send(len, 9), Sent::IsFull);
        }
        let receiver = spawn(move || comes(&mut receiver));
        sender.connection.doorbell.arm();
        let goes_on = waits(&mut sender, len);
        receiver.join().unwrap();
        let told = is_hinted(&sender) && is_rung(&sender.signal);
        assert!(goes_on || told, "waits for ever");
    }
}

fn post_and_notify(end: &mut End) {
    end.post(SHORT);
    end.connection.notify_freed();
}

fn take_and_notify(end: &mut End) {
    assert_ne!(end.take(&mut [0; LONG]), Got::Nothing);
    end.connection.notify_freed();
}

/// Returns true if the sender made progress.
fn tries(end: &mut End, len: usize) -> bool {
    let before = end.connection.sending.part();
    end.send(len, 9) == Sent::All || end.connection.sending.part() != before
}

fn want_and_try(end: &mut End, len: usize) -> bool {
    end.connection.want(true);
    tries(end, len)
}

fn try_and_want(end: &mut End, len: usize) -> bool {
    let goes_on = tries(end, len);
    end.connection.want(true);
    goes_on
}

#[test]
fn who_wants_a_receive_and_then_tries_is_told_or_goes_on() {
    check(3, is_not_waited_for(SHORT, post_and_notify, want_and_try));
}

#[test]
fn who_wants_room_and_then_tries_is_told_or_goes_on() {
    check(3, is_not_waited_for(LONG, take_and_notify, want_and_try));
}

#[test]
fn mutant_that_tries_and_then_wants_a_receive_is_found() {
    mutant("waits for ever", || {
        check(3, is_not_waited_for(SHORT, post_and_notify, try_and_want));
    });
}

#[test]
fn mutant_that_tries_and_then_wants_room_is_found() {
    mutant("waits for ever", || {
        check(3, is_not_waited_for(LONG, take_and_notify, try_and_want));
    });
}

#[test]
fn mutant_that_asks_who_wants_without_a_fence_is_found() {
    fn post_and_hint(end: &mut End) {
        end.post(SHORT);
        if end.messages().peer_wants() {
            end.connection.doorbell.hint_peer(0);
            end.connection.doorbell.wake_peer();
        }
    }
    mutant("waits for ever", || {
        check(3, is_not_waited_for(SHORT, post_and_hint, want_and_try));
    });
}
