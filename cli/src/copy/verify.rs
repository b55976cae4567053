//! Reads a copy back and compares it with what was copied.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use indicatif::ProgressBar;

use crate::failure::{Failure, Result, cannot, name};

const PART: usize = 1 << 20;

/// Compares two files, byte by byte.
pub(super) fn equal(
    (src, a): (&Path, &File),
    (dst, b): (&Path, &File),
    bar: &ProgressBar,
) -> Result {
    let (mut left, mut right) = (vec![0; PART], vec![0; PART]);
    let mut at = 0;
    loop {
        let here = fill(a, &mut left, at).map_err(cannot("read", src))?;
        let there = fill(b, &mut right, at).map_err(cannot("read", dst))?;
        if left[..here] != right[..there] {
            let pairs = left[..here].iter().zip(&right[..there]);
            let same = pairs.take_while(|(a, b)| a == b).count();
            let at = at + same as u64;
            return Err(Failure::Failed(format!(
                "the copy differs from {} at byte {at}: {} is what it was before",
                name(src),
                name(dst)
            )));
        }
        if here == 0 {
            return Ok(());
        }
        at += here as u64;
        bar.inc(here as u64);
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_differs_is_said() {
        let folder = std::env::temp_dir();
        let path = |name| folder.join(format!("tokio-doca-cli-{name}-{}", std::process::id()));
        let (a, b) = (path("a"), path("b"));
        let mut bytes = vec![7; PART + 9];
        std::fs::write(&a, &bytes).unwrap();
        let compare = |bytes: &[u8]| {
            std::fs::write(&b, bytes).unwrap();
            let files = [&a, &b].map(|path| File::open(path).unwrap());
            let bar = ProgressBar::hidden();
            equal((&a, &files[0]), (&b, &files[1]), &bar)
        };
        assert!(compare(&bytes).is_ok());
        bytes[PART + 3] = 8;
        let wrong = compare(&bytes);
        let short = compare(&bytes[..PART]);
        std::fs::remove_file(&a).unwrap();
        std::fs::remove_file(&b).unwrap();
        for (result, at) in [(wrong, PART + 3), (short, PART)] {
            let Err(Failure::Failed(text)) = result else {
                panic!("the difference was not found");
            };
            assert!(text.contains(&format!("at byte {at}:")), "{text}");
        }
    }
}
