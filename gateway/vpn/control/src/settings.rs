//! What a VPN server is told by the configuration, and what it makes of it.

use super::auth::{Authenticator, Source, TokenSecret};
use super::hooks::Targets;
use super::login::WebLogin;
use super::tls::Endpoint;
use super::verify::{Demands, Verifier};
use sealane_config::{ClientCertificates, Tunnel, TunnelGroup, TunnelParts};
use sealane_ovpn::file::NameRule;
use sealane_passwords::{Directory, Found, Pending};
use sealane_tunnel::filter::Filter;
use sealane_tunnel::plane::Rates;
use std::sync::Arc;
use std::time::Duration;

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
    /// What `[tunnel.ldap]` names.
    directory: Option<Arc<dyn Directory>>,
    /// Where users log in with a browser, with `[tunnel.oidc]`.
    pub logins: Option<Arc<dyn WebLogin>>,
}

fn authenticator(tunnel: &Tunnel, directory: Option<Arc<dyn Directory>>) -> Arc<Authenticator> {
    let users = tunnel.users.clone().map(Source::Users);
    let program = tunnel.auth_command.clone().map(Source::Program);
    let sources = users.into_iter().chain(directory.map(Source::Directory)).chain(program).collect();
    let asks = tunnel.oidc.is_some() || tunnel.management.as_ref().is_some_and(|m| m.client_auth);
    let shared = tunnel.token_secret.as_ref();
    let secret = shared.map_or(TokenSecret::Process, |secret| TokenSecret::Fixed(*secret.bytes()));
    Arc::new(Authenticator::new(sources, tunnel.token_lifetime, secret).that_asks(asks))
}

impl Settings {
    /// `directory`: that of `[tunnel.ldap]`. A tunnel with this table and without its directory lets nobody in.
    pub fn new(tunnel: Tunnel, directory: Option<Arc<dyn Directory>>) -> Self {
        let directory = directory.or_else(|| tunnel.ldap.is_some().then(|| Arc::new(Nowhere) as Arc<dyn Directory>));
        let auth = authenticator(&tunnel, directory.clone());
        Self { tls: Endpoint::Server(tunnel.server.clone()), auth, directory, logins: None, tunnel }
    }

    /// `logins`: the login pages of `[tunnel.oidc]`. A tunnel with this table and without pages lets nobody in.
    pub fn with_logins(self, logins: Option<Arc<dyn WebLogin>>) -> Self {
        Self { logins, ..self }
    }

    /// The same with another `[tunnel]`.
    pub(super) fn with_tunnel(&self, tunnel: Tunnel) -> Self {
        Self::new(tunnel, self.directory.clone()).with_logins(self.logins.clone())
    }

    /// Where events are delivered.
    pub(super) fn targets(&self) -> Targets {
        Targets { command: self.event_command.clone(), webhook: self.event_webhook.clone() }
    }

    /// Whether a program on the management socket decides who may come in.
    pub(super) fn asks(&self) -> bool {
        self.management.as_ref().is_some_and(|m| m.client_auth)
    }

    /// Takes over the management socket of other settings: it stays as it is until the next start. Whether they differ.
    pub(super) fn keep_management(&mut self, before: &Self) -> bool {
        if self.management == before.management {
            return false;
        }
        self.tunnel.management.clone_from(&before.management);
        self.auth = authenticator(&self.tunnel, self.directory.clone());
        true
    }

    /// What a client is known by.
    pub(super) fn name_of(&self, common_name: Option<&str>, user: Option<&str>) -> Option<String> {
        let (first, second) = if self.username_as_common_name { (user, common_name) } else { (common_name, user) };
        first.or(second).map(str::to_owned)
    }

    /// Whether a user may use the certificate of this name.
    pub(super) fn may_use(&self, common_name: Option<&str>, user: Option<&str>) -> bool {
        match common_name.and_then(|name| self.clients.get(name)).and_then(|client| client.users.as_ref()) {
            Some(users) => user.is_some_and(|user| users.iter().any(|listed| listed == user)),
            None => !self.bind_users || user.is_some() && user == common_name,
        }
    }

    /// What a client may reach: its own list, or its group's.
    pub(super) fn filter_of(&self, name: &str, group: Option<&TunnelGroup>) -> Option<Arc<Filter>> {
        let own = self.clients.get(name).and_then(|client| client.filter.as_ref());
        own.or(group.and_then(|group| group.filter.as_ref())).cloned()
    }

    /// How much a client may send and receive: its own rates, else its group's, else those of the tunnel.
    pub(super) fn rates_of(&self, name: &str, group: Option<&TunnelGroup>) -> Rates {
        let own = self.clients.get(name).map(|client| client.rates).unwrap_or_default();
        own.or(group.map(|group| group.rates).unwrap_or_default()).or(self.rates)
    }
}

impl std::ops::Deref for Settings {
    type Target = Tunnel;

    fn deref(&self) -> &Tunnel {
        &self.tunnel
    }
}

/// A directory that this program cannot ask.
#[derive(Debug)]
struct Nowhere;

impl Nowhere {
    fn answer<'a>() -> Pending<'a, Found> {
        Box::pin(async { Found::Unavailable("this program was built without LDAP".to_owned()) })
    }
}

impl Directory for Nowhere {
    fn check<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> Pending<'a, Found> {
        Self::answer()
    }

    fn look_up<'a>(&'a self, _: &'a str, _: Duration) -> Pending<'a, Found> {
        Self::answer()
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
