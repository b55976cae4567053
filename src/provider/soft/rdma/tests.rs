//! Tests of messages between the two ends of a message ring, and of peers that write arbitrary
//! words.
#![expect(unsafe_code, reason = "lends memory to a channel")]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, Weak};

use proptest::prelude::*;

use super::super::fabric::Arena;
use super::super::ports::Ports;
use super::connection::Connection;
use super::doorbell::{Bell, DoorbellPage, PAGE};
use super::messages::{
    ENTRY, Got, Head, INLINE, Kind, Memory, MessageRing, Presence, Receiving, STREAM, Sending,
    Sent, Shape, Side,
};
use super::payload::NOBODY;
use crate::device::{Segment, Segments};
use crate::process::Guarded;
use crate::sync::atomic::Ordering;

fn memory(len: usize) -> Arc<Memory> {
    let (_memfd, mapping) = Arena::create(len).unwrap();
    // SAFETY: only the two ends of a message ring or a doorbell page, and a hostile peer, access
    // the memory, by atomics.
    Arc::new(unsafe { Memory::new(mapping, len) })
}

pub(super) fn messages(shape: Shape) -> (MessageRing, MessageRing, Arc<Memory>) {
    let memory = memory(shape.len().unwrap());
    let end = |side| MessageRing::new(Arc::clone(&memory), shape, side);
    (end(Side::Host), end(Side::Guest), Arc::clone(&memory))
}

fn segments(bytes: &mut [u8]) -> Segments {
    let (addr, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
    // SAFETY: the test keeps the bytes, and leaves them alone while they are lent.
    Segments::one(unsafe { Segment::new(addr, len, 0) })
}

fn head(kind: Kind, len: usize, immediate: u32) -> Head {
    Head {
        kind,
        len: len as u32,
        immediate,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Post(usize),
    Send(usize),
    /// One step of the sender (`Step`) or of the receiver (`Take`), each of at most this number of
    /// bytes.
    Step(usize),
    Take(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len = prop_oneof![
        0..=2 * INLINE,
        Just(STREAM),
        STREAM - 3..STREAM + 3,
        0..3 * STREAM
    ];
    let most = prop_oneof![1..200_usize, Just(usize::MAX)];
    prop::collection::vec(
        prop_oneof![
            len.clone().prop_map(Act::Post),
            len.prop_map(Act::Send),
            most.clone().prop_map(Act::Step),
            most.prop_map(Act::Take),
        ],
        1..60,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Messages arrive whole and in order if the stream had capacity, and never before a receive is
    /// posted.
    #[test]
    fn messages_arrive_whole_and_in_order(acts in acts()) {
        let (host, guest, _) = messages(Shape { host: 1, guest: 4 });
        let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
        let (mut posted, mut rooms) = (VecDeque::new(), VecDeque::new());
        let (mut waiting, mut sent) = (VecDeque::new(), VecDeque::new());
        let mut fill = 0_u8;
        for act in acts {
            match act {
                Act::Post(room) if posted.len() < 4 => {
                    receiving.post(&guest, room as u32);
                    posted.push_back(vec![0_u8; room]);
                    rooms.push_back(room);
                }
                Act::Send(len) => {
                    fill = fill.wrapping_add(1);
                    waiting.push_back(vec![fill; len]);
                }
                Act::Step(most) => {
                    let Some(bytes) = waiting.front_mut() else { continue };
                    let (len, src) = (bytes.len(), segments(bytes));
                    let has_capacity = sending.part() == 0 && sending.has_capacity(&host, len);
                    let head = head(Kind::SendImm, len, 7);
                    // SAFETY: the slice exists, and is long enough.
                    let step = unsafe { sending.send(&host, head, &src, most) }.unwrap();
                    // What `has_capacity` accepts is sent at once.
                    prop_assert!(!has_capacity || step == Sent::All || most < len);
                    match step {
                        Sent::All => {
                            sent.push_back(waiting.pop_front().unwrap());
                            prop_assert!(rooms.pop_front().unwrap() >= len);
                        }
                        Sent::NoReceive => prop_assert!(rooms.is_empty()),
                        Sent::TooLong(room) => {
                            prop_assert_eq!(rooms.pop_front(), Some(room as usize));
                            prop_assert!((room as usize) < len);
                            return Ok(());
                        }
                        Sent::Part | Sent::IsFull => {}
                    }
                }
                Act::Take(most) => {
                    let dst = posted.front_mut().map(|room| (segments(room), room.len()));
                    let dst = dst.as_ref().map(|(dst, room)| (dst, *room));
                    // SAFETY: as above.
                    let got = unsafe { receiving.take(&guest, dst, most) }.unwrap();
                    if let Got::All(head) = got {
                        let received = posted.pop_front().unwrap();
                        let bytes = match sent.pop_front() {
                            Some(bytes) => bytes,
                            // The receiver gets the last byte only after `send` has returned `All`.
                            None => unreachable!("a message that was not sent"),
                        };
                        prop_assert_eq!((head.kind, head.immediate), (Kind::SendImm, 7));
                        prop_assert_eq!(&received[..head.len as usize], &bytes[..]);
                        prop_assert!(received[head.len as usize..].iter().all(|&byte| byte == 0));
                    }
                }
                Act::Post(_) => {}
            }
        }
    }

    /// Whatever the peer writes and whenever, no byte beyond the lent memory is touched, and
    /// nothing panics or runs forever.
    #[test]
    fn a_peer_that_scribbles_ends_its_own_connection(
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0..4_u8), 1..200),
        room in 0..3000_usize,
    ) {
        const GUARD: usize = 64;
        let shape = Shape { host: 4, guest: 4 };
        let (host, _, memory) = messages(shape);
        let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
        let mut bytes = vec![0xa5_u8; GUARD + room + GUARD];
        let mut message = vec![1_u8; room];
        for _ in 0..4 {
            receiving.post(&host, room as u32);
        }
        // Only a few words matter: together they are chosen as often as all other words.
        let heads = (0..2).flat_map(|block| {
            let base = block * shape.len().unwrap() / 2;
            (0..16).map(move |word| base + 8 * word).chain((0..4).map(move |n| base + 384 + 8 * n))
        });
        let entries = (0..shape.len().unwrap()).step_by(ENTRY);
        let (heads, entries): (Vec<_>, Vec<_>) = (heads.collect(), entries.collect());
        for (at, word, how) in writes {
            let at = match how {
                0 => *at.get(&heads),
                1 => *at.get(&entries),
                2 => *at.get(&entries) + 8,
                _ => at.index(shape.len().unwrap() / 8) * 8,
            };
            // In many cases this is a number that a peer could really write.
            let word = if how < 2 { (word % 6) << 32 | word >> 52 } else { word };
            memory.word(at).store(word, Ordering::SeqCst);
            let dst = segments(&mut bytes[GUARD..GUARD + room]);
            // SAFETY: the slice exists, and is long enough.
            let _ = unsafe { receiving.take(&host, Some((&dst, room)), usize::MAX) };
            let src = segments(&mut message);
            // SAFETY: as above.
            let _ = unsafe { sending.send(&host, head(Kind::Send, room, 0), &src, usize::MAX) };
        }
        let guards = bytes[..GUARD].iter().chain(&bytes[GUARD + room..]);
        prop_assert!(guards.into_iter().all(|&byte| byte == 0xa5));
        prop_assert!(message.iter().all(|&byte| byte == 1));
    }
}

#[derive(Clone, Debug)]
enum PullAct {
    Send(usize),
    Step(usize),
    Ask,
    Note,
    Pull,
}

fn pull_acts() -> impl Strategy<Value = Vec<PullAct>> {
    let len = prop_oneof![0..=2 * INLINE, STREAM - 3..=STREAM, 0..STREAM];
    prop::collection::vec(
        prop_oneof![
            len.prop_map(PullAct::Send),
            prop_oneof![1..200_usize, Just(usize::MAX)].prop_map(PullAct::Step),
            Just(PullAct::Ask),
            Just(PullAct::Note),
            Just(PullAct::Pull),
        ],
        1..80,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Messages are pulled whole and in order, at most `credits` messages are in flight, and a
    /// caller that asked and found none is notified of the next message.
    #[test]
    fn messages_are_pulled_whole_and_in_order(
        acts in pull_acts(),
        credits in prop::sample::select(vec![1_u32, 4]),
    ) {
        let (host, guest, _) = messages(Shape { host: 1, guest: credits });
        let mut sending = Sending::default();
        let mut receiving = Receiving::pulled(&guest, credits, STREAM as u32);
        let (mut waiting, mut sent) = (VecDeque::new(), VecDeque::new());
        let (mut fill, mut wanted) = (0_u8, true);
        // What the polling thread knows: what it watches for, and whether it was asked to poll.
        let (mut watch, mut looks) = (receiving.watch(), false);
        // The number of messages that have arrived, and the number at the last poll.
        let (mut came, mut seen) = (0, 0);
        for act in acts.into_iter().chain([PullAct::Note]) {
            match act {
                PullAct::Send(len) => {
                    fill = fill.wrapping_add(1);
                    waiting.push_back(vec![fill; len]);
                }
                PullAct::Step(most) => {
                    let Some(bytes) = waiting.front_mut() else { continue };
                    let (len, src) = (bytes.len(), segments(bytes));
                    let head = head(Kind::SendImm, len, 7);
                    // SAFETY: the slice exists, and is long enough.
                    match unsafe { sending.send(&host, head, &src, most) }.unwrap() {
                        Sent::All => {
                            sent.push_back(waiting.pop_front().unwrap());
                            came += 1;
                        }
                        Sent::NoReceive => prop_assert_eq!(sent.len(), credits as usize),
                        Sent::IsFull | Sent::Part => {}
                        Sent::TooLong(_) => unreachable!("it fits"),
                    }
                    prop_assert!(sent.len() <= credits as usize);
                }
                PullAct::Ask => {
                    prop_assert_eq!(receiving.ask(&guest), !sent.is_empty());
                    wanted |= sent.is_empty();
                }
                PullAct::Note => {
                    let told = receiving.note(&guest).unwrap();
                    prop_assert_eq!(told, wanted && !sent.is_empty());
                    wanted &= !told;
                    (watch, looks, seen) = (receiving.watch(), false, came);
                    prop_assert!(!watch.finds(&guest));
                }
                PullAct::Pull => {
                    let mut room = vec![0_u8; STREAM];
                    let dst = segments(&mut room);
                    // SAFETY: as above.
                    let pulled = unsafe { receiving.pull(&guest, &dst, STREAM) }.unwrap();
                    prop_assert_eq!(pulled.is_some(), !sent.is_empty());
                    let Some(head) = pulled else { continue };
                    looks |= receiving.has_overtaken();
                    let bytes = sent.pop_front().unwrap();
                    prop_assert_eq!((head.kind, head.immediate), (Kind::SendImm, 7));
                    prop_assert_eq!(head.len as usize, bytes.len());
                    prop_assert_eq!(&room[..bytes.len()], &bytes[..]);
                    prop_assert!(room[bytes.len()..].iter().all(|&byte| byte == 0));
                }
            }
            prop_assert!(came == seen || looks || watch.finds(&guest), "nobody looks again");
        }
    }

    /// Whatever the peer writes, no byte beyond the lent memory is touched by a pull either.
    #[test]
    fn a_peer_that_scribbles_harms_nobody_who_pulls(
        writes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u64>(), 0..5_u8),
            1..200,
        ),
        room in 0..3000_usize,
    ) {
        const GUARD: usize = 64;
        let shape = Shape { host: 4, guest: 4 };
        let (host, _, memory) = messages(shape);
        let mut receiving = Receiving::pulled(&host, 4, room as u32);
        let mut bytes = vec![0xa5_u8; GUARD + room + GUARD];
        let base = shape.len().unwrap() / 2;
        let first = base + (384_usize + 32).next_multiple_of(ENTRY);
        let entries = (0..4).map(|number| first + ENTRY * number);
        let (entries, produced): (Vec<_>, _) = (entries.collect(), base + 128);
        for (at, word, how) in writes {
            let (at, word) = match how {
                0 => (produced, word % (2 * STREAM as u64)),
                1 | 2 => (*at.get(&entries), (word % 6) << 32 | word >> 52),
                3 => (*at.get(&entries) + 8, (word % 6) << 32),
                _ => (at.index(shape.len().unwrap() / 8) * 8, word),
            };
            memory.word(at).store(word, Ordering::SeqCst);
            receiving.ask(&host);
            let noted = receiving.note(&host);
            if noted.is_ok() {
                // If the watch found something now, a peer could keep the polling thread from
                // sleeping.
                prop_assert!(!receiving.watch().finds(&host));
            }
            let dst = segments(&mut bytes[GUARD..GUARD + room]);
            // SAFETY: the slice exists, and is long enough.
            let pulled = unsafe { receiving.pull(&host, &dst, room) };
            if let Ok(Some(head)) = pulled {
                let data = matches!(head.kind, Kind::Send | Kind::SendImm);
                prop_assert!(!data || head.len as usize <= room, "more than was lent");
            }
        }
        let guards = bytes[..GUARD].iter().chain(&bytes[GUARD + room..]);
        prop_assert!(guards.into_iter().all(|&byte| byte == 0xa5));
    }
}

#[test]
fn a_message_is_taken_while_it_is_sent() {
    let (host, guest, _) = messages(Shape { host: 1, guest: 1 });
    let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
    let len = 5 * STREAM + 77;
    let mut message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let mut room = vec![0_u8; len];
    receiving.post(&guest, len as u32);
    let (src, dst) = (segments(&mut message), segments(&mut room));
    let mut steps = 0;
    loop {
        // SAFETY: the slice exists, and is long enough.
        let sent = unsafe { sending.send(&host, head(Kind::Send, len, 0), &src, usize::MAX) };
        // SAFETY: as above.
        let got = unsafe { receiving.take(&guest, Some((&dst, len)), usize::MAX) };
        steps += 1;
        match (sent.unwrap(), got.unwrap()) {
            (Sent::IsFull, Got::Part { more: false }) => assert!(steps < 7),
            (Sent::All, Got::All(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(message == room);
}

/// The bytes of a side's stream take memory until the pages are returned, after the peer has taken
/// all bytes. Afterwards both sides continue.
#[test]
fn an_idle_side_gives_the_pages_of_its_stream_back() {
    let shape = Shape { host: 4, guest: 4 };
    let len = shape.len().unwrap();
    let (memfd, mapping) = Arena::create(len).unwrap();
    // SAFETY: only the two ends of a message ring access the memory, by atomics.
    let memory = Arc::new(unsafe { Memory::new(mapping, len) });
    let end = |side| MessageRing::new(Arc::clone(&memory), shape, side);
    let (host, guest) = (end(Side::Host), end(Side::Guest));
    let pages = || nix::sys::stat::fstat(&*memfd).unwrap().st_blocks * 512;
    let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
    let before = pages();
    for round in 0..5_u8 {
        const MESSAGE: usize = 300 << 10;
        let (mut sent, mut came) = (vec![round; MESSAGE], vec![0; MESSAGE]);
        receiving.post(&guest, MESSAGE as u32);
        let src = segments(&mut sent);
        // SAFETY: the slice exists, and is long enough.
        let all = unsafe { sending.send(&host, head(Kind::Send, MESSAGE, 0), &src, MESSAGE) };
        assert_eq!(all, Ok(Sent::All));
        let is_there = || assert!(pages() - before >= MESSAGE as i64, "{}", pages());
        if round % 2 == 0 {
            sending.give_back(&host, true);
            is_there();
        }
        let dst = segments(&mut came);
        let mut got = Got::Nothing;
        while !matches!(got, Got::All(_)) {
            // SAFETY: as above.
            got = unsafe { receiving.take(&guest, Some((&dst, MESSAGE)), MESSAGE) }.unwrap();
        }
        assert!(came == sent);
        if round % 2 == 1 {
            // Bytes were sent since the last call of `give_back`, so this call returns nothing.
            sending.give_back(&host, false);
            is_there();
        }
        sending.give_back(&host, false);
        // The pages that a stream shares with the words before it stay.
        assert!(pages() - before <= 3 * 4096, "{}", pages());
    }
}

/// A peer that has left hangs up the bell once no connection is left. The peer may have taken the
/// message before the sender wakes it.
#[test]
fn a_bell_that_was_hung_up_is_an_error_only_of_a_peer_that_has_not_left() {
    for (presence, notified) in [
        (Presence::Connected, false),
        (Presence::Closed, true),
        (Presence::Failed, true),
    ] {
        let (host, guest, _) = messages(Shape { host: 1, guest: 1 });
        let page = memory(PAGE);
        let end = |side, socket| {
            let bell = Bell::Socket(OnceLock::from(Arc::new(Guarded::new(socket, true))));
            let (page, owner) = (Arc::clone(&page), Weak::<Ports>::new());
            DoorbellPage::new(DoorbellPage::new_key(), page, side, bell, None, owner)
        };
        let (socket, peers) = UnixStream::pair().unwrap();
        let doorbell = Arc::new(end(Side::Host, socket));
        end(Side::Guest, peers).arm();
        let connection = Connection::new(host, doorbell, (0, 1), NOBODY);
        guest.say(presence);
        assert_eq!(connection.notify_message(), notified, "{presence:?}");
    }
}
