//! The messages of both sides, each with an HMAC as its proof.

use std::fmt;
use std::io;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::token::Token;
use crate::failure::reason;

pub(crate) type Nonce = [u8; 16];

/// A purpose for which two sides connect. A proof of one kind is not valid for another kind.
pub(crate) struct Kind {
    /// The bytes with which a hello begins.
    magic: &'static [u8],
    /// The command of the connecting side.
    pub(super) asks: &'static str,
    /// The name of the listening side in messages.
    pub(super) listens: &'static str,
    /// The command of the listening side.
    pub(super) serves: &'static str,
}

pub(super) const SEND: Kind = Kind {
    magic: b"tokio-doca send 1\0",
    asks: "tokio-doca send",
    listens: "receiver",
    serves: "tokio-doca serve",
};

/// The kind of `check`. Its hello fits into the 24 bytes of an rdma_cm connection request.
pub(crate) const CHECK: Kind = Kind {
    magic: b"check1\0",
    asks: "tokio-doca check --peer",
    listens: "server",
    serves: "tokio-doca check serve",
};

pub(crate) const BENCH: Kind = Kind {
    magic: b"bench1\0",
    asks: "tokio-doca bench --peer",
    listens: "server",
    serves: "tokio-doca bench serve",
};

/// The length of a proof, in bytes.
const PROOF: usize = 32;

/// The longest body, in bytes: more than a blob of memory, which has at most 1,024.
const MOST: usize = 2048;

/// The step of the protocol to which a message belongs. A proof of one step is not valid for
/// another step.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Sender = 1,
    Receiver,
    File,
    Answer,
    Sum,
    Stored,
    Memory,
    Ended,
    Plan,
}

/// Returns random bytes, different for each connection.
pub(crate) fn nonce() -> Result<Nonce, String> {
    let mut nonce = Nonce::default();
    match getrandom::fill(&mut nonce) {
        Ok(()) => Ok(nonce),
        Err(error) => Err(format!("cannot get random bytes: {error}")),
    }
}

/// Returns the first message of the connecting side, which goes with the connection request.
pub(super) fn hello(kind: &Kind, has_token: bool, nonce: &Nonce) -> Vec<u8> {
    [kind.magic, &[u8::from(has_token)], nonce].concat()
}

/// Parses a hello: true if the other side has a token, and its nonce. Returns `None` if the hello
/// is of another kind.
pub(super) fn parse_hello(kind: &Kind, hello: &[u8]) -> Option<(bool, Nonce)> {
    let (has_token, nonce) = hello.strip_prefix(kind.magic)?.split_first()?;
    Some((*has_token == 1, nonce.try_into().ok()?))
}

/// Why a message was not received.
#[derive(Debug)]
pub(crate) enum NoMessage {
    /// The proof is wrong.
    Forged,
    /// The message is too long, or is malformed.
    Odd,
    Io(io::Error),
}

impl From<io::Error> for NoMessage {
    fn from(error: io::Error) -> NoMessage {
        NoMessage::Io(error)
    }
}

/// Prints what the other side did wrong, in a sentence without its name.
impl fmt::Display for NoMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMessage::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("it ended the connection")
            }
            NoMessage::Io(error) => write!(f, "the connection is lost: {}", reason(error)),
            NoMessage::Forged | NoMessage::Odd => f.write_str("it broke the protocol"),
        }
    }
}

/// Waits for the other side, at most `limit`.
///
/// # Errors
///
/// Returns what the other side did wrong, in a sentence.
pub(super) async fn within<T, E: Into<NoMessage>>(
    limit: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(limit, future).await {
        Ok(done) => done.map_err(|error| error.into().to_string()),
        Err(_) => Err(format!("it was silent for {} s", limit.as_secs())),
    }
}

/// Waits for a step of a peer, at most `limit`.
///
/// # Errors
///
/// Returns what the peer did wrong, in a sentence.
pub(crate) async fn limited<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, NoMessage>>,
) -> Result<T, String> {
    let late = |_| format!("it took longer than {} s", limit.as_secs());
    let done = timeout(limit, step).await.map_err(late)?;
    done.map_err(|error| error.to_string())
}

/// Makes and checks the proofs of a connection: an HMAC with the token as key, over the magic and
/// both nonces.
pub(crate) struct Session(Hmac<Sha256>);

impl Session {
    pub(super) fn new(kind: &Kind, token: &Token, sender: &Nonce, receiver: &Nonce) -> Session {
        let mut mac = Hmac::new_from_slice(token.bytes()).expect("HMAC takes keys of any length");
        mac.update(kind.magic);
        mac.update(sender);
        mac.update(receiver);
        Session(mac)
    }

    fn mac(&self, step: Step, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(&[step as u8]);
        mac.update(body);
        mac
    }

    /// Sends the message of a step with its proof.
    pub(crate) async fn say(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        step: Step,
        body: &[u8],
    ) -> io::Result<()> {
        let proof = self.mac(step, body).finalize().into_bytes();
        let len = (body.len() as u16).to_be_bytes();
        to.write_all(&[&len, body, &proof[..]].concat()).await
    }

    /// Waits for the message of a step, checks its proof, and returns its body.
    pub(crate) async fn hear(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        step: Step,
    ) -> Result<Vec<u8>, NoMessage> {
        let len = usize::from(from.read_u16().await?);
        if len > MOST {
            return Err(NoMessage::Odd);
        }
        let mut body = vec![0; len];
        from.read_exact(&mut body).await?;
        let mut proof = [0; PROOF];
        from.read_exact(&mut proof).await?;
        // `verify_slice` compares in constant time.
        match self.mac(step, &body).verify_slice(&proof) {
            Ok(()) => Ok(body),
            Err(_) => Err(NoMessage::Forged),
        }
    }
}

/// Notifies a sender that its proof is wrong, by a message whose own proof is wrong.
pub(super) async fn deny(to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    to.write_all(&[0; 2 + PROOF]).await
}

/// Returns the body of an answer: yes, or no with the reason.
pub(crate) fn verdict(why_not: Option<&str>) -> Vec<u8> {
    let text = why_not.unwrap_or_default().chars().take(200);
    let text: String = text.collect();
    [&[u8::from(why_not.is_some())], text.as_bytes()].concat()
}

/// Parses the body of an answer.
///
/// # Errors
///
/// Returns why the receiver refuses, without control characters.
pub(crate) fn parse_verdict(body: &[u8]) -> Result<(), String> {
    match body {
        [0] => Ok(()),
        [] => Err("no reason".to_owned()),
        [_, text @ ..] => {
            let text = String::from_utf8_lossy(text);
            Err(text.replace(|c: char| c.is_control(), "?"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::of(text)
    }

    #[tokio::test]
    async fn a_message_is_heard_in_its_step_and_its_connection_alone() {
        let (a, b) = ([1; 16], [2; 16]);
        let mine = token("a token of this test");
        let ours = Session::new(&SEND, &mine, &a, &b);
        let mut said = Vec::new();
        ours.say(&mut said, Step::File, b"body").await.unwrap();
        assert_eq!(
            ours.hear(&mut &said[..], Step::File).await.unwrap(),
            b"body"
        );
        let others = [
            Session::new(&SEND, &token("another token of it"), &a, &b),
            Session::new(&SEND, &mine, &b, &a),
            Session::new(&SEND, &mine, &a, &[3; 16]),
            Session::new(&CHECK, &mine, &a, &b),
            Session::new(&BENCH, &mine, &a, &b),
        ];
        for other in others {
            let heard = other.hear(&mut &said[..], Step::File).await;
            assert!(matches!(heard, Err(NoMessage::Forged)));
        }
        let heard = ours.hear(&mut &said[..], Step::Sum).await;
        assert!(matches!(heard, Err(NoMessage::Forged)));
        for at in 2..said.len() {
            let mut bad = said.clone();
            bad[at] ^= 1;
            let heard = ours.hear(&mut &bad[..], Step::File).await;
            assert!(matches!(heard, Err(NoMessage::Forged)), "{at}");
        }
        let heard = ours.hear(&mut &[255; 9][..], Step::File).await;
        assert!(matches!(heard, Err(NoMessage::Odd)));
    }

    #[test]
    fn what_a_peer_says_is_printed_without_controls() {
        assert_eq!(parse_verdict(&verdict(None)), Ok(()));
        let refused = parse_verdict(&verdict(Some("no\x1b[2J\n")));
        assert_eq!(refused, Err("no?[2J?".to_owned()));
        assert!(parse_hello(&SEND, b"GET / HTTP/1.1").is_none());
        let said = hello(&SEND, true, &[7; 16]);
        assert_eq!(parse_hello(&SEND, &said), Some((true, [7; 16])));
        assert!(parse_hello(&CHECK, &said).is_none());
        assert_eq!(hello(&CHECK, true, &[7; 16]).len(), 24);
    }
}
