//! Proxies between the client and its server, for TCP: HTTP (CONNECT, RFC 9110 §9.3.6) with Basic authentication (RFC 7617), and
//! SOCKS5 (RFC 1928, RFC 1929).
//!
//! Nothing is read beyond a proxy's responses: what follows is the server's.

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::net::{IpAddr, Ipv6Addr};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

/// The longest head of an HTTP response.
const MAX_HEAD: usize = 16 * 1024;
/// The longest name of a server, as SOCKS5 bounds it.
const MAX_HOST: usize = 255;

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it speaks.
    pub kind: Kind,
    /// User name and password.
    pub login: Login,
}

/// What a proxy speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `http-proxy`.
    Http {
        /// The minor version of HTTP/1.
        minor: u8,
        /// Headers more: `NAME: VALUE`.
        headers: Vec<String>,
    },
    /// `socks-proxy`.
    Socks,
}

/// User name and password for a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// There are none.
    None,
    /// The user is asked for them before connecting.
    Ask,
    /// The user is asked for them if the proxy wants them.
    Auto,
    /// These.
    Known(String, String),
}

/// What is wrong with the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The proxy wants one, and the user can be asked.
    Needed,
    /// The proxy refuses it.
    Refused,
}

impl std::fmt::Display for LoginError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Needed => "it wants a user name and a password",
            Self::Refused => "it refuses the user name or the password",
        })
    }
}

impl std::error::Error for LoginError {}

impl Proxy {
    /// Asks the proxy at the other end of `stream` for a connection to a server. Afterwards `stream` is this connection.
    pub async fn open<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if host.is_empty() || host.len() > MAX_HOST || !host.bytes().all(|b| b.is_ascii_graphic()) {
            bail!("it cannot be told the server's name");
        }
        match &self.kind {
            Kind::Http { minor, headers } => self.http(stream, host, port, *minor, headers).await,
            Kind::Socks => self.socks(stream, host, port).await,
        }
    }

    async fn http<S>(&self, stream: &mut S, host: &str, port: u16, minor: u8, headers: &[String]) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let authority = match host.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{host}]:{port}"),
            Err(_) => format!("{host}:{port}"),
        };
        let mut request = Zeroizing::new(format!("CONNECT {authority} HTTP/1.{minor}\r\n"));
        if !headers.iter().any(|header| is_named(header, "host")) {
            request.push_str(&format!("Host: {authority}\r\n"));
        }
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        if let Login::Known(user, password) = &self.login {
            let both = Zeroizing::new(format!("{user}:{password}"));
            // Room for all that follows: what grows leaves its bytes behind.
            request.reserve(64 + 2 * both.len());
            request.push_str("Proxy-Authorization: Basic ");
            request.push_str(&Zeroizing::new(STANDARD.encode(both.as_bytes())));
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        let head = head(stream).await?;
        let (status, reason) = status(&head).context("its response is not HTTP")?;
        match (status, &self.login) {
            (200..=299, _) => Ok(()),
            (407, _) if !takes_basic(&head) => {
                bail!("it wants an authentication method that is not supported (Basic is)")
            }
            (407, Login::Auto) => Err(LoginError::Needed.into()),
            (407, Login::Known(..)) => Err(LoginError::Refused.into()),
            (407, _) => bail!("it wants a user name and a password: name a file with them (http-proxy HOST PORT FILE)"),
            _ => bail!("it refuses the connection: {status} {reason}"),
        }
    }

    async fn socks<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let methods: &[u8] = match &self.login {
            Login::Known(..) => &[5, 2, 0, 2],
            _ => &[5, 1, 0],
        };
        stream.write_all(methods).await?;
        let [version, method] = read(stream).await?;
        match (version, method, &self.login) {
            (5, 0, _) => {}
            (5, 2, Login::Known(user, password)) => {
                let lengths = (u8::try_from(user.len()), u8::try_from(password.len()));
                let (Ok(user_length @ 1..), Ok(length @ 1..)) = lengths else {
                    bail!("user name and password for a SOCKS proxy must have 1 to 255 bytes");
                };
                let login = [&[1, user_length][..], user.as_bytes(), &[length], password.as_bytes()].concat();
                stream.write_all(&Zeroizing::new(login)).await?;
                let [_, status] = read(stream).await?;
                if status != 0 {
                    return Err(LoginError::Refused.into());
                }
            }
            (5, 0xff, Login::Known(..)) => {
                bail!("it accepts neither clients without a login nor those with a password")
            }
            (5, 0xff, _) => {
                bail!("it may want a user name and a password: name a file with them (socks-proxy HOST PORT FILE)")
            }
            (5, ..) => bail!("it selects an authentication method that was not offered"),
            _ => bail!("its response is not SOCKS5"),
        }
        let mut request = vec![5, 1, 0];
        match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => {
                request.push(1);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(4);
                request.extend(address.octets());
            }
            Err(_) => {
                // At most `MAX_HOST` bytes.
                request.extend([3, host.len() as u8]);
                request.extend(host.bytes());
            }
        }
        request.extend(port.to_be_bytes());
        stream.write_all(&request).await?;
        let [version, reply, _, kind] = read(stream).await?;
        if version != 5 {
            bail!("its response is not SOCKS5");
        }
        if reply != 0 {
            bail!("it refuses the connection: {}", socks_reply(reply));
        }
        let length = match kind {
            1 => 4,
            4 => 16,
            3 => {
                let [length] = read(stream).await?;
                usize::from(length)
            }
            _ => bail!("its response has an address of an unknown kind"),
        };
        // The proxy's own address and port.
        let mut bound = vec![0; length + 2];
        stream.read_exact(&mut bound).await.context(CLOSED)?;
        Ok(())
    }
}

const CLOSED: &str = "it has closed the connection";

/// RFC 1928 §6.
fn socks_reply(reply: u8) -> &'static str {
    match reply {
        2 => "it is not allowed",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "it does not know the command",
        8 => "it does not know the kind of address",
        _ => "general failure",
    }
}

async fn read<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await.context(CLOSED)?;
    Ok(bytes)
}

/// The head of an HTTP response, with its empty line.
async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && !head.ends_with(b"\n\n") {
        if head.len() == MAX_HEAD {
            bail!("its response is too long");
        }
        head.push(stream.read_u8().await.context(CLOSED)?);
    }
    Ok(head)
}

/// Status and reason, the latter for people.
fn status(head: &[u8]) -> Option<(u16, String)> {
    let line = String::from_utf8_lossy(head.split(|b| *b == b'\n').next()?);
    let (_, rest) = line.strip_prefix("HTTP/1.")?.split_once(' ')?;
    let (code, reason) = rest.trim_end().split_once(' ').unwrap_or((rest.trim_end(), ""));
    let is_code = code.len() == 3 && code.bytes().all(|b| b.is_ascii_digit());
    let shown: String = reason.chars().take(100).collect();
    Some((code.parse::<u16>().ok().filter(|_| is_code)?, sealane_log::printable(&shown)))
}

/// Whether a response asks for Basic authentication.
fn takes_basic(head: &[u8]) -> bool {
    String::from_utf8_lossy(head).lines().filter(|line| is_named(line, "proxy-authenticate")).any(|line| {
        let value = line.split_once(':').map_or("", |(_, value)| value);
        value
            .split(',')
            .any(|scheme| scheme.split_whitespace().next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic")))
    })
}

/// Whether a header has this name.
fn is_named(header: &str, name: &str) -> bool {
    header.split_once(':').is_some_and(|(found, _)| found.trim().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client says to a proxy that says `said`, what comes of it, and what is left to read.
    fn opened(kind: Kind, login: Login, host: &str, said: &[u8]) -> (Vec<u8>, Result<()>, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
            theirs.write_all(said).await.expect("it fits");
            theirs.shutdown().await.expect("it can be closed");
            let proxy = Proxy { host: "proxy".to_owned(), port: 1, kind, login };
            let result = proxy.open(&mut ours, host, 1194).await;
            let mut left = Vec::new();
            ours.read_to_end(&mut left).await.expect("it ends");
            drop(ours);
            let mut heard = Vec::new();
            theirs.read_to_end(&mut heard).await.expect("it ends");
            (heard, result, left)
        })
    }

    fn http(login: Login, host: &str, said: &str) -> (String, Result<String, String>) {
        let kind = Kind::Http { minor: 0, headers: vec!["User-Agent: a".to_owned()] };
        let (heard, result, left) = opened(kind, login, host, said.as_bytes());
        let left = String::from_utf8(left).expect("text");
        (String::from_utf8(heard).expect("text"), result.map(|()| left).map_err(|e| format!("{e:#}")))
    }

    fn known() -> Login {
        Login::Known("al".to_owned(), "right".to_owned())
    }

    #[test]
    fn an_http_proxy_is_asked_to_connect() {
        let good = "HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nserver";
        let (heard, result) = http(known(), "vpn.example.com", good);
        assert_eq!(
            heard,
            "CONNECT vpn.example.com:1194 HTTP/1.0\r\nHost: vpn.example.com:1194\r\nUser-Agent: a\r\n\
             Proxy-Authorization: Basic YWw6cmlnaHQ=\r\n\r\n"
        );
        assert_eq!(result, Ok("server".to_owned()), "what follows is the server's");
        let (heard, result) = http(Login::None, "fd00::1", "HTTP/1.0 200\n\nx");
        assert!(heard.starts_with("CONNECT [fd00::1]:1194 HTTP/1.0\r\nHost: [fd00::1]:1194\r\n"), "{heard}");
        assert!(!heard.contains("Authorization"), "{heard}");
        assert_eq!(result, Ok("x".to_owned()));
        let kind = Kind::Http { minor: 1, headers: vec!["host: other".to_owned()] };
        let (heard, ..) = opened(kind, Login::None, "a", good.as_bytes());
        assert_eq!(heard, b"CONNECT a:1194 HTTP/1.1\r\nhost: other\r\n\r\n");
    }

    #[test]
    fn what_an_http_proxy_refuses_is_said() {
        let basic = "HTTP/1.1 407 Who\r\nProxy-Authenticate: NTLM, basic realm=\"x\"\r\n\r\n";
        let endless = "HTTP/1.1 200 OK\r\nX: y\r\n".repeat(1000);
        for (login, said, why) in [
            (Login::Auto, basic, "it wants a user name and a password"),
            (Login::None, basic, "name a file with them"),
            (known(), basic, "it refuses the user name or the password"),
            (Login::Auto, "HTTP/1.1 407 Who\r\nProxy-Authenticate: NTLM\r\n\r\n", "is not supported"),
            (Login::None, "HTTP/1.1 403 \u{1b}[1mno\r\n\r\n", "it refuses the connection: 403 \\u{1b}[1mno"),
            (Login::None, "HTTP/1.1 20 OK\r\n\r\n", "not HTTP"),
            (Login::None, "HTTP/1.1 +20 OK\r\n\r\n", "not HTTP"),
            (Login::None, "SSH-2.0-x\r\n\r\n", "not HTTP"),
            (Login::None, "HTTP/1.1 200 OK\r\n", "it has closed the connection"),
            (Login::None, &endless, "too long"),
        ] {
            let (_, result) = http(login, "vpn", said);
            assert!(result.as_ref().is_err_and(|e| e.contains(why)), "{why}: {result:?}");
        }
        let long = "x".repeat(256);
        for host in ["", "a b", "a\r\nX: y", &long] {
            let (heard, result) = http(Login::None, host, "");
            assert!(heard.is_empty() && result.is_err(), "{host}");
        }
    }

    #[test]
    fn a_socks_proxy_is_asked_to_connect() {
        let answer = [&[5, 2, 1, 0, 5, 0, 0, 1, 10, 0, 0, 1, 4, 170][..], b"server"].concat();
        let (heard, result, left) = opened(Kind::Socks, known(), "vpn", &answer);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(left, b"server", "what follows is the server's");
        let login = [&[5, 2, 0, 2, 1, 2][..], b"al", &[5], b"right"].concat();
        assert_eq!(heard, [&login[..], &[5, 1, 0, 3, 3], b"vpn", &[4, 170]].concat());
        let (heard, result, _) = opened(Kind::Socks, Login::None, "10.0.0.1", &[5, 0, 5, 0, 0, 3, 1, b'a', 0, 0]);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(heard, [5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 1, 4, 170]);
        let bound = [&[5, 0, 5, 0, 0, 4][..], &[0; 18]].concat();
        let (heard, result, _) = opened(Kind::Socks, known(), "fd00::1", &bound);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(heard[..8], [5, 2, 0, 2, 5, 1, 0, 4]);
        assert_eq!(heard.len(), 4 + 4 + 16 + 2);
    }

    #[test]
    fn what_a_socks_proxy_refuses_is_said() {
        let long = Login::Known("al".to_owned(), "x".repeat(256));
        for (login, said, why) in [
            (Login::None, &[5, 0xff][..], "name a file with them"),
            (known(), &[5, 0xff], "neither"),
            (Login::None, &[5, 2], "was not offered"),
            (known(), &[5, 1], "was not offered"),
            (known(), &[5, 2, 1, 1], "it refuses the user name or the password"),
            (long, &[5, 2], "1 to 255 bytes"),
            (Login::None, b"HTTP/1.1", "not SOCKS5"),
            (Login::None, &[4, 0], "not SOCKS5"),
            (Login::None, &[5], "it has closed the connection"),
            (Login::None, &[5, 0, 5, 5, 0, 1], "connection refused"),
            (Login::None, &[5, 0, 5, 99, 0, 1], "general failure"),
            (Login::None, &[5, 0, 5, 0, 0, 9], "unknown kind"),
            (Login::None, &[5, 0, 5, 0, 0, 1, 1, 1], "it has closed the connection"),
        ] {
            let (_, result, _) = opened(Kind::Socks, login, "vpn", said);
            let said = result.map_err(|e| format!("{e:#}"));
            assert!(said.as_ref().is_err_and(|e| e.contains(why)), "{why}: {said:?}");
        }
    }
}
