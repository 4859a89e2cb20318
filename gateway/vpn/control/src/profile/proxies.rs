//! `http-proxy` and `socks-proxy`.

use super::read;
use crate::proxy::{Kind, Login, Proxy};
use anyhow::{Context as _, Result, bail};
use sealane_ovpn::file::Directive;
use sealane_tunnel::plane::Transport;
use std::path::Path;

/// Options that are read here.
pub(super) const OPTIONS: &[&str] = &["http-proxy", "http-proxy-option", "http-proxy-user-pass", "socks-proxy"];
/// Options of OpenVPN before 2.4, which have no effect any more.
pub(super) const IDLE: &[&str] = &["http-proxy-retry", "http-proxy-timeout", "socks-proxy-retry"];

/// The options about proxies that count for a server.
#[derive(Default)]
pub(super) struct Options<'d> {
    http: Option<&'d Directive>,
    http_options: Vec<&'d Directive>,
    http_login: Option<&'d Directive>,
    socks: Option<&'d Directive>,
}

impl<'d> Options<'d> {
    /// Takes a directive, if it is about proxies.
    pub fn take(&mut self, d: &'d Directive) {
        match d.name() {
            "http-proxy" => self.http = Some(d),
            "http-proxy-option" => self.http_options.push(d),
            "http-proxy-user-pass" => self.http_login = Some(d),
            "socks-proxy" => self.socks = Some(d),
            _ => {}
        }
    }

    /// The proxy for a server. Files are named from `base`.
    pub fn proxy(&self, transport: Transport, base: &Path) -> Result<Option<Proxy>> {
        let d = match (self.http, self.socks) {
            (None, None) => return Ok(None),
            (Some(_), Some(d)) => bail!("line {}: `http-proxy` and `socks-proxy` exclude each other", d.line),
            (Some(d), None) | (None, Some(d)) => d,
        };
        let why = match (transport, self.http) {
            (Transport::Tcp, _) => None,
            (Transport::Udp, Some(_)) => Some("HTTP proxies carry only TCP"),
            (Transport::Udp, None) => Some("UDP through SOCKS proxies is not supported"),
        };
        if let Some(why) = why {
            bail!("line {}: `{}` with UDP: {why}; use proto tcp, or remove this line", d.line, d.name());
        }
        let proxy = if self.http.is_some() { self.http_proxy(d, base) } else { socks_proxy(d, base) };
        proxy.with_context(|| format!("line {}: {}", d.line, d.words.join(" "))).map(Some)
    }

    fn http_proxy(&self, d: &Directive, base: &Path) -> Result<Proxy> {
        let arguments = d.arguments();
        let (host, port, rest) = match arguments.as_slice() {
            [host, port, rest @ ..] => (*host, port_of(port)?, rest),
            _ => bail!("write http-proxy HOST PORT"),
        };
        match rest.get(1) {
            None | Some(&("basic" | "none")) => {}
            Some(other) => bail!("the authentication method {other} is not supported (basic is)"),
        }
        let login = match (self.http_login, rest.first()) {
            _ if rest.get(1) == Some(&"none") => Login::None,
            (_, Some(&"auto-nct")) => bail!("auto-nct: only the method basic is supported, which auto-nct excludes"),
            (Some(login), _) => known(login, base)?,
            (None, None) => Login::None,
            (None, Some(&"auto")) => Login::Auto,
            (None, Some(file)) => of_file(file, base)?,
        };
        let (mut minor, mut headers) = (0, Vec::new());
        for option in &self.http_options {
            match option.arguments().as_slice() {
                ["VERSION", "1.0"] => minor = 0,
                ["VERSION", "1.1"] => minor = 1,
                ["AGENT", agent] => headers.push(header(&format!("User-Agent: {agent}"), option)?),
                ["CUSTOM-HEADER", whole] => headers.push(header(whole, option)?),
                ["CUSTOM-HEADER", name, value] => headers.push(header(&format!("{name}: {value}"), option)?),
                _ => bail!("line {}: {}: this is not supported", option.line, option.words.join(" ")),
            }
        }
        Ok(Proxy { host: host.to_owned(), port, kind: Kind::Http { minor, headers }, login })
    }
}

fn socks_proxy(d: &Directive, base: &Path) -> Result<Proxy> {
    let arguments = d.arguments();
    let (host, port, file) = match arguments.as_slice() {
        [host] => (*host, 1080, None),
        [host, port] => (*host, port_of(port)?, None),
        [host, port, file] => (*host, port_of(port)?, Some(*file)),
        _ => bail!("write socks-proxy HOST PORT"),
    };
    let login = match file {
        Some(file) => of_file(file, base)?,
        None => Login::None,
    };
    Ok(Proxy { host: host.to_owned(), port, kind: Kind::Socks, login })
}

fn port_of(text: &str) -> Result<u16> {
    text.parse().with_context(|| format!("{text} is not a port"))
}

/// A header, which must be one and no more.
fn header(text: &str, option: &Directive) -> Result<String> {
    let is_token =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let is_header = text.split_once(':').is_some_and(|(name, _)| is_token(name));
    match is_header && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => bail!("line {}: {}: this is not a header", option.line, option.words.join(" ")),
    }
}

/// User name and password in a file, or asked.
fn of_file(file: &str, base: &Path) -> Result<Login> {
    match file {
        "stdin" => Ok(Login::Ask),
        file => lines(&read(&base.join(file))?).with_context(|| file.to_owned()),
    }
}

/// `http-proxy-user-pass`, as a block or with a file.
fn known(d: &Directive, base: &Path) -> Result<Login> {
    match (&d.inline, d.words.get(1)) {
        (Some(text), _) => lines(text).context("http-proxy-user-pass"),
        (None, Some(file)) => of_file(file, base),
        (None, None) => bail!("http-proxy-user-pass names no file"),
    }
}

/// User name and password on two lines.
fn lines(text: &str) -> Result<Login> {
    let mut lines = text.lines().filter(|line| !line.is_empty()).map(str::to_owned);
    match (lines.next(), lines.next()) {
        (Some(user), Some(password)) => Ok(Login::Known(user, password)),
        _ => bail!("a login is two lines: the user name and the password"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_ovpn::file;

    fn proxy(text: &str, transport: Transport) -> Result<Option<Proxy>, String> {
        let directives = file::parse(text).expect("well formed");
        let mut options = Options::default();
        directives.iter().for_each(|d| options.take(d));
        options.proxy(transport, Path::new("/nonexistent")).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn proxies_are_read_as_openvpn_reads_them() {
        let read = |text| proxy(text, Transport::Tcp).expect("good").expect("there is one");
        assert_eq!(proxy("nobind\n", Transport::Udp), Ok(None));
        let plain = Proxy {
            host: "p".to_owned(),
            port: 3128,
            kind: Kind::Http { minor: 0, headers: Vec::new() },
            login: Login::None,
        };
        assert_eq!(read("http-proxy p 3128"), plain);
        assert_eq!(read("http-proxy p 3128 nofile none"), plain);
        assert_eq!(read("http-proxy p 3128 auto").login, Login::Auto);
        assert_eq!(read("http-proxy p 3128 stdin basic").login, Login::Ask);
        let known = Login::Known("al".to_owned(), "right".to_owned());
        let block = "<http-proxy-user-pass>\nal\nright\n</http-proxy-user-pass>\nhttp-proxy p 3128";
        assert_eq!(read(block).login, known);
        let options = "http-proxy-option VERSION 1.1\nhttp-proxy p 3128\nhttp-proxy-option AGENT \"a b\"\n\
                       http-proxy-option CUSTOM-HEADER X-Y z\nhttp-proxy-option CUSTOM-HEADER \"Host: h\"";
        let headers = ["User-Agent: a b", "X-Y: z", "Host: h"].map(str::to_owned).to_vec();
        assert_eq!(read(options).kind, Kind::Http { minor: 1, headers });
        let socks = Proxy { host: "s".to_owned(), port: 1080, kind: Kind::Socks, login: Login::None };
        assert_eq!(read("socks-proxy s"), socks);
        assert_eq!(read("socks-proxy s 1081 stdin"), Proxy { port: 1081, login: Login::Ask, ..socks });
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (text, transport, why) in [
            ("http-proxy p 1", Transport::Udp, "line 1: `http-proxy` with UDP"),
            ("socks-proxy p", Transport::Udp, "line 1: `socks-proxy` with UDP"),
            ("http-proxy p 1\nsocks-proxy p", Transport::Tcp, "line 2: `http-proxy` and `socks-proxy`"),
            ("http-proxy p", Transport::Tcp, "line 1: http-proxy p: write"),
            ("http-proxy p x", Transport::Tcp, "x is not a port"),
            ("http-proxy p 1 auto-nct", Transport::Tcp, "auto-nct"),
            ("http-proxy p 1 f ntlm2", Transport::Tcp, "ntlm2"),
            ("http-proxy p 1 nowhere", Transport::Tcp, "nowhere"),
            ("http-proxy p 1\nhttp-proxy-option EXT1 x", Transport::Tcp, "line 2: http-proxy-option EXT1 x"),
            ("http-proxy p 1\nhttp-proxy-option CUSTOM-HEADER x", Transport::Tcp, "not a header"),
            ("http-proxy p 1\nhttp-proxy-option CUSTOM-HEADER \"a b\" c", Transport::Tcp, "not a header"),
            ("http-proxy p 1\nhttp-proxy-user-pass", Transport::Tcp, "names no file"),
            ("<http-proxy-user-pass>\nal\n</http-proxy-user-pass>\nhttp-proxy p 1", Transport::Tcp, "two lines"),
            ("socks-proxy p 1 f x", Transport::Tcp, "write socks-proxy"),
        ] {
            let result = proxy(text, transport);
            assert!(result.as_ref().is_err_and(|e| e.contains(why)), "{text}: {result:?}");
        }
    }
}
