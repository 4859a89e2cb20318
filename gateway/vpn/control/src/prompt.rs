//! Asks the user of `sealane tunnel connect` for a name, a password and the answer to a challenge: on the terminal, or
//! without one by reading lines from standard input.

use super::profile::Profile;
use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};

/// The longest answer.
const MAX_ANSWER: u64 = 4096;

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
    let Some(wanted) = profile.questions.take() else { return Ok(()) };
    let mut source = Source::open();
    let (name, password) = wanted.known;
    let name = match name {
        Some(name) => name,
        None => source.ask("User name: ", true)?,
    };
    let mut password = match password {
        Some(password) => password,
        None => source.ask("Password: ", false)?,
    };
    if let Some(challenge) = &wanted.challenge {
        let answer = source.ask(&format!("{} ", challenge.text), challenge.echo)?;
        password = with_answer(&password, &answer, challenge.concatenate);
    }
    profile.credentials = Some((name, password));
    Ok(())
}

/// Asks for a secret, which is not shown.
pub fn secret(question: &str) -> Result<String> {
    Source::open().ask(question, false)
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
    Terminal(BufReader<File>),
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
        terminal.map_or(Self::Input, |terminal| Self::Terminal(BufReader::new(terminal)))
    }

    fn ask(&mut self, question: &str, echo: bool) -> Result<String> {
        let terminal = match self {
            Self::Input => return line(&mut std::io::stdin().lock(), question),
            Self::Terminal(terminal) => terminal,
        };
        let shown: String = question.chars().filter(|c| !c.is_control()).collect();
        let file = terminal.get_ref().try_clone().context("cannot use the terminal")?;
        // Before the question: an answer that is typed immediately must not be shown.
        let hidden = if echo { None } else { Some(Hidden::new(&file).context("cannot use the terminal")?) };
        terminal.get_mut().write_all(shown.as_bytes()).context("cannot write to the terminal")?;
        let answer = line(terminal, question);
        if hidden.is_some() {
            // The user's line break was not shown.
            let _ = terminal.get_mut().write_all(b"\n");
        }
        answer
    }
}

fn line(from: &mut impl BufRead, question: &str) -> Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    from.take(MAX_ANSWER).read_line(&mut text).context("cannot read the answer")?;
    let answer = text.trim_end_matches(['\r', '\n']);
    if answer.is_empty() {
        bail!("there was no answer to \"{}\"", question.trim());
    }
    Ok(answer.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_with_the_password() {
        assert_eq!(with_answer("secret", "123456", false), "SCRV1:c2VjcmV0:MTIzNDU2");
        assert_eq!(with_answer("secret", "123456", true), "secret123456");
        assert_eq!(line(&mut &b"alice\r\nmore\n"[..], "Name: ").expect("a line"), "alice");
        assert!(line(&mut &b""[..], "Name: ").is_err());
    }
}
