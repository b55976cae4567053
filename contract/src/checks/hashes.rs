//! Checks that apply to hashes only: known digests, and sessions. They run through the crate, in
//! both modes.

use crate::rig::{Bench, Dice, ELEMENT, Subject, digest, hex, known, watched};
use tokio_doca::error::{ErrorKind, JobError};
use tokio_doca::mem::{MaybeSource, Source};
use tokio_doca::{
    Buf,
    mem::BufChain,
    sha::{Algorithm, Sha, ShaSession},
};

/// The number of Jobs that are dropped while in flight.
const DROPS: usize = 20;

/// Checks duty 1 for hashes: digests match NIST's examples, and are right for lengths around the
/// ends of blocks, for one Buf and for a chain with pieces of odd lengths. An empty message is
/// hashed too, and a destination without enough tailroom is refused.
///
/// # Panics
///
/// Panics if a digest is wrong, or if the subject does not hash.
pub fn digests_are_known(subject: impl Into<Subject>) {
    watched("digests_are_known", subject, |subject| {
        each_mode(subject, async |bench| {
            for (message, expected) in known(bench.algorithm()) {
                if let b"" = message {
                    bench.empty(expected).await;
                } else if message.len() <= bench.limit {
                    assert_eq!(hex(&bench.hash(message).await), expected, "{NAME}");
                }
            }
            let block = bench.algorithm().block_len();
            // Lengths around those from which the padding needs a block of its own, and others.
            for len in [
                block - 17,
                block - 9,
                block - 8,
                block - 1,
                block,
                block + 1,
            ]
            .into_iter()
            .chain([2 * block, 1001, 9000, ELEMENT - 64])
            {
                let message = bench.message(len.min(bench.limit));
                let expected = digest(bench.algorithm(), &message);
                assert_eq!(bench.hash(&message).await, expected, "{NAME}, {len} bytes");
            }
            bench.too_narrow().await;
        });
    });
}

/// Checks duty 1 for sessions: a message in parts has the digest of the whole, whatever the
/// lengths. Sessions do not mix, and a copied session continues independently. A part that was
/// refused is not hashed, and a part that was dropped in flight is.
///
/// # Panics
///
/// Panics if a digest is wrong, if the subject does not hash, or if its device has no sessions.
pub fn sessions_go_on(subject: impl Into<Subject>) {
    watched("sessions_go_on", subject, |subject| {
        each_mode(subject, async |bench| {
            bench.parts().await;
            bench.interleaved().await;
            bench.copied().await;
            bench.refused().await;
            bench.dropped().await;
        });
    });
}

const NAME: &str = "duty 1: the digest of a message is known";
const SESSION: &str = "duty 1: parts have the digest of the whole message";

fn each_mode(subject: &Subject, check: impl AsyncFn(&Bench<Sha>)) {
    let attach = |workq: &_| Sha::builder(&subject.device).attach(workq);
    Bench::each_mode(subject, attach, check);
}

impl Bench<Sha> {
    fn algorithm(&self) -> Algorithm {
        self.subject.algorithm()
    }

    fn message(&self, len: usize) -> Vec<u8> {
        Dice::new(len as u64).bytes(len)
    }

    /// Returns a Buf with those bytes, at an odd address.
    fn buf(&self, bytes: &[u8]) -> Buf {
        self.buf_at(1, bytes)
    }

    /// Returns a list with those bytes, in pieces that have odd lengths where possible.
    fn chain(&self, bytes: &[u8]) -> BufChain {
        let chain = BufChain::with_capacity(self.pieces);
        let (mut rest, pieces) = (bytes, self.pieces.min(bytes.len()));
        for left in (1..=pieces).rev() {
            // Each of the remaining Bufs needs at least one byte.
            let len = match left {
                1 => rest.len(),
                _ => ((rest.len() / left) | 1).min(rest.len() + 1 - left),
            };
            let (piece, tail) = rest.split_at(len);
            chain.push(self.buf(piece)).expect("room");
            rest = tail;
        }
        chain
    }

    fn session(&self) -> ShaSession {
        let session = self.context.session(self.algorithm());
        session.expect("a device with sessions begins one")
    }

    /// Checks the answer, and returns the digest that was appended to `dst`.
    fn digest(&self, answer: Result<usize, JobError>, dst: &Buf) -> Vec<u8> {
        let len = self.algorithm().digest_len();
        assert_eq!(
            answer,
            Ok(len),
            "duty 1: a hash answers the bytes of a digest"
        );
        dst.data().expect("the Job is over")[1..].to_vec()
    }

    /// Returns the digest of a message, after checking that one Buf and a list give the same.
    async fn hash(&self, message: &[u8]) -> Vec<u8> {
        let (src, chain) = (self.buf(message), self.chain(message));
        let [one, many] = [self.buf(&[0]), self.buf(&[0])];
        let of_one = self.context.hash(self.algorithm(), &src, &one).await;
        let of_many = self.context.hash(self.algorithm(), &chain, &many).await;
        let digest = self.digest(of_one, &one);
        assert_eq!(
            self.digest(of_many, &many),
            digest,
            "duty 1: {} bytes in one Buf and in a list of {}",
            message.len(),
            chain.len()
        );
        digest
    }

    async fn finish(&self, session: &ShaSession, src: impl MaybeSource) -> Vec<u8> {
        let dst = self.buf(&[0]);
        let answer = session.finish(src, &dst).await;
        self.digest(answer, &dst)
    }

    async fn update(&self, session: &ShaSession, src: impl Source, len: usize) {
        let answer = session.update(src).await;
        assert_eq!(answer, Ok(len), "duty 1: a part answers its bytes");
    }

    /// Checks the digest of a message without data.
    async fn empty(&self, expected: &str) {
        let (src, dst) = (self.buf(&[]), self.buf(&[0]));
        let answer = self.context.hash(self.algorithm(), &src, &dst).await;
        assert_eq!(hex(&self.digest(answer, &dst)), expected, "{NAME}");
        if self.context.caps().sessions {
            let digest = self.finish(&self.session(), ()).await;
            assert_eq!(hex(&digest), expected, "{NAME}");
        }
    }

    /// A Job that is refused for lack of tailroom leaves its destination unchanged.
    async fn too_narrow(&self) {
        let (src, dst) = (self.buf(&[1]), self.buf(&[0]));
        let narrow = ELEMENT - (self.algorithm().digest_len() - 1);
        dst.set_data(0, narrow).expect("no job has it");
        let before = dst.data().expect("no job has it").to_vec();
        let answer = self.context.hash(self.algorithm(), &src, &dst).await;
        let kind = answer.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::InvalidValue), "a byte too few");
        assert_eq!(dst.data().expect("no job has it")[..], before[..]);
        // With enough tailroom the same Job succeeds.
        dst.set_data(0, 1).expect("no job has it");
        let answer = self.context.hash(self.algorithm(), &src, &dst).await;
        assert_eq!(self.digest(answer, &dst), digest(self.algorithm(), &[1]));
    }

    /// Returns a part of `blocks` blocks, or of as many as the device accepts.
    fn blocks(&self, blocks: usize) -> Vec<u8> {
        let block = self.algorithm().block_len();
        self.message(blocks.min(self.limit / block) * block)
    }

    /// Checks parts of various lengths, followed by last parts of various lengths.
    async fn parts(&self) {
        let session = self.session();
        let block = self.algorithm().block_len();
        for blocks in [0, 1, 2, 3, 17, 400] {
            for tail in [0, 1, block - 1, block, block + 1, 2 * block + 5, 9001] {
                let (part, last) = (self.blocks(blocks), self.message(tail.min(self.limit)));
                if !part.is_empty() {
                    self.update(&session, self.buf(&part), part.len()).await;
                    self.update(&session, self.chain(&part), part.len()).await;
                }
                // `finish` starts the session anew each time.
                let digest_of = match last.is_empty() {
                    true => self.finish(&session, ()).await,
                    false => self.finish(&session, self.chain(&last)).await,
                };
                let message = [&part[..], &part, &last].concat();
                let expected = digest(self.algorithm(), &message);
                assert_eq!(
                    digest_of, expected,
                    "{SESSION}: {blocks} blocks twice, {tail} bytes"
                );
            }
        }
    }

    /// Checks two sessions that are used in turn, and at once.
    async fn interleaved(&self) {
        let sessions = [self.session(), self.session()];
        let mut messages = [Vec::new(), Vec::new()];
        for blocks in 1..5 {
            let parts = [self.blocks(blocks), self.blocks(300 + blocks)];
            if !parts[0].is_empty() {
                let [a, b] = parts.each_ref().map(|part| self.buf(part));
                let both = (
                    self.update(&sessions[0], &a, parts[0].len()),
                    self.update(&sessions[1], &b, parts[1].len()),
                );
                futures::future::join(both.0, both.1).await;
                self.update(&sessions[0], &b, parts[1].len()).await;
                messages[0].extend([&parts[0][..], &parts[1]].concat());
                messages[1].extend(&parts[1]);
            }
        }
        let last = self.buf(&[7]);
        let [a, b] = sessions.each_ref();
        let digests = futures::future::join(self.finish(a, &last), self.finish(b, ())).await;
        messages[0].push(7);
        let [a, b] = messages.map(|message| digest(self.algorithm(), &message));
        assert_eq!(digests, (a, b), "{SESSION}: two sessions in turn");
    }

    /// Checks that a copied session and its original continue independently.
    async fn copied(&self) {
        let (session, part) = (self.session(), self.blocks(2));
        if !part.is_empty() {
            self.update(&session, self.buf(&part), part.len()).await;
        }
        let copy = session.copy().expect("nothing is in flight");
        for (session, last) in [(&copy, [1]), (&session, [2])] {
            let found = self.finish(session, self.buf(&last)).await;
            let expected = digest(self.algorithm(), &[&part[..], &last].concat());
            assert_eq!(found, expected, "{SESSION}: a session, and its copy");
        }
    }

    /// Checks that a part that was refused is not hashed.
    async fn refused(&self) {
        let (session, part) = (self.session(), self.blocks(2));
        if !part.is_empty() {
            self.update(&session, self.buf(&part), part.len()).await;
        }
        let narrow = self.buf(&[]);
        narrow.set_data(0, ELEMENT - 1).expect("no job has it");
        let odd = session.update(self.buf(&[3])).await;
        let last = session.finish(self.buf(&[3]), &narrow).await;
        let kinds = [odd, last].map(|answer| answer.map_err(|error| error.kind()));
        let invalid = Err(ErrorKind::InvalidValue);
        assert_eq!(kinds, [invalid; 2], "no whole blocks, and no room");
        let expected = digest(self.algorithm(), &part);
        let found = self.finish(&session, ()).await;
        assert_eq!(found, expected, "{SESSION}: what was refused was hashed");
    }

    /// Checks that a part that was dropped in flight is hashed, once.
    async fn dropped(&self) {
        let (session, part) = (self.session(), self.blocks(400));
        let src = self.buf(&part);
        let mut message = Vec::new();
        for _ in 0..DROPS {
            if part.is_empty() {
                break;
            }
            // `Again` means that the Job was not accepted for the moment.
            if let Ok(op) = session.update(&src).start() {
                drop(op);
                message.extend(&part);
            }
            // Hashes other messages meanwhile, until the device has returned the session.
            while session.copy().is_err() {
                self.hash(&[9]).await;
                tokio::task::yield_now().await;
            }
        }
        let expected = digest(self.algorithm(), &message);
        let found = self.finish(&session, ()).await;
        assert_eq!(
            found, expected,
            "{SESSION}: parts that were dropped in flight"
        );
    }
}
