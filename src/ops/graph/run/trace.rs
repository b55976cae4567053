//! When each node of a run started and ended.

use std::time::Instant;

/// It did not happen.
const NEVER: u64 = u64::MAX;

/// Start and end of every node, in nanoseconds since the process first traced something.
#[derive(Clone, Debug)]
pub(super) struct Trace(Box<[(u64, u64)]>);

/// One clock for all instances, so that their traces can be laid side by side.
fn now() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Trace {
    pub(super) fn new(nodes: usize) -> Trace {
        Trace(vec![(NEVER, NEVER); nodes].into())
    }

    /// The nodes that started, with start and end.
    pub(super) fn times(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let times = self.0.iter().zip(0..);
        times
            .filter(|((from, _), _)| *from != NEVER)
            .map(|(&(from, to), node)| {
                // One that still runs, or was dropped, ends where it was seen last.
                let to = if to == NEVER { from } else { to };
                (node, from, to)
            })
    }

    pub(super) fn reset(&mut self) {
        self.0.fill((NEVER, NEVER));
    }

    pub(super) fn started(&mut self, node: u32) {
        self.0[node as usize].0 = now();
    }

    /// It has not started after all.
    pub(super) fn blocked(&mut self, node: u32) {
        self.0[node as usize].0 = NEVER;
    }

    pub(super) fn ended(&mut self, node: u32) {
        let (from, to) = &mut self.0[node as usize];
        *to = now();
        // One that was refused in line starts and ends at once.
        *from = (*from).min(*to);
    }
}
