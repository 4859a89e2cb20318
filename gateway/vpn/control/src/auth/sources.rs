//! What knows passwords: a file of hashes, a directory (LDAP), a program.

use super::{Claim, NOT_NOW};
use crate::program::Program;
use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{MemfdFlags, memfd_create};
use sealane_log as log;
use sealane_passwords::{Directory, Found, Turns, UsedCodes, Users, WithCode};
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a program may take.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// Programs that run at a time.
const PROGRAMS: usize = 16;
/// A program's exit code for "not now" (EX_TEMPFAIL of sysexits.h).
const TEMPORARY: i32 = 75;

/// Something that knows passwords. If there are several, each of them must accept a password.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file of hashes.
    Users(Arc<Users>),
    /// A directory.
    Directory(Arc<dyn Directory>),
    /// A program, with its arguments.
    Program(Vec<String>),
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

impl Source {
    /// Checks a password, when it is this client's turn, for which it waits no longer than `limit`. `account`: the user's name as
    /// sources know it. `unix` is the time in seconds.
    ///
    /// Nothing is left of a check that is dropped but a hash that is being computed.
    pub(super) async fn check(
        &self,
        account: &str,
        claim: &Claim,
        unix: u64,
        limit: Duration,
        checks: &Checks,
    ) -> Found {
        match self {
            Self::Users(users) => by_hash(users, account, claim, unix, limit, checks).await,
            Self::Directory(directory) => {
                let sent = WithCode::of(&claim.password, false, |text| STANDARD.decode(text).ok());
                match sent.map(|sent| Zeroizing::new(sent.password.into_owned())) {
                    // A directory takes a name without a password for nobody's, and says yes (RFC 4513 §5.1.2).
                    Some(password) if !password.is_empty() => directory.check(account, &password, limit).await,
                    _ => Found::Wrong,
                }
            }
            Self::Program(command) => {
                let Some(_turn) = checks.programs.turn(limit).await else { return Found::Busy };
                by_program(command, claim, WAIT_LIMIT).await
            }
        }
    }
}

async fn by_hash(
    users: &Arc<Users>,
    account: &str,
    claim: &Claim,
    unix: u64,
    limit: Duration,
    checks: &Checks,
) -> Found {
    let (users, name) = (users.clone(), account.to_owned());
    let secret = users.code_secret(account).cloned();
    let sent = WithCode::of(&claim.password, secret.is_some(), |text| STANDARD.decode(text).ok());
    // What cannot be taken apart takes as long as a wrong password: nobody learns who has codes.
    let (password, code) = match sent {
        Some(sent) => (sent.password.into_owned(), sent.code),
        None => (String::new(), None),
    };
    let (password, is_empty) = (Zeroizing::new(password.clone()), password.is_empty());
    // A task begins when it is made, and so it is made when it is its turn; the turn is over when the task is.
    let Some(turn) = checks.hashes.turn(limit).await else { return Found::Busy };
    let check = tokio::task::spawn_blocking(move || {
        let is_right = users.verify(&name, &password);
        drop(turn);
        is_right
    });
    if !check.await.unwrap_or(false) || is_empty {
        return Found::Wrong;
    }
    if let Some(secret) = secret {
        let mut used = checks.codes.lock().unwrap_or_else(PoisonError::into_inner);
        if !code.is_some_and(|code| used.accept(account, &secret, &code, unix)) {
            return Found::Wrong;
        }
    }
    Found::Right(Vec::new())
}

/// A program that does not say yes has said no; one that cannot say anything has not said yes either.
async fn by_program(command: &[String], claim: &Claim, limit: Duration) -> Found {
    let is_line = |text: &str| !text.contains(['\n', '\0']);
    if !is_line(&claim.username) || !is_line(&claim.password) {
        return Found::Wrong;
    }
    match tokio::time::timeout(limit, ask(command, claim)).await {
        Ok(Ok(Some(0))) => Found::Right(Vec::new()),
        Ok(Ok(Some(TEMPORARY))) => Found::Unavailable(format!(
            "the program of \"auth_command\" is temporarily unavailable (exit code {TEMPORARY})"
        )),
        Ok(Ok(Some(_))) => Found::Wrong,
        Ok(Ok(None)) => Found::Unavailable("the program of \"auth_command\" was killed by a signal".to_owned()),
        Ok(Err(e)) => Found::Unavailable(format!("cannot run the program of \"auth_command\": {e:#}")),
        Err(_) => {
            let seconds = limit.as_secs();
            Found::Unavailable(format!(
                "the program of \"auth_command\" was killed, because it took longer than {seconds} s"
            ))
        }
    }
}

/// Runs the program: name and password on two lines of its standard input, the rest in its environment. `None`: it was killed.
async fn ask(command: &[String], claim: &Claim) -> Result<Option<i32>> {
    let (program, arguments) = command.split_first().context("the command is empty")?;
    let mut asked = tokio::process::Command::new(program);
    asked
        .args(arguments)
        .env("script_type", "user-pass-verify")
        .env("username", &claim.username)
        .env("common_name", claim.common_name.as_deref().unwrap_or(""))
        .env("untrusted_ip", claim.remote.ip().to_canonical().to_string())
        .env("untrusted_port", claim.remote.port().to_string())
        .stdin(Stdio::from(login(claim)?))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let mut running = Program::start(&mut asked).with_context(|| program.clone())?;
    Ok(running.wait().await?.code())
}

/// Name and password as a file that has no name. A program may also open it as `/dev/stdin`, and read it as often as it likes, as
/// OpenVPN's scripts (`auth-user-pass-verify SCRIPT via-file`) read theirs.
fn login(claim: &Claim) -> Result<File> {
    // A kernel before 6.3 does not know that this is no program, and newer ones may ask for it (vm.memfd_noexec).
    let made = memfd_create("login", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
    let made = made.or_else(|_| memfd_create("login", MemfdFlags::CLOEXEC)).context("no memory for a login")?;
    let mut file = File::from(made);
    let text = Zeroizing::new(format!("{}\n{}\n", claim.username, claim.password));
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// What was found, in the log and for the client: `None` if the source has decided.
pub(super) fn undecided(found: &Found) -> Option<&'static str> {
    match found {
        Found::Busy => Some(super::BUSY),
        Found::Unavailable(why) => {
            log::warn!("tunnel: a password cannot be checked: {why}");
            Some(NOT_NOW)
        }
        Found::Right(_) | Found::Wrong | Found::NotAllowed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(script: &str, username: &str, password: &str, limit: Duration) -> Found {
        let command = ["sh", "-c", script, "sh", "/dev/stdin"].map(str::to_owned);
        let claim = Claim {
            common_name: Some("cert".to_owned()),
            username: username.to_owned(),
            password: password.to_owned(),
            remote: ([192, 0, 2, 1], 7).into(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(by_program(&command, &claim, limit))
    }

    /// As scripts for OpenVPN's `via-file` read it: by its name, once for each line.
    #[test]
    fn a_script_for_openvpn_reads_the_login_as_a_file() {
        let script = r#"u=$(head -n 1 "$1"); p=$(tail -n 1 "$1"); [ "$u/$p/$common_name/$script_type" = a/b/cert/user-pass-verify ]"#;
        assert_eq!(asked(script, "a", "b", WAIT_LIMIT), Found::Right(Vec::new()));
        assert_eq!(asked(script, "a", "c", WAIT_LIMIT), Found::Wrong);
        assert_eq!(asked("exit 2", "a", "b", WAIT_LIMIT), Found::Wrong, "OpenVPN's \"deferred\" is no yes");
    }

    #[test]
    fn what_says_neither_yes_nor_no_lets_nobody_in() {
        for (script, limit) in [
            ("exit 75", WAIT_LIMIT),
            ("kill -9 $$", WAIT_LIMIT),
            ("sleep 1000 & wait", Duration::from_millis(50)),
            ("trap '' TERM HUP INT; while :; do sleep 1000; done", Duration::from_millis(50)),
        ] {
            let found = asked(script, "a", "b", limit);
            assert!(matches!(found, Found::Unavailable(_)), "{script}: {found:?}");
        }
        for (name, password) in [("a\nb", "c"), ("a", "b\nc"), ("a\0", "b"), ("a", "b\0")] {
            assert_eq!(asked("exit 0", name, password, WAIT_LIMIT), Found::Wrong, "{name:?} {password:?}");
        }
    }
}
