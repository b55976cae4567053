//! Which endpoints of this process can be connected to: a connection asks nobody else, so that an
//! old blob of our own is told here.

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
