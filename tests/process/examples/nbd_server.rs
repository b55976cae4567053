//! Tests of `nbd_server`, with a client of the test that can send anything, and with independent
//! clients: `nbdinfo`, `nbdcopy`, `qemu-img`, `qemu-io` and fio, which `.ci/run tools` installs.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::block_until;
use support::programs::*;

use crate::hostile::bystander::{Attack, is_served_beside};
use crate::hostile::messengers::{SILENT, say_nothing};

const SIZE: usize = 8 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;

struct Server {
    program: Running,
    folder: Folder,
    socket: PathBuf,
}

impl Server {
    fn start(flags: &[&str]) -> Server {
        Server::start_in(Folder::new(), flags)
    }

    fn start_in(folder: Folder, flags: &[&str]) -> Server {
        Server::start_by(example("nbd_server"), folder, flags)
    }

    fn start_by(mut command: Command, folder: Folder, flags: &[&str]) -> Server {
        let socket = folder.path("nbd");
        command.arg("--socket").arg(&socket).args(flags);
        if !flags.contains(&"--size") {
            command.args(["--size", &SIZE.to_string()]);
        }
        let program = Running::start(command);
        let server = Server {
            program,
            folder,
            socket,
        };
        assert!(server.line().starts_with("Listening on "));
        server
    }

    fn line(&self) -> String {
        self.program.line()
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn client(&self) -> Client {
        let mut client = self.raw();
        client.option(7, &[&[0; 6][..]].concat());
        loop {
            match client.reply(7) {
                (1, _) => return client,
                (kind, _) => assert_eq!(kind, 3, "information"),
            }
        }
    }

    /// Connects a client that has exchanged only the first words of both sides.
    fn raw(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(support::LIMIT)).unwrap();
        let mut client = Client(stream);
        assert_eq!(client.bytes(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(client.bytes(2), [0, 3]);
        client.0.write_all(&[0, 0, 0, 3]).unwrap();
        client
    }

    fn kill(mut self) -> Folder {
        self.program.kill();
        std::mem::take(&mut self.folder)
    }
}

/// A client that can send anything.
struct Client(UnixStream);

impl Client {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn number(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let len = (data.len() as u32).to_be_bytes();
        let words = [b"IHAVEOPT", &option.to_be_bytes()[..], &len, data];
        self.0.write_all(&words.concat()).unwrap();
    }

    /// Returns the kind and the data of the server's reply to an option.
    fn reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.bytes(8), 0x0003_e889_0455_65a9_u64.to_be_bytes());
        assert_eq!(self.number(), option);
        let (kind, len) = (self.number(), self.number());
        (kind, self.bytes(len as usize))
    }

    fn send(&mut self, command: u16, flags: u16, at: u64, len: u32, data: &[u8]) {
        let request = [
            &0x2560_9513_u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            b"a cookie",
            &at.to_be_bytes(),
            &len.to_be_bytes(),
            data,
        ];
        self.0.write_all(&request.concat()).unwrap();
    }

    /// Reads a simple reply, and returns its error.
    fn error(&mut self) -> u32 {
        assert_eq!(self.number(), 0x6744_6698);
        let error = self.number();
        assert_eq!(self.bytes(8), b"a cookie");
        error
    }

    fn does(&mut self, command: u16, flags: u16, at: u64, len: u32, data: &[u8]) -> u32 {
        self.send(command, flags, at, len, data);
        self.error()
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        assert_eq!(self.does(WRITE, 0, at as u64, data.len() as u32, data), 0);
    }

    fn read(&mut self, at: usize, len: usize) -> Vec<u8> {
        assert_eq!(self.does(READ, 0, at as u64, len as u32, &[]), 0);
        self.bytes(len)
    }

    /// Asserts that the server disconnects without sending anything.
    #[track_caller]
    fn is_cut_off(&mut self) {
        match self.0.read(&mut [0]) {
            Ok(0) => {}
            // The server has not read all that was sent.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            not => panic!("{not:?}"),
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_by_every_connection() {
    let server = Server::start(&["--checksums"]);
    let (mut one, mut other) = (server.client(), server.client());
    let data = pattern(200_001);
    one.write(12_345, &data);
    assert_eq!(other.read(12_345, data.len()), data);
    assert_eq!(one.does(FLUSH, 0, 0, 0, &[]), 0);
    // Zeroes with FUA, and a trim, both with lengths that are not aligned to blocks.
    assert_eq!(one.does(ZEROES, 3, 20_000, 70_001, &[]), 0);
    assert_eq!(one.does(TRIM, 0, 150_000, 11, &[]), 0);
    let mut expected = data.clone();
    expected[20_000 - 12_345..][..70_001].fill(0);
    expected[150_000 - 12_345..][..11].fill(0);
    assert_eq!(other.read(12_345, data.len()), expected);
    assert_eq!(other.read(SIZE - 1, 1), [0]);
    // Many requests at once, which the server answers in order.
    for at in 0..64 {
        one.send(WRITE, 0, at * 4096, 4096, &[at as u8; 4096]);
        one.send(READ, 0, at * 4096, 4096, &[]);
    }
    for at in 0..64_u8 {
        assert_eq!((one.error(), one.error()), (0, 0));
        assert_eq!(one.bytes(4096), [at; 4096]);
    }
    one.send(DISC, 0, 0, 0, &[]);
    one.is_cut_off();
}

#[test]
fn structured_replies_are_agreed_on() {
    let server = Server::start(&[]);
    let mut client = server.raw();
    client.option(8, &[]);
    assert_eq!(client.reply(8), (1, vec![]));
    client.option(3, &[]);
    assert_eq!(client.reply(3), (2, b"\0\0\0\x04disk".to_vec()));
    assert_eq!(client.reply(3), (1, vec![]));
    client.option(7, b"\0\0\0\x04disk\0\x01\0\x03");
    while client.reply(7).0 != 1 {}
    client.write(100, b"abc");
    client.send(READ, 4, 99, 4, &[]);
    let head = b"\x66\x8e\x33\xef\0\x01\0\x01a cookie\0\0\0\x0c\0\0\0\0\0\0\0\x63";
    assert_eq!(client.bytes(28), head);
    assert_eq!(client.bytes(4), b"\0abc");
    client.send(READ, 0, SIZE as u64 - 1, 2, &[]);
    let error = b"\x66\x8e\x33\xef\0\x01\x80\x01a cookie\0\0\0\x06\0\0\0\x16\0\0";
    assert_eq!(client.bytes(26), error);
}

#[test]
fn what_makes_no_sense_is_refused_and_harms_nobody() {
    let server = Server::start(&[]);
    let (einval, enospc) = (22, 28);
    let (end, len) = (SIZE as u64, SIZE as u32);
    let mut good = server.client();
    good.write(0, b"good");
    let mut client = server.client();
    for (command, flags, at, len, error) in [
        (READ, 0, end, 1, einval),
        (READ, 0, u64::MAX, u32::MAX, einval),
        (READ, 0, 0, u32::MAX, einval),
        (READ, 4, 0, 1, einval),
        (READ, 0, 0, 0, 0),
        (FLUSH, 8, 0, 0, einval),
        (TRIM, 0, 1, len, enospc),
        (TRIM, 0, u64::MAX, u32::MAX, enospc),
        (ZEROES, 16, 0, 1, einval),
        (ZEROES, 0, end - 1, 2, enospc),
        (7, 0, 0, 1, einval),
        (0xffff, 0xffff, 0, 0, einval),
    ] {
        let got = client.does(command, flags, at, len, &[]);
        assert_eq!(got, error, "{command} {flags} {at} {len}");
    }
    // The server reads the data of a refused write all the same, and understands the next request.
    assert_eq!(client.does(WRITE, 0, end - 3, 4, b"good"), enospc);
    assert_eq!(client.does(WRITE, 0x8000, 0, 4, b"evil"), einval);
    let long = vec![1; (32 << 20) + 1];
    assert_eq!(client.does(WRITE, 0, 0, long.len() as u32, &long), einval);
    assert_eq!(client.read(0, 4), b"good");

    let cut_off = |what: &dyn Fn(&mut Client)| {
        let mut client = server.raw();
        what(&mut client);
        client.is_cut_off();
    };
    cut_off(&|client| client.0.write_all(b"nonsense").unwrap());
    cut_off(&|client| client.option(1, b"another"));
    cut_off(&|client| {
        let _ = client.0.write_all(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    });
    cut_off(&|client| {
        for _ in 0..64 {
            client.option(99, &[]);
            assert_eq!(client.reply(99), (1 << 31 | 1, vec![]));
        }
    });
    let mut client = server.raw();
    client.option(6, b"\0\0\0\x07another\0\0");
    assert_eq!(client.reply(6).0, 1 << 31 | 6);
    for wrong in [
        &b""[..],
        b"\xff\xff\xff\xff",
        b"\0\0\0\x01disk",
        b"\0\0\0\0\0\x01",
    ] {
        client.option(7, wrong);
        assert_eq!(client.reply(7).0, 1 << 31 | 3, "{wrong:?}");
    }
    client.option(2, &[]);
    assert_eq!(client.reply(2).0, 1);
    client.is_cut_off();

    let mut client = server.client();
    client.0.write_all(&[0; 28]).unwrap();
    client.is_cut_off();
    // One client ends in the middle of a write, and another reads nothing of the data that it
    // requests.
    let mut client = server.client();
    client.send(WRITE, 0, 0, 1 << 20, b"evil");
    drop(client);
    let mut greedy = server.client();
    greedy.send(READ, 0, 0, SIZE as u32, &[]);
    // The server is in the middle of its reply, which is longer than the socket can hold.
    assert_eq!(greedy.error(), 0);
    good.write(0, &vec![7; SIZE]);
    assert_eq!(good.read(0, SIZE), vec![7; SIZE]);
    let late = greedy.bytes(SIZE);
    assert_eq!(late[SIZE - 1], 7, "it was not read before");
}

#[test]
fn a_client_that_stalls_within_a_request_is_cut_off() {
    let server = Server::start(&["--stall-ms", "100"]);
    let mut idle = server.client();
    let mut client = server.client();
    client.0.write_all(b"\x25\x60\x95\x13\0").unwrap();
    client.is_cut_off();
    let mut client = server.client();
    client.send(WRITE, 0, 0, 1000, b"a part");
    client.is_cut_off();
    let mut client = server.client();
    client.send(READ, 0, 0, 1 << 20, &[]);
    let mut hung_up = [PollFd::new(client.0.as_fd(), PollFlags::empty())];
    let limit = PollTimeout::try_from(support::LIMIT).unwrap();
    assert_eq!(poll(&mut hung_up, limit), Ok(1));
    let mut sent = Vec::new();
    client.0.read_to_end(&mut sent).unwrap();
    assert!(sent.len() < 1 << 20, "{}", sent.len());
    // There is no time limit between two requests.
    idle.write(0, b"idle");
}

#[test]
fn silent_clients_keep_no_honest_one_out() {
    let server = Server::start(&[]);
    let mut visit = async || server.client().write(0, b"honest");
    support::run(async {
        for (name, first) in [("no flags", &b""[..]), ("no option", &[0, 0, 0, 3])] {
            let socket = server.socket.clone();
            let silent = async move |attack: &Attack| {
                say_nothing(|| UnixStream::connect(&socket), first, attack).await;
            };
            is_served_beside(name, SILENT, &mut visit, silent).await;
        }
    });
}

#[test]
fn clients_that_write_the_same_bytes_have_their_checksums() {
    let server = Server::start(&["--checksums"]);
    thread::scope(|scope| {
        for byte in 0..4 {
            let mut client = server.client();
            scope.spawn(move || {
                for _ in 0..200 {
                    client.write(1000, &[byte; 100_000]);
                }
            });
        }
    });
}

#[test]
fn a_server_without_descriptors_waits_until_it_has_some() {
    let mut limited = limited("-n 32", &example("nbd_server"));
    limited.stderr(Stdio::piped());
    let mut server = Server::start_by(limited, Folder::new(), &[]);
    let connect = |_| UnixStream::connect(&server.socket).unwrap();
    let clients: Vec<_> = (0..40).map(connect).collect();
    let (errors, mut error) = (server.program.child.stderr.take().unwrap(), String::new());
    BufReader::new(errors).read_line(&mut error).unwrap();
    assert_eq!(
        error,
        "nbd_server: accept: Too many open files (os error 24)\n"
    );
    // From here on the server cannot write its messages, which does no harm.
    drop(clients);
    server.client();
}

#[test]
fn only_a_socket_that_nobody_listens_on_is_replaced() {
    let folder = Folder::new();
    let (path, bytes) = folder.file("nbd", 100);
    let refused = |path: &Path| {
        let output = run(example("nbd_server").arg("--socket").arg(path));
        assert!(text(&output.stderr).contains("in use"), "{output:?}");
    };
    refused(&path);
    same(&path, &bytes);
    fs::remove_file(&path).unwrap();
    let server = Server::start_in(folder, &[]);
    refused(&path);
    drop(server.client());
    let server = Server::start_in(server.kill(), &[]);
    server.client();
}

#[test]
fn a_disk_that_is_a_file_survives_a_kill_and_is_nobody_elses() {
    let folder = Folder::new();
    let path = folder.path("file").display().to_string();
    let data = pattern(3 << 20);
    // The server allocates the blocks of a sparse file.
    let file = fs::File::create(&path).unwrap();
    file.set_len(SIZE as u64).unwrap();
    let server = Server::start_in(folder, &["--file", &path]);
    assert!(file.metadata().unwrap().blocks() * 512 >= SIZE as u64);
    server.client().write(4096, &data);
    let mut second = example("nbd_server");
    let second = run(second.args(["--file", &path, "--socket", "nowhere"]));
    assert!(text(&second.stderr).contains("another process has it"));
    let server = Server::start_in(server.kill(), &["--file", &path, "--size", "1"]);
    assert_eq!(server.client().read(4096, data.len()), data);
    drop(server.client());
    assert_eq!(fs::read(&path).unwrap()[4096..][..data.len()], data);
    let server = Server::start_in(server.kill(), &["--file", &path, "--read-only"]);
    let mut client = server.client();
    assert_eq!(client.does(WRITE, 0, 0, 4, b"evil"), 1);
    assert_eq!(client.does(TRIM, 0, 0, 4, &[]), 1);
    assert_eq!(client.read(4096, data.len()), data);
}

/// Beyond the limit of file sizes the kernel would send SIGXFSZ.
#[test]
fn a_server_names_the_limit_of_files_and_leaves_none() {
    let folder = Folder::new();
    let path = folder.path("file");
    let mut command = example("nbd_server");
    command.arg("--socket").arg(folder.path("nbd"));
    command.arg("--file").arg(&path);
    let output = run(&mut limited("-f 1024", &command));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("ulimit -f") && error.lines().count() == 1,
        "{error}"
    );
    assert!(!path.exists());
}

/// The server leaves no file if it cannot allocate the disk's size, or if the size is 0.
#[test]
fn a_server_leaves_no_file_that_is_no_disk() {
    // Uses a tmpfs: another file system might write to each block first.
    let shared = Path::new("/dev/shm");
    if !shared.is_dir() {
        return;
    }
    let name = format!("nbd_server-{}", std::process::id());
    let path = shared.join(name);
    let starts = |size: &str| {
        let mut command = example("nbd_server");
        command.args(["--socket", "nowhere", "--size", size, "--file"]);
        let output = run(command.arg(&path));
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr).to_owned()
    };
    let large = (1_u64 << 50).to_string();
    for (size, why) in [(&*large, "no room for the disk"), ("0", "a byte or more")] {
        let error = starts(size);
        assert!(error.contains(why), "{error}");
        assert!(!path.exists(), "{size} bytes");
        // An existing file stays as it was.
        fs::write(&path, b"").unwrap();
        starts(size);
        let len = fs::metadata(&path).unwrap().len();
        fs::remove_file(&path).unwrap();
        assert_eq!(len, 0);
    }
}

/// A dying server holds the lock of the file until its memory is freed.
#[test]
fn a_server_waits_for_one_that_is_dying() {
    let folder = Folder::new();
    let path = folder.path("file");
    let file = fs::File::create_new(&path).unwrap();
    let dying = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let mut command = example("nbd_server");
    command.arg("--socket").arg(folder.path("nbd"));
    command.arg("--file").arg(&path);
    let server = Running::start(command);
    let descriptors = format!("/proc/{}/fd", server.child.id());
    block_until("it has the file open", || {
        let open = fs::read_dir(&descriptors).into_iter().flatten();
        let mut names = open.filter_map(|open| fs::read_link(open.ok()?.path()).ok());
        names.any(|name| name == path)
    });
    drop(dying);
    assert!(server.line().starts_with("Listening on "));
}

#[track_caller]
fn succeeds(program: &str, args: &[&str]) -> String {
    let output = run(Command::new(program).args(args));
    let (said, errors) = (
        text(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{program} {args:?}: {said}{errors}"
    );
    said.to_owned()
}

fn same(path: &Path, bytes: &[u8]) {
    assert!(fs::read(path).unwrap() == bytes, "{}", path.display());
}

/// Tests that need the programs that `.ci/run tools` installs.
mod needs_programs {
    use super::*;

    #[test]
    #[ignore = "needs nbdinfo and nbdcopy"]
    fn libnbd_sees_the_export_and_copies_there_and_back() {
        let server = Server::start(&["--checksums"]);
        let uri = server.uri();
        let info = succeeds("nbdinfo", &[&uri]);
        let size = format!("export-size: {SIZE}");
        let can = [
            "can_multi_conn: true",
            "can_trim: true",
            "can_zero: true",
            "can_fua: true",
        ];
        for part in can.iter().chain(&[&size[..], "structured"]) {
            assert!(info.contains(part), "no {part:?} in {info}");
        }
        succeeds("nbdinfo", &["--list", &uri]);
        let (path, bytes) = server.folder.file("source", SIZE);
        let (there, back) = (path.display().to_string(), server.folder.path("back"));
        for connections in ["--connections=1", "--connections=4"] {
            succeeds("nbdcopy", &[connections, "--flush", &there, &uri]);
            let _ = fs::remove_file(&back);
            succeeds("nbdcopy", &[connections, &uri, &back.display().to_string()]);
            same(&back, &bytes);
        }
        let crc = format!("crc32c {:08x}", support::crc::bitwise(0, &bytes));
        while server.line() != crc {}
    }

    #[test]
    #[ignore = "needs qemu-img and qemu-io"]
    fn qemu_reads_and_writes_the_disk() {
        let server = Server::start(&[]);
        let uri = format!("nbd+unix:///disk?socket={}", server.socket.display());
        let (path, bytes) = server.folder.file("source", SIZE);
        let (there, back) = (path.display().to_string(), server.folder.path("back"));
        succeeds(
            "qemu-img",
            &["convert", "-n", "-f", "raw", "-O", "raw", &there, &uri],
        );
        succeeds(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", &there, &uri],
        );
        let copy = back.display().to_string();
        succeeds(
            "qemu-img",
            &["convert", "-f", "raw", "-O", "raw", &uri, &copy],
        );
        same(&back, &bytes);
        let said = succeeds(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                "write -P 0x5a 1000 70000",
                "-c",
                "write -z 2000 500",
                "-c",
                "discard 10000 4096",
                "-c",
                "flush",
                "-c",
                "read -P 0x5a 1000 1000",
                "-c",
                "read -P 0 2000 500",
                "-c",
                "read -P 0x5a 2500 5000",
                &uri,
            ],
        );
        assert!(!said.contains("failed"), "{said}");
    }

    #[test]
    #[ignore = "needs fio with nbd"]
    fn fio_verifies_what_it_writes() {
        let server = Server::start(&["--checksums"]);
        let uri = format!("--uri={}", server.uri());
        let folder = format!("--aux-path={}", server.folder.0.display());
        let job = [
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randrw",
            "--bs=4k",
            "--iodepth=32",
            "--size=4m",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--do_verify=1",
            "--loops=2",
        ];
        let args = [&job[..], &[&uri, &folder]].concat();
        let said = succeeds("fio", &args);
        assert!(said.contains("err= 0"), "{said}");
    }
}
