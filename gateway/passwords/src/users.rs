//! Files of users: a line `name:hash` for each, as `htpasswd` and `sealane tunnel passwd` write them. `:totp=SECRET` behind it gives the
//! user one-time codes.

use crate::codes::CodeSecret;
use argon2::{Argon2, Params, PasswordHash, PasswordHasher as _, PasswordVerifier as _};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The longest password whose every byte counts for bcrypt.
const MAX_BCRYPT_PASSWORD: usize = 72;
/// The highest cost of bcrypt. Each step doubles the work; 15 takes about two seconds.
const MAX_BCRYPT_COST: u32 = 15;
/// The most memory of a check with Argon2, in KiB.
const MAX_ARGON2_MEMORY: u32 = 1 << 20;
/// The most memory of a check with Argon2 times its passes, in KiB: a few seconds.
const MAX_ARGON2_WORK: u64 = 1 << 23;
/// The most users of a file.
const MAX_USERS: usize = 1_000_000;
/// What makes a line that is accepted.
const HELP: &str = "run `htpasswd -B FILE NAME` (bcrypt) or `sealane tunnel passwd NAME` (Argon2id) to make the line";

/// What makes a line with a secret for codes.
const CODE_HELP: &str = "run `sealane tunnel passwd --totp NAME` to make the line";

/// What is wrong with a file of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong. It never contains the hash.
    pub what: String,
    /// What to do.
    pub help: &'static str,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}; {}", self.what, self.help),
            line => write!(f, "line {line}: {}; {}", self.what, self.help),
        }
    }
}

impl std::error::Error for Mistake {}

/// Users and the hashes of their passwords.
#[derive(Default)]
pub struct Users {
    hashes: HashMap<String, String>,
    codes: HashMap<String, CodeSecret>,
    /// The hashes again, for names that are not there.
    decoys: Vec<String>,
    /// Chooses among them.
    hasher: RandomState,
}

impl fmt::Debug for Users {
    /// Without the hashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("count", &self.hashes.len()).finish_non_exhaustive()
    }
}

impl Users {
    /// Reads lines `name:hash`. Empty lines and those that begin with `#` are skipped, as is what follows another `:`, but for
    /// `totp=SECRET`. Hashes are of Argon2 or bcrypt.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        let (mut hashes, mut codes) = (HashMap::new(), HashMap::new());
        for (number, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: String| Mistake { line: number + 1, what, help: HELP };
            let Some((name, rest)) = line.split_once(':') else { return Err(wrong("it is not `name:hash`".into())) };
            let mut fields = rest.split(':');
            let hash = fields.next().unwrap_or_default();
            check_hash(hash).map_err(wrong)?;
            for secret in fields.filter_map(|field| field.strip_prefix("totp=")) {
                let secret = CodeSecret::parse(secret).map_err(|what| Mistake { help: CODE_HELP, ..wrong(what) })?;
                if codes.insert(name.to_owned(), secret).is_some() {
                    return Err(Mistake { help: CODE_HELP, ..wrong("the user has two secrets for codes".into()) });
                }
            }
            if name.is_empty() || name.trim() != name || name.chars().any(char::is_control) {
                return Err(wrong("the name is empty, or has control characters or spaces around it".into()));
            }
            if hashes.insert(name.to_owned(), hash.to_owned()).is_some() {
                return Err(wrong(format!("the user {name:?} is already in this file")));
            }
            if hashes.len() > MAX_USERS {
                let what = format!("there are more than {MAX_USERS} users");
                return Err(Mistake { line: 0, what, help: "ask a server instead: `forward_auth`" });
            }
        }
        let decoys = hashes.values().cloned().collect();
        Ok(Self { hashes, codes, decoys, hasher: RandomState::new() })
    }

    /// How many users there are.
    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is a user of this name.
    pub fn knows(&self, name: &str) -> bool {
        self.hashes.contains_key(name)
    }

    /// What a user's one-time codes are made from, if the user must send one.
    pub fn code_secret(&self, name: &str) -> Option<&CodeSecret> {
        self.codes.get(name)
    }

    /// Whether some user must send a one-time code.
    pub fn has_codes(&self) -> bool {
        !self.codes.is_empty()
    }

    /// The hash of a user's password: with it changes what was known of the user.
    pub fn hash_of(&self, name: &str) -> Option<&str> {
        self.hashes.get(name).map(String::as_str)
    }

    /// Whether the password is this user's. It takes tens of milliseconds or more: not on a thread that others wait for. A name that
    /// is not there takes as long as one that is: some user's hash is checked, always the same for the same name.
    pub fn verify(&self, name: &str, password: &str) -> bool {
        let known = self.hashes.get(name);
        let decoy = || self.decoys.get(self.hasher.hash_one(name) as usize % self.decoys.len().max(1));
        let Some(hash) = known.or_else(decoy) else { return false };
        let right = if hash.starts_with("$2") {
            // Of a longer one, bcrypt looks only at the beginning.
            bcrypt::verify(password, hash).unwrap_or(false) && password.len() <= MAX_BCRYPT_PASSWORD
        } else {
            let parsed = PasswordHash::new(hash);
            parsed.is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
        };
        right && known.is_some()
    }
}

/// Whether a hash can be checked, in reasonable time.
fn check_hash(hash: &str) -> Result<(), String> {
    let starts = |with: &[&str]| with.iter().any(|start| hash.starts_with(start));
    let refused = |kind: &str| Err(format!("the hash is {kind}: attackers can guess its password too fast"));
    match () {
        () if starts(&["$2a$", "$2b$", "$2y$"]) => check_bcrypt(hash),
        () if starts(&["$argon2"]) => check_argon2(hash),
        () if starts(&["$apr1$", "$1$"]) => refused("MD5"),
        () if starts(&["{SHA}", "{SSHA}", "{sha}", "{ssha}"]) => refused("SHA-1"),
        () if starts(&["$5$", "$6$"]) => refused("SHA-crypt"),
        () if hash.len() == 13 && hash.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/')) => {
            refused("DES-crypt")
        }
        () if starts(&["$2x$", "$y$", "$7$", "$sha1$", "$md5", "$scrypt$", "$s0$", "$pbkdf2"]) => {
            Err("the hash is neither bcrypt nor Argon2".to_owned())
        }
        () => Err("the line has no hash after the name: passwords are not stored as text".to_owned()),
    }
}

fn check_bcrypt(hash: &str) -> Result<(), String> {
    let parts: bcrypt::HashParts = hash.parse().map_err(|_| "the hash of bcrypt is malformed".to_owned())?;
    match parts.get_cost() {
        cost @ (..4 | 32..) => Err(format!("bcrypt has no cost {cost}")),
        cost if cost > MAX_BCRYPT_COST => {
            Err(format!("the cost of bcrypt is {cost}, above {MAX_BCRYPT_COST}: each request would take many seconds"))
        }
        _ => Ok(()),
    }
}

fn check_argon2(hash: &str) -> Result<(), String> {
    let malformed = |e: &dyn fmt::Display| format!("the hash of Argon2 is malformed: {e}");
    let parsed = PasswordHash::new(hash).map_err(|e| malformed(&e))?;
    if argon2::Algorithm::new(parsed.algorithm).is_err() || parsed.hash.is_none() || parsed.salt.is_none() {
        return Err(malformed(&"a part is missing"));
    }
    let params = Params::try_from(&parsed).map_err(|e| malformed(&e))?;
    let work = u64::from(params.m_cost()) * u64::from(params.t_cost());
    if params.m_cost() > MAX_ARGON2_MEMORY || work > MAX_ARGON2_WORK {
        return Err(format!(
            "Argon2's m={} and t={} are too expensive for a check: m may be at most {MAX_ARGON2_MEMORY}, m·t at most {MAX_ARGON2_WORK}",
            params.m_cost(),
            params.t_cost()
        ));
    }
    Ok(())
}

/// The hash of a password, for a line: Argon2id with the default parameters. The error is the random generator's.
pub fn hash_password(password: &str) -> Result<String, String> {
    let mut salt = [0; 16];
    aws_lc_rs::rand::fill(&mut salt).map_err(|_| "the system has no random bytes".to_owned())?;
    let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt).map_err(|e| e.to_string())?;
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bcrypt with the least cost, in the version that `htpasswd -B` writes.
    fn bcrypt(password: &str) -> String {
        bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap().format_for_version(bcrypt::Version::TwoY)
    }

    #[test]
    fn a_user_may_have_codes() {
        let hash = bcrypt("x");
        let secret = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
        let users =
            Users::parse(&format!("al:{hash}:totp={secret}\nbo:{hash}:Bob:totp={secret}\ncy:{hash}:Cy\n")).unwrap();
        assert!(users.has_codes() && users.verify("al", "x"));
        assert_eq!(users.code_secret("al"), Some(&CodeSecret::parse(secret).unwrap()));
        assert!(users.code_secret("bo").is_some() && users.code_secret("cy").is_none());
        for (fields, what) in [
            ("totp=", "has 0 bytes"),
            ("totp=1", "not base32"),
            (&format!("totp={secret}:totp={secret}"), "two secrets"),
        ] {
            let mistake = Users::parse(&format!("al:{hash}:{fields}\n")).unwrap_err();
            assert!(mistake.line == 1 && mistake.what.contains(what) && mistake.help.contains("--totp"), "{mistake}");
        }
    }

    #[test]
    fn both_kinds_of_hashes_decide() {
        let file = format!(
            "# users\n\nalice:{}\r\nbob:{}:Bob from next door\n",
            hash_password("right").unwrap(),
            bcrypt("correct horse")
        );
        let users = Users::parse(&file).unwrap();
        assert_eq!(users.count(), 2);
        for (name, password, good) in [
            ("alice", "right", true),
            ("alice", "correct horse", false),
            ("bob", "correct horse", true),
            ("bob", "right", false),
            ("bob", "", false),
            ("bob", "correct horse\0", false),
            // A decoy's password is nobody's.
            ("carol", "right", false),
            ("carol", "correct horse", false),
            ("", "right", false),
        ] {
            assert_eq!(users.verify(name, password), good, "{name} {password:?}");
        }
        assert!(users.knows("bob") && !users.knows("carol"));
        assert!(users.hash_of("bob").unwrap().starts_with("$2y$04$") && users.hash_of("carol").is_none());
        assert!(!format!("{users:?}").contains('$'));
        assert!(!Users::parse("").unwrap().verify("alice", "right"));
    }

    #[test]
    fn a_password_that_is_too_long_for_bcrypt_is_wrong() {
        let longest = "L".repeat(72);
        // What `htpasswd -B` makes of a longer one is the hash of its first 72 bytes.
        let users = Users::parse(&format!("al:{}\nbo:{}\n", bcrypt(&longest), hash_password(&"L".repeat(73)).unwrap()));
        let users = users.unwrap();
        assert!(users.verify("al", &longest));
        for more in ["L", "junk", "\0"] {
            assert!(!users.verify("al", &format!("{longest}{more}")), "{more:?}");
        }
        assert!(!users.verify("al", &longest[1..]));
        assert!(users.verify("bo", &format!("{longest}L")) && !users.verify("bo", &longest));
    }

    /// A vector of Argon2's reference implementation: files of earlier versions and of other programs stay good.
    #[test]
    fn hashes_of_other_programs_are_checked() {
        let hash = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        let users = Users::parse(&format!("alice:{hash}\n")).unwrap();
        assert!(users.verify("alice", "password") && !users.verify("alice", "passwords"));
        // New lines have the parameters that lines of earlier versions have.
        assert!(hash_password("x").unwrap().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
    }

    #[test]
    fn a_mistake_names_its_line_and_what_to_run() {
        let argon2 = hash_password("x").unwrap();
        for (line, what) in [
            ("bob", "not `name:hash`"),
            ("bob:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/", "MD5"),
            ("bob:$1$abcdefgh$irWbblnpmw.5z7wgBnprh0", "MD5"),
            ("bob:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "SHA-1"),
            ("bob:$6$salt$hash", "SHA-crypt"),
            ("bob:rqXexS6ZhobKA", "DES-crypt"),
            ("bob:$y$j9T$salt$hash", "neither bcrypt nor Argon2"),
            ("bob:$2x$04$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu", "neither"),
            ("bob:hunter2", "not stored as text"),
            ("bob:", "not stored as text"),
            ("bob:$2y$04$short", "malformed"),
            ("bob:$argon2id$v=19$m=19456", "malformed"),
            ("bob:$argon2id$v=19$m=4194304,t=2,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaA", "m=4194304"),
            (&*format!(":{argon2}"), "name is empty"),
            (&*format!("a\u{1}b:{argon2}"), "control characters"),
            (&*format!("alice:{argon2}"), "\"alice\" is already in this file"),
        ] {
            let mistake = Users::parse(&format!("# users\nalice:{argon2}\n{line}\n")).unwrap_err();
            assert_eq!(mistake.line, 3, "{line}");
            let told = mistake.to_string();
            assert!(told.contains(what) && told.contains("htpasswd -B") && told.contains("tunnel passwd"), "{told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        let dear = bcrypt("x").replace("$04$", "$16$");
        assert!(Users::parse(&format!("bob:{dear}")).unwrap_err().what.contains("cost of bcrypt is 16"));
    }
}
