//! The PCI address of an adapter, from sysfs (`/sys/class/infiniband`).

use std::fs;
use std::path::Path;

use crate::device::{PciAddr, PciFunction};

/// Returns the PCI address of an adapter, and the kind of its function. Soft-RoCE and soft-iWARP
/// have no PCI address.
pub(in super::super) fn pci_address(name: &str) -> (Option<PciAddr>, PciFunction) {
    if name.contains('/') {
        return (None, PciFunction::Pf);
    }
    pci_address_below(Path::new("/sys/class/infiniband"), name)
}

fn pci_address_below(class: &Path, name: &str) -> (Option<PciAddr>, PciFunction) {
    let link = class.join(name).join("device");
    let Ok(device) = fs::canonicalize(&link) else {
        return (None, PciFunction::Pf);
    };
    let parse = |path: &Path| path.file_name()?.to_str()?.parse::<PciAddr>().ok();
    if let Some(addr) = parse(&device) {
        let function = if device.join("physfn").exists() {
            PciFunction::Vf
        } else {
            PciFunction::Pf
        };
        return (Some(addr), function);
    }
    // A sub-function is below its parent, on the auxiliary bus.
    let parent = device.ancestors().find_map(parse);
    let function = match parent {
        Some(_) => PciFunction::Sf,
        None => PciFunction::Pf,
    };
    (parent, function)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn functions_are_told_apart_by_where_they_hang() {
        let root = std::env::temp_dir().join(format!("tokio-doca-sysfs-{}", std::process::id()));
        let devices = root.join("devices/pci0000:00/0000:0b:00.0");
        let vf = root.join("devices/pci0000:00/0000:0b:00.2");
        let sf = devices.join("mlx5_core.sf.4");
        let class = root.join("class");
        for dir in [&devices, &vf, &sf, &root.join("devices/virtual/rxe0")] {
            fs::create_dir_all(dir).unwrap();
        }
        symlink(&devices, vf.join("physfn")).unwrap();
        for (name, device) in [
            ("mlx5_0", Some(&devices)),
            ("mlx5_2", Some(&vf)),
            ("mlx5_4", Some(&sf)),
            ("siw0", Some(&root.join("devices/virtual/rxe0"))),
            ("rxe0", None),
        ] {
            fs::create_dir_all(class.join(name)).unwrap();
            if let Some(device) = device {
                symlink(device, class.join(name).join("device")).unwrap();
            }
        }
        let found = ["mlx5_0", "mlx5_2", "mlx5_4", "siw0", "rxe0"].map(|name| {
            let (addr, function) = pci_address_below(&class, name);
            (addr.map(|addr| addr.to_string()), function)
        });
        fs::remove_dir_all(&root).unwrap();
        let at = |addr: &str| Some(addr.to_owned());
        assert_eq!(
            found,
            [
                (at("0000:0b:00.0"), PciFunction::Pf),
                (at("0000:0b:00.2"), PciFunction::Vf),
                (at("0000:0b:00.0"), PciFunction::Sf),
                (None, PciFunction::Pf),
                (None, PciFunction::Pf),
            ]
        );
        assert_eq!(pci_address("../../x"), (None, PciFunction::Pf));
    }
}
