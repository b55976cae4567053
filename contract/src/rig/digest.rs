//! Expected digests: NIST's examples, and the `sha1` and `sha2` crates for messages of any length.

use sha2::Digest;

use tokio_doca::device::Algorithm;

/// Returns the digest of a message, computed without a device.
pub(crate) fn digest(algorithm: Algorithm, message: &[u8]) -> Vec<u8> {
    match algorithm {
        Algorithm::Sha1 => sha1::Sha1::digest(message).to_vec(),
        Algorithm::Sha256 => sha2::Sha256::digest(message).to_vec(),
        Algorithm::Sha512 => sha2::Sha512::digest(message).to_vec(),
        other => unknown(other),
    }
}

/// Panics for an algorithm that the library supports and this version of the suite does not.
fn unknown(algorithm: Algorithm) -> ! {
    panic!("this version of the suite does not know {algorithm:?}: take a newer one")
}

/// A message longer than a block of SHA-1 and SHA-256, and too long for one padded block of
/// SHA-512.
const LONGER: &[u8] = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno\
    ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

/// Returns messages and their digests in hex: the examples of FIPS 180-4, from NIST's "Example
/// Algorithms", and short messages of its CAVP.
pub(crate) fn known(algorithm: Algorithm) -> [(&'static [u8], &'static str); 4] {
    match algorithm {
        Algorithm::Sha1 => [
            (b"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            (b"\x36", "c1dfd96eea8cc2b62785275bca38ac261256e278"),
            (b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (LONGER, "a49b2446a02c645bf419f995b67091253a04a259"),
        ],
        Algorithm::Sha256 => [
            (
                b"",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                b"\xd3",
                "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1",
            ),
            (
                b"abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                LONGER,
                "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
            ),
        ],
        Algorithm::Sha512 => [
            (
                b"",
                "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
                 47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
            ),
            (
                b"\x21",
                "3831a6a6155e509dee59a7f451eb35324d8f8f2df6e3708894740f98fdee2388\
                 9f4de5adb0c5010dfb555cda77c8ab5dc902094c52de3278f35a75ebc25f093a",
            ),
            (
                b"abc",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                 2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
            (
                LONGER,
                "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018\
                 501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909",
            ),
        ],
        other => unknown(other),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
