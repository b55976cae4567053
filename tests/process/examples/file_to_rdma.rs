//! Tests of `file_to_rdma`: io_uring reads a file, and RDMA writes transfer it to another process.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use support::device::needs_soft;
use support::programs::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::mem::{BufInventory, RemoteMmap};
use tokio_doca::stream::RdmaConnector;
use tokio_doca::{Device, Mmap, WorkQ};

fn receiver(path: &Path) -> (Running, String) {
    let mut command = example("file_to_rdma");
    command.args(["receive", "127.0.0.1:0"]).arg(path);
    let receiver = Running::start(command);
    let line = receiver.line();
    let addr = line.strip_prefix("Listening on ").unwrap().to_owned();
    (receiver, addr)
}

fn send(addr: &str, path: &Path) -> (bool, String) {
    let ended = run(example("file_to_rdma").args(["send", addr]).arg(path));
    let said = [ended.stdout, ended.stderr].concat();
    (ended.status.success(), text(&said).to_owned())
}

fn is_left_out() -> bool {
    needs_soft("its processes open the default device") || is_emulated("have io_uring")
}

/// Each such peer is refused or times out, and the next one is served.
#[test]
fn peers_that_send_no_file_do_not_end_the_receiver() {
    if needs_soft("its processes open the default device") {
        return;
    }
    let folder = Folder::new();
    let to = folder.path("to");
    let (mut receiver, addr) = receiver(&to);
    let (addr, bytes): (SocketAddr, _) = (addr.parse().unwrap(), folder.file("from", 5000).1);
    let hello = (bytes.len() as u64).to_le_bytes();
    support::run(async {
        let device = Device::open_default().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let connector = RdmaConnector::new(&device, &workq).unwrap();
        for wrong in [&b"abc"[..], &[0; 8], &[0xff; 8], &[7; 9]] {
            let refused = connector.connect_with(addr, wrong).await.map(drop);
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("a file has 1 to"), "{text}");
        }
        // One peer disconnects, and one sends a wrong CRC.
        drop(connector.connect_with(addr, &hello).await.unwrap());
        let (mut liar, _) = connector.connect_with(addr, &hello).await.unwrap();
        let len = liar.read_u16_le().await.unwrap();
        liar.read_exact(&mut vec![0; len.into()]).await.unwrap();
        liar.write_u32_le(7).await.unwrap();
        assert_eq!(liar.read(&mut [0]).await.unwrap_or(0), 0);

        let (mut stream, data) = connector.connect_with(addr, &hello).await.unwrap();
        assert_eq!(data, b"", "memory is made once the peer has come");
        let mut blob = vec![0; stream.read_u16_le().await.unwrap().into()];
        stream.read_exact(&mut blob).await.unwrap();
        let memory = RemoteMmap::from_export(&device, &blob).await.unwrap();
        let mmap = Mmap::builder().device(&device).alloc(8192).unwrap();
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        buf.extend_from_slice(&bytes).unwrap();
        let rdma = stream.rdma().unwrap();
        rdma.write(&buf, &memory.buf(..).unwrap()).await.unwrap();
        let sum = crc32c::crc32c(&bytes);
        stream.write_u32_le(sum).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 1);
    });
    assert!(receiver.child.wait().unwrap().success());
    assert!(fs::read(to).unwrap() == bytes);
}

/// Tests that need io_uring. They fail where it is forbidden, so they are ignored by default.
mod needs_io_uring {
    use super::*;

    #[test]
    #[ignore = "needs io_uring"]
    fn files_of_every_length_arrive_as_they_are() {
        if is_left_out() {
            return;
        }
        let folder = Folder::new();
        for len in [1, 4096, (256 << 10) - 1, 256 << 10, 3_000_001] {
            let (from, bytes) = folder.file("from", len);
            let to = folder.path(&len.to_string());
            let (mut receiver, addr) = receiver(&to);
            let (done, said) = send(&addr, &from);
            let sum = format!("CRC-32C {:08x}", crc32c::crc32c(&bytes));
            let line = said.trim_end();
            assert!(
                done && line.starts_with("sent: ") && line.ends_with(&sum),
                "{said}"
            );
            assert_eq!(receiver.line(), format!("received: {len} bytes, {sum}"));
            assert!(receiver.child.wait().unwrap().success());
            assert!(fs::read(to).unwrap() == bytes, "{len} bytes");
        }
    }

    #[test]
    #[ignore = "needs io_uring"]
    fn what_cannot_be_sent_or_received_is_said_in_one_line() {
        if is_left_out() {
            return;
        }
        let folder = Folder::new();
        let (file, _) = folder.file("file", 100);
        let (empty, _) = folder.file("empty", 0);
        let huge = folder.path("huge");
        fs::File::create(&huge)
            .unwrap()
            .set_len((4 << 30) + 1)
            .unwrap();
        let (receiver, addr) = receiver(&folder.path("to"));
        for (path, part) in [
            (&empty, "it is no file with bytes in it"),
            (&folder.0, "it is no file with bytes in it"),
            (&folder.path("none"), "No such file"),
            (&huge, "a file has 1 to 1073741824"),
        ] {
            let (done, said) = send(&addr, path);
            assert!(
                !done && said.contains(part) && said.lines().count() == 1,
                "{said}"
            );
        }
        drop(receiver);
        let there = run(example("file_to_rdma")
            .args(["receive", "127.0.0.1:0"])
            .arg(file));
        assert!(text(&there.stderr).contains("File exists"));
    }
}
