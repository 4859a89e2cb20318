//! The pages that a browser shows. They load nothing, run no script and stand in no frame; what others have said is text in them.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, SET_COOKIE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use sealane_vpn::login::LoginClient;

/// A response.
pub(crate) type Page = Response<Full<Bytes>>;

/// The form's answer sends the browser to the provider, and the provider may send it on: `form-action` would forbid that.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";

/// A text in HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that turn the direction of a text would make another text of it.
            c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                out.push('\u{fffd}')
            }
            c => out.push(c),
        }
    }
    out
}

fn page(status: StatusCode, title: &str, body: &str) -> Page {
    let html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>body{{font:1rem/1.5 sans-serif;max-width:34rem;margin:3rem \
         auto;padding:0 1rem}}dt{{font-weight:bold}}button{{font:inherit;padding:.5rem 1rem}}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    );
    let mut response = Response::new(Full::new(Bytes::from(html)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    secure(response)
}

/// Nobody keeps a page, and no page tells another where it was.
fn secure(mut response: Page) -> Page {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

/// The page that names the client and asks whether the user has started it.
pub(crate) fn question(client: &LoginClient, path: &str, link: &str, confirm: &str) -> Page {
    let named = |what: &str, value: &str| format!("<dt>{what}</dt>\n<dd>{}</dd>\n", escaped(value));
    let certificate = client.certificate.as_deref().unwrap_or("none");
    let program = if client.program.is_empty() { "unknown" } else { &client.program };
    let body = format!(
        "<p>A VPN client wants to connect with your account:</p>\n<dl>\n{}{}{}</dl>\n<p><strong>Continue only if you have just started \
         this connection yourself.</strong> If somebody has sent you this link, close this page: the VPN of that person would get \
         the rights of your account.</p>\n<form method=\"post\" action=\"{}\">\n<input type=\"hidden\" name=\"login\" \
         value=\"{}\">\n<input type=\"hidden\" name=\"confirm\" value=\"{}\">\n<button>Continue to log in</button>\n</form>",
        named("Certificate", certificate),
        named("Address", &client.remote.to_string()),
        named("Program", program),
        escaped(path),
        escaped(link),
        escaped(confirm),
    );
    page(StatusCode::OK, "Log in to the VPN", &body)
}

/// The user is logged in.
pub(crate) fn done(user: &str) -> Page {
    let body =
        format!("<p>You are logged in as {}. The VPN client now connects. You can close this page.</p>", escaped(user));
    page(StatusCode::OK, "Logged in", &body)
}

/// Something is wrong; what, and what to do.
pub(crate) fn failed(status: StatusCode, text: &str) -> Page {
    page(status, "Not logged in", &format!("<p>{}</p>", escaped(text)))
}

/// Sends the browser to the provider. `None`: this is no URL.
pub(crate) fn redirect(url: &str) -> Option<Page> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_str(url).ok()?);
    Some(secure(response))
}

/// The name of the cookie: browsers accept `__Host-` only from this host, over TLS.
pub(crate) const COOKIE: &str = "__Host-sealane-login";

/// Gives the browser its secret. It stays in this browser, for this host alone, and comes back when the provider sends the
/// browser back (`Lax`).
pub(crate) fn with_cookie(mut page: Page, secret: &str, seconds: u64) -> Page {
    let cookie = format!("{COOKIE}={secret}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        page.headers_mut().insert(SET_COOKIE, cookie);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    fn text(page: Page) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let body = runtime.block_on(page.into_body().collect()).expect("it is there").to_bytes();
        String::from_utf8(body.to_vec()).expect("UTF-8")
    }

    #[test]
    fn what_a_client_says_is_text() {
        let client = LoginClient {
            certificate: Some("<script>alert(1)</script>\u{202e}".to_owned()),
            remote: ([192, 0, 2, 1], 1194).into(),
            program: "\"><b>".to_owned(),
        };
        let page = question(&client, "/login", "link", "form");
        assert!(
            page.headers()[CONTENT_SECURITY_POLICY].to_str().is_ok_and(|policy| policy.contains("default-src 'none'"))
        );
        let shown = text(page);
        assert!(!shown.contains("<script>") && !shown.contains("<b>") && !shown.contains('\u{202e}'), "{shown}");
        assert!(shown.contains("&lt;script&gt;") && shown.contains("192.0.2.1:1194"), "{shown}");
        assert!(!text(done("<i>al</i>")).contains("<i>"));
    }

    #[test]
    fn the_cookie_is_the_hosts_alone() {
        let page = with_cookie(done("al"), "secret", 120);
        let cookie = page.headers()[SET_COOKIE].to_str().expect("ASCII");
        for part in ["__Host-", "; Path=/;", "; Secure", "; HttpOnly", "; SameSite=Lax", "; Max-Age=120"] {
            assert!(cookie.contains(part), "{part}: {cookie}");
        }
        assert!(redirect("https://id.example/\n").is_none());
    }
}
