//! What a CRC must be: the vectors of RFC 3720, and the bare crate for data of any length.

use tokio_doca::device::CrcOptions;

/// What the jobs of a subject begin with, so that a device which ignores the seed is found.
pub(crate) const SEED: u32 = 0x5eed_c0de;
pub(crate) const SEEDED: CrcOptions = CrcOptions::new().seed(SEED);

/// The CRC-32C of bytes behind others whose CRC is the seed, without a device.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Data and their CRCs: RFC 3720, B.4, which prints the bytes of a CRC in the order of the wire;
/// the usual check of a CRC; and no data.
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
