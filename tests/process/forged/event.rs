//! A hostile importer of a sync event, whose requests are made by hand.

use std::os::fd::OwnedFd;

use super::{EVENT, Ticket, payload, status};

/// Returns the socket name at which the owner of an event listens.
pub fn name(blob: &[u8]) -> Vec<u8> {
    Ticket::parse(EVENT, blob).name
}

/// Sends a request for an event, without reading the answer.
pub fn knock(blob: &[u8]) -> OwnedFd {
    let ticket = Ticket::parse(EVENT, blob);
    let socket = super::connect(&ticket.name);
    let request = ticket.request_of([0xee; 16], [7; 16], 0, &payload(&[]));
    super::send(&socket, &request, &[]).unwrap();
    socket
}

/// Reads an answer that must be a welcome. Returns the page, and the memory that contains the
/// counter.
pub fn welcomed(socket: &OwnedFd) -> [OwnedFd; 2] {
    let (answer, memfds) = super::receive(socket);
    assert_eq!(status(&answer), (0, 0), "welcome");
    memfds.try_into().unwrap()
}
