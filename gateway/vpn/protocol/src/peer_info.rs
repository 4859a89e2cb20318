//! What a peer says about itself: `IV_…` lines.

use crate::data::Cipher;

/// Bits of `IV_PROTO`.
pub mod proto {
    /// DATA_V2.
    pub const DATA_V2: u32 = 1 << 1;
    /// The reply may come before the request.
    pub const REQUEST_PUSH: u32 = 1 << 2;
    /// Data keys come from TLS' exporter.
    pub const TLS_KEY_EXPORT: u32 = 1 << 3;
    /// `AUTH_PENDING` with keywords.
    pub const AUTH_PENDING_KW: u32 = 1 << 4;
    /// `dns` options, in the form of 2.6.
    pub const DNS_OPTION: u32 = 1 << 6;
    /// `EXIT` on the control channel.
    pub const CC_EXIT_NOTIFY: u32 = 1 << 7;
    /// `AUTH_FAILED,TEMP`.
    pub const AUTH_FAIL_TEMP: u32 = 1 << 8;
    /// Dynamic tls-crypt.
    pub const DYN_TLS_CRYPT: u32 = 1 << 9;
    /// The epoch format.
    pub const DATA_EPOCH: u32 = 1 << 10;
    /// `dns` options, in the form of 2.7.
    pub const DNS_OPTION_V2: u32 = 1 << 11;
    /// `PUSH_UPDATE`.
    pub const PUSH_UPDATE: u32 = 1 << 12;
}

/// A peer's lines, as far as they matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    /// `IV_PROTO`.
    pub proto: u32,
    /// `IV_CIPHERS`, those that we know.
    pub ciphers: Vec<Cipher>,
    /// Whether it negotiates ciphers at all: `IV_CIPHERS`, or `IV_NCP` of 2.4.
    pub negotiates: bool,
    /// `IV_VER`.
    pub version: String,
    /// `IV_PLAT`.
    pub platform: String,
    /// `IV_MTU`, the largest it takes.
    pub mtu: Option<u16>,
    /// `IV_COMP_STUBv2`: it supports `compress stub-v2`, which adds no framing to IP packets.
    pub stub_v2: bool,
    /// `IV_SSO`: how it opens pages where its user logs in.
    pub opens_pages: Option<OpensPages>,
}

/// How a client is told to open a page where its user logs in, while the server waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpensPages {
    /// `WEB_AUTH`.
    WebAuth,
    /// `OPEN_URL`, which is older.
    OpenUrl,
}

impl OpensPages {
    /// The best of the methods that `IV_SSO` lists.
    fn best(methods: &str) -> Option<Self> {
        let has = |wanted: &str| methods.split(',').any(|method| method.trim() == wanted);
        match (has("webauth"), has("openurl")) {
            (true, _) => Some(Self::WebAuth),
            (false, true) => Some(Self::OpenUrl),
            (false, false) => None,
        }
    }

    /// The text of `INFO_PRE` for a page.
    pub fn step(self, url: &str) -> String {
        match self {
            Self::WebAuth => format!("WEB_AUTH::{url}"),
            Self::OpenUrl => format!("OPEN_URL:{url}"),
        }
    }
}

impl PeerInfo {
    /// Reads the lines; what is not known is skipped.
    pub fn parse(text: &str) -> Self {
        let mut info = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else { continue };
            match name {
                "IV_PROTO" => info.proto = value.parse().unwrap_or(0),
                "IV_CIPHERS" => {
                    info.negotiates = true;
                    info.ciphers = value.split(':').filter_map(Cipher::from_name).collect();
                }
                // 2.4 said so before there was IV_CIPHERS: both AES-GCM ciphers.
                "IV_NCP" if value.parse::<u32>().is_ok_and(|n| n >= 2) => {
                    info.negotiates = true;
                    if info.ciphers.is_empty() {
                        info.ciphers = vec![Cipher::Aes256Gcm, Cipher::Aes128Gcm];
                    }
                }
                "IV_VER" => info.version = shown(value),
                "IV_PLAT" => info.platform = shown(value),
                "IV_MTU" => info.mtu = value.parse().ok(),
                "IV_COMP_STUBv2" => info.stub_v2 = value == "1",
                "IV_SSO" => info.opens_pages = OpensPages::best(value),
                _ => {}
            }
        }
        info
    }

    /// Whether a bit of `IV_PROTO` is set.
    pub const fn has(&self, bit: u32) -> bool {
        self.proto & bit != 0
    }

    /// Whether it may be sent its configuration together with the key exchange's last message, before it asks. OpenVPN 3
    /// says so, too, but leaves lying whatever comes in one packet with that message: it has to be waited for.
    pub fn takes_unasked_push(&self) -> bool {
        self.has(proto::REQUEST_PUSH) && !self.version.starts_with("3.")
    }

    /// Whether the peer uses compression framing and can be told to stop (`compress migrate` of OpenVPN).
    pub fn takes_stub(&self, options: &str) -> bool {
        self.stub_v2 && says_compression(options)
    }

    /// The first of `ours` that the peer has. A peer that does not negotiate is taken by the `cipher` of its options
    /// string.
    pub fn choose(&self, ours: &[Cipher], options: &str) -> Option<Cipher> {
        let said = options.split(',').find_map(|o| o.strip_prefix("cipher ")).and_then(Cipher::from_name);
        match self.negotiates {
            true => ours.iter().copied().find(|c| self.ciphers.contains(c)),
            false => said.filter(|c| ours.contains(c)),
        }
    }
}

/// Whether an options string contains `comp-lzo`. Peers say so for every kind of compression, and for its framing alone.
fn says_compression(options: &str) -> bool {
    options.split(',').any(|option| option == "comp-lzo")
}

/// What an options string says of the peer's configuration that makes its packets others than ours: the reason to refuse
/// it, which names the option. The framing of compression is no reason for a peer that [`PeerInfo::takes_stub`].
pub fn impossible(options: &str, takes_stub: bool) -> Option<&'static str> {
    options.split(',').find_map(|option| match option {
        "dev-type tap" => Some("layer 2 (`dev tap`) is not supported"),
        "comp-lzo" if takes_stub => None,
        "comp-lzo" => Some("compression is not supported: remove `comp-lzo` and `compress` from the configuration"),
        "mtu-dynamic" => Some("`fragment` is not supported: remove it from the configuration"),
        _ => None,
    })
}

/// A word of the peer's for logs and status: short and printable.
fn shown(value: &str) -> String {
    value.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(64).collect()
}

/// What we say about ourselves. A server says less: its peers need only the exchange's terms.
pub fn ours(version: &str, ciphers: &[Cipher], bits: u32, mtu: u16) -> String {
    let names: Vec<&str> = ciphers.iter().map(|c| c.name()).collect();
    let ncp =
        if [Cipher::Aes128Gcm, Cipher::Aes256Gcm].iter().all(|c| ciphers.contains(c)) { "IV_NCP=2\n" } else { "" };
    format!(
        "IV_VER={version}\nIV_PLAT=linux\nIV_TCPNL=1\nIV_MTU={mtu}\n{ncp}IV_CIPHERS={}\nIV_PROTO={bits}\n",
        names.join(":")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_understood() {
        let info =
            PeerInfo::parse("IV_VER=2.6.3\nIV_PROTO=990\nIV_CIPHERS=AES-256-GCM:BF-CBC:AES-128-GCM\nIV_MTU=1600\n");
        assert!(info.has(proto::DATA_V2) && info.has(proto::TLS_KEY_EXPORT) && !info.has(proto::DATA_EPOCH));
        assert_eq!(info.ciphers, [Cipher::Aes256Gcm, Cipher::Aes128Gcm]);
        assert_eq!(info.choose(&[Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm], ""), Some(Cipher::Aes128Gcm));
        assert_eq!(info.choose(&[Cipher::ChaCha20Poly1305], "cipher CHACHA20-POLY1305"), None);
        assert!(info.takes_unasked_push());
        assert!(!PeerInfo::parse("IV_VER=3.11.7\nIV_PROTO=8094\n").takes_unasked_push());
        let old = PeerInfo::parse("IV_NCP=2\n");
        assert_eq!(old.choose(&[Cipher::Aes128Gcm], ""), Some(Cipher::Aes128Gcm));
        let none = PeerInfo::parse("");
        assert_eq!(none.choose(&Cipher::ALL, "V4,cipher AES-256-GCM,x"), Some(Cipher::Aes256Gcm));
        assert_eq!(none.choose(&Cipher::ALL, "V4,cipher AES-256-CBC"), None);
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let string = |more: &str| format!("V4,dev-type tun,link-mtu 1549,tun-mtu 1500{more},key-method 2,tls-client");
        assert_eq!(impossible(&string(""), false), None);
        assert!(impossible(&string(",comp-lzo"), false).is_some_and(|why| why.contains("compress")));
        assert!(impossible(&string(",mtu-dynamic"), true).is_some_and(|why| why.contains("fragment")));
        assert!(impossible(&string("").replace("tun,", "tap,"), true).is_some_and(|why| why.contains("tap")));
        // A client that can be told to leave the framing out.
        let old = PeerInfo::parse("IV_COMP_STUB=1\n");
        let new = PeerInfo::parse("IV_COMP_STUB=1\nIV_COMP_STUBv2=1\n");
        assert!(!old.takes_stub(&string(",comp-lzo")) && new.takes_stub(&string(",comp-lzo")));
        assert!(!new.takes_stub(&string("")), "nothing has to be left out");
        assert_eq!(impossible(&string(",comp-lzo"), true), None);
    }

    #[test]
    fn clients_say_how_they_open_pages() {
        let read = |text: &str| PeerInfo::parse(text).opens_pages;
        assert_eq!(read("IV_SSO=webauth,openurl,crtext\n"), Some(OpensPages::WebAuth));
        assert_eq!(read("IV_SSO=openurl\n"), Some(OpensPages::OpenUrl));
        assert_eq!((read("IV_SSO=crtext\n"), read("IV_SSO=webauthn\n"), read("IV_VER=2.6\n")), (None, None, None));
        let url = "https://vpn.example.com/login?login=a";
        for way in [OpensPages::WebAuth, OpensPages::OpenUrl] {
            assert_eq!(
                crate::challenge::Step::parse(&way.step(url)),
                Some(crate::challenge::Step::Open(url.to_owned()))
            );
        }
    }

    #[test]
    fn ours_reads_as_it_was_meant() {
        let info = PeerInfo::parse(&ours("1", &Cipher::ALL, proto::DATA_V2 | proto::TLS_KEY_EXPORT, 1500));
        assert_eq!((info.ciphers.len(), info.proto, info.mtu), (3, 10, Some(1500)));
    }
}
