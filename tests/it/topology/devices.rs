//! The list of devices, and how a device is found and opened.

use support::*;
use tokio_doca::device::Liveness;
use tokio_doca::device::contract::Provider;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Device, Dma, ErrorKind, Mmap, WorkQ,
    device::{DevInfo, PciAddr, PciFunction},
};

#[test]
fn the_host_view_has_its_five_functions() {
    use PciFunction::{Pf, Vf};
    let list = Device::list().unwrap();
    let soft: Vec<_> = list
        .iter()
        .filter(|info| info.provider() == "soft")
        .map(|info| {
            (
                info.name(),
                info.pci_addr().unwrap().to_string(),
                info.function(),
            )
        })
        .collect();
    let expected = [
        ("pf0", "0000:0b:00.0", Pf),
        ("pf1", "0000:0b:00.1", Pf),
        ("pf0vf0", "0000:0b:00.2", Vf),
        ("pf0vf1", "0000:0b:00.3", Vf),
        ("pf1vf0", "0000:0b:00.4", Vf),
    ];
    assert_eq!(
        soft,
        expected.map(|(name, addr, function)| (name, addr.to_owned(), function))
    );
    for info in list.iter().filter(|info| info.provider() == "soft") {
        let dma = info.caps().dma.as_ref().unwrap();
        assert!(dma.max_buf_size > 0 && dma.max_list_len > 1);
        assert!(dma.event_driven && info.caps().max_depth >= 256);
        assert_eq!(*info, info.pci_addr().unwrap());
    }
}

#[test]
fn every_name_of_a_device_opens_the_same_one() {
    for info in Soft::builder().build().devices().unwrap() {
        let soft = Soft::builder().build();
        let device = soft.open(info.name()).unwrap();
        let full = info.pci_addr().unwrap().to_string();
        let short = full.strip_prefix("0000:").unwrap();
        for name in [info.name(), &full, short, &full.to_uppercase()] {
            assert_eq!(soft.open(name).unwrap(), device, "{name}");
        }
        assert_eq!(*device.info(), info);
        assert_eq!(device.liveness(), Liveness::Alive);
        let global = Device::open(&full).unwrap();
        assert_eq!(Device::open(short).unwrap(), global);
        assert_eq!(Device::open(info.name()).unwrap(), global);
        assert_ne!(global, device, "another provider's is another device");
    }
}

#[test]
fn the_default_device_is_the_first_that_copies() {
    let device = Device::open_default().unwrap();
    assert_eq!(device.info().name(), "pf0");
    assert_eq!(Device::open("pf0").unwrap(), device);
    assert_eq!(device.clone(), device);
    assert_ne!(Device::open("pf1").unwrap(), device);
}

#[test]
fn what_is_not_there_is_not_found_and_the_names_are_listed() {
    for name in ["", "pf9", "PF0", "0b:00.7", "0c:00.0", "0001:0b:00.0", "é"] {
        for error in [
            Device::open(name).unwrap_err(),
            Soft::builder().build().open(name).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            let text = error.to_string();
            assert!(text.contains(&format!("\"{name}\"")), "{text}");
            for known in ["pf0", "pf1", "pf0vf0", "pf0vf1", "pf1vf0"] {
                assert!(text.contains(known), "{text}");
            }
        }
    }
}

#[test]
fn a_device_that_was_closed_opens_anew() {
    let soft = Soft::builder().build();
    let device = soft.open("pf0").unwrap();
    let id = device.id();
    let mmap = Mmap::builder().device(&device).alloc(4096).unwrap();
    drop(device);
    assert_eq!(soft.open("pf0").unwrap().id(), id, "the Mmap keeps it open");
    drop(mmap);
    assert_ne!(soft.open("pf0").unwrap().id(), id);
}

#[test]
fn jobs_are_counted_per_device() {
    each(async |bench| {
        let other = bench.soft.open("pf0vf1").unwrap();
        bench.works().await;
        assert_eq!((bench.device.jobs(), other.jobs()), (Some(1), Some(0)));
        let workq = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let second = Dma::builder(&bench.device).attach(&workq).unwrap();
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        assert_eq!(second.copy(&src, &dst).await, Ok(3));
        assert_eq!(bench.device.jobs(), Some(2), "of all its WorkQs");
    });
}

#[test]
fn opening_one_device_from_many_threads_yields_one() {
    let soft = Soft::builder().build();
    let devices: Vec<Device> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| soft.open("pf0").unwrap()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(devices.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_forged_description_opens_nothing() {
    let soft = Soft::builder().build();
    let caps = tokio_doca::device::Caps::for_dma(u64::MAX, 1, u32::MAX);
    let forged = DevInfo::new("soft", "pf0", PciAddr::new(1, 2, 3), PciFunction::Pf, caps);
    let error = Provider::open(&soft, &forged).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(soft.open("pf0").is_ok());
}
