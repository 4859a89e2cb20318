//! The directory of `[tunnel.ldap]`, which the tunnel asks.

use crate::config::Tunnel;
use crate::vpn::settings::Settings;

/// Whether this program has an LDAP client.
pub const BUILT_IN: bool = cfg!(feature = "ldap");

/// A tunnel's settings, with its directory. Does not connect yet.
pub fn with_directory(tunnel: Tunnel) -> Settings {
    #[cfg(feature = "ldap")]
    let directory = tunnel.ldap.clone().map(|ldap| std::sync::Arc::new(sealane_ldap::LdapDirectory::new(ldap)) as _);
    #[cfg(not(feature = "ldap"))]
    let directory = None;
    Settings::new(tunnel, directory)
}
