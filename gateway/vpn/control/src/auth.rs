//! Names and passwords: a file of hashes, an external command, and tokens in place of passwords.

use crate::program::Program;
use anyhow::{Context, Result};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sealane_log as log;
pub use sealane_passwords::{CodeSecret, hash_password};
use sealane_passwords::{Turns, UsedCodes, Users, WithCode};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use zeroize::Zeroizing;

/// How long an external command may take.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// External commands that run at a time.
const PROGRAMS: usize = 16;
/// A command's exit code for "not now" (EX_TEMPFAIL of sysexits.h).
const TEMPORARY: i32 = 75;
/// What a client is told when too many others are being checked.
const BUSY: &str = "too many clients are being checked just now";
/// What a token begins with, so that a password is never taken for one.
const TOKEN: &str = "SESS_ID_AT_";

/// What was decided about a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may come in, under this user name if it has one.
    Accept(Option<String>),
    /// It has a good token of this user's: nobody else is asked.
    Token(String),
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

/// What checks of all clients share. As many wait as there are clients: each has one check at a time, which ends with the client
/// or with its key exchange. So those who may begin a handshake ([`sealane_ovpn::share`]) may also have their password checked.
#[derive(Debug)]
pub struct Checks {
    hashes: Turns,
    programs: Turns,
    codes: Mutex<UsedCodes>,
}

impl Default for Checks {
    fn default() -> Self {
        Self { hashes: Turns::of_hashes(), programs: Turns::new(PROGRAMS), codes: Mutex::default() }
    }
}

/// Where the key of tokens comes from.
#[derive(Clone, Copy, Debug)]
pub enum TokenSecret {
    /// These bytes, which are random.
    Fixed([u8; 32]),
    /// The process': made once, or taken over from a predecessor.
    Process,
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
    users: Option<Arc<Users>>,
    command: Option<Vec<String>>,
    token: Option<Duration>,
    secret: TokenSecret,
    /// Somebody else decides in the end, and names no users.
    asks: bool,
}

impl Authenticator {
    /// `token`: how long a token is good for; `None`: none are given.
    pub fn new(
        users: Option<Arc<Users>>,
        command: Option<Vec<String>>,
        token: Option<Duration>,
        secret: TokenSecret,
    ) -> Self {
        Self { users, command, token, secret, asks: false }
    }

    /// Somebody else decides in the end: clients may have tokens then, too.
    pub fn that_asks(self, asks: bool) -> Self {
        Self { asks, ..self }
    }

    /// Whether clients must have a name and a password.
    pub const fn wants_password(&self) -> bool {
        self.users.is_some() || self.command.is_some()
    }

    /// Whether a user is one of the file's, where there is one.
    pub fn knows(&self, user: &str) -> bool {
        self.users.as_ref().is_none_or(|users| users.knows(user))
    }

    /// Whether a token stands in the password's place, which cannot be guessed. Without tokens, a password may begin like one.
    pub fn is_token(&self, claim: &Claim) -> bool {
        self.token.is_some() && claim.password.starts_with(TOKEN)
    }

    /// Decides, when it is this client's turn, for which it waits no longer than `limit`. `unix` is the time in seconds.
    ///
    /// Nothing is left of a check that is dropped but a hash that is being computed.
    pub async fn decide(&self, claim: Claim, unix: u64, limit: Duration, checks: &Checks) -> Verdict {
        if self.asks && !self.wants_password() && !self.is_token(&claim) {
            return Verdict::Accept(Some(claim.username).filter(|name| !name.is_empty()));
        }
        if !self.asks && !self.wants_password() {
            return Verdict::Accept(None);
        }
        if claim.username.is_empty() || claim.password.is_empty() {
            return Verdict::Refuse("user name and password are required");
        }
        if self.is_token(&claim) {
            // A user who has been removed has no use of a token.
            return match self.knows(&claim.username) && self.check_token(&claim.username, &claim.password, unix) {
                true => Verdict::Token(claim.username),
                false => Verdict::Refuse("SESSION: token expired"),
            };
        }
        if let Some(users) = self.users.clone() {
            let name = claim.username.clone();
            let secret = users.code_secret(&name).cloned();
            let sent = WithCode::of(&claim.password, secret.is_some(), |text| STANDARD.decode(text).ok());
            // What cannot be taken apart takes as long as a wrong password: nobody learns who has codes.
            let (password, code) = match sent {
                Some(sent) => (sent.password.into_owned(), sent.code),
                None => (String::new(), None),
            };
            let (password, is_empty) = (Zeroizing::new(password.clone()), password.is_empty());
            // A task begins when it is made, and so it is made when it is its turn; the turn is over when the task is.
            let Some(turn) = checks.hashes.turn(limit).await else { return Verdict::Later(BUSY) };
            let check = tokio::task::spawn_blocking(move || {
                let is_right = users.verify(&name, &password);
                drop(turn);
                is_right
            });
            if !check.await.unwrap_or(false) || is_empty {
                return Verdict::Wrong;
            }
            if let Some(secret) = secret {
                let mut used = checks.codes.lock().unwrap_or_else(PoisonError::into_inner);
                if !code.is_some_and(|code| used.accept(&claim.username, &secret, &code, unix)) {
                    return Verdict::Wrong;
                }
            }
        }
        match &self.command {
            None => Verdict::Accept(Some(claim.username)),
            Some(command) => {
                let Some(_turn) = checks.programs.turn(limit).await else { return Verdict::Later(BUSY) };
                match tokio::time::timeout(WAIT_LIMIT, ask(command, &claim)).await {
                    Ok(Ok(Some(0))) => Verdict::Accept(Some(claim.username)),
                    Ok(Ok(Some(TEMPORARY))) => Verdict::Later("authentication is not possible at the moment"),
                    Ok(Ok(_)) => Verdict::Wrong,
                    Ok(Err(e)) => {
                        log::warn!("tunnel: cannot run the authentication command: {e:#}");
                        Verdict::Later("authentication is not possible at the moment")
                    }
                    Err(_) => {
                        log::warn!("tunnel: the authentication command took longer than {} s", WAIT_LIMIT.as_secs());
                        Verdict::Later("authentication is not possible at the moment")
                    }
                }
            }
        }
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

/// Runs the command: name and password on two lines of its standard input, the rest in its environment.
async fn ask(command: &[String], claim: &Claim) -> Result<Option<i32>> {
    let (program, arguments) = command.split_first().context("the command is empty")?;
    if claim.username.contains('\n') || claim.password.contains('\n') {
        return Ok(None);
    }
    let mut asked = tokio::process::Command::new(program);
    asked
        .args(arguments)
        .env("username", &claim.username)
        .env("common_name", claim.common_name.as_deref().unwrap_or(""))
        .env("untrusted_ip", claim.remote.ip().to_string())
        .env("untrusted_port", claim.remote.port().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let mut running = Program::start(&mut asked).with_context(|| program.clone())?;
    if let Some(mut stdin) = running.stdin() {
        // A command that does not read them has its reasons.
        let _ = stdin.write_all(format!("{}\n{}\n", claim.username, claim.password).as_bytes()).await;
    }
    Ok(running.wait().await?.code())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let auth = Authenticator::new(
            Some(Arc::new(Users::parse(&file).expect("well formed"))),
            None,
            None,
            TokenSecret::Fixed([1; 32]),
        );
        assert_eq!(decide(&auth, claim("alice", "right"), 1), Verdict::Accept(Some("alice".into())));
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
        let users = Some(Arc::new(Users::parse(&file).expect("well formed")));
        let auth = Authenticator::new(users, None, None, TokenSecret::Fixed([1; 32]));
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
            let expected = if is_good { Verdict::Accept(Some(name.to_owned())) } else { Verdict::Wrong };
            assert_eq!(verdict, expected, "{name} {password}");
        }
        // The next code, behind the password.
        let step = runtime.block_on(auth.decide(claim("al", "right081804"), 1_111_111_109, WAIT_LIMIT, &checks));
        assert_eq!(step, Verdict::Accept(Some("al".to_owned())));
    }

    #[test]
    fn a_command_decides() {
        let script = r#"read u; read p; [ "$p" = later ] && exit 75; [ "$u/$p/$untrusted_ip" = a/b/192.0.2.1 ]"#;
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let auth = Authenticator::new(None, Some(command), None, TokenSecret::Fixed([1; 32]));
        assert_eq!(decide(&auth, claim("a", "b"), 1), Verdict::Accept(Some("a".into())));
        assert_eq!(decide(&auth, claim("a", "c"), 1), Verdict::Wrong);
        assert!(matches!(decide(&auth, claim("a", "later"), 1), Verdict::Later(_)));
        let missing = Authenticator::new(None, Some(vec!["/nonexistent".into()]), None, TokenSecret::Fixed([1; 32]));
        assert!(matches!(decide(&missing, claim("a", "b"), 1), Verdict::Later(_)));
    }

    /// Somebody else decides, and a token that only looks like one must not take that decision's place.
    #[test]
    fn where_somebody_else_decides_only_a_good_token_is_one() {
        let with = |lifetime| Authenticator::new(None, None, lifetime, TokenSecret::Fixed([1; 32])).that_asks(true);
        let (none, some) = (with(None), with(Some(Duration::from_secs(60))));
        assert_eq!(decide(&none, claim("", ""), 1), Verdict::Accept(None));
        assert_eq!(decide(&none, claim("a", "x"), 1), Verdict::Accept(Some("a".to_owned())));
        assert_eq!(decide(&none, claim("a", "SESS_ID_AT_x"), 1), Verdict::Accept(Some("a".to_owned())));
        assert!(matches!(decide(&some, claim("a", "SESS_ID_AT_x"), 1), Verdict::Refuse(_)));
        let token = some.token_after(&claim("a", ""), "a", 1000).expect("tokens are given");
        assert_eq!(decide(&some, claim("a", &token), 1059), Verdict::Token("a".to_owned()));
        assert!(matches!(decide(&some, claim("b", &token), 1059), Verdict::Refuse(_)));
    }

    #[test]
    fn a_token_stands_for_the_password_until_it_ends() {
        let file = format!("alice:{}\n", hash_password("right").expect("hashes"));
        let with = |file: &str, seconds| {
            let users = Users::parse(file).expect("well formed");
            let lifetime = Some(Duration::from_secs(seconds));
            Authenticator::new(Some(Arc::new(users)), None, lifetime, TokenSecret::Fixed([1; 32]))
        };
        let auth = with(&file, 60);
        let token = auth.token_after(&claim("alice", "right"), "alice", 1000).expect("tokens are given");
        // It is as good after it was used as before, and no better.
        assert_eq!(auth.token_after(&claim("alice", &token), "alice", 1059), Some(token.clone()));
        assert!(matches!(decide(&with("", 60), claim("alice", &token), 1001), Verdict::Refuse(_)), "a removed user");
        assert!(matches!(decide(&with(&file, 10), claim("alice", &token), 1001), Verdict::Refuse(_)), "made shorter");
        assert_eq!(decide(&auth, claim("alice", &token), 1059), Verdict::Token("alice".to_owned()));
        assert!(matches!(decide(&auth, claim("alice", &token), 1060), Verdict::Refuse(_)));
        assert!(matches!(decide(&auth, claim("bob", &token), 1000), Verdict::Refuse(_)));
        assert!(token.len() < 128, "older clients take no longer passwords");
    }
}
