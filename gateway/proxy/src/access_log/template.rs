//! Access log lines of the operator's own: text with variables that have the names and the meaning of NGINX's.
//!
//! A template is read once, with the configuration. What clients have sent is escaped as NGINX does it (`\xHH`), and a
//! variable without a value is `-`.

use super::AccessLogRules;
use super::format::{Entry, connection_id, escape, escape_word, seconds};
use crate::clock::Clock;
use sealane_http::h1::encode_decimal;
use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a line consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Variable(Variable),
    /// `$http_NAME`: a field of the request; the name as fields have it.
    Field(String),
}

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// There is no such variable.
    Unknown(String),
    /// A `$` without a name behind it, or a `${` without its `}`.
    Dollar,
    /// A line would not be one.
    LineBreak,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "there is no variable \"${name}\""),
            Self::Dollar => f.write_str("a \"$\" without the name of a variable"),
            Self::LineBreak => f.write_str("a line break within a line"),
        }
    }
}

impl std::error::Error for TemplateError {}

macro_rules! variables {
    ($($variant:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Variable { $($variant,)* }

        impl Variable {
            const NAMES: &[(&str, Self)] = &[$(($name, Self::$variant),)*];
        }
    };
}

variables! {
    Args "args",
    BodyBytesSent "body_bytes_sent",
    ClientCertificate "client_certificate",
    Connection "connection",
    ConnectionRequests "connection_requests",
    Error "error",
    FirstByteTime "first_byte_time",
    Host "host",
    IsArgs "is_args",
    Msec "msec",
    OtelTraceId "otel_trace_id",
    Pid "pid",
    QueryString "query_string",
    RemoteAddr "remote_addr",
    RemotePort "remote_port",
    RemoteUser "remote_user",
    Request "request",
    RequestBodyBytes "request_body_bytes",
    RequestId "request_id",
    RequestMethod "request_method",
    RequestTime "request_time",
    RequestUri "request_uri",
    Route "route",
    Scheme "scheme",
    ServerPort "server_port",
    ServerProtocol "server_protocol",
    SslProtocol "ssl_protocol",
    Status "status",
    TimeIso8601 "time_iso8601",
    TimeLocal "time_local",
    UpstreamAddr "upstream_addr",
    UpstreamName "upstream_name",
    Uri "uri",
}

impl Template {
    /// The names of all variables, without `$`; `http_NAME` is for any field of the request.
    pub fn variables() -> impl Iterator<Item = &'static str> + Clone {
        Variable::NAMES.iter().map(|(name, _)| *name).chain(["http_NAME"])
    }

    /// Appends a line, without its end.
    pub(super) fn render(&self, b: &mut Vec<u8>, rules: &AccessLogRules, entry: &Entry, clock: &Clock) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => b.extend_from_slice(text.as_bytes()),
                Piece::Field(name) => sent(b, entry.field(name.as_bytes(), rules)),
                Piece::Variable(variable) => variable.render(b, rules, entry, clock),
            }
        }
    }
}

/// Appends what a client has sent.
fn sent(b: &mut Vec<u8>, value: Option<&[u8]>) {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => escape(b, value),
        None => b.push(b'-'),
    }
}

impl Variable {
    fn render(self, b: &mut Vec<u8>, rules: &AccessLogRules, entry: &Entry, clock: &Clock) {
        let Entry { x, client, .. } = entry;
        let own = |b: &mut Vec<u8>, value: Option<&str>| b.extend_from_slice(value.unwrap_or("-").as_bytes());
        let request = x.request();
        match self {
            Self::Args | Self::QueryString => {
                let query = entry.target(rules).get(request.client_path().len() + 1..);
                sent(b, query);
            }
            Self::IsArgs => {
                let has_query = entry.target(rules).len() > request.client_path().len();
                b.extend_from_slice(if has_query { b"?" } else { b"" });
            }
            Self::BodyBytesSent => encode_decimal(b, x.response_body().bytes()),
            Self::RequestBodyBytes => encode_decimal(b, x.request_body().bytes()),
            Self::ClientCertificate => own(b, entry.fingerprint()),
            Self::Connection => connection_id(b, client.id()),
            Self::ConnectionRequests => encode_decimal(b, u64::from(x.number())),
            Self::Error => match x.routed().failure() {
                Some(failure) => escape(b, failure.text().as_bytes()),
                None => b.push(b'-'),
            },
            Self::FirstByteTime => match entry.first_byte() {
                Some(micros) => seconds(b, micros),
                None => b.push(b'-'),
            },
            Self::Host => sent(b, Some(request.host_name().as_bytes())),
            Self::Msec => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                seconds(b, now.as_micros() as u64);
            }
            Self::OtelTraceId => match x.trace().id() {
                Some(trace) => b.extend_from_slice(&trace.text()),
                None => b.push(b'-'),
            },
            Self::Pid => encode_decimal(b, u64::from(std::process::id())),
            Self::RemoteAddr => entry.address(b, rules),
            // Proxies tell of no port.
            Self::RemotePort if x.told().is_some() => b.push(b'-'),
            Self::RemotePort => encode_decimal(b, u64::from(client.peer().port())),
            Self::RemoteUser => match entry.user() {
                Some(user) => escape_word(b, user),
                None => b.push(b'-'),
            },
            Self::Request => {
                escape(b, request.method_name());
                b.push(b' ');
                escape(b, entry.target(rules));
                b.push(b' ');
                own(b, entry.protocol());
            }
            Self::RequestId => match entry.request_id {
                Some(id) => escape(b, id),
                None => entry.number(b),
            },
            Self::RequestMethod => escape(b, request.method_name()),
            Self::RequestTime => seconds(b, entry.duration()),
            Self::RequestUri => escape(b, entry.target(rules)),
            Self::Route => own(b, entry.route()),
            Self::Scheme => b.extend_from_slice(if client.is_secure() { b"https" } else { b"http" }),
            Self::ServerPort => encode_decimal(b, u64::from(client.listener().listener.address.port())),
            Self::ServerProtocol => own(b, entry.protocol()),
            Self::SslProtocol => own(b, entry.tls_version()),
            Self::Status => drop(write!(b, "{:03}", x.status())),
            Self::TimeIso8601 => b.extend_from_slice(clock.iso()),
            Self::TimeLocal => b.extend_from_slice(clock.log()),
            Self::UpstreamAddr => own(b, entry.upstream_server()),
            Self::UpstreamName => own(b, entry.upstream_name()),
            // The path that the server gets, as NGINX has it after a rewrite.
            Self::Uri => escape(b, request.path()),
        }
    }
}

impl fmt::Display for Template {
    /// Every variable in braces, so that nothing behind it is taken for a part of its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => f.write_str(text)?,
                Piece::Field(name) => write!(f, "${{http_{}}}", name.replace('-', "_"))?,
                Piece::Variable(variable) => {
                    let name = Variable::NAMES.iter().find(|(_, known)| known == variable).map_or("", |(name, _)| name);
                    write!(f, "${{{name}}}")?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.contains(['\n', '\r']) {
            return Err(TemplateError::LineBreak);
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (name, after) = match behind.strip_prefix('{') {
                Some(braced) => braced.split_once('}').ok_or(TemplateError::Dollar)?,
                None => behind.split_at(behind.find(|c| !is_of_name(c)).unwrap_or(behind.len())),
            };
            if name.is_empty() || !name.chars().all(is_of_name) {
                return Err(TemplateError::Dollar);
            }
            let known = Variable::NAMES.iter().find(|(known, _)| *known == name);
            pieces.push(match (known, name.strip_prefix("http_")) {
                (Some((_, variable)), _) => Piece::Variable(*variable),
                (None, Some(field)) if !field.is_empty() => Piece::Field(field.replace('_', "-")),
                _ => return Err(TemplateError::Unknown(name.to_owned())),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self { pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::rendered;
    use super::*;
    use crate::access_log::LogFormat;
    use std::sync::Arc;

    fn line(template: &str) -> String {
        let format = LogFormat::Template(Arc::new(template.parse().unwrap()));
        rendered(&AccessLogRules { format, ..AccessLogRules::default() })
    }

    #[test]
    fn variables_have_the_values_of_the_request() {
        for (template, wanted) in [
            ("$remote_addr:$remote_port - $remote_user", "192.0.2.77:5 - -"),
            ("\"$request\" $status $body_bytes_sent", "\"GET /a?q=1 HTTP/1.1\" 200 11"),
            ("$request_method $uri$is_args$args $request_uri $query_string", "GET /a?q=1 /a?q=1 q=1"),
            ("$host $scheme $server_protocol $ssl_protocol $server_port", "a.example http HTTP/1.1 TLSv1.3 80"),
            ("$request_time ${first_byte_time}s $upstream_addr $route", "1.234 0.500s - -"),
            ("$http_x_team|$http_x_none|${http_user_agent}", "blue|-|a \\x22b\\x22=c\\xFF"),
            ("$connection $connection_requests $request_id", "0-0 3 0-0-3"),
            ("100 percent", "100 percent"),
        ] {
            assert_eq!(line(template), format!("{wanted}\n"), "{template}");
        }
    }

    #[test]
    fn every_variable_can_be_read_and_is_one_word() {
        for name in Template::variables() {
            let value = line(&format!("<${name}>"));
            let value = value.strip_prefix('<').and_then(|v| v.strip_suffix(">\n")).unwrap();
            let has_spaces = ["request", "time_local", "http_NAME"].contains(&name);
            assert!(!value.is_empty() && (has_spaces || !value.contains(' ')), "{name}: {value}");
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (template, error) in [
            ("$nothing", TemplateError::Unknown("nothing".into())),
            ("$http_", TemplateError::Unknown("http_".into())),
            ("a $ b", TemplateError::Dollar),
            ("costs 5$", TemplateError::Dollar),
            ("${status", TemplateError::Dollar),
            ("${sta tus}", TemplateError::Dollar),
            ("$status\n", TemplateError::LineBreak),
        ] {
            assert_eq!(template.parse::<Template>(), Err(error), "{template}");
        }
    }
}
