//! Checks with `tcp-check`: what they send, and answers that satisfy what they expect.

use super::Proxy;
use super::checks::{kind, number};
use crate::draft::Turn;
use crate::samples;
use crate::tree::{Node, Place};

/// The rules of a section's checks.
pub(super) enum Rules {
    /// The checks have none.
    None,
    /// No answer is known that satisfies these lines.
    Unknown(Vec<Place>),
    /// The connections of a check, in order.
    Known(Vec<Talk>),
}

/// What is said over a connection.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// The port, if it is not the server's.
    pub port: Option<u16>,
    pub turns: Vec<Turn>,
    /// Whether the connection has TLS.
    tls: bool,
    /// Whether nothing may be added to the last answer.
    ends: bool,
}

/// Reads those of a section.
pub(super) fn rules(proxy: &Proxy<'_>) -> Rules {
    if kind(proxy) != Some("tcp-check") {
        return Rules::None;
    }
    let is_rule = |n: &&Node| n.name() == "tcp-check";
    // A section with rules of its own inherits none.
    let own: Vec<&Node> = proxy.section.inner().iter().filter(is_rule).collect();
    let lines = if own.is_empty() { proxy.lines().filter(is_rule).collect() } else { own };
    let mut servers = proxy.lines().filter(|n| matches!(n.name(), "server" | "default-server" | "server-template"));
    let tls = servers.any(|n| n.words.iter().any(|w| w == "ssl" || w == "check-ssl"));
    match talks(&lines, tls) {
        Some(talks) => Rules::Known(talks),
        None => Rules::Unknown(lines.iter().map(|n| n.place.clone()).collect()),
    }
}

/// `tls`: whether servers speak TLS. `None`: a rule is not understood, or has no answer that is known.
fn talks(lines: &[&Node], tls: bool) -> Option<Vec<Talk>> {
    let mut out: Vec<Talk> = Vec::new();
    for node in lines {
        let action = node.word(1);
        if action == "connect" {
            out.push(connect(node.words.get(2..).unwrap_or_default(), tls)?);
            continue;
        }
        if action == "comment" || action.starts_with("set-var") || action.starts_with("unset-var") {
            continue;
        }
        // Without a rule, the check connects as the server's line says.
        if out.is_empty() {
            out.push(Talk { tls, ..Talk::default() });
        }
        let talk = out.last_mut()?;
        match (action, node.word(2)) {
            ("send", data) => talk.send(data.as_bytes())?,
            ("send-lf", data) if !data.contains('%') => talk.send(data.as_bytes())?,
            ("send-binary", data) => talk.send(&binary(data)?)?,
            ("expect", _) => talk.expect(node.words.get(2..).unwrap_or_default())?,
            _ => return None,
        }
    }
    // Over TLS, a back-end does not speak first.
    let is_odd = |t: &Talk| t.tls && t.turns.first().is_some_and(|turn| turn.asks.is_empty());
    (!out.iter().any(is_odd)).then_some(out)
}

/// The options of a new connection.
fn connect(words: &[String], tls: bool) -> Option<Talk> {
    let mut out = Talk::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "default" => out.tls |= tls,
            "ssl" => out.tls = true,
            "port" => out.port = Some(number(rest.next()?)?),
            "linger" | "send-proxy" => {}
            "comment" | "sni" | "alpn" => drop(rest.next()?),
            _ => return None,
        }
    }
    Some(out)
}

impl Talk {
    /// The check sends something. `None`: a back-end cannot answer it.
    fn send(&mut self, data: &[u8]) -> Option<()> {
        // Lossy text is not what the check sends, and after a text that must not come the back-end closes the connection.
        let is_lossy = data.windows(3).any(|w| w == "\u{fffd}".as_bytes());
        if is_lossy || self.turns.last().is_some_and(|turn| turn.closes) {
            return None;
        }
        self.ends = false;
        match self.turns.last_mut().filter(|turn| turn.answer.is_empty()) {
            Some(turn) => turn.asks.extend(data),
            None => self.turns.push(Turn { asks: data.to_vec(), ..Turn::default() }),
        }
        Some(())
    }

    /// The check expects something.
    fn expect(&mut self, words: &[String]) -> Option<()> {
        let mut rest = words.iter();
        let (mut negated, mut least) = (false, 0);
        let (kind, pattern) = loop {
            match rest.next()?.as_str() {
                "!" => negated = !negated,
                "min-recv" => least = rest.next()?.parse::<i64>().ok()?,
                "comment" | "ok-status" | "error-status" | "tout-status" | "on-success" | "on-error"
                | "status-code" => drop(rest.next()?),
                kind => break (kind, rest.next()?.as_str()),
            }
        };
        if self.turns.is_empty() {
            self.turns.push(Turn::default());
        }
        let turn = self.turns.last_mut()?;
        if turn.closes || self.ends {
            return None;
        }
        if negated {
            // That the text does not come is certain when the connection is closed. It is seldom this one.
            turn.closes = true;
            if turn.answer.is_empty() {
                turn.answer.extend(b"-\n");
            }
            return Some(());
        }
        let is_regex = matches!(kind, "rstring" | "rbinary");
        if is_regex && pattern.starts_with('^') && !turn.answer.is_empty() {
            return None;
        }
        self.ends = is_regex && pattern.ends_with('$');
        turn.answer.extend(match kind {
            "string" => pattern.as_bytes().to_vec(),
            "string-lf" if !pattern.contains('%') => pattern.as_bytes().to_vec(),
            "binary" => binary(pattern)?,
            "rstring" => samples::bytes(pattern)?,
            "rbinary" => binary(std::str::from_utf8(&samples::bytes(pattern)?).ok()?)?,
            _ => return None,
        });
        (i64::try_from(turn.answer.len()).ok()? >= least).then_some(())
    }
}

/// Bytes that are written as hexadecimal digits.
fn binary(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    let is_whole = pairs.remainder().is_empty();
    let bytes = pairs.map(|pair| (pair[0] << 4) | pair[1]).collect();
    is_whole.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(line: &str) -> Node {
        let words = line.split(' ').map(|w| w.replace("\\r\\n", "\r\n").replace('_', " ")).collect();
        Node { place: Place { file: "h".into(), line: 1 }, words, block: None, from: None }
    }

    /// The talks of a section, each turn as `asks>answer`.
    fn said(lines: &[&str], server: &str) -> Option<Vec<String>> {
        let all = ["option tcp-check"].iter().chain(lines).chain([&server]).map(|l| node(l)).collect();
        let section = Node { block: Some(all), ..node("backend b") };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match rules(&Proxy { section: &section, inherited: Vec::new() }) {
            Rules::None => panic!("it has rules"),
            Rules::Unknown(_) => None,
            Rules::Known(talks) => {
                let turn =
                    |t: &Turn| format!("{}>{}{}", text(&t.asks), text(&t.answer), if t.closes { "." } else { "" });
                let talk = |t: &Talk| {
                    let port = t.port.map(|p| format!("{p}:")).unwrap_or_default();
                    format!("{port}{}", t.turns.iter().map(turn).collect::<Vec<_>>().join("|"))
                };
                Some(talks.iter().map(talk).collect())
            }
        }
    }

    const SERVER: &str = "server s 10.0.0.1:6379 check";

    #[test]
    fn a_sequence_has_answers_that_satisfy_it() {
        let redis = [
            "tcp-check connect",
            "tcp-check send PING\\r\\n",
            "tcp-check expect string +PONG",
            "tcp-check send info_replication\\r\\n",
            "tcp-check expect string role:master",
            "tcp-check send-binary 515549540d0a",
            "tcp-check expect rstring ^\\+(OK|BYE)",
        ];
        let expected = "PING\r\n>+PONG|info replication\r\n>role:master|QUIT\r\n>+OK";
        assert_eq!(said(&redis, SERVER).unwrap(), [expected]);
        let mail = [
            "tcp-check connect port 110",
            "tcp-check expect string +OK",
            "tcp-check connect port int(143) linger",
            "tcp-check expect binary 2a204f4b",
        ];
        assert_eq!(said(&mail, SERVER).unwrap(), ["110:>+OK", "143:>* OK"]);
        let web = [
            "tcp-check send GET_/\\r\\n",
            "tcp-check send \\r\\n",
            "tcp-check expect rstring (2..|3..)",
            "tcp-check expect ! string down",
        ];
        assert_eq!(said(&web, SERVER).unwrap(), ["GET /\r\n\r\n>2aa."]);
        assert_eq!(said(&["tcp-check expect rbinary ^2b(4f4b|42)"], SERVER).unwrap(), [">+OK"]);
        assert_eq!(said(&["tcp-check comment x", "tcp-check connect port 81"], SERVER).unwrap(), ["81:"]);
        assert_eq!(said(&[], SERVER).unwrap(), [""; 0]);
    }

    #[test]
    fn what_has_no_known_answer_is_said() {
        for lines in [
            &["tcp-check connect addr 10.0.0.9"][..],
            &["tcp-check send-lf %[src]"],
            &["tcp-check expect rstring (?!a)b"],
            &["tcp-check expect binary 2b4"],
            &["tcp-check expect ! string a", "tcp-check send b"],
            &["tcp-check expect string a", "tcp-check expect rstring ^b"],
            &["tcp-check expect rstring a$", "tcp-check expect string b"],
            &["tcp-check expect min-recv 100 string a"],
            &["tcp-check something"],
        ] {
            assert_eq!(said(lines, SERVER), None, "{lines:?}");
        }
        let tls = "server s 10.0.0.1:993 check ssl";
        assert_eq!(said(&["tcp-check expect string a"], tls), None, "the server speaks first");
        assert_eq!(said(&["tcp-check send a", "tcp-check expect string b"], tls).unwrap(), ["a>b"]);
        assert_eq!(said(&["tcp-check connect", "tcp-check expect string b"], tls).unwrap(), [">b"], "without TLS");
    }
}
