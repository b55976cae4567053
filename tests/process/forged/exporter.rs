//! The plays of a hostile exporter: answers, descriptors, and ways to end.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::SockType;
use nix::unistd::ftruncate;
use tokio_doca::mem::Access;

use super::*;
use support::peer::{hear, hex, say, unhex};

/// Size of the memory in bytes.
pub const LEN: usize = 1 << 16;
/// Size of a control page in bytes.
const CONTROL: usize = 1 << 16;
const RESIZE: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);
const MEMORY: SealFlag = RESIZE.union(SealFlag::F_SEAL_SEAL);
const WORDS: SealFlag = MEMORY.union(SealFlag::F_SEAL_FUTURE_WRITE);

/// Makes a memfd with these seals, all of whose pages are allocated.
fn memfd(len: usize, seals: SealFlag) -> OwnedFd {
    sealed(
        memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap(),
        len,
        seals,
    )
    .unwrap()
}

fn sealed(memfd: OwnedFd, len: usize, seals: SealFlag) -> nix::Result<OwnedFd> {
    ftruncate(&memfd, len as i64)?;
    if len > 0 {
        fallocate(&memfd, FallocateFlags::empty(), 0, len as i64)?;
    }
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(memfd)
}

/// Index of a control page's last word, which tells whether its process has ended.
const OWNER: u32 = CONTROL as u32 / 4 - 1;

/// Makes a control page on which each of these slots has generation 1.
fn control(slots: &[u32]) -> OwnedFd {
    let words: Vec<_> = slots.iter().map(|slot| (*slot, 1)).collect();
    words_of(&words)
}

/// Makes a control page with these words, given as pairs of index and value.
fn words_of(words: &[(u32, u32)]) -> OwnedFd {
    let memfd = memfd(CONTROL, SealFlag::empty());
    for (at, word) in words {
        nix::sys::uio::pwrite(&memfd, &word.to_le_bytes(), 4 * i64::from(*at)).unwrap();
    }
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(WORDS)).unwrap();
    memfd
}

/// Opens the same file again with other flags.
fn opened(memfd: &OwnedFd, flags: OFlag) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
    nix::fcntl::open(
        &*path,
        flags | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )
    .unwrap()
}

fn with_holes(len: usize, seals: SealFlag) -> OwnedFd {
    let memfd = memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&memfd, len as i64).unwrap();
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    memfd
}

/// Makes a memfd whose block count matches its length, although half of the blocks lie behind its
/// end.
fn behind_its_end(len: usize, seals: SealFlag) -> OwnedFd {
    let memfd = memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&memfd, len as i64).unwrap();
    let half = len as i64 / 2;
    fallocate(&memfd, FallocateFlags::empty(), 0, half).unwrap();
    let behind = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&memfd, behind, len as i64, half).unwrap();
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    memfd
}

/// Returns the descriptors of a play, which replace the memory and the control page beside a
/// correct answer. `None` if this machine lacks the necessary file.
fn descriptors(play: &str) -> Option<Vec<OwnedFd>> {
    let (memory, words) = (memfd(LEN, MEMORY), control(&[0]));
    let instead = |memory: OwnedFd| Some(vec![memory, control(&[0])]);
    let (read, write) = nix::unistd::pipe().unwrap();
    match play {
        "right" => Some(vec![memory, words]),
        "no descriptor" => Some(Vec::new()),
        "one descriptor" => Some(vec![memory]),
        "three descriptors" => Some(vec![memory, words, read]),
        "253 descriptors" => Some((0..253).map(|_| read.try_clone().unwrap()).collect()),
        "swapped" => Some(vec![words, memory]),
        "a pipe to read" => instead(read),
        "a pipe to write" => instead(write),
        "a device" => instead(File::open("/dev/zero").unwrap().into()),
        "a file" => instead(File::open("/proc/self/exe").unwrap().into()),
        "a directory" => instead(File::open("/").unwrap().into()),
        "a socket" => instead(listen(&name())),
        "a path" => instead(opened(&memory, OFlag::O_PATH)),
        "to be read" => instead(opened(&memory, OFlag::O_RDONLY)),
        "to be written" => instead(opened(&memory, OFlag::O_WRONLY)),
        "no seals" => instead(memfd(LEN, SealFlag::empty())),
        "no SHRINK" => instead(memfd(LEN, MEMORY - SealFlag::F_SEAL_SHRINK)),
        "no GROW" => instead(memfd(LEN, MEMORY - SealFlag::F_SEAL_GROW)),
        "no SEAL" => instead(memfd(LEN, RESIZE)),
        "WRITE" => instead(memfd(LEN, MEMORY | SealFlag::F_SEAL_WRITE)),
        "FUTURE_WRITE" => instead(memfd(LEN, WORDS)),
        "empty" => instead(memfd(0, MEMORY)),
        "short" => instead(memfd(LEN - 1, MEMORY)),
        "holes" => instead(with_holes(LEN, MEMORY)),
        "a hole of a terabyte" => instead(with_holes(1 << 40, MEMORY)),
        "blocks behind the end" => instead(behind_its_end(LEN, MEMORY)),
        "huge pages" | "huge pages with holes" => {
            let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
            let huge = memfd_create(c"hostile", flags).ok()?;
            match play {
                "huge pages" => instead(sealed(huge, 2 << 20, MEMORY).ok()?),
                _ => {
                    ftruncate(&huge, 2 << 20).ok()?;
                    fcntl(&huge, FcntlArg::F_ADD_SEALS(WORDS)).ok()?;
                    instead(huge)
                }
            }
        }
        "words: a pipe" => Some(vec![memory, read]),
        "words: a file" => Some(vec![memory, File::open("/proc/self/exe").unwrap().into()]),
        "words: no seals" => Some(vec![memory, memfd(CONTROL, SealFlag::empty())]),
        "words: no FUTURE_WRITE" => Some(vec![memory, memfd(CONTROL, MEMORY)]),
        "words: no SHRINK" => {
            let seals = WORDS - SealFlag::F_SEAL_SHRINK;
            Some(vec![memory, memfd(CONTROL, seals)])
        }
        "words: short" => Some(vec![memory, memfd(CONTROL - 4096, WORDS)]),
        "words: empty" => Some(vec![memory, memfd(0, WORDS)]),
        "words: long" => Some(vec![memory, memfd(CONTROL + 4096, WORDS)]),
        other => panic!("{other}"),
    }
}

/// Plays with wrong descriptors, each of which must be refused.
pub const DESCRIPTORS: [&str; 35] = [
    "no descriptor",
    "one descriptor",
    "three descriptors",
    "253 descriptors",
    "swapped",
    "a pipe to read",
    "a pipe to write",
    "a device",
    "a file",
    "a directory",
    "a socket",
    "a path",
    "to be read",
    "to be written",
    "no seals",
    "no SHRINK",
    "no GROW",
    "no SEAL",
    "WRITE",
    "FUTURE_WRITE",
    "empty",
    "short",
    "holes",
    "a hole of a terabyte",
    "blocks behind the end",
    "huge pages",
    "huge pages with holes",
    "words: a pipe",
    "words: a file",
    "words: no seals",
    "words: no FUTURE_WRITE",
    "words: no SHRINK",
    "words: short",
    "words: empty",
    "words: long",
];

/// Returns the answer of a play to a request, which comes with correct descriptors.
fn message(play: &str, blob: &Blob, request: &[u8]) -> Option<Vec<u8>> {
    let right = blob.grant(request, 0);
    let with = |change: &dyn Fn(&mut Blob)| {
        let mut blob = blob.clone();
        change(&mut blob);
        Some(blob.grant(request, 0))
    };
    let set = |at: usize, bytes: &[u8]| {
        let mut answer = right.clone();
        answer[at..at + bytes.len()].copy_from_slice(bytes);
        Some(answer)
    };
    match play {
        "half" => Some(right[..ANSWER_LEN / 2].to_vec()),
        "nothing in it" => Some(Vec::new()),
        "garbage" => Some(vec![7; ANSWER_LEN]),
        "too long" => Some([&right[..], &[0]].concat()),
        "much too long" => Some(vec![7; 60_000]),
        "wrong key" => with(&|blob| blob.key[0] ^= 1),
        "wrong proof" => set(ANSWER_LEN - 1, &[!right[ANSWER_LEN - 1]]),
        "no proof" => set(ANSWER_LEN - 32, &[0; 32]),
        "another nonce" => Some(blob.grant(&blob.request([1; 16], 0), 0)),
        "another instance" => with(&|blob| blob.instance[0] ^= 1),
        "another access" => with(&|blob| blob.access = Access::DPU_READ_ONLY.bits()),
        "longer" => with(&|blob| blob.len += 4096),
        "shorter" => with(&|blob| blob.len -= 4096),
        "between pages" => Some(blob.grant(request, 512)),
        "behind the end" => Some(blob.grant(request, 4096)),
        "far behind the end" => Some(blob.grant(request, u64::MAX - 4095)),
        "another version" => set(8, &[2, 0]),
        "another status" => set(10, &[9]),
        "unknown" => set(10, &[UNKNOWN]),
        "failed by nothing" => set(10, &[3, 0, 0, 0, 0, 0]),
        "failed by junk" => set(10, &[3, 0, 255, 255, 255, 127]),
        _ => None,
    }
}

pub const MESSAGES: [&str; 20] = [
    "half",
    "garbage",
    "too long",
    "much too long",
    "wrong key",
    "wrong proof",
    "no proof",
    "another nonce",
    "another instance",
    "another access",
    "longer",
    "shorter",
    "between pages",
    "behind the end",
    "far behind the end",
    "another version",
    "another status",
    "unknown",
    "failed by nothing",
    "failed by junk",
];

/// The hostile process. For each line it prints a forged blob, and attacks whichever process
/// imports it as the line says, until the next line.
pub fn hostile() {
    while let Some(line) = hear() {
        let (play, of) = line.split_once(" @ ").unwrap_or((&line, ""));
        let mut blob = Blob::forged(&name(), Access::DPU_READ_WRITE.bits(), LEN as u64);
        match play {
            // The name and the export of an exporter that has died, with a wrong key.
            "squats" => {
                let dead = Blob::parse(&unhex(of));
                blob = dead;
                blob.key = [1; 16];
            }
            "steals the instance" => {
                blob.instance = Blob::parse(&unhex(of)).instance;
                blob.slot = 77;
            }
            _ => {}
        }
        let kind = match play {
            "a stream" => SockType::Stream,
            _ => SockType::SeqPacket,
        };
        let backlog = if play == "full" { 0 } else { 10 };
        let listener = listen_with(&blob.name, kind, backlog);
        let mut queued = Vec::new();
        if play == "full" {
            queued.push(connect(&blob.name));
        }
        say(&hex(&blob.format()));
        if ["deaf", "full", "a stream"].contains(&play) {
            hear();
            continue;
        }
        let socket = accept(&listener);
        if play == "dies unasked" {
            die();
        }
        if play == "hangs up" {
            drop(socket);
            hear();
            continue;
        }
        let (request, _) = receive(&socket);
        assert_eq!(request.len(), REQUEST_LEN);
        let right = blob.grant(&request, 0);
        let files = [memfd(LEN, MEMORY), control(&[blob.slot])];
        let raw = [files[0].as_raw_fd(), files[1].as_raw_fd()];
        match play {
            "silent" => {}
            "dies asked" => die(),
            "dies answering" => {
                send(&socket, &right, &raw).unwrap();
                die();
            }
            "late" => {
                hear();
                // The importer has gone.
                let late = send(&socket, &right, &raw);
                assert_eq!(late, Err(nix::Error::EPIPE));
                say("late");
            }
            "keeps punching" | "steals the instance" | "squats" => {
                send(&socket, &right, &raw).unwrap();
                let punch =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                if play == "keeps punching" {
                    hear();
                }
                let end = Instant::now() + LIMIT;
                while play == "keeps punching" && Instant::now() < end {
                    assert!(ftruncate(&files[0], 0).is_err());
                    fallocate(&files[0], punch, 0, LEN as i64).unwrap();
                    nix::sys::uio::pwrite(&files[0], &[0xAA; LEN], 0).unwrap();
                }
            }
            "punches when told" => {
                send(&socket, &right, &raw).unwrap();
                let punch =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                while hear().is_some_and(|line| line == "punch") {
                    fallocate(&files[0], punch, 0, LEN as i64).unwrap();
                    say("punched");
                }
                continue;
            }
            "forks" => {
                send(&socket, &right, &raw).unwrap();
                say(&fork_and_linger().to_string());
            }
            "replaces its program" => {
                send(&socket, &right, &raw).unwrap();
                hear();
                let script = "echo '@@ replaced'; exec cat";
                let error = Command::new("sh").args(["-c", script]).exec();
                panic!("execve: {error}");
            }
            "owner's word" => {
                let words = words_of(&[(blob.slot, 1), (OWNER, of.parse().unwrap())]);
                let raw = [raw[0], words.as_raw_fd()];
                send(&socket, &right, &raw).unwrap();
            }
            play => match message(play, &blob, &request) {
                Some(message) => send(&socket, &message, &raw).unwrap(),
                None => {
                    let files = descriptors(play);
                    if files.is_none() {
                        eprintln!("{play}: not on this machine");
                    }
                    let raw: Vec<_> = files.iter().flatten().map(AsRawFd::as_raw_fd).collect();
                    send(&socket, &right, &raw).unwrap();
                }
            },
        }
        hear();
    }
}
