//! The endpoints of this process that can be connected to. A connection is made without a message
//! to the peer's process, so that only this list shows that a blob of this process is outdated.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, MutexGuard};

use super::super::adapter::BlobOrigin;
use crate::sync::lock;

fn all() -> MutexGuard<'static, HashSet<BlobOrigin>> {
    static ALL: LazyLock<Mutex<HashSet<BlobOrigin>>> = LazyLock::new(Mutex::default);
    lock(&*ALL)
}

pub(in super::super) fn add(origin: &BlobOrigin) {
    all().insert(*origin);
}

pub(in super::super) fn remove(origin: &BlobOrigin) {
    all().remove(origin);
}

pub(in super::super) fn contains(origin: &BlobOrigin) -> bool {
    all().contains(origin)
}
