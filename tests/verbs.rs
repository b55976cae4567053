//! The provider of adapters on fake ones: the contract, and what the fake kinds of adapters differ in.

#[path = "common/adapters.rs"]
mod adapters;
mod fake_verbs;

use adapters::{open, provider};
use fake_verbs::{Description, World};
use tokio_doca::Device;
use tokio_doca::contract::{self, Peers};

/// A check of two devices of a kind.
fn on_fakes(kind: impl Fn(&str) -> Description, check: impl FnOnce(&World, [&Device; 2])) {
    let hurried = |name| Description {
        hurry: 16,
        ..kind(name)
    };
    let world = World::new([hurried("fake0"), hurried("fake1")]);
    let verbs = provider(&world);
    let devices = [open(&verbs, "fake0"), open(&verbs, "fake1")];
    check(&world, [&devices[0], &devices[1]]);
}

/// Few places, and one piece in each request.
fn small(description: Description) -> Description {
    Description {
        max_sge: 1,
        max_qp_wr: 31,
        max_cqe: 124,
        max_msg_sz: 1 << 16,
        max_inline: 0,
        ..description
    }
}

fn copies(kind: impl Fn(&str) -> Description) {
    on_fakes(kind, |_, [device, _]| contract::dma(device));
}

fn remote(kind: impl Fn(&str) -> Description) {
    on_fakes(kind, |_, [one, other]| {
        contract::rdma(one);
        contract::rdma(Peers::of(one, other));
    });
}

#[test]
fn roce_copies_by_the_contract() {
    copies(Description::roce);
}

#[test]
fn soft_roce_copies_by_the_contract() {
    copies(Description::soft_roce);
}

#[test]
fn infiniband_copies_by_the_contract() {
    copies(Description::infiniband);
}

#[test]
fn a_small_adapter_copies_by_the_contract() {
    copies(|name| small(Description::roce(name)));
}

#[test]
fn adapters_hash_by_the_contract() {
    on_fakes(Description::roce, |_, [device, _]| contract::sha(device));
}

#[test]
fn roce_keeps_the_contract_of_remote_operations() {
    remote(Description::roce);
}

#[test]
fn soft_roce_keeps_the_contract_of_remote_operations() {
    remote(Description::soft_roce);
}

#[test]
fn infiniband_keeps_the_contract_of_remote_operations() {
    remote(Description::infiniband);
}

#[test]
fn a_small_adapter_keeps_the_contract_of_remote_operations() {
    remote(|name| small(Description::roce(name)));
}
