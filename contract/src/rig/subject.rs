//! The subject under test: a device, the Jobs that it gets, and their expected results.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::attached::Attached;
use super::crc::{SEED, SEEDED, crc32c};
use super::digest::digest;
use super::queue::AnyJob;
use super::shape::Shape;
use super::watch::{DEADLINE, watched_for};
use tokio_doca::crc::Crc;
use tokio_doca::device::contract::{AccelJob, CopyJob, CrcJob, Segments, SessionRef, ShaJob};
use tokio_doca::device::{Algorithm, CrcCaps, Device, ShaCaps};
use tokio_doca::error::Result;
use tokio_doca::{
    Dma, WorkQ,
    accel::{Accel, AccelCall},
    device::{AccelCaps, DmaCaps},
    sha::Sha,
};

/// A device under test, and the kind of jobs that it gets: copies, hashes, CRCs, or jobs of the
/// provider's own kind, as a [`Sample`] describes them.
///
/// A `&Device` converts to a subject that copies.
#[derive(Clone, Debug)]
pub struct Subject {
    pub(crate) device: Device,
    pub(crate) kind: Kind,
    pub(super) deadline: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Copy,
    Accel(Sample),
    /// With `parts`, each Token has a session, and gets one part of whole blocks and then the last
    /// part.
    Sha {
        algorithm: Algorithm,
        parts: bool,
    },
    /// The jobs begin with a seed. With `copies`, they also copy the data.
    Crc {
        copies: bool,
    },
}

/// The model of one opcode of an accelerator, which the provider's author writes: a call, and its
/// expected result.
///
/// The suite calls the opcode with any bytes as the source, in one piece and in lists, and compares
/// the results.
///
/// ```
/// use tokio_doca_contract::Sample;
///
/// const SUM: u32 = 1;
/// const XOR: u32 = 2;
/// let sum = Sample::reads(SUM, 0, |src| src.iter().map(|&byte| u64::from(byte)).sum());
/// let xor = Sample::transforms(XOR, 0x5a, |src, _room| src.iter().map(|byte| byte ^ 0x5a).collect());
/// ```
#[derive(Clone)]
pub struct Sample {
    opcode: u32,
    arg: u64,
    effect: Effect,
}

#[derive(Clone)]
pub(super) enum Effect {
    Reads(Arc<Answer>),
    Writes(Arc<Fill>),
    Transforms(Arc<Transform>),
}

type Answer = dyn Fn(&[u8]) -> u64 + Send + Sync;
type Fill = dyn Fn(usize) -> Vec<u8> + Send + Sync;
type Transform = dyn Fn(&[u8], usize) -> Vec<u8> + Send + Sync;

impl Sample {
    /// Describes an opcode that reads a source and returns a number. `answer` computes that number.
    pub fn reads(
        opcode: u32,
        arg: u64,
        answer: impl Fn(&[u8]) -> u64 + Send + Sync + 'static,
    ) -> Sample {
        let effect = Effect::Reads(Arc::new(answer));
        Sample {
            opcode,
            arg,
            effect,
        }
    }

    /// Describes an opcode that writes a destination. `written` returns the bytes for a destination
    /// of the given capacity in bytes.
    pub fn writes(
        opcode: u32,
        arg: u64,
        written: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> Sample {
        let effect = Effect::Writes(Arc::new(written));
        Sample {
            opcode,
            arg,
            effect,
        }
    }

    /// Describes an opcode that reads a source and writes a destination. `written` returns the
    /// bytes for the given source and capacity. The capacity is at least the length of the source.
    pub fn transforms(
        opcode: u32,
        arg: u64,
        written: impl Fn(&[u8], usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> Sample {
        let effect = Effect::Transforms(Arc::new(written));
        Sample {
            opcode,
            arg,
            effect,
        }
    }

    pub(super) fn effect(&self) -> &Effect {
        &self.effect
    }

    pub(super) fn call(&self) -> AccelCall {
        AccelCall::new(self.opcode).arg(self.arg)
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("opcode", &self.opcode)
            .field("arg", &self.arg)
            .finish_non_exhaustive()
    }
}

impl From<&Device> for Subject {
    fn from(device: &Device) -> Subject {
        Subject::copies(device)
    }
}

impl From<&Subject> for Subject {
    fn from(subject: &Subject) -> Subject {
        subject.clone()
    }
}

impl Subject {
    /// Makes a subject that copies.
    pub fn copies(device: &Device) -> Subject {
        Subject {
            device: device.clone(),
            kind: Kind::Copy,
            deadline: DEADLINE,
        }
    }

    /// Makes a subject that runs a [`Sample`] on an accelerator.
    pub fn accel(device: &Device, sample: Sample) -> Subject {
        Subject {
            kind: Kind::Accel(sample),
            ..Subject::copies(device)
        }
    }

    /// Makes a subject that hashes whole messages.
    pub fn sha(device: &Device, algorithm: Algorithm) -> Subject {
        Subject {
            kind: Kind::Sha {
                algorithm,
                parts: false,
            },
            ..Subject::copies(device)
        }
    }

    /// Makes a subject that hashes by sessions. Where a check drives the queue, each message has
    /// two parts, the first of which consists of whole blocks if the message is long enough.
    pub fn sha_parts(device: &Device, algorithm: Algorithm) -> Subject {
        Subject {
            kind: Kind::Sha {
                algorithm,
                parts: true,
            },
            ..Subject::copies(device)
        }
    }

    /// Makes a subject that computes CRCs.
    pub fn crc(device: &Device) -> Subject {
        Subject {
            kind: Kind::Crc { copies: false },
            ..Subject::copies(device)
        }
    }

    /// Makes a subject that copies and computes the CRC of the copied data.
    pub fn copy_crc(device: &Device) -> Subject {
        Subject {
            kind: Kind::Crc { copies: true },
            ..Subject::copies(device)
        }
    }

    /// Sets how long a check waits for an expected event. Defaults to [`DEADLINE`]. A shorter time
    /// is useful to test a provider that is broken on purpose.
    pub fn deadline(self, deadline: Duration) -> Subject {
        Subject { deadline, ..self }
    }

    fn dma(&self) -> &DmaCaps {
        let info = self.device.info();
        match &info.caps().dma {
            Some(dma) => dma,
            None => panic!("the device {} does not copy", info.name()),
        }
    }

    pub(crate) fn accel_caps(&self) -> &AccelCaps {
        let info = self.device.info();
        match &info.caps().accel {
            Some(accel) => accel,
            None => panic!("the device {} has no accelerator", info.name()),
        }
    }

    pub(crate) fn sha_caps(&self) -> &ShaCaps {
        let info = self.device.info();
        match &info.caps().sha {
            Some(sha) => sha,
            None => panic!("the device {} does not hash", info.name()),
        }
    }

    fn crc_caps(&self) -> &CrcCaps {
        let info = self.device.info();
        match &info.caps().crc {
            Some(crc) => crc,
            None => panic!("the device {} computes no CRCs", info.name()),
        }
    }

    /// Returns the hash algorithm of the subject.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.kind {
            Kind::Sha { algorithm, .. } => algorithm,
            _ => panic!("the Subject does not hash: Subject::sha does"),
        }
    }

    /// Returns true if the subject's jobs are copies.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.kind, Kind::Copy)
    }

    /// Returns true if each Token has a session.
    pub(crate) fn in_parts(&self) -> bool {
        matches!(self.kind, Kind::Sha { parts: true, .. })
    }

    pub(crate) fn event_driven(&self) -> bool {
        match self.kind {
            Kind::Copy => self.dma().event_driven,
            Kind::Accel(_) => self.accel_caps().event_driven,
            Kind::Sha { .. } => self.sha_caps().event_driven,
            Kind::Crc { .. } => self.crc_caps().event_driven,
        }
    }

    pub(crate) fn max_list_len(&self) -> u32 {
        match self.kind {
            Kind::Copy => self.dma().max_list_len,
            Kind::Accel(_) => self.accel_caps().max_list_len,
            Kind::Sha { .. } => self.sha_caps().max_list_len,
            Kind::Crc { .. } => self.crc_caps().max_list_len,
        }
    }

    pub(crate) fn max_buf_size(&self) -> u64 {
        match self.kind {
            Kind::Copy => self.dma().max_buf_size,
            Kind::Accel(_) => self.accel_caps().max_buf_size,
            Kind::Sha { .. } => self.sha_caps().max_src_len,
            Kind::Crc { .. } => self.crc_caps().max_buf_size,
        }
    }

    pub(crate) fn max_depth(&self) -> u32 {
        self.device.info().caps().max_depth
    }

    /// Returns `bytes`, capped at the maximum Buf size of the device.
    pub(crate) fn within(&self, bytes: usize) -> usize {
        usize::try_from(self.max_buf_size()).map_or(bytes, |limit| bytes.min(limit))
    }

    /// Returns the capacity that the destination of a Job with `bytes` bytes must have. A digest
    /// has the same length for every message.
    pub(crate) fn room_for(&self, bytes: usize) -> usize {
        match self.kind {
            Kind::Sha { algorithm, .. } => bytes.max(algorithm.digest_len()),
            _ => bytes,
        }
    }

    /// Returns `wanted`, or 1 for a hash, whose digest goes to a single Buf.
    pub(crate) fn targets(&self, wanted: usize) -> usize {
        match self.kind {
            Kind::Sha { .. } => 1,
            _ => wanted,
        }
    }

    /// Adapts a shape to the subject's kind of Job. `begun` is true in the middle of a session's
    /// message.
    pub(super) fn shaped(&self, shape: &Shape, begun: bool) -> Shape {
        let mut shape = shape.clone();
        match &self.kind {
            Kind::Copy | Kind::Crc { copies: true } => {}
            Kind::Crc { copies: false } => shape.dst.clear(),
            Kind::Accel(sample) => match sample.effect {
                Effect::Reads(_) => shape.dst.clear(),
                Effect::Writes(_) => shape.src.clear(),
                Effect::Transforms(_) => {}
            },
            &Kind::Sha { algorithm, parts } => {
                let blocks = shape.len / algorithm.block_len();
                if parts && !begun && blocks > 0 {
                    shape.truncate(blocks * algorithm.block_len());
                    shape.dst.clear();
                } else {
                    shape.narrow(algorithm.digest_len());
                }
            }
        }
        shape
    }

    /// Returns the bytes that a Job must write and its answer. `src` includes the bytes that the
    /// session has hashed before; `room` is the capacity of the destination.
    pub(crate) fn expected(&self, src: &[u8], room: usize) -> (Vec<u8>, u64) {
        let written = match &self.kind {
            Kind::Copy => src.to_vec(),
            Kind::Sha { .. } if room == 0 => return (Vec::new(), src.len() as u64),
            Kind::Sha { algorithm, .. } => digest(*algorithm, src),
            &Kind::Crc { copies } => {
                let written = if copies { src.to_vec() } else { Vec::new() };
                let answer = (written.len() as u64) << 32 | u64::from(crc32c(SEED, src));
                return (written, answer);
            }
            Kind::Accel(sample) => match &sample.effect {
                Effect::Reads(answer) => return (Vec::new(), answer(src)),
                Effect::Writes(written) => written(room),
                Effect::Transforms(written) => written(src, room),
            },
        };
        assert!(
            written.len() <= room,
            "{} bytes are to be written, and there is room for {room}",
            written.len()
        );
        let result = written.len() as u64;
        (written, result)
    }

    pub(crate) fn attach(&self, workq: &WorkQ) -> Result<Attached> {
        match &self.kind {
            Kind::Copy => Dma::builder(&self.device).attach(workq).map(Attached::Dma),
            Kind::Accel(sample) => Accel::builder(&self.device)
                .attach(workq)
                .map(|accel| Attached::Accel(accel, sample.clone())),
            &Kind::Sha { algorithm, .. } => Sha::builder(&self.device)
                .attach(workq)
                .map(|sha| Attached::Sha(sha, algorithm)),
            &Kind::Crc { copies } => Crc::builder(&self.device)
                .attach(workq)
                .map(|crc| Attached::Crc(crc, copies)),
        }
    }

    /// Makes a Job of the subject's kind.
    pub(super) fn job(
        &self,
        src: Segments,
        dst: Segments,
        len: usize,
        session: Option<SessionRef>,
    ) -> AnyJob {
        match &self.kind {
            Kind::Copy => AnyJob::Copy(CopyJob { src, dst, len }),
            Kind::Accel(sample) => AnyJob::Accel(AccelJob {
                opcode: sample.opcode,
                arg: sample.arg,
                src,
                dst,
            }),
            &Kind::Sha { algorithm, .. } => {
                let mut job = ShaJob::new(algorithm, src, dst.as_slice().first().copied());
                job.session = session;
                AnyJob::Sha(job)
            }
            Kind::Crc { .. } => AnyJob::Crc(CrcJob::new(src, dst, SEEDED)),
        }
    }
}

/// Runs a check on a thread of its own.
pub(crate) fn watched(
    what: &str,
    subject: impl Into<Subject>,
    check: impl FnOnce(&Subject) + Send + 'static,
) {
    let subject = subject.into();
    // Twice the deadline, so that the check's own waits time out first.
    watched_for(what, 2 * subject.deadline, move || check(&subject));
}

/// Returns the depths to try: the smallest, the usual, and some between, up to the device's
/// maximum.
pub(crate) fn depths(subject: &Subject) -> Vec<u32> {
    let most = subject.max_depth();
    let mut depths: Vec<u32> = [1, 2, 7, 256].map(|depth: u32| depth.min(most)).into();
    depths.dedup();
    depths
}
