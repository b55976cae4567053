//! The token: a secret that both sides share.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, Result, cannot, name};

const VARIABLE: &str = "TOKIO_DOCA_TOKEN";

/// The shortest and the longest token, in bytes. A shorter token could be guessed.
const LEAST: usize = 16;
const MOST: usize = 1024;

#[derive(clap::Args)]
pub(crate) struct TokenArgs {
    /// Both sides' token [default: $TOKIO_DOCA_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The token itself, which ps shows to other users
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
}

/// A token; the bytes are empty if there is none.
pub(crate) struct Token(Vec<u8>);

impl TokenArgs {
    /// Fails if an option gives a token although the command has no peer.
    pub(crate) fn unused(&self) -> Result {
        if self.token_file.is_none() && self.token.is_none() {
            return Ok(());
        }
        let text = "a token is for --peer alone: name the host, or leave the token out";
        Err(Failure::Usage(text.to_owned()))
    }

    /// Reads the token from the option, the file or the environment.
    pub(crate) fn read(&self) -> Result<Token> {
        let (mut bytes, whence) = match (&self.token_file, &self.token) {
            (Some(path), _) => (of_file(path)?, name(path)),
            (None, Some(token)) => (token.clone().into_bytes(), "--token".to_owned()),
            (None, None) => match std::env::var_os(VARIABLE) {
                Some(token) => (token.as_bytes().to_owned(), VARIABLE.to_owned()),
                None => return Ok(Token(Vec::new())),
            },
        };
        while bytes.last().is_some_and(u8::is_ascii_whitespace) {
            bytes.pop();
        }
        match bytes.len() {
            LEAST..=MOST => Ok(Token(bytes)),
            len => Err(Failure::Usage(format!(
                "the token of {whence} has {len} bytes, not {LEAST} to {MOST}: make one by openssl \
                 rand -hex 16"
            ))),
        }
    }
}

fn of_file(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(cannot("read", path))?;
    let meta = file.metadata().map_err(cannot("read", path))?;
    let name = name(path);
    if meta.is_dir() {
        return Err(Failure::Failed(format!(
            "{name} is a directory: name the file of the token"
        )));
    }
    if meta.is_file() && meta.mode() & 0o077 != 0 {
        let text = format!("other users may reach the token in {name}: chmod 600 {name}");
        return Err(Failure::Failed(text));
    }
    let mut bytes = Vec::new();
    let mut file = file.take(MOST as u64 + 2);
    file.read_to_end(&mut bytes).map_err(cannot("read", path))?;
    Ok(bytes)
}

impl Token {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn is_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// Passes the token to a command in its environment.
    pub(crate) fn give(&self, command: &mut Command) {
        if self.is_some() {
            command.env(VARIABLE, OsStr::from_bytes(&self.0));
        }
    }

    /// Fails if there is no token and `ip` is not on the loopback. `ip` is `None` for a host given
    /// by name.
    pub(crate) fn check(&self, ip: Option<IpAddr>, place: &str) -> Result {
        if self.is_some() || ip.is_some_and(|ip| ip.to_canonical().is_loopback()) {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "{place} is not of the loopback alone: give both sides a token by --token-file or \
             {VARIABLE}"
        )))
    }
}

#[cfg(test)]
impl Token {
    pub(crate) fn of(text: &str) -> Token {
        Token(text.as_bytes().to_owned())
    }
}
