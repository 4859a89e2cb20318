//! The API of the admin listeners: everything below `/v1/`.
//!
//! ```text
//! request ─▶ table: endpoint, access, parameters ─▶ body, within its limit ─▶ `run` ─▶ audit ─▶ response
//!               │
//!               └─▶ openapi: the OpenAPI document, docs/reference/api.md
//! ```
//!
//! Reads are answered here, from what control has written down. Changes go to the assembly as commands, which executes one after
//! the other. Each change is a line in the log: who asked for it, what it was, and what came of it.

mod openapi;
pub mod problem;
mod schema;
mod table;
mod types;

pub use openapi::generated;
pub use types::{
    Applied, Certificates, Configuration, NewServer, SentCertificate, ServerPatch, Servers, ServersOfOne, Validated,
};

use super::{Caller, Client, Site, typed};
use crate::config;
use crate::health::{KeptChange, MAX_WEIGHT};
use crate::log;
use crate::metrics::prometheus::Writer;
use crate::metrics::status::ServerChange;
use crate::run::changes::{Apply, Change, Changed};
use crate::run::commands::Command;
use crate::run::recording::RecordingRequest;
use crate::vpn::Steering;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderValue, IF_MATCH, ORIGIN};
use hyper::{Method, Request, Response, StatusCode};
use problem::{Mistake, Problem};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use table::{Access, Body, Endpoint, Lookup, MAX_EXCHANGES, Operation, Parameters, refusal_media};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// How long the body of a request may take, from the end of the request's head.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bodies of which more than [`SMALL`] bytes have come that are read at a time. Further ones wait.
const LARGE_BODIES: usize = 2;
/// So much of a body is read without waiting for others.
const SMALL: usize = 64 * 1024;
/// The shortest time between two changes. The log writes 20 lines of one kind in a second, and no change may be without its line.
const PACE: Duration = Duration::from_millis(60);
/// Characters of what a client has sent that the log shows.
const MAX_SHOWN: usize = 200;
/// Characters of a request's path that the log shows.
const MAX_PATH: usize = 1024;

/// What limits clients together.
#[derive(Debug)]
pub(super) struct Limits {
    bodies: Semaphore,
    next_change: Mutex<Instant>,
    /// Changes that were made, and changes that were refused.
    done: AtomicU64,
    refused: AtomicU64,
    /// Changes whose clients left before there was a result.
    abandoned: AtomicU64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bodies: Semaphore::new(LARGE_BODIES),
            next_change: Mutex::new(Instant::now()),
            done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        }
    }
}

impl Limits {
    /// Notes what has become of a change.
    fn count(&self, outcome: &Outcome) {
        let is_done = match outcome {
            Ok(_) => true,
            Err(Refusal::Problem(problem)) => problem.is_in_effect,
            Err(Refusal::Text(..)) => false,
        };
        if is_done { &self.done } else { &self.refused }.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the counters.
    pub fn render(&self, page: &mut Writer) {
        page.counter("sealane_admin_changes_total", "Changes that were requested over the admin listeners, by result.")
            .sample(&[("result", "done")], self.done.load(Ordering::Relaxed))
            .sample(&[("result", "refused")], self.refused.load(Ordering::Relaxed))
            .sample(&[("result", "abandoned")], self.abandoned.load(Ordering::Relaxed));
    }

    /// Waits until the next change may begin.
    async fn pace(&self) {
        let mut next = self.next_change.lock().await;
        tokio::time::sleep_until(*next).await;
        *next = Instant::now() + PACE;
    }
}

/// What an endpoint has to say.
#[derive(Debug, Default)]
struct Done {
    body: String,
    etag: Option<String>,
}

impl Done {
    fn text(body: impl Into<String>) -> Self {
        Self { body: body.into(), etag: None }
    }

    fn json(value: &impl serde::Serialize) -> Outcome {
        match serde_json::to_string_pretty(value) {
            Ok(json) => Ok(Self::text(json + "\n")),
            Err(e) => Err(Refusal::Problem(Problem::new(500, e.to_string()))),
        }
    }
}

/// Why an endpoint did nothing.
#[derive(Debug)]
enum Refusal {
    Problem(Problem),
    /// Of a command that responds with text.
    Text(u16, String),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

type Outcome = Result<Done, Refusal>;

/// A request that was found in order.
struct Call<'s> {
    site: &'s Site,
    /// What `{…}` in the path stands for.
    names: Vec<String>,
    parameters: Parameters,
    /// The values of `If-Match`, if there is one.
    if_match: Option<String>,
    body: Bytes,
    audit: Audit<'s>,
}

/// The line in the log about a requested change, and its place in the counters. A change has both, whatever becomes of its client.
struct Audit<'s> {
    site: &'s Site,
    caller: &'s Caller,
    /// What the log says of the request.
    what: String,
    /// Whether there is something to be said yet.
    is_due: bool,
}

impl Audit<'_> {
    fn of<'s, B>(request: &Request<B>, site: &'s Site, caller: &'s Caller) -> Audit<'s> {
        let path: String = request.uri().path().escape_debug().take(MAX_PATH).collect();
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        Audit { site, caller, what: format!("{} {path}", request.method()), is_due: !is_read }
    }

    /// Notes what has come of it.
    fn note(mut self, outcome: &Outcome) {
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        let Self { caller, what, .. } = &self;
        match outcome {
            Ok(_) => log::info!("admin: {caller}: {what}: done"),
            Err(Refusal::Problem(problem)) if problem.is_in_effect => {
                log::warn!("admin: {caller}: {what}: done, but not kept ({}): {}", problem.status, problem.detail)
            }
            Err(Refusal::Problem(problem)) => {
                log::warn!("admin: {caller}: {what}: refused ({}): {}", problem.status, problem.detail)
            }
            Err(Refusal::Text(status, line)) => {
                let first = line.lines().next().unwrap_or_default();
                log::warn!("admin: {caller}: {what}: refused ({status}): {first}")
            }
        }
        self.site.limits.count(outcome);
    }

    /// Notes that it was refused before it had its turn. These lines may come faster than the log writes them, which then counts them:
    /// over `listen` without TLS everyone can cause them, and they must not keep an operator's line from the log.
    fn refuse(mut self, status: u16, why: &str) {
        if std::mem::take(&mut self.is_due) {
            let Self { caller, what, .. } = &self;
            // The log limits each of these two by itself.
            match self.site.takers {
                Some(_) => log::warn!("admin: {caller}: {what}: refused ({status}): {why}"),
                None => log::warn!("admin: {caller}: {what}: refused ({status}): {why}"),
            }
            self.site.limits.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        if self.is_due {
            let Self { caller, what, .. } = self;
            log::warn!("admin: {caller}: {what}: the connection ended before there was a result");
            self.site.limits.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Notes that a request was refused, if it asked for a change.
pub(super) fn note_refused<B>(request: &Request<B>, site: &Site, caller: &Caller, status: u16, why: &str) {
    Audit::of(request, site, caller).refuse(status, why);
}

/// Answers a request for a path below `/v1/`.
pub(super) async fn answer(
    request: Request<Incoming>,
    site: &Site,
    caller: &Caller,
    client: &Client,
) -> Response<Full<Bytes>> {
    let arrived = Instant::now();
    let audit = Audit::of(&request, site, caller);
    let (endpoint, names, parameters) = match admit(&request, site, caller) {
        Ok(admitted) => admitted,
        Err(refused) => {
            let (problem, methods) = *refused;
            client.has_asked();
            audit.refuse(problem.status, &problem.detail);
            let mut response = refuse(&problem);
            if let Some(methods) = methods.and_then(|methods| HeaderValue::from_str(&methods).ok()) {
                response.headers_mut().insert(ALLOW, methods);
            }
            return response;
        }
    };
    let tags = request.headers().get_all(IF_MATCH).iter().map(|value| value.to_str().unwrap_or_default());
    let if_match = tags.map(str::to_owned).reduce(|all, value| all + "," + &value);
    let (body, place) = match &endpoint.body {
        Some(body) => match read_body(request, body, site, arrived + BODY_TIMEOUT).await {
            Ok(read) => read,
            Err(problem) => {
                client.has_asked();
                audit.refuse(problem.status, &problem.detail);
                return respond(endpoint, Err(problem.into()));
            }
        },
        None => (Bytes::new(), None),
    };
    client.has_asked();
    if endpoint.is_change() {
        site.limits.pace().await;
    }
    // Until here, as few large bodies are in memory as are read at a time.
    drop(place);
    let mut call = Call { site, names, parameters, if_match, body, audit };
    let outcome = run(endpoint.operation, &mut call).await;
    call.audit.note(&outcome);
    respond(endpoint, outcome)
}

type Admitted = (&'static Endpoint, Vec<String>, Parameters);

/// Finds the endpoint for a request, if the client may use it and its path and parameters are right. Else: why not, and the methods that
/// the path has if it is about those.
fn admit<B>(request: &Request<B>, site: &Site, caller: &Caller) -> Result<Admitted, Box<(Problem, Option<String>)>> {
    let refused = |status, why: &str| Err(Box::new((Problem::new(status, why), None)));
    let (method, path) = (request.method().as_str(), request.uri().path());
    let (endpoint, names) = match table::find(method, path) {
        Lookup::Found(endpoint, names) => (endpoint, names),
        Lookup::Unknown => return refused(404, "there is no such path: GET /v1/openapi.json lists the paths"),
        Lookup::OtherMethods(methods) => {
            let problem = Problem::new(405, format!("this path has only the methods {methods}"));
            return Err(Box::new((problem, Some(methods))));
        }
    };
    if endpoint.access == Access::Operators && site.takers.is_none() {
        let detail = "only operators may do this: use the admin socket (\"socket\" in [admin]), or set \"certificate\" and \
                      \"client_ca\" in [admin] and connect with a client certificate";
        return refused(403, detail);
    }
    // A browser may show an operator's certificate for a web page that the operator did not mean; it says so with changes.
    if endpoint.is_change() && caller.is_over_tcp() && request.headers().contains_key(ORIGIN) {
        return refused(403, "the request has an Origin header: the gateway accepts no changes from web pages");
    }
    if let Some(problem) = endpoint.mistake(&names) {
        return Err(Box::new((problem, None)));
    }
    let parameters = endpoint.parameters(request.uri().query().unwrap_or_default());
    parameters.map(|parameters| (endpoint, names, parameters)).map_err(|problem| Box::new((problem, None)))
}

/// Reads the body of a request. What has come of a large one is in memory: the second result is its place among the few of them.
async fn read_body<'s>(
    request: Request<Incoming>,
    expected: &Body,
    site: &'s Site,
    deadline: Instant,
) -> Result<(Bytes, Option<SemaphorePermit<'s>>), Problem> {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    if let Some(other) = essence.filter(|essence| !expected.any_media && essence != expected.media) {
        return Err(Problem::new(415, format!("the body must be {}, not {other}", expected.media)));
    }
    let too_large = || Problem::new(413, format!("the body has more than {} bytes", expected.limit));
    let body = request.into_body();
    if body.size_hint().lower() > expected.limit as u64 {
        return Err(too_large());
    }
    let late = |_| Problem::new(408, format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs()));
    let (mut body, mut read, mut place) = (Limited::new(body, expected.limit), Vec::new(), None);
    while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(late)? {
        let frame = frame.map_err(|e| match e.is::<LengthLimitError>() {
            true => too_large(),
            false => Problem::new(400, format!("the body cannot be read: {e}")),
        })?;
        if let Some(data) = frame.data_ref() {
            read.extend_from_slice(data);
        }
        if read.len() > SMALL && place.is_none() {
            let busy = |_| Problem::new(503, "the gateway is reading other large bodies: try again");
            // The semaphore is never closed.
            place = timeout_at(deadline, site.limits.bodies.acquire()).await.map_err(busy)?.ok();
        }
    }
    Ok((read.into(), place))
}

/// Runs the code of an endpoint.
async fn run(operation: Operation, call: &mut Call<'_>) -> Outcome {
    let registry = &call.site.status_registry;
    match operation {
        Operation::OpenApi => Ok(Done::text(openapi::document())),
        Operation::Status => {
            let status = registry.status();
            // Clients of the tunnel are persons, and settings may say what no stranger should know.
            Done::json(&if call.site.takers.is_some() { status } else { status.reduced() })
        }
        Operation::Servers => Done::json(&Servers { upstreams: registry.upstreams() }),
        Operation::Certificates => Done::json(&Certificates { certificates: registry.certificates() }),
        Operation::Configuration => {
            let configuration = registry.configuration();
            let done = Done::json(&configuration)?;
            Ok(Done { etag: Some(configuration.etag), ..done })
        }
        Operation::History => {
            let (range, since) = (call.parameters.text("range").unwrap_or("5m"), call.parameters.number("since"));
            match call.site.metrics.sampler().history.json(range, since.unwrap_or(0)) {
                Some(json) => Ok(Done::text(json.to_string() + "\n")),
                None => Err(Problem::new(400, "the ranges are 5m, 1h and 24h").into()),
            }
        }
        Operation::Log => Ok(Done::text(log::recent())),
        Operation::Exchanges => {
            let limit = call.parameters.number("limit").unwrap_or(MAX_EXCHANGES).min(MAX_EXCHANGES) as usize;
            let older_than = Duration::from_millis(call.parameters.number("older_than_ms").unwrap_or(0));
            match give(call, Command::Inspect { limit, older_than }).await {
                Err(Refusal::Text(status, line)) => Err(Problem::new(status, line.trim_end()).into()),
                answered => answered,
            }
        }
        Operation::Reload => give(call, Command::Reload).await,
        Operation::Upgrade => give(call, Command::Upgrade).await,
        Operation::Drain => give(call, Command::Drain).await,
        Operation::ReopenLogs => give(call, Command::Reopen).await,
        Operation::LogLevel => change_log_level(call),
        Operation::ChangeServer => {
            let change: ServerChange = command_of(call, "a change of a server")?;
            call.says(&format!("{} of {}", change.server, change.upstream));
            if change.keep {
                call.says("keep=file");
                let (name, upstream) = (change.server.clone(), change.upstream.clone());
                let made = match kept_change(change) {
                    Ok(change) => make(call, change).await,
                    Err(problem) => Err(problem.into()),
                };
                return match made {
                    Ok(_) => {
                        Ok(Done::text(format!("{name} of {upstream} is changed, and the change is in the file\n")))
                    }
                    Err(Refusal::Problem(problem)) => Err(Refusal::Text(409, problem.describe() + "\n")),
                    Err(refusal) => Err(refusal),
                };
            }
            match registry.change_server(&change) {
                Ok(line) => Ok(Done::text(line + "\n")),
                Err(line) => Err(Refusal::Text(409, line + "\n")),
            }
        }
        Operation::AddServer => add_server(call).await,
        Operation::PatchServer => patch_server(call).await,
        Operation::RemoveServer => remove_server(call).await,
        Operation::Validate => {
            let Changed { warnings, .. } = make(call, Change::Validate(call.body.clone())).await?;
            Done::json(&Validated { warnings })
        }
        Operation::Apply => apply(call).await,
        Operation::SetCertificate => set_certificate(call).await,
        Operation::RemoveCertificate => {
            let (name, keep) = (call.names.first().cloned().unwrap_or_default(), keeps(call));
            make(call, Change::RemoveCertificate { name, keep }).await?;
            Ok(Done::default())
        }
        Operation::Renew => {
            let name = String::from_utf8_lossy(&call.body).trim().to_ascii_lowercase();
            call.says(&name);
            give(call, Command::Renew(name)).await
        }
        Operation::Record => {
            let recording: RecordingRequest = command_of(call, "a recording")?;
            give(call, Command::Record(Box::new(recording))).await
        }
        Operation::Tunnel => {
            let steering: Steering = command_of(call, "a command for the tunnel")?;
            call.says(&format!("{}", steering.whom));
            give(call, Command::Steer(Box::new(steering))).await
        }
    }
}

impl Call<'_> {
    /// Adds to what the log says. What clients have sent is escaped, and cut.
    fn says(&mut self, text: &str) {
        self.audit.what.push(' ');
        self.audit.what.extend(text.escape_debug().take(MAX_SHOWN));
    }
}

/// Reads the body of a command.
fn command_of<T: DeserializeOwned>(call: &Call<'_>, what: &str) -> Result<T, Refusal> {
    object_of(&call.body).map_err(|e| Refusal::Text(400, format!("the body is not the JSON of {what}: {e}\n")))
}

/// Reads a JSON object. A list with the values in the order of the fields, which serde would take, is none.
fn object_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("it must be an object, as in {\"name\": \"value\"}".to_owned());
    }
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

/// Gives a command, and waits until it was executed.
async fn give(call: &Call<'_>, command: Command) -> Outcome {
    let Some(takers) = &call.site.takers else { return Err(not_here()) };
    match takers.commands.give(command).await {
        Ok(line) => Ok(Done::text(line + "\n")),
        Err(line) => Err(Refusal::Text(409, line + "\n")),
    }
}

/// Asks for a change, and waits until it was made.
async fn make(call: &Call<'_>, change: Change) -> Result<Changed, Refusal> {
    let Some(takers) = &call.site.takers else { return Err(not_here()) };
    takers.changes.make(change).await.map_err(Refusal::Problem)
}

/// Endpoints for operators are not reached by others.
fn not_here() -> Refusal {
    Refusal::Problem(Problem::new(403, "only operators may do this"))
}

/// Reads the JSON of a body.
fn json_of<T: DeserializeOwned>(call: &Call<'_>) -> Result<T, Refusal> {
    object_of(&call.body).map_err(|e| Problem::new(400, format!("the body is not the JSON of this change: {e}")).into())
}

/// Whether the change is to be kept. The log says so.
fn keeps(call: &mut Call<'_>) -> bool {
    let keep = call.parameters.text("keep") == Some("file");
    if keep {
        call.says("keep=file");
    }
    keep
}

/// A change of a server that is written into the file.
fn kept_change(change: ServerChange) -> Result<Change, Problem> {
    let ServerChange { upstream, server, drain, weight, default_weight, .. } = change;
    if default_weight {
        let detail = "\"default_weight\" restores the weight that is in the file, so there is nothing to write: \
                      leave out keep=file (option --keep)";
        return Err(Problem::new(422, detail));
    }
    if drain.is_none() && weight.is_none() {
        return Err(Problem::new(422, "nothing to change: write drain or weight"));
    }
    Ok(Change::KeepServer { upstream, change: KeptChange::Set { server, weight, drain } })
}

async fn add_server(call: &mut Call<'_>) -> Outcome {
    let NewServer { server, weight, backup } = json_of(call)?;
    call.says(&server);
    let upstream = call.names.first().cloned().unwrap_or_default();
    let keep = keeps(call);
    let change = match keep {
        true => Change::KeepServer { upstream: upstream.clone(), change: KeptChange::Add { server, weight, backup } },
        false => Change::AddServer { upstream: upstream.clone(), server, weight, backup },
    };
    let Changed { name, .. } = make(call, change).await?;
    server_of(call, &upstream, &name, !keep)
}

async fn remove_server(call: &mut Call<'_>) -> Outcome {
    let [upstream, server] = &call.names[..] else { return Err(Problem::new(404, "there is no such server").into()) };
    let (upstream, server) = (upstream.clone(), server.clone());
    let change = match keeps(call) {
        true => Change::KeepServer { upstream, change: KeptChange::Remove { server } },
        false => Change::RemoveServer { upstream, server },
    };
    make(call, change).await?;
    Ok(Done::default())
}

/// Takes a certificate: the chain and the key.
async fn set_certificate(call: &mut Call<'_>) -> Outcome {
    let (name, pem) = (call.names.first().cloned().unwrap_or_default(), std::mem::take(&mut call.body));
    let (called, text) = (name.clone(), pem.clone());
    let read = tokio::task::spawn_blocking(move || config::read_sent(&called, &text)).await;
    let read = read.map_err(|e| Problem::new(500, e.to_string()))?;
    let (files, loaded, warnings) = read.map_err(|e| Problem::of_errors("the certificate is refused", e))?;
    call.says(&loaded.names.join(","));
    let file = files.cert.display().to_string();
    let keep = keeps(call).then_some(pem);
    let temporary = keep.is_none();
    make(call, Change::SetCertificate { name, files, loaded, keep }).await?;
    let certificates = call.site.status_registry.certificates().into_iter().filter(|c| c.file == file).collect();
    let warnings = warnings.into_iter().map(Mistake::from).collect();
    Done::json(&SentCertificate { certificates, temporary, warnings })
}

/// Applies a whole configuration.
async fn apply(call: &mut Call<'_>) -> Outcome {
    let Some(expected) = call.if_match.clone() else {
        return Err(Problem::new(
            428,
            "the request has no If-Match: send the ETag of GET /v1/config in it, or * to replace any configuration",
        )
        .into());
    };
    let keep = keeps(call);
    let change = Change::Apply(Apply { text: call.body.clone(), expected, keep });
    let applied = make(call, change).await?.applied.unwrap_or_default();
    let done = Done::json(&applied)?;
    Ok(Done { etag: Some(applied.etag), ..done })
}

async fn patch_server(call: &mut Call<'_>) -> Outcome {
    let ServerPatch { drain, weight, default_weight } = json_of(call)?;
    let [upstream, server] = &call.names[..] else { return Err(Problem::new(404, "there is no such server").into()) };
    let (upstream, server) = (upstream.clone(), server.clone());
    if weight.is_some() && default_weight {
        return Err(Problem::new(422, "\"weight\" and \"default_weight\" exclude each other").into());
    }
    if weight.is_some_and(|weight| weight > MAX_WEIGHT) {
        return Err(Problem::new(422, format!("the weight must be from 0 to {MAX_WEIGHT}")).into());
    }
    if drain.is_none() && weight.is_none() && !default_weight {
        return Err(Problem::new(422, "nothing to change: write drain, weight or default_weight").into());
    }
    for (what, value) in
        [("drain", drain.map(u32::from)), ("weight", weight), ("default_weight", default_weight.then_some(1))]
    {
        if let Some(value) = value {
            call.says(&format!("{what}={value}"));
        }
    }
    let keep = keeps(call);
    let change =
        ServerChange { upstream: upstream.clone(), server: server.clone(), drain, weight, default_weight, keep };
    match keep {
        true => drop(make(call, kept_change(change)?).await?),
        false => drop(call.site.status_registry.change_server(&change).map_err(|line| Problem::new(404, line))?),
    }
    server_of(call, &upstream, &server, !keep)
}

/// How a server stands after a change.
fn server_of(call: &Call<'_>, upstream: &str, server: &str, temporary: bool) -> Outcome {
    let groups = call.site.status_registry.upstreams();
    let of_group = groups.into_iter().filter(|group| group.name == upstream).flat_map(|group| group.servers);
    // A name with several addresses counts as several servers.
    let is_it = |name: &str| name.strip_prefix(server).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("));
    let servers = of_group.filter(|known| is_it(&known.name) || known.address == server).collect();
    Done::json(&ServersOfOne { servers, temporary })
}

fn change_log_level(call: &mut Call<'_>) -> Outcome {
    let level = str::from_utf8(&call.body).unwrap_or_default().trim().to_owned();
    call.says(&level);
    match level.parse::<log::Level>() {
        Ok(level) => {
            let before = log::level();
            // Logged under the more talkative of the two.
            log::set_level(level.max(before));
            log::info!("the log level is now {level} (it was {before})");
            log::set_level(level);
            Ok(Done::text(format!("{level}\n")))
        }
        Err(e) => Err(Refusal::Text(400, format!("the body is not a log level: {e}\n"))),
    }
}

fn respond(endpoint: &Endpoint, outcome: Outcome) -> Response<Full<Bytes>> {
    match outcome {
        Ok(Done { body, etag }) => {
            let status = StatusCode::from_u16(endpoint.answer.status).unwrap_or_default();
            let mut response = typed(status, with_charset(endpoint.answer.media), body);
            if endpoint.answer.media.is_empty() {
                response.headers_mut().remove(CONTENT_TYPE);
            }
            if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
                response.headers_mut().insert(ETAG, etag);
            }
            response
        }
        Err(Refusal::Problem(problem)) => {
            debug_assert!(
                problem.status >= 500 || endpoint.refusals().iter().any(|(status, _)| *status == problem.status),
                "{} {} does not say that it may be refused with {}",
                endpoint.method,
                endpoint.path,
                problem.status
            );
            refuse(&problem)
        }
        Err(Refusal::Text(status, line)) => {
            debug_assert!(endpoint.refusals().contains(&(status, false)), "{}: {status}", endpoint.path);
            typed(StatusCode::from_u16(status).unwrap_or_default(), with_charset(refusal_media(false)), line)
        }
    }
}

fn with_charset(media: &'static str) -> &'static str {
    if media == table::TEXT { "text/plain; charset=utf-8" } else { media }
}

/// A problem document.
pub(super) fn refuse(problem: &Problem) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // A problem's printing cannot fail: it is text and numbers.
    typed(status, problem::MEDIA_TYPE, serde_json::to_string_pretty(problem).unwrap_or_default() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_no_faster_than_the_log() {
        let (limits, began) = (Limits::default(), Instant::now());
        for _ in 0..3 {
            limits.pace().await;
        }
        assert!(began.elapsed() >= PACE * 2);
        assert!(Duration::from_secs(1).as_millis() / PACE.as_millis() < 20);
    }

    #[test]
    fn the_body_of_a_change_is_an_object() {
        let read = |body: &[u8]| object_of::<NewServer>(body);
        assert_eq!(read(b" {\"server\": \"http://a\"}").unwrap().server, "http://a");
        for body in [&b"[\"http://127.0.0.1:9\", 3, true]"[..], b"[]", b"null", b"", b"\"x\""] {
            let why = read(body).unwrap_err();
            assert!(why.contains("must be an object") && !why.contains("NewServer"), "{why}");
        }
    }

    #[test]
    fn a_response_is_what_its_endpoint_says() {
        let Lookup::Found(reload, _) = table::find("POST", "/v1/reload") else { panic!("it is there") };
        let done = respond(reload, Ok(Done::text("reloaded\n")));
        assert_eq!(
            (done.status(), &done.headers()[CONTENT_TYPE]),
            (StatusCode::OK, &HeaderValue::from_static("text/plain; charset=utf-8"))
        );
        let refused = respond(reload, Err(Refusal::Text(409, "no\n".to_owned())));
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        let refused = refuse(&Problem::new(403, "no"));
        assert_eq!(refused.headers()[CONTENT_TYPE], problem::MEDIA_TYPE);
    }
}
