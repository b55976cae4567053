//! The hashes that a device may compute.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// A hash of FIPS 180-4.
///
/// | algorithm | digest | block |
/// |---|---|---|
/// | SHA-1 | 20 bytes | 64 bytes |
/// | SHA-256 | 32 bytes | 64 bytes |
/// | SHA-512 | 64 bytes | 128 bytes |
///
/// SHA-1 no longer resists attackers: use it only for formats that require it.
///
/// ```
/// use tokio_doca::sha::Algorithm;
///
/// let algorithm: Algorithm = "sha256".parse()?;               // from a configuration file
/// assert_eq!(algorithm.to_string(), "SHA-256");
/// assert_eq!((algorithm.digest_len(), algorithm.block_len()), (32, 64));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "doca_sha_job_type")]
#[doc(alias = "doca_sha_algorithm")]
pub enum Algorithm {
    /// SHA-1, with a digest of 20 bytes.
    #[doc(alias = "DOCA_SHA_JOB_SHA1")]
    #[doc(alias = "DOCA_SHA_ALGORITHM_SHA1")]
    Sha1,
    /// SHA-256, with a digest of 32 bytes.
    #[doc(alias = "DOCA_SHA_JOB_SHA256")]
    #[doc(alias = "DOCA_SHA_ALGORITHM_SHA256")]
    Sha256,
    /// SHA-512, with a digest of 64 bytes.
    #[doc(alias = "DOCA_SHA_JOB_SHA512")]
    #[doc(alias = "DOCA_SHA_ALGORITHM_SHA512")]
    Sha512,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512];

    /// Returns the size of a digest in bytes: the tailroom that a destination must have.
    #[doc(alias = "doca_sha_get_min_dst_buffer_size")]
    #[doc(alias = "doca_sha_cap_get_min_dst_buf_size")]
    pub const fn digest_len(self) -> usize {
        match self {
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    /// Returns the size of a block in bytes. If a message is hashed in several jobs, each part but
    /// the last must be a multiple of this size.
    #[doc(alias = "doca_sha_cap_get_partial_hash_block_size")]
    pub const fn block_len(self) -> usize {
        match self {
            Algorithm::Sha1 | Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::Sha1 => "SHA-1",
            Algorithm::Sha256 => "SHA-256",
            Algorithm::Sha512 => "SHA-512",
        })
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    /// Parses `sha1`, `sha256` or `sha512`. Case and hyphens do not matter: `SHA-256` is the same.
    fn from_str(text: &str) -> Result<Algorithm, Error> {
        let name = text.to_ascii_lowercase().replace('-', "");
        match &name[..] {
            "sha1" => Ok(Algorithm::Sha1),
            "sha256" => Ok(Algorithm::Sha256),
            "sha512" => Ok(Algorithm::Sha512),
            _ => {
                let text = format!("\"{text}\" is no algorithm: there are sha1, sha256 and sha512");
                Err(Error::new(
                    ErrorKind::InvalidValue,
                    "Algorithm::from_str",
                    text,
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_is_read_as_it_is_written() {
        for algorithm in Algorithm::ALL {
            assert_eq!(
                algorithm.to_string().parse::<Algorithm>().unwrap(),
                algorithm
            );
        }
        assert_eq!("sha256".parse::<Algorithm>().unwrap(), Algorithm::Sha256);
        let error = "md5".parse::<Algorithm>().unwrap_err();
        assert!(error.to_string().contains("\"md5\""), "{error}");
    }
}
