//! What several tests need.

use sealane_config::{Oidc, Place};
use std::time::Duration;

/// Settings for a provider.
pub(crate) fn oidc(issuer: &str) -> Oidc {
    Oidc {
        issuer: issuer.to_owned(),
        roots: Vec::new(),
        client_id: "vpn".to_owned(),
        client_secret: None,
        redirect_uri: "https://vpn.example/login".to_owned(),
        redirect_path: "/login".to_owned(),
        socket: "/run/login.sock".into(),
        owner: None,
        scopes: vec!["openid".to_owned()],
        username_claim: "sub".to_owned(),
        groups_claim: None,
        allowed_groups: Vec::new(),
        allowed_email_domains: Vec::new(),
        timeout: Duration::from_secs(120),
        place: Place::default(),
    }
}
