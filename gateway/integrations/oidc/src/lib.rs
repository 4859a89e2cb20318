//! Logins of the tunnel's users with a browser, at an OpenID Connect provider.
//!
//! ```text
//! the tunnel ─ begin ─▶ table ◀─ GET ?login=…  ── browser: the page names the client and asks
//!                         │   ◀─ POST          ── the user agrees ─▶ 303 to the provider (state, nonce, PKCE)
//!                         │   ◀─ GET ?code=…&state=… ── the provider sends the browser back
//!                         ▼
//!              provider: code ─▶ ID token ─ verified ─▶ user ─ report ─▶ the tunnel
//! ```
//! The pages are served on a Unix socket, to which a route of the gateway forwards them (docs/decisions/035). The protocol is in this
//! crate: of the crates that have it, one brings another HTTP client, and none verifies all that a login needs (the same decision).

mod form;
pub mod fuzzing;
mod page;
mod provider;
mod server;
mod table;
mod token;
mod user;

use provider::Provider;
use sealane_config::Oidc;
use sealane_vpn::login::{Begun, Busy, LoginClient, Report, WebLogin};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{Digest, Table, secret};
use tokio::net::UnixListener;

/// The login pages of a tunnel.
pub struct OidcLogin {
    provider: Provider,
    table: Mutex<Table>,
    /// Requests that were refused.
    refused: AtomicU64,
}

impl std::fmt::Debug for OidcLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OidcLogin").field(self.provider.settings()).finish()
    }
}

impl OidcLogin {
    /// For a provider. Does not connect yet.
    pub fn new(settings: Oidc) -> Self {
        Self { provider: Provider::new(settings), table: Mutex::default(), refused: AtomicU64::new(0) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WebLogin for OidcLogin {
    fn begin(&self, client: LoginClient, limit: Duration, report: Report) -> Result<Begun, Busy> {
        let (link, now) = (secret().ok_or(Busy)?, Instant::now());
        let id = self.table().begin(client, Digest::of(&link), report, now + limit, now)?;
        let url = format!("{}?login={link}", self.provider.settings().redirect_uri);
        Ok(Begun { id, url })
    }

    fn end(&self, id: u64) {
        self.table().end(id);
    }

    fn refused_requests(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn serve(self: Arc<Self>, listener: UnixListener) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(server::serve(self, listener))
    }
}
