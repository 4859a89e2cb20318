//! SETTINGS (RFC 9114 §7.2.4).

use super::error::{Code, H3Error};
use super::varint;

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
/// RFC 9220 §3.
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
/// Settings in one frame; a peer has a handful, and some grease.
const MOST: usize = 64;

/// What a peer says of itself. What is not in the frame has the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The largest field section it takes, counted as in RFC 9114 §4.2.2.
    pub max_field_section_size: u64,
    /// It takes extended CONNECT (RFC 9220).
    pub connect_protocol: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_field_section_size: varint::MAX, connect_protocol: false }
    }
}

impl Settings {
    /// Appends the frame's payload. QPACK's dynamic table stays at its default, which is none (RFC 9204 §5).
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.max_field_section_size < varint::MAX {
            varint::put(out, MAX_FIELD_SECTION_SIZE);
            varint::put(out, self.max_field_section_size);
        }
        if self.connect_protocol {
            varint::put(out, ENABLE_CONNECT_PROTOCOL);
            varint::put(out, 1);
        }
    }

    /// Reads the frame's payload.
    pub fn decode(mut payload: &[u8]) -> Result<Self, H3Error> {
        let cut = H3Error::Connection(Code::FrameError, "SETTINGS end inside a setting");
        let bad = |why| Err(H3Error::Connection(Code::SettingsError, why));
        let mut settings = Self::default();
        let mut seen = [0u64; MOST];
        let mut count = 0;
        while !payload.is_empty() {
            let (id, len) = varint::get(payload).ok_or(cut)?;
            payload = &payload[len..];
            let (value, len) = varint::get(payload).ok_or(cut)?;
            payload = &payload[len..];
            // §7.2.4: an identifier comes once.
            if seen[..count].contains(&id) {
                return bad("a setting comes twice");
            }
            if count == MOST {
                return Err(H3Error::Connection(Code::ExcessiveLoad, "too many settings"));
            }
            seen[count] = id;
            count += 1;
            match id {
                // §7.2.4.1: HTTP/2's settings that have no meaning here.
                0x00 | 0x02..=0x05 => return bad("a setting of HTTP/2"),
                MAX_FIELD_SECTION_SIZE => settings.max_field_section_size = value,
                ENABLE_CONNECT_PROTOCOL => match value {
                    0 | 1 => settings.connect_protocol = value == 1,
                    _ => return bad("ENABLE_CONNECT_PROTOCOL is neither 0 nor 1"),
                },
                // We use no dynamic table, whatever the peer would allow.
                QPACK_MAX_TABLE_CAPACITY | QPACK_BLOCKED_STREAMS => {}
                _ => {}
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in pairs {
            varint::put(&mut out, *id);
            varint::put(&mut out, *value);
        }
        out
    }

    #[test]
    fn round_trip_and_defaults() {
        assert_eq!(Settings::decode(b""), Ok(Settings::default()));
        let ours = Settings { max_field_section_size: 40_000, connect_protocol: true };
        let mut out = Vec::new();
        ours.encode(&mut out);
        assert_eq!(Settings::decode(&out), Ok(ours));
        assert!(Settings::decode(&payload(&[(1, 4096), (7, 16), (0x33, 1), (0x1f * 7 + 0x21, 9)])).is_ok());
    }

    #[test]
    fn what_is_refused() {
        let code = |pairs: &[(u64, u64)]| Settings::decode(&payload(pairs)).unwrap_err().code();
        assert_eq!(code(&[(6, 1), (6, 1)]), Code::SettingsError);
        assert_eq!(code(&[(0x21, 1), (0x21, 2)]), Code::SettingsError);
        for id in [0, 2, 3, 4, 5] {
            assert_eq!(code(&[(id, 0)]), Code::SettingsError);
        }
        assert_eq!(code(&[(8, 2)]), Code::SettingsError);
        assert_eq!(Settings::decode(&[6]).unwrap_err().code(), Code::FrameError);
        let many: Vec<(u64, u64)> = (100..165).map(|id| (id, 0)).collect();
        assert_eq!(code(&many), Code::ExcessiveLoad);
    }
}
