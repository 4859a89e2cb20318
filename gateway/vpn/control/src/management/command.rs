//! Commands of OpenVPN's management protocol: one line each, in words.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealane_ovpn::push;
use std::time::Duration;

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Help,
    /// The version of the protocol that the program speaks, where it says it.
    Version(Option<u32>),
    Pid,
    /// In format 1, 2 or 3.
    Status(u8),
    State(Vec<History>),
    Log(Vec<History>),
    ByteCount(Duration),
    /// A common name, or an address with its port.
    Kill(String),
    ClientKill {
        cid: u64,
        message: String,
    },
    /// The reasons are for the log, and for the client.
    ClientDeny {
        cid: u64,
        kid: u32,
        reason: String,
        client_reason: Option<String>,
    },
    /// Options follow, in lines of their own.
    ClientAuth {
        cid: u64,
        kid: u32,
    },
    ClientAuthNt {
        cid: u64,
        kid: u32,
    },
    ClientPendingAuth {
        cid: u64,
        kid: u32,
        extra: String,
        timeout: Duration,
    },
    LoadStats,
    Hold(Option<String>),
    Verb(Option<String>),
    Signal(String),
    Quit,
}

/// What of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum History {
    /// What happens from now on.
    On,
    /// No more of it.
    Off,
    /// The last so many lines.
    Last(usize),
}

/// The commands, as `help` shows them.
pub(crate) const HELP: &str = "\
Management Interface for Sealane
Commands:
bytecount n            : Show bytes in/out of each client, update every n secs (0=off).
client-auth CID KID    : Authenticate client-id/key-id CID/KID (MULTILINE)
client-auth-nt CID KID : Authenticate client-id/key-id CID/KID
client-deny CID KID R [CR] : Deny auth client-id/key-id CID/KID with log reason
                             text R and optional client reason text CR
client-kill CID [M]    : Kill client instance CID with message M (def=RESTART)
client-pending-auth CID KID MSG timeout : Instruct OpenVPN to send AUTH_PENDING and INFO_PRE msg
                                      to the client and wait for a final client-auth/client-deny
exit|quit              : Close management session.
help                   : Print this message.
hold [on|off|release]  : Show the hold flag (always 0: the server never waits), or release it.
kill cn                : Kill the client instance(s) having common name cn.
kill IP:port           : Kill the client instance connecting from IP:port.
load-stats             : Show global server load stats.
log [on|off] [N|all]   : Turn on/off realtime log display
                         + show last N lines or 'all' for entire history.
pid                    : Show process ID of the current process.
signal s               : Not accepted: use sealane reload, or the service manager.
state [on|off] [N|all] : Like log, but show state history.
status [n]             : Show current daemon status info using format #n.
verb [n]               : Show the log verbosity level (set it with sealane log-level).
version [n]            : Show current version number, or set the version that the client speaks.
END";

/// Splits a line as OpenVPN does: quotes keep words together, a backslash takes the next character as it is.
pub(crate) fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut out, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c.is_control() && c != '\t' {
            return Err("the line contains a control character");
        }
        match (quote, c) {
            (None, ' ' | '\t') => out.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_with(String::new);
            }
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (None | Some('"'), '\\') => match chars.next() {
                Some(next) if !next.is_control() => word.get_or_insert_with(String::new).push(next),
                _ => return Err("a backslash at the end of the line"),
            },
            (_, c) => word.get_or_insert_with(String::new).push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation without its end");
    }
    out.extend(word);
    Ok(out)
}

/// Reads a command. The error is what follows `ERROR: `.
pub(crate) fn parse(line: &str) -> Result<Request, String> {
    let words = words(line)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((&command, parameters)) = words.split_first() else { return Err("the line is empty".to_owned()) };
    let number = |text: &str, what: &str| text.parse::<u64>().map_err(|_| format!("cannot parse {what}"));
    let short = |text: &str, what: &str| text.parse::<u32>().map_err(|_| format!("cannot parse {what}"));
    let wrong = |least: usize, most: usize| {
        let how_many = if least == most { least.to_string() } else { format!("{least} to {most}") };
        Err(format!("the '{command}' command requires {how_many} parameters"))
    };
    let owned = |text: &&str| (*text).to_owned();
    Ok(match (command, parameters) {
        ("help", _) => Request::Help,
        ("version", []) => Request::Version(None),
        ("version", [version]) => Request::Version(Some(short(version, "the version")?)),
        ("pid", []) => Request::Pid,
        ("status", []) => Request::Status(1),
        ("status", [format]) => match *format {
            "1" => Request::Status(1),
            "2" => Request::Status(2),
            "3" => Request::Status(3),
            _ => return Err("bad status format version number".to_owned()),
        },
        ("state", []) => Request::State(vec![History::Last(1)]),
        ("state", parameters @ ([_] | [_, _])) => Request::State(histories("state", parameters)?),
        ("log", parameters @ ([_] | [_, _])) => Request::Log(histories("log", parameters)?),
        ("bytecount", [seconds]) => Request::ByteCount(Duration::from_secs(short(seconds, "the interval")?.into())),
        ("kill", [whom]) => Request::Kill(owned(whom)),
        ("client-kill", [cid]) => Request::ClientKill { cid: number(cid, "CID")?, message: "RESTART".to_owned() },
        ("client-kill", [cid, message]) => Request::ClientKill { cid: number(cid, "CID")?, message: owned(message) },
        ("client-deny", [cid, kid, reason, rest @ ..]) if rest.len() <= 1 => Request::ClientDeny {
            cid: number(cid, "CID")?,
            kid: short(kid, "KID")?,
            reason: owned(reason),
            client_reason: rest.first().map(owned),
        },
        ("client-auth", [cid, kid]) => Request::ClientAuth { cid: number(cid, "CID")?, kid: short(kid, "KID")? },
        ("client-auth-nt", [cid, kid]) => Request::ClientAuthNt { cid: number(cid, "CID")?, kid: short(kid, "KID")? },
        ("client-pending-auth", [cid, kid, extra, timeout]) => Request::ClientPendingAuth {
            cid: number(cid, "CID")?,
            kid: short(kid, "KID")?,
            extra: owned(extra),
            timeout: Duration::from_secs(short(timeout, "TIMEOUT")?.into()),
        },
        ("load-stats", []) => Request::LoadStats,
        ("hold", parameters @ ([] | [_])) => Request::Hold(parameters.first().map(owned)),
        ("verb", parameters @ ([] | [_])) => Request::Verb(parameters.first().map(owned)),
        ("signal", [name]) => Request::Signal(owned(name)),
        ("quit" | "exit", _) => Request::Quit,
        ("pid" | "load-stats", _) => return wrong(0, 0),
        ("version" | "status" | "hold" | "verb", _) => return wrong(0, 1),
        ("state", _) => return wrong(0, 2),
        ("log", _) => return wrong(1, 2),
        ("bytecount" | "kill" | "signal", _) => return wrong(1, 1),
        ("client-kill", _) => return wrong(1, 2),
        ("client-auth" | "client-auth-nt", _) => return wrong(2, 2),
        ("client-deny", _) => return wrong(3, 4),
        ("client-pending-auth", _) => return wrong(4, 4),
        _ => return Err(format!("unknown command [{command}], enter 'help' for more options")),
    })
}

fn histories(what: &str, parameters: &[&str]) -> Result<Vec<History>, String> {
    let one = |text: &&str| match *text {
        "on" => Ok(History::On),
        "off" => Ok(History::Off),
        "all" => Ok(History::Last(usize::MAX)),
        text => match text.parse() {
            Ok(most @ 1..) => Ok(History::Last(most)),
            _ => Err(format!("{what} parameter must be 'on' or 'off' or some number n or 'all'")),
        },
    };
    parameters.iter().map(one).collect()
}

/// What a `client-auth` gives a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// An option to be pushed.
    Push(String),
    /// The user's name, in place of what the client has sent.
    User(String),
    /// The user's name, for a client that has sent none.
    DefaultUser(String),
}

/// Reads a line of a `client-auth`; the error says what is wrong with it.
pub(crate) fn given(line: &str) -> Result<Option<Given>, String> {
    let words = words(line)?;
    let option = match words.as_slice() {
        [] => return Ok(None),
        [first, ..] if first.starts_with(['#', ';']) => return Ok(None),
        [push, option] if push == "push" => option,
        [name, user] if name == "override-username" => return Ok(Some(Given::User(user.clone()))),
        [other, ..] => {
            return Err(format!(
                "\"{other}\" is not supported in client-auth: write push \"OPTION\" or override-username NAME"
            ));
        }
    };
    // The token's option is the server's; the name in it says who the client is.
    if let Some(user) = option.strip_prefix("auth-token-user ") {
        let decoded = STANDARD.decode(user.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let user = decoded.ok_or_else(|| "the name in auth-token-user is not Base64".to_owned())?;
        return Ok(Some(Given::DefaultUser(user)));
    }
    let word = option.split_ascii_whitespace().next().unwrap_or("");
    if !push::CLIENTS_TAKE.contains(&word) {
        return Err(format!("\"{word}\" is not an option that clients accept from a server"));
    }
    match push::replies(std::slice::from_ref(option)) {
        Ok(_) => Ok(Some(Given::Push(option.clone()))),
        Err(_) => Err("an option must not contain a comma, and must not exceed 800 bytes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_openvpn_does_it() {
        let split = |line: &str| words(line).map(|w| w.join("|"));
        assert_eq!(split("kill alice").as_deref(), Ok("kill|alice"));
        assert_eq!(
            split("  client-deny 0 1 \"no \\\"way\\\"\"  'a b\\'").as_deref(),
            Ok("client-deny|0|1|no \"way\"|a b\\")
        );
        assert_eq!(split("kill a\\ b").as_deref(), Ok("kill|a b"));
        assert_eq!(split("x \"\" y").as_deref(), Ok("x||y"));
        for wrong in ["kill \"a", "kill a\\", "kill a\u{7}", "kill 'a"] {
            assert!(words(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn commands_are_understood() {
        assert_eq!(parse("status 2"), Ok(Request::Status(2)));
        assert_eq!(parse("state on all"), Ok(Request::State(vec![History::On, History::Last(usize::MAX)])));
        assert_eq!(parse("version 5"), Ok(Request::Version(Some(5))));
        assert_eq!(parse("log 20"), Ok(Request::Log(vec![History::Last(20)])));
        let deny = |client_reason: Option<&str>| Request::ClientDeny {
            cid: 3,
            kid: 1,
            reason: "no".to_owned(),
            client_reason: client_reason.map(str::to_owned),
        };
        assert_eq!(parse("client-deny 3 1 no"), Ok(deny(None)));
        assert_eq!(parse("client-deny 3 1 \"no\" \"Not you\""), Ok(deny(Some("Not you"))));
        let pending = Request::ClientPendingAuth {
            cid: 3,
            kid: 1,
            extra: "WEB_AUTH::https://a/?b=c".to_owned(),
            timeout: Duration::from_secs(180),
        };
        assert_eq!(parse("client-pending-auth 3 1 \"WEB_AUTH::https://a/?b=c\" 180"), Ok(pending));
        for (wrong, why) in [
            ("", "the line is empty"),
            ("reboot", "unknown command [reboot], enter 'help' for more options"),
            ("status 4", "bad status format version number"),
            ("log", "the 'log' command requires 1 to 2 parameters"),
            ("log 0", "log parameter must be 'on' or 'off' or some number n or 'all'"),
            ("client-auth-nt x 1", "cannot parse CID"),
            ("client-auth-nt 1 -1", "cannot parse KID"),
            ("client-deny 1 1", "the 'client-deny' command requires 3 to 4 parameters"),
            ("kill", "the 'kill' command requires 1 parameters"),
        ] {
            assert_eq!(parse(wrong), Err(why.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn a_client_auth_gives_options_and_a_name() {
        let route = "route 10.0.0.0 255.0.0.0";
        assert_eq!(given(&format!("push \"{route}\"")), Ok(Some(Given::Push(route.to_owned()))));
        assert_eq!((given(""), given("# nothing")), (Ok(None), Ok(None)));
        assert_eq!(given("push \"auth-token-user YWxpY2U=\""), Ok(Some(Given::DefaultUser("alice".to_owned()))));
        assert_eq!(given("override-username \"a b\""), Ok(Some(Given::User("a b".to_owned()))));
        for wrong in [
            "iroute 10.0.0.0 255.0.0.0",
            "push a b",
            "disable",
            "push \"a",
            "push \"ifconfig 10.8.0.9 255.255.255.0\"",
            "push \"route 10.0.0.0 255.0.0.0,peer-id 3\"",
            "push \"auth-token-user %\"",
        ] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }
}
