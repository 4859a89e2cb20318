//! The admin API of the gateway, over its Unix socket.

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, ETAG, HOST, IF_MATCH};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// How long a request may take. The gateway resolves names for at most 5 s.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest response.
const LARGEST: usize = 64 << 20;
/// The largest configuration that the gateway accepts.
pub const LARGEST_CONFIGURATION: usize = 8 << 20;

/// The gateway of this Pod.
pub struct Gateway {
    socket: PathBuf,
}

/// What became of a configuration.
#[derive(Debug)]
pub enum Applied {
    /// It is in use, under this tag.
    Done(String),
    /// Another configuration is in use than the tag says, or the file has changed.
    Changed,
    /// It has mistakes.
    Refused(Vec<Mistake>),
}

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Counted from 1; 0 if there is none.
    pub line: usize,
    pub message: String,
}

struct Answer {
    status: StatusCode,
    etag: Option<String>,
    body: Bytes,
}

impl Gateway {
    /// The gateway with this admin socket.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let asked = async {
            let stream = UnixStream::connect(&self.socket).await?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            let response = sender.send_request(request).await?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, LARGEST).collect().await.map_err(|e| anyhow::anyhow!("{e}"))?.to_bytes();
            connection.abort();
            let etag = parts.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
            anyhow::Ok(Answer { status: parts.status, etag, body })
        };
        let answer = tokio::time::timeout(TIMEOUT, asked).await;
        answer.context("the gateway does not answer")?.with_context(|| format!("{}", self.socket.display()))
    }

    fn request(method: Method, path: &str) -> hyper::http::request::Builder {
        Request::builder().method(method).uri(path).header(HOST, "localhost")
    }

    /// The tag of the configuration in use.
    pub async fn tag(&self) -> anyhow::Result<String> {
        let request = Self::request(Method::GET, "/v1/config").body(Full::default())?;
        let answer = self.ask(request).await?;
        match (answer.status, answer.etag) {
            (StatusCode::OK, Some(tag)) => Ok(tag),
            (status, _) => bail!("GET /v1/config: {status} {}", detail(&answer.body)),
        }
    }

    /// Applies a configuration, and has the gateway write it to its file. `tag`: the configuration that it replaces.
    pub async fn apply(&self, toml: &str, tag: &str) -> anyhow::Result<Applied> {
        let request = Self::request(Method::PUT, "/v1/config?keep=file")
            .header(CONTENT_TYPE, "application/toml")
            .header(IF_MATCH, tag)
            .body(Full::new(Bytes::copy_from_slice(toml.as_bytes())))?;
        let answer = self.ask(request).await?;
        match (answer.status, answer.etag) {
            (StatusCode::OK, Some(tag)) => Ok(Applied::Done(tag)),
            (StatusCode::PRECONDITION_FAILED, _) => Ok(Applied::Changed),
            (StatusCode::UNPROCESSABLE_ENTITY, _) => Ok(Applied::Refused(mistakes(&answer.body))),
            (status, _) => bail!("PUT /v1/config: {status} {}", detail(&answer.body)),
        }
    }

    /// Has the gateway read its file again.
    pub async fn reload(&self) -> anyhow::Result<()> {
        let answer = self.ask(Self::request(Method::POST, "/v1/reload").body(Full::default())?).await?;
        match answer.status {
            StatusCode::OK => Ok(()),
            status => bail!("POST /v1/reload: {status} {}", detail(&answer.body)),
        }
    }
}

/// What a problem document says, or the beginning of the text.
fn detail(body: &[u8]) -> String {
    let problem: Option<Value> = serde_json::from_slice(body).ok();
    let detail = problem.as_ref().and_then(|p| p.get("detail")).and_then(Value::as_str).map(str::to_owned);
    detail.unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect())
}

/// The errors of a problem document; warnings are in the same list.
fn mistakes(body: &[u8]) -> Vec<Mistake> {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let list = problem["errors"].as_array().map_or(&[][..], Vec::as_slice);
    let mistake = |m: &Value| {
        let line = m["line"].as_u64().filter(|_| m["file"] == "request");
        Mistake {
            line: line.and_then(|line| usize::try_from(line).ok()).unwrap_or_default(),
            message: m["message"].as_str().unwrap_or_default().to_owned(),
        }
    };
    let errors: Vec<Mistake> = list.iter().filter(|m| m["severity"] != "warning").map(mistake).collect();
    match errors[..] {
        [] => vec![Mistake { line: 0, message: detail(body) }],
        _ => errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_have_lines() {
        let body = br#"{"status":422,"detail":"no","errors":[
            {"severity":"error","file":"request","line":3,"column":1,"message":"bad"},
            {"severity":"error","file":"lists/x.txt","line":4,"column":1,"message":"elsewhere"},
            {"severity":"warning","file":"request","line":5,"column":1,"message":"unused"}]}"#;
        let expected = [(3, "bad"), (0, "elsewhere")].map(|(line, m)| Mistake { line, message: m.to_owned() });
        assert_eq!(mistakes(body), expected);
        assert_eq!(mistakes(br#"{"detail":"no"}"#), [Mistake { line: 0, message: "no".to_owned() }]);
        assert_eq!(mistakes(b"x"), [Mistake { line: 0, message: "x".to_owned() }]);
    }
}
