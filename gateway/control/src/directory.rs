//! What the tunnel asks about its users: the directory of `[tunnel.ldap]`, and the login pages of `[tunnel.oidc]`.

use crate::config::Tunnel;
use crate::vpn::settings::Settings;

/// Whether this program has an LDAP client.
pub const BUILT_IN: bool = cfg!(feature = "ldap");

/// Whether this program has login pages.
pub const HAS_LOGIN_PAGES: bool = cfg!(feature = "oidc");

/// A tunnel's settings, with its directory and its login pages. Does not connect yet.
pub fn with_directory(tunnel: Tunnel) -> Settings {
    #[cfg(feature = "ldap")]
    let directory = tunnel.ldap.clone().map(|ldap| std::sync::Arc::new(sealane_ldap::LdapDirectory::new(ldap)) as _);
    #[cfg(not(feature = "ldap"))]
    let directory = None;
    #[cfg(feature = "oidc")]
    let logins = tunnel.oidc.clone().map(|oidc| std::sync::Arc::new(sealane_oidc::OidcLogin::new(oidc)) as _);
    #[cfg(not(feature = "oidc"))]
    let logins = None;
    Settings::new(tunnel, directory).with_logins(logins)
}
