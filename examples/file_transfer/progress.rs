//! The progress of a transfer: a bar on a terminal, and a line at the end.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::Result;

pub(crate) struct Progress {
    len: u64,
    began: Instant,
    /// The number of parts of the bar that are drawn, or `None` if no bar is drawn.
    drawn: Option<u64>,
}

const PARTS: u64 = 40;

impl Progress {
    /// Starts the progress of `len` bytes. The bar is drawn on a terminal, or if `wanted` is set.
    pub(crate) fn new(len: u64, wanted: bool) -> Progress {
        Progress {
            len,
            began: Instant::now(),
            drawn: (wanted || io::stdout().is_terminal()).then_some(PARTS + 1),
        }
    }

    pub(crate) fn at(&mut self, bytes: u64) {
        let parts = bytes * PARTS / self.len.max(1);
        if self.drawn.is_some_and(|drawn| drawn != parts) {
            self.drawn = Some(parts);
            let (full, empty) = (parts as usize, (PARTS - parts.min(PARTS)) as usize);
            let percent = bytes * 100 / self.len.max(1);
            let mut out = io::stdout();
            let bar = format!(
                "\r[{}{}] {percent:>3} %",
                "#".repeat(full),
                ".".repeat(empty)
            );
            // A bar that cannot be drawn does not stop the transfer.
            let _ = out.write_all(bar.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// Prints the size, the rate, and the checksum `crc` under the name `sum`.
    pub(crate) fn end(&self, what: &str, sum: &str, crc: u32) -> Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = self.len as f64 / seconds.max(1e-9) / 1e6;
        let line = if self.drawn.is_some() { "\n" } else { "" };
        let len = self.len;
        writeln!(
            io::stdout(),
            "{line}{what}: {len} bytes in {seconds:.3} s ({rate:.0} MB/s), {sum} {crc:08x}"
        )?;
        Ok(())
    }
}
