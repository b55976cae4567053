//! A hostile importer of a sync event: what it asks, by hand, and what it gets.

use std::os::fd::OwnedFd;

use super::{EVENT, Ticket, payload, status};

/// Where the owner of an event listens.
pub fn name(blob: &[u8]) -> Vec<u8> {
    Ticket::parse(EVENT, blob).name
}

/// Asks for an event. The answer is not read.
pub fn knock(blob: &[u8]) -> OwnedFd {
    let ticket = Ticket::parse(EVENT, blob);
    let socket = super::connect(&ticket.name);
    let request = ticket.request_of([0xee; 16], [7; 16], 0, &payload(&[]));
    super::send(&socket, &request, &[]).unwrap();
    socket
}

/// Reads the answer, which is a welcome: the page, and the memory that the counter lies in.
pub fn welcomed(socket: &OwnedFd) -> [OwnedFd; 2] {
    let (answer, memfds) = super::receive(socket);
    assert_eq!(status(&answer), (0, 0), "welcome");
    memfds.try_into().unwrap()
}
