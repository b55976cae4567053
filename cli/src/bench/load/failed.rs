//! The error of a measurement.

use std::io;

#[derive(Debug)]
pub(crate) enum Failed {
    Device(tokio_doca::Error),
    System(io::Error),
    Said(String),
}

pub(crate) type Result<T = (), E = Failed> = std::result::Result<T, E>;

impl From<tokio_doca::Error> for Failed {
    fn from(error: tokio_doca::Error) -> Failed {
        Failed::Device(error)
    }
}

impl From<tokio_doca::error::JobError> for Failed {
    fn from(error: tokio_doca::error::JobError) -> Failed {
        Failed::Device(error.into())
    }
}

impl From<tokio_doca::graph::RunError> for Failed {
    fn from(error: tokio_doca::graph::RunError) -> Failed {
        Failed::Device(error.into())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::System(error)
    }
}
