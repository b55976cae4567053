//! How two sides connect: each proves to the other one that it has the token.

use std::error::Error as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_doca::stream::{Incoming, RdmaConnector, RdmaStream, StreamAddr};

use super::messages::{
    Kind, NoMessage, Nonce, Session, Step, deny, hello, nonce, parse_hello, within,
};
use super::receive::Failed;
use super::token::Token;
use super::{ANSWER, PORT};
use crate::failure::{Failure, Result, text};

/// How long a peer may take until it has proved that it has the token.
const PROOF: Duration = Duration::from_secs(5);

/// Parses the address of the other side. Fails without a token, unless the address is on this host.
pub(crate) fn destination(host: &str, token: &Token) -> Result<StreamAddr> {
    let addr = address(host)?;
    let ip = match &addr {
        StreamAddr::Tcp(addr) => Some(addr.ip()),
        StreamAddr::Host(host) if host.starts_with("localhost:") => {
            Some(IpAddr::from([127, 0, 0, 1]))
        }
        _ => None,
    };
    token.check(ip, host)?;
    Ok(addr)
}

fn address(text: &str) -> Result<StreamAddr> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok(StreamAddr::Tcp(addr));
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(StreamAddr::Tcp(SocketAddr::new(ip, PORT)));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (text, Some(PORT)),
    };
    let is_name = !host.is_empty() && !host.contains(['[', ']', ':', '/', ' ']);
    match port.filter(|&port| port > 0 && is_name) {
        Some(port) => Ok(StreamAddr::Host(format!("{host}:{port}"))),
        None => Err(Failure::Usage(format!(
            "{text:?} is no address: write HOST or HOST:PORT, for example 127.0.0.1:{PORT} or \
             [::1]:{PORT}"
        ))),
    }
}

/// Connects to a listener. Returns `None` if the other side is no listener of this kind.
pub(super) async fn connect(
    connector: &RdmaConnector,
    kind: &Kind,
    token: &Token,
    addr: StreamAddr,
    ours: &Nonce,
) -> Result<Option<(RdmaStream, Session)>, tokio_doca::Error> {
    let hello = hello(kind, token.is_some(), ours);
    let (stream, theirs) = connector.connect_with(addr, &hello).await?;
    let theirs = theirs.as_slice().try_into();
    Ok(theirs
        .ok()
        .map(|theirs| (stream, Session::new(kind, token, ours, theirs))))
}

impl Kind {
    /// Returns why connecting failed. If nothing listens there, names the command to start.
    pub(super) fn unmet(&self, error: &tokio_doca::Error) -> String {
        let source = error.source().and_then(|it| it.downcast_ref::<io::Error>());
        match source.map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => {
                format!("{}: start {} there", text(error), self.serves)
            }
            _ => text(error),
        }
    }
}

/// Why connecting failed.
pub(crate) enum Unmet {
    /// An error of the library.
    Library(tokio_doca::Error),
    /// The other side refused, or broke the protocol.
    Peer(String),
}

impl Unmet {
    /// Returns the reason, in a sentence without the name of the other side.
    pub(crate) fn why(self, kind: &Kind) -> String {
        match self {
            Unmet::Library(error) => kind.unmet(&error),
            Unmet::Peer(why) => why,
        }
    }
}

/// Connects, and has both sides prove that they have the token. Also returns the listener's
/// description of itself, which came with its proof.
pub(crate) async fn call(
    connector: &RdmaConnector,
    kind: &Kind,
    token: &Token,
    addr: StreamAddr,
) -> Result<(RdmaStream, Session, Vec<u8>), Unmet> {
    let ours = nonce().map_err(Unmet::Peer)?;
    let met = connect(connector, kind, token, addr, &ours).await;
    let odd = || Unmet::Peer(format!("it is no {}", kind.serves));
    let (mut stream, session) = met.map_err(Unmet::Library)?.ok_or_else(odd)?;
    let about = prove(&mut stream, &session, token).await;
    Ok((stream, session, about.map_err(Unmet::Peer)?))
}

/// The most characters of the other side's description of itself.
const ABOUT: usize = 300;

/// Returns the other side's description of itself, as a line that can neither end a block of text
/// nor control a terminal.
pub(crate) fn printable(text: &[u8]) -> String {
    let plain = |byte: &u8| match byte {
        b'`' => '\'',
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    text.iter().take(ABOUT).map(plain).collect()
}

/// Proves to the listener that this side has the token, and checks the listener's proof. Returns
/// the data that came with that proof.
///
/// # Errors
///
/// Returns what the listener did wrong, in a sentence.
pub(super) async fn prove(
    stream: &mut RdmaStream,
    session: &Session,
    token: &Token,
) -> Result<Vec<u8>, String> {
    within(ANSWER, session.say(stream, Step::Sender, &[])).await?;
    let heard = async {
        match session.hear(stream, Step::Receiver).await {
            Err(NoMessage::Forged) if token.is_some() => Ok(None),
            heard => heard.map(Some),
        }
    };
    let other = "its token is another one: give both sides the same";
    within(ANSWER, heard).await?.ok_or_else(|| other.to_owned())
}

/// Checks a connecting peer's proof that it has the token, and sends the proof of this side, with
/// `about` as its data.
///
/// # Errors
///
/// Returns what the peer did wrong, in a sentence.
pub(crate) async fn meet(
    kind: &Kind,
    token: &Token,
    incoming: Incoming,
    about: &[u8],
) -> Result<(RdmaStream, Session), String> {
    let Kind { asks, listens, .. } = kind;
    let refused = match parse_hello(kind, incoming.data()) {
        None => Err(format!(
            "this {listens} speaks with {asks}, version 1, alone"
        )),
        Some((true, _)) if !token.is_some() => Err(format!("this {listens} has no token")),
        Some((false, _)) if token.is_some() => Err(format!("this {listens} demands a token")),
        Some((_, nonce)) => Ok(nonce),
    };
    let theirs = match refused {
        Ok(theirs) => theirs,
        Err(why) => {
            // Sending the refusal fails only if the peer has gone.
            let _ = incoming.refuse(&why).await;
            return Err(format!("refused: {why}"));
        }
    };
    let ours = nonce()?;
    let accepted = incoming.accept(&ours).await;
    let mut stream = accepted.map_err(|error| text(&error))?;
    let session = Session::new(kind, token, &theirs, &ours);
    match timeout(PROOF, session.hear(&mut stream, Step::Sender)).await {
        Ok(Ok(_)) => {}
        Ok(Err(NoMessage::Forged)) => {
            let _ = timeout(PROOF, deny(&mut stream)).await;
            let _ = timeout(PROOF, stream.shutdown()).await;
            return Err("refused: its token is another one".to_owned());
        }
        Ok(Err(_)) => return Err("it left without a proof".to_owned()),
        Err(_) => return Err(format!("it proved nothing within {PROOF:?}")),
    }
    let said = timeout(ANSWER, session.say(&mut stream, Step::Receiver, about)).await;
    match said {
        Ok(Ok(())) => Ok((stream, session)),
        _ => Err("it left after its proof".to_owned()),
    }
}

/// As [`meet`], and then runs `part`, this side's part in the connection. `what` names it in
/// messages.
pub(crate) async fn play(
    (kind, what): (&Kind, &str),
    token: &Token,
    incoming: Incoming,
    about: &str,
    part: impl AsyncFnOnce(&mut RdmaStream, &Session) -> Result<String, String>,
) -> Result<String, Failed> {
    let about = &about.as_bytes()[..about.len().min(1024)];
    let played = async {
        let (mut stream, session) = meet(kind, token, incoming, about).await?;
        let played = part(&mut stream, &session).await;
        played.map_err(|why| format!("the {what} ended early: {why}"))
    };
    played.await.map_err(|text| Failed {
        text,
        proven: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_of_itself_stays_in_its_line() {
        assert_eq!(printable(b"mlx5_0 (verbs)"), "mlx5_0 (verbs)");
        assert_eq!(printable(b"a\x1b[2J\n```\xff"), "a?[2J?'''?");
        assert_eq!(printable(&[b'a'; 2000]).len(), ABOUT);
    }
}
