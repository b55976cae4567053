//! Serves a connection of `tokio-doca serve`: receives one file.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::stream::{Incoming, RdmaStream};

use super::meet::meet;
use super::messages::{NoMessage, SEND, Session, Step, verdict};
use super::token::Token;
use super::{ANSWER, FRAME, SILENCE, WAITS, hex, name, way};
use crate::failure::{Failure, cannot, panicked, reason};
use crate::target::Target;

/// The limits of a receiver, and where it stores files.
pub(super) struct Receiver<'a> {
    pub(super) folder: &'a Path,
    pub(super) token: &'a Token,
    /// The largest file, in bytes.
    pub(super) most: u64,
    /// With `--once`: true once a sender with the token has come. The receiver refuses all later
    /// ones.
    pub(super) once: Option<Cell<bool>>,
}

/// Why a connection failed.
pub(crate) struct Failed {
    pub(crate) text: String,
    /// Set by `serve` alone: true if the sender has proved that it has the token. With `--once`,
    /// true for the first such sender only.
    pub(crate) proven: bool,
}

/// Why a transfer failed.
enum Ended {
    /// The receiver refuses, and sends the reason to the sender.
    Refused(String),
    /// The sender has gone, or broke the protocol.
    Lost(String),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        match failure {
            Failure::Failed(text) | Failure::Usage(text) => Ended::Refused(text),
            _ => Ended::Refused("the receiver has failed".to_owned()),
        }
    }
}

fn lost(error: &io::Error) -> Ended {
    Ended::Lost(match error.kind() {
        io::ErrorKind::UnexpectedEof => "the sender ended early".to_owned(),
        _ => format!("the sender ended early: {}", reason(error)),
    })
}

impl From<NoMessage> for Ended {
    fn from(error: NoMessage) -> Ended {
        match error {
            NoMessage::Io(error) => lost(&error),
            _ => Ended::Lost("the peer broke the protocol".to_owned()),
        }
    }
}

/// Waits for the sender, at most `limit`.
async fn wait<T, E: Into<Ended>>(
    limit: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, Ended> {
    match timeout(limit, future).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(Ended::Lost(format!(
            "the sender was silent for {} s",
            limit.as_secs()
        ))),
    }
}

impl Receiver<'_> {
    /// Receives a file from a peer, and returns the line to print about it.
    pub(super) async fn receive(&self, incoming: Incoming) -> Result<String, Failed> {
        let stranger = |text: String| Failed {
            text,
            proven: false,
        };
        let met = meet(&SEND, self.token, incoming, &[]).await;
        let (mut stream, session) = met.map_err(stranger)?;
        let is_late = self.once.as_ref().is_some_and(|once| once.replace(true));
        let proven = |text| Failed {
            text,
            proven: !is_late,
        };
        let mut step = Step::Answer;
        let transferred = match is_late {
            true => Err(Ended::Refused("it takes one file, and has it".to_owned())),
            false => self.transfer(&mut stream, &session, &mut step).await,
        };
        let text = match transferred {
            Ok(done) => {
                let yes = verdict(None);
                let said = session.say(&mut stream, Step::Stored, &yes);
                // The file is stored, even if its sender is not reached any more.
                let _ = timeout(ANSWER, said).await;
                let _ = timeout(ANSWER, stream.shutdown()).await;
                return Ok(done);
            }
            Err(Ended::Refused(why)) => {
                let no = verdict(Some(&why));
                let said = session.say(&mut stream, step, &no);
                let _ = timeout(ANSWER, said).await;
                let _ = timeout(ANSWER, stream.shutdown()).await;
                why
            }
            Err(Ended::Lost(why)) => why,
        };
        Err(proven(text))
    }

    /// Receives the file. Sets `step` to the step of the answer for which the sender waits.
    async fn transfer(
        &self,
        stream: &mut RdmaStream,
        session: &Session,
        step: &mut Step,
    ) -> Result<String, Ended> {
        let begun = Instant::now();
        let head = wait(ANSWER, session.hear(stream, Step::File)).await?;
        let Some((size, file)) = head.split_first_chunk() else {
            return Err(NoMessage::Odd.into());
        };
        let size = Some(u64::from_be_bytes(*size)).filter(|size| *size != u64::MAX);
        let refused = |text: &str| Ended::Refused(text.to_owned());
        let file = name::check(file).map_err(refused)?;
        if size.is_some_and(|size| size > self.most) {
            return Err(self.too_long());
        }
        let target = Target::create_new(self.folder.join(file))?;
        let yes = verdict(None);
        let answer = session.say(stream, Step::Answer, &yes);
        wait(ANSWER, async { answer.await.map_err(NoMessage::Io) }).await?;
        *step = Step::Stored;
        let (bytes, sum) = self.data(stream, &target, size).await?;
        let theirs = wait(ANSWER, session.hear(stream, Step::Sum)).await?;
        if theirs != [&bytes.to_be_bytes()[..], &sum].concat() {
            return Err(refused("the SHA-256 differs: the file is not stored"));
        }
        self.store(target).await?;
        let (peer, way) = (stream.peer(), way(bytes, stream.transport(), begun));
        Ok(format!(
            "stored {file} from {peer}: {way}, SHA-256 {}",
            hex(&sum)
        ))
    }

    /// Receives the data of a file, and returns its size and SHA-256.
    async fn data(
        &self,
        stream: &mut RdmaStream,
        target: &Target,
        size: Option<u64>,
    ) -> Result<(u64, [u8; 32]), Ended> {
        let (mut bytes, mut sum) = (0, Sha256::new());
        let mut frame = Vec::new();
        loop {
            let len = wait(SILENCE, async {
                stream.read_u32().await.map_err(NoMessage::Io)
            })
            .await?;
            match len {
                WAITS => continue,
                0 => break,
                len if len as usize > FRAME => return Err(NoMessage::Odd.into()),
                len => bytes += u64::from(len),
            }
            if bytes > size.unwrap_or(self.most) {
                return Err(self.too_long());
            }
            frame.resize(len as usize, 0);
            let read = async { stream.read_exact(&mut frame).await.map_err(NoMessage::Io) };
            wait(SILENCE, read).await?;
            let mut file = target.file.clone();
            let write = spawn_blocking(move || {
                sum.update(&frame);
                let written = (&mut file as &mut std::sync::Arc<File>).write_all(&frame);
                written.map(|()| (sum, frame))
            });
            let written = write
                .await
                .map_err(|error| Ended::Refused(panicked(error)))?;
            (sum, frame) = written.map_err(|error| {
                Ended::Refused(format!("the receiver cannot write: {}", reason(&error)))
            })?;
        }
        match size {
            Some(size) if size != bytes => Err(Ended::Lost("the sender ended early".to_owned())),
            _ => Ok((bytes, sum.finalize().into())),
        }
    }

    /// Syncs the file, gives it its name, and syncs the folder. This task keeps `target`, so that a
    /// signal during the first sync deletes the file.
    async fn store(&self, target: Target) -> Result<(), Ended> {
        let threw = |error| Ended::Refused(panicked(error));
        let (file, dst) = (target.file.clone(), target.dst.clone());
        let synced = spawn_blocking(move || file.sync_all()).await;
        let synced = synced.map_err(threw)?.map_err(cannot("write", &dst));
        synced.map_err(Failure::from)?;
        target.publish()?;
        let folder = self.folder.to_owned();
        let synced = spawn_blocking(move || File::open(folder)?.sync_all()).await;
        let synced = synced.map_err(threw)?.map_err(cannot("sync", self.folder));
        synced.map_err(Failure::from)?;
        Ok(())
    }

    fn too_long(&self) -> Ended {
        Ended::Refused(format!(
            "the file is longer than the {} bytes that this receiver takes (--max-size), or than \
             it said",
            self.most
        ))
    }
}
