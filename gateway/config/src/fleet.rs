//! What several gateways have in common: `[store]`, and where the keys of session tickets come from.

use super::Config;
use super::access::{Mistake, read_again};
use super::audit;
use super::certificates::load;
use super::decode::{self, At, Node, Section};
use super::diagnostics::{Errors, Place, Sink};
use super::files;
use super::settings::{store as s, top};
use super::surroundings::Answers;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a key, and of the store's secret.
const KEY: usize = 32;
/// The most keys of a file: each ticket is tried with all.
const MAX_KEYS: usize = 8;
const DEFAULT_PORT: u16 = 6379;

/// Where a store is, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In the process.
    Memory,
    /// At a Unix socket.
    Unix(PathBuf),
    /// At a host and port; `tls`: over TLS.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// Over TLS.
        tls: bool,
    },
}

/// The keys of a file: the first seals, all open. Zeroed when dropped.
#[derive(PartialEq, Eq)]
pub struct KeyList(Vec<[u8; KEY]>);

impl KeyList {
    /// The keys, in the order of the file.
    pub fn keys(&self) -> &[[u8; KEY]] {
        &self.0
    }
}

impl Drop for KeyList {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for KeyList {
    /// Never the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyList").field("keys", &self.0.len()).finish()
    }
}

/// Where the keys of session tickets come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketKeySource {
    /// The gateway makes them, for itself.
    Own,
    /// A file, which others replace.
    File(PathBuf, Arc<KeyList>),
    /// The store: one gateway makes them for all.
    Store,
}

#[derive(Clone, Copy)]
pub(super) enum TicketKeyChoice {
    Own,
    File,
    Store,
}

/// `[store]`.
#[derive(Clone)]
pub struct StoreSettings {
    /// Where it is.
    pub url: StoreUrl,
    /// What its values are sealed with.
    pub secret: Zeroizing<[u8; KEY]>,
    /// Who we are there.
    pub user: Option<String>,
    /// Our password there.
    pub password: Option<Zeroizing<String>>,
    /// Over TLS: the certificates that the server is verified with.
    pub roots: Vec<CertificateDer<'static>>,
    /// What the names of values begin with.
    pub prefix: String,
    /// How long it may take to answer.
    pub timeout: Duration,
    /// Single-use tickets are kept there: how.
    pub early_data: Option<SharedEarlyData>,
    /// Rates are those of all gateways together: how.
    pub rate_limits: Option<SharedRateLimits>,
    /// Certificates that an authority issues are those of all gateways together.
    pub certificates: bool,
    /// Where `[store]` stands.
    pub place: Place,
}

/// How single-use tickets are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedEarlyData {
    /// How long a handshake waits.
    pub wait: Duration,
    /// How long a ticket is kept.
    pub lifetime: Duration,
}

/// How rates are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRateLimits {
    /// Without the store, nothing passes a limit.
    pub fail_closed: bool,
}

impl std::fmt::Debug for StoreSettings {
    /// Without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreSettings").field("url", &self.url).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl PartialEq for StoreSettings {
    /// Wherever it stands.
    fn eq(&self, other: &Self) -> bool {
        let what = |s: &Self| (s.url.clone(), s.secret.clone(), s.user.clone(), s.password.clone(), s.prefix.clone());
        what(self) == what(other)
            && (&self.roots, self.timeout) == (&other.roots, other.timeout)
            && (self.early_data, self.rate_limits) == (other.early_data, other.rate_limits)
            && self.certificates == other.certificates
    }
}

impl Eq for StoreSettings {}

impl Config {
    /// The file of ticket keys, if they come from one.
    pub fn ticket_keys_file(&self) -> Option<&PathBuf> {
        match &self.ticket_keys {
            TicketKeySource::File(file, _) => Some(file),
            TicketKeySource::Own | TicketKeySource::Store => None,
        }
    }
}

/// Reads both. `early_data`: some listener accepts early data; `automatic`: some listener has certificates = "auto".
pub(super) fn read(top: &Section, early_data: bool, automatic: bool) -> (TicketKeySource, Option<StoreSettings>) {
    let choice = top.optional_at(&top::ticket_keys);
    let file = top.optional_at(&top::ticket_keys_file);
    let sink = top.sink;
    let has_store = top.key_span("store").is_some();
    if let Some(span) = top.key_span("store") {
        let what = "values in the store are encrypted with nonces that are made outside the FIPS module";
        let help = "remove [store]; gateways can share tickets with ticket_keys = \"file\"";
        audit::outside_module(sink, &span, what, help);
    }
    let store = top.table(&top::store).and_then(|section| store(section, early_data, automatic));
    let source = match (choice.as_ref().map_or(TicketKeyChoice::Own, |c| c.value), file) {
        (TicketKeyChoice::File, Some(file)) => ticket_key_file(sink, &file),
        (TicketKeyChoice::File, None) => {
            if let (None, Some(choice)) = (top.key_span("ticket_keys_file"), &choice) {
                let help = "add ticket_keys_file = \"/etc/sealane/ticket.keys\"".to_owned();
                sink.error(&choice.span, "ticket_keys = \"file\" needs \"ticket_keys_file\"", Some(help));
            }
            TicketKeySource::Own
        }
        (TicketKeyChoice::Store, _) => {
            if let (false, Some(choice)) = (has_store, &choice) {
                let help = "add [store] with url = \"redis://127.0.0.1:6379\"".to_owned();
                sink.error(&choice.span, "ticket_keys = \"store\" needs [store]", Some(help));
            }
            TicketKeySource::Store
        }
        (TicketKeyChoice::Own, Some(file)) => {
            let help = "write ticket_keys = \"file\"".to_owned();
            sink.warn(&file.span, "\"ticket_keys_file\" has no effect without ticket_keys = \"file\"", Some(help));
            TicketKeySource::Own
        }
        (TicketKeyChoice::Own, None) => TicketKeySource::Own,
    };
    (source, store)
}

fn ticket_key_file(sink: &Sink, file: &At<PathBuf>) -> TicketKeySource {
    let nothing = || TicketKeySource::File(file.value.clone(), Arc::new(KeyList(Vec::new())));
    files::warn_if_readable(sink, file, "file of ticket keys");
    // Not read, or not yet.
    if sink.content(&file.value).is_none() {
        return nothing();
    }
    let Some(bytes) = files::read(sink, "file of ticket keys", file) else { return nothing() };
    match keys(&file.value, bytes) {
        Ok(keys) => TicketKeySource::File(file.value.clone(), Arc::new(keys)),
        Err((message, help)) => {
            sink.error(&file.span, message, Some(help));
            nothing()
        }
    }
}

/// Reads ticket keys again, for a gateway that serves. `answers` has the file's content.
pub fn read_ticket_keys_again(file: &Path, answers: &Answers) -> Result<Arc<KeyList>, Errors> {
    read_again("file of ticket keys", file, answers, |bytes| {
        keys(file, bytes).map_err(|(message, help)| vec![Mistake { message, help: Some(help) }])
    })
}

/// One key in base64 on each line. Lines that begin with `#` are comments.
fn keys(file: &Path, bytes: &[u8]) -> Result<KeyList, (String, String)> {
    let shown = file.display();
    let help = || {
        "write 32 random bytes in base64 on each line, as from `openssl rand -base64 32`, and the same lines on all gateways that \
         share the keys"
            .to_owned()
    };
    // With room for as many as there may be: a vector that grows leaves what it held in freed memory.
    let mut keys = KeyList(Vec::with_capacity(MAX_KEYS));
    let mut count = 0;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        count += 1;
        if count > MAX_KEYS {
            continue;
        }
        keys.0.push([0; KEY]);
        let Some((key, before)) = keys.0.split_last_mut() else { continue };
        if !read_key(line, key) {
            return Err((format!("{shown}, line {}: this is not a key", number + 1), help()));
        }
        if before.contains(key) {
            return Err((format!("{shown}, line {}: this key is repeated", number + 1), "remove it".to_owned()));
        }
    }
    match count {
        0 => Err((format!("{shown} has no key"), help())),
        1..=MAX_KEYS => Ok(keys),
        n => {
            let help = "remove the oldest keys: a key is useful for twice ticket_lifetime".to_owned();
            Err((format!("{shown} has {n} keys, but may have at most {MAX_KEYS}"), help))
        }
    }
}

/// Reads a key. It is never returned by value: that would leave copies on the stack.
fn read_key(text: &[u8], key: &mut [u8; KEY]) -> bool {
    let Ok(bytes) = BASE64_STANDARD.decode(text).map(Zeroizing::new) else { return false };
    if bytes.len() == KEY {
        key.copy_from_slice(&bytes);
    }
    bytes.len() == KEY
}

fn store(section: Section, has_early_data: bool, has_automatic: bool) -> Option<StoreSettings> {
    let sink = section.sink;
    let (url, secret_file) = (section.required(&s::url), section.required(&s::secret_file));
    let (user, password_file) = (section.optional(&s::user), section.optional_at(&s::password_file));
    let ca = section.optional_at(&s::ca);
    let prefix = section.optional_at(&s::prefix);
    let timeout = section.or(&s::timeout);
    let early_data = section.optional_at(&s::early_data);
    let shared =
        SharedEarlyData { wait: section.or(&s::early_data_wait), lifetime: section.or(&s::early_data_lifetime) };
    let rate_limits = section.or(&s::rate_limits);
    let fail_closed = section.optional_at(&s::rate_limits_fail_closed);
    let certificates = section.optional_at(&s::certificates).filter(|at| at.value);
    let span = section.span.clone();
    let mut good = true;
    if let (false, Some(At { value: true, span })) = (rate_limits, &fail_closed) {
        let help = "add rate_limits = true".to_owned();
        sink.warn(span, "\"rate_limits_fail_closed\" has no effect without \"rate_limits\"", Some(help));
    }
    let fail_closed = fail_closed.is_some_and(|closed| closed.value);
    if let Some(prefix) = prefix
        .as_ref()
        .filter(|p| p.value.is_empty() || p.value.len() > 64 || !p.value.bytes().all(|b| b.is_ascii_graphic()))
    {
        let help = "write for example prefix = \"sealane\"".to_owned();
        sink.error(&prefix.span, "\"prefix\" must be 1 to 64 printable ASCII characters without spaces", Some(help));
        good = false;
    }
    let is_tls = matches!(&url, Some(At { value: StoreUrl::Tcp { tls: true, .. }, .. }));
    if let (Some(ca), false) = (&ca, is_tls) {
        let help = "write url = \"rediss://HOST:PORT\"".to_owned();
        sink.warn(&ca.span, "\"ca\" has no effect without TLS", Some(help));
    }
    if let Some(At { value: StoreUrl::Tcp { host, tls: false, .. }, span }) = &url
        && !is_local(host)
    {
        let parts = [
            password_file.as_ref().map(|_| "read the password"),
            early_data.as_ref().filter(|e| e.value).map(|_| "make the gateways accept early data again"),
            rate_limits.then_some("change the counts of rate limits"),
            Some("delete what the gateways share"),
        ];
        let can: Vec<&str> = parts.into_iter().flatten().collect();
        let message = format!(
            "the connection to the store is not encrypted: an attacker on the network path can {}",
            can.join(", and can ")
        );
        sink.warn(span, message, Some("write url = \"rediss://…\"".to_owned()));
    }
    let early = early_data.as_ref().is_some_and(|e| e.value);
    if let (true, false, Some(early)) = (early, has_early_data, &early_data) {
        let help = "add early_data = \"16KiB\" to [listener.tls], or remove this setting".to_owned();
        sink.warn(&early.span, "\"early_data\" has no effect: no listener accepts early data", Some(help));
    }
    if let (Some(certificates), false) = (&certificates, has_automatic) {
        let help = "write certificates = \"auto\" in [listener.tls], or remove this setting".to_owned();
        let message = "\"certificates\" has no effect: no listener has certificates = \"auto\"";
        sink.warn(&certificates.span, message, Some(help));
    }
    let roots = match (is_tls, &ca) {
        (false, _) => Some(Vec::new()),
        (true, Some(file)) => load::trust_anchors(sink, file),
        // It is written, and wrong.
        (true, None) if section.key_span("ca").is_some() => None,
        (true, None) => sink.system_roots(&span, "the store's server", "\"ca\" in [store]"),
    };
    let secret = secret_file.and_then(|file| secret(sink, &file));
    let password = password_file.map(|file| password(sink, "password of the store", &file));
    good &= !matches!(password, Some(None)) && (password.is_some() || section.key_span("password_file").is_none());
    section.finish();
    let place = sink.place_of(&span);
    good.then_some(StoreSettings {
        url: url?.value,
        secret: secret?,
        user,
        password: password.flatten(),
        roots: roots?,
        prefix: prefix.map_or_else(|| s::prefix.default(), |p| p.value),
        timeout,
        early_data: early.then_some(shared),
        rate_limits: rate_limits.then_some(SharedRateLimits { fail_closed }),
        certificates: certificates.is_some(),
        place,
    })
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn secret(sink: &Sink, file: &At<PathBuf>) -> Option<Zeroizing<[u8; KEY]>> {
    sink.names_file(&file.value);
    files::warn_if_readable(sink, file, "secret of the store");
    if sink.content(&file.value).is_none() {
        // Not read, or not yet.
        return Some(Zeroizing::new([0; KEY]));
    }
    let text = files::read(sink, "secret of the store", file)?.trim_ascii();
    let mut secret = Zeroizing::new([0; KEY]);
    if !read_key(text, &mut secret) {
        let shown = file.value.display().to_string();
        let help = format!(
            "copy the file from another gateway of this store. Only for the first gateway, make one: (umask 077; openssl rand \
             -base64 32 > {}) && {}",
            files::shell_word(&shown),
            files::readable_by_group(&shown)
        );
        sink.error(&file.span, format!("{}: this is not 32 bytes in base64", file.value.display()), Some(help));
        return None;
    }
    Some(secret)
}

/// A password from a file with one line.
pub(super) fn password(sink: &Sink, what: &str, file: &At<PathBuf>) -> Option<Zeroizing<String>> {
    sink.names_file(&file.value);
    files::warn_if_readable(sink, file, what);
    if sink.content(&file.value).is_none() {
        return Some(Zeroizing::default());
    }
    let bytes = files::read(sink, what, file)?;
    match std::str::from_utf8(bytes).map(|text| text.trim_end_matches(['\r', '\n'])) {
        Ok(text) if !text.is_empty() && !text.contains('\n') => Some(Zeroizing::new(text.to_owned())),
        _ => {
            let help = "the file must have one line".to_owned();
            sink.error(&file.span, format!("{}: this is not a password", file.value.display()), Some(help));
            None
        }
    }
}

/// `unix:///PATH`, `redis://HOST:PORT`, `rediss://HOST:PORT` or `memory`.
pub(super) fn url(sink: &Sink, key: &str, node: &Node) -> Option<StoreUrl> {
    let text = decode::text(sink, key, node)?;
    let parsed = parse_url(&text);
    if parsed.is_none() {
        let help =
            format!("write {key} = \"redis://127.0.0.1:6379\" or {key} = \"unix:///run/redis/redis-server.sock\"");
        // It may have a password in it, which belongs into a file.
        let message = match text.contains('@') {
            true => "the URL of a store has no user and no password: write \"user\" and \"password_file\"".to_owned(),
            false => format!("\"{text}\" is not the URL of a store"),
        };
        sink.error(&node.span(), message, Some(help));
    }
    parsed
}

fn parse_url(text: &str) -> Option<StoreUrl> {
    if text == "memory" {
        return Some(StoreUrl::Memory);
    }
    let (scheme, rest) = text.split_once("://")?;
    let tls = match scheme {
        "unix" => return (rest.len() > 1 && rest.starts_with('/')).then(|| StoreUrl::Unix(rest.into())),
        "redis" => false,
        "rediss" => true,
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port)
        }
        None => match rest.find(':') {
            Some(colon) => rest.split_at(colon),
            None => (rest, ""),
        },
    };
    let port = match port.strip_prefix(':') {
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => port.parse().ok().filter(|port| *port > 0)?,
        None if port.is_empty() => DEFAULT_PORT,
        _ => return None,
    };
    // What TLS can verify is what can be resolved.
    ServerName::try_from(host).ok()?;
    Some(StoreUrl::Tcp { host: host.to_owned(), port, tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_stores() {
        let tcp = |host: &str, port, tls| Some(StoreUrl::Tcp { host: host.to_owned(), port, tls });
        assert_eq!(parse_url("memory"), Some(StoreUrl::Memory));
        assert_eq!(parse_url("unix:///run/r.sock"), Some(StoreUrl::Unix("/run/r.sock".into())));
        assert_eq!(parse_url("redis://127.0.0.1"), tcp("127.0.0.1", 6379, false));
        assert_eq!(parse_url("redis://store.internal:7000/"), tcp("store.internal", 7000, false));
        assert_eq!(parse_url("rediss://[::1]:7000"), tcp("::1", 7000, true));
        for bad in [
            "",
            "127.0.0.1:6379",
            "http://a:1",
            "unix://",
            "unix://run/r.sock",
            "unix:///",
            "redis://",
            "redis://a:0",
            "redis://a:70000",
            "redis://a:",
            "redis://a:+1",
            "redis://user:word@a:1",
            "redis://a/1",
            "redis://::1:6379",
            "redis://[a]:1",
            "redis://a b",
        ] {
            assert_eq!(parse_url(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_of_keys_is_read_as_a_whole_or_refused() {
        let (a, b) = (BASE64_STANDARD.encode([1; KEY]), BASE64_STANDARD.encode([2; KEY]));
        let read = |text: &str| keys(Path::new("keys"), text.as_bytes()).map_err(|(message, _)| message);
        assert_eq!(read(&format!("# newest first\n{a}\r\n\n  {b}  \n")).unwrap().keys(), [[1; KEY], [2; KEY]]);
        assert_eq!(read(&a).unwrap().keys(), [[1; KEY]]);
        assert_eq!(read("").unwrap_err(), "keys has no key");
        assert_eq!(read(&format!("{a}\nx\n")).unwrap_err(), "keys, line 2: this is not a key");
        assert_eq!(read(&format!("{a}\n{a}\n")).unwrap_err(), "keys, line 2: this key is repeated");
        assert!(read(&BASE64_STANDARD.encode([1; 31])).is_err());
        let many: String = (0..9).map(|n| BASE64_STANDARD.encode([n; KEY]) + "\n").collect();
        assert_eq!(read(&many).unwrap_err(), "keys has 9 keys, but may have at most 8");
        assert!(
            !format!("{:?}", read(&a).unwrap()).contains('1') || !format!("{:?}", read(&b).unwrap()).contains("[2")
        );
    }
}
