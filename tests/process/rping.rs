//! Tests against `rping` of rdma-core, in both roles: it connects by rdma_cm, and the server reads
//! and writes the client's memory by the raw address and key in a message.
//!
//! In each round the client sends the address of its text, which the server reads; then it sends
//! the address of a buffer, which the server writes. The server answers each message with one that
//! carries no information.

use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use support::both_sides::{Side, all_access};
use support::cm::Place;
use support::{LIMIT, block_until, in_time, run};
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::rdma::{CmListener, RdmaState};
use tokio_doca::verbs::MemoryAddress;
use tokio_doca::{Buf, Mmap, Mode};

const ROUNDS: usize = 10;
/// Size in bytes of rping's message: an address, a key and a length, big-endian.
const INFO: usize = 16;

/// Returns a port that no other test here uses, and that no earlier run of the same test has used.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(7174);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the address of rping: `ip`, or `TOKIO_DOCA_RPING_AT` if rping runs on another machine,
/// as in `tests/soft-roce/two`.
fn there(ip: IpAddr) -> IpAddr {
    std::env::var("TOKIO_DOCA_RPING_AT").map_or(ip, |text| text.parse().unwrap())
}

struct Rping(Child);

impl Rping {
    fn start(addr: SocketAddr, role: &str) -> Rping {
        let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
        let rounds = ROUNDS.to_string();
        let mut rping = Command::new("rping");
        rping.args([
            role, "-a", &ip, "-p", &port, "-C", &rounds, "-v", "-V", "-S", "100",
        ]);
        Rping(
            rping
                .stdout(Stdio::piped())
                .spawn()
                .expect("rping of rdmacm-utils"),
        )
    }

    /// Waits for the end. Returns the number of rounds, and true if rping has succeeded.
    fn end(mut self) -> (usize, bool) {
        block_until("rping ends", || self.0.try_wait().unwrap().is_some());
        let mut said = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut said).unwrap();
        println!("{said}");
        let rounds = said.lines().filter(|line| line.contains("rdma-ping-"));
        (rounds.count(), self.0.wait().unwrap().success())
    }
}

impl Drop for Rping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn info(of: MemoryAddress) -> Vec<u8> {
    let (addr, rkey, len) = (of.addr.to_be_bytes(), of.rkey.to_be_bytes(), of.len as u32);
    [&addr[..], &rkey, &len.to_be_bytes()].concat()
}

fn address(info: &[u8]) -> MemoryAddress {
    let number = |at: std::ops::Range<usize>| {
        info[at]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    MemoryAddress {
        addr: number(0..8),
        rkey: number(8..12) as u32,
        len: number(12..16),
    }
}

/// Imports the memory whose address is in a message.
async fn remote(side: &Side, message: &Buf, access: Access) -> tokio_doca::mem::RemoteBuf {
    let said = address(&message.data().unwrap());
    let blob = said.to_blob(access).unwrap();
    let memory = RemoteMmap::from_export(&side.device, &blob).await.unwrap();
    memory.buf(..).unwrap()
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn rping_asks_and_is_answered() {
    let Place { device, ip } = Place::of_adapter();
    run(async {
        for mode in [Mode::EventDriven, Mode::BusyPoll] {
            let listener = CmListener::bind(&device, SocketAddr::new(ip, port())).unwrap();
            let rping = Rping::start(listener.local_addr(), "-c");
            let request = in_time("rping calls", listener.accept()).await.unwrap();
            assert!(request.is_foreign());
            let side = Side::new(&device, mode);
            let message = side.empty();
            let mut receive = side.rdma.recv(&message).owned().start().unwrap();
            let accept = request.accept(&side.rdma).foreign(true).timeout(LIMIT);
            in_time("the accept", accept).await.unwrap();
            for _ in 0..ROUNDS {
                assert_eq!(receive.await.unwrap().len, INFO);
                let source = remote(&side, &message, Access::RDMA_READ).await;
                let text = side.empty();
                assert_eq!(side.rdma.read(&source, &text).await, Ok(100));
                assert!(text.data().unwrap().starts_with(b"rdma-ping-"));
                message.reset_data_len().unwrap();
                receive = side.rdma.recv(&message).owned().start().unwrap();
                side.rdma.send(side.filled(&[0; INFO])).await.unwrap();
                assert_eq!(receive.await.unwrap().len, INFO);
                let sink = remote(&side, &message, Access::RDMA_WRITE).await;
                assert_eq!(side.rdma.write(&text, &sink).await, Ok(100));
                message.reset_data_len().unwrap();
                receive = side.rdma.recv(&message).owned().start().unwrap();
                side.rdma.send(side.filled(&[0; INFO])).await.unwrap();
            }
            // `rping` disconnects.
            receive.await.unwrap_err();
            let ended = tokio::task::spawn_blocking(|| rping.end()).await.unwrap();
            assert_eq!(ended, (ROUNDS, true));
        }
    });
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn rping_answers() {
    let Place { device, ip } = Place::of_adapter();
    run(async {
        for mode in [Mode::EventDriven, Mode::BusyPoll] {
            let addr = SocketAddr::new(there(ip), port());
            let rping = Rping::start(addr, "-s");
            let side = Side::new(&device, mode);
            let message = side.empty();
            let mut receive = side.rdma.recv(&message).owned().start().unwrap();
            // Retries until rping listens.
            let connected = async {
                while side
                    .rdma
                    .connect_to(addr)
                    .foreign(true)
                    .timeout(LIMIT)
                    .await
                    .is_err()
                {
                    assert_eq!(side.rdma.state(), RdmaState::Init);
                    tokio::task::yield_now().await;
                }
            };
            in_time("rping listens", connected).await;
            let (access, bufs) = (all_access(), BufInventory::with_capacity(2));
            let export = |len: usize| {
                let mmap = Mmap::builder()
                    .device(&device)
                    .access(access)
                    .alloc(len)
                    .unwrap();
                let address = MemoryAddress::of(&mmap.export_rdma(&device).unwrap()).unwrap();
                (
                    mmap,
                    MemoryAddress {
                        len: 100,
                        ..address
                    },
                )
            };
            let ((source, of_source), (sink, of_sink)) = (export(4096), export(4096));
            for round in 0..ROUNDS {
                let mut text = format!("rdma-ping-{round}: from here").into_bytes();
                // rping expects a NUL-terminated text.
                text.resize(99, b'.');
                text.push(0);
                let filled = bufs.buf_filled(&source, ..100).unwrap();
                filled.copy_in(0, &text).unwrap();
                for of in [of_source, of_sink] {
                    side.rdma.send(side.filled(&info(of))).await.unwrap();
                    assert_eq!(receive.await.unwrap().len, INFO);
                    message.reset_data_len().unwrap();
                    receive = side.rdma.recv(&message).owned().start().unwrap();
                }
                let mut back = vec![0; 100];
                let written = bufs.buf_filled(&sink, ..100).unwrap();
                written.copy_out(0, &mut back).unwrap();
                assert_eq!(back, text);
            }
            side.rdma.close().await.unwrap();
            receive.await.unwrap_err();
            // An rping server ends with an error once its client has disconnected.
            let ended = tokio::task::spawn_blocking(|| rping.end()).await.unwrap();
            assert_eq!(ended.0, ROUNDS);
        }
    });
}
