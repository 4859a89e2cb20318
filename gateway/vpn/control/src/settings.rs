//! What a VPN server is told by the configuration, and what it makes of it.

use super::auth::{Authenticator, TokenSecret};
use super::hooks::Targets;
use super::tls::Endpoint;
use super::verify::{Demands, NameRule, Verifier};
use sealane_config::{ClientCertificates, Tunnel, TunnelParts};
use std::sync::Arc;

/// What the configuration makes of the files of `[tunnel]`.
pub const PARTS: TunnelParts = TunnelParts { verifier: |clients| Ok(Arc::new(verifier(clients)?)) };

/// A VPN server's settings, with what is made of them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As configured.
    pub tunnel: Tunnel,
    /// TLS.
    pub tls: Endpoint,
    /// Who is who.
    pub auth: Arc<Authenticator>,
}

impl From<Tunnel> for Settings {
    fn from(tunnel: Tunnel) -> Self {
        let (users, command) = (tunnel.users.clone(), tunnel.auth_command.clone());
        let auth = Arc::new(Authenticator::new(users, command, tunnel.token_lifetime, TokenSecret::Process));
        Self { tls: Endpoint::Server(tunnel.server.clone()), auth, tunnel }
    }
}

impl Settings {
    /// Where events are delivered.
    pub(super) fn targets(&self) -> Targets {
        Targets { command: self.event_command.clone(), webhook: self.event_webhook.clone() }
    }
}

impl std::ops::Deref for Settings {
    type Target = Tunnel;

    fn deref(&self) -> &Tunnel {
        &self.tunnel
    }
}

fn verifier(clients: &ClientCertificates<'_>) -> anyhow::Result<Verifier> {
    let &ClientCertificates { provider, roots, crls, name, explicit_usage, optional } = clients;
    let demands = Demands { name: name.map(name_rule), explicit_usage, ..Demands::default() };
    Verifier::new(provider, roots, crls, demands, optional)
}

/// `vpn`, `name-prefix:vpn-`, `subject:C=KR, CN=vpn`.
fn name_rule(text: &str) -> NameRule {
    match text.split_once(':') {
        Some(("name-prefix", rest)) => NameRule::Prefix(rest.to_owned()),
        Some(("subject", rest)) => NameRule::Subject(rest.to_owned()),
        Some(("name", rest)) => NameRule::Name(rest.to_owned()),
        _ => NameRule::Name(text.to_owned()),
    }
}
