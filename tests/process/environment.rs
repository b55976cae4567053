//! Tests of environment variables, and of the list of providers, which belongs to the process.

use std::sync::Arc;

use support::peer::{Peer, role, say};
use support::{test_name, *};
use tokio_doca::device::contract::Provider;
use tokio_doca::soft::{Limits, Soft};
use tokio_doca::{
    Device, Error, ErrorKind, add_provider,
    device::{DevInfo, PciAddr, PciFunction, RepFilter},
};

#[test]
fn the_environment_has_the_default_device_take_a_profile() {
    const PROFILE: &str = "TOKIO_DOCA_SOFT_LIMITS";
    const TEST: &str = test_name!(the_environment_has_the_default_device_take_a_profile);
    if let Ok(profile) = std::env::var(PROFILE) {
        match profile.parse::<Limits>() {
            Ok(limits) => {
                let want = Soft::builder().limits(limits).build().open("pf0").unwrap();
                let found = Device::open_default().unwrap();
                assert_eq!(found.info().caps(), want.info().caps());
            }
            Err(_) => {
                let text = rejected(Device::open_default(), ErrorKind::InvalidValue);
                assert!(text.contains(PROFILE) && text.contains(&profile), "{text}");
                rejected(Device::list(), ErrorKind::InvalidValue);
            }
        }
        return;
    }
    for profile in ["unlimited", "bluefield2", "bluefield3", "bluefield", ""] {
        let test = programs::this_program()
            .args(["--exact", TEST])
            .env(PROFILE, profile)
            .output()
            .unwrap();
        assert!(test.status.success(), "{profile}: {test:?}");
    }
}

#[test]
fn only_who_looks_for_an_adapter_opens_libibverbs() {
    const CHILD: &str = "TOKIO_DOCA_TEST_LOOKS";
    const TEST: &str = test_name!(only_who_looks_for_an_adapter_opens_libibverbs);
    if std::env::var_os(CHILD).is_none() {
        let test = programs::this_program()
            .args(["--exact", TEST])
            .env(CHILD, "")
            .output()
            .unwrap();
        assert!(test.status.success(), "{test:?}");
        return;
    }
    let is_open = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains("/libibverbs.so")
    };
    Device::open("pf0").unwrap();
    Device::open_default().unwrap();
    assert!(!is_open());
    let text = rejected(Device::open("no_such_device0"), ErrorKind::NotFound);
    // libibverbs may not be installed.
    assert_eq!(is_open(), !text.contains("cannot be opened"), "{text}");
    Device::list().unwrap();
}

/// A provider with one device that cannot be opened.
struct Other(&'static str);

impl Provider for Other {
    fn name(&self) -> &'static str {
        self.0
    }

    fn devices(&self) -> tokio_doca::Result<Vec<DevInfo>> {
        let addr = PciAddr::new(0x77, 1, 2);
        let caps = tokio_doca::device::Caps::default();
        let info = DevInfo::new(self.0, "other0", addr, PciFunction::Sf, caps);
        Ok(vec![info])
    }

    fn open(&self, _info: &DevInfo) -> tokio_doca::Result<Device> {
        let text = "it is not there any more";
        Err(Error::new(ErrorKind::Initialization, "Other::open", text))
    }
}

#[test]
fn a_provider_of_the_applications_is_listed_after_the_software_devices() {
    // Runs in its own process, because the list of providers belongs to the process.
    if !alone(test_name!(
        a_provider_of_the_applications_is_listed_after_the_software_devices
    )) {
        return;
    }
    let soft = Device::list().unwrap();
    let soft = soft.iter().filter(|info| info.provider() == "soft").count();
    add_provider(Arc::new(Other("other"))).unwrap();
    for name in ["other", "soft", "verbs"] {
        let text = rejected(add_provider(Arc::new(Other(name))), ErrorKind::AlreadyExist);
        assert!(text.contains(name), "{text}");
    }
    let list = Device::list().unwrap();
    let added = &list[soft];
    assert_eq!((added.provider(), added.name()), ("other", "other0"));
    for name in ["other0", "77:01.2", "0000:77:01.2"] {
        let text = rejected(Device::open(name), ErrorKind::Initialization);
        assert_eq!(text, "Device::open: it is not there any more");
    }
    let text = rejected(Device::open("nope"), ErrorKind::NotFound);
    assert!(text.contains("other0"), "{text}");
    assert_eq!(Device::open_default().unwrap().info().name(), "pf0");
}

#[test]
fn a_process_has_the_side_and_the_card_of_its_environment() {
    const TEST: &str = test_name!(a_process_has_the_side_and_the_card_of_its_environment);
    if role().is_some() {
        return match Device::list() {
            Ok(list) => {
                for info in list {
                    let device = Device::open(info.name()).unwrap();
                    let behind = device.representors(RepFilter::All).unwrap_or_default();
                    let names: Vec<&str> = behind.iter().map(|info| info.name()).collect();
                    say(&format!("{} {}", info.name(), names.join(" ")));
                    behind
                        .iter()
                        .for_each(|info| say(&format!("vuid {}", info.vuid())));
                }
                say("end");
            }
            Err(error) => say(&format!("{:?} {error}", error.kind())),
        };
    }
    let ask = |view: &str, variable: &str, value: &str| {
        let mut peer = Peer::start_with(TEST, "lister", |command| {
            command.env("TOKIO_DOCA_SOFT", view).env(variable, value);
        });
        let mut lines = vec![peer.hear()];
        while lines.last().unwrap() != "end" && !lines[0].contains("cannot be taken") {
            lines.push(peer.hear());
        }
        peer.ends();
        lines
    };
    const CARD: &str = "TOKIO_DOCA_SOFT_CARD";
    let lists = [
        ("host", "pf0 ", ""),
        ("dpu", "p0 hpf0 hpf0vf0", "vuid TEST1P1S0"),
    ];
    for (view, device, vuid) in lists {
        let said = ask(view, CARD, "TEST1");
        assert!(said[0].starts_with(device), "{said:?}");
        assert!(
            view == "host" || said.iter().any(|line| line == vuid),
            "{said:?}"
        );
    }
    const GONE: &str = "TOKIO_DOCA_SOFT_TOPOLOGY";
    const DEFER: &str = "TOKIO_DOCA_SOFT_DEFER";
    for (view, variable, value, part) in [
        ("dpu", CARD, "a b", "the serial number \"a b\""),
        (
            "dpu",
            GONE,
            "card.toml",
            "there are TOKIO_DOCA_SOFT, TOKIO_DOCA_SOFT_CARD,",
        ),
        ("hosts", CARD, "TEST1", "\"hosts\" is no view"),
        ("host", DEFER, "true", "\"true\" is neither 1"),
        ("host", DEFER, "yes", "\"yes\" is neither 1"),
        ("host", DEFER, "", "\"\" is neither 1"),
        (
            "host",
            "TOKIO_DOCA_SOFT_DEFERR",
            "1",
            "DEFERR cannot be taken: there are",
        ),
    ] {
        let said = ask(view, variable, value).remove(0);
        assert!(
            said.contains("TOKIO_DOCA_SOFT") && said.contains(part),
            "{said}"
        );
    }
}

/// Tests that need root, since only root can start a program as another user.
mod needs_root {
    use super::*;

    /// A set-user-ID program runs with the rights of its file's owner, but its environment comes
    /// from another user.
    #[test]
    #[ignore = "needs root"]
    fn a_setuid_program_heeds_no_variables() {
        use std::os::unix::fs::{PermissionsExt, chown};
        const VARIABLE: &str = "TOKIO_DOCA_SOFT_LIMITS";
        const TEST: &str = test_name!(a_setuid_program_heeds_no_variables);
        if std::env::var_os(VARIABLE).is_some() {
            let is_setuid = nix::unistd::getuid() != nix::unistd::geteuid();
            say(match (is_setuid, Device::open_default().is_ok()) {
                (false, true) => "heeds no nonsense",
                (false, false) => "heeds it",
                (true, true) => "does not heed it",
                (true, false) => "heeds it as another user",
            });
            return;
        }
        programs::assert_root();
        let folder = programs::Folder::new();
        std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
        let copy = folder.path("setuid");
        // Another process makes the copy, so that no child of another test inherits a descriptor
        // that is open for writing it: such a descriptor would prevent the copy from being started
        // (ETXTBSY).
        let mut copying = std::process::Command::new("cp");
        copying.arg(std::env::current_exe().unwrap()).arg(&copy);
        assert!(copying.status().unwrap().success());
        chown(&copy, Some(64_001), None).unwrap();
        for (mode, says) in [(0o755, "heeds it"), (0o4755, "does not heed it")] {
            std::fs::set_permissions(&copy, PermissionsExt::from_mode(mode)).unwrap();
            let mut command = programs::program(&copy);
            command
                .args(["--exact", TEST, "--nocapture", "--ignored"])
                .env(VARIABLE, "nonsense");
            let mut peer = Peer::spawn(command);
            let said = peer.hear();
            // This fails on a file system that is mounted `nosuid`.
            assert_eq!(said, says);
            peer.ends();
        }
    }
}
