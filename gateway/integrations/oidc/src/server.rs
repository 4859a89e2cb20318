//! The server of the login pages: HTTP/1.1 on a Unix socket. Connections, heads, bodies and times are bounded.

use crate::OidcLogin;
use crate::form::Form;
use crate::page::{self, COOKIE, Page};
use crate::provider::{Asked, Failure};
use crate::table::{Digest, Sent, Why, is_secret, secret};
use crate::user::User;
use http::header::{ALLOW, CONTENT_TYPE, COOKIE as COOKIES};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use sealane_log as log;
use sealane_vpn::login::{LoginOutcome, LoginRefusal};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections that are served at a time. Further ones wait in the socket's queue.
const MAX_CONNECTIONS: usize = 64;
/// Bytes of a request's head: a code may be long.
const MAX_HEAD: usize = 16 << 10;
/// Bytes of a form.
const MAX_BODY: usize = 4 << 10;
/// From accept to the end of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// From the end of a request's head to the end of its form.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest life of a connection, which has one request: the provider is asked up to three times.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(40);
/// After an accept that failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

const UNKNOWN: &str = "This login has ended or has taken too long. Connect again with the VPN client.";
const OTHER_BROWSER: &str =
    "This login was opened in another browser, or this browser keeps no cookies. Connect again with the VPN client.";
const NOT_CONFIRMED: &str = "This form is out of date. Go back, load the page again, and continue there.";
const AWAY: &str = "The identity provider cannot be reached. Try again in a moment.";

/// Serves until it is dropped, and its connections with it.
pub(crate) async fn serve(login: Arc<OidcLogin>, listener: UnixListener) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // It is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                log::warn!("tunnel: cannot accept a request for a login page: {e}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let login = login.clone();
        connections.spawn(async move {
            // What a client does wrong is its own business.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection(login, stream)).await;
            drop(slot);
        });
    }
}

async fn connection(login: Arc<OidcLogin>, stream: UnixStream) {
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let login = login.clone();
        async move { Ok::<_, Infallible>(login.answer(request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(e) = served {
        log::debug!("tunnel: a request for a login page: {e}");
    }
}

/// The browser's secret, if it has one.
fn browser(headers: &HeaderMap) -> Option<&str> {
    let mut found = headers
        .get_all(COOKIES)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    let first = found.next().filter(|secret| is_secret(secret))?;
    found.next().is_none().then_some(first)
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

impl OidcLogin {
    async fn answer(&self, request: Request<Incoming>) -> Page {
        if request.uri().path() != self.provider.settings().redirect_path {
            return self.refuse(StatusCode::NOT_FOUND, "There is no such page.");
        }
        let query = request.uri().query().unwrap_or("").to_owned();
        let secret = browser(request.headers()).map(str::to_owned);
        match request.method().clone() {
            Method::GET => match Form::parse(&query) {
                Some(form) => self.shown(&form, secret.as_deref()).await,
                None => self.refuse(StatusCode::BAD_REQUEST, UNKNOWN),
            },
            Method::POST if is_form(request.headers()) => {
                let Some(browser) = secret else { return self.refuse_because(Why::OtherBrowser) };
                // Strangers, who may send slowly, do not take the connections of users.
                if !self.table().has_browser(Digest::of(&browser), Instant::now()) {
                    return self.refuse_because(Why::Unknown);
                }
                let body = Limited::new(request.into_body(), MAX_BODY).collect();
                let body = tokio::time::timeout(BODY_TIMEOUT, body).await.ok().and_then(Result::ok);
                let body = body.and_then(|body| String::from_utf8(body.to_bytes().to_vec()).ok());
                match body.as_deref().and_then(Form::parse) {
                    Some(form) => self.agreed(&form, &browser).await,
                    None => self.refuse(StatusCode::BAD_REQUEST, NOT_CONFIRMED),
                }
            }
            _ => {
                let mut page = self.refuse(StatusCode::METHOD_NOT_ALLOWED, "Open the page with a browser.");
                page.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
                page
            }
        }
    }

    fn refuse(&self, status: StatusCode, text: &str) -> Page {
        self.refused.fetch_add(1, Relaxed);
        page::failed(status, text)
    }

    fn refuse_because(&self, why: Why) -> Page {
        match why {
            Why::Unknown => self.refuse(StatusCode::NOT_FOUND, UNKNOWN),
            Why::OtherBrowser => self.refuse(StatusCode::FORBIDDEN, OTHER_BROWSER),
            Why::NotConfirmed => self.refuse(StatusCode::FORBIDDEN, NOT_CONFIRMED),
        }
    }

    async fn shown(&self, form: &Form, browser: Option<&str>) -> Page {
        match (form.get("login"), form.get("state")) {
            (Some(link), None) => self.question(link, browser),
            (None, Some(state)) => self.returned(form, state, browser).await,
            _ => self.refuse(StatusCode::NOT_FOUND, UNKNOWN),
        }
    }

    /// The link of a client is opened: the page names the client.
    fn question(&self, link: &str, browser: Option<&str>) -> Page {
        let (Some(new), Some(confirm)) = (secret(), secret()) else {
            return page::failed(StatusCode::SERVICE_UNAVAILABLE, AWAY);
        };
        let (settings, now) = (self.provider.settings(), Instant::now());
        // A secret of nobody's may be one that another page of this host has chosen.
        let browser = browser.filter(|own| self.table().has_browser(Digest::of(own), now)).unwrap_or(&new);
        let opened = self.table().open(Digest::of(link), Digest::of(browser), Digest::of(&confirm), now);
        match opened {
            Ok(client) => {
                let page = page::question(&client, &settings.redirect_path, link, &confirm);
                page::with_cookie(page, browser, settings.timeout.as_secs())
            }
            Err(why) => self.refuse_because(why),
        }
    }

    /// The user has agreed: the browser goes to the provider.
    async fn agreed(&self, form: &Form, browser: &str) -> Page {
        let (Some(link), Some(confirm)) = (form.get("login"), form.get("confirm")) else {
            return self.refuse(StatusCode::BAD_REQUEST, NOT_CONFIRMED);
        };
        let [link, browser, confirm] = [link, browser, confirm].map(Digest::of);
        // Strangers cause no request to the provider.
        if let Err(why) = self.table().is_confirmed(link, browser, confirm, Instant::now()) {
            return self.refuse_because(why);
        }
        let (Some(state), Some(nonce), Some(verifier)) = (secret(), secret(), secret()) else {
            return page::failed(StatusCode::SERVICE_UNAVAILABLE, AWAY);
        };
        let challenge = Digest::of(&verifier).challenge();
        let asked = Asked { state: &state, nonce: &nonce, challenge: &challenge };
        let redirect = match self.provider.authorization_url(&asked).await {
            Ok(url) => page::redirect(&url),
            Err(Failure::Unavailable(why) | Failure::Invalid(why)) => {
                log::warn!("tunnel: no user can log in: {why}");
                None
            }
        };
        let Some(redirect) = redirect else { return page::failed(StatusCode::SERVICE_UNAVAILABLE, AWAY) };
        let sent = Sent { state: Digest::of(&state), nonce, verifier };
        match self.table().confirm(link, browser, confirm, sent, Instant::now()) {
            Ok(()) => redirect,
            Err(why) => self.refuse_because(why),
        }
    }

    /// The provider has sent the browser back. Each state is good once.
    async fn returned(&self, form: &Form, state: &str, browser: Option<&str>) -> Page {
        let Some(browser) = browser else { return self.refuse_because(Why::OtherBrowser) };
        let taken = self.table().take(Digest::of(state), Digest::of(browser), Instant::now());
        let taken = match taken {
            Ok(taken) => taken,
            Err(why) => return self.refuse_because(why),
        };
        let (outcome, page) = match self.user(form, &taken.sent).await {
            Ok(user) => {
                let page = page::done(&user.name);
                (LoginOutcome::Granted { user: user.name, groups: user.groups }, page)
            }
            Err((refusal, why)) => {
                let certificate = taken.client.certificate.as_deref().unwrap_or("none");
                log::warn!(
                    "tunnel: a login for the client at {} (certificate: {certificate:?}) is refused: {why}",
                    taken.client.remote
                );
                (LoginOutcome::Refused(refusal), refused(refusal))
            }
        };
        taken.report(outcome);
        page
    }

    /// Who the user is, by the answer of the provider; or why nobody.
    async fn user(&self, form: &Form, sent: &Sent) -> Result<User, (LoginRefusal, String)> {
        let failure = |failure: Failure| match failure {
            Failure::Unavailable(why) => (LoginRefusal::Unavailable, why),
            Failure::Invalid(why) => (LoginRefusal::Invalid, why),
        };
        if !self.provider.is_own(form.get("iss")).await.map_err(failure)? {
            return Err((LoginRefusal::Invalid, "the answer is from another provider".to_owned()));
        }
        if let Some(error) = form.get("error") {
            let error: String = error.chars().take(64).collect();
            return Err((LoginRefusal::Denied, format!("the provider answers {error:?}")));
        }
        let code = form.get("code").ok_or_else(|| (LoginRefusal::Invalid, "there is no code".to_owned()))?;
        let claims = self.provider.claims(code, &sent.verifier, &sent.nonce).await.map_err(failure)?;
        User::of(&claims, self.provider.settings()).map_err(|why| (LoginRefusal::NotAllowed, why))
    }
}

fn refused(refusal: LoginRefusal) -> Page {
    let (status, text) = match refusal {
        LoginRefusal::Denied => (StatusCode::FORBIDDEN, "The identity provider has refused the login."),
        LoginRefusal::Invalid => (StatusCode::FORBIDDEN, "The login is not valid. Connect again with the VPN client."),
        LoginRefusal::NotAllowed => (StatusCode::FORBIDDEN, "You are logged in, but you may not use this VPN."),
        LoginRefusal::Unavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The identity provider does not answer. Connect again with the VPN client.",
        ),
    };
    page::failed(status, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_has_one_secret() {
        let secret = "A".repeat(43);
        let read = |cookies: &[&str]| {
            let mut headers = HeaderMap::new();
            for cookie in cookies {
                headers.append(COOKIES, HeaderValue::from_str(cookie).expect("a value"));
            }
            browser(&headers).map(str::to_owned)
        };
        let own = format!("{COOKIE}={secret}");
        let own = own.as_str();
        assert_eq!(read(&[own]), Some(secret.clone()));
        assert_eq!(read(&[format!("a=b; {own}; c=d").as_str()]), Some(secret));
        assert_eq!(read(&["a=b", own, own]), None);
        for bad in ["", "a=b", COOKIE, &own[..own.len() - 1], format!("x{own}").as_str()] {
            assert_eq!(read(&[bad]), None, "{bad}");
        }
    }
}
