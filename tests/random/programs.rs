//! Checks random programs against a model that knows contents, headroom, tailroom and leases, on
//! the software device inline and in defer mode, event-driven and busy-poll. Every Buf lies between
//! canary bytes.
//!
//! Copies that must stay in flight are started under a [`Hold`], so that the model knows what is
//! leased and when. `PROPTEST_CASES` sets the number of cases.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use proptest::collection::vec;
use proptest::prelude::*;
use tokio_doca::soft::{Fault, Hold, Soft};
use tokio_doca::{
    Buf, BufPool, Device, Dma, ErrorKind, Mmap, Mode, WorkQ,
    error::JobError,
    mem::{BufChain, BufData, BufDataMut, BufInventory, BufSlice},
};

/// The bytes of each Buf, and the distance between the starts of two Bufs.
const SIZE: usize = 64;
const STRIDE: usize = 128;
/// The number of elements of the pool, in the first half of the memory, and of entries for Bufs of
/// the inventory, in the second half.
const ELEMENTS: usize = 6;
const PLACES: usize = 6;
const HALF: usize = (ELEMENTS + 1) * STRIDE;
const ARENA: usize = 2 * HALF;
const DEPTH: u32 = 3;
const CANARY: u8 = 0xA5;

/// A piece of an operand: a handle, and optionally a slice of it (start and length).
type Pick = (usize, Option<(u8, u8)>);

#[derive(Clone, Debug)]
enum Operand {
    One(Pick),
    Chain(Vec<Pick>),
}

#[derive(Clone, Debug)]
enum Step {
    AllocPool,
    AllocInventory,
    Clone(usize),
    Drop(usize),
    Write(usize, Vec<u8>),
    Overwrite(usize, u8),
    SetData(usize, u8, u8),
    Reset(usize),
    Copy(Operand, Operand),
    CopyFails(Operand, Operand),
    Start(Operand, Operand),
    DropStarted(usize),
    ForgetStarted(usize),
    Release,
    ForgetGuard(usize, bool),
}

/// A step, and optionally a guard that is held meanwhile: the Buf, and true for writing.
type Guarded = (Step, Option<(usize, bool)>);

fn pick() -> impl Strategy<Value = Pick> {
    (
        any::<usize>(),
        proptest::option::weighted(0.3, (0..40u8, 1..40u8)),
    )
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![
        3 => pick().prop_map(Operand::One),
        1 => vec(pick(), 1..4).prop_map(Operand::Chain),
    ]
}

fn destination() -> impl Strategy<Value = Operand> {
    // A slice is refused as a piece of a destination chain, so generate it rarely.
    let whole = any::<usize>().prop_map(|at| (at, None));
    prop_oneof![
        6 => whole.prop_map(Operand::One),
        3 => vec(any::<usize>().prop_map(|at| (at, None)), 1..4).prop_map(Operand::Chain),
        1 => vec(pick(), 1..3).prop_map(Operand::Chain),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<usize>;
    prop_oneof![
        4 => Just(Step::AllocPool),
        4 => Just(Step::AllocInventory),
        2 => at().prop_map(Step::Clone),
        3 => at().prop_map(Step::Drop),
        6 => (at(), vec(any::<u8>(), 0..50)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Step::Overwrite(at, byte)),
        4 => (at(), 0..70u8, 0..40u8).prop_map(|(at, from, len)| Step::SetData(at, from, len)),
        3 => at().prop_map(Step::Reset),
        8 => (operand(), destination()).prop_map(|(src, dst)| Step::Copy(src, dst)),
        1 => (operand(), destination()).prop_map(|(src, dst)| Step::CopyFails(src, dst)),
        6 => (operand(), destination()).prop_map(|(src, dst)| Step::Start(src, dst)),
        2 => at().prop_map(Step::DropStarted),
        1 => at().prop_map(Step::ForgetStarted),
        2 => Just(Step::Release),
        1 => (at(), any::<bool>()).prop_map(|(at, write)| Step::ForgetGuard(at, write)),
    ]
}

fn program() -> impl Strategy<Value = Vec<Guarded>> {
    let guard = proptest::option::weighted(0.15, (any::<usize>(), any::<bool>()));
    vec((step(), guard), 10..80)
}

/// The model of one Buf.
struct Cell {
    /// The index of its entry in the inventory's half; `None` for an element of the pool.
    place: Option<usize>,
    bytes: [u8; SIZE],
    data: usize,
    len: usize,
    handles: usize,
    readers: usize,
    writer: bool,
}

impl Cell {
    fn leased(&self) -> bool {
        self.writer || self.readers > 0
    }

    fn is_out(&self) -> bool {
        self.handles > 0 || self.leased()
    }

    fn tailroom(&self) -> usize {
        SIZE - self.data - self.len
    }
}

/// A piece in the model: the cell, and the part of its data.
#[derive(Clone, Copy)]
struct Piece {
    cell: usize,
    slice: Option<(usize, usize)>,
}

type Owned = Pin<Box<dyn Future<Output = Result<usize, JobError>>>>;

enum Fate {
    Kept(Owned),
    Dropped,
    Forgotten,
}

/// A copy in flight.
struct Started {
    src: Vec<Piece>,
    dst: Vec<Piece>,
    len: usize,
    fate: Fate,
}

struct World {
    soft: Soft,
    _device: Device,
    mmap: Mmap,
    pool: Option<BufPool>,
    inventory: BufInventory,
    workq: WorkQ,
    dma: Dma,
    probe: (Buf, Buf),
    hold: Option<Hold>,
    cells: Vec<Cell>,
    handles: Vec<(Buf, usize)>,
    started: Vec<Started>,
    /// The number of slots that stay taken forever, by forgotten operations whose jobs have
    /// completed.
    lost: usize,
}

/// An operand as the crate takes it.
enum Real {
    Buf(Buf),
    Slice(BufSlice),
    Chain(BufChain),
}

macro_rules! with_operands {
    ($src:expr, $dst:expr, |$s:ident, $d:ident| $body:expr) => {
        match ($src, $dst) {
            (Real::Buf($s), Real::Buf($d)) => $body,
            (Real::Buf($s), Real::Chain($d)) => $body,
            (Real::Slice($s), Real::Buf($d)) => $body,
            (Real::Slice($s), Real::Chain($d)) => $body,
            (Real::Chain($s), Real::Buf($d)) => $body,
            (Real::Chain($s), Real::Chain($d)) => $body,
            (_, Real::Slice(_)) => unreachable!("no slice is asked for as a destination"),
        }
    };
}

impl World {
    fn new(defer: bool, mode: Mode) -> World {
        let soft = Soft::builder().defer(defer).build();
        let device = soft.open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(ARENA).unwrap();
        let inventory = BufInventory::with_capacity(1024);
        let all = inventory.buf(&mmap, ..).unwrap();
        all.extend_from_slice(&[CANARY; ARENA]).unwrap();
        drop(all);
        // The memory has one stride more, so that canaries follow the last element too.
        let pool = BufPool::builder(&mmap)
            .range(STRIDE / 2..HALF - STRIDE / 2)
            .element_size(SIZE)
            .alignment(STRIDE)
            .build()
            .unwrap();
        assert_eq!(pool.elements(), ELEMENTS);
        let workq = WorkQ::builder().depth(DEPTH).mode(mode).build().unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        let other = Mmap::builder().device(&device).alloc(2 * SIZE).unwrap();
        let probe = (
            inventory.buf_filled(&other, ..SIZE).unwrap(),
            inventory.buf(&other, SIZE..).unwrap(),
        );
        World {
            soft,
            _device: device,
            mmap,
            pool: Some(pool),
            inventory,
            workq,
            dma,
            probe,
            hold: None,
            cells: Vec::new(),
            handles: Vec::new(),
            started: Vec::new(),
            lost: 0,
        }
    }
}

/// Returns true if a byte of the memory belongs to a Buf. All other bytes are canaries.
fn is_buf(at: usize) -> bool {
    match at < HALF {
        true => at >= STRIDE && at % STRIDE < SIZE && at / STRIDE <= ELEMENTS,
        false => {
            (STRIDE / 4..STRIDE / 4 + SIZE).contains(&((at - HALF) % STRIDE)) && at < ARENA - STRIDE
        }
    }
}

fn place(place: usize) -> std::ops::Range<usize> {
    let start = HALF + place * STRIDE + STRIDE / 4;
    start..start + SIZE
}

fn kind(result: Result<(), JobError>) -> Result<(), ErrorKind> {
    result.map_err(|error| error.kind())
}

impl World {
    fn out(&self, cell: impl Fn(&Cell) -> bool) -> usize {
        self.cells
            .iter()
            .filter(|it| it.is_out() && cell(it))
            .count()
    }

    fn at(&self, pick: usize) -> Option<(Buf, usize)> {
        let (buf, cell) = self.handles.get(pick % self.handles.len().max(1))?;
        Some((buf.clone(), *cell))
    }

    /// Adds a new Buf to the model, after filling it with known bytes.
    fn enter(&mut self, buf: Buf, place: Option<usize>) {
        let bytes = [self.cells.len() as u8; SIZE];
        assert_eq!(
            (buf.headroom(), buf.data_len(), buf.tailroom()),
            (0, 0, SIZE)
        );
        buf.extend_from_slice(&bytes).unwrap();
        buf.reset_data_len().unwrap();
        self.handles.push((buf, self.cells.len()));
        self.cells.push(Cell {
            place,
            bytes,
            data: 0,
            len: 0,
            handles: 1,
            readers: 0,
            writer: false,
        });
    }

    fn alloc_pool(&mut self) {
        let full = self.out(|cell| cell.place.is_none()) == ELEMENTS;
        match self.pool.as_ref().unwrap().try_alloc() {
            Ok(buf) if !full => self.enter(buf, None),
            Err(error) if full => assert_eq!(error.kind(), ErrorKind::Again),
            other => panic!("the pool is full: {full}, and it answers {other:?}"),
        }
    }

    fn alloc_inventory(&mut self) {
        let free = (0..PLACES).find(|&at| self.out(|cell| cell.place == Some(at)) == 0);
        if let Some(at) = free {
            let buf = self.inventory.buf(&self.mmap, place(at)).unwrap();
            self.enter(buf, Some(at));
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let Some((buf, cell)) = self.at(at) else {
            return;
        };
        let cell = &mut self.cells[cell];
        let expected = match () {
            () if cell.leased() => Err(ErrorKind::InUse),
            () if bytes.len() > cell.tailroom() => Err(ErrorKind::InvalidValue),
            () => Ok(()),
        };
        assert_eq!(kind(buf.extend_from_slice(bytes)), expected);
        if expected.is_ok() {
            cell.append(bytes);
        }
    }

    fn overwrite(&mut self, at: usize, byte: u8) {
        let Some((buf, cell)) = self.at(at) else {
            return;
        };
        let cell = &mut self.cells[cell];
        match buf.data_mut() {
            Ok(mut data) => {
                assert!(!cell.leased());
                data.fill(byte);
                cell.bytes[cell.data..][..cell.len].fill(byte);
            }
            Err(error) => assert!(cell.leased() && error.kind() == ErrorKind::InUse),
        }
    }

    fn set_data(&mut self, at: usize, from: usize, len: usize) {
        let Some((buf, cell)) = self.at(at) else {
            return;
        };
        let cell = &mut self.cells[cell];
        let expected = match () {
            () if from + len > SIZE => Err(ErrorKind::InvalidValue),
            () if cell.leased() => Err(ErrorKind::InUse),
            () => Ok(()),
        };
        assert_eq!(kind(buf.set_data(from, len)), expected);
        if expected.is_ok() {
            (cell.data, cell.len) = (from, len);
        }
    }

    fn reset(&mut self, at: usize) {
        let Some((buf, cell)) = self.at(at) else {
            return;
        };
        let cell = &mut self.cells[cell];
        let expected = if cell.leased() {
            Err(ErrorKind::InUse)
        } else {
            Ok(())
        };
        assert_eq!(kind(buf.reset_data_len()), expected);
        if expected.is_ok() {
            cell.len = 0;
        }
    }

    fn forget_guard(&mut self, at: usize, write: bool) {
        let Some((buf, cell)) = self.at(at) else {
            return;
        };
        if let Some(guard) = take_guard(&buf, &mut self.cells[cell], write) {
            std::mem::forget(guard);
        }
    }

    /// Returns an operand for the model and for the crate; `None` if a slice reaches past the data.
    fn operand(&self, operand: &Operand, source: bool) -> Option<(Vec<Piece>, Real)> {
        let slice = |(at, slice): Pick| {
            let (buf, cell) = self.at(at)?;
            let slice = slice.map(|(from, len)| (usize::from(from), usize::from(len)));
            let Some((from, len)) = slice else {
                return Some((Piece { cell, slice }, Ok(buf)));
            };
            let sliced = buf.slice(from..from + len);
            assert_eq!(sliced.is_ok(), from + len <= self.cells[cell].len);
            Some((Piece { cell, slice }, Err(sliced.ok()?)))
        };
        match operand {
            Operand::One((at, window)) => {
                let (piece, real) = slice((*at, window.filter(|_| source)))?;
                Some((vec![piece], real.map_or_else(Real::Slice, Real::Buf)))
            }
            Operand::Chain(picks) => {
                let chain = BufChain::with_capacity(picks.len());
                let mut pieces = Vec::new();
                for &pick in picks {
                    let (piece, real) = slice(pick)?;
                    pieces.push(piece);
                    match real {
                        Ok(buf) => chain.push(buf),
                        Err(slice) => chain.push(slice),
                    }
                    .unwrap();
                }
                Some((pieces, Real::Chain(chain)))
            }
        }
    }

    /// Returns the number of bytes that a copy must move, or the error with which it must be
    /// refused.
    fn expect(&self, src: &[Piece], dst: &[Piece]) -> Result<usize, ErrorKind> {
        let twice = (1..dst.len()).any(|at| dst[..at].iter().any(|it| it.cell == dst[at].cell));
        let shared = dst
            .iter()
            .any(|to| src.iter().any(|from| from.cell == to.cell));
        let refused = match twice || shared {
            true => ErrorKind::InvalidValue,
            false => ErrorKind::InUse,
        };
        let mut len = 0;
        for piece in src {
            let cell = &self.cells[piece.cell];
            if cell.writer {
                return Err(refused);
            }
            let (from, part) = piece.slice.unwrap_or((0, cell.len));
            if from + part > cell.len {
                return Err(ErrorKind::InvalidValue);
            }
            len += part;
        }
        let mut room = 0;
        for (at, piece) in dst.iter().enumerate() {
            if piece.slice.is_some() {
                return Err(ErrorKind::InvalidValue);
            }
            let cell = &self.cells[piece.cell];
            let mine = |it: &Piece| it.cell == piece.cell;
            if cell.leased() || src.iter().any(mine) || dst[..at].iter().any(mine) {
                return Err(refused);
            }
            room += cell.tailroom();
        }
        match len {
            _ if len > room => Err(ErrorKind::InvalidValue),
            _ => Ok(len),
        }
    }

    /// Applies a successful copy to the model.
    fn apply(&mut self, src: &[Piece], dst: &[Piece]) {
        let mut bytes = Vec::new();
        for piece in src {
            let cell = &self.cells[piece.cell];
            let (from, len) = piece.slice.unwrap_or((0, cell.len));
            bytes.extend_from_slice(&cell.bytes[cell.data + from..][..len]);
        }
        let mut rest = &bytes[..];
        for piece in dst {
            let cell = &mut self.cells[piece.cell];
            let (part, tail) = rest.split_at(rest.len().min(cell.tailroom()));
            cell.append(part);
            rest = tail;
        }
    }

    fn lease(&mut self, started: &Started, take: bool) {
        for piece in &started.src {
            let readers = &mut self.cells[piece.cell].readers;
            *readers = if take { *readers + 1 } else { *readers - 1 };
        }
        for piece in &started.dst {
            self.cells[piece.cell].writer = take;
        }
    }

    fn count(&mut self, started: &Started, more: bool) {
        for piece in started.src.iter().chain(&started.dst) {
            let handles = &mut self.cells[piece.cell].handles;
            *handles = if more { *handles + 1 } else { *handles - 1 };
        }
    }

    fn slots(&self) -> usize {
        self.started.len() + self.lost
    }

    async fn copy(&mut self, src: &Operand, dst: &Operand, fails: bool) {
        self.release().await;
        let (Some(src), Some(dst)) = (self.operand(src, true), self.operand(dst, false)) else {
            return;
        };
        let mut expected = self.expect(&src.0, &dst.0);
        if fails && expected.is_ok() {
            self.soft
                .faults()
                .push(Fault::Error(ErrorKind::IoFailed, 7));
            expected = Err(ErrorKind::IoFailed);
        }
        let copied = with_operands!(src.1, dst.1, |s, d| soon(self.dma.copy(s, d)).await);
        assert_eq!(copied.map_err(|error| error.kind()), expected);
        if expected.is_ok() {
            self.apply(&src.0, &dst.0);
        }
    }

    fn start(&mut self, src: &Operand, dst: &Operand) {
        let (Some(src), Some(dst)) = (self.operand(src, true), self.operand(dst, false)) else {
            return;
        };
        if self.hold.is_none() {
            self.hold = Some(self.soft.faults().hold());
        }
        let expected = self.expect(&src.0, &dst.0);
        if self.slots() == DEPTH as usize {
            let refused = with_operands!(src.1, dst.1, |s, d| self
                .dma
                .copy(s, d)
                .start()
                .map(drop)
                .map_err(JobError::from));
            let refused = refused.map_err(|error| error.kind());
            assert_eq!(refused, Err(expected.err().unwrap_or(ErrorKind::Again)));
            return;
        }
        let mut op: Owned = with_operands!(src.1, dst.1, |s, d| {
            Box::pin(tokio::task::unconstrained(self.dma.copy(s, d).owned()))
        });
        match (poll_once(&mut op), expected) {
            (None, Ok(len)) => {
                let (src, dst, fate) = (src.0, dst.0, Fate::Kept(op));
                let started = Started {
                    src,
                    dst,
                    len,
                    fate,
                };
                self.lease(&started, true);
                self.count(&started, true);
                self.started.push(started);
            }
            (Some(Err(error)), Err(kind)) => assert_eq!(error.kind(), kind),
            (polled, expected) => panic!("polled: {polled:?}, expected: {expected:?}"),
        }
    }

    /// Gives a started copy up: drops or forgets its future.
    fn give_up(&mut self, pick: usize, forget: bool) {
        let forgotten = self
            .started
            .iter()
            .filter(|it| matches!(it.fate, Fate::Forgotten));
        // One slot must remain usable.
        if forget && forgotten.count() + self.lost + 1 == DEPTH as usize {
            return;
        }
        let kept: Vec<usize> = (0..self.started.len())
            .filter(|&at| matches!(self.started[at].fate, Fate::Kept(_)))
            .collect();
        let Some(&at) = kept.get(pick % kept.len().max(1)) else {
            return;
        };
        let mut started = self.started.remove(at);
        let fate = if forget {
            Fate::Forgotten
        } else {
            Fate::Dropped
        };
        let Fate::Kept(op) = std::mem::replace(&mut started.fate, fate) else {
            unreachable!("filtered");
        };
        match forget {
            true => std::mem::forget(op),
            false => {
                drop(op);
                self.count(&started, false);
            }
        }
        self.started.insert(at, started);
        assert_eq!(self.workq.in_flight(), self.slots());
    }

    /// Lets all started copies continue, and waits until they have completed.
    async fn release(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        // Jobs are done and reaped in order: once the last one has completed, all have, also those
        // that nothing awaits.
        self.probe.1.reset_data_len().unwrap();
        let mut probe: Owned = Box::pin(tokio::task::unconstrained(
            self.dma
                .copy(self.probe.0.clone(), self.probe.1.clone())
                .owned(),
        ));
        assert!(poll_once(&mut probe).is_none());
        drop(hold);
        let mut all = std::mem::take(&mut self.started);
        for started in &mut all {
            if let Fate::Kept(op) = &mut started.fate {
                assert_eq!(soon(op).await, Ok(started.len));
            }
        }
        assert_eq!(soon(probe).await, Ok(SIZE));
        for started in all {
            self.lease(&started, false);
            self.apply(&started.src, &started.dst);
            match started.fate {
                Fate::Kept(_) => self.count(&started, false),
                Fate::Dropped => {}
                Fate::Forgotten => self.lost += 1,
            }
        }
        assert_eq!(self.workq.in_flight(), self.lost);
        self.check_all_bytes();
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::AllocPool => self.alloc_pool(),
            Step::AllocInventory => self.alloc_inventory(),
            Step::Clone(at) => {
                if let Some((buf, cell)) = self.at(*at) {
                    self.cells[cell].handles += 1;
                    self.handles.push((buf, cell));
                }
            }
            Step::Drop(at) => {
                if !self.handles.is_empty() {
                    let (_, cell) = self.handles.swap_remove(at % self.handles.len());
                    self.cells[cell].handles -= 1;
                }
            }
            Step::Write(at, bytes) => self.write(*at, bytes),
            Step::Overwrite(at, byte) => self.overwrite(*at, *byte),
            Step::SetData(at, from, len) => self.set_data(*at, (*from).into(), (*len).into()),
            Step::Reset(at) => self.reset(*at),
            Step::Copy(src, dst) => self.copy(src, dst, false).await,
            Step::CopyFails(src, dst) => self.copy(src, dst, true).await,
            Step::Start(src, dst) => self.start(src, dst),
            Step::DropStarted(at) => self.give_up(*at, false),
            Step::ForgetStarted(at) => self.give_up(*at, true),
            Step::Release => self.release().await,
            Step::ForgetGuard(at, write) => self.forget_guard(*at, *write),
        }
        self.check();
    }

    /// Does a step while a guard is held.
    async fn guarded(&mut self, (step, guard): &Guarded) {
        let guarded = guard.and_then(|(at, write)| Some((self.at(at)?, write)));
        let Some(((buf, cell), write)) = guarded else {
            return self.step(step).await;
        };
        let guard = take_guard(&buf, &mut self.cells[cell], write);
        self.cells[cell].handles += 1;
        self.step(step).await;
        if guard.is_some() {
            let cell = &mut self.cells[cell];
            match write {
                true => cell.writer = false,
                false => cell.readers -= 1,
            }
        }
        drop(guard);
        self.cells[cell].handles -= 1;
    }

    /// Checks headroom, tailroom and data of every Buf against the model.
    fn check(&self) {
        for (buf, cell) in &self.handles {
            let cell = &self.cells[*cell];
            let rooms = (buf.headroom(), buf.data_len(), buf.tailroom());
            assert_eq!(rooms, (cell.data, cell.len, cell.tailroom()));
            match buf.data() {
                Ok(data) => {
                    assert!(!cell.writer);
                    assert_eq!(&data[..], &cell.bytes[cell.data..][..cell.len]);
                }
                Err(error) => assert!(cell.writer && error.kind() == ErrorKind::InUse),
            }
        }
    }

    /// Checks all bytes of every Buf without leases, also those outside its data.
    fn check_all_bytes(&self) {
        for (buf, cell) in &self.handles {
            let cell = &self.cells[*cell];
            if !cell.leased() {
                buf.set_data(0, SIZE).unwrap();
                assert_eq!(buf.data().unwrap()[..], cell.bytes);
                buf.set_data(cell.data, cell.len).unwrap();
            }
        }
    }

    async fn end(mut self) {
        self.release().await;
        self.check_all_bytes();
        for (_, cell) in self.handles.drain(..) {
            self.cells[cell].handles -= 1;
        }
        let out = self.out(|cell| cell.place.is_none());
        let pool = self.pool.take().unwrap();
        let rest: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc().ok()).collect();
        assert_eq!(rest.len(), ELEMENTS - out, "all that nobody holds are home");
        soon(self.workq.shutdown()).await.unwrap();
        let refused = soon(self.dma.copy(&self.probe.0, &self.probe.1)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Shutdown);
        drop((rest, pool));
        self.check_canaries(if out == 0 { 0 } else { HALF });
    }

    /// Checks that all bytes from `from` on that belong to no Buf are unchanged.
    fn check_canaries(&self, from: usize) {
        let mut start = from;
        while start < ARENA {
            let end = (start..ARENA).find(|&at| is_buf(at)).unwrap_or(ARENA);
            if start < end {
                let gap = self.inventory.buf_filled(&self.mmap, start..end).unwrap();
                assert!(
                    gap.data().unwrap().iter().all(|&byte| byte == CANARY),
                    "{start}..{end}"
                );
            }
            start = (end..ARENA).find(|&at| !is_buf(at)).unwrap_or(ARENA);
        }
    }
}

impl Cell {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.data + self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[expect(dead_code, reason = "held, and not looked at")]
enum Guard<'a> {
    Read(BufData<'a>),
    Write(BufDataMut<'a>),
}

/// Takes a guard, and its lease in the model. Returns `None` if an existing lease excludes it.
fn take_guard<'a>(buf: &'a Buf, cell: &mut Cell, write: bool) -> Option<Guard<'a>> {
    let excluded = cell.writer || write && cell.readers > 0;
    let guard = match write {
        true => buf.data_mut().map(Guard::Write),
        false => buf.data().map(Guard::Read),
    };
    match guard {
        Err(error) => {
            assert!(excluded && error.kind() == ErrorKind::InUse);
            None
        }
        Ok(guard) => {
            assert!(!excluded);
            match write {
                true => cell.writer = true,
                false => cell.readers += 1,
            }
            Some(guard)
        }
    }
}

fn poll_once(op: &mut Owned) -> Option<Result<usize, JobError>> {
    match op.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

async fn soon<F: Future>(future: F) -> F::Output {
    let unhindered = tokio::task::unconstrained(future);
    tokio::time::timeout(support::LIMIT, unhindered)
        .await
        .expect("it hangs")
}

fn run(program: &[Guarded], defer: bool, mode: Mode) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(defer, mode);
        for step in program {
            world.guarded(step).await;
        }
        world.end().await;
    });
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok()).unwrap_or(64);
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_do_what_the_model_says_inline_and_event_driven(program in program()) {
        run(&program, false, Mode::EventDriven);
    }

    #[test]
    fn programs_do_what_the_model_says_deferred_and_event_driven(program in program()) {
        run(&program, true, Mode::EventDriven);
    }

    #[test]
    fn programs_do_what_the_model_says_inline_and_busy(program in program()) {
        run(&program, false, Mode::BusyPoll);
    }

    #[test]
    fn programs_do_what_the_model_says_deferred_and_busy(program in program()) {
        run(&program, true, Mode::BusyPoll);
    }
}
