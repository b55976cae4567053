//! What all fuzz targets share: seed inputs, and a mutator that repairs inputs.

use std::path::Path;

/// Writes seed inputs into the directory that `FUZZ_SEEDS` names, before libFuzzer reads it.
pub fn seeds<T: AsRef<[u8]>>(seeds: &[T]) {
    let Some(directory) = std::env::var_os("FUZZ_SEEDS") else {
        return;
    };
    for (number, seed) in seeds.iter().enumerate() {
        let path = Path::new(&directory).join(format!("seed-{number}"));
        std::fs::write(path, seed).expect("FUZZ_SEEDS is a directory");
    }
}

/// Mutates `data[..size]` as libFuzzer does, and calls `repair` half of the time. `repair` corrects
/// what no mutation hits by chance, such as checksums; the other half tests malformed inputs.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    repair: fn(&mut [u8], u32),
) -> usize {
    let size = libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    // Hash the seed, since libFuzzer's own choices depend on the bits of the seed.
    let choice = seed.wrapping_mul(0x9e37_79b1) >> 16;
    if choice & 1 != 0 {
        repair(&mut data[..size], choice >> 1);
    }
    size
}
