//! Names and passwords: what decides about them ([`Source`]), and tokens in place of passwords.

mod sources;

pub use sources::{Checks, Source};

use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealane_passwords::Found;
pub use sealane_passwords::{CodeSecret, hash_password};
use sources::undecided;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

/// What a client is told when too many others are being checked.
const BUSY: &str = "too many clients are being checked just now";
/// What a client is told when nobody can say whether its password is right.
pub(super) const NOT_NOW: &str = "authentication is not possible at the moment";
/// What a client is told whose token is of no use.
pub(super) const NO_TOKEN: &str = "SESSION: token expired";
/// What a client is told whose password is right, but who is in none of the groups that may connect.
const NOT_ALLOWED: &str = "this user may not connect";
/// What a token begins with, so that a password is never taken for one.
const TOKEN: &str = "SESS_ID_AT_";

/// What was decided about a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may come in.
    Accept {
        /// Under this user name, if it has one.
        user: Option<String>,
        /// The user's groups in the directory.
        groups: Vec<String>,
    },
    /// It has a good token: nobody is asked for the password.
    Token {
        /// The token's user.
        user: String,
        /// The user's groups in the directory; `None`: the directory does not answer.
        groups: Option<Vec<String>>,
    },
    /// Its password is wrong.
    Wrong,
    /// It may not; what it is told.
    Refuse(&'static str),
    /// It may try later.
    Later(&'static str),
}

/// Who wants to come in.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The certificate's common name, if there was a certificate.
    pub common_name: Option<String>,
    /// The user name, perhaps empty.
    pub username: String,
    /// The password or token, perhaps empty.
    pub password: String,
    /// From where.
    pub remote: SocketAddr,
}

/// Where the key of tokens comes from.
#[derive(Clone, Copy)]
pub enum TokenSecret {
    /// These bytes, which are random.
    Fixed([u8; 32]),
    /// The process': made once, or taken over from a predecessor.
    Process,
}

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the secret.
        f.write_str(match self {
            Self::Fixed(_) => "Fixed",
            Self::Process => "Process",
        })
    }
}

static PROCESS_SECRET: OnceLock<[u8; 32]> = OnceLock::new();

/// Tokens end with it, and it with the last process that it was handed over to.
pub(super) fn process_secret() -> [u8; 32] {
    *PROCESS_SECRET.get_or_init(|| {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
        bytes
    })
}

/// Takes a predecessor's over: before the first client comes.
pub(super) fn adopt_process_secret(bytes: [u8; 32]) {
    // Taken back after a hand-over that failed, it is there already.
    let _ = PROCESS_SECRET.set(bytes);
}

/// Decides who may come in.
#[derive(Debug)]
pub struct Authenticator {
    /// Each of them must accept a password.
    sources: Vec<Source>,
    token: Option<Duration>,
    secret: TokenSecret,
    /// Somebody else decides in the end, and names no users.
    asks: bool,
}

impl Authenticator {
    /// `token`: how long a token is good for; `None`: none are given.
    pub const fn new(sources: Vec<Source>, token: Option<Duration>, secret: TokenSecret) -> Self {
        Self { sources, token, secret, asks: false }
    }

    /// Somebody else decides in the end: clients may have tokens then, too.
    pub fn that_asks(self, asks: bool) -> Self {
        Self { asks, ..self }
    }

    /// Whether clients must have a name and a password.
    pub const fn wants_password(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Whether a user is one of the file's, where there is one.
    pub fn knows(&self, user: &str) -> bool {
        self.sources.iter().all(|source| match source {
            Source::Users(users) => users.knows(user),
            Source::Directory(_) | Source::Program(_) => true,
        })
    }

    /// Whether a token stands in the password's place, which cannot be guessed. Without tokens, a password may begin like one.
    pub fn is_token(&self, claim: &Claim) -> bool {
        self.token.is_some() && claim.password.starts_with(TOKEN)
    }

    /// The name under which a user is known here. A directory takes upper and lower case for the same, and a user must not have as
    /// many names, groups and guesses as there are ways to write the name.
    fn account<'a>(&self, username: &'a str) -> Cow<'a, str> {
        match self.sources.iter().any(|source| matches!(source, Source::Directory(_))) {
            true => Cow::Owned(username.to_lowercase()),
            false => Cow::Borrowed(username),
        }
    }

    /// The user for whom a wrong password counts: programs may take other ways to write the name for the same, too.
    pub fn guessed(username: &str) -> String {
        username.trim().to_lowercase()
    }

    /// Decides, when it is this client's turn, for which it waits no longer than `limit`. `unix` is the time in seconds.
    ///
    /// Nothing is left of a check that is dropped but a hash that is being computed.
    pub async fn decide(&self, claim: Claim, unix: u64, limit: Duration, checks: &Checks) -> Verdict {
        if self.asks && !self.wants_password() && !self.is_token(&claim) {
            return Verdict::Accept { user: Some(claim.username).filter(|name| !name.is_empty()), groups: Vec::new() };
        }
        if !self.asks && !self.wants_password() {
            return Verdict::Accept { user: None, groups: Vec::new() };
        }
        if claim.username.is_empty() || claim.password.is_empty() {
            return Verdict::Refuse("user name and password are required");
        }
        let account = self.account(&claim.username).into_owned();
        if self.is_token(&claim) {
            // A user who has been removed has no use of a token.
            return match self.knows(&account) && self.check_token(&account, &claim.password, unix) {
                true => self.with_token(account, limit).await,
                false => Verdict::Refuse(NO_TOKEN),
            };
        }
        let mut groups = Vec::new();
        for source in &self.sources {
            let found = source.check(&account, &claim, unix, limit, checks).await;
            if let Some(why) = undecided(&found) {
                return Verdict::Later(why);
            }
            match found {
                Found::Right(more) => groups.extend(more),
                Found::NotAllowed => return Verdict::Refuse(NOT_ALLOWED),
                _ => return Verdict::Wrong,
            }
        }
        Verdict::Accept { user: Some(account), groups }
    }

    /// A token stands for the password, but not for the user's entry in the directory and the user's groups.
    async fn with_token(&self, user: String, limit: Duration) -> Verdict {
        let mut groups = Some(Vec::new());
        for source in &self.sources {
            let Source::Directory(directory) = source else { continue };
            let found = directory.look_up(&user, limit).await;
            if undecided(&found).is_some() {
                groups = None;
                continue;
            }
            match found {
                Found::Right(more) => groups.iter_mut().for_each(|groups: &mut Vec<_>| groups.extend_from_slice(&more)),
                Found::NotAllowed => return Verdict::Refuse(NOT_ALLOWED),
                _ => return Verdict::Refuse(NO_TOKEN),
            }
        }
        Verdict::Token { user, groups }
    }

    /// A token for a client that was accepted, to be pushed; none if they are not given. A client that came in with a
    /// token keeps it: only a password buys more time.
    ///
    /// `user`: the name that it was accepted with.
    pub fn token_after(&self, claim: &Claim, user: &str, unix: u64) -> Option<String> {
        let lifetime = self.token?.as_secs();
        Some(match self.is_token(claim) {
            true => claim.password.clone(),
            false => self.token_for(user, unix.saturating_add(lifetime)),
        })
    }

    fn token_for(&self, username: &str, expires: u64) -> String {
        let secret = match self.secret {
            TokenSecret::Fixed(bytes) => bytes,
            TokenSecret::Process => process_secret(),
        };
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &secret));
        mac.update(&expires.to_be_bytes());
        mac.update(username.as_bytes());
        let bytes = [&expires.to_be_bytes()[..], &mac.sign().as_ref()[..24]].concat();
        format!("{TOKEN}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    fn check_token(&self, username: &str, token: &str, unix: u64) -> bool {
        let bytes = token.strip_prefix(TOKEN).and_then(|t| URL_SAFE_NO_PAD.decode(t).ok());
        let Some(expires) = bytes.as_deref().and_then(|b| b.first_chunk::<8>().copied()) else { return false };
        let expires = u64::from_be_bytes(expires);
        let expected = self.token_for(username, expires);
        // A lifetime that was made shorter holds for tokens from before, too.
        let lifetime = self.token.map_or(0, |l| l.as_secs());
        expires > unix
            && expires - unix <= lifetime
            && constant_time::verify_slices_are_equal(expected.as_bytes(), token.as_bytes()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;
    use sealane_passwords::{Directory, Pending, Users};
    use sources::WAIT_LIMIT;
    use std::sync::{Arc, Mutex};

    fn of_file(text: &str) -> Vec<Source> {
        vec![Source::Users(Arc::new(Users::parse(text).expect("well formed")))]
    }

    fn accept(user: &str) -> Verdict {
        Verdict::Accept { user: Some(user.to_owned()), groups: Vec::new() }
    }

    fn token(user: &str) -> Verdict {
        Verdict::Token { user: user.to_owned(), groups: Some(Vec::new()) }
    }

    fn claim(username: &str, password: &str) -> Claim {
        Claim {
            common_name: None,
            username: username.to_owned(),
            password: password.to_owned(),
            remote: ([192, 0, 2, 1], 1).into(),
        }
    }

    fn decide(auth: &Authenticator, claim: Claim, unix: u64) -> Verdict {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(auth.decide(claim, unix, WAIT_LIMIT, &Checks::default()))
    }

    #[test]
    fn a_file_of_hashes_decides() {
        let file = format!("# users\nalice:{}\n", hash_password("right").expect("hashes"));
        let auth = Authenticator::new(of_file(&file), None, TokenSecret::Fixed([1; 32]));
        assert_eq!(decide(&auth, claim("alice", "right"), 1), accept("alice"));
        for (name, password) in [("alice", "wrong"), ("bob", "decoy")] {
            assert_eq!(decide(&auth, claim(name, password), 1), Verdict::Wrong, "{name} {password}");
        }
        for (name, password) in [("", "right"), ("alice", "")] {
            assert!(matches!(decide(&auth, claim(name, password), 1), Verdict::Refuse(_)), "{name} {password}");
        }
        assert!(Users::parse("alice:plain").is_err());
        assert!(Users::parse("alice").is_err());
    }

    #[test]
    fn a_user_with_codes_needs_password_and_code() {
        let secret = CodeSecret::parse("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ").expect("base32");
        let (right, empty) = (hash_password("right").expect("hashes"), hash_password("").expect("hashes"));
        let file = format!("al:{right}:totp={}\nbo:{right}\ncy:{empty}\n", secret.to_base32().as_str());
        let auth = Authenticator::new(of_file(&file), None, TokenSecret::Fixed([1; 32]));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let checks = Checks::default();
        // RFC 6238, appendix B: the code at 59 s is 287082.
        let scrv1 =
            |password: &str, code: &str| format!("SCRV1:{}:{}", STANDARD.encode(password), STANDARD.encode(code));
        for (name, password, is_good) in [
            ("al", "right".to_owned(), false),
            ("al", scrv1("right", ""), false),
            ("al", scrv1("right", "287083"), false),
            ("al", scrv1("wrong", "287082"), false),
            ("al", "SCRV1:?:?".to_owned(), false),
            ("al", "wrong287082".to_owned(), false),
            ("al", scrv1("right", "287082"), true),
            ("al", scrv1("right", "287082"), false),
            ("al", "right287082".to_owned(), false),
            ("bo", scrv1("right", "287082"), true),
            ("bo", "right".to_owned(), true),
            ("bo", "right287082".to_owned(), false),
            ("cy", scrv1("", "287082"), false),
        ] {
            let verdict = runtime.block_on(auth.decide(claim(name, &password), 59, WAIT_LIMIT, &checks));
            let expected = if is_good { accept(name) } else { Verdict::Wrong };
            assert_eq!(verdict, expected, "{name} {password}");
        }
        // The next code, behind the password.
        let step = runtime.block_on(auth.decide(claim("al", "right081804"), 1_111_111_109, WAIT_LIMIT, &checks));
        assert_eq!(step, accept("al"));
    }

    #[test]
    fn a_command_decides() {
        let script = r#"read u; read p; [ "$p" = later ] && exit 75; [ "$u/$p/$untrusted_ip" = a/b/192.0.2.1 ]"#;
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let auth = Authenticator::new(vec![Source::Program(command)], None, TokenSecret::Fixed([1; 32]));
        assert_eq!(decide(&auth, claim("a", "b"), 1), accept("a"));
        assert_eq!(decide(&auth, claim("a", "c"), 1), Verdict::Wrong);
        assert!(matches!(decide(&auth, claim("a", "later"), 1), Verdict::Later(_)));
        let missing = vec![Source::Program(vec!["/nonexistent".into()])];
        let missing = Authenticator::new(missing, None, TokenSecret::Fixed([1; 32]));
        assert!(matches!(decide(&missing, claim("a", "b"), 1), Verdict::Later(_)));
    }

    /// Somebody else decides, and a token that only looks like one must not take that decision's place.
    #[test]
    fn where_somebody_else_decides_only_a_good_token_is_one() {
        let with = |lifetime| Authenticator::new(Vec::new(), lifetime, TokenSecret::Fixed([1; 32])).that_asks(true);
        let (none, some) = (with(None), with(Some(Duration::from_secs(60))));
        assert_eq!(decide(&none, claim("", ""), 1), Verdict::Accept { user: None, groups: Vec::new() });
        assert_eq!(decide(&none, claim("a", "x"), 1), accept("a"));
        assert_eq!(decide(&none, claim("a", "SESS_ID_AT_x"), 1), accept("a"));
        assert!(matches!(decide(&some, claim("a", "SESS_ID_AT_x"), 1), Verdict::Refuse(_)));
        let given = some.token_after(&claim("a", ""), "a", 1000).expect("tokens are given");
        assert_eq!(decide(&some, claim("a", &given), 1059), token("a"));
        assert!(matches!(decide(&some, claim("b", &given), 1059), Verdict::Refuse(_)));
    }

    #[test]
    fn a_token_stands_for_the_password_until_it_ends() {
        let file = format!("alice:{}\n", hash_password("right").expect("hashes"));
        let with = |file: &str, seconds| {
            let lifetime = Some(Duration::from_secs(seconds));
            Authenticator::new(of_file(file), lifetime, TokenSecret::Fixed([1; 32]))
        };
        let auth = with(&file, 60);
        let given = auth.token_after(&claim("alice", "right"), "alice", 1000).expect("tokens are given");
        // It is as good after it was used as before, and no better.
        assert_eq!(auth.token_after(&claim("alice", &given), "alice", 1059), Some(given.clone()));
        assert!(matches!(decide(&with("", 60), claim("alice", &given), 1001), Verdict::Refuse(_)), "a removed user");
        assert!(matches!(decide(&with(&file, 10), claim("alice", &given), 1001), Verdict::Refuse(_)), "made shorter");
        assert_eq!(decide(&auth, claim("alice", &given), 1059), token("alice"));
        assert!(matches!(decide(&auth, claim("alice", &given), 1060), Verdict::Refuse(_)));
        assert!(matches!(decide(&auth, claim("bob", &given), 1000), Verdict::Refuse(_)));
        assert!(given.len() < 128, "older clients take no longer passwords");
    }

    /// Knows one user, and says what it is told to say.
    #[derive(Debug)]
    struct Scripted(Mutex<(Found, Vec<String>)>);

    impl Scripted {
        fn say(&self, found: Found) {
            self.0.lock().expect("not poisoned").0 = found;
        }

        fn answer(&self, asked: String) -> Pending<'_, Found> {
            let mut script = self.0.lock().expect("not poisoned");
            script.1.push(asked);
            let found = script.0.clone();
            Box::pin(async move { found })
        }
    }

    impl Directory for Scripted {
        fn check<'a>(&'a self, user: &'a str, password: &'a str, _: Duration) -> Pending<'a, Found> {
            self.answer(format!("{user}:{password}"))
        }

        fn look_up<'a>(&'a self, user: &'a str, _: Duration) -> Pending<'a, Found> {
            self.answer(user.to_owned())
        }
    }

    #[test]
    fn a_directory_decides_and_names_groups() {
        let directory = Arc::new(Scripted(Mutex::new((Found::Right(vec!["staff".to_owned()]), Vec::new()))));
        let sources = vec![Source::Directory(directory.clone())];
        let auth = Authenticator::new(sources, Some(Duration::from_secs(60)), TokenSecret::Fixed([1; 32]));
        let accepted = Verdict::Accept { user: Some("al".to_owned()), groups: vec!["staff".to_owned()] };
        assert_eq!(decide(&auth, claim("Al", "right"), 1), accepted, "one name, however it is written");
        let scrv1 = |password: &str| format!("SCRV1:{}:{}", STANDARD.encode(password), STANDARD.encode("1"));
        assert_eq!(decide(&auth, claim("al", &scrv1("right")), 1), accepted);
        // Without a password, a directory lets everybody bind.
        assert_eq!(decide(&auth, claim("al", &scrv1("")), 1), Verdict::Wrong);
        assert_eq!(directory.0.lock().expect("not poisoned").1, ["al:right", "al:right"]);
        let given = auth.token_after(&claim("AL", "right"), "al", 1000).expect("tokens are given");
        let with_token = |groups| Verdict::Token { user: "al".to_owned(), groups };
        assert_eq!(decide(&auth, claim("AL", &given), 1001), with_token(Some(vec!["staff".to_owned()])));
        for (found, by_password, by_token) in [
            (Found::Wrong, Verdict::Wrong, Verdict::Refuse(NO_TOKEN)),
            (Found::NotAllowed, Verdict::Refuse(NOT_ALLOWED), Verdict::Refuse(NOT_ALLOWED)),
            (Found::Busy, Verdict::Later(BUSY), with_token(None)),
            (Found::Unavailable("away".to_owned()), Verdict::Later(NOT_NOW), with_token(None)),
        ] {
            directory.say(found);
            assert_eq!(decide(&auth, claim("al", "right"), 1), by_password);
            assert_eq!(decide(&auth, claim("al", &given), 1001), by_token);
        }
    }

    /// Each of several sources must say yes.
    #[test]
    fn sources_are_all_asked() {
        let program = |script: &str| Source::Program(["sh", "-c", script].map(str::to_owned).to_vec());
        for (one, other, is_good) in
            [("exit 0", "exit 0", true), ("exit 0", "exit 1", false), ("exit 1", "exit 0", false)]
        {
            let auth = Authenticator::new(vec![program(one), program(other)], None, TokenSecret::Fixed([1; 32]));
            let expected = if is_good { accept("a") } else { Verdict::Wrong };
            assert_eq!(decide(&auth, claim("a", "b"), 1), expected, "{one} {other}");
        }
    }
}
