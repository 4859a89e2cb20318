//! The endpoints of the API: one table, from which requests are dispatched and the OpenAPI document and the reference are
//! written. What is not in the table does not exist.

use super::problem::{self, Problem};
use super::schema::{Direction, Schemas};
use super::types::{
    Applied, Certificates, Configuration, History, NewServer, SentCertificate, ServerPatch, Servers, ServersOfOne,
    Validated,
};
use crate::metrics::status::{ServerChange, Status};
use crate::resolve::is_certificate_name;
use crate::run::inspection::OpenExchanges;
use crate::run::recording::{RecordedExchanges, RecordingRequest};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What code an endpoint runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    OpenApi,
    Status,
    History,
    Servers,
    Certificates,
    Configuration,
    Validate,
    Apply,
    SetCertificate,
    RemoveCertificate,
    Exchanges,
    Log,
    Reload,
    Upgrade,
    Drain,
    ReopenLogs,
    LogLevel,
    ChangeServer,
    AddServer,
    PatchServer,
    RemoveServer,
    Renew,
    Record,
    Tunnel,
}

/// Who may use an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone who reaches an admin listener.
    Everyone,
    /// Operators: they use the admin socket, or TLS with a client certificate.
    Operators,
}

/// A schema of the document.
pub(super) type Schema = fn(&Schemas) -> Value;

fn response<T: DeserializeOwned>(schemas: &Schemas) -> Value {
    schemas.of::<T>(Direction::Response)
}

fn request<T: DeserializeOwned>(schemas: &Schemas) -> Value {
    schemas.of::<T>(Direction::Request)
}

fn text(_: &Schemas) -> Value {
    json!({ "type": "string" })
}

fn object(_: &Schemas) -> Value {
    json!({ "type": "object" })
}

/// A parameter.
#[derive(Debug)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub place: Place,
    pub kind: Kind,
    pub doc: &'static str,
}

/// Where a parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Query,
    /// `{name}` in the path.
    Path,
    /// Must be there; the code of the endpoint checks it.
    Header,
}

/// What a parameter may be.
#[derive(Debug)]
pub(super) enum Kind {
    /// A text of 1 byte to so many.
    Text(usize),
    /// 1 to 64 letters, digits, hyphens, dots and underscores, the first of which is no dot.
    Name,
    Number(u64, u64),
    Choice(&'static [&'static str]),
}

impl Kind {
    /// Why a value cannot be one of these.
    fn mistake(&self, value: &str) -> Option<String> {
        match self {
            Self::Text(most) => {
                let is_one = (1..=*most).contains(&value.len());
                (!is_one).then(|| format!("a text of 1 to {most} bytes"))
            }
            Self::Name => (!is_certificate_name(value))
                .then(|| "a name of 1 to 64 letters, digits, hyphens, dots and underscores".to_owned()),
            Self::Number(least, most) => {
                let is_one = value.parse::<u64>().is_ok_and(|n| (*least..=*most).contains(&n));
                (!is_one).then(|| format!("a number from {least} to {most}"))
            }
            Self::Choice(choices) => (!choices.contains(&value)).then(|| format!("one of {}", choices.join(", "))),
        }
    }

    pub fn schema(&self) -> Value {
        match self {
            Self::Text(most) => json!({ "type": "string", "minLength": 1, "maxLength": most }),
            Self::Name => json!({ "type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$" }),
            Self::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Self::Choice(choices) => json!({ "type": "string", "enum": choices }),
        }
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct Body {
    pub media: &'static str,
    /// Another `Content-Type` is not refused: clients of the first versions had none, or any.
    pub any_media: bool,
    /// Most bytes (else 413).
    pub limit: usize,
    pub schema: Schema,
    pub doc: &'static str,
}

/// The response of an endpoint that did what it was asked to.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub media: &'static str,
    pub schema: Schema,
    pub doc: &'static str,
    /// Headers that it has besides.
    pub headers: &'static [(&'static str, &'static str)],
}

/// One method of one path.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub method: &'static str,
    /// As in the document: `{name}` stands for one segment.
    pub path: &'static str,
    /// The operation's id in the document.
    pub id: &'static str,
    pub operation: Operation,
    pub access: Access,
    pub summary: &'static str,
    /// More about it; may be empty.
    pub doc: &'static str,
    pub parameters: &'static [Parameter],
    pub body: Option<Body>,
    pub answer: Answer,
    /// Statuses of refusals besides those that follow from the rest: problem documents, or text where `errors_are_text`.
    pub errors: &'static [u16],
    pub errors_are_text: bool,
}

impl Endpoint {
    /// A read of JSON, without parameters.
    const fn json(path: &'static str, id: &'static str, operation: Operation, schema: Schema) -> Self {
        Self {
            method: "GET",
            path,
            id,
            operation,
            access: Access::Everyone,
            summary: "",
            doc: "",
            parameters: &[],
            body: None,
            answer: Answer { status: 200, media: JSON, schema, doc: "", headers: &[] },
            errors: &[],
            errors_are_text: false,
        }
    }

    /// A command, which responds with a line of text.
    const fn command(path: &'static str, id: &'static str, operation: Operation) -> Self {
        let answer = Answer { status: 200, media: TEXT, schema: text, doc: "The result.", headers: &[] };
        Self {
            method: "POST",
            access: Access::Operators,
            answer,
            errors: &[409],
            errors_are_text: true,
            ..Self::json(path, id, operation, text)
        }
    }

    /// Whether a request may change something.
    pub fn is_change(&self) -> bool {
        self.method != "GET"
    }

    /// Every status that a response may have, and whether its body is a problem document.
    pub fn refusals(&self) -> Vec<(u16, bool)> {
        let own = self.errors.iter().map(|status| (*status, !self.errors_are_text));
        let parameters = (!self.parameters.is_empty()).then_some((400, true));
        let access = (self.access == Access::Operators).then_some((403, true));
        let body = self.body.iter().flat_map(|body| {
            let media = (!body.any_media).then_some((415, true));
            [(400, !self.errors_are_text), (408, true), (413, true)].into_iter().chain(media)
        });
        let mut all: Vec<(u16, bool)> = own.chain(parameters).chain(access).chain(body).collect();
        all.sort_unstable();
        all.dedup_by_key(|(status, _)| *status);
        all
    }

    /// The names that `{…}` in the path stand for, in order; `None`: the path is another one.
    pub fn matches(&self, path: &str) -> Option<Vec<String>> {
        let mut names = Vec::new();
        let (mut wanted, mut given) = (self.path.split('/'), path.split('/'));
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return Some(names),
                (Some(wanted), Some(given)) if wanted.starts_with('{') => {
                    names.push(decoded(given).filter(|name| !name.is_empty())?)
                }
                (Some(wanted), Some(given)) if wanted == given => {}
                _ => return None,
            }
        }
    }

    /// Why a name in the path cannot be one.
    pub fn mistake(&self, names: &[String]) -> Option<Problem> {
        let known = self.parameters.iter().filter(|p| p.place == Place::Path);
        known.zip(names).find_map(|(parameter, value)| {
            let wanted = parameter.kind.mistake(value)?;
            Some(Problem::new(400, format!("{{{}}} in the path must be {wanted}", parameter.name)))
        })
    }

    /// The parameters of a query. What is not known is ignored by reads, and refused by changes.
    pub fn parameters(&self, query: &str) -> Result<Parameters, Problem> {
        let mut found = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let known = self.parameters.iter().find(|p| p.place == Place::Query && p.name == name);
            let Some(parameter) = known else {
                // What has no parameters may be asked with any, as by tools that add one of their own to every path.
                if self.is_change() || self.parameters.iter().any(|p| p.place == Place::Query) {
                    return Err(Problem::new(400, format!("there is no parameter {name:?}: see GET /v1/openapi.json")));
                }
                continue;
            };
            let value = decoded(value).unwrap_or_default();
            if let Some(wanted) = parameter.kind.mistake(&value) {
                return Err(Problem::new(400, format!("the parameter {name:?} must be {wanted}")));
            }
            if found.iter().any(|(known, _)| *known == parameter.name) {
                return Err(Problem::new(400, format!("the parameter {name:?} is repeated")));
            }
            found.push((parameter.name, value));
        }
        Ok(Parameters(found))
    }
}

/// The checked parameters of a request.
#[derive(Debug, Default)]
pub(super) struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

/// A text without percent-encoding (RFC 3986 §2.1); `None`: the encoding is wrong, or not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// How a path stands in the table.
#[derive(Debug)]
pub(super) enum Lookup {
    /// This endpoint, and the names in the path.
    Found(&'static Endpoint, Vec<String>),
    /// The path has only these methods.
    OtherMethods(String),
    Unknown,
}

/// Finds the endpoint for a request. HEAD is served where GET is.
pub(super) fn find(method: &str, path: &str) -> Lookup {
    let method = if method == "HEAD" { "GET" } else { method };
    let mut methods = Vec::new();
    for endpoint in &ENDPOINTS {
        match endpoint.matches(path) {
            Some(names) if endpoint.method == method => return Lookup::Found(endpoint, names),
            Some(_) => methods.push(if endpoint.method == "GET" { "GET, HEAD" } else { endpoint.method }),
            None => {}
        }
    }
    if methods.is_empty() { Lookup::Unknown } else { Lookup::OtherMethods(methods.join(", ")) }
}

const IF_MATCH: Parameter = Parameter {
    name: "If-Match",
    place: Place::Header,
    kind: Kind::Text(1024),
    doc: "The `ETag` of the configuration to replace, or `*` for any configuration.",
};
const KEEP: Parameter = Parameter {
    name: "keep",
    place: Place::Query,
    kind: Kind::Choice(&["temporary", "file"]),
    doc: "`file`: also write the text into the configuration file. `temporary` (the default): the next reload, upgrade or restart reads \
          the file, which does not have the text.",
};
const KEEP_SERVER: Parameter = Parameter {
    doc: "`file`: also write the change into the configuration file, or into the file of `include` that declares the upstream. `temporary` \
          (the default): the next upgrade or restart ends the change.",
    ..KEEP
};
const KEEP_CERTIFICATE: Parameter = Parameter {
    doc: "`file`: also write the change into the folder `storage` of `[admin]`. `temporary` (the default): the next upgrade or restart ends \
          the change.",
    ..KEEP
};
const CERTIFICATE: Parameter = Parameter {
    name: "name",
    place: Place::Path,
    kind: Kind::Name,
    doc: "A name of your choice, by which the API knows the certificate.",
};
const UPSTREAM: Parameter =
    Parameter { name: "upstream", place: Place::Path, kind: Kind::Text(256), doc: "The upstream's name." };
const SERVER: Parameter = Parameter {
    name: "server",
    place: Place::Path,
    kind: Kind::Text(512),
    doc: "The server's name, as in `GET /v1/servers`: `10.0.0.7:3000`.",
};

pub(super) const JSON: &str = "application/json";
pub(super) const TEXT: &str = "text/plain";
/// Most bytes of the body of a command.
const MAX_COMMAND: usize = 4096;
pub(super) const TOML: &str = "application/toml";
/// Most bytes of a configuration: ten thousand certificates with long paths are 2 MB.
const MAX_CONFIGURATION: usize = 8 << 20;
const PEM: &str = "application/x-pem-file";
/// Most bytes of a certificate with its chain and key.
const MAX_CERTIFICATE: usize = 256 << 10;
/// How a change of a server may be refused that may be written into the file.
const KEPT: &[u16] = &[404, 409, 412, 422, 500, 503];
/// Most exchanges that are told.
pub(super) const MAX_EXCHANGES: u64 = 1000;

/// All of them, in the order of the document.
pub(super) static ENDPOINTS: [Endpoint; 24] = [
    Endpoint {
        summary: "Read this description of the API",
        answer: Answer { doc: "An OpenAPI 3.1 document.", ..Endpoint::json("", "", Operation::OpenApi, object).answer },
        ..Endpoint::json("/v1/openapi.json", "openApi", Operation::OpenApi, object)
    },
    Endpoint {
        summary: "Read the status",
        doc: "For clients that are not operators, `reduced` is true: the response has no names and addresses of clients, and no changed \
              settings.",
        ..Endpoint::json("/v1/status", "status", Operation::Status, response::<Status>)
    },
    Endpoint {
        summary: "Read the measured values of the last minutes, hour or day",
        parameters: &[
            Parameter {
                name: "range",
                place: Place::Query,
                kind: Kind::Choice(&["5m", "1h", "24h"]),
                doc: "The length of the period (default: five minutes).",
            },
            Parameter {
                name: "since",
                place: Place::Query,
                kind: Kind::Number(0, i64::MAX as u64),
                doc: "Return only values that are newer than this time, in seconds since 1970.",
            },
        ],
        ..Endpoint::json("/v1/history", "history", Operation::History, response::<History>)
    },
    Endpoint {
        summary: "List the servers of all upstreams",
        ..Endpoint::json("/v1/servers", "servers", Operation::Servers, response::<Servers>)
    },
    Endpoint {
        summary: "List the certificates that the listeners send to clients",
        ..Endpoint::json("/v1/certificates", "certificates", Operation::Certificates, response::<Certificates>)
    },
    Endpoint {
        method: "POST",
        access: Access::Operators,
        summary: "Add a server to an upstream",
        doc: "The server stays after a reload, if the upstream is still in the configuration. If the new configuration has the server in \
              this upstream, the server is an ordinary server of the configuration from then on. A reload removes the added server in \
              two cases: the servers of this upstream now have another scheme; or another upstream now has this server, and any host \
              of the configuration requires client certificates. Without `keep=file`, the server does not stay after an upgrade or a \
              restart. The gateway responds when the lanes use the server.",
        parameters: &[UPSTREAM, KEEP_SERVER],
        body: Some(Body {
            media: JSON,
            any_media: false,
            limit: MAX_COMMAND,
            schema: request::<NewServer>,
            doc: "The server.",
        }),
        answer: Answer {
            status: 201,
            media: JSON,
            schema: response::<ServersOfOne>,
            doc: "The state of the server.",
            headers: &[],
        },
        errors: KEPT,
        ..Endpoint::json("/v1/upstreams/{upstream}/servers", "addServer", Operation::AddServer, object)
    },
    Endpoint {
        method: "PATCH",
        access: Access::Operators,
        summary: "Drain a server, end its drain, or set its weight",
        doc: "The change stays after a reload, if the server is still in the configuration or was added by the API. Without `keep=file`, \
              it does not stay after an upgrade or a restart.",
        parameters: &[UPSTREAM, SERVER, KEEP_SERVER],
        body: Some(Body {
            media: JSON,
            any_media: false,
            limit: MAX_COMMAND,
            schema: request::<ServerPatch>,
            doc: "The change.",
        }),
        answer: Answer {
            status: 200,
            media: JSON,
            schema: response::<ServersOfOne>,
            doc: "The state of the server.",
            headers: &[],
        },
        errors: KEPT,
        ..Endpoint::json("/v1/upstreams/{upstream}/servers/{server}", "patchServer", Operation::PatchServer, object)
    },
    Endpoint {
        method: "DELETE",
        access: Access::Operators,
        summary: "Remove a server from an upstream",
        doc: "The server finishes its open requests. If the server is in the configuration file, it stays removed after a reload; without \
              `keep=file` only until an upgrade or a restart, or until it is added again with the URL, weight and backup of the file.",
        parameters: &[UPSTREAM, SERVER, KEEP_SERVER],
        answer: Answer { status: 204, media: "", schema: object, doc: "The server is removed.", headers: &[] },
        errors: KEPT,
        ..Endpoint::json("/v1/upstreams/{upstream}/servers/{server}", "removeServer", Operation::RemoveServer, object)
    },
    Endpoint {
        method: "PUT",
        access: Access::Operators,
        summary: "Add a certificate, or replace one that was added",
        doc: "All listeners with TLS send this certificate to clients that ask for one of its names, instead of a certificate of the \
              configuration. The gateway checks the text by the rules for certificate files. The certificate stays after a reload. \
              Without `keep=file`, it does not stay after an upgrade or a restart. A certificate that is kept can only be replaced with \
              `keep=file`.",
        parameters: &[CERTIFICATE, KEEP_CERTIFICATE],
        body: Some(Body {
            media: PEM,
            any_media: false,
            limit: MAX_CERTIFICATE,
            schema: text,
            doc: "The certificate, the certificates that signed it, and the private key, in PEM.",
        }),
        answer: Answer {
            status: 200,
            media: JSON,
            schema: response::<SentCertificate>,
            doc: "The state of the certificate.",
            headers: &[],
        },
        errors: &[409, 422, 500, 503],
        ..Endpoint::json("/v1/certificates/{name}", "setCertificate", Operation::SetCertificate, object)
    },
    Endpoint {
        method: "DELETE",
        access: Access::Operators,
        summary: "Remove a certificate that was added",
        doc: "The listeners then send the certificates of the configuration again. A certificate that is kept can only be removed with \
              `keep=file`.",
        parameters: &[CERTIFICATE, KEEP_CERTIFICATE],
        answer: Answer { status: 204, media: "", schema: object, doc: "The certificate is removed.", headers: &[] },
        errors: &[404, 409, 500, 503],
        ..Endpoint::json("/v1/certificates/{name}", "removeCertificate", Operation::RemoveCertificate, object)
    },
    Endpoint {
        access: Access::Operators,
        summary: "Read the configuration in use",
        doc: "The response has all defaults, and masks secrets.",
        answer: Answer {
            headers: &[("ETag", "The value of `If-Match` for a change of this configuration.")],
            ..Endpoint::json("", "", Operation::Configuration, response::<Configuration>).answer
        },
        ..Endpoint::json("/v1/config", "configuration", Operation::Configuration, response::<Configuration>)
    },
    Endpoint {
        method: "PUT",
        access: Access::Operators,
        summary: "Apply a whole configuration",
        doc: "The gateway checks the text, and applies it, as a reload does with the configuration file. Relative paths start at the \
              folder of the file, and the files in `include` are read. If there is a mistake, nothing changes (422), and `errors` \
              has each mistake with its line and column. Nothing changes either (412) if `If-Match` names another configuration than \
              the one in use, or, with `keep=file`, if the file has changed since the gateway loaded it.",
        parameters: &[IF_MATCH, KEEP],
        body: Some(Body {
            media: TOML,
            any_media: false,
            limit: MAX_CONFIGURATION,
            schema: text,
            doc: "The configuration.",
        }),
        answer: Answer {
            status: 200,
            media: JSON,
            schema: response::<Applied>,
            doc: "The configuration is in use.",
            headers: &[("ETag", "The value of `If-Match` for a change of this configuration.")],
        },
        errors: &[409, 412, 422, 428, 500, 503],
        ..Endpoint::json("/v1/config", "apply", Operation::Apply, object)
    },
    Endpoint {
        method: "POST",
        access: Access::Operators,
        summary: "Check a whole configuration",
        doc: "The gateway checks the text as with `PUT /v1/config`, and changes nothing.",
        body: Some(Body {
            media: TOML,
            any_media: false,
            limit: MAX_CONFIGURATION,
            schema: text,
            doc: "The configuration.",
        }),
        answer: Answer {
            status: 200,
            media: JSON,
            schema: response::<Validated>,
            doc: "The configuration has no mistakes.",
            headers: &[],
        },
        errors: &[409, 422, 503],
        ..Endpoint::json("/v1/config/validate", "validate", Operation::Validate, object)
    },
    Endpoint {
        access: Access::Operators,
        summary: "List the oldest open requests",
        parameters: &[
            Parameter {
                name: "limit",
                place: Place::Query,
                kind: Kind::Number(0, i64::MAX as u64),
                doc: "The maximum number of requests in the response, up to 1000 (the default).",
            },
            Parameter {
                name: "older_than_ms",
                place: Place::Query,
                kind: Kind::Number(0, i64::MAX as u64),
                doc: "Return only requests that have been open for longer than this time, in milliseconds.",
            },
        ],
        errors: &[409],
        ..Endpoint::json("/v1/exchanges", "exchanges", Operation::Exchanges, response::<OpenExchanges>)
    },
    Endpoint {
        access: Access::Operators,
        summary: "Read the newest lines of the log",
        answer: Answer { status: 200, media: TEXT, schema: text, doc: "The lines.", headers: &[] },
        ..Endpoint::json("/v1/log", "log", Operation::Log, text)
    },
    Endpoint {
        summary: "Read the configuration file again",
        doc: "The file replaces a configuration that the API applied without `keep=file`. Servers, weights, drains and certificates of \
              the API stay.",
        ..Endpoint::command("/v1/reload", "reload", Operation::Reload)
    },
    Endpoint {
        summary: "Replace this process by the installed program",
        ..Endpoint::command("/v1/upgrade", "upgrade", Operation::Upgrade)
    },
    Endpoint {
        summary: "Finish open requests, then stop",
        ..Endpoint::command("/v1/drain", "drain", Operation::Drain)
    },
    Endpoint {
        summary: "Reopen the files of the access log and of the tunnel's log, after a rotation",
        ..Endpoint::command("/v1/reopen-logs", "reopenLogs", Operation::ReopenLogs)
    },
    Endpoint {
        summary: "Change the level of the log",
        body: Some(Body {
            media: TEXT,
            any_media: true,
            limit: MAX_COMMAND,
            schema: text,
            doc: "`error`, `warn`, `info`, `debug` or `trace`.",
        }),
        errors: &[],
        ..Endpoint::command("/v1/log-level", "logLevel", Operation::LogLevel)
    },
    Endpoint {
        summary: "Drain a server, or set its weight",
        body: Some(Body {
            media: JSON,
            any_media: true,
            limit: MAX_COMMAND,
            schema: request::<ServerChange>,
            doc: "The change.",
        }),
        ..Endpoint::command("/v1/server", "server", Operation::ChangeServer)
    },
    Endpoint {
        summary: "Order a new certificate for a name",
        doc: "For listeners with `certificates = \"auto\"`. The gateway responds when the certificate is issued.",
        body: Some(Body { media: TEXT, any_media: true, limit: MAX_COMMAND, schema: text, doc: "The name." }),
        ..Endpoint::command("/v1/renew", "renew", Operation::Renew)
    },
    Endpoint {
        summary: "Record requests for a limited time",
        doc: "The gateway responds when the recording ends.",
        body: Some(Body {
            media: JSON,
            any_media: true,
            limit: MAX_COMMAND,
            schema: request::<RecordingRequest>,
            doc: "The limits of the recording.",
        }),
        answer: Answer {
            status: 200,
            media: JSON,
            schema: response::<RecordedExchanges>,
            doc: "The recorded requests.",
            headers: &[],
        },
        ..Endpoint::command("/v1/record", "record", Operation::Record)
    },
    Endpoint {
        summary: "Disconnect clients of the tunnel, or send them a message",
        body: Some(Body { media: JSON, any_media: true, limit: MAX_COMMAND, schema: object, doc: "The command." }),
        ..Endpoint::command("/v1/tunnel", "tunnel", Operation::Tunnel)
    },
];

/// The media type of a refusal.
pub(super) fn refusal_media(is_problem: bool) -> &'static str {
    if is_problem { problem::MEDIA_TYPE } else { TEXT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn endpoints_differ() {
        let places: BTreeSet<_> = ENDPOINTS.iter().map(|e| (e.path, e.method)).collect();
        let ids: BTreeSet<_> = ENDPOINTS.iter().map(|e| e.id).collect();
        assert_eq!((places.len(), ids.len()), (ENDPOINTS.len(), ENDPOINTS.len()));
        for endpoint in &ENDPOINTS {
            assert!(!endpoint.summary.is_empty() && !endpoint.summary.ends_with('.'), "{}", endpoint.path);
            assert!(!endpoint.is_change() || endpoint.access == Access::Operators, "{}", endpoint.path);
            assert!(endpoint.path.starts_with("/v1/"), "{}", endpoint.path);
        }
    }

    #[test]
    fn requests_find_their_endpoint() {
        let found = |method, path| match find(method, path) {
            Lookup::Found(endpoint, names) => format!("{} {names:?}", endpoint.id),
            Lookup::OtherMethods(methods) => methods,
            Lookup::Unknown => "unknown".to_owned(),
        };
        assert_eq!(found("HEAD", "/v1/status"), "status []");
        assert_eq!(found("POST", "/v1/status"), "GET, HEAD");
        assert_eq!(found("GET", "/v1/reload"), "POST");
        for path in ["/v1", "/v1/", "/v1/status/", "/v1//status", "/v1/Status", "/v2/status", "/v1/../status"] {
            assert_eq!(found("GET", path), "unknown", "{path}");
        }
    }

    #[test]
    fn names_in_the_path_are_parameters() {
        for endpoint in &ENDPOINTS {
            let in_path = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
            let known = endpoint.parameters.iter().filter(|p| p.place == Place::Path).map(|p| p.name);
            assert!(in_path.eq(known), "{}", endpoint.path);
        }
        let Lookup::Found(endpoint, names) = find("DELETE", "/v1/upstreams/a%20b/servers/unix:%2Frun%2Fa") else {
            panic!("it is there")
        };
        assert_eq!((endpoint.id, names), ("removeServer", vec!["a b".to_owned(), "unix:/run/a".to_owned()]));
        assert!(endpoint.mistake(&["a".to_owned(), "x".repeat(513)]).is_some());
        assert!(matches!(find("DELETE", "/v1/upstreams//servers/x"), Lookup::Unknown));
    }

    #[test]
    fn names_in_paths_are_decoded() {
        assert_eq!(decoded("a%2Fb%3a1").as_deref(), Some("a/b:1"));
        assert_eq!(decoded("%C3%BC").as_deref(), Some("ü"));
        for bad in ["%", "%2", "%zz", "%ff", "%+1"] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }

    #[test]
    fn parameters_are_checked() {
        let Lookup::Found(history, _) = find("GET", "/v1/history") else { panic!("it is there") };
        let read = |query| history.parameters(query);
        let parameters = read("range=1h&since=7").unwrap();
        assert_eq!((parameters.text("range"), parameters.number("since")), (Some("1h"), Some(7)));
        for bad in ["range=2h", "range", "since=-1", "since=x", "since=1&since=2", "range=%zz", "other=1"] {
            assert_eq!(read(bad).err().map(|problem| problem.status), Some(400), "{bad}");
        }
        let Lookup::Found(reload, _) = find("POST", "/v1/reload") else { panic!("it is there") };
        assert!(reload.parameters("x=1").is_err() && reload.parameters("").is_ok());
    }
}
