//! The command line, the same for every worker.

use std::path::PathBuf;

/// Printed after a wrong command line.
pub const USAGE: &str = "worker describe|handshakes|bulk|features
  --library PATH   file or folder of the TLS library, where the worker loads it
  --peer PATH      the fixed peer, for --test server and --test client
  --certs DIR      ca.pem, and KEY.crt KEY.key for each of p256, rsa2048, rsa4096
  --test both|server|client   which sides are the library's; the other is the fixed peer's
  --tls 1.0|1.1|1.2|1.3  --resumed  --key p256|rsa2048|rsa4096  --group x25519|p256|x25519mlkem768
  --cipher aes128|aes256|chacha20  --tickets N  --own-context
  --threads N  --seconds S | --count N (per thread)  --warmup N  --record BYTES  --unsplit  --unbound";

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Name the library.
    Describe,
    /// Handshakes, each with a little data.
    Handshakes,
    /// One connection per thread, data from server to client.
    Bulk,
    /// Try what the library can do.
    Features,
}

/// The certificate's key, of leaf and authority alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// ECDSA with P-256.
    P256,
    /// RSA, 2048 bits.
    Rsa2048,
    /// RSA, 4096 bits.
    Rsa4096,
}

impl Key {
    /// As on the command line and in the names of the files.
    pub fn name(self) -> &'static str {
        match self {
            Key::P256 => "p256",
            Key::Rsa2048 => "rsa2048",
            Key::Rsa4096 => "rsa4096",
        }
    }
}

/// The key exchange that both sides prefer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// X25519.
    X25519,
    /// ECDHE with P-256.
    P256,
    /// The hybrid of X25519 and ML-KEM-768.
    X25519MlKem768,
}

impl Group {
    /// Its number in TLS (IANA's registry of supported groups).
    pub fn id(self) -> u16 {
        match self {
            Group::X25519 => 29,
            Group::P256 => 23,
            Group::X25519MlKem768 => 0x11ec,
        }
    }

    /// As OpenSSL and its kin write a list with this one first. P-256 stays in it: with X25519 alone, TLS 1.2 refuses
    /// ECDSA certificates with P-256 (RFC 8422 §5.1.1).
    pub fn openssl_list(self) -> &'static str {
        match self {
            Group::X25519 => "X25519:P-256",
            Group::P256 => "P-256:X25519",
            Group::X25519MlKem768 => "X25519MLKEM768:X25519:P-256",
        }
    }
}

/// The record cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128,
    /// AES-256-GCM.
    Aes256,
    /// ChaCha20-Poly1305.
    ChaCha20,
}

impl Cipher {
    /// The cipher suite's number, which in TLS 1.2 depends on the key.
    pub fn id(self, tls: u16, key: Key) -> u16 {
        match (self, tls >= 0x304, key) {
            (Cipher::Aes128, true, _) => 0x1301,
            (Cipher::Aes256, true, _) => 0x1302,
            (Cipher::ChaCha20, true, _) => 0x1303,
            (Cipher::Aes128, false, Key::P256) => 0xc02b,
            (Cipher::Aes256, false, Key::P256) => 0xc02c,
            (Cipher::ChaCha20, false, Key::P256) => 0xcca9,
            (Cipher::Aes128, false, _) => 0xc02f,
            (Cipher::Aes256, false, _) => 0xc030,
            (Cipher::ChaCha20, false, _) => 0xcca8,
        }
    }

    /// The suite's name for OpenSSL and its kin in TLS 1.3.
    pub fn tls13_name(self) -> &'static str {
        match self {
            Cipher::Aes128 => "TLS_AES_128_GCM_SHA256",
            Cipher::Aes256 => "TLS_AES_256_GCM_SHA384",
            Cipher::ChaCha20 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }

    /// The suites' names for OpenSSL and its kin in TLS 1.2, for both kinds of key.
    pub fn tls12_list(self) -> &'static str {
        match self {
            Cipher::Aes128 => "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256",
            Cipher::Aes256 => "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384",
            Cipher::ChaCha20 => "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305",
        }
    }
}

/// Which sides are the library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Both.
    Both,
    /// The server; the client is the fixed peer.
    Server,
    /// The client; the server is the fixed peer.
    Client,
}

/// Everything that was asked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What to do.
    pub command: Command,
    /// File or folder of the library.
    pub library: Option<PathBuf>,
    /// The fixed peer's library.
    pub peer: Option<PathBuf>,
    /// Folder of certificates.
    pub certs: PathBuf,
    /// Which sides are under test.
    pub test: Side,
    /// The only version offered and taken, as on the wire: 0x0301 to 0x0304.
    pub tls: u16,
    /// Resumed handshakes instead of full ones.
    pub resumed: bool,
    /// The certificate's key.
    pub key: Key,
    /// Key exchange.
    pub group: Group,
    /// Record cipher.
    pub cipher: Cipher,
    /// Tickets that a TLS 1.3 server sends after a full handshake, where the library lets one choose.
    pub tickets: u32,
    /// A context for each thread instead of one for all.
    pub own_context: bool,
    /// Threads.
    pub threads: usize,
    /// How long, where `count` is 0.
    pub seconds: f64,
    /// How many handshakes per thread.
    pub count: u64,
    /// Handshakes before those that count.
    pub warmup: u64,
    /// Bytes per record in `bulk`.
    pub record: usize,
    /// Time each side of some handshakes.
    pub split: bool,
    /// Bind each thread to a CPU.
    pub bound: bool,
}

impl Settings {
    /// A file of the certificates' folder: `ca.pem`, or the chain (`crt`) or key (`key`) of the chosen kind.
    pub fn file(&self, what: &str) -> PathBuf {
        match what {
            "ca" => self.certs.join(format!("{}-ca.pem", self.key.name())),
            what => self.certs.join(format!("{}.{what}", self.key.name())),
        }
    }

    /// Its content.
    pub fn read(&self, what: &str) -> Result<Vec<u8>, String> {
        let path = self.file(what);
        std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The version for people.
    pub fn tls_name(&self) -> &'static str {
        match self.tls {
            0x301 => "1.0",
            0x302 => "1.1",
            0x303 => "1.2",
            _ => "1.3",
        }
    }
}

/// Reads the command line.
pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Settings, String> {
    let command = match args.next().as_deref() {
        Some("describe") => Command::Describe,
        Some("handshakes") => Command::Handshakes,
        Some("bulk") => Command::Bulk,
        Some("features") => Command::Features,
        other => return Err(format!("no such command: {}", other.unwrap_or("(none)"))),
    };
    let mut s = Settings {
        command,
        library: None,
        peer: None,
        certs: PathBuf::from("."),
        test: Side::Both,
        tls: 0x304,
        resumed: false,
        key: Key::P256,
        group: Group::X25519,
        cipher: Cipher::Aes128,
        tickets: 2,
        own_context: false,
        threads: 1,
        seconds: 1.0,
        count: 0,
        warmup: 20,
        record: 16384,
        split: true,
        bound: true,
    };
    while let Some(option) = args.next() {
        match option.as_str() {
            "--resumed" => s.resumed = true,
            "--own-context" => s.own_context = true,
            "--unsplit" => s.split = false,
            "--unbound" => s.bound = false,
            _ => {
                let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
                set(&mut s, &option, &value)?;
            }
        }
    }
    Ok(s)
}

fn set(s: &mut Settings, option: &str, value: &str) -> Result<(), String> {
    let wrong = || format!("{option}: {value}");
    match option {
        "--library" => s.library = Some(value.into()),
        "--peer" => s.peer = Some(value.into()),
        "--certs" => s.certs = value.into(),
        "--test" => {
            s.test = match value {
                "both" => Side::Both,
                "server" => Side::Server,
                "client" => Side::Client,
                _ => return Err(wrong()),
            }
        }
        "--tls" => {
            s.tls = match value {
                "1.0" => 0x301,
                "1.1" => 0x302,
                "1.2" => 0x303,
                "1.3" => 0x304,
                _ => return Err(wrong()),
            }
        }
        "--key" => {
            s.key = match value {
                "p256" => Key::P256,
                "rsa2048" => Key::Rsa2048,
                "rsa4096" => Key::Rsa4096,
                _ => return Err(wrong()),
            }
        }
        "--group" => {
            s.group = match value {
                "x25519" => Group::X25519,
                "p256" => Group::P256,
                "x25519mlkem768" => Group::X25519MlKem768,
                _ => return Err(wrong()),
            }
        }
        "--cipher" => {
            s.cipher = match value {
                "aes128" => Cipher::Aes128,
                "aes256" => Cipher::Aes256,
                "chacha20" => Cipher::ChaCha20,
                _ => return Err(wrong()),
            }
        }
        "--tickets" => s.tickets = number(value, 0, 16).ok_or_else(wrong)? as u32,
        "--threads" => s.threads = number(value, 1, 4096).ok_or_else(wrong)? as usize,
        "--count" => s.count = number(value, 1, 1 << 40).ok_or_else(wrong)?,
        "--warmup" => s.warmup = number(value, 0, 1 << 40).ok_or_else(wrong)?,
        "--record" => s.record = number(value, 1, 16384).ok_or_else(wrong)? as usize,
        "--seconds" => {
            s.seconds = value.parse().ok().filter(|s| (0.001..=3600.0).contains(s)).ok_or_else(wrong)?;
        }
        _ => return Err(format!("no such option: {option}")),
    }
    Ok(())
}

fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    text.parse().ok().filter(|n| (least..=most).contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Settings, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_command_line_is_read_or_refused() {
        let s = of("handshakes --tls 1.2 --resumed --key rsa2048 --threads 3 --count 10").expect("it is right");
        assert_eq!((s.tls, s.resumed, s.key, s.threads, s.count), (0x303, true, Key::Rsa2048, 3, 10));
        for wrong in [
            "",
            "fly",
            "bulk --record 16385",
            "bulk --record",
            "bulk --seconds NaN",
            "bulk --speed 1",
            "bulk --threads 0",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
