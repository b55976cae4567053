//! CRCs equal the values of RFC 3720, however the data is split, and whether the CPU or the device
//! computes them.

use proptest::prelude::*;
use support::crc::bitwise;
use support::*;
use tokio_doca::crc::{Crc, CrcCopied, CrcOptions, combine};
use tokio_doca::soft::Soft;
use tokio_doca::{
    BufPool, Mmap, Mode, WorkQ,
    mem::{BufChain, BufInventory},
    op::Output,
};

use super::{attach, seeded};

#[test]
fn crcs_are_those_of_rfc_3720() {
    let mut read_pdu = vec![0_u8; 48];
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
    // Section B.4 prints the bytes of a CRC in wire order.
    let known: [(Vec<u8>, [u8; 4]); 5] = [
        (vec![0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (vec![0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        ((0..32).collect(), [0x4e, 0x79, 0xdd, 0x46]),
        ((0..32).rev().collect(), [0x5c, 0xdb, 0x3f, 0x11]),
        (read_pdu, [0x56, 0x3a, 0x96, 0xd9]),
    ];
    each_on_any(&configs(), async |bench| {
        let crc = attach(bench);
        for (data, wire) in &known {
            let expected = u32::from_le_bytes(*wire);
            let (src, dst) = (bench.filled(data), bench.empty());
            assert_eq!(crc.crc32c(&src).await, Ok(expected));
            let copied = crc.copy_crc(&src, &dst).await.unwrap();
            assert_eq!((copied.bytes, copied.crc), (data.len(), expected));
            assert_eq!(bytes(&dst), *data);
        }
    });
}

#[test]
fn no_data_has_the_crc_of_the_seed() {
    each(async |bench| {
        let (crc, src, dst) = (attach(bench), bench.empty(), bench.filled(b"old"));
        let none = BufChain::with_capacity(1);
        for (seed, expected) in [(0, 0), (0x1234_5678, 0x1234_5678)] {
            assert_eq!(crc.crc32c_with(seeded(seed), &src).await, Ok(expected));
            assert_eq!(crc.crc32c_with(seeded(seed), &none).await, Ok(expected));
            let copied = CrcCopied {
                bytes: 0,
                crc: expected,
            };
            for answer in [
                crc.copy_crc_with(seeded(seed), &src, &dst).await,
                crc.copy_crc_with(seeded(seed), &none, &dst).await,
            ] {
                assert_eq!(answer, Ok(copied));
            }
        }
        assert_eq!(bytes(&dst), b"old");
    });
}

#[test]
fn parts_have_the_crc_of_the_whole_by_seeds_and_combined() {
    each_on_any(&configs(), async |bench| {
        let (crc, data) = (attach(bench), pattern(3, 4000));
        let (src, whole) = (bench.filled(&data), bitwise(0, &data));
        for cut in [0, 1, 7, 512, 3999, 4000] {
            let (first, second) = (src.slice(0..cut).unwrap(), src.slice(cut..4000).unwrap());
            let begun = crc.crc32c(&first).await.unwrap();
            assert_eq!(crc.crc32c_with(seeded(begun), &second).await, Ok(whole));
            let dst = bench.empty();
            let copied = crc.copy_crc_with(seeded(begun), &second, &dst).await;
            assert_eq!(copied.unwrap().crc, whole);
            let apart = crc.crc32c(&second).await.unwrap();
            assert_eq!(combine(begun, apart, 4000 - cut), whole, "cut at {cut}");
        }
    });
}

/// How a copy is split: the ends of the pieces on either side, and whether the device defers jobs.
#[derive(Debug)]
struct Cut {
    len: usize,
    seed: u32,
    from: Vec<usize>,
    to: Vec<usize>,
    defer: bool,
}

fn cuts() -> impl Strategy<Value = Cut> {
    let pieces = || proptest::collection::vec(0_usize..20_000, 0..5);
    let seed = prop_oneof![Just(0), any::<u32>()];
    (0_usize..60_000, seed, pieces(), pieces(), any::<bool>()).prop_map(
        |(len, seed, from, to, defer)| Cut {
            len,
            seed,
            from,
            to,
            defer,
        },
    )
}

/// Returns a chain of Bufs with these lengths, and one for the remaining bytes, filled with `data`.
fn chain(mmap: &Mmap, len: usize, cuts: &[usize], data: &[u8]) -> BufChain {
    let inventory = BufInventory::with_capacity(8);
    let chain = BufChain::with_capacity(cuts.len() + 1);
    let mut at = 0;
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let piece = cut.min(len - at);
        let buf = match piece {
            // An empty range makes no Buf.
            0 => continue,
            _ => inventory.buf(mmap, at..at + piece).unwrap(),
        };
        if !data.is_empty() {
            buf.extend_from_slice(&data[at..at + piece]).unwrap();
        }
        chain.push(buf).unwrap();
        at += piece;
    }
    chain
}

#[test]
fn any_cut_of_any_data_gives_the_crc_bit_by_bit() {
    let softs = [false, true].map(|defer| Soft::builder().defer(defer).build());
    proptest!(|(cut in cuts())| {
        let device = softs[usize::from(cut.defer)].open("pf0").unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        let crc = Crc::builder(&device).attach(&workq).unwrap();
        let len = cut.len.max(1);
        let [from, to] = [(); 2].map(|()| Mmap::builder().device(&device).alloc(len).unwrap());
        let data = pattern(cut.seed as u8, len);
        let (src, dst) = (chain(&from, len, &cut.from, &data), chain(&to, len, &cut.to, &[]));
        let expected = bitwise(cut.seed, &data);
        let options = seeded(cut.seed).expected(expected);
        let answer = workq.block_on(crc.crc32c_with(options, &src));
        prop_assert_eq!(answer, Ok(expected));
        let answer = workq.block_on(crc.copy_crc_with(options, &src, &dst));
        prop_assert_eq!(answer, Ok(CrcCopied { bytes: len, crc: expected }));
        prop_assert_eq!(dst.data_len(), len);
    });
}

#[test]
fn every_number_of_engines_computes_alike() {
    let data = pattern(5, 3 << 20);
    let expected = bitwise(0, &data);
    for engines in [0, 1, 3] {
        let device = Soft::builder()
            .engines(engines)
            .build()
            .open("pf0")
            .unwrap();
        let mmap = Mmap::builder()
            .device(&device)
            .alloc(2 * data.len())
            .unwrap();
        let pool = BufPool::builder(&mmap)
            .element_size(data.len())
            .build()
            .unwrap();
        let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
        src.extend_from_slice(&data).unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        let crc = Crc::builder(&device).attach(&workq).unwrap();
        assert_eq!(workq.block_on(crc.crc32c(&src)), Ok(expected));
        let copied = workq.block_on(crc.copy_crc(&src, &dst)).unwrap();
        assert_eq!((copied.bytes, copied.crc), (data.len(), expected));
        assert!(bytes(&dst) == data);
    }
}

#[test]
fn a_loop_of_one_s_own_is_told_the_numbers() {
    for defer in [false, true] {
        let bench = Bench::new(Config::new(defer, Mode::BusyPoll));
        let (crc, data) = (attach(&bench), pattern(1, 900));
        let (src, dst, expected) = (bench.filled(&data), bench.empty(), bitwise(0, &data));
        crc.crc32c(&src).post(1).unwrap();
        crc.copy_crc(&src, &dst).post(2).unwrap();
        let wrong = CrcOptions::new().expected(!expected);
        crc.crc32c_with(wrong, &src).post(3).unwrap();
        let mut told = Vec::new();
        block_until("all are told", || {
            bench
                .workq
                .progress(|word, output| told.push((word, output)));
            told.len() == 3
        });
        told.sort_by_key(|(word, _)| *word);
        let value = |at: usize| told[at].1.as_ref().ok().and_then(Output::value);
        assert_eq!(value(0), Some(u64::from(expected)));
        let copied = CrcCopied {
            bytes: 900,
            crc: expected,
        };
        assert_eq!(value(1).map(CrcCopied::from), Some(copied));
        assert!(told[2].1.is_err());
        assert_eq!(bytes(&dst), data);
    }
}
