//! Dynamic challenges (`CRV1`): a server refuses a login with a question, and the next login has the answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest state that is sent back.
const MAX_STATE: usize = 512;
/// The longest user name.
const MAX_USER: usize = 256;

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
        let has = |flag| flags.split(',').any(|f| f.trim() == flag);
        Some(Self { text: text.to_owned(), needs_answer: has("R"), echo: has("E"), user, state: state.to_owned() })
    }

    /// The password of the next login.
    pub fn password(&self, answer: &str) -> String {
        format!("CRV1::{}::{answer}", self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
