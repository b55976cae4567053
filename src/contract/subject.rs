//! What is put under test: a device, the Jobs that it is given, and what they must do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::DEADLINE;
use crate::device::{AccelJob, Device, Job, Segments, Token};
use crate::error::{JobError, Result};
use crate::mem::{Destination, Source};
use crate::{Accel, AccelCall, AccelCaps, Dma, DmaCaps, WorkQ};

/// A device under test, and the Jobs that it is given: copies, or a [`Sample`] of its own kinds.
///
/// A `&Device` is a Subject that copies.
#[derive(Clone, Debug)]
pub struct Subject {
    pub(super) device: Device,
    pub(super) kind: Kind,
    pub(super) deadline: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Copy,
    Accel(Sample),
}

/// A call of an accelerator, and what it must do: the author's model of one opcode.
///
/// The suite gives it sources of any bytes, in one piece and in lists, and compares.
///
/// ```
/// use tokio_doca::contract::Sample;
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
enum Effect {
    Reads(Arc<Answer>),
    Writes(Arc<Fill>),
    Transforms(Arc<Transform>),
}

type Answer = dyn Fn(&[u8]) -> u64 + Send + Sync;
type Fill = dyn Fn(usize) -> Vec<u8> + Send + Sync;
type Transform = dyn Fn(&[u8], usize) -> Vec<u8> + Send + Sync;

impl Sample {
    /// An opcode that reads a source and answers a number.
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

    /// An opcode that writes a destination: given its room in bytes, what is written there.
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

    /// An opcode that reads a source and writes a destination: given the bytes and the room, what is written there. The
    /// room is at least as long as the source.
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

    fn call(&self) -> AccelCall {
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
    /// A device that copies.
    pub fn copies(device: &Device) -> Subject {
        Subject {
            device: device.clone(),
            kind: Kind::Copy,
            deadline: DEADLINE,
        }
    }

    /// A device with an accelerator.
    pub fn accel(device: &Device, sample: Sample) -> Subject {
        Subject {
            kind: Kind::Accel(sample),
            ..Subject::copies(device)
        }
    }

    /// How long a check waits for something that must come; [`DEADLINE`] if not said. A shorter one serves a test of a
    /// provider that is broken on purpose.
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

    pub(super) fn accel_caps(&self) -> &AccelCaps {
        let info = self.device.info();
        match &info.caps().accel {
            Some(accel) => accel,
            None => panic!("the device {} has no accelerator", info.name()),
        }
    }

    pub(super) fn event_driven(&self) -> bool {
        match self.kind {
            Kind::Copy => self.dma().event_driven,
            Kind::Accel(_) => self.accel_caps().event_driven,
        }
    }

    pub(super) fn max_list_len(&self) -> u32 {
        match self.kind {
            Kind::Copy => self.dma().max_list_len,
            Kind::Accel(_) => self.accel_caps().max_list_len,
        }
    }

    pub(super) fn max_buf_size(&self) -> u64 {
        match self.kind {
            Kind::Copy => self.dma().max_buf_size,
            Kind::Accel(_) => self.accel_caps().max_buf_size,
        }
    }

    pub(super) fn max_depth(&self) -> u32 {
        self.device.info().caps().max_depth
    }

    /// So many bytes, or as many as the device takes.
    pub(super) fn within(&self, bytes: usize) -> usize {
        usize::try_from(self.max_buf_size()).map_or(bytes, |limit| bytes.min(limit))
    }

    pub(super) fn has_source(&self) -> bool {
        !matches!(&self.kind, Kind::Accel(sample) if matches!(sample.effect, Effect::Writes(_)))
    }

    pub(super) fn has_destination(&self) -> bool {
        !matches!(&self.kind, Kind::Accel(sample) if matches!(sample.effect, Effect::Reads(_)))
    }

    /// What a Job with that source and that room must write, and answer.
    pub(super) fn expected(&self, src: &[u8], room: usize) -> (Vec<u8>, u64) {
        let written = match &self.kind {
            Kind::Copy => src.to_vec(),
            Kind::Accel(sample) => match &sample.effect {
                Effect::Reads(answer) => return (Vec::new(), answer(src)),
                Effect::Writes(written) => written(room),
                Effect::Transforms(written) => written(src, room),
            },
        };
        assert!(
            written.len() <= room,
            "the sample says that {} bytes are written, and there is room for {room}",
            written.len()
        );
        let result = written.len() as u64;
        (written, result)
    }

    pub(super) fn attach(&self, workq: &WorkQ) -> Result<Attached> {
        match &self.kind {
            Kind::Copy => Dma::builder(&self.device).attach(workq).map(Attached::Dma),
            Kind::Accel(sample) => Accel::builder(&self.device)
                .attach(workq)
                .map(|accel| Attached::Accel(accel, sample.clone())),
        }
    }
}

/// Jobs as a queue takes them.
pub(super) enum Batch {
    Copies(Vec<(Token, Job)>),
    Accel(Vec<(Token, AccelJob)>),
}

impl Batch {
    pub(super) fn of(subject: &Subject) -> Batch {
        match subject.kind {
            Kind::Copy => Batch::Copies(Vec::new()),
            Kind::Accel(_) => Batch::Accel(Vec::new()),
        }
    }

    pub(super) fn push(
        &mut self,
        subject: &Subject,
        token: Token,
        src: Segments,
        dst: Segments,
        len: usize,
    ) {
        match (self, &subject.kind) {
            (Batch::Copies(jobs), _) => jobs.push((token, Job::Copy { src, dst, len })),
            (Batch::Accel(jobs), Kind::Accel(sample)) => {
                let (opcode, arg) = (sample.opcode, sample.arg);
                jobs.push((
                    token,
                    AccelJob {
                        opcode,
                        arg,
                        src,
                        dst,
                    },
                ));
            }
            (Batch::Accel(_), Kind::Copy) => unreachable!("a batch is of its subject's kind"),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Batch::Copies(jobs) => jobs.len(),
            Batch::Accel(jobs) => jobs.len(),
        }
    }
}

/// A context of the subject's kind.
pub(super) enum Attached {
    Dma(Dma),
    Accel(Accel, Sample),
}

impl Attached {
    /// Its Job, to its end.
    pub(super) async fn work<S: Source, D: Destination>(
        &self,
        src: S,
        dst: D,
    ) -> std::result::Result<u64, JobError> {
        match self {
            Attached::Dma(dma) => dma.copy(src, dst).await.map(|len| len as u64),
            Attached::Accel(accel, sample) => match sample.effect {
                Effect::Reads(_) => accel.call(sample.call().src(src)).await,
                Effect::Writes(_) => accel.call(sample.call().dst(dst)).await,
                Effect::Transforms(_) => accel.call(sample.call().src(src).dst(dst)).await,
            },
        }
    }

    /// Submits its Job, if there is a Slot, and drops the Op.
    pub(super) fn submit_and_drop<S: Source, D: Destination>(&self, src: S, dst: D) {
        match self {
            Attached::Dma(dma) => drop(dma.try_copy(src, dst)),
            Attached::Accel(accel, sample) => match sample.effect {
                Effect::Reads(_) => drop(accel.try_call(sample.call().src(src))),
                Effect::Writes(_) => drop(accel.try_call(sample.call().dst(dst))),
                Effect::Transforms(_) => drop(accel.try_call(sample.call().src(src).dst(dst))),
            },
        }
    }
}
