//! The two sides of a card: their devices and representors, the capabilities of each side, and
//! changes at run time.

use tokio_doca::device::contract::Provider;
use tokio_doca::soft::{Function, Limits, Port, Soft, Topology, View};
use tokio_doca::{
    Device, Error, ErrorKind, Mmap,
    device::{
        DevInfo, JobKind, PciAddr, PciFunction, RdmaKind, RepFilter, RepInfo, RepKind, Representor,
    },
    mem::{Access, RemoteMmap},
    sha::Algorithm,
};

const HOST: [(&str, &str); 5] = [
    ("pf0", "0b:00.0"),
    ("pf1", "0b:00.1"),
    ("pf0vf0", "0b:00.2"),
    ("pf0vf1", "0b:00.3"),
    ("pf1vf0", "0b:00.4"),
];

fn soft(view: View) -> Soft {
    Soft::builder().view(view).build()
}

fn names(list: &[RepInfo]) -> Vec<&str> {
    list.iter().map(RepInfo::name).collect()
}

fn addr(text: &str) -> PciAddr {
    text.parse().unwrap()
}

#[test]
fn the_dpu_has_two_ports_two_sub_functions_and_seven_representors() {
    use PciFunction::{Pf, Sf, Vf};
    let dpu = soft(View::Dpu);
    let devices = dpu.devices().unwrap();
    let devices: Vec<_> = devices
        .iter()
        .map(|info| (info.name(), info.pci_addr().unwrap(), info.function()))
        .collect();
    let [one, other] = [addr("03:00.0"), addr("03:00.1")];
    assert_eq!(
        devices,
        [
            ("p0", one, Pf),
            ("p1", other, Pf),
            ("p0s0", one, Sf),
            ("p1s0", other, Sf)
        ]
    );
    for (port, expected) in [
        (
            "p0",
            &[
                ("hpf0", "0b:00.0", Pf),
                ("hpf0vf0", "0b:00.2", Vf),
                ("hpf0vf1", "0b:00.3", Vf),
                ("pf0sf0", "03:00.0", Sf),
            ][..],
        ),
        (
            "p1",
            &[
                ("hpf1", "0b:00.1", Pf),
                ("hpf1vf0", "0b:00.4", Vf),
                ("pf1sf0", "03:00.1", Sf),
            ],
        ),
    ] {
        let device = dpu.open(port).unwrap();
        let list = device.representors(RepFilter::All).unwrap();
        let listed: Vec<_> = list
            .iter()
            .map(|info| (info.name(), info.pci_addr().unwrap(), info.function()))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|&(name, at, function)| (name, addr(at), function))
            .collect();
        assert_eq!(listed, expected);
        assert_eq!(device.representors(RepFilter::Net).unwrap(), list);
        assert!(device.representors(RepFilter::Emulated).unwrap().is_empty());
        for info in &list {
            let at = info.pci_addr().unwrap();
            assert!(*info == at && info.kind() == RepKind::Net);
            for name in [info.name(), info.vuid()] {
                let opened = Representor::open(&device, name).unwrap();
                assert_eq!((opened.info(), opened.device()), (info, &device));
            }
            let full = at.to_string();
            for name in [&full[..], full.strip_prefix("0000:").unwrap()] {
                let opened = Representor::open(&device, name).unwrap();
                assert_eq!(opened, Representor::open_info(&device, info).unwrap());
            }
        }
        let error = Representor::open(&device, "hpf7").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("hpf"), "{error}");
    }
}

#[test]
fn a_function_and_its_representor_have_one_address_and_no_two_one_vuid() {
    let host = soft(View::Host);
    let dpu = soft(View::Dpu);
    let mut vuids = std::collections::HashSet::new();
    for port in ["p0", "p1"] {
        let device = dpu.open(port).unwrap();
        for info in device.representors(RepFilter::All).unwrap() {
            assert!(vuids.insert(info.vuid().to_owned()) && info.vuid().len() < 128);
            let function = info.name().strip_prefix('h');
            if let Some(function) = function {
                let function = host.open(function).unwrap();
                assert_eq!(function.info().pci_addr(), info.pci_addr());
            }
        }
    }
    assert_eq!(vuids.len(), 7);
}

/// Checks that an operation was refused because it belongs to the other side of the card.
#[track_caller]
fn not_supported<T: std::fmt::Debug>(result: Result<T, Error>, of: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
    assert!(error.to_string().contains(of), "{error}");
}

const EVERY: Access = Access::LOCAL_READ_WRITE
    .union(Access::DPU_READ_WRITE)
    .union(Access::RDMA_READ);

fn exported(device: &Device) -> Mmap {
    let builder = Mmap::builder().device(device).access(EVERY);
    builder.alloc(4096).unwrap()
}

#[test]
fn what_belongs_to_the_other_side_is_not_supported_and_the_queries_agree() {
    let (host, dpu) = (soft(View::Host), soft(View::Dpu));
    let source = exported(&host.open("pf0").unwrap());
    let blob = source.export_dpu(&host.open("pf0").unwrap()).unwrap();
    for side in [&host, &dpu] {
        for info in side.devices().unwrap() {
            let (name, caps) = (info.name(), info.caps());
            let device = side.open(name).unwrap();
            for filter in [RepFilter::All, RepFilter::Net, RepFilter::Emulated] {
                match caps.representors.supports(filter) {
                    true => drop(device.representors(filter).unwrap()),
                    false => not_supported(device.representors(filter), name),
                }
            }
            if !caps.representors.all {
                not_supported(Representor::open(&device, "hpf0"), name);
            }
            let mmap = exported(&device);
            match caps.export_dpu {
                true => drop(mmap.export_dpu(&device).unwrap()),
                false => not_supported(mmap.export_dpu(&device), name),
            }
            let import = RemoteMmap::from_export(&device, &blob).wait();
            // The blob is for port `p0`; importing on the other port fails.
            match caps.import_dpu {
                true => assert_eq!(import.is_ok(), name == "p0"),
                false => not_supported(import, name),
            }
            // RDMA exports can be imported everywhere.
            let rdma = mmap.export_rdma(&device).unwrap();
            assert!(caps.share_rdma);
            assert!(RemoteMmap::from_export(&device, &rdma).wait().is_ok());
            // There is no hotplug manager, so there is nothing to call.
            assert!(!caps.hotplug_manager);
        }
    }
}

#[test]
fn five_of_the_ten_pairs_of_the_guides_table_match() {
    let (host, dpu) = (soft(View::Host), soft(View::Dpu));
    let mut outcomes = [0, 0];
    for (name, at) in HOST {
        let function = host.open(at).unwrap();
        assert_eq!(function.info().name(), name);
        let blob = exported(&function);
        let bytes = blob.export_dpu(&function).unwrap();
        for port in ["p0", "p1"] {
            let device = dpu.open(port).unwrap();
            let result = RemoteMmap::from_export(&device, &bytes).wait();
            let representors = device.representors(RepFilter::Net).unwrap();
            let behind = representors.iter().any(|info| *info == addr(at));
            assert_eq!(behind, name[2..3] == port[1..2]);
            match behind {
                true => assert_eq!(result.unwrap().len(), 4096, "{name} by {port}"),
                false => not_supported(result, port),
            }
            outcomes[usize::from(behind)] += 1;
        }
    }
    assert_eq!(outcomes, [5, 5]);
}

#[test]
fn each_device_says_what_it_does_of_every_library_and_how_much() {
    let limits = Limits::bluefield2();
    for view in [View::Host, View::Dpu] {
        let soft = Soft::builder().view(view).limits(limits.clone()).build();
        for info in soft.devices().unwrap() {
            let caps = info.caps();
            for kind in RdmaKind::ALL.map(JobKind::Rdma) {
                assert!(caps.supports(kind), "{kind:?}");
            }
            for algorithm in [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512] {
                assert!(caps.supports(JobKind::Sha(algorithm)));
                assert!(caps.supports(JobKind::ShaPart(algorithm)));
            }
            assert!(caps.supports(JobKind::Copy) && !caps.supports(JobKind::Accel(1)));
            assert_eq!(caps.dma.as_ref().unwrap().max_buf_size, 1 << 20);
            assert_eq!(caps.dma.as_ref().unwrap().max_list_len, 1);
        }
    }
}

#[test]
fn a_list_is_a_snapshot_and_a_new_one_shows_what_has_changed() {
    let dpu = soft(View::Dpu);
    let p0 = dpu.open("p0").unwrap();
    let before = p0.representors(RepFilter::All).unwrap();
    let vf0 = Representor::open(&p0, "0b:00.2").unwrap();
    let vf1 = Representor::open(&p0, "hpf0vf1").unwrap();
    // A reset of the bus moves a function, another function is unplugged, and a disk is plugged in.
    let unplugged = dpu.topology().unplug("pf0vf0").unwrap().unplug("pf0vf1");
    let moved = Function::vf("pf0vf0", addr("0c:00.2"));
    let disk = Function::pf("nvme0", addr("0b:01.0")).emulated();
    let topology = unplugged.unwrap().plug("p0", moved).unwrap();
    dpu.set_topology(topology.plug("p0", disk).unwrap());

    assert_eq!(names(&before), ["hpf0", "hpf0vf0", "hpf0vf1", "pf0sf0"]);
    assert_eq!(
        before[1],
        addr("0b:00.2"),
        "the properties are as they were"
    );
    let after = p0.representors(RepFilter::All).unwrap();
    assert_eq!(names(&after), ["hpf0", "pf0sf0", "hpf0vf0", "hnvme0"]);
    assert_eq!(after[2], addr("0c:00.2"));
    assert_eq!(after[2].vuid(), before[1].vuid(), "it is the same function");
    assert_eq!(
        names(&p0.representors(RepFilter::Emulated).unwrap()),
        ["hnvme0"]
    );
    let net = p0.representors(RepFilter::Net).unwrap();
    assert_eq!(names(&net), ["hpf0", "pf0sf0", "hpf0vf0"]);

    // An entry from before opens the device as it is now, or has gone.
    let moved = Representor::open_info(&p0, &before[1]).unwrap();
    assert_eq!(*moved.info(), addr("0c:00.2"));
    assert_eq!(moved, vf0, "the same, with other properties");
    assert_eq!(*vf0.info(), addr("0b:00.2"));
    assert!(vf0.check().is_ok());
    for error in [
        Representor::open_info(&p0, &before[2]).unwrap_err(),
        Representor::open(&p0, "0b:00.3").unwrap_err(),
        vf1.check().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

#[test]
fn devices_are_a_snapshot_too() {
    let host = soft(View::Host);
    let before = host.devices().unwrap();
    let pf0 = host.open("pf0").unwrap();
    let at = addr("0d:00.0");
    let topology = host.topology().unplug("pf0").unwrap();
    let topology = topology.unplug("pf1").unwrap();
    host.set_topology(topology.plug("p0", Function::pf("pf0", at)).unwrap());
    let listed = host.devices().unwrap();
    let names: Vec<&str> = listed.iter().map(DevInfo::name).collect();
    assert_eq!(names, ["pf0vf0", "pf0vf1", "pf1vf0", "pf0"]);
    // A device that was open continues to work at its port.
    let mmap = exported(&pf0);
    let blob = mmap.export_dpu(&pf0).unwrap();
    let p0 = soft(View::Dpu).open("p0").unwrap();
    assert!(RemoteMmap::from_export(&p0, &blob).wait().is_ok());
    let moved = host.open("0d:00.0").unwrap();
    assert!(*moved.info() == at && moved != pf0);
    for gone in &before[..2] {
        let error = Provider::open(&host, gone).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    // A port that has gone has no representors any more.
    let dpu = soft(View::Dpu);
    let p0 = dpu.open("p0").unwrap();
    let other = Port::new("q0", addr("03:00.0"));
    dpu.set_topology(Topology::new([other]).unwrap());
    let error = p0.representors(RepFilter::All).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
