//! Expected CRCs: the vectors of RFC 3720, and the `crc32c` crate for data of any length.

use tokio_doca::device::CrcOptions;

/// The seed of a subject's jobs. It is not 0, so that a device that ignores the seed is found.
pub(crate) const SEED: u32 = 0x5eed_c0de;
pub(crate) const SEEDED: CrcOptions = CrcOptions::new().seed(SEED);

/// Returns the CRC-32C of bytes that follow data whose CRC is `seed`, computed without a device.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Returns data and their CRCs: from RFC 3720, B.4, which prints the bytes of a CRC in the order of
/// the wire; the usual check value of a CRC; and empty data.
pub(crate) fn known_crcs() -> [(Vec<u8>, u32); 7] {
    let mut read_pdu = [0_u8; 48];
    for (at, byte) in [
        (0, 0x01),
        (1, 0xc0),
        (16, 0x14),
        (22, 0x04),
        (27, 0x14),
        (31, 0x18),
        (32, 0x28),
        (40, 0x02),
    ] {
        read_pdu[at] = byte;
    }
    [
        (vec![0; 32], 0x8a91_36aa),
        (vec![0xff; 32], 0x62a8_ab43),
        ((0..32).collect(), 0x46dd_794e),
        ((0..32).rev().collect(), 0x113f_db5c),
        (read_pdu.to_vec(), 0xd996_3a56),
        (b"123456789".to_vec(), 0xe306_9283),
        (Vec::new(), 0),
    ]
}
