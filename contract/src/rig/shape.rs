//! The ranges of a cell that a Job reads and writes: pieces on both sides, with guard bytes around
//! each.

use std::ops::Range;

use super::dice::Dice;

/// The number of guard bytes before each piece.
const GAP: usize = 17;

/// The pieces of one Job, as ranges of its cell. The first half of a cell is the source, the second
/// half the destination.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(super) src: Vec<Range<usize>>,
    pub(super) dst: Vec<Range<usize>>,
    pub(super) len: usize,
}

impl Shape {
    /// Makes a shape with one piece on each side.
    pub(crate) fn plain(cell: usize, len: usize) -> Shape {
        Shape::lists(cell, len, 1, 1, 0, &mut Dice::new(1))
    }

    /// Makes lists of `from` and `to` pieces. The destination has `room` bytes more than are moved.
    pub(crate) fn lists(
        cell: usize,
        len: usize,
        from: usize,
        to: usize,
        room: usize,
        dice: &mut Dice,
    ) -> Shape {
        let half = cell / 2;
        let src = pieces(0, len, from, dice);
        let dst = pieces(half, len + room, to, dice);
        let ends = (src.last().map(|p| p.end), dst.last().map(|p| p.end));
        assert!(
            ends.0 < Some(half) && ends.1 < Some(cell),
            "the cell is too small for {len} bytes"
        );
        Shape { src, dst, len }
    }

    /// Shortens the source to `len` bytes.
    pub(super) fn truncate(&mut self, len: usize) {
        let mut left = len;
        for piece in &mut self.src {
            piece.end = piece.start + piece.len().min(left);
            left -= piece.len();
        }
        self.src.retain(|piece| !piece.is_empty());
        self.len = len;
    }

    /// Makes the destination one piece of `len` bytes.
    pub(super) fn narrow(&mut self, len: usize) {
        self.dst.truncate(1);
        self.dst[0].end = self.dst[0].start + len;
    }

    /// Returns the bytes of the source's pieces, in order.
    pub(super) fn gathered(&self, cell: &[u8]) -> Vec<u8> {
        let mut data = Vec::with_capacity(self.len);
        for piece in &self.src {
            data.extend_from_slice(&cell[piece.clone()]);
        }
        data
    }

    /// Returns the total size of the destination's pieces in bytes.
    pub(super) fn room(&self) -> usize {
        self.dst.iter().map(Range::len).sum()
    }

    /// Returns the contents of a cell after `written` was written to its destination.
    pub(super) fn scattered(&self, cell: &[u8], mut written: &[u8]) -> Vec<u8> {
        let mut after = cell.to_vec();
        for place in &self.dst {
            let (part, rest) = written.split_at(place.len().min(written.len()));
            after[place.start..place.start + part.len()].copy_from_slice(part);
            written = rest;
        }
        after
    }
}

/// Returns `len` bytes in `count` pieces of at least one byte, with gaps between them.
pub(crate) fn pieces(start: usize, len: usize, count: usize, dice: &mut Dice) -> Vec<Range<usize>> {
    let mut pieces = Vec::with_capacity(count);
    let (mut at, mut left) = (start, len);
    for rest in (0..count).rev() {
        let part = match rest {
            0 => left,
            _ => 1 + dice.below((left - rest).min(2 * left / (rest + 1))),
        };
        at += GAP;
        pieces.push(at..at + part);
        at += part;
        left -= part;
    }
    pieces
}
