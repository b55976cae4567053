//! The adapter provider, set up over fake adapters.
#![expect(
    unsafe_code,
    reason = "a provider over functions that are no libibverbs"
)]
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use tokio_doca::device::Device;
use tokio_doca::device::contract::Provider;
use tokio_doca::verbs::Verbs;

use crate::fake_verbs::World;

pub fn provider(world: &World) -> Verbs {
    // SAFETY: the fake does what the man pages say.
    unsafe { Verbs::over(world.table()) }
}

pub fn open(verbs: &Verbs, name: &str) -> Device {
    try_open(verbs, name).unwrap()
}

pub fn try_open(verbs: &Verbs, name: &str) -> tokio_doca::Result<Device> {
    let info = verbs.find(name)?;
    let missing = || tokio_doca::Error::new(tokio_doca::ErrorKind::NotFound, "test", "not listed");
    verbs.open(&info.ok_or_else(missing)?)
}
