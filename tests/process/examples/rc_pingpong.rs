//! Tests of the example `rc_pingpong`: the text of its exchange, its flags, and, on an adapter,
//! both roles against rdma-core's `ibv_rc_pingpong`.

#[path = "../../../examples/rc_pingpong/args.rs"]
mod args;
#[path = "../../../examples/rc_pingpong/exchange.rs"]
mod exchange;

use std::io::{Error, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use args::Args;
use exchange::{Place, answer, call};
use support::block_until;
use support::device::adapter;
use support::programs::{Folder, example, run, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_doca::rdma::Mtu;

const HERE: Place = Place {
    lid: 0x1f,
    qpn: 0x11,
    psn: 0xb8_9147,
    gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1],
};
/// The line that `ibv_rc_pingpong` sends for such an endpoint.
const LINE: &str = "001f:000011:b89147:00000000000000000000ffff0a4d0001";

#[test]
fn a_place_is_the_line_of_ibv_rc_pingpong() {
    assert_eq!(HERE.to_string(), LINE);
    assert_eq!(LINE.parse(), Ok(HERE));
    let largest = Place {
        lid: u16::MAX,
        qpn: 0xff_ffff,
        psn: 0xff_ffff,
        gid: [0xff; 16],
    };
    assert_eq!(largest.to_string().parse(), Ok(largest));
    assert_eq!(LINE.to_uppercase().parse(), Ok(HERE));
}

#[test]
fn what_is_no_such_line_is_refused() {
    let replaced = |from: &str, to: &str| LINE.replacen(from, to, 1);
    for line in [
        String::new(),
        ":::".into(),
        replaced("1f", "1g"),
        replaced("001f", "+01f"),
        replaced("001f", "-01f"),
        replaced("001f", " 01f"),
        replaced("001f", "1f"),
        replaced("000011", "11"),
        replaced("000011", "1000011"),
        replaced("b89147", "é147"),
        replaced(":b8", " b8"),
        replaced("0a4d0001", "0a4d00"),
        format!("{LINE}0"),
        format!("{LINE}:"),
        format!("{LINE}\0"),
    ] {
        let refused = line.parse::<Place>();
        assert!(refused.is_err(), "{line:?} is {refused:?}");
    }
}

fn there() -> Place {
    Place { qpn: 0x12, ..HERE }
}

#[tokio::test]
async fn both_sides_hear_of_each_other_and_the_server_is_connected_first() {
    // The pipe is shorter than a line.
    let (mut client, mut server) = duplex(7);
    let connected = std::cell::Cell::new(false);
    let connect = async |place| {
        assert_eq!(place, HERE);
        connected.set(true);
        Ok::<_, Error>(())
    };
    let calls = async {
        let place = call(&mut client, HERE).await.unwrap();
        assert!(connected.get(), "before the client hears where it is");
        place
    };
    let (called, answered) = tokio::join!(calls, answer(&mut server, there(), connect));
    assert_eq!((called, answered.unwrap()), (there(), HERE));
}

#[tokio::test]
async fn the_bytes_are_those_of_ibv_rc_pingpong() {
    let there_line = format!("{}\0", there());
    // This side acts as the client.
    let (mut stream, mut server) = duplex(256);
    server.write_all(there_line.as_bytes()).await.unwrap();
    assert_eq!(call(&mut stream, HERE).await.unwrap(), there());
    drop(stream);
    let mut said = String::new();
    server.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, format!("{LINE}\0done\0"));
    // This side acts as the server.
    let (mut stream, mut client) = duplex(256);
    let says = format!("{there_line}done\0");
    client.write_all(says.as_bytes()).await.unwrap();
    let place = answer(&mut stream, HERE, async |_| Ok::<_, Error>(())).await;
    assert_eq!(place.unwrap(), there());
    drop(stream);
    let mut said = String::new();
    client.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, format!("{LINE}\0"));
}

#[tokio::test]
async fn a_stranger_is_refused_before_anything_is_connected() {
    let long = [b'0'; 52];
    for (says, kind) in [
        (&b""[..], ErrorKind::UnexpectedEof),
        (b"001f:000011", ErrorKind::UnexpectedEof),
        (
            b"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: */*\r\n\r\n\r\n\r\n",
            ErrorKind::InvalidData,
        ),
        (&long, ErrorKind::InvalidData),
        (&[0xff; 52], ErrorKind::InvalidData),
        (&[0; 52], ErrorKind::InvalidData),
    ] {
        let (mut stream, mut stranger) = duplex(256);
        stranger.write_all(says).await.unwrap();
        stranger.shutdown().await.unwrap();
        let connect = async |_| -> Result<(), Error> { panic!("it is connected") };
        let error = answer(&mut stream, HERE, connect).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let (mut stream, mut stranger) = duplex(256);
        stranger.write_all(says).await.unwrap();
        stranger.shutdown().await.unwrap();
        let error = call(&mut stream, HERE).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    // The peer ends with a wrong message.
    let (mut stream, mut stranger) = duplex(256);
    let says = format!("{LINE}\0gone\0");
    stranger.write_all(says.as_bytes()).await.unwrap();
    let error = answer(&mut stream, HERE, async |_| Ok::<_, Error>(())).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidData);
}

fn parse(words: &str) -> Result<Option<Args>, String> {
    Args::parse(words.split_whitespace().map(str::to_owned))
}

#[test]
fn the_flags_are_those_of_ibv_rc_pingpong() {
    let plain = parse("").unwrap().unwrap();
    assert_eq!((plain.port, plain.size, plain.iters), (18515, 4096, 1000));
    assert_eq!(
        (plain.mtu, plain.events, &plain.host),
        (Mtu::Bytes1024, false, &None)
    );
    let long = "--port=4000 --ib-dev rxe0 --ib-port=1 --size=64 --mtu=4096 --rx-depth=8 \
                --iters=10 --sl=0 --events --gid-idx=1 --chk there";
    let short = "-p 4000 -d rxe0 -i 1 -s 64 -m4096 -r8 -n 10 -l 0 -e there -g1 -c";
    assert_eq!(parse(long), parse(short));
    let args = parse(short).unwrap().unwrap();
    assert_eq!((args.port, args.size, args.iters), (4000, 64, 10));
    assert_eq!((args.mtu, args.rx_depth), (Mtu::Bytes4096, 8));
    assert_eq!(args.device.as_deref(), Some("rxe0"));
    assert_eq!(
        (args.events, args.gid_index, args.check),
        (true, Some(1), true)
    );
    assert_eq!(args.host.as_deref(), Some("there"));
    for help in ["-h", "--help", "-e --help"] {
        assert_eq!(parse(help), Ok(None));
    }
    for (words, says) in [
        ("-x", "-x"),
        ("--ports 1", "--ports"),
        ("-p", "needs a value"),
        ("-p 65536", "65536"),
        ("-p 0", "\"0\""),
        ("-n 0", "\"0\""),
        ("-s x", "\"x\""),
        ("-m 1000", "256, 512, 1024, 2048 or 4096"),
        ("-i 2", "it is 1 here"),
        ("-l 3", "it is 0 here"),
        ("--events=1", "takes no value"),
        ("one two", "\"one\" is a host"),
    ] {
        let error = parse(words).unwrap_err();
        assert!(error.contains(says), "{words}: {error}");
    }
}

/// A run of two processes, one of which is ours and the other rdma-core's: one listens at a TCP
/// port, and the other connects.
struct Pairing {
    port: u16,
    ours_listens: bool,
    flags: Vec<String>,
}

impl Pairing {
    fn new(ours_listens: bool, flags: &[&str]) -> Pairing {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let port = 18_600 + NEXT.fetch_add(1, Ordering::Relaxed);
        let device = adapter().unwrap();
        let mut all = vec![format!("--port={port}"), format!("--ib-dev={device}")];
        all.extend(ipv4_gid(&device).map(|gid| format!("--gid-idx={gid}")));
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        Pairing {
            port,
            ours_listens,
            flags: all,
        }
    }

    /// Returns the command of one side, run by strace if there is a folder for its traces.
    fn side(&self, ours: bool, traces: Option<&Path>) -> Command {
        let plain = match ours {
            true => example("rc_pingpong"),
            false => Command::new("ibv_rc_pingpong"),
        };
        let mut command = match traces {
            None => plain,
            Some(folder) => {
                // strace writes a file for each thread, in which no call is split.
                let mut strace = Command::new("strace");
                strace.args(["-ff", "-y", "-o"]).arg(folder.join("of"));
                strace.arg(plain.get_program());
                strace
            }
        };
        command.args(&self.flags).stdin(Stdio::null());
        command
    }

    /// Runs both processes to their ends. Returns the output of ours and of theirs.
    fn run(&self, traces: [Option<&Path>; 2]) -> [String; 2] {
        let [ours, theirs] = [true, false].map(|ours| {
            let traces = traces[usize::from(!ours)];
            self.side(ours, traces)
        });
        let (mut listens, mut calls) = match self.ours_listens {
            true => (ours, theirs),
            false => (theirs, ours),
        };
        let mut server = Running(listens.stdout(Stdio::piped()).spawn().unwrap());
        block_until("the server listens", || {
            if let Some(status) = server.0.try_wait().unwrap() {
                panic!("the server has ended: {status}");
            }
            is_listening(self.port)
        });
        let called = run(calls.arg("127.0.0.1"));
        let said = |bytes: &[u8]| text(bytes).to_owned();
        assert!(called.status.success(), "{calls:?}: {called:?}");
        let mut out = String::new();
        server
            .0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        let mut status = None;
        block_until("the server ends", || {
            status = server.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{listens:?}: {status:?}, {out}");
        match self.ours_listens {
            true => [out, said(&called.stdout)],
            false => [said(&called.stdout), out],
        }
    }
}

/// Returns the index of the adapter's first GID with an IPv4 address, which `ibv_rc_pingpong` does
/// not choose by itself; `None` on InfiniBand.
fn ipv4_gid(device: &str) -> Option<u32> {
    let gid = |index: &u32| {
        let path = format!("/sys/class/infiniband/{device}/ports/1/gids/{index}");
        std::fs::read_to_string(path)
            .is_ok_and(|gid| gid.starts_with("0000:0000:0000:0000:0000:ffff:"))
    };
    (0..16).find(gid)
}

/// A process that is killed at the end of its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the kernel's list of sockets: a connection would be taken for a client.
fn is_listening(port: u16) -> bool {
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|name| {
        let table = std::fs::read_to_string(format!("/proc/net/{name}")).unwrap();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
        })
    })
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn both_roles_and_both_modes_go_with_rdma_cores() {
    for ours_listens in [true, false] {
        for (mode, sizes) in [(&["--events"][..], &[4096][..]), (&[], &[1, 100_000])] {
            for size in sizes {
                let size = format!("--size={size}");
                let mut flags = vec!["--iters=50", "--mtu=1024", "--chk", &size];
                flags.extend(mode);
                let said = Pairing::new(ours_listens, &flags).run([None; 2]);
                for said in said {
                    assert!(said.contains("50 iters in "), "{said}");
                }
            }
        }
    }
}

/// Counts the system calls of all threads, and the events that they read from a completion channel.
fn counted(traces: &Path) -> (usize, usize) {
    let (mut calls, mut events) = (0, 0);
    for file in std::fs::read_dir(traces).unwrap() {
        let trace = std::fs::read(file.unwrap().path()).unwrap();
        for line in String::from_utf8_lossy(&trace).lines() {
            // Other lines report signals and exits.
            calls += usize::from(line.starts_with(|c: char| c.is_ascii_lowercase()));
            let event = line.starts_with("read(") && line.contains("[infinibandevent]");
            events += usize::from(event && !line.contains(" = -1 "));
        }
    }
    (calls, events)
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn asleep_it_takes_no_more_calls_and_events_than_rdma_cores() {
    // Other programs influence how often a side sleeps: under much load one of three runs must
    // succeed.
    assert!((0..3).any(|_| takes_no_more_asleep()));
}

fn takes_no_more_asleep() -> bool {
    const SHORT: usize = 20;
    const LONG: usize = 120;
    let mut each = [(0.0, 0.0); 2];
    for ours_listens in [true, false] {
        // The longer run has 100 more round trips, whose calls are the difference.
        let [short, long] = [SHORT, LONG].map(|iters| {
            let folders = [Folder::new(), Folder::new()];
            let iters = format!("--iters={iters}");
            let pairing = Pairing::new(ours_listens, &["--size=4096", "--events", &iters]);
            pairing.run([Some(&folders[0].0), Some(&folders[1].0)]);
            folders.each_ref().map(|folder| counted(&folder.0))
        });
        for ((each, short), long) in each.iter_mut().zip(short).zip(long) {
            let per_trip = |short, long| (long as f64 - short as f64) / (LONG - SHORT) as f64 / 2.0;
            each.0 += per_trip(short.0, long.0);
            each.1 += per_trip(short.1, long.1);
        }
    }
    let [ours, theirs] = each;
    println!("system calls and events of a round trip: {ours:.2?}, rdma-core's {theirs:.2?}");
    // rdma-core's counts are plausible, so the traces were parsed correctly.
    assert!(theirs.0 >= 3.0 && theirs.1 >= 1.0, "{theirs:?}");
    ours.0 <= theirs.0 + 1.0 && ours.1 <= theirs.1 + 1.0
}
