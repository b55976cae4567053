//! `tokio-doca send`: sends a file or stdin to `serve`.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::WorkQ;
use tokio_doca::stream::{RdmaStream, StreamOptions};

use super::meet::{connect, destination, prove};
use super::messages::{NoMessage, SEND, Session, Step, nonce, parse_verdict, within};
use super::token::{Token, TokenArgs};
use super::{ANSWER, FRAME, SILENCE, SYNC, WAITS, hex, name, way};
use crate::failure::{self, Failure, Result, cannot, panicked};
use crate::open;
use crate::output::{bar, print};

/// How often the sender signals to the receiver that its input has no data yet.
const PAUSE: Duration = Duration::from_secs(10);

const AFTER: &str = "\
Exit codes: 0 the receiver has checked, synced and named the file, 1 failed,
2 wrong usage. Nothing is encrypted.";

#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct SendArgs {
    /// The file to send, - for stdin
    file: PathBuf,
    /// The receiver, HOST:PORT, or HOST for port 4792
    addr: String,
    /// The file's name there [default: its name here]
    #[arg(long, allow_hyphen_values = true)]
    name: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// The device [default: the first that copies]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
}

/// The file or stdin that is sent.
struct Source {
    input: Box<dyn Read + Send>,
    size: Option<u64>,
    /// The file's name at the receiver.
    name: String,
    /// The file's name in messages.
    shown: PathBuf,
}

pub(crate) fn send(args: &SendArgs) -> Result {
    let token = args.token.read()?;
    let addr = destination(&args.addr, &token)?;
    let source = source(args)?;
    let device = open::device(args.device.as_deref())?;
    let runtime = open::runtime()?;
    let sent = runtime.block_on(async {
        let options = StreamOptions::new().connections(1).or_tcp(true);
        let connector = options.connector(&device, &WorkQ::builder().build()?)?;
        let met = connect(&connector, &SEND, &token, addr, &nonce()?).await;
        let failed = |error| format!("cannot send to {}: {}", args.addr, SEND.unmet(&error));
        let met = met.map_err(failed)?;
        let (stream, session) = met.ok_or_else(|| not(&args.addr, "it is no tokio-doca serve"))?;
        Sender { args, session }.send(stream, source, &token).await
    });
    // Do not wait for a thread that may be in a read of stdin that never ends.
    runtime.shutdown_background();
    print(&sent?)
}

/// Opens the file or stdin, and checks the name that the file gets at the receiver.
fn source(args: &SendArgs) -> Result<Source> {
    let usage = |text: &str| Failure::Usage(text.to_owned());
    let is_stdin = args.file.as_os_str() == "-";
    let bytes = match (&args.name, is_stdin) {
        (Some(name), _) => name.as_bytes(),
        (None, true) => return Err(usage("stdin has no name: give it one by --name NAME")),
        (None, false) => args
            .file
            .file_name()
            .map_or(b"".as_slice(), OsStr::as_bytes),
    };
    let checked = name::check(bytes);
    let name = checked.map_err(|why| usage(&format!("{why}: give another by --name NAME")))?;
    let name = name.to_owned();
    if is_stdin {
        return Ok(Source {
            input: Box::new(io::stdin()),
            size: None,
            name,
            shown: "stdin".into(),
        });
    }
    let source = open::source("send", &args.file)?;
    let size = source.meta.len();
    Ok(Source {
        // Bytes that are appended from now on are not sent.
        input: Box::new(source.file.take(size)),
        size: Some(size),
        name,
        shown: args.file.clone(),
    })
}

fn not(addr: &str, why: impl Display) -> Failure {
    Failure::Failed(format!("{addr} did not store the file: {why}"))
}

struct Sender<'a> {
    args: &'a SendArgs,
    session: Session,
}

impl Sender<'_> {
    fn not(&self, why: impl Display) -> Failure {
        not(&self.args.addr, why)
    }

    async fn wait<T, E: Into<NoMessage>>(
        &self,
        limit: Duration,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        within(limit, future).await.map_err(|why| self.not(why))
    }

    /// Sends a message. Fails after [`ANSWER`] if the peer does not read.
    async fn say(&self, to: &mut (impl AsyncWrite + Unpin), step: Step, body: &[u8]) -> Result {
        self.wait(ANSWER, self.session.say(to, step, body)).await
    }

    /// Sends a file, waits until it is stored, and returns the line to print about it.
    async fn send(&self, mut stream: RdmaStream, source: Source, token: &Token) -> Result<String> {
        let session = &self.session;
        let proven = prove(&mut stream, session, token).await;
        proven.map_err(|why| self.not(why))?;
        let size = source.size.unwrap_or(u64::MAX).to_be_bytes();
        let head = [&size[..], source.name.as_bytes()].concat();
        self.say(&mut stream, Step::File, &head).await?;
        let answer = self.wait(ANSWER, session.hear(&mut stream, Step::Answer));
        parse_verdict(&answer.await?).map_err(|why| self.not(why))?;

        let (name, transport) = (source.name.clone(), stream.transport());
        let bar = bar(source.size.unwrap_or_default(), "sending");
        let begun = Instant::now();
        let (mut reader, mut writer) = tokio::io::split(stream);
        // Listen for the verdict from now on: the receiver may refuse the file before its end.
        let mut verdict = pin!(session.hear(&mut reader, Step::Stored));
        let sent = tokio::select! {
            biased;
            early = &mut verdict => Err(match early.map(|body| parse_verdict(&body)) {
                Ok(Err(why)) => self.not(why),
                Ok(Ok(())) => self.not("it broke the protocol"),
                Err(error) => self.not(error),
            }),
            sent = self.data(&mut writer, source, &bar) => sent,
        };
        bar.finish_and_clear();
        let (bytes, sum) = sent?;
        let stored = self.wait(SYNC, verdict).await?;
        parse_verdict(&stored).map_err(|why| self.not(why))?;
        let way = way(bytes, transport, begun);
        // The receiver has answered last, so that failing here does not matter.
        let _ = timeout(ANSWER, writer.shutdown()).await;
        let addr = &self.args.addr;
        Ok(format!(
            "ok: {addr} stored {name}: {way}, SHA-256 {}\n",
            hex(&sum)
        ))
    }

    /// Sends the data and its SHA-256. Returns the number of bytes, and the SHA-256.
    async fn data(
        &self,
        writer: &mut (impl AsyncWrite + Unpin),
        source: Source,
        bar: &ProgressBar,
    ) -> Result<(u64, [u8; 32])> {
        let (mut input, mut sum, mut bytes) = (source.input, Sha256::new(), 0);
        let mut frame = Vec::new();
        loop {
            let mut read = spawn_blocking(move || {
                frame.clear();
                frame.extend_from_slice(&[0; 4]);
                let read = (&mut input).take(FRAME as u64).read_to_end(&mut frame);
                sum.update(&frame[4..]);
                read.map(|len| (input, sum, frame, len))
            });
            let read = loop {
                match timeout(PAUSE, &mut read).await {
                    Ok(read) => break read.map_err(panicked)?,
                    Err(_) => self.write(writer, &WAITS.to_be_bytes()).await?,
                }
            };
            let len;
            (input, sum, frame, len) = read.map_err(cannot("read", &source.shown))?;
            if len == 0 {
                break;
            }
            frame[..4].copy_from_slice(&(len as u32).to_be_bytes());
            self.write(writer, &frame).await?;
            bytes += len as u64;
            if source.size.is_none() {
                bar.set_length(bytes);
            }
            bar.inc(len as u64);
        }
        if source.size.is_some_and(|size| size != bytes) {
            let name = failure::name(&source.shown);
            let text = format!("{name} has got shorter meanwhile: send it when it is left alone");
            return Err(Failure::Failed(text));
        }
        self.write(writer, &[0; 4]).await?;
        let sum: [u8; 32] = sum.finalize().into();
        let body = [&bytes.to_be_bytes()[..], &sum].concat();
        self.say(writer, Step::Sum, &body).await?;
        Ok((bytes, sum))
    }

    async fn write(&self, writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result {
        self.wait(SILENCE, writer.write_all(bytes)).await
    }
}
