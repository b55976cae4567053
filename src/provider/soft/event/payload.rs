//! What the two sides of a sync event send to each other: in a ticket, and in the owner's reply. A
//! request is empty.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::super::fabric::{Payload, fields_of};

/// The event's part of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(in super::super) struct EventInfo {
    /// The port of the device that exported the event.
    pub(in super::super) port: u8,
}

/// The owner's reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(in super::super) struct ConnectReply {
    /// The number that a side writes when it closes the event; never 0.
    pub(in super::super) number: U64,
    /// The size, in bytes, of the application's memory that the counter lies in; 0 if the counter
    /// lies in the page.
    pub(in super::super) len: U64,
    /// The offset of the counter in that memory, in bytes.
    pub(in super::super) offset: U64,
}

impl EventInfo {
    /// Returns `None` if the payload is not one of an event.
    pub(in super::super) fn parse(payload: &Payload) -> Option<EventInfo> {
        fields_of(payload)
    }
}

impl ConnectReply {
    /// Returns `None` if the payload is no valid reply: if its number is 0, or its counter is not
    /// aligned or reaches beyond the memory.
    pub(in super::super) fn parse(payload: &Payload) -> Option<ConnectReply> {
        fields_of(payload).filter(ConnectReply::is_right)
    }

    fn is_right(&self) -> bool {
        let (len, offset) = (self.len.get(), self.offset.get());
        let within = match len {
            0 => offset == 0,
            _ => offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= len),
        };
        self.number != 0 && within
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::super::super::fabric::{PAYLOAD, payload};
    use super::*;

    fn reply(number: u64, len: u64, offset: u64) -> ConnectReply {
        ConnectReply {
            number: number.into(),
            len: len.into(),
            offset: offset.into(),
        }
    }

    proptest! {
        #[test]
        fn a_reply_within_its_memory_comes_back_and_no_other(number: u64, len: u64, offset: u64) {
            let offset = offset & !7;
            let said = reply(number, len, offset);
            let right = number != 0 && len >= 8 && offset <= len - 8;
            prop_assert_eq!(ConnectReply::parse(&payload(&said)), right.then_some(said));
            let odd = payload(&reply(7, len, offset | 4));
            prop_assert_eq!(ConnectReply::parse(&odd), None);
        }
    }

    #[test]
    fn a_counter_in_the_page_has_no_place_in_memory() {
        let said = reply(7, 0, 0);
        assert_eq!(ConnectReply::parse(&payload(&said)), Some(said));
        assert_eq!(ConnectReply::parse(&payload(&reply(7, 0, 8))), None);
        assert_eq!(ConnectReply::parse(&payload(&reply(0, 0, 0))), None);
        assert_eq!(ConnectReply::parse(&[1; PAYLOAD]), None);
    }

    #[test]
    fn what_a_ticket_says_comes_back() {
        let info = EventInfo { port: 1 };
        assert_eq!(EventInfo::parse(&payload(&info)), Some(info));
        assert_eq!(EventInfo::parse(&[1; PAYLOAD]), None);
    }
}
