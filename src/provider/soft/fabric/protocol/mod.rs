//! What processes say to each other, as bytes.
//!
//! A [blob] and an [invitation](super::client) name an exporter by its [contact]: a [slot](Slots)
//! and a [place]. [wire] has the requests of importers, [greeting] those of guests, and their
//! answers; a [socket] carries them. These files import one another downwards,
//! `blob > contact > {place, slots, socket}` and `greeting > wire > place`, and nothing else of the
//! fabric.

mod blob;
pub(super) mod contact;
pub(super) mod greeting;
pub(super) mod place;
mod slots;
pub(super) mod socket;
pub(super) mod wire;

pub(in super::super) use blob::Blob;
pub(super) use contact::Contact;
pub(super) use place::Place;
pub(in super::super) use place::{Id, random, words_of};
pub(super) use slots::{Keyed, SLOTS, Slots};
pub(super) use socket::{Address, DESCRIPTORS, NAME_MAX};
