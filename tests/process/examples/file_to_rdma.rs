//! `file_to_rdma`: a file that io_uring reads, and RDMA writes carry to another process.

use std::fs;
use std::path::Path;

use support::device::needs_soft;
use support::programs::*;

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

/// Where io_uring may not be used, these fail: they are ignored unless they are asked for.
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
            // The last one: the receiver takes no other.
            (&huge, "a file has 1 to 4294967296"),
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
