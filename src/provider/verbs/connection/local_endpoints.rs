//! Which endpoints of this process can be connected to: a connection asks nobody else, so that an old blob of our own is told here.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, MutexGuard};

use super::super::adapter::Origin;
use crate::sync::lock;

fn all() -> MutexGuard<'static, HashSet<Origin>> {
    static ALL: LazyLock<Mutex<HashSet<Origin>>> = LazyLock::new(Mutex::default);
    lock(&*ALL)
}

pub(in super::super) fn add(origin: &Origin) {
    all().insert(*origin);
}

pub(in super::super) fn remove(origin: &Origin) {
    all().remove(origin);
}

pub(in super::super) fn contains(origin: &Origin) -> bool {
    all().contains(origin)
}
