//! Who a user is, by the claims of an ID token: name, groups, and whether the user may connect.

use sealane_config::Oidc;
use serde_json::{Map, Value};

/// The longest name of a user or a group.
const MAX_NAME: usize = 256;
/// Groups of a user.
const MAX_GROUPS: usize = 128;

/// A user who may connect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// Reads the claims. The error says why the user may not connect, for the log.
    pub fn of(claims: &Map<String, Value>, oidc: &Oidc) -> Result<Self, String> {
        let claim = oidc.username_claim.as_str();
        let name = claims.get(claim).and_then(Value::as_str).filter(|name| is_name(name));
        let name = name.ok_or_else(|| format!("the ID token has no usable claim \"{claim}\" (username_claim)"))?;
        let is_verified = claims.get("email_verified").is_some_and(|verified| *verified == Value::Bool(true));
        if claim == "email" && !is_verified {
            return Err("the provider has not verified the user's address (email_verified)".to_owned());
        }
        if !oidc.allowed_email_domains.is_empty() {
            let domain = claims.get("email").and_then(Value::as_str).and_then(|email| email.rsplit_once('@'));
            let domain = domain.map(|(_, domain)| domain.to_ascii_lowercase());
            if !is_verified || !domain.is_some_and(|domain| oidc.allowed_email_domains.contains(&domain)) {
                return Err("the user has no verified address of \"allowed_email_domains\"".to_owned());
            }
        }
        let groups = match &oidc.groups_claim {
            Some(claim) => groups(claims.get(claim)).ok_or_else(|| {
                format!("the claim \"{claim}\" (groups_claim) is not a list of at most {MAX_GROUPS} names of groups")
            })?,
            None => Vec::new(),
        };
        match oidc.allows(&groups) {
            true => Ok(Self { name: name.to_owned(), groups }),
            false => Err("the user is in none of \"allowed_groups\"".to_owned()),
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
}

fn groups(claim: Option<&Value>) -> Option<Vec<String>> {
    let all = match claim {
        None | Some(Value::Null) => return Some(Vec::new()),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(all)) if all.len() <= MAX_GROUPS => {
            all.iter().map(|group| group.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?
        }
        Some(_) => return None,
    };
    all.iter().all(|group| group.len() <= MAX_NAME).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(oidc: &Oidc, claims: Value) -> Result<User, String> {
        User::of(claims.as_object().expect("an object"), oidc)
    }

    fn user(name: &str, groups: &[&str]) -> Result<User, String> {
        Ok(User { name: name.to_owned(), groups: groups.iter().map(|group| (*group).to_owned()).collect() })
    }

    #[test]
    fn the_name_is_the_claim_that_is_configured() {
        let sub = Oidc::example();
        assert_eq!(read(&sub, json!({ "sub": "al", "email": "bo@a" })), user("al", &[]));
        for bad in [json!({}), json!({ "sub": 1 }), json!({ "sub": " " }), json!({ "sub": "a\nb" })] {
            assert!(read(&sub, bad.clone()).is_err(), "{bad}");
        }
        assert!(read(&sub, json!({ "sub": "a".repeat(MAX_NAME + 1) })).is_err());
        // An address that anybody may have entered is nobody's name.
        let email = Oidc { username_claim: "email".to_owned(), ..Oidc::example() };
        assert_eq!(read(&email, json!({ "email": "al@a", "email_verified": true })), user("al@a", &[]));
        for verified in [json!(false), json!("true"), Value::Null] {
            assert!(read(&email, json!({ "email": "al@a", "email_verified": verified })).is_err());
        }
    }

    #[test]
    fn domains_and_groups_must_be_allowed() {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let domains = Oidc { allowed_email_domains: all(&["example.com"]), ..Oidc::example() };
        let with = |email: &str| json!({ "sub": "al", "email": email, "email_verified": true });
        assert!(read(&domains, with("al@EXAMPLE.com")).is_ok());
        for bad in ["al@example.com.evil", "al@evil.example.com", "example.com", "al@example.com@evil"] {
            assert!(read(&domains, with(bad)).is_err(), "{bad}");
        }
        assert!(read(&domains, json!({ "sub": "al", "email": "al@example.com" })).is_err(), "not verified");
        let groups = Oidc { groups_claim: Some("groups".to_owned()), allowed_groups: all(&["vpn"]), ..Oidc::example() };
        assert_eq!(read(&groups, json!({ "sub": "al", "groups": ["x", "VPN"] })), user("al", &["x", "VPN"]));
        assert_eq!(read(&groups, json!({ "sub": "al", "groups": "vpn" })), user("al", &["vpn"]));
        for bad in [json!(["x"]), json!([]), json!([1]), json!({ "vpn": true }), Value::Null, json!(vec!["vpn"; 129])] {
            assert!(read(&groups, json!({ "sub": "al", "groups": bad })).is_err(), "{bad}");
        }
    }
}
