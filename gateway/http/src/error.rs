//! What can be wrong with a message: one enum for the whole codec, and the one place that maps it to a status.
//!
//! Every variant is the peer's fault. After any of them the byte stream has no known position any more, so the caller
//! answers (if it is the server) and closes the connection.

use std::fmt;

macro_rules! parse_errors {
    ($($(#[doc = $doc:literal])+ $variant:ident, $status:literal, $label:literal, $text:literal;)*) => {
        /// Why a message was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ParseError {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl ParseError {
            /// All of them, for tables of counters.
            pub const ALL: &'static [ParseError] = &[$(ParseError::$variant,)*];

            /// The status a server answers with. A gateway that got the error from an upstream answers 502 instead.
            pub const fn status(self) -> u16 {
                match self { $(ParseError::$variant => $status,)* }
            }

            /// A short, stable name for counters and logs.
            pub const fn label(self) -> &'static str {
                match self { $(ParseError::$variant => $label,)* }
            }

            /// The position in [`ParseError::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl fmt::Display for ParseError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(ParseError::$variant => $text,)* })
            }
        }
    };
}

parse_errors! {
    /// No `method SP target SP version` (HTTP/0.9 included).
    RequestLine, 400, "request_line", "the request line is not `method target version`";
    /// The method is empty or not a token.
    Method, 400, "method", "the method is not a token";
    /// RFC 9112 §3: a method longer than any that is implemented.
    MethodTooLong, 501, "method_length", "the method is longer than any that is known";
    /// A byte that no target has, or a form that does not go with the method (RFC 9112 §3.2).
    Target, 400, "target", "the request target is malformed or does not go with the method";
    /// RFC 9110 §15.5.15.
    TargetTooLong, 414, "target_length", "the request target is longer than the limit";
    /// Not `HTTP/d.d`.
    VersionSyntax, 400, "version_syntax", "the HTTP version is malformed";
    /// Well-formed, but neither 1.0 nor 1.1.
    Version, 505, "version", "the HTTP version is neither 1.0 nor 1.1";
    /// A status line that is none.
    StatusLine, 400, "status_line", "the status line is malformed";
    /// A status outside 100..=599 (RFC 9110 §15).
    Status, 400, "status", "the status is none of 100 to 599";
    /// CR not followed by LF.
    BareCr, 400, "bare_cr", "a CR without an LF after it";
    /// LF not preceded by CR.
    BareLf, 400, "bare_lf", "an LF without a CR before it";
    /// RFC 9112 §2.2: white space between the start line and the first field.
    LeadingSpace, 400, "leading_space", "white space before the first field";
    /// RFC 9112 §5.2.
    ObsFold, 400, "obs_fold", "a field is folded over several lines";
    /// Empty, or a byte that no token has.
    FieldName, 400, "field_name", "a field name is empty or not a token";
    /// RFC 9112 §5.1: white space before the colon.
    SpaceBeforeColon, 400, "space_before_colon", "white space between a field name and its colon";
    /// `Content_Length` and its like: some back ends take `_` for `-`.
    FieldLookalike, 400, "field_lookalike", "a field name imitates the name of a sensitive field with underscores";
    /// A control character.
    FieldValue, 400, "field_value", "a control character in a field value";
    /// More fields than the limit.
    TooManyFields, 431, "fields", "more header fields than the limit";
    /// More bytes than the limit.
    HeadTooLarge, 431, "head_length", "the message head is longer than the limit";
    /// RFC 9112 §3.2.
    HostMissing, 400, "host_missing", "an HTTP/1.1 request without a Host";
    /// RFC 9112 §3.2.
    HostDuplicate, 400, "host_duplicate", "more than one Host";
    /// Not a host name, an address, or one of these with a port.
    Host, 400, "host", "the host is malformed";
    /// An absolute target (or CONNECT's) names another host than Host does.
    HostMismatch, 400, "host_mismatch", "the target and Host disagree";
    /// RFC 9110 §4.2.4.
    Userinfo, 400, "userinfo", "the authority carries user information";
    /// Not one plain decimal number, or too large a one.
    ContentLength, 400, "content_length", "Content-Length is not one decimal number";
    /// RFC 9112 §6.3; refused even when they are equal.
    ContentLengthDuplicate, 400, "content_length_duplicate", "more than one Content-Length";
    /// RFC 9112 §6.1.
    LengthAndCoding, 400, "length_and_coding", "both Content-Length and Transfer-Encoding";
    /// Not exactly one `chunked`.
    TransferEncoding, 400, "transfer_encoding", "Transfer-Encoding is not exactly `chunked`";
    /// Well-formed, ending in `chunked`, but with codings before it that are not implemented.
    TransferCoding, 501, "transfer_coding", "a transfer coding other than `chunked`";
    /// RFC 9112 §6.1: HTTP/1.0 has no Transfer-Encoding.
    TransferEncodingIn10, 400, "transfer_encoding_1_0", "Transfer-Encoding in an HTTP/1.0 message";
    /// Content where none may be: CONNECT, TRACE, a 1xx response.
    BodyForbidden, 400, "body_forbidden", "content in a message that has none by definition";
    /// A malformed option, too many, or one that names a field meant for everybody (RFC 9110 §7.6.1).
    ConnectionOption, 400, "connection_option", "Connection is malformed or names a field it may not name";
    /// RFC 9110 §10.1.1.
    Expect, 417, "expect", "an expectation other than `100-continue`";
    /// 101 without what it switches to (RFC 9110 §15.2.2).
    Upgrade, 400, "upgrade", "a 101 response that does not say which protocol it switches to";
    /// Not a hexadecimal number, or too large a one.
    ChunkSize, 400, "chunk_size", "a chunk size is not a hexadecimal number";
    /// Not `;name`, `;name=token` or `;name="text"`.
    ChunkExtension, 400, "chunk_extension", "a chunk extension is malformed";
    /// More bytes of extensions than are reasonable for the data.
    ChunkExtensionLength, 400, "chunk_extension_length", "chunk extensions are longer than the limit";
    /// Chunk data that CRLF does not follow.
    ChunkEnd, 400, "chunk_end", "chunk data is not followed by CRLF";
    /// Trailers above the limits.
    TrailersTooLarge, 431, "trailers", "the trailer section is larger than the limit";
    /// RFC 9113 §8.3, RFC 9114 §4.3: one that is unknown, comes twice, late, or not with this method; or one is missing.
    PseudoField, 400, "pseudo_field", "a pseudo-header field is missing, unknown, repeated or out of place";
    /// RFC 9113 §8.2.1, RFC 9114 §4.2.
    FieldCase, 400, "field_case", "a field name in upper case";
    /// RFC 9113 §8.2.2, RFC 9114 §4.2.
    ConnectionField, 400, "connection_field", "a field for HTTP/1.1 connections only";
    /// RFC 9113 §8.1.1, RFC 9114 §4.1.2.
    LengthMismatch, 400, "length_mismatch", "content-length and the content disagree";
    /// RFC 8441 §4, RFC 9220 §3: a `:protocol` other than `websocket`.
    Protocol, 501, "protocol", "a protocol of extended CONNECT other than `websocket`";
    /// The connection closed before the body was complete (RFC 9112 §8).
    Truncated, 400, "truncated", "the connection closed inside a message";
}

impl std::error::Error for ParseError {}

impl ParseError {
    /// Whether the rest of a request's head is right and was read whole: the request is refused for what it asks.
    pub fn leaves_head(self) -> bool {
        self == Self::Expect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_distinct_and_statuses_are_client_or_server_errors() {
        for (i, e) in ParseError::ALL.iter().enumerate() {
            assert_eq!(e.index(), i);
            assert!((400..=505).contains(&e.status()));
            assert!(
                !e.label().is_empty()
                    && e.label().bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
            );
            assert!(ParseError::ALL[i + 1..].iter().all(|o| o.label() != e.label()), "{}", e.label());
        }
    }
}
