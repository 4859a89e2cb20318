//! Passwords of clients (`basic_auth`), as a lane sees them: which it knows to be right, and which are being checked.
//!
//! A lane never computes the hash of a password: that takes tens of milliseconds. It asks control ([`PasswordCheck`]) and gets the
//! verdict by its mailbox. What was right is known for a while, so that a client does not cost a hash for each request. Requests
//! with the same credentials as one that waits already wait for the same verdict.
//!
//! What is kept of credentials is an HMAC under a key that the lane has made for itself. It covers the user's hash in the file, too:
//! a user who is removed, or whose password changes, is known no more with the request that finds the new file.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sealane_http::{Fields, Known};
use sealane_lane::{Key, Millis};
use sealane_passwords::Users;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// How long credentials that were right are known. A changed password counts at once, so this bounds memory alone.
const KNOWN_FOR: Millis = 5 * 60 * 1000;
/// How many of them.
const KNOWN: usize = 4096;
/// How long a check may take.
pub(crate) const CHECK_LIMIT: Millis = 10_000;
/// Checks of a lane that are under way, and requests that wait for one of them.
const CHECKS: usize = 256;
const WAITING: usize = 256;
/// The longest credentials, decoded.
const MAX_CREDENTIALS: usize = 1024;

/// Credentials, under a lane's key.
pub type Digest = [u8; 32];

/// A password that control is to check.
pub struct PasswordCheck {
    /// The lane that asks.
    pub slot: usize,
    /// What the verdict is about, for that lane.
    pub digest: Digest,
    /// Who may come.
    pub users: Arc<Users>,
    /// Who says to come.
    pub user: String,
    /// With which password.
    pub password: Zeroizing<String>,
    /// From where.
    pub client: IpAddr,
}

impl fmt::Debug for PasswordCheck {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordCheck").field("slot", &self.slot).field("client", &self.client).finish_non_exhaustive()
    }
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordVerdict {
    /// The password is right.
    Right,
    /// It is wrong, or there is no such user.
    Wrong,
    /// It was not looked at: this client, or somebody for this user, has guessed too often. After so long it may try again.
    Throttled(Duration),
    /// It was not looked at: too many others wait.
    Busy,
}

/// Takes a check to control. False if there is no room for it. Never waits.
pub type PasswordSink = Box<dyn Fn(PasswordCheck) -> bool + Send>;

/// What a client says in `Authorization` (RFC 7617), in memory that is wiped.
pub(crate) struct Credentials {
    bytes: [u8; MAX_CREDENTIALS],
    len: usize,
    colon: usize,
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.bytes[..self.len].zeroize();
    }
}

impl Credentials {
    /// Reads them. `None` where there are none, or more than one, or none that can be.
    pub fn of(fields: &Fields) -> Option<Self> {
        const BASE64: GeneralPurpose = GeneralPurpose::new(
            &STANDARD,
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
        );
        let mut all = fields.all(Known::Authorization);
        let (Some(value), None) = (all.next(), all.next()) else { return None };
        let (scheme, rest) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let mut out = Self { bytes: [0; MAX_CREDENTIALS], len: 0, colon: 0 };
        out.len = BASE64.decode_slice(rest.trim_ascii(), &mut out.bytes).ok()?;
        let text = std::str::from_utf8(&out.bytes[..out.len]).ok()?;
        // RFC 7617 §2: neither may have control characters.
        if text.chars().any(char::is_control) {
            return None;
        }
        out.colon = text.find(':').filter(|colon| *colon > 0)?;
        Some(out)
    }

    pub fn user(&self) -> &str {
        // It was UTF-8, and was cut before an ASCII character.
        std::str::from_utf8(&self.bytes[..self.colon]).unwrap_or_default()
    }

    pub fn password(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.colon + 1..self.len]).unwrap_or_default()
    }
}

/// Credentials that were right.
struct Right {
    user: Rc<str>,
    until: Millis,
}

/// Credentials that are being checked.
pub(crate) struct Waiting {
    pub user: Rc<str>,
    pub exchanges: Vec<Key>,
    until: Millis,
}

/// What follows for a request that waits for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A check is under way.
    Joined,
    /// One is to be begun.
    First,
    /// Too many wait.
    Full,
}

/// See the module.
pub(crate) struct Logins {
    ask: PasswordSink,
    key: hmac::Key,
    right: HashMap<Digest, Right>,
    waiting: HashMap<Digest, Waiting>,
}

impl Logins {
    /// Nobody is known. The error is the random generator's.
    pub fn new(ask: PasswordSink) -> std::io::Result<Self> {
        let mut key = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut key[..]).map_err(|_| std::io::Error::other("the system has no random bytes"))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key[..]);
        Ok(Self { ask, key, right: HashMap::new(), waiting: HashMap::new() })
    }

    /// What credentials are known by, as long as the user's hash stays what it is.
    pub fn digest(&self, users: &Users, credentials: &Credentials) -> Digest {
        let mut mac = hmac::Context::with_key(&self.key);
        // Neither a hash nor a name has a NUL in it.
        mac.update(users.hash_of(credentials.user()).unwrap_or_default().as_bytes());
        mac.update(&[0]);
        mac.update(credentials.user().as_bytes());
        mac.update(&[0]);
        mac.update(credentials.password().as_bytes());
        let mut digest = [0; 32];
        digest.copy_from_slice(mac.sign().as_ref());
        digest
    }

    /// The user, if the credentials were right a while ago and the file has the user still.
    pub fn known(&self, users: &Users, credentials: &Credentials, digest: &Digest, now: Millis) -> Option<Rc<str>> {
        let right = self.right.get(digest).filter(|right| right.until > now)?;
        users.knows(credentials.user()).then(|| right.user.clone())
    }

    /// A request waits for the verdict about its credentials.
    pub fn wait(&mut self, digest: Digest, user: &str, exchange: Key, now: Millis) -> Place {
        if self.waiting.len() >= CHECKS && !self.waiting.contains_key(&digest) {
            self.waiting.retain(|_, waiting| waiting.until > now);
            if self.waiting.len() >= CHECKS {
                return Place::Full;
            }
        }
        let first = || Waiting { user: user.into(), exchanges: vec![exchange], until: now + CHECK_LIMIT };
        match self.waiting.entry(digest) {
            Entry::Vacant(vacant) => {
                vacant.insert(first());
                Place::First
            }
            // Its verdict is not coming any more, and those that waited have been told.
            Entry::Occupied(mut late) if late.get().until <= now => {
                late.insert(first());
                Place::First
            }
            Entry::Occupied(full) if full.get().exchanges.len() >= WAITING => Place::Full,
            Entry::Occupied(mut other) => {
                other.get_mut().exchanges.push(exchange);
                Place::Joined
            }
        }
    }

    /// Has control check the password. False if it has no room for that: nobody waits for it then.
    pub fn ask(&mut self, check: PasswordCheck) -> bool {
        let digest = check.digest;
        let taken = (self.ask)(check);
        if !taken {
            self.waiting.remove(&digest);
        }
        taken
    }

    /// The verdict has come: who has waited for it. `right`: the credentials are known from now on.
    pub fn decided(&mut self, digest: Digest, right: bool, now: Millis) -> Option<Waiting> {
        let waiting = self.waiting.remove(&digest)?;
        if right {
            if self.right.len() >= KNOWN {
                self.right.retain(|_, right| right.until > now);
            }
            if self.right.len() >= KNOWN
                && let Some(oldest) = self.right.iter().min_by_key(|(_, right)| right.until).map(|(digest, _)| *digest)
            {
                self.right.remove(&oldest);
            }
            self.right.insert(digest, Right { user: waiting.user.clone(), until: now + KNOWN_FOR });
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD as BASE64;

    fn sent(values: &[&str]) -> Option<(String, String)> {
        let mut fields = Fields::new();
        for value in values {
            // A value that ends with a space never comes so far.
            fields.push(b"authorization", value.trim_end().as_bytes()).unwrap();
        }
        Credentials::of(&fields).map(|c| (c.user().to_owned(), c.password().to_owned()))
    }

    fn basic(text: impl AsRef<[u8]>) -> String {
        format!("Basic {}", BASE64.encode(text))
    }

    #[test]
    fn credentials_are_read_in_one_way() {
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(sent(&["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="]), pair("Aladdin", "open sesame"));
        assert_eq!(sent(&["basic   QWxhZGRpbjpvcGVuIHNlc2FtZQ"]), pair("Aladdin", "open sesame"));
        assert_eq!(sent(&[&basic("a:b:c")]), pair("a", "b:c"));
        assert_eq!(sent(&[&basic("jürgen:пароль")]), pair("jürgen", "пароль"));
        assert_eq!(sent(&[&basic("a:")]), pair("a", ""));
        for wrong in [
            "Basic",
            "Basic ",
            "Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "Basic !!!",
            "BasicQWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            &basic("no colon"),
            &basic(":nobody"),
            &basic("a\0b:c"),
            &basic("a:b\n"),
            &basic(b"a:\xff"),
            &basic(format!("a:{}", "b".repeat(2000))),
        ] {
            assert_eq!(sent(&[wrong]), None, "{wrong}");
        }
        assert_eq!(sent(&[]), None);
        let one = basic("a:b");
        assert_eq!(sent(&[&one, &one]), None, "which of them a server reads is anybody's guess");
    }

    fn logins() -> Logins {
        Logins::new(Box::new(|_| true)).unwrap()
    }

    fn credentials(text: &str) -> Credentials {
        let mut fields = Fields::new();
        fields.push(b"Authorization", basic(text).as_bytes()).unwrap();
        Credentials::of(&fields).unwrap()
    }

    const HASHES: [&str; 2] = [
        "$2b$04$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu",
        "$2b$04$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuy",
    ];

    #[test]
    fn what_was_right_is_known_until_the_user_changes() {
        let mut logins = logins();
        let users = |hash: &str| Users::parse(&format!("alice:{hash}\n")).unwrap();
        let (before, changed, gone) = (users(HASHES[0]), users(HASHES[1]), Users::default());
        let (alice, other) = (credentials("alice:right"), credentials("alice:wrong"));
        let digest = logins.digest(&before, &alice);
        assert_eq!(logins.wait(digest, "alice", Key::from_u64(1), 0), Place::First);
        assert_eq!(logins.wait(digest, "alice", Key::from_u64(2), 0), Place::Joined);
        assert!(logins.known(&before, &alice, &digest, 0).is_none());
        let waiting = logins.decided(digest, true, 0).unwrap();
        assert_eq!(waiting.exchanges, [Key::from_u64(1), Key::from_u64(2)]);
        assert_eq!(logins.known(&before, &alice, &digest, KNOWN_FOR - 1).as_deref(), Some("alice"));
        assert!(logins.known(&before, &alice, &digest, KNOWN_FOR).is_none());
        assert!(logins.known(&gone, &alice, &digest, 1).is_none());
        for (users, credentials) in [(&changed, &alice), (&gone, &alice), (&before, &other)] {
            assert_ne!(logins.digest(users, credentials), digest);
        }
        assert!(logins.decided(digest, true, 0).is_none(), "a verdict that nobody waits for changes nothing");
        // Where the name ends and the password begins counts.
        assert_ne!(logins.digest(&gone, &credentials("ab:c")), logins.digest(&gone, &credentials("a:bc")));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut logins = logins();
        let digest = |n: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_be_bytes());
            digest
        };
        let key = Key::from_u64(1);
        for n in 0..2 * KNOWN {
            assert_eq!(logins.wait(digest(n), "a", key, n as Millis), Place::First);
            assert!(logins.decided(digest(n), true, n as Millis).is_some());
        }
        assert_eq!(logins.right.len(), KNOWN);
        assert!(logins.right.contains_key(&digest(2 * KNOWN - 1)) && !logins.right.contains_key(&digest(0)));
        for n in 0..CHECKS {
            assert_eq!(logins.wait(digest(n), "a", key, 0), Place::First);
        }
        assert_eq!(logins.wait(digest(CHECKS), "a", key, 0), Place::Full);
        for _ in 1..WAITING {
            assert_eq!(logins.wait(digest(0), "a", key, 0), Place::Joined);
        }
        assert_eq!(logins.wait(digest(0), "a", key, 0), Place::Full);
        // Verdicts that never came keep nobody out.
        assert_eq!(logins.wait(digest(0), "a", key, CHECK_LIMIT), Place::First);
        assert_eq!(logins.wait(digest(CHECKS), "a", key, CHECK_LIMIT), Place::First);
        assert!(logins.waiting.len() <= CHECKS);
    }

    #[test]
    fn what_control_does_not_take_is_waited_for_by_nobody() {
        let mut logins = Logins::new(Box::new(|_| false)).unwrap();
        let digest = [1; 32];
        assert_eq!(logins.wait(digest, "a", Key::from_u64(1), 0), Place::First);
        let check = PasswordCheck {
            slot: 0,
            digest,
            users: Arc::default(),
            user: "a".into(),
            password: Zeroizing::new("secret".into()),
            client: [192, 0, 2, 1].into(),
        };
        assert!(!format!("{check:?}").contains("secret"));
        assert!(!logins.ask(check));
        assert!(logins.waiting.is_empty());
    }
}
