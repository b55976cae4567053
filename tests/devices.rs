//! Which devices there are, and how one is found and opened.

mod common;

use std::sync::Arc;

use common::*;
use tokio_doca::device::{Liveness, Provider};
use tokio_doca::soft::Soft;
use tokio_doca::{
    DevInfo, Device, Dma, Error, ErrorKind, Mmap, PciAddr, PciFunction, WorkQ, add_provider,
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

/// A provider with one device, which cannot be opened.
struct Other(&'static str);

impl Provider for Other {
    fn name(&self) -> &'static str {
        self.0
    }

    fn devices(&self) -> tokio_doca::Result<Vec<DevInfo>> {
        let addr = PciAddr::new(0x77, 1, 2);
        let caps = tokio_doca::Caps::default();
        let info = DevInfo::new(self.0, "other0", addr, PciFunction::Sf, caps);
        Ok(vec![info])
    }

    fn open(&self, _info: &DevInfo) -> tokio_doca::Result<Device> {
        let text = "it is not there any more";
        Err(Error::new(ErrorKind::Initialization, "Other::open", text))
    }
}

#[test]
fn a_provider_of_the_applications_is_listed_after_the_built_in_ones() {
    // In a process of its own: the list of providers is the process's.
    if !alone("a_provider_of_the_applications_is_listed_after_the_built_in_ones") {
        return;
    }
    let built_in = Device::list().unwrap().len();
    add_provider(Arc::new(Other("other"))).unwrap();
    for name in ["other", "soft"] {
        let text = rejected(add_provider(Arc::new(Other(name))), ErrorKind::AlreadyExist);
        assert!(text.contains(name), "{text}");
    }
    let list = Device::list().unwrap();
    assert_eq!(list.len(), built_in + 1);
    let last = &list[built_in];
    assert_eq!((last.provider(), last.name()), ("other", "other0"));
    for name in ["other0", "77:01.2", "0000:77:01.2"] {
        rejected(Device::open(name), ErrorKind::Initialization);
    }
    let text = rejected(Device::open("nope"), ErrorKind::NotFound);
    assert!(text.contains("other0"), "{text}");
    assert_eq!(Device::open_default().unwrap().info().name(), "pf0");
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
