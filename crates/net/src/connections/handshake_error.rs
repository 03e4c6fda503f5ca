//! Why a handshake came to nothing.

use std::{io, time::Duration};

use rustls::{AlertDescription, CertificateError, Error};
use thiserror::Error as ThisError;
use wire::frame::{FrameError, FrameKind};

use crate::connections::records::Alerted;

#[derive(Debug, ThisError)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no handshake within {0:?}")]
    Timeout(Duration),
    #[error("a frame {0:?} where the handshake has another")]
    Unexpected(FrameKind),
    /// The other side cannot prove that it belongs to this cluster, or we cannot to it.
    #[error(
        "permission denied: this process and the one there are not of the same cluster; use the cluster's own \
         directory (--dir), as its owner. A machine that missed an exchange of the cluster's authority joins again with a token"
    )]
    Stranger,
    #[error("{0} certificate has expired, or the clocks of the two machines differ")]
    Expired(&'static str),
    #[error(
        "it speaks another version of the protocol than {}; install the same version of ropewalk on both nodes",
        wire::frame::PROTOCOL_VERSION
    )]
    OtherVersion,
    /// Both sides speak several versions, and none is the same. The text names who is to be upgraded.
    #[error("{0}")]
    NoCommonVersion(String),
    #[error("{0}")]
    Tls(Error),
    /// The other side, which is who it says, refuses us.
    #[error("refused: {0}")]
    Refused(String),
    /// We refuse the other side.
    #[error("refusing it: {0}")]
    Refusing(String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> HandshakeError {
        let alert =
            error.get_ref().and_then(|inner| inner.downcast_ref::<Alerted>()).map(|alerted| alerted.0);
        match alert {
            Some(alert) => Error::AlertReceived(alert).into(),
            // What sends no TLS at all.
            None if error.kind() == io::ErrorKind::InvalidData => {
                HandshakeError::Tls(Error::General(error.to_string()))
            }
            None => HandshakeError::Io(error),
        }
    }
}

impl HandshakeError {
    /// All that [`HandshakeError::kind`] says.
    pub(crate) const KINDS: [&'static str; 7] =
        ["broken", "version", "garbage", "silent", "stranger", "expired", "refused"];

    /// In few words, for the statistics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            HandshakeError::Io(_) => "broken",
            HandshakeError::Frame(FrameError::Version { .. })
            | HandshakeError::OtherVersion
            | HandshakeError::NoCommonVersion(_) => "version",
            HandshakeError::Frame(_) | HandshakeError::Unexpected(_) | HandshakeError::Tls(_) => "garbage",
            HandshakeError::Timeout(_) => "silent",
            HandshakeError::Stranger => "stranger",
            HandshakeError::Expired(_) => "expired",
            HandshakeError::Refused(_) | HandshakeError::Refusing(_) => "refused",
        }
    }
}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> HandshakeError {
        use AlertDescription as Alert;
        match error {
            Error::NoApplicationProtocol | Error::AlertReceived(Alert::NoApplicationProtocol) => {
                HandshakeError::OtherVersion
            }
            Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            ) => HandshakeError::Expired("the peer's"),
            Error::AlertReceived(Alert::CertificateExpired) => HandshakeError::Expired("this process's"),
            Error::InvalidCertificate(_)
            | Error::NoCertificatesPresented
            | Error::AlertReceived(
                Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::DecryptError
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::AccessDenied,
            ) => HandshakeError::Stranger,
            error => HandshakeError::Tls(error),
        }
    }
}
