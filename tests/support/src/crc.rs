//! A reference implementation of CRC-32C.

/// Computes the CRC-32C bit by bit from the polynomial, of bytes that follow other bytes whose CRC
/// is `seed`.
pub fn bitwise(seed: u32, bytes: &[u8]) -> u32 {
    let mut crc = !seed;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}
