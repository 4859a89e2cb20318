//! Commands on the control channel: strings with a NUL at their end, inside TLS.

use crate::challenge::Step;
use crate::push::MAX_BUNDLE;

/// What the peer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A client asks for its configuration.
    PushRequest,
    /// The configuration, or a part of it: the options.
    PushReply(String),
    /// Options that change, or a part of them: see [`crate::update`].
    PushUpdate(String),
    /// The server will not have this client; the reason, if it says one.
    AuthFailed(String),
    /// It will, but later: seconds to wait, where it says so, and the rest of what it says.
    AuthFailedTemporarily(Option<u32>, String),
    /// It decides later: within so many seconds, where it says so.
    AuthPending(Option<u32>),
    /// What the user is to do meanwhile. `Err`: what this is, which is not known.
    Meanwhile(Result<Step, String>),
    /// A client's answer to a question while its login waits, in base64.
    Response(String),
    /// The peer leaves.
    Exit,
    /// Connect anew.
    Restart(String),
    /// Do not connect again.
    Halt(String),
    /// A text for the user.
    Info(String),
    /// A command that is not known, its first word.
    Unknown(String),
}

impl Command {
    /// Reads one command, without its NUL. `None` when it holds what no command holds.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.trim_end_matches(['\r', '\n']);
        if text.chars().any(|c| c.is_control()) {
            return None;
        }
        let (word, rest) = text.split_once(',').unwrap_or((text, ""));
        Some(match word {
            "PUSH_REQUEST" => Self::PushRequest,
            "PUSH_REPLY" => Self::PushReply(rest.to_owned()),
            "PUSH_UPDATE" => Self::PushUpdate(rest.to_owned()),
            "AUTH_FAILED" => match rest.strip_prefix("TEMP") {
                Some(more) if more.is_empty() || more.starts_with(['[', ':']) => {
                    let (flags, reason) = more.split_once(':').unwrap_or((more, ""));
                    let flags = flags.trim_matches(['[', ']']);
                    let wait = flags.split(',').find_map(|f| f.trim().strip_prefix("backoff ")?.trim().parse().ok());
                    Self::AuthFailedTemporarily(wait, reason.to_owned())
                }
                _ => Self::AuthFailed(rest.to_owned()),
            },
            "AUTH_PENDING" => {
                Self::AuthPending(rest.split(',').find_map(|k| k.trim().strip_prefix("timeout ")?.trim().parse().ok()))
            }
            "INFO_PRE" => Self::Meanwhile(Step::parse(rest).ok_or_else(|| rest.to_owned())),
            "CR_RESPONSE" => Self::Response(rest.to_owned()),
            "EXIT" => Self::Exit,
            "RESTART" => Self::Restart(rest.to_owned()),
            "HALT" => Self::Halt(rest.to_owned()),
            "INFO" => Self::Info(rest.to_owned()),
            _ => Self::Unknown(word.chars().take(32).collect()),
        })
    }
}

/// Collects commands from TLS' plaintext.
#[derive(Debug, Default)]
pub struct Commands {
    partial: Vec<u8>,
}

impl Commands {
    /// Takes plaintext and gives the commands that it completes. False: the peer sends more without a NUL than any
    /// command has.
    pub fn take(&mut self, plaintext: &[u8], mut each: impl FnMut(Option<Command>)) -> bool {
        for byte in plaintext {
            match byte {
                0 => each(Command::parse(&std::mem::take(&mut self.partial))),
                _ => self.partial.push(*byte),
            }
            if self.partial.len() > 4 * MAX_BUNDLE {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart() {
        let parse = |t: &str| Command::parse(t.as_bytes()).expect("text");
        assert_eq!(parse("PUSH_REQUEST"), Command::PushRequest);
        assert_eq!(parse("PUSH_REPLY,ping 10,topology subnet"), Command::PushReply("ping 10,topology subnet".into()));
        assert_eq!(parse("PUSH_UPDATE,-dns"), Command::PushUpdate("-dns".into()));
        assert_eq!(parse("AUTH_FAILED"), Command::AuthFailed(String::new()));
        assert_eq!(parse("AUTH_FAILED,no"), Command::AuthFailed("no".into()));
        assert_eq!(parse("AUTH_FAILED,TEMPORARY"), Command::AuthFailed("TEMPORARY".into()));
        assert_eq!(parse("AUTH_FAILED,TEMP"), Command::AuthFailedTemporarily(None, String::new()));
        assert_eq!(
            parse("AUTH_FAILED,TEMP[backoff 42,advance no]:later"),
            Command::AuthFailedTemporarily(Some(42), "later".into())
        );
        assert_eq!(parse("AUTH_PENDING"), Command::AuthPending(None));
        assert_eq!(parse("AUTH_PENDING,x 1,timeout 42"), Command::AuthPending(Some(42)));
        assert_eq!(parse("AUTH_PENDING,timeout -1"), Command::AuthPending(None));
        assert_eq!(parse("INFO_PRE,OPEN_URL:http://a,b"), Command::Meanwhile(Ok(Step::Open("http://a,b".into()))));
        assert_eq!(parse("INFO_PRE,a, b"), Command::Meanwhile(Err("a, b".into())));
        assert_eq!(parse("CR_RESPONSE,MTIz"), Command::Response("MTIz".into()));
        assert_eq!(parse("EXIT\n"), Command::Exit);
        assert_eq!(parse("HALT,bye"), Command::Halt("bye".into()));
        assert_eq!(parse("INFO,a, b"), Command::Info("a, b".into()));
        assert_eq!(Command::parse(b"PUSH_REPLY,\x1b[1m"), None);
        assert_eq!(Command::parse(b"\xff"), None);
    }

    #[test]
    fn commands_come_in_pieces_and_have_an_end() {
        let (mut commands, mut got) = (Commands::default(), Vec::new());
        for piece in [&b"EX"[..], b"IT\0PUSH_", b"REQUEST\0"] {
            assert!(commands.take(piece, |c| got.extend(c)));
        }
        assert_eq!(got, [Command::Exit, Command::PushRequest]);
        assert!(!commands.take(&[b'x'; 5 * MAX_BUNDLE], |_| ()));
    }
}
