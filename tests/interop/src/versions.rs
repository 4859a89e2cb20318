//! The same request over every version of HTTP.

use crate::gateway::{Gateway, configured};
use crate::h3::{Client, headers, over_quic};
use crate::http::Wire;
use crate::site::{HOST, Site};
use crate::{h2, ports};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use sealane_http::{BodyLength, Fields};
use std::net::SocketAddr;

/// The versions, in the order of answers.
pub const VERSIONS: [&str; 3] = ["HTTP/1.1", "HTTP/2", "HTTP/3"];

/// The configuration of a gateway for [`Everywhere`]: a listener with TLS and HTTP/3, and a plain one with HTTP/1.1 and HTTP/2.
/// The access log is JSON, see [`Site::logged`].
#[derive(Clone, Copy)]
pub struct Listening<'t> {
    /// How many lanes.
    pub lanes: usize,
    /// Tables before the listeners.
    pub top: &'t str,
    /// Lines of both listeners.
    pub both: &'t str,
    /// Lines of `[listener.tls]`.
    pub tls: &'t str,
    /// Lines of the plain listener.
    pub plain: &'t str,
    /// Hosts and upstreams.
    pub rest: &'t str,
}

impl Default for Listening<'_> {
    fn default() -> Self {
        Self { lanes: 1, top: "", both: "", tls: "", plain: "", rest: "" }
    }
}

impl Listening<'_> {
    /// The file for [`configured`], with the plain listener at this address.
    pub fn text(&self, site: &Site, plain: SocketAddr) -> String {
        format!(
            r#"
lanes = {lanes}
[admin]
listen = "@ADMIN@"
[log]
access = {log:?}
format = "json"
{top}
[[listener]]
address = "@ADDRESS@"
http3 = true
{both}
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
{tls}
[[listener]]
address = "{plain}"
h2c = true
{both}
{own}
{rest}
"#,
            lanes = self.lanes,
            log = site.log_file(),
            top = self.top,
            both = self.both,
            cert = site.ecdsa.cert,
            key = site.ecdsa.key,
            tls = self.tls,
            own = self.plain,
            rest = self.rest,
        )
    }

    /// Starts the gateway. With the address of the plain listener.
    #[track_caller]
    pub fn start(&self, site: &Site) -> (Gateway, SocketAddr) {
        let plain = ports::free();
        (configured(site, &self.text(site, plain)), plain)
    }
}

/// Asks a gateway over every version. Of its listeners, one (`h2c = true`) is plain, and one has TLS and HTTP/3.
pub struct Everywhere {
    plain: SocketAddr,
    third: Client,
}

/// A request: method, target, fields, and (with a body) trailers.
#[derive(Clone, Copy, Default)]
pub struct Asked<'a> {
    /// GET, if it is empty.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Its fields, without Host.
    pub fields: &'a [(&'a str, &'a str)],
    /// There is a body if there are trailers.
    pub trailers: &'a [(&'a str, &'a str)],
}

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its status.
    pub status: u16,
    /// Its fields, by their names in lower case.
    pub fields: Vec<(String, String)>,
    /// Its body.
    pub body: String,
}

impl Answered {
    /// The value of a field that is there at most once.
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<&str> {
        let all: Vec<&str> = self.fields.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect();
        assert!(all.len() < 2, "{name} is there {} times: {:?}", all.len(), self.fields);
        all.first().copied()
    }
}

impl Everywhere {
    /// `plain` is the address of the listener without TLS; the other one is the gateway's.
    #[track_caller]
    pub fn new(gateway: &Gateway, plain: SocketAddr) -> Self {
        let third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        Self { plain, third }
    }

    /// A GET of this target: status and body by version.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> [(u16, String); 3] {
        self.ask(Asked { target, ..Asked::default() })
    }

    /// A GET of this target over HTTP/1.1 and HTTP/2, whose clients are less strict than that of HTTP/3.
    #[track_caller]
    pub fn first_two(&self, target: &str) -> [(u16, String); 2] {
        let asked = Asked { method: "GET", target, ..Asked::default() };
        [first(self.plain, asked), second(self.plain, asked)].map(|answered| (answered.status, answered.body))
    }

    /// Status and body by version.
    #[track_caller]
    pub fn ask(&mut self, asked: Asked) -> [(u16, String); 3] {
        self.answers(asked).map(|answered| (answered.status, answered.body))
    }

    /// Whole responses by version.
    #[track_caller]
    pub fn answers(&mut self, asked: Asked) -> [Answered; 3] {
        let asked = Asked { method: if asked.method.is_empty() { "GET" } else { asked.method }, ..asked };
        [first(self.plain, asked), second(self.plain, asked), self.third(asked)]
    }

    fn third(&mut self, asked: Asked) -> Answered {
        let with_body = !asked.trailers.is_empty();
        let length = if with_body { BodyLength::Chunked } else { BodyLength::None };
        let mut bytes = headers(asked.method, asked.target, asked.fields, length);
        if with_body {
            bytes.extend(crate::h3::data(b"hello"));
            let mut trailers = Fields::new();
            for (name, value) in asked.trailers {
                trailers.push(name.as_bytes(), value.as_bytes()).expect("the test's trailers are legal");
            }
            sealane_http::h3::encode_trailers(&mut bytes, &trailers);
        }
        let id = self.third.open(&bytes, true);
        let response = self.third.response(id).unwrap_or_else(|e| panic!("{}: {e:?}", asked.target));
        let body = String::from_utf8_lossy(&response.body).into_owned();
        Answered { status: response.status, fields: response.fields, body }
    }
}

fn first(address: SocketAddr, asked: Asked) -> Answered {
    let mut text = format!("{} {} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n", asked.method, asked.target);
    asked.fields.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    if asked.trailers.is_empty() {
        text.push_str("\r\n");
    } else {
        text.push_str("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n");
        asked.trailers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
    }
    let mut wire = Wire::new(crate::client::tcp(address));
    // It may answer and close before it has read everything.
    let _ = wire.send(text);
    let response = wire.response(asked.method).unwrap_or_else(|broken| panic!("{}: {broken:?}", asked.target));
    let fields = response.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    Answered { status: response.status(), fields, body: response.text() }
}

fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("the test's names are legal");
        (name, HeaderValue::from_str(value).expect("the test's values are legal"))
    };
    fields.iter().map(pair).collect()
}

fn second(address: SocketAddr, asked: Asked) -> Answered {
    let mut request = Request::builder().method(asked.method).uri(format!("http://{HOST}{}", asked.target));
    request.headers_mut().expect("the test's target is legal").extend(map(asked.fields));
    let request = request.body(()).expect("the test's request is legal");
    let answer = h2::run(async {
        let client = h2::connect(address).await;
        let mut client = client.ready().await.expect("the connection is open");
        let (response, mut send) = client.send_request(request, asked.trailers.is_empty()).expect("it can be sent");
        if !asked.trailers.is_empty() {
            // A gateway that answers early resets the stream.
            let _ = send.send_data(Bytes::from_static(b"hello"), false);
            let _ = send.send_trailers(map(asked.trailers));
        }
        h2::answer(response).await
    });
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields = answer.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    Answered { status: answer.status, fields, body: String::from_utf8_lossy(&answer.body).into_owned() }
}
