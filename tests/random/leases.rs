//! Checks random leases on overlapping ranges against a model that knows the readers and the writer
//! of each byte.
//!
//! Guards, `Bytes` and jobs in flight hold leases on Bufs of an inventory, which may overlap, and
//! on elements of a pool and of an array, which do not. The model has a count of readers and a
//! writer for each byte: a lease is granted exactly if every byte allows it, and what was written
//! is read back.

use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use support::{poll_pending, refused};
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Dma, ErrorKind, Mmap, Mode, WorkQ,
    error::{JobError, Reason},
    mem::{BufArray, BufData, BufDataMut, BufInventory},
};

/// The byte ranges of the pool, of the array, and of the inventory's Bufs.
const POOL: Range<usize> = 0..32;
const ARRAY: Range<usize> = 32..64;
const FREE: Range<usize> = 64..160;
const ELEMENT: usize = 8;
const DEPTH: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Write(usize),
    Bytes(usize),
    Rooms(usize),
    CopyOut(usize),
    CopyIn(usize),
    Load(usize),
    Add(usize),
    Start(usize, usize),
    EndRead(usize),
    EndWrite(usize),
    EndBytes(usize),
    Finish,
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<usize>;
    prop_oneof![
        4 => at().prop_map(Step::Read),
        4 => at().prop_map(Step::Write),
        2 => at().prop_map(Step::Bytes),
        1 => at().prop_map(Step::Rooms),
        1 => at().prop_map(Step::CopyOut),
        1 => at().prop_map(Step::CopyIn),
        1 => at().prop_map(Step::Load),
        1 => at().prop_map(Step::Add),
        3 => (at(), at()).prop_map(|(a, b)| Step::Start(a, b)),
        3 => at().prop_map(Step::EndRead),
        3 => at().prop_map(Step::EndWrite),
        2 => at().prop_map(Step::EndBytes),
        1 => Just(Step::Finish),
    ]
}

/// Generates a range of the inventory's bytes, and true if the range is full of data.
fn range() -> impl Strategy<Value = (Range<usize>, bool)> {
    (FREE, 1..24_usize, prop::bool::weighted(0.7)).prop_map(|(start, len, full)| {
        let end = FREE.end.min(start + len);
        (start..end, full)
    })
}

/// The model of one byte of the memory.
#[derive(Clone, Copy, Default)]
struct Byte {
    readers: usize,
    written: bool,
    value: u8,
}

struct Model([Byte; FREE.end]);

impl Model {
    fn may_read(&self, range: &Range<usize>) -> bool {
        self.0[range.clone()].iter().all(|byte| !byte.written)
    }

    fn may_write(&self, range: &Range<usize>) -> bool {
        let free = |byte: &Byte| !byte.written && byte.readers == 0;
        self.0[range.clone()].iter().all(free)
    }

    fn read(&mut self, range: &Range<usize>) {
        self.0[range.clone()]
            .iter_mut()
            .for_each(|byte| byte.readers += 1);
    }

    fn end_read(&mut self, range: &Range<usize>) {
        self.0[range.clone()]
            .iter_mut()
            .for_each(|byte| byte.readers -= 1);
    }

    fn write(&mut self, range: &Range<usize>, written: bool) {
        self.0[range.clone()]
            .iter_mut()
            .for_each(|byte| byte.written = written);
    }

    fn fill(&mut self, range: &Range<usize>, values: &[u8]) {
        for (byte, &value) in self.0[range.clone()].iter_mut().zip(values) {
            byte.value = value;
        }
    }

    fn values(&self, range: &Range<usize>) -> Vec<u8> {
        self.0[range.clone()]
            .iter()
            .map(|byte| byte.value)
            .collect()
    }
}

/// A Buf, its byte range, and true if the range is full of data at the beginning.
struct Place {
    buf: Buf,
    at: Range<usize>,
    full: bool,
}

/// Makes overlapping Bufs, the elements of the pool, and those of the array.
fn places(mmap: &Mmap, ranges: &[(Range<usize>, bool)]) -> Vec<Place> {
    let inventory = BufInventory::with_capacity(ranges.len());
    let pool = BufPool::builder(mmap)
        .range(POOL)
        .element_size(ELEMENT)
        .build()
        .unwrap();
    let array = BufArray::builder(mmap)
        .range(ARRAY)
        .element_size(ELEMENT)
        .build()
        .unwrap();
    let mut places: Vec<Place> = Vec::new();
    for (at, full) in ranges {
        let buf = match full {
            true => inventory.buf_filled(mmap, at.clone()).unwrap(),
            false => inventory.buf(mmap, at.clone()).unwrap(),
        };
        places.push(Place {
            buf,
            at: at.clone(),
            full: *full,
        });
    }
    for i in 0..POOL.len() / ELEMENT {
        for (start, buf) in [
            (POOL.start, pool.try_alloc().unwrap()),
            (ARRAY.start, array.get(i).unwrap()),
        ] {
            let at = start + i * ELEMENT..start + (i + 1) * ELEMENT;
            let full = i % 2 == 0;
            if full {
                buf.set_data(0, ELEMENT).unwrap();
            }
            places.push(Place { buf, at, full });
        }
    }
    places
}

/// A job in flight.
struct Started<'a> {
    copy: Pin<Box<dyn Future<Output = Result<usize, JobError>> + 'a>>,
    src: &'a Place,
    dst: &'a Place,
    /// The byte range of the tailroom of `dst`.
    room: Range<usize>,
}

fn run(ranges: &[(Range<usize>, bool)], steps: &[Step]) {
    let soft = Soft::builder().build();
    let device = soft.open("pf0").unwrap();
    let mmap = Mmap::builder().device(&device).alloc(4096).unwrap();
    let workq = WorkQ::builder()
        .depth(DEPTH as u32)
        .mode(Mode::BusyPoll)
        .build()
        .unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let places = places(&mmap, ranges);
    let mut model = Model([Byte::default(); FREE.end]);
    let mut reads: Vec<(BufData<'_>, &Place)> = Vec::new();
    let mut writes: Vec<(BufDataMut<'_>, &Place)> = Vec::new();
    let mut lent: Vec<(Bytes, &Place)> = Vec::new();
    let mut jobs: Vec<Started<'_>> = Vec::new();
    let mut hold = soft.faults().hold();
    for (number, step) in steps.iter().chain([&Step::Finish]).enumerate() {
        let place = |at: usize| &places[at % places.len()];
        let stamp = number as u8 | 1;
        match *step {
            Step::Read(at) => {
                let place = place(at);
                match place.buf.data() {
                    Ok(data) => {
                        assert!(model.may_read(&place.at));
                        assert_eq!(data[..], model.values(&place.at)[..data.len()]);
                        model.read(&place.at);
                        reads.push((data, place));
                    }
                    Err(error) => denied(error, !model.may_read(&place.at)),
                }
            }
            Step::Write(at) => {
                let place = place(at);
                match place.buf.data_mut() {
                    Ok(mut data) => {
                        assert!(model.may_write(&place.at));
                        data.fill(stamp);
                        model.fill(&place.at, &data);
                        model.write(&place.at, true);
                        writes.push((data, place));
                    }
                    Err(error) => denied(error, !model.may_write(&place.at)),
                }
            }
            Step::Bytes(at) => {
                let place = place(at);
                match place.buf.clone().into_bytes() {
                    Ok(bytes) => {
                        assert!(model.may_read(&place.at));
                        model.read(&place.at);
                        lent.push((bytes, place));
                    }
                    Err(error) => denied(error.error(), !model.may_read(&place.at)),
                }
            }
            Step::Rooms(at) => {
                let place = place(at);
                let (data, len) = (place.buf.headroom(), place.buf.data_len());
                granted(place.buf.set_data(data, len), model.may_write(&place.at));
            }
            Step::CopyOut(at) => {
                let place = place(at);
                let mut out = vec![0; place.buf.data_len()];
                let result = place.buf.copy_out(0, &mut out);
                granted(result, model.may_read(&place.at));
                if result.is_ok() {
                    assert_eq!(out, model.values(&place.at)[..out.len()]);
                }
            }
            Step::CopyIn(at) => {
                let place = place(at);
                let bytes = vec![stamp; place.buf.data_len()];
                let result = place.buf.copy_in(0, &bytes);
                granted(result, model.may_write(&place.at));
                if result.is_ok() {
                    model.fill(&place.at, &bytes);
                }
            }
            Step::Load(at) | Step::Add(at) => {
                let place = place(at);
                let from = place.at.start.next_multiple_of(8) - place.at.start;
                if from + 8 > place.buf.data_len() {
                    continue;
                }
                let at = place.at.start + from..place.at.start + from + 8;
                let value = u64::from_ne_bytes(model.values(&at).try_into().unwrap());
                match step {
                    Step::Load(_) => {
                        let result = place.buf.load(from);
                        granted(result, model.may_read(&place.at));
                        assert_eq!(result.unwrap_or(value), value);
                    }
                    _ => {
                        let result = place.buf.fetch_add(from, 5);
                        granted(result, model.may_write(&place.at));
                        if result.is_ok() {
                            assert_eq!(result, Ok(value));
                            model.fill(&at, &value.wrapping_add(5).to_ne_bytes());
                        }
                    }
                }
            }
            Step::Start(from, to) => {
                let (src, dst) = (place(from), place(to));
                let room = dst.buf.tailroom();
                let fits = src.full && !dst.full && src.at.len() <= room;
                if !fits || jobs.len() == DEPTH {
                    continue;
                }
                let meet = src.at.start < dst.at.end && dst.at.start < src.at.end;
                if !meet && model.may_read(&src.at) && model.may_write(&dst.at) {
                    let mut copy = Box::pin(dma.copy(&src.buf, &dst.buf));
                    poll_pending(copy.as_mut());
                    model.read(&src.at);
                    model.write(&dst.at, true);
                    let room = dst.at.end - room..dst.at.end;
                    jobs.push(Started {
                        copy,
                        src,
                        dst,
                        room,
                    });
                } else {
                    let error = workq.block_on(async { dma.copy(&src.buf, &dst.buf).await });
                    match meet {
                        true => assert_eq!(error.unwrap_err().reason(), Reason::Overlap),
                        false => drop(refused(error, ErrorKind::InUse)),
                    }
                }
            }
            Step::EndRead(at) if !reads.is_empty() => {
                let (data, place) = reads.swap_remove(at % reads.len());
                assert_eq!(data[..], model.values(&place.at)[..data.len()]);
                model.end_read(&place.at);
            }
            Step::EndWrite(at) if !writes.is_empty() => {
                let (_, place) = writes.swap_remove(at % writes.len());
                model.write(&place.at, false);
            }
            Step::EndBytes(at) if !lent.is_empty() => {
                let (bytes, place) = lent.swap_remove(at % lent.len());
                assert_eq!(bytes[..], model.values(&place.at)[..bytes.len()]);
                model.end_read(&place.at);
            }
            Step::Finish => {
                drop(hold);
                for Started {
                    copy,
                    src,
                    dst,
                    room,
                } in jobs.drain(..)
                {
                    assert_eq!(workq.block_on(copy), Ok(src.at.len()));
                    model.fill(&room, &model.values(&src.at));
                    model.end_read(&src.at);
                    model.write(&dst.at, false);
                }
                hold = soft.faults().hold();
            }
            _ => {}
        }
    }
}

fn denied(error: JobError, expected: bool) {
    assert_eq!(error.reason(), Reason::BufInUse);
    assert!(expected, "every byte allowed it");
}

fn granted<T: std::fmt::Debug>(result: Result<T, JobError>, expected: bool) {
    match result {
        Ok(_) => assert!(expected, "a byte forbade it"),
        Err(error) => denied(error, !expected),
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_lease_is_granted_exactly_if_every_byte_allows_it(
        ranges in vec(range(), 1..16),
        steps in vec(step(), 1..120),
    ) {
        run(&ranges, &steps);
    }
}
