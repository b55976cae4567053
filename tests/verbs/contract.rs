//! The adapter provider over fake adapters: the provider contract, and how the kinds of fake
//! adapters differ.

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};
use tokio_doca::{
    BufPool, Device, ErrorKind, Mmap, Mode, Rdma, WorkQ,
    device::RdmaKind,
    error::Reason,
    mem::{Access, RemoteMmap},
    sha::Algorithm,
};
use tokio_doca_contract::{self as contract, Peers, Subject, Verdict, selftest};

/// Runs `check` on two devices of one kind.
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

/// Reduces the adapter to few entries and one piece in each request.
fn small(description: Description) -> Description {
    Description {
        max_sge: 1,
        max_sge_rd: 1,
        max_qp_wr: 31,
        max_srq_wr: 31,
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
        contract::rdma(Peers::of(one, other));
    });
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

/// Runs the whole suite on one adapter. On iWARP no queue pair can be connected to itself, and
/// there are no atomics and no immediates.
#[test]
fn a_self_test_tells_what_an_adapter_has() {
    let lacks = |kind: fn(&str) -> Description| {
        let mut refused = Vec::new();
        on_fakes(kind, |_, [device, _]| {
            for outcome in selftest(device) {
                match outcome.verdict {
                    Verdict::Passed => {}
                    // Shared receive queues are optional on adapters.
                    _ if outcome.check == "pooled_messages_are_taken_in_order" => {}
                    Verdict::Refused(_) => refused.push(outcome.subject),
                    _ => panic!("{outcome}"),
                }
            }
        });
        refused
    };
    let always = ["accelerator", "sync events"];
    assert_eq!(lacks(Description::roce), always);
    let lacks = lacks(Description::iwarp);
    assert_eq!(lacks[..4], ["rdma"; 4], "two atomics, two immediates");
    assert_eq!(lacks[4..], ["copies", always[0], always[1]]);
}

#[test]
fn the_adapter_never_sees_a_refused_job() {
    on_fakes(Description::roce, |world, [one, other]| {
        let refuse = || world.faults().fail("ibv_post_send", 1, libc::EINVAL);
        contract::a_refused_job_was_never_seen(Subject::copies(one), &mut || refuse());
        contract::a_refused_operation_was_never_seen(Peers::of(one, other), &mut || refuse());
    });
}

/// iWARP has no atomics, no immediates and no copies; other adapters may lack only the atomics.
#[test]
fn what_an_adapter_does_not_have_it_is_not_asked_for() {
    let without_atomics = |name: &str| Description {
        atomics: false,
        ..Description::roce(name)
    };
    lacks(
        Description::iwarp,
        &[
            RdmaKind::CompareSwap,
            RdmaKind::FetchAdd,
            RdmaKind::WriteImm,
            RdmaKind::SendImm,
        ],
    );
    lacks(
        without_atomics,
        &[RdmaKind::CompareSwap, RdmaKind::FetchAdd],
    );
}

/// EFA, usNIC and similar adapters have no reliable connections, so they offer only hashes, which
/// the CPU computes.
#[test]
fn other_transports_have_hashes_alone() {
    let other = |name: &str| Description {
        transport: tokio_doca::verbs::ffi::IBV_TRANSPORT_UNSPECIFIED,
        ..Description::roce(name)
    };
    on_fakes(other, |_, [device, _]| {
        let caps = device.info().caps();
        assert!(caps.dma.is_none() && caps.rdma.is_none(), "{caps:?}");
        contract::digests_are_known(Subject::sha(device, Algorithm::Sha256));
    });
}

fn lacks(kind: impl Fn(&str) -> Description, missing: &[RdmaKind]) {
    on_fakes(kind, |world, [one, other]| {
        let caps = one.info().caps();
        let rdma = caps.rdma.as_ref().unwrap();
        for kind in RdmaKind::ALL {
            assert_eq!(rdma.supports(kind), !missing.contains(&kind), "{kind:?}");
        }
        // A copy needs a queue pair that is connected to itself; iWARP connects only by its
        // connection manager.
        let is_iwarp = missing.contains(&RdmaKind::WriteImm);
        assert_eq!(
            (caps.dma.is_none(), rdma.acknowledged),
            (is_iwarp, !is_iwarp)
        );
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        let ends = [one, other].map(|device| Rdma::builder(device).attach(&workq).unwrap());
        let blobs = [0, 1].map(|end| ends[end].export().unwrap());
        for end in [0, 1] {
            ends[end].connect(&blobs[1 - end]).wait().unwrap();
        }
        let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
        let shared = Mmap::builder()
            .device(other)
            .access(access)
            .alloc(4096)
            .unwrap();
        let blob = shared.export_rdma(other).unwrap();
        let there = RemoteMmap::from_export(one, &blob)
            .wait()
            .unwrap()
            .buf(..8)
            .unwrap();
        let mmap = Mmap::builder().device(one).alloc(4096).unwrap();
        let full = BufPool::builder(&mmap)
            .build()
            .unwrap()
            .try_alloc()
            .unwrap();
        full.extend_from_slice(&[1; 8]).unwrap();
        let posted = world.calls("ibv_post_send");
        for kind in missing {
            let refused = workq.block_on(async {
                match kind {
                    RdmaKind::CompareSwap => ends[0].compare_swap(&there, 0, 1).await.map(|_| ()),
                    RdmaKind::FetchAdd => ends[0].fetch_add(&there, 1).await.map(|_| ()),
                    RdmaKind::SendImm => ends[0].send_imm(&full, 1).await.map(|_| ()),
                    _ => ends[0].write_imm(&full, &there, 1).await.map(|_| ()),
                }
            });
            let error = refused.unwrap_err();
            assert_eq!(
                (error.kind(), error.reason()),
                (ErrorKind::NotSupported, Reason::RdmaUnsupported)
            );
        }
        assert_eq!(world.calls("ibv_post_send"), posted, "nothing was posted");
        contract::rdma_caps_are_kept(Peers::of(one, other));
        contract::remote_operations_complete_in_order(Peers::of(one, other));
    });
}

#[test]
fn adapters_of_two_kinds_keep_the_contract_of_remote_operations() {
    let world = World::new([
        small(Description::roce("fake0")),
        Description::roce("fake1"),
    ]);
    let verbs = provider(&world);
    let (one, other) = (open(&verbs, "fake0"), open(&verbs, "fake1"));
    let peers = Peers::of(&one, &other);
    contract::exported_memory_is_reached(&peers);
    contract::remote_operations_complete_in_order(&peers);
    contract::permissions_are_kept(&peers);
}
