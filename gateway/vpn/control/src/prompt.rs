//! Asks the user of `sealane tunnel connect` for a name, a password and the answers to challenges: on the terminal, or
//! without one by reading lines from standard input.
//!
//! Lines are read byte by byte: what follows the answer stays for the next question.

use super::profile::Profile;
use super::proxy::Login;
use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

/// The longest answer.
const MAX_ANSWER: usize = 4096;
const GIVEN_UP: &str = "the question was given up";
/// How long it takes at most until a question that nobody waits for any more is given up.
const NOTICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Held while a question is asked. The next one waits until the one before is answered or given up: each sets the terminal back to
/// what it was.
static ASKING: Mutex<()> = Mutex::new(());

/// `static-challenge`: a question whose answer goes with the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// What the user is asked.
    pub text: String,
    /// The answer is shown while it is typed.
    pub echo: bool,
    /// The answer is appended to the password as it is; otherwise both are sent as `SCRV1`.
    pub concatenate: bool,
}

/// Asks for what the profile lacks.
pub fn complete(profile: &mut Profile) -> Result<()> {
    let source = Source::open();
    for proxy in profile.proxies.iter_mut().filter(|proxy| proxy.login == Login::Ask) {
        let [name, password] = for_proxy(&proxy.host);
        proxy.login = Login::Known(source.ask(&name, true, None)?, source.ask(&password, false, None)?);
    }
    let Some(wanted) = profile.questions.take() else { return Ok(()) };
    let (name, password) = wanted.known;
    let name = match name {
        Some(name) => name,
        None => source.ask("User name: ", true, None)?,
    };
    let mut password = match password {
        Some(password) => password,
        None => source.ask("Password: ", false, None)?,
    };
    if let Some(challenge) = &wanted.challenge {
        let answer = source.ask(&format!("{} ", challenge.text), challenge.echo, None)?;
        password = with_answer(&password, &answer, challenge.concatenate);
    }
    profile.credentials = Some((name, password));
    Ok(())
}

/// What the user is asked for a proxy: the name, and the password.
pub fn for_proxy(host: &str) -> [String; 2] {
    [format!("User name for the proxy {host}: "), format!("Password for the proxy {host}: ")]
}

/// Asks for a secret, which is not shown.
pub fn secret(question: &str) -> Result<String> {
    Source::open().ask(question, false, None)
}

/// A question that is asked while the client goes on. Dropped, it is given up.
#[derive(Debug)]
pub struct Asked {
    answer: JoinHandle<Result<String>>,
    is_given_up: Arc<AtomicBool>,
}

impl Asked {
    /// Asks.
    pub fn new(question: String, echo: bool) -> Self {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let flag = is_given_up.clone();
        let answer = tokio::task::spawn_blocking(move || Source::open().ask(&question, echo, Some(&flag)));
        Self { answer, is_given_up }
    }

    /// The answer, once.
    pub async fn answer(&mut self) -> Result<String> {
        (&mut self.answer).await.context("the question cannot be asked")?
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

/// A password with the answer to a challenge, as OpenVPN's servers read it.
fn with_answer(password: &str, answer: &str, concatenate: bool) -> String {
    match concatenate {
        true => format!("{password}{answer}"),
        false => format!("SCRV1:{}:{}", STANDARD.encode(password), STANDARD.encode(answer)),
    }
}

/// Where answers come from.
enum Source {
    Terminal(File),
    Input,
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden<'t>(&'t File, Termios);

impl<'t> Hidden<'t> {
    fn new(terminal: &'t File) -> Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Now, &quiet)?;
        Ok(Self(terminal, before))
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(self.0, OptionalActions::Now, &self.1);
    }
}

impl Source {
    fn open() -> Self {
        let terminal = File::options().read(true).write(true).open("/dev/tty");
        terminal.map_or(Self::Input, Self::Terminal)
    }

    /// Asks, and waits for the answer until the question is given up.
    fn ask(&self, question: &str, echo: bool, is_given_up: Option<&AtomicBool>) -> Result<String> {
        let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        if is_given_up.is_some_and(|is_given_up| is_given_up.load(Ordering::Relaxed)) {
            bail!(GIVEN_UP);
        }
        let mut terminal = match self {
            Self::Input => return line(std::io::stdin().as_fd(), question, is_given_up),
            Self::Terminal(terminal) => terminal,
        };
        // Before the question: an answer that is typed immediately must not be shown.
        let hidden = if echo { None } else { Some(Hidden::new(terminal).context("cannot use the terminal")?) };
        terminal.write_all(sealane_log::printable(question).as_bytes()).context("cannot write to the terminal")?;
        let answer = line(terminal.as_fd(), question, is_given_up);
        if hidden.is_some() || answer.is_err() {
            // The user's line break was not shown, or there was none.
            let _ = terminal.write_all(b"\n");
        }
        answer
    }
}

fn line(from: BorrowedFd<'_>, question: &str, is_given_up: Option<&AtomicBool>) -> Result<String> {
    // Large enough from the beginning: what grows leaves its bytes behind.
    let mut text = Zeroizing::new(Vec::<u8>::with_capacity(MAX_ANSWER));
    while text.len() < MAX_ANSWER {
        if let Some(is_given_up) = is_given_up {
            wait(from, is_given_up)?;
        }
        let mut byte = [0_u8];
        match rustix::io::read(from, &mut byte) {
            Ok(0) => break,
            Ok(_) if byte == *b"\n" => break,
            Ok(_) => text.push(byte[0]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot read the answer"),
        }
    }
    let text = std::str::from_utf8(&text).ok().context("the answer is not in UTF-8")?;
    let answer = text.trim_end_matches('\r');
    if answer.is_empty() {
        bail!("there was no answer to \"{}\"", question.trim());
    }
    Ok(answer.to_owned())
}

/// Waits until there is something to read.
fn wait(from: BorrowedFd<'_>, is_given_up: &AtomicBool) -> Result<()> {
    loop {
        if is_given_up.load(Ordering::Relaxed) {
            bail!(GIVEN_UP);
        }
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&NOTICE)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(e).context("cannot wait for the answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_with_the_password() {
        assert_eq!(with_answer("secret", "123456", false), "SCRV1:c2VjcmV0:MTIzNDU2");
        assert_eq!(with_answer("secret", "123456", true), "secret123456");
    }

    #[test]
    fn an_answer_is_a_line() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(b"alice\r\nsecret\n\n\xff\n").expect("it fits");
        writer.write_all(&[b'x'; MAX_ANSWER + 3]).expect("it fits");
        drop(writer);
        let waited = AtomicBool::new(false);
        let read = |waited| line(reader.as_fd(), "Name: ", waited);
        assert_eq!(read(None).expect("a line"), "alice");
        assert_eq!(read(Some(&waited)).expect("a line"), "secret");
        assert!(read(None).is_err(), "an empty line");
        assert!(read(None).is_err(), "no text");
        assert_eq!(read(Some(&waited)).expect("a line").len(), MAX_ANSWER);
        assert_eq!(read(Some(&waited)).expect("a line"), "xxx");
        assert!(read(None).is_err(), "the end");
    }

    #[test]
    fn questions_are_asked_one_after_the_other() {
        let asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        let is_given_up = Arc::new(AtomicBool::new(false));
        let flag = is_given_up.clone();
        let next = std::thread::spawn(move || Source::Input.ask("Name: ", true, Some(&flag)));
        is_given_up.store(true, Ordering::Relaxed);
        drop(asking);
        let why = next.join().expect("it does not panic").expect_err("nobody answers");
        assert_eq!(why.to_string(), GIVEN_UP);
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_given_up() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let is_given_up = Arc::new(AtomicBool::new(false));
        let flag = is_given_up.clone();
        let asking = std::thread::spawn(move || line(reader.as_fd(), "Name: ", Some(&flag)));
        is_given_up.store(true, Ordering::Relaxed);
        assert!(asking.join().expect("it does not panic").is_err());
    }
}
