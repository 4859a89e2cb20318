//! What can be wrong with a peer's HTTP/3, and what it is told.

use crate::error::ParseError;
use std::fmt;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident $value:literal $label:literal;)*) => {
        /// An HTTP/3 or QPACK error code (RFC 9114 §8.1, RFC 9204 §6).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Code {
            $($(#[doc = $doc])+ $name = $value,)*
        }

        impl Code {
            /// All of them, for tables of counters.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// A short, stable name for counters and logs.
            pub const fn label(self) -> &'static str {
                match self { $(Code::$name => $label,)* }
            }
        }
    };
}

codes! {
    /// Nothing is wrong.
    NoError 0x100 "no_error";
    /// The protocol was broken in a way that no other code names.
    GeneralProtocolError 0x101 "general_protocol_error";
    /// Our fault.
    InternalError 0x102 "internal_error";
    /// A stream that may not be opened.
    StreamCreationError 0x103 "stream_creation_error";
    /// A stream that a connection cannot be without was closed.
    ClosedCriticalStream 0x104 "closed_critical_stream";
    /// A frame where it may not be.
    FrameUnexpected 0x105 "frame_unexpected";
    /// A frame that is malformed or cut off.
    FrameError 0x106 "frame_error";
    /// The peer makes more work than is bearable.
    ExcessiveLoad 0x107 "excessive_load";
    /// A stream or push id that may not be used.
    IdError 0x108 "id_error";
    /// Settings that contradict each other or are not allowed.
    SettingsError 0x109 "settings_error";
    /// The control stream does not begin with SETTINGS.
    MissingSettings 0x10a "missing_settings";
    /// A request that was not processed: it may be sent again.
    RequestRejected 0x10b "request_rejected";
    /// Nobody wants the rest of a request or response.
    RequestCancelled 0x10c "request_cancelled";
    /// A request stream ended without a whole request.
    RequestIncomplete 0x10d "request_incomplete";
    /// A malformed message.
    MessageError 0x10e "message_error";
    /// A tunnel's connection was reset.
    ConnectError 0x10f "connect_error";
    /// The request must go over HTTP/1.1.
    VersionFallback 0x110 "version_fallback";
    /// A field section that cannot be read.
    QpackDecompressionFailed 0x200 "qpack_decompression_failed";
    /// The peer's encoder stream cannot be read.
    QpackEncoderStreamError 0x201 "qpack_encoder_stream_error";
    /// The peer's decoder stream cannot be read.
    QpackDecoderStreamError 0x202 "qpack_decoder_stream_error";
}

impl Code {
    /// The code as it is sent.
    #[inline]
    pub const fn value(self) -> u32 {
        self as u32
    }

    /// The position in [`Code::ALL`].
    pub fn index(self) -> usize {
        Code::ALL.iter().position(|c| *c == self).unwrap_or(0)
    }
}

/// A fault of the peer's, by how far it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H3Error {
    /// The connection is closed with this code.
    Connection(Code, &'static str),
    /// The stream alone is reset with this code; others are unharmed.
    Stream(Code, &'static str),
    /// The message is malformed (RFC 9114 §4.1.2: a stream error), or beyond a limit of ours, which is answered.
    Message(ParseError),
}

impl H3Error {
    /// The code that the peer is told.
    pub const fn code(self) -> Code {
        match self {
            Self::Connection(code, _) | Self::Stream(code, _) => code,
            Self::Message(_) => Code::MessageError,
        }
    }
}

impl From<ParseError> for H3Error {
    fn from(e: ParseError) -> Self {
        Self::Message(e)
    }
}

impl fmt::Display for H3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(code, why) | Self::Stream(code, why) => write!(f, "{why} ({})", code.label()),
            Self::Message(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for H3Error {}
