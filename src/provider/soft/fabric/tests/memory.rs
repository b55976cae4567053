//! Tests of exports and imports of memory: honest ones, hostile ones, and what is left after their
//! end.
#![expect(unsafe_code, reason = "touches what was imported, and forks")]

use std::any::Any;
use std::fs::{File, read_dir};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Weak;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::MapFlags;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, ftruncate};

use super::super::client::{Dialed, Import, import as import_info, other};
use super::super::control::{Control, Words};
use super::super::export::{MemoryInfo, export};
use super::super::memory::Mapping;
use super::super::protocol::{MEMORY, Reply, SLOTS, words_of};
use super::super::watch::{Identity, Watch};
use super::*;
use crate::device::{
    Access, Audience, Backing, ExportRequest, Exported, Imported, LeakFlag, Region,
};
use crate::error::{JobError, Reason};

const LEN: usize = 10_000;
const WRITE: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
const READ: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_ONLY);

/// Runs the body in a separate process, in which no other test runs.
fn alone(test: &str, body: impl FnOnce()) {
    alone_in(module_path!(), test, body);
}

/// An application's memory, which the tests export.
struct Owner {
    memory: Mapping,
    memfd: Arc<OwnedFd>,
    this: Arc<dyn Any + Send + Sync>,
}

fn memfd(len: usize) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"test", flags).unwrap();
    ftruncate(&memfd, len as i64).unwrap();
    fallocate(&memfd, FallocateFlags::empty(), 0, len as i64).unwrap();
    memfd
}

impl Owner {
    fn new() -> Owner {
        let memfd = memfd(LEN);
        let len = NonZeroUsize::new(LEN.next_multiple_of(4096)).unwrap();
        Owner {
            memory: Mapping::new(&memfd, len, true, MapFlags::MAP_SHARED).unwrap(),
            memfd: Arc::new(memfd),
            this: Arc::new(7_u32),
        }
    }

    fn offer(&self, access: Access) -> ExportRequest {
        let backing = Backing {
            memfd: Arc::clone(&self.memfd),
            offset: 0,
        };
        let owner = Arc::downgrade(&self.this);
        self.offer_of(access, Some(backing), owner)
    }

    fn offer_of(
        &self,
        access: Access,
        backing: Option<Backing>,
        owner: Weak<dyn Any + Send + Sync>,
    ) -> ExportRequest {
        // SAFETY: each test keeps its `Owner` until its exports are gone.
        let region = unsafe { Region::new(self.memory.base(), LEN, access) };
        // SAFETY: the memory belongs to the memfd, if one is named, and no job uses the owner.
        unsafe { ExportRequest::new(region, backing, Audience::Dpu, owner, LeakFlag::default()) }
    }

    fn export(&self, access: Access) -> Exported {
        export(3, &self.offer(access)).unwrap()
    }
}

fn get(addr: NonNull<u8>, at: usize) -> u8 {
    // SAFETY: it is within memory that the caller keeps mapped.
    let at = unsafe { addr.add(at) };
    // SAFETY: as above. Other processes write the byte, so the access is volatile.
    unsafe { at.read_volatile() }
}

fn set(addr: NonNull<u8>, at: usize, byte: u8) {
    // SAFETY: it is within memory that the caller keeps mapped.
    let at = unsafe { addr.add(at) };
    // SAFETY: as above. Other processes read the byte, so the access is volatile.
    unsafe { at.write_volatile(byte) }
}

fn ticket(exported: &Exported) -> Ticket {
    Ticket::parse(&MEMORY, exported.blob()).unwrap()
}

fn info(ticket: &Ticket) -> MemoryInfo {
    ticket.info(MemoryInfo::parse).unwrap()
}

/// Returns a ticket of more memory than was exported.
fn longer(ticket: &Ticket) -> Ticket {
    let info = info(ticket);
    let longer = MemoryInfo {
        len: info.len + 1,
        ..info
    };
    with(ticket, |ticket| ticket.payload = longer.format())
}

fn import(ticket: &Ticket, deadline: Instant) -> Result<Imported> {
    import_info(ticket, &info(ticket), deadline)
}

/// Imports as another process would: over the socket, with a separate mapping.
fn over_the_socket(ticket: &Ticket) -> Result<Imported> {
    other(ticket, &info(ticket), soon())
}

/// Sends a request to an exporter on this connection, and returns the descriptors of the reply.
fn grant(ticket: &Ticket, dialed: &Dialed) -> [Guarded; DESCRIPTORS] {
    let instance = super::super::publish::instance().unwrap();
    let stays = dialed.pidfd.is_none();
    let request = ticket.request(instance, dialed.nonce, stays, &[0; PAYLOAD]);
    let answer = ticket.exchange(dialed, &request, soon()).unwrap();
    let (reply, descriptors) = ticket.granted(&request, answer).unwrap();
    assert_eq!(reply.stays, stays);
    assert_eq!(reply.payload, ticket.payload);
    descriptors.unwrap()
}

fn by_key(imported: &Imported) -> &Import {
    // SAFETY: this is the key of an import that lives as long as the reference.
    unsafe { Import::from_key(imported.key) }
}

fn reason(imported: &Imported) -> Option<Reason> {
    let by_key = by_key(imported).check();
    // The import may end between the two checks.
    assert!(by_key.is_ok() || imported.origin.check().is_err());
    by_key.err().map(|error: JobError| error.reason())
}

fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("memfd:").count()
}

#[test]
fn an_own_export_is_the_same_memory_and_the_same_owner() {
    let owner = Owner::new();
    let exported = owner.export(READ);
    let ticket = ticket(&exported);
    let said = info(&ticket);
    assert_eq!((said.port, said.audience), (3, Audience::Dpu));
    assert_eq!(said.access, Access::DPU_READ_ONLY);
    let imported = import(&ticket, soon()).unwrap();
    assert_eq!((imported.addr, imported.len), (owner.memory.base(), LEN));
    assert!(Arc::ptr_eq(imported.owner.as_ref().unwrap(), &owner.this));
    assert_eq!((reason(&imported), imported.key % 8), (None, 0));
    let of = |instance| by_key(&imported).is_of(&instance);
    assert!(of(words_of(&ticket.instance)) && !of([1; 2]));
    let forged = with(&ticket, |ticket| ticket.key = [0; 16]);
    assert_eq!(kind(import(&forged, soon())), ErrorKind::NotPermitted);
    let longer = longer(&ticket);
    assert_eq!(kind(import(&longer, soon())), ErrorKind::NotPermitted);
    drop(exported);
    assert_eq!(reason(&imported), Some(Reason::ExportRevoked));
    assert_eq!(kind(import(&ticket, soon())), ErrorKind::NotPermitted);
}

#[test]
fn what_is_imported_over_the_socket_is_shared_and_revoked() {
    let owner = Owner::new();
    let exported = owner.export(WRITE);
    let ticket = ticket(&exported);
    let imported = over_the_socket(&ticket).unwrap();
    assert!(imported.owner.is_none() && imported.addr != owner.memory.base());
    set(owner.memory.base(), LEN - 1, 42);
    assert_eq!(get(imported.addr, LEN - 1), 42);
    set(imported.addr, 1, 43);
    assert_eq!(get(owner.memory.base(), 1), 43);
    assert_eq!(reason(&imported), None);
    let forged = with(&ticket, |ticket| ticket.key = [0; 16]);
    assert_eq!(kind(over_the_socket(&forged)), ErrorKind::NotPermitted);
    let longer = longer(&ticket);
    assert_eq!(kind(over_the_socket(&longer)), ErrorKind::NotPermitted);
    drop(exported);
    assert_eq!(reason(&imported), Some(Reason::ExportRevoked));
    assert_eq!(kind(over_the_socket(&ticket)), ErrorKind::NotPermitted);
    // The next export gets the same slot, and the export that was taken back stays revoked.
    let next = owner.export(WRITE);
    assert_eq!(reason(&imported), Some(Reason::ExportRevoked));
    drop(next);
}

#[test]
fn nobody_gets_a_writable_mapping_of_what_no_peer_may_write() {
    let _fabric = current::fabric().unwrap();
    // The second access lets other audiences write, but not this audience.
    for access in [READ, READ | Access::RDMA_WRITE] {
        let owner = Owner::new();
        let exported = owner.export(access);
        let ticket = ticket(&exported);
        let dialed = ticket.dial(soon()).unwrap();
        let [memfd, _] = &grant(&ticket, &dialed);
        let len = NonZeroUsize::new(4096).unwrap();
        let map = |write| Mapping::new(memfd, len, write, MapFlags::MAP_SHARED);
        let refused = map(true).err().unwrap();
        assert!(matches!(refused, Errno::EPERM | Errno::EACCES), "{refused}");
        assert!(map(false).is_ok());
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert!(fallocate(memfd, hole, 0, 4096).is_err());
        assert!(ftruncate(memfd, 0).is_err());
        assert!(nix::unistd::write(memfd, &[1]).is_err());
        assert_eq!(get(over_the_socket(&ticket).unwrap().addr, 0), 0);
    }
}

#[test]
fn memory_that_cannot_be_sealed_is_not_exported() {
    let owner = Owner::new();
    let of = |access| kind(export(0, &owner.offer(access)));
    let reader = owner.export(READ);
    assert_eq!(of(WRITE), ErrorKind::NotPermitted);
    drop(reader);
    let owner = Owner::new();
    let writer = owner.export(WRITE);
    assert_eq!(kind(export(0, &owner.offer(READ))), ErrorKind::NotPermitted);
    drop(writer);
    let none = owner.offer_of(READ, None, Arc::downgrade(&owner.this) as _);
    assert_eq!(kind(export(0, &none)), ErrorKind::NotSupported);
}

#[test]
fn an_export_of_another_host_or_namespace_or_of_the_past_says_so() {
    let owner = Owner::new();
    let exported = owner.export(READ);
    let here = ticket(&exported);
    let foreign = with(&here, |ticket| ticket.instance = [1; 16]);
    let host = Netns {
        boot: [1; 16],
        ..here.netns
    };
    let net = Netns {
        net: (1, 2),
        ..here.netns
    };
    let at = |netns| {
        let ticket = with(&foreign, |ticket| ticket.netns = netns);
        import(&ticket, soon()).err().unwrap()
    };
    assert!(at(host).to_string().contains("another host"));
    assert!(at(net).to_string().contains("set_socket_path"));
    let address = Address::Abstract(b"tokio-doca-nobody".to_vec());
    let stale = with(&foreign, |ticket| ticket.address = address);
    assert_eq!(kind(import(&stale, soon())), ErrorKind::ConnectionReset);
    // Another instance listens there; it does not know the key.
    let forged = with(&foreign, |ticket| ticket.key = [2; 16]);
    assert_eq!(kind(import(&forged, soon())), ErrorKind::NotPermitted);
}

/// The memory that the hostile exporters of these tests export.
const FORGED: MemoryInfo = MemoryInfo {
    audience: Audience::Dpu,
    port: 0,
    access: Access::DPU_READ_WRITE,
    len: LEN as u64,
};

fn exporter(
    play: impl FnOnce(OwnedFd, Request) + Send + 'static,
) -> (Ticket, std::thread::JoinHandle<()>) {
    hostile_server(&MEMORY, FORGED.format(), play)
}

/// Imports from an exporter whose answer grants `len` bytes, with these descriptors.
fn grants(len: u64, files: impl FnOnce() -> Vec<OwnedFd> + Send + 'static) -> Result<Imported> {
    let (ticket, thread) = exporter(move |socket, request| {
        let payload = MemoryInfo { len, ..FORGED }.format();
        let reply = Reply::granted([5; 16], false, &payload, &[6; 16], &request);
        send(&socket, &reply, &files());
    });
    let imported = import(&ticket, soon());
    thread.join().unwrap();
    imported
}

fn sealed(memfd: OwnedFd, seals: SealFlag) -> OwnedFd {
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    memfd
}

#[test]
fn an_exporter_that_sends_what_is_not_to_be_trusted_is_refused() {
    let right = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    let control = || {
        let control = Control::new().unwrap();
        control.memfd().try_clone().unwrap()
    };
    let good = move || vec![sealed(memfd(LEN), right), control()];
    let len = LEN as u64;
    assert!(grants(len, good).is_ok());
    type Files = Box<dyn FnOnce() -> Vec<OwnedFd> + Send>;
    let cases: [(&str, Files); 8] = [
        ("no descriptor", Box::new(Vec::new)),
        ("one", Box::new(move || vec![sealed(memfd(LEN), right)])),
        (
            "three",
            Box::new(move || [good(), vec![control()]].concat_owned()),
        ),
        (
            "a file",
            Box::new(move || vec![File::open("/proc/self/exe").unwrap().into(), control()]),
        ),
        ("no seals", Box::new(move || vec![memfd(LEN), control()])),
        (
            "too short",
            Box::new(move || vec![sealed(memfd(LEN - 1), right), control()]),
        ),
        (
            "too long",
            Box::new(move || vec![sealed(memfd(2 * LEN), right), control()]),
        ),
        (
            "another control page",
            Box::new(move || vec![sealed(memfd(LEN), right), memfd(65_536)]),
        ),
    ];
    for (what, files) in cases {
        let error = grants(len, files).err().expect(what);
        let kinds = [ErrorKind::NotPermitted, ErrorKind::OperatingSystem];
        assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
    }
    let holes = move || {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&memfd, LEN as i64).unwrap();
        vec![sealed(memfd, right), control()]
    };
    let error = grants(len, holes).err().unwrap();
    assert!(error.to_string().contains("holes"), "{error}");
    assert_eq!(kind(grants(len + 1, good)), ErrorKind::NotPermitted);
}

trait Concat {
    fn concat_owned(self) -> Vec<OwnedFd>;
}

impl Concat for [Vec<OwnedFd>; 2] {
    fn concat_owned(self) -> Vec<OwnedFd> {
        self.into_iter().flatten().collect()
    }
}

#[test]
fn an_exporter_that_lies_hangs_up_or_is_silent_is_told_apart() {
    let run = |play: fn(OwnedFd, Request), deadline| {
        let (ticket, thread) = exporter(play);
        let kind = kind(import(&ticket, deadline));
        thread.join().unwrap();
        kind
    };
    let hangs_up = run(|_, _| {}, soon());
    assert_eq!(hangs_up, ErrorKind::ConnectionReset);
    let junk = run(
        |socket, _| socket::send(socket.as_fd(), &[7; 500], &[]).unwrap(),
        soon(),
    );
    assert_eq!(junk, ErrorKind::NotPermitted);
    let wrong_key = |socket: OwnedFd, request: Request| {
        assert!(request.is_proved(&[6; 16]) && !request.is_proved(&[7; 16]));
        let reply = Reply::granted([5; 16], false, &FORGED.format(), &[7; 16], &request);
        send(&socket, &reply, &[]);
    };
    assert_eq!(run(wrong_key, soon()), ErrorKind::NotPermitted);
    let silent = |socket: OwnedFd, _: Request| {
        // The exporter waits until the importer gives up.
        assert_eq!(socket::wait([Some(socket.as_fd())], soon()), Ok([true]));
    };
    let shortly = Instant::now() + Duration::from_millis(20);
    assert_eq!(run(silent, shortly), ErrorKind::TimedOut);
}

#[test]
fn importers_that_are_silent_or_talk_nonsense_lose_their_connection_and_nothing_else() {
    let owner = Owner::new();
    let exported = owner.export(WRITE);
    let ticket = ticket(&exported);
    let connect = || socket::connect(&ticket.address, soon()).unwrap();
    let silent: Vec<_> = (0..100).map(|_| connect()).collect();
    for message in [&[0_u8; 1][..], &[7; REQUEST_LEN], &[7; 60_000]] {
        let nonsense = connect();
        socket::send(nonsense.as_fd(), message, &[]).unwrap();
        assert_eq!(socket::wait([Some(nonsense.as_fd())], soon()), Ok([true]));
        assert_eq!(socket::receive(nonsense.as_fd(), &mut [0; 9]), Ok(0));
    }
    assert!(over_the_socket(&ticket).is_ok());
    // The oldest connection was closed at once, and the others are closed after two seconds.
    for (number, silent) in silent.iter().enumerate() {
        assert_eq!(
            socket::wait([Some(silent.as_fd())], soon()),
            Ok([true]),
            "{number}"
        );
        assert_eq!(socket::receive(silent.as_fd(), &mut [0; 9]), Ok(0));
    }
    assert!(over_the_socket(&ticket).is_ok());
}

#[test]
fn as_many_exports_as_slots_and_no_more() {
    alone("as_many_exports_as_slots_and_no_more", || {
        let owner = Owner::new();
        let mut exports: Vec<_> = (0..SLOTS).map(|_| owner.export(READ)).collect();
        let error = export(0, &owner.offer(READ)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.to_string().contains("16383"), "{error}");
        exports.truncate(SLOTS - 1);
        let last = owner.export(READ);
        assert_eq!(ticket(&last).generation, 2);
    });
}

#[test]
fn a_thousand_imports_cost_no_descriptors_and_all_goes_back() {
    alone(
        "a_thousand_imports_cost_no_descriptors_and_all_goes_back",
        || {
            let owner = Owner::new();
            let before = (descriptors(), threads(), mapped());
            for _ in 0..2 {
                let exports: Vec<_> = (0..1000).map(|_| owner.export(WRITE)).collect();
                let import = |exported| over_the_socket(&ticket(exported)).unwrap();
                let mut imports = vec![import(&exports[0])];
                let one = descriptors();
                imports.extend(exports[1..].iter().map(import));
                assert!(imports.iter().all(|imported| reason(imported).is_none()));
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                let pages = maps.matches("memfd:tokio-doca-control").count();
                assert_eq!(pages, 2, "the exporter's own, and one that is read");
                until("connections are closed", || descriptors() <= one + 16);
                assert_eq!(threads(), before.1 + 1);
                drop(exports);
                assert!(
                    imports
                        .iter()
                        .all(|imported| reason(imported) == Some(Reason::ExportRevoked))
                );
            }
            until("all is back", || {
                (descriptors(), threads(), mapped()) == before
            });
        },
    );
}

#[test]
fn a_path_socket_is_used_if_asked_for_and_removed() {
    alone("a_path_socket_is_used_if_asked_for_and_removed", || {
        use super::super::current::set_socket_path;
        let name = netns::hex(&netns::random().unwrap());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let owner = Owner::new();
        // The first path is too long, the second does not exist, and the third names a file.
        for wrong in ["/x".repeat(32).into(), dir.join("no"), "/etc/passwd".into()] {
            let error = set_socket_path(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
        }
        set_socket_path(&dir).unwrap();
        for _ in 0..100 {
            let exported = owner.export(READ);
            let Address::Path(path) = ticket(&exported).address.clone() else {
                panic!("it has a path");
            };
            assert_eq!(path.parent(), Some(&*dir));
            let error = set_socket_path(&dir).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadState);
            assert!(path.exists() && over_the_socket(&ticket(&exported)).is_ok());
            drop(exported);
            assert!(!path.exists());
        }
        std::fs::remove_dir(&dir).unwrap();
        // The folder is gone, so the next export fails.
        assert_eq!(
            kind(export(0, &owner.offer(READ))),
            ErrorKind::OperatingSystem
        );
    });
}

#[test]
fn a_child_of_fork_is_told_and_takes_nothing_from_its_parent() {
    alone(
        "a_child_of_fork_is_told_and_takes_nothing_from_its_parent",
        || {
            let owner = Owner::new();
            let exported = owner.export(WRITE);
            let ticket = ticket(&exported);
            let imported = over_the_socket(&ticket).unwrap();
            // SAFETY: the child allocates, which glibc allows; the other thread of this process
            // sleeps and holds no lock.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let told = kind(import(&ticket, soon())) == ErrorKind::BadState
                    && kind(export(0, &owner.offer(WRITE))) == ErrorKind::BadState;
                drop((imported, exported));
                // SAFETY: this ends only the child.
                unsafe { libc::_exit(if told { 7 } else { 8 }) };
            }
            let pid = Pid::from_raw(pid);
            assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 7));
            assert_eq!(reason(&imported), None);
            assert!(over_the_socket(&ticket).is_ok());
        },
    );
}

/// Acts as an exporting process, which does what it reads.
fn plays() {
    let owner = Owner::new();
    let mut exported = None;
    play(|line| match line {
        "export" => hex(exported.insert(owner.export(WRITE)).blob()),
        "drop" => format!("{}", exported.take().is_some()),
        "read" => format!("{}", get(owner.memory.base(), 5000)),
        other => panic!("{other}"),
    });
}

#[test]
fn memory_of_another_process_is_written_taken_back_and_lost() {
    const NAME: &str = "memory_of_another_process_is_written_taken_back_and_lost";
    if std::env::var(ROLE).is_ok() {
        return plays();
    }
    for _ in 0..2 {
        let mut exporter = Other::start(module_path!(), NAME);
        let ticket = exporter.ticket(&MEMORY);
        let imported = import(&ticket, soon()).unwrap();
        set(imported.addr, 5000, 99);
        assert_eq!(exporter.ask("read"), "99");
        assert_eq!(reason(&imported), None);
        assert_eq!(exporter.ask("drop"), "true");
        assert_eq!(reason(&imported), Some(Reason::ExportRevoked));
        assert!(import(&ticket, soon()).is_err());
        let ticket = exporter.ticket(&MEMORY);
        let again = import(&ticket, soon()).unwrap();
        assert_eq!(reason(&again), None);
        exporter.process.kill().unwrap();
        until("its end is noticed", || reason(&again).is_some());
        assert_eq!(reason(&again), Some(Reason::ExporterGone));
        // With its first fabric, the exporter counts as another process.
        until("the same of its first export", || {
            reason(&imported) == Some(Reason::ExporterGone)
        });
        // The bytes that the exporter wrote are still there, and can be read.
        assert_eq!(get(again.addr, 5000), 99);
        assert_eq!(kind(import(&ticket, soon())), ErrorKind::ConnectionReset);
        exporter.process.wait().unwrap();
    }
}

#[test]
fn without_a_pidfd_the_connection_stays_and_its_end_is_noticed() {
    const NAME: &str = "without_a_pidfd_the_connection_stays_and_its_end_is_noticed";
    if std::env::var(ROLE).is_ok() {
        return plays();
    }
    let mut exporter = Other::start(module_path!(), NAME);
    let ticket = exporter.ticket(&MEMORY);
    let fabric = current::fabric().unwrap();
    let mut dialed = ticket.dial(soon()).unwrap();
    dialed.pidfd = None;
    let [_, control] = grant(&ticket, &dialed);
    let watch = Watch::Connection(Arc::new(dialed.line.into_socket()));
    let page = Words::identify(&control).unwrap();
    // A process in another pid namespace is identified only by its control page, and any process
    // that has the page can send it on.
    let identity = Identity::of(ticket.instance, 0, &watch).unwrap();
    let process = Process::watched(&fabric, identity, watch).unwrap();
    let peer = process
        .exporter(page, || Ok(Words::received(&control).unwrap()))
        .unwrap();
    let another = Process::watched(&fabric, identity, Watch::Connection(Arc::new(control))).err();
    assert_eq!(another, Some(Errno::EPERM), "it is not taken for the first");
    // The exporter has answered other clients since, and has not hung up.
    assert!(import(&ticket, soon()).is_ok());
    assert_eq!(exporter.ask("read"), "0");
    assert!(!process.is_dead() && !peer.is_gone());
    exporter.process.kill().unwrap();
    until("its end is noticed", || process.is_dead());
    assert!(peer.is_gone());
    exporter.process.wait().unwrap();
}

#[test]
fn without_descriptors_the_thread_neither_spins_nor_gives_up() {
    alone(
        "without_descriptors_the_thread_neither_spins_nor_gives_up",
        || {
            use nix::sys::resource::{Resource, setrlimit};
            let owner = Owner::new();
            let exported = owner.export(WRITE);
            let ticket = ticket(&exported);
            // The time that the fabric's thread has spent on a CPU, in nanoseconds.
            let worked = || -> u64 {
                let tasks = read_dir("/proc/self/task")
                    .unwrap()
                    .map(|task| task.unwrap().path());
                let of = |path: &std::path::PathBuf| {
                    let name = std::fs::read_to_string(path.join("comm")).unwrap();
                    name.trim() == "doca-fabric"
                };
                let path = tasks.into_iter().find(of).unwrap().join("schedstat");
                let text = std::fs::read_to_string(path).unwrap();
                text.split(' ').next().unwrap().parse().unwrap()
            };
            setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
            // This shows that the fabric's thread runs, and has its name.
            assert!(over_the_socket(&ticket).is_ok());
            let before = worked();
            let spare = File::open("/dev/null").unwrap();
            let mut hoard: Vec<File> = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                hoard.push(file);
            }
            drop(spare);
            let socket = socket::connect(&ticket.address, soon()).unwrap();
            let shortly = Instant::now() + Duration::from_millis(350);
            assert_eq!(socket::wait([Some(socket.as_fd())], shortly), Ok([false]));
            hoard.truncate(hoard.len() / 2);
            let spent = worked() - before;
            assert!(spent < 50_000_000, "{spent} ns");
            assert!(over_the_socket(&ticket).is_ok());
        },
    );
}

#[test]
fn nothing_is_dropped_while_it_is_looked_up() {
    let gone: Weak<dyn Any + Send + Sync> = Weak::<u32>::new();
    let owner = Owner::new();
    let offer = owner.offer_of(READ, owner.offer(READ).backing().cloned(), gone);
    let exported = export(0, &offer).unwrap();
    assert_eq!(
        kind(import(&ticket(&exported), soon())),
        ErrorKind::NotPermitted
    );
}
