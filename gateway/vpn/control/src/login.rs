//! Logins in a browser: the interface of the server to the integration that serves the login pages (`gateway/integrations/oidc`), and
//! what is remembered of users who have logged in.

use sealane_config::Oidc;
use std::collections::HashMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;

/// Users whose groups are remembered. The one that logged in first is forgotten first.
const MAX_REMEMBERED: usize = 16_384;

/// A client whose user is to log in: for the page that asks the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginClient {
    /// The common name of its certificate, if it has one.
    pub certificate: Option<String>,
    /// Its address.
    pub remote: SocketAddr,
    /// Its program and platform, as it says.
    pub program: String,
}

/// Why a login admits nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginRefusal {
    /// The provider refuses the user, or the user has not agreed.
    Denied,
    /// What the provider says cannot be trusted: a wrong signature, another client's token, an expired one.
    Invalid,
    /// The user is in none of the groups or domains that may connect, or has no name.
    NotAllowed,
    /// The provider does not answer, or answers something else.
    Unavailable,
}

impl LoginRefusal {
    /// What the client is told.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Denied => "the login was refused",
            Self::Invalid => "the login is not valid",
            Self::NotAllowed => "this user may not connect",
            Self::Unavailable => "authentication is not possible at the moment",
        }
    }

    /// Whether the client may try again.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Unavailable)
    }
}

/// How a login has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// The client may come in.
    Granted {
        /// As this user.
        user: String,
        /// The user's groups at the provider.
        groups: Vec<String>,
    },
    /// It may not.
    Refused(LoginRefusal),
}

/// Told once how a login has ended.
pub type Report = Box<dyn FnOnce(LoginOutcome) + Send>;

/// A login that has begun.
#[derive(Debug)]
pub struct Begun {
    /// By which it is ended.
    pub id: u64,
    /// The page that the client opens.
    pub url: String,
}

/// Too many logins are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Serves login pages.
pub trait WebLogin: Debug + Send + Sync {
    /// Begins the login of a client. It ends with the report, after `limit`, or with [`WebLogin::end`]; then nothing is reported any
    /// more.
    fn begin(&self, client: LoginClient, limit: Duration, report: Report) -> Result<Begun, Busy>;

    /// Ends a login, if it is still under way.
    fn end(&self, id: u64);

    /// Requests that were refused: for a login that does not exist, from another browser, or without the form of the page.
    fn refused_requests(&self) -> u64;

    /// Serves the pages until it is dropped.
    fn serve(self: Arc<Self>, listener: UnixListener) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A client's login. It ends with this.
#[derive(Debug)]
pub(super) struct Login {
    logins: Arc<dyn WebLogin>,
    id: u64,
    /// Which question of the client's it is.
    pub question: u32,
}

impl Login {
    pub fn new(logins: Arc<dyn WebLogin>, id: u64, question: u32) -> Self {
        Self { logins, id, question }
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        self.logins.end(self.id);
    }
}

/// The groups of users who have logged in: a token stands for a login, but has no groups.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    users: HashMap<String, (u64, Vec<String>)>,
    next: u64,
}

impl Remembered {
    /// A user has logged in.
    pub fn remember(&mut self, user: &str, groups: Vec<String>) {
        if self.users.len() >= MAX_REMEMBERED && !self.users.contains_key(user) {
            let first = self.users.iter().min_by_key(|(_, (number, _))| *number).map(|(user, _)| user.clone());
            if let Some(first) = first {
                self.users.remove(&first);
            }
        }
        self.users.insert(user.to_owned(), (self.next, groups));
        self.next += 1;
    }

    /// The groups of a user who has a token. `None`: it is not known, or the user may not connect any more.
    pub fn groups(&self, user: &str, oidc: &Oidc) -> Option<Vec<String>> {
        let (_, groups) = self.users.get(user)?;
        oidc.allows(groups).then(|| groups.clone())
    }

    /// Forgets everybody: others may be allowed now.
    pub fn clear(&mut self) {
        self.users.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_config::Place;

    fn oidc(allowed: &[&str]) -> Oidc {
        Oidc {
            issuer: "https://id.example".to_owned(),
            roots: Vec::new(),
            client_id: "vpn".to_owned(),
            client_secret: None,
            redirect_uri: "https://vpn.example/login".to_owned(),
            redirect_path: "/login".to_owned(),
            socket: "/run/login.sock".into(),
            owner: None,
            scopes: Vec::new(),
            username_claim: "sub".to_owned(),
            groups_claim: None,
            allowed_groups: allowed.iter().map(|group| (*group).to_owned()).collect(),
            allowed_email_domains: Vec::new(),
            timeout: Duration::from_secs(120),
            place: Place::default(),
        }
    }

    #[test]
    fn a_token_is_worth_as_much_as_its_login() {
        let mut remembered = Remembered::default();
        remembered.remember("al", vec!["vpn".to_owned()]);
        assert_eq!(remembered.groups("al", &oidc(&[])), Some(vec!["vpn".to_owned()]));
        assert_eq!(remembered.groups("al", &oidc(&["VPN"])), Some(vec!["vpn".to_owned()]));
        assert_eq!(remembered.groups("al", &oidc(&["admins"])), None);
        assert_eq!(remembered.groups("bo", &oidc(&[])), None);
        remembered.clear();
        assert_eq!(remembered.groups("al", &oidc(&[])), None);
    }

    #[test]
    fn the_oldest_login_is_forgotten_first() {
        let mut remembered = Remembered::default();
        for n in 0..=MAX_REMEMBERED {
            remembered.remember(&n.to_string(), Vec::new());
        }
        assert_eq!(remembered.users.len(), MAX_REMEMBERED);
        assert!(remembered.groups("0", &oidc(&[])).is_none() && remembered.groups("1", &oidc(&[])).is_some());
    }
}
