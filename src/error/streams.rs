//! The texts of errors that end a byte stream. They mention no Rdma, job or receive, since the
//! stream's user has none.

use std::borrow::Cow;

use super::{JobError, Number, Reason};

/// The bit of `JobError::word` that marks an error of a stream. No reason uses this bit.
pub(super) const MARK: u64 = 1 << 63;

const _: () = assert!(Reason::ALL.len() < 1 << 7);

impl JobError {
    /// Returns the same error, with the text for a stream's user.
    pub(crate) fn of_stream(mut self) -> JobError {
        self.word |= MARK;
        self
    }

    /// Returns the text for a stream's user, if this is marked as an error of a stream.
    pub(super) fn text_of_stream(&self) -> Option<Cow<'static, str>> {
        if self.word.get() & MARK == 0 {
            return None;
        }
        let error = self.first_failure().unwrap_or(*self);
        let number = Number(error.first());
        use Reason::*;
        let fact: Cow<'static, str> = match error.reason() {
            PeerClosed | PeerFailed => "the peer has dropped its stream, or has lost it".into(),
            PeerGone => "the peer's process has ended".into(),
            PeerSilent => format!(
                "the peer did not answer for {number} ms or longer: its process has ended, or the \
                 network does not reach it"
            )
            .into(),
            NoReceive => format!(
                "the peer does not take what it has given credits for, for {number} ms \
                 (StreamOptions::rnr_timeout)"
            )
            .into(),
            PeerNonsense | CreditsExceeded | ReceiveExceeded => {
                "the peer broke the protocol".into()
            }
            PortDown => "the port of the adapter has gone down".into(),
            Flushed | NotConnected | Reset => "the stream has lost its connection".into(),
            // This reason does not concern a connection.
            _ => return (error != *self).then(|| error.to_string().into()),
        };
        let way = match error.reason() {
            PeerNonsense => "use a stream of the same release of this library on both sides",
            PortDown => "once it is up, connect another stream",
            _ => "connect another stream",
        };
        Some(format!("{fact}: {way}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way in which a connection ends.
    const ENDS: [Reason; 11] = [
        Reason::PeerClosed,
        Reason::PeerFailed,
        Reason::PeerGone,
        Reason::PeerSilent,
        Reason::NoReceive,
        Reason::PeerNonsense,
        Reason::CreditsExceeded,
        Reason::ReceiveExceeded,
        Reason::PortDown,
        Reason::NotConnected,
        Reason::Reset,
    ];

    #[test]
    fn what_ends_a_stream_speaks_of_streams_and_keeps_all_else() {
        for reason in ENDS {
            let error = JobError::new(reason, 2500, 7);
            for error in [error, JobError::flushed(error)] {
                let of_stream = error.of_stream();
                let text = of_stream.to_string();
                for word in ["Rdma", "job", "flushed", "reset", "post"] {
                    assert!(!text.contains(word), "{text}");
                }
                assert!(text.contains(": ") && text.contains("stream"), "{text}");
                assert_ne!(text, error.to_string());
                assert_eq!(
                    (of_stream.kind(), of_stream.reason(), of_stream.cause()),
                    (error.kind(), error.reason(), error.cause())
                );
            }
        }
        let silent = JobError::flushed(JobError::new(Reason::PeerSilent, 2500, 0));
        assert!(silent.of_stream().to_string().contains("2500 ms"));
    }

    #[test]
    fn what_ends_no_connection_has_the_text_of_its_reason() {
        let error = JobError::of(Reason::DeviceGone);
        for of_stream in [error, JobError::flushed(error)].map(JobError::of_stream) {
            assert_eq!(of_stream.to_string(), error.to_string());
        }
    }
}
