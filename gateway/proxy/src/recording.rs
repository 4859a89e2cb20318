//! Recordings of exchanges that an operator has asked for: `sealane debug record`.
//!
//! Without a recording, nothing of this is done. While there is one, a lane copies the heads of exchanges that are over, in words that
//! give nothing away: values of fields that may hold secrets are masked, queries are cut off. The number of exchanges, their fields and
//! the length of values are bounded, and what does not fit the queue is left out.

use crate::Failure;
use crate::client::identity::Client;
use crate::exchange::Exchange;
use crate::records::RequestId;
use sealane_http::claims::is_alike;
use sealane_http::{Fields, Version};
use sealane_lane::{Context, Micros, Millis};
use sealane_route::NamePattern;
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::SystemTime;
use zeroize::Zeroizing;

/// What stands in the place of a value that may be a secret.
const MASK: &str = "***";
/// Fields of a head that are recorded.
const MAX_FIELDS: usize = 48;
/// Bytes of a value, of a name, of a path.
const MAX_VALUE: usize = 200;

/// Bytes of a value that are searched for secrets. Of a longer one that is a URL, nothing is recorded.
const MAX_SEARCHED: usize = 16 * 1024;

/// Parts of the names of fields whose values may be secrets.
const SECRET: [&str; 20] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "key",
    "pass",
    "pwd",
    "session",
    "sid",
    "csrf",
    "xsrf",
    "sig",
    "credential",
    "jwt",
    "otp",
    "ticket",
    "challenge",
    "assertion",
    "saml",
    "dpop",
];

/// Fields whose values are URLs, or have some in them. So are fields whose names end so.
const URLS: [&str; 9] = ["location", "referer", "referrer", "refresh", "link", "origin", "destination", "-uri", "-url"];

/// What a configuration keeps secret: the headers whose values it sets, adds or compares, and values that come from elsewhere.
#[derive(Default)]
pub struct Secrets {
    names: Vec<String>,
    /// The longest ones first: one may be a part of another.
    values: Vec<Zeroizing<String>>,
}

impl Secrets {
    /// `names` of headers, and `values` that are in none of the others.
    pub fn new(names: impl IntoIterator<Item = String>, values: impl IntoIterator<Item = Zeroizing<String>>) -> Self {
        let mut values: Vec<_> = values.into_iter().filter(|value| !value.is_empty()).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { names: names.into_iter().collect(), values }
    }

    fn has_name(&self, name: &[u8]) -> bool {
        self.names.iter().any(|secret| is_alike(secret.as_bytes(), name))
    }

    /// A text without the secret values.
    fn masked<'t>(&self, mut text: Cow<'t, [u8]>) -> Cow<'t, [u8]> {
        for secret in &self.values {
            let secret = secret.as_bytes();
            let mut from = 0;
            while let Some(at) = text[from..].windows(secret.len()).position(|part| part == secret) {
                drop(text.to_mut().splice(from + at..from + at + secret.len(), MASK.bytes()));
                from += at + MASK.len();
            }
        }
        text
    }
}

/// Without the secrets.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// What is to be recorded, by each lane for itself.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Requests for this host; `None`: for any.
    host: Option<NamePattern>,
    /// One in so many of them.
    pub one_in: u32,
    /// At most so many.
    pub most: u32,
    /// For so many milliseconds.
    pub millis: Millis,
    /// Where they go. A recording whose receiver is gone is over.
    pub queue: SyncSender<Box<Recorded>>,
    /// When it is over, on the lane's clock.
    until: Millis,
    passed: u32,
    /// Those of the configurations that the lane has had meanwhile.
    secrets: Vec<Arc<Secrets>>,
}

impl Recording {
    /// A recording of requests for a host, or any.
    pub fn new(host: Option<String>, one_in: u32, most: u32, millis: Millis, queue: SyncSender<Box<Recorded>>) -> Self {
        let host = host.map(|host| NamePattern::Exact(host.to_ascii_lowercase().into()));
        Self { host, one_in: one_in.max(1), most, millis, queue, until: 0, passed: 0, secrets: Vec::new() }
    }

    pub(crate) fn begun(mut self, now: Millis, secrets: &Arc<Secrets>) -> Self {
        self.until = now.saturating_add(self.millis);
        self.keep(secrets);
        self
    }

    /// Keeps the secrets of a configuration, too: an exchange may have begun by an earlier one than it ends by.
    fn keep(&mut self, secrets: &Arc<Secrets>) {
        if !self.secrets.iter().any(|kept| Arc::ptr_eq(kept, secrets)) {
            self.secrets.push(secrets.clone());
        }
    }

    fn wants(&mut self, x: &Exchange) -> bool {
        let is_host = self.host.as_ref().is_none_or(|host| host.matches(x.request().host_name()));
        if x.machine().is_relay() || !is_host {
            return false;
        }
        self.passed += 1;
        if self.passed < self.one_in {
            return false;
        }
        self.passed = 0;
        true
    }
}

/// An exchange that is over.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its id.
    pub id: RequestId,
    /// When it was over.
    pub at: SystemTime,
    /// The client's address, as connected.
    pub client: SocketAddr,
    /// The version of HTTP that the client speaks.
    pub version: Version,
    /// The method.
    pub method: String,
    /// The host.
    pub host: String,
    /// The path, without its query.
    pub path: String,
    /// The status that the client got.
    pub status: u16,
    /// The upstream, and the last server.
    pub server: Option<(String, String)>,
    /// Why the last attempt failed that did.
    pub failure: Option<Failure>,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// From the end of the request's head until it was sent to the server.
    pub sent: Option<Micros>,
    /// Until the head of the response was there.
    pub headed: Option<Micros>,
    /// Until the exchange was over.
    pub took: Micros,
    /// Bytes of the request's body, and of the response's.
    pub bytes: (u64, u64),
    /// The request's fields, as they were passed on.
    pub request: Vec<(String, String)>,
    /// The response's fields.
    pub response: Vec<(String, String)>,
}

impl Recorded {
    /// How many bytes of text it has.
    pub fn size(&self) -> usize {
        let fields = self.request.iter().chain(&self.response).map(|(name, value)| name.len() + value.len());
        self.method.len() + self.host.len() + self.path.len() + fields.sum::<usize>()
    }
}

/// Records an exchange if it is to be. Whether the recording is over. `secrets`: those of the configuration in use.
pub(crate) fn recorded(
    recording: &mut Recording,
    client: &Client,
    x: &Exchange,
    cx: &Context,
    secrets: &Arc<Secrets>,
) -> bool {
    if recording.most == 0 || cx.now() >= recording.until {
        return true;
    }
    if !recording.wants(x) {
        return false;
    }
    recording.keep(secrets);
    if let Some(route) = x.routed().route() {
        recording.keep(&route.shared().0.secrets);
    }
    match recording.queue.try_send(Box::new(describe(client, x, cx.micros(), &recording.secrets))) {
        Ok(()) => recording.most -= 1,
        // Control takes what is there a few times a second.
        Err(TrySendError::Full(_)) => {}
        Err(TrySendError::Disconnected(_)) => return true,
    }
    false
}

fn describe(client: &Client, x: &Exchange, now: Micros, secrets: &[Arc<Secrets>]) -> Recorded {
    let since = |time: Micros| (time >= x.times().started && time > 0).then(|| time - x.times().started);
    let server = x.upstream().map(|group| {
        let upstream = group.settings();
        let server = upstream.servers.get(x.server()).map_or_else(String::new, |server| server.name.clone());
        (upstream.name.clone(), server)
    });
    Recorded {
        id: RequestId(client.id(), x.number()),
        at: SystemTime::now(),
        client: client.peer(),
        version: x.request().version,
        method: text(x.request().method_name()),
        host: text(x.request().host_name().as_bytes()),
        path: text(&without(x.request().client_path(), secrets)),
        status: x.status(),
        server,
        failure: x.routed().failure(),
        failed_attempts: x.attempts(),
        sent: since(x.times().sent),
        headed: since(x.times().headed),
        took: x.until(now).saturating_sub(x.times().started),
        bytes: (x.request_body().bytes(), x.response_body().bytes()),
        request: masked(&x.request().fields, secrets),
        response: masked(&x.response().fields, secrets),
    }
}

/// The beginning of what somebody has sent; what is not UTF-8 is replaced.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_VALUE)]).into_owned()
}

/// A text without secret values of the configuration.
fn without<'t>(text: &'t [u8], secrets: &[Arc<Secrets>]) -> Cow<'t, [u8]> {
    secrets.iter().fold(Cow::Borrowed(text), |text, secrets| secrets.masked(text))
}

/// Fields without secrets.
fn masked(fields: &Fields, secrets: &[Arc<Secrets>]) -> Vec<(String, String)> {
    let value = |name: &[u8], value: &[u8]| match secrets.iter().any(|secrets| secrets.has_name(name)) {
        true => MASK.to_owned(),
        false => masked_value(name, &without(value, secrets)),
    };
    fields.iter().take(MAX_FIELDS).map(|(_, name, written)| (text(name), value(name, written))).collect()
}

fn masked_value(name: &[u8], value: &[u8]) -> String {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    if SECRET.iter().any(|part| name.contains(part)) {
        return MASK.to_owned();
    }
    // What is cut off afterwards decides as well: a password may be longer than what is recorded.
    let searched = &value[..value.len().min(MAX_SEARCHED)];
    let has_scheme = searched.windows(3).any(|part| part == b"://");
    // A URL may have a password before its host.
    if (has_scheme || value.starts_with(b"//")) && (searched.contains(&b'@') || value.len() > MAX_SEARCHED) {
        return MASK.to_owned();
    }
    // Its query and its fragment may have anything, those of relative URLs, too.
    let is_url = has_scheme
        || value.starts_with(b"/")
        || name.contains("redirect")
        || URLS.iter().any(|end| name.ends_with(end));
    match searched.iter().position(|byte| matches!(byte, b'?' | b'#')) {
        Some(end) if is_url || searched[end..].contains(&b'=') || value.len() > MAX_SEARCHED => {
            let (before, mark) = (text(&value[..end]), char::from(value[end]));
            format!("{before}{mark}{MASK}")
        }
        _ => text(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures;
    use sealane_lane::Key;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn secrets_are_masked() {
        let shown = |name: &str, value: &str| masked_value(name.as_bytes(), value.as_bytes());
        for name in [
            "Authorization",
            "proxy-authorization",
            "Cookie",
            "set-cookie",
            "X-API-Key",
            "x-csrf-token",
            "X-Amz-Signature",
        ] {
            assert_eq!(shown(name, "hush"), MASK, "{name}");
        }
        assert_eq!(shown("user-agent", "curl/8?x"), "curl/8?x");
        assert_eq!(shown("referer", "https://a.example/x?code=hush"), "https://a.example/x?***");
        assert_eq!(shown("location", "/next?code=hush&b=1"), "/next?***");
        assert_eq!(shown("origin", "https://alice:hush@a.example/"), MASK);
        assert_eq!(shown("x-long", &"a".repeat(10_000)).len(), MAX_VALUE);
        for name in ["X-Pass", "x-pwd", "X-Db-Pass", "DPoP", "X-SAML-Assertion", "X-Sid", "X-Sig", "password"] {
            assert_eq!(shown(name, "hush"), MASK, "{name}");
        }
        assert_eq!(shown("x-bytes", "a\u{1b}[31m"), "a\u{1b}[31m", "who shows it escapes it");
    }

    #[test]
    fn secrets_in_fragments_relative_urls_and_behind_the_cut_are_masked() {
        let shown = |name: &str, value: &str| masked_value(name.as_bytes(), value.as_bytes());
        for (name, value, recorded) in [
            ("location", "https://app.example/cb#access_token=hush", "https://app.example/cb#***"),
            ("location", "/cb#id_token=hush", "/cb#***"),
            ("location", "/cb#hush", "/cb#***"),
            ("location", "next?hush", "next?***"),
            ("location", "?code=hush", "?***"),
            ("refresh", "0; url=/cb?hush", "0; url=/cb?***"),
            ("refresh", "0; url=cb#hush", "0; url=cb#***"),
            ("link", "</x?hush>; rel=next", "</x?***"),
            ("x-original-uri", "x?hush", "x?***"),
            ("HX-Redirect", "x?hush", "x?***"),
            ("hx-current-url", "x?hush", "x?***"),
            ("x-other", "next?code=hush", "next?***"),
            ("x-other", "is it so? yes", "is it so? yes"),
        ] {
            assert_eq!(shown(name, value), recorded, "{name}: {value}");
        }
        let password = "hush".repeat(50);
        assert_eq!(shown("location", &format!("https://alice:{password}@a.example/")), MASK);
        assert_eq!(shown("location", &format!("//alice:{password}@a.example/")), MASK);
        let password = "hush".repeat(5000);
        assert_eq!(shown("x-other", &format!("https://alice:{password}@a.example/")), MASK);
        // The mark is before the cut, and what shows that it is a query behind it.
        let value = format!("next?{}=1", "hush".repeat(100));
        assert_eq!(shown("x-other", &value), "next?***");
        let value = format!("{}?code=hush", "a".repeat(300));
        assert_eq!(shown("location", &value), format!("{}?***", "a".repeat(MAX_VALUE)));
    }

    #[test]
    fn what_the_configuration_keeps_secret_is_masked() {
        let secrets = |names: &[&str], values: &[&str]| {
            let values = values.iter().map(|value| Zeroizing::new((*value).to_owned()));
            Arc::new(Secrets::new(names.iter().map(|name| (*name).to_owned()), values))
        };
        let all = [secrets(&["X-Tok"], &["hush", "hush-and-more"]), secrets(&["X-Edge"], &["hush2\u{e9}"])];
        let mut fields = Fields::new();
        for (name, value) in [
            ("X-Tok", "a"),
            ("x_edge", "b"),
            ("X-Other", "hush"),
            ("X-Some", "<hush-and-more hush hush2\u{e9}>hus"),
            ("X-Long", &format!("{}hush", "a".repeat(MAX_VALUE - 2))),
            ("Location", "/hush?hush"),
        ] {
            fields.push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let shown: Vec<String> = masked(&fields, &all).into_iter().map(|(_, value)| value).collect();
        let cut = format!("{}**", "a".repeat(MAX_VALUE - 2));
        assert_eq!(shown, [MASK, MASK, MASK, "<*** *** ***2\u{e9}>hus", &cut, "/***?***"]);
        assert_eq!(without(b"/a/hush/b", &all).as_ref(), b"/a/***/b");
        assert_eq!(format!("{:?}", all[0]), "Secrets");
    }

    #[test]
    fn a_recording_ends_by_number_by_time_and_when_nobody_takes_it() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        let (mut x, cx) = (Exchange::new(ClientStream::H1(Key::from_u64(1))), Context::new().unwrap());
        x.request_mut().set_target(b"/a?hush").unwrap();
        x.request_mut().set_authority(b"A.example:443").unwrap();
        let (queue, taken) = sync_channel(100);
        let none = Arc::default();
        let new = |host: Option<&str>, one_in, most, millis| {
            Recording::new(host.map(str::to_owned), one_in, most, millis, queue.clone()).begun(cx.now(), &none)
        };
        let run = |recording: &mut Recording| (0..10).filter(|_| recorded(recording, &client, &x, &cx, &none)).count();
        assert_eq!((run(&mut new(None, 1, 3, 1000)), taken.try_iter().count()), (7, 3));
        assert_eq!((run(&mut new(Some("a.example"), 4, 100, 1000)), taken.try_iter().count()), (0, 2));
        assert_eq!((run(&mut new(Some("b.example"), 1, 100, 1000)), taken.try_iter().count()), (0, 0));
        assert_eq!((run(&mut new(None, 1, 100, 0)), taken.try_iter().count()), (10, 0));
        run(&mut new(None, 1, 1, 1000));
        let one = taken.try_recv().unwrap();
        assert_eq!((one.path.as_str(), one.host.as_str()), ("/a", "a.example"));
        let mut last = new(None, 1, 100, 1000);
        drop(taken);
        assert_eq!(run(&mut last), 10);
    }
}
