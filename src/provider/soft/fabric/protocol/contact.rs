//! What every blob says of the process that made it: where it is reached, and by which of its slots.
//!
//! | bytes | what |
//! |---|---|
//! | 1, 1 | kind of the socket, length of its name |
//! | | |
//! | 4, 4 | slot, generation |
//! | | |
//! | 16, 8, 8 | boot id; device and inode of the network namespace |
//! | 16, 16 | instance of its fabric, key |
//! | 1 to 107 | name of the socket: an abstract name without its first zero, or an absolute path |
//!
//! Other fields stand where there is a gap.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::super::layout::{Fields, Reader};
use super::place::{Id, Place};
use super::slots::SLOTS;
use super::socket::Address;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super::super) struct Contact {
    pub(in super::super::super) slot: u32,
    pub(in super::super::super) generation: u32,
    pub(in super::super) place: Place,
    pub(in super::super::super) instance: Id,
    pub(in super::super::super) key: Id,
    pub(in super::super) address: Address,
}

impl Contact {
    pub(in super::super) fn name(&self) -> &[u8] {
        match &self.address {
            Address::Abstract(name) => name,
            Address::Path(path) => path.as_os_str().as_bytes(),
        }
    }

    /// The kind of the socket, and the length of its name.
    pub(in super::super) fn socket(&self) -> [u8; 2] {
        let kind = match &self.address {
            Address::Abstract(_) => 0,
            Address::Path(_) => 1,
        };
        [kind, self.name().len() as u8]
    }

    /// All from the boot id on.
    pub(in super::super) fn put(&self, fields: Fields) -> Fields {
        fields
            .put(&self.place.boot)
            .u64(self.place.net.0)
            .u64(self.place.net.1)
            .put(&self.instance)
            .put(&self.key)
            .put(self.name())
    }

    /// The same; what stood before is read already. `None` for what no fabric writes.
    pub(in super::super) fn read(
        [kind, len]: [u8; 2],
        (slot, generation): (u32, u32),
        mut rest: Reader<'_>,
    ) -> Option<Contact> {
        let place = Place {
            boot: rest.array()?,
            net: (rest.u64()?, rest.u64()?),
        };
        let (instance, key) = (rest.array()?, rest.array()?);
        let name = rest.slice(len.into())?;
        let address = match kind {
            0 => Address::Abstract(name.to_vec()),
            1 => Address::Path(OsStr::from_bytes(name).into()),
            _ => return None,
        };
        let right = rest.is_empty()
            && generation != 0
            && (slot as usize) < SLOTS
            && !name.is_empty()
            && (kind == 0 || name.starts_with(b"/") && !name.contains(&0));
        right.then_some(Contact {
            slot,
            generation,
            place,
            instance,
            key,
            address,
        })
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    pub(in super::super::super) fn contact() -> impl Strategy<Value = Contact> {
        let address = prop_oneof![
            vec(any::<u8>(), 1..=107).prop_map(Address::Abstract),
            "/[a-z/]{1,100}".prop_map(|path| Address::Path(path.into())),
        ];
        let ids = any::<(Id, (u64, u64), Id, Id)>();
        let slot = (0..SLOTS as u32, 1..=u32::MAX);
        (address, ids, slot).prop_map(|(address, (boot, net, instance, key), slot)| Contact {
            slot: slot.0,
            generation: slot.1,
            place: Place { boot, net },
            instance,
            key,
            address,
        })
    }
}
