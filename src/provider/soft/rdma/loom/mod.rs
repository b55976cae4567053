//! Loom models of message rings and doorbell pages: [`messages`], and how sides are notified
//! ([`told`]).
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(unsafe_code, reason = "lends memory to a channel")]

mod messages;
mod told;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::super::ports::Ports;
use super::connection::Connection;
use super::doorbell::{Bell, DoorbellPage, DoorbellPages, PAGE};
use super::messages::{Got, Head, Kind, Memory, MessageRing, Sent, Shape, Side};
use super::payload::NOBODY;
use crate::device::{Segment, Segments, Signal};

/// The length of a message that fits into its entry, in bytes.
const SHORT: usize = 48;

/// One end of a message ring, in a thread of a model.
struct End {
    connection: Connection,
    /// The signal of this side.
    signal: Arc<Signal>,
    /// The pages of this side's queue, which polls the page of the two ends.
    pages: DoorbellPages,
}

/// Returns the two ends, the sender and the receiver. Each has the capacity for one receive.
fn ends() -> [End; 2] {
    let shape = Shape { host: 1, guest: 1 };
    let len = shape.len().unwrap();
    // The offsets of presence, parked, wants, produced, consumed, the receive, and a message's
    // header.
    let words = [0, 8, 16, 128, 256, 384, 512, 520];
    let blocks = [0, len / 2].into_iter();
    let words = blocks.flat_map(|block| words.map(|at| block + at));
    let memory = Arc::new(Memory::modelled(len, words));
    // The offsets of the armed word, the summary, and the hints.
    let words = [0, 128, 256];
    let blocks = [0, PAGE / 2].into_iter();
    let words = blocks.flat_map(|block| words.map(|at| block + at));
    let page = Arc::new(Memory::modelled(PAGE, words));
    let signals = [(); 2].map(|()| Arc::new(Signal::new().unwrap()));
    let mut pages = [(); 2].map(|()| Some(DoorbellPages::default()));
    let signalled = pages
        .each_ref()
        .map(|pages| pages.as_ref().unwrap().signalled());
    [Side::Host, Side::Guest].map(|side| {
        let (own, other) = match side {
            Side::Host => (0, 1),
            Side::Guest => (1, 0),
        };
        let bell = Bell::Signal(
            Arc::clone(&signals[other]),
            signalled[other].clone(),
            other as u64,
        );
        let (page, owner) = (Arc::clone(&page), Weak::<Ports>::new());
        let doorbell = DoorbellPage::new(own as u64, page, side, bell, None, owner);
        let doorbell = Arc::new(doorbell);
        doorbell.join((0, 1), 7);
        let mut pages = pages[own].take().unwrap();
        pages.keep(([0; 16], 1), 1, &doorbell, None);
        let messages = MessageRing::new(Arc::clone(&memory), shape, side);
        End {
            connection: Connection::new(messages, doorbell, (0, 1), NOBODY),
            signal: Arc::clone(&signals[own]),
            pages,
        }
    })
}

fn is_rung(signal: &Signal) -> bool {
    let fd = signal.as_fd().try_clone_to_owned().unwrap();
    File::from(fd).read(&mut [0; 8]).is_ok()
}

fn segments(bytes: &mut [u8]) -> Segments {
    let (addr, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
    // SAFETY: the test keeps the bytes, and leaves them alone while they are lent.
    Segments::one(unsafe { Segment::new(addr, len, 0) })
}

fn head(len: usize) -> Head {
    Head {
        kind: Kind::Send,
        len: len as u32,
        immediate: 0,
    }
}

impl End {
    fn messages(&self) -> &MessageRing {
        &self.connection.messages
    }

    fn post(&mut self, capacity: usize) {
        self.connection.post(capacity);
    }

    /// Continues to send a message of `len` bytes, each of them `value`.
    fn send(&mut self, len: usize, value: u8) -> Sent {
        let mut bytes = vec![value; len];
        let src = segments(&mut bytes);
        let Connection {
            messages, sending, ..
        } = &mut self.connection;
        // SAFETY: the slice exists, and is long enough.
        unsafe { sending.send(messages, head(len), &src, usize::MAX) }.unwrap()
    }

    /// Sends a message of `len` bytes, each of them `value`, in several steps if necessary.
    fn send_all(&mut self, len: usize, value: u8) {
        while self.send(len, value) != Sent::All {
            ::loom::thread::yield_now();
        }
    }

    /// Takes a message, or a part of one, that has arrived.
    fn take(&mut self, bytes: &mut [u8]) -> Got {
        let (dst, capacity) = (segments(bytes), bytes.len());
        let Connection {
            messages,
            receiving,
            ..
        } = &mut self.connection;
        // SAFETY: as above.
        unsafe { receiving.take(messages, Some((&dst, capacity)), usize::MAX) }.unwrap()
    }

    /// Takes a message of `len` bytes, each of them `value`, in several steps if necessary.
    fn take_all(&mut self, len: usize, value: u8) {
        let mut bytes = vec![0; len];
        while !matches!(self.take(&mut bytes), Got::All(_)) {
            ::loom::thread::yield_now();
        }
        assert!(bytes.iter().all(|&byte| byte == value), "another message");
    }
}

fn publish_and_notify(end: &mut End) {
    assert_eq!(end.send(SHORT, 1), Sent::All);
    end.connection.notify_message();
}

fn is_hinted(end: &End) -> bool {
    let mut hinted = Vec::new();
    end.connection
        .doorbell
        .take_hints(|number| hinted.push(number));
    hinted == [7]
}
