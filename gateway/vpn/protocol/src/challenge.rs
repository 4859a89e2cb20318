//! What a server asks of the user after the password: by a dynamic challenge ([`Challenge`]: the login is refused with a question,
//! and the next login has the answer), or while the login waits ([`Step`]).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest state that is sent back.
const MAX_STATE: usize = 512;
/// The longest user name.
const MAX_USER: usize = 256;
/// The longest address of a page.
const MAX_URL: usize = 2048;
/// The longest answer while a login waits: OpenVPN's servers read commands of up to 2,048 bytes.
const MAX_RESPONSE: usize = 1024;
/// What `IV_SSO` says of a client that does what is here.
pub const METHODS: &str = "webauth,openurl,crtext";

/// A question of a server: the reason of `AUTH_FAILED`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// What the user is asked.
    pub text: String,
    /// The user is to answer; otherwise the text is all there is.
    pub needs_answer: bool,
    /// The answer may be shown while it is typed.
    pub echo: bool,
    /// The user that the server means.
    pub user: String,
    /// The server's own, for the answer.
    state: String,
}

impl Challenge {
    /// Reads `CRV1:FLAGS:STATE:USER:TEXT`, with the user in base64. `None`: it is something else.
    pub fn parse(reason: &str) -> Option<Self> {
        let mut parts = reason.strip_prefix("CRV1:")?.splitn(4, ':');
        let (flags, state, user, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let user = String::from_utf8(STANDARD.decode(user).ok()?).ok()?;
        let is_state = state.len() <= MAX_STATE && state.bytes().all(|b| b.is_ascii_graphic());
        if !is_state || user.len() > MAX_USER || user.chars().any(char::is_control) {
            return None;
        }
        let has = |flag: &str| flags.split(',').any(|f| f.trim() == flag);
        Some(Self { text: text.to_owned(), needs_answer: has("R"), echo: has("E"), user, state: state.to_owned() })
    }

    /// The password of the next login.
    pub fn password(&self, answer: &str) -> String {
        format!("CRV1::{}::{answer}", self.state)
    }
}

/// What the user is to do while the login waits: the text of `INFO_PRE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Open this page: printable ASCII, `https` or `http`.
    Open(String),
    /// Answer a question, by [`response`].
    Answer {
        /// What the user is asked.
        text: String,
        /// The user is to answer; otherwise the text is all there is.
        needs_answer: bool,
        /// The answer may be shown while it is typed.
        echo: bool,
    },
}

impl Step {
    /// Reads `OPEN_URL:URL`, `WEB_AUTH:FLAGS:URL` or `CR_TEXT:FLAGS:TEXT`. `None`: it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let (method, rest) = text.split_once(':')?;
        match method {
            "OPEN_URL" => url(rest).map(Self::Open),
            // The flags are about the window in which a graphical client opens the page.
            "WEB_AUTH" => url(rest.split_once(':')?.1).map(Self::Open),
            "CR_TEXT" => {
                let (flags, text) = rest.split_once(':')?;
                let has = |flag: &str| flags.split(',').any(|f| f.trim() == flag);
                Some(Self::Answer { text: text.to_owned(), needs_answer: has("R"), echo: has("E") })
            }
            _ => None,
        }
    }
}

/// An address that can be printed and opened.
fn url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let is_web = ["https", "http"].iter().any(|web| scheme.eq_ignore_ascii_case(web));
    let has_host = rest.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'[');
    let is_plain = text.len() <= MAX_URL && text.bytes().all(|b| b.is_ascii_graphic());
    (is_web && has_host && is_plain).then(|| text.to_owned())
}

/// The command with the answer to a question, with its NUL. `None`: the answer is too long.
pub fn response(answer: &str) -> Option<Vec<u8>> {
    (answer.len() <= MAX_RESPONSE).then(|| format!("CR_RESPONSE,{}\0", STANDARD.encode(answer)).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_login_has_a_page_or_a_question() {
        let open = |url: &str| Some(Step::Open(url.to_owned()));
        assert_eq!(Step::parse("OPEN_URL:https://id.example.com/?a=b:c"), open("https://id.example.com/?a=b:c"));
        assert_eq!(Step::parse("WEB_AUTH::https://id.example.com/"), open("https://id.example.com/"));
        assert_eq!(Step::parse("WEB_AUTH:hidden,external:HTTP://[::1]:8080/"), open("HTTP://[::1]:8080/"));
        let question = Step::Answer { text: "Code: now?".to_owned(), needs_answer: true, echo: false };
        assert_eq!(Step::parse("CR_TEXT:R:Code: now?"), Some(question));
        let told = Step::Answer { text: "wait".to_owned(), needs_answer: false, echo: true };
        assert_eq!(Step::parse("CR_TEXT:E:wait"), Some(told));
        let long = format!("OPEN_URL:https://a/{}", "x".repeat(MAX_URL));
        for other in [
            "",
            "OPEN_URL",
            "OPEN_URL:",
            "OPEN_URL:https://",
            "OPEN_URL:https:///etc",
            "OPEN_URL:https://-x",
            "OPEN_URL:file:///etc/passwd",
            "OPEN_URL:javascript:alert(1)//http://a",
            "OPEN_URL:https://a b",
            "OPEN_URL:https://b\u{e9}",
            "OPEN_URL:https://a\u{202e}",
            "WEB_AUTH:https://a",
            "CR_TEXT:R",
            "PROXY:x:y",
            &long,
        ] {
            assert_eq!(Step::parse(other), None, "{other}");
        }
        assert_eq!(response("123").as_deref(), Some(&b"CR_RESPONSE,MTIz\0"[..]));
        assert_eq!(response(&"x".repeat(MAX_RESPONSE + 1)), None);
    }

    #[test]
    fn a_challenge_is_answered_by_the_next_password() {
        let reason = "CRV1:R,E:Om01u7Fh4LrGBS7uh0SWmzwabUiGiW6l:Y3Ix:Please enter token PIN: now";
        let challenge = Challenge::parse(reason).expect("a challenge");
        assert_eq!((challenge.user.as_str(), challenge.text.as_str()), ("cr1", "Please enter token PIN: now"));
        assert!(challenge.needs_answer && challenge.echo);
        assert_eq!(challenge.password("8675309"), "CRV1::Om01u7Fh4LrGBS7uh0SWmzwabUiGiW6l::8675309");
        let told = Challenge::parse("CRV1::state::gone").expect("a challenge");
        assert!(!told.needs_answer && !told.echo && told.user.is_empty());
        let long = format!("CRV1:R:{}:Y3Ix:x", "s".repeat(MAX_STATE + 1));
        for other in [
            "",
            "no",
            "CRV1",
            "CRV1:R:s:Y3Ix",
            "CRV1:R:s:?:x",
            "CRV1:R:s:/w==:x",
            "CRV1:R:a b:Y3Ix:x",
            "CRV1:R:s:Cg==:x",
            &long,
        ] {
            assert_eq!(Challenge::parse(other), None, "{other}");
        }
    }
}
