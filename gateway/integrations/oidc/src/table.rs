//! The logins that are under way. Bounded; each is for one client of the tunnel, one browser and one time.
//!
//! ```text
//! begin ─▶ open (binds the browser) ─▶ confirm (the user has agreed: a state for the provider) ─▶ take (the provider has answered)
//! ```
//! The secrets in links, cookies and states have 256 random bits. The table has their SHA-256 only.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealane_vpn::login::{Busy, LoginClient, LoginOutcome, LoginRefusal, Report};
use std::collections::HashMap;
use std::time::Instant;

/// Logins that may be under way.
pub(crate) const MAX_LOGINS: usize = 1024;
/// Characters of a secret.
const SECRET: usize = 43;

/// A secret's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub fn of(secret: &str) -> Self {
        let mut out = [0; 32];
        out.copy_from_slice(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref());
        Self(out)
    }

    /// As a challenge of PKCE (RFC 7636 §4.2).
    pub fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }
}

/// A new secret. `None`: the system has no random bytes.
pub(crate) fn secret() -> Option<String> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

/// Whether a text looks like a secret.
pub(crate) fn is_secret(text: &str) -> bool {
    text.len() == SECRET && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

/// What the provider was told, to compare its answer with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub state: Digest,
    pub nonce: String,
    pub verifier: String,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// There is no such login, or no longer.
    Unknown,
    /// The login belongs to another browser.
    OtherBrowser,
    /// The form is not that of the page.
    NotConfirmed,
}

struct Entry {
    client: LoginClient,
    expires: Instant,
    report: Report,
    link: Digest,
    browser: Option<Digest>,
    confirm: Option<Digest>,
    sent: Option<Sent>,
}

/// A login whose provider has answered. It is not in the table any more.
pub(crate) struct Taken {
    pub client: LoginClient,
    pub sent: Sent,
    report: Option<Report>,
}

impl Taken {
    /// Reports how the login has ended.
    pub fn report(mut self, outcome: LoginOutcome) {
        if let Some(report) = self.report.take() {
            report(outcome);
        }
    }
}

impl Drop for Taken {
    /// The browser has gone before the provider's answer was verified: the client need not wait any longer.
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            report(LoginOutcome::Refused(LoginRefusal::Unavailable));
        }
    }
}

/// The table.
#[derive(Default)]
pub(crate) struct Table {
    logins: HashMap<u64, Entry>,
    links: HashMap<Digest, u64>,
    states: HashMap<Digest, u64>,
    next: u64,
}

impl Table {
    /// Begins a login, by which it is ended.
    pub fn begin(
        &mut self,
        client: LoginClient,
        link: Digest,
        report: Report,
        expires: Instant,
        now: Instant,
    ) -> Result<u64, Busy> {
        if self.logins.len() >= MAX_LOGINS {
            let late: Vec<u64> = self.logins.iter().filter(|(_, e)| e.expires <= now).map(|(id, _)| *id).collect();
            late.into_iter().for_each(|id| drop(self.remove(id)));
        }
        if self.logins.len() >= MAX_LOGINS {
            return Err(Busy);
        }
        let id = self.next;
        self.next += 1;
        self.links.insert(link, id);
        let entry = Entry { client, expires, report, link, browser: None, confirm: None, sent: None };
        self.logins.insert(id, entry);
        Ok(id)
    }

    /// Ends a login.
    pub fn end(&mut self, id: u64) {
        drop(self.remove(id));
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.logins.remove(&id)?;
        self.links.remove(&entry.link);
        if let Some(sent) = &entry.sent {
            self.states.remove(&sent.state);
        }
        Some(entry)
    }

    /// The login of a link, in the browser that it belongs to.
    fn entry(&mut self, link: Digest, browser: Digest, now: Instant) -> Result<(u64, &mut Entry), Why> {
        let id = *self.links.get(&link).ok_or(Why::Unknown)?;
        let entry = self.logins.get_mut(&id).filter(|entry| entry.expires > now).ok_or(Why::Unknown)?;
        match entry.browser.is_none_or(|own| own == browser) {
            true => Ok((id, entry)),
            false => Err(Why::OtherBrowser),
        }
    }

    /// Whether a browser shows the page of a login.
    pub fn has_browser(&self, browser: Digest, now: Instant) -> bool {
        self.logins.values().any(|entry| entry.browser == Some(browser) && entry.expires > now)
    }

    /// A browser shows the page of a login, with a form that has this secret. The first browser is the only one.
    pub fn open(&mut self, link: Digest, browser: Digest, confirm: Digest, now: Instant) -> Result<LoginClient, Why> {
        let (_, entry) = self.entry(link, browser, now)?;
        (entry.browser, entry.confirm) = (Some(browser), Some(confirm));
        Ok(entry.client.clone())
    }

    /// Whether this is the form of the page, from the browser that shows it.
    pub fn is_confirmed(&mut self, link: Digest, browser: Digest, confirm: Digest, now: Instant) -> Result<(), Why> {
        let (_, entry) = self.entry(link, browser, now)?;
        match entry.browser == Some(browser) && entry.confirm == Some(confirm) {
            true => Ok(()),
            false => Err(Why::NotConfirmed),
        }
    }

    /// The user has agreed: the browser is sent to the provider with this state, and no other.
    pub fn confirm(
        &mut self,
        link: Digest,
        browser: Digest,
        confirm: Digest,
        sent: Sent,
        now: Instant,
    ) -> Result<(), Why> {
        self.is_confirmed(link, browser, confirm, now)?;
        let (id, entry) = self.entry(link, browser, now)?;
        let state = sent.state;
        let before = entry.sent.replace(sent);
        if let Some(before) = before {
            self.states.remove(&before.state);
        }
        self.states.insert(state, id);
        Ok(())
    }

    /// Takes the login out whose state this is. Another browser's request leaves it as it is.
    pub fn take(&mut self, state: Digest, browser: Digest, now: Instant) -> Result<Taken, Why> {
        let id = *self.states.get(&state).ok_or(Why::Unknown)?;
        let entry = self.logins.get(&id).filter(|entry| entry.expires > now).ok_or(Why::Unknown)?;
        if entry.browser != Some(browser) {
            return Err(Why::OtherBrowser);
        }
        let Entry { client, report, sent, .. } = self.remove(id).ok_or(Why::Unknown)?;
        Ok(Taken { client, sent: sent.ok_or(Why::Unknown)?, report: Some(report) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn client() -> LoginClient {
        LoginClient { certificate: None, remote: ([192, 0, 2, 1], 1194).into(), program: String::new() }
    }

    fn begin(table: &mut Table, link: &str, now: Instant) -> Result<u64, Busy> {
        table.begin(client(), Digest::of(link), Box::new(|_| {}), now + Duration::from_secs(120), now)
    }

    fn sent(state: &str) -> Sent {
        Sent { state: Digest::of(state), nonce: "n".to_owned(), verifier: "v".to_owned() }
    }

    /// A table with a login that the user has agreed to in the browser `b`.
    fn confirmed(now: Instant) -> Table {
        let mut table = Table::default();
        begin(&mut table, "l", now).expect("room");
        let [link, browser, confirm] = ["l", "b", "c"].map(Digest::of);
        table.open(link, browser, confirm, now).expect("the first browser");
        table.confirm(link, browser, confirm, sent("s"), now).expect("its form");
        table
    }

    #[test]
    fn a_login_is_for_one_browser_and_one_time() {
        let now = Instant::now();
        let mut table = confirmed(now);
        let [link, browser, other, confirm] = ["l", "b", "x", "c"].map(Digest::of);
        assert!(table.has_browser(browser, now) && !table.has_browser(other, now));
        assert_eq!(table.open(link, other, confirm, now), Err(Why::OtherBrowser));
        assert_eq!(table.confirm(link, other, confirm, sent("t"), now), Err(Why::OtherBrowser));
        assert_eq!(table.confirm(link, browser, other, sent("t"), now), Err(Why::NotConfirmed));
        assert_eq!(table.take(Digest::of("s"), other, now).err(), Some(Why::OtherBrowser));
        assert_eq!(table.take(Digest::of("t"), browser, now).err(), Some(Why::Unknown));
        let taken = table.take(Digest::of("s"), browser, now).expect("the first time");
        assert_eq!(taken.sent, sent("s"));
        assert_eq!(table.take(Digest::of("s"), browser, now).err(), Some(Why::Unknown));
        assert_eq!(table.open(link, browser, confirm, now), Err(Why::Unknown));
        assert!(!table.has_browser(browser, now));
        assert!(table.logins.is_empty() && table.links.is_empty() && table.states.is_empty());
    }

    #[test]
    fn a_form_needs_its_page() {
        let (mut table, now) = (Table::default(), Instant::now());
        begin(&mut table, "l", now).expect("room");
        let [link, browser, confirm] = ["l", "b", "c"].map(Digest::of);
        assert_eq!(table.confirm(link, browser, confirm, sent("s"), now), Err(Why::NotConfirmed));
        table.open(link, browser, confirm, now).expect("the first browser");
        assert_eq!(table.is_confirmed(link, browser, confirm, now), Ok(()));
        // The page is shown again: the form of before is worth nothing.
        table.open(link, browser, Digest::of("d"), now).expect("the same browser");
        assert_eq!(table.is_confirmed(link, browser, confirm, now), Err(Why::NotConfirmed));
    }

    #[test]
    fn another_try_replaces_the_state() {
        let now = Instant::now();
        let mut table = confirmed(now);
        let [link, browser, confirm] = ["l", "b", "c"].map(Digest::of);
        table.confirm(link, browser, confirm, sent("t"), now).expect("again");
        assert_eq!(table.take(Digest::of("s"), browser, now).err(), Some(Why::Unknown));
        assert!(table.take(Digest::of("t"), browser, now).is_ok());
    }

    #[test]
    fn a_login_ends_with_its_time_or_its_client() {
        let now = Instant::now();
        let (browser, later) = (Digest::of("b"), now + Duration::from_secs(120));
        assert_eq!(confirmed(now).take(Digest::of("s"), browser, later).err(), Some(Why::Unknown));
        assert!(!confirmed(now).has_browser(browser, later));
        let mut table = confirmed(now);
        table.end(0);
        assert_eq!(table.take(Digest::of("s"), browser, now).err(), Some(Why::Unknown));
    }

    #[test]
    fn a_login_that_nobody_finishes_is_reported() {
        let (mut table, now) = (Table::default(), Instant::now());
        let (sender, outcomes) = std::sync::mpsc::channel();
        let report = Box::new(move |outcome| drop(sender.send(outcome)));
        let [link, browser, confirm] = ["l", "b", "c"].map(Digest::of);
        table.begin(client(), link, report, now + Duration::from_secs(120), now).expect("room");
        table.open(link, browser, confirm, now).expect("the first browser");
        table.confirm(link, browser, confirm, sent("s"), now).expect("its form");
        drop(table.take(Digest::of("s"), browser, now));
        assert_eq!(outcomes.recv(), Ok(LoginOutcome::Refused(LoginRefusal::Unavailable)));
        assert!(outcomes.recv().is_err(), "once");
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut table, now) = (Table::default(), Instant::now());
        for n in 0..MAX_LOGINS {
            begin(&mut table, &n.to_string(), now).expect("room");
        }
        assert_eq!(begin(&mut table, "more", now), Err(Busy));
        table.end(7);
        assert!(begin(&mut table, "more", now).is_ok());
        // Those that are late make room.
        assert!(begin(&mut table, "later", now + Duration::from_secs(121)).is_ok());
        assert_eq!((table.logins.len(), table.links.len()), (1, 1));
    }

    #[test]
    fn secrets_look_like_secrets() {
        let (one, two) = (secret().expect("random"), secret().expect("random"));
        assert!(is_secret(&one) && one != two);
        for bad in ["", "a", &"a".repeat(44), &format!("{}=", &one[1..]), &format!("{};", &one[1..])] {
            assert!(!is_secret(bad), "{bad}");
        }
        // RFC 7636, appendix B.
        let challenge = Digest::of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").challenge();
        assert_eq!(challenge, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
