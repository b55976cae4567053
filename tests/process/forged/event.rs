//! A hostile importer of a sync event: what it asks, by hand, and what it gets.

use std::os::fd::OwnedFd;

use sha2::{Digest, Sha256};

/// Where the owner of an event listens.
pub fn name(blob: &[u8]) -> &[u8] {
    &blob[184..184 + usize::from(blob[15])]
}

/// Asks for an event. The answer is not read.
pub fn knock(blob: &[u8]) -> OwnedFd {
    let mut said = b"tkdoca\x00\xb5\x01\x00\x00\x00".to_vec();
    said.extend(&blob[16..24]);
    said.extend([7; 16]);
    said.extend([0xee; 16]);
    let mut hello = b"tkdocaev".to_vec();
    hello.resize(96, 0);
    said.extend(&hello);
    let proof = Sha256::new()
        .chain_update(b"tokio-doca knock")
        .chain_update(&blob[168..184])
        .chain_update(&said)
        .finalize();
    let socket = super::connect(name(blob));
    super::send(&socket, &[&said[..], &proof[..]].concat(), &[]).unwrap();
    socket
}

/// Reads the answer, which is a welcome: the page, and the memory that the counter lies in.
pub fn welcomed(socket: &OwnedFd) -> [OwnedFd; 2] {
    let (answer, memfds) = super::receive(socket);
    assert_eq!(answer[10..12], [0, 0], "welcome");
    memfds.try_into().unwrap()
}
