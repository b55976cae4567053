//! Checks that apply to CRCs only: known values, seeds, and mismatches. They run through the crate,
//! in both modes.

use crate::rig::{Bench, Dice, ELEMENT, SEED, Subject, crc32c, known_crcs, watched};
use tokio_doca::crc::{Crc, CrcCopied, CrcOptions};
use tokio_doca::error::{ErrorKind, JobError, Reason};
use tokio_doca::mem::BufChain;

const NAME: &str = "duty 1: the CRC of data is known";

/// Checks duty 1 for CRCs: they match RFC 3720 for any length and any division of the data. A
/// message in parts has the CRC of the whole. A copy whose CRC is not the expected one fails, and
/// appends nothing.
///
/// # Panics
///
/// Panics if a CRC is wrong, if a wrong CRC passes, or if the subject computes no CRCs.
pub fn crcs_are_known(subject: impl Into<Subject>) {
    watched("crcs_are_known", subject, |subject| {
        let attach = |workq: &_| Crc::builder(&subject.device).attach(workq);
        Bench::each_mode(subject, attach, Bench::all);
    });
}

impl Bench<Crc> {
    async fn all(&self) {
        for (bytes, expected) in known_crcs() {
            if bytes.len() <= self.limit {
                self.is(CrcOptions::new(), &bytes, expected).await;
                let odd = CrcOptions::new().seed(SEED);
                self.is(odd, &bytes, crc32c(SEED, &bytes)).await;
            }
        }
        for len in [1, 63, 64, 1001, 4095, 4097, 9000, 25_000, ELEMENT - 64] {
            let bytes = Dice::new(len as u64).bytes(len.min(self.limit));
            let whole = crc32c(0, &bytes);
            self.is(CrcOptions::new(), &bytes, whole).await;
            // The same data in two parts.
            let (first, second) = bytes.split_at(bytes.len() / 3);
            let begun = self.context.crc32c(self.buf_at(1, first)).await;
            let begun = begun.expect("a CRC");
            let options = CrcOptions::new().seed(begun).expected(whole);
            self.is(options, second, whole).await;
            self.mismatches(&bytes, whole).await;
        }
    }

    /// Returns a list of `self.pieces` Bufs with those bytes, or with tailroom for them if `room`
    /// is set.
    fn chain(&self, bytes: &[u8], room: bool) -> BufChain {
        let chain = BufChain::with_capacity(self.pieces);
        let mut rest = bytes;
        for left in (1..=self.pieces).rev() {
            let (piece, tail) = rest.split_at(rest.len() / left);
            let buf = match room {
                // A list is filled Buf by Buf, each up to the end of its tailroom.
                true => self.buf_at(0, &vec![0; ELEMENT - piece.len()]),
                false => self.buf_at(1, piece),
            };
            chain.push(buf).expect("room");
            rest = tail;
        }
        chain
    }

    /// Checks the CRC of some bytes in one Buf and in a list, with and without a copy.
    async fn is(&self, options: CrcOptions, bytes: &[u8], expected: u32) {
        let (one, many) = (self.buf_at(3, bytes), self.chain(bytes, false));
        let of_one = self.context.crc32c_with(options, &one).await;
        let of_many = self.context.crc32c_with(options, &many).await;
        assert_eq!((of_one, of_many), (Ok(expected), Ok(expected)), "{NAME}");
        let copied = CrcCopied {
            bytes: bytes.len(),
            crc: expected,
        };
        let to_one = self.buf_at(2, &[0xee]);
        let answer = self.context.copy_crc_with(options, &many, &to_one).await;
        assert_eq!(answer, Ok(copied), "{NAME}");
        let data = to_one.data().expect("the job has completed");
        assert!(data[0] == 0xee && data[1..] == *bytes, "{NAME}");
        drop(data);
        let to_many = self.chain(bytes, true);
        let before = to_many.data_len();
        let answer = self.context.copy_crc_with(options, &one, &to_many).await;
        assert_eq!(answer, Ok(copied), "{NAME}");
        assert_eq!(to_many.data_len(), before + bytes.len(), "{NAME}");
    }

    /// Checks that a Job fails with `CrcMismatch` if its data have another CRC than expected, and
    /// that nothing is appended.
    async fn mismatches(&self, bytes: &[u8], crc: u32) {
        let (src, dst) = (self.buf_at(0, bytes), self.buf_at(0, &[0xee]));
        for wrong in [crc ^ 1, crc ^ 1 << 31, !crc] {
            let options = CrcOptions::new().expected(wrong);
            let alone = self.context.crc32c_with(options, &src).await.err();
            let copied = self.context.copy_crc_with(options, &src, &dst).await.err();
            for error in [alone, copied] {
                let found = error.map(|error: JobError| (error.kind(), error.reason()));
                let mismatch = (ErrorKind::IoFailed, Reason::CrcMismatch);
                assert_eq!(found, Some(mismatch), "duty 1: a wrong CRC is found");
            }
            assert_eq!(dst.data_len(), 1, "duty 1: damaged data are not appended");
        }
    }
}
