//! What decides who may see what: the rules for a path, the patterns for a name, lists of addresses, and what proxies say of clients.

/// The rule for a path, beside servers that read paths in their own ways: none of them may find another rule than the gateway.
pub mod path {
    use sealane_route::path::{Readings, rest_behind};
    use sealane_route::{Conditions, PathRule, RouteTable, Subject};

    const PREFIXES: [&str; 3] = ["/", "/admin", "/api/v1"];
    const EXACT: &str = "/login";
    /// Index of the rule for [`EXACT`]; those for prefixes are before it.
    const LOGIN: usize = PREFIXES.len();

    struct Get;

    impl Subject for Get {
        fn method(&self) -> &[u8] {
            b"GET"
        }

        fn any_field(&self, _: &str, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
            false
        }
    }

    fn table() -> RouteTable<usize> {
        let mut table = RouteTable::default();
        let prefixes = PREFIXES.iter().map(|p| PathRule::Prefix((*p).to_owned()));
        for (index, path) in prefixes.chain([PathRule::Exact(EXACT.to_owned())]).enumerate() {
            let conditions = Conditions { path, pattern: None, methods: Vec::new(), fields: Vec::new() };
            table.insert(conditions, index).expect("these paths are literal");
        }
        table
    }

    /// How a server reads a path.
    struct Server {
        /// `;parameters` are cut off up to the next slash: before anything is decoded, or after that.
        cuts_first: bool,
        cuts: bool,
        /// `%2F` is a slash.
        slash: bool,
        /// `\` is a slash, decoded or not.
        backslash: bool,
        /// `//` is one slash.
        merges: bool,
    }

    const PLAIN: Server = Server { cuts_first: false, cuts: false, slash: true, backslash: false, merges: false };
    const SERVERS: [Server; 6] = [
        PLAIN,
        Server { merges: true, ..PLAIN },
        Server { slash: false, cuts_first: true, ..PLAIN },
        Server { backslash: true, merges: true, ..PLAIN },
        Server { cuts: true, merges: true, ..PLAIN },
        Server { cuts: true, backslash: true, ..PLAIN },
    ];

    fn cut(path: &[u8]) -> Vec<u8> {
        let mut cutting = false;
        let keep = |b: &&u8| {
            cutting = **b != b'/' && (cutting || **b == b';');
            !cutting
        };
        path.iter().filter(keep).copied().collect()
    }

    impl Server {
        fn reads(&self, path: &[u8]) -> Vec<u8> {
            let path = if self.cuts_first { cut(path) } else { path.to_vec() };
            let mut out = Vec::new();
            let mut rest = &path[..];
            while let [first, more @ ..] = rest {
                let decoded = match rest {
                    [b'%', high, low, ..] => {
                        let digit = |b: &u8| char::from(*b).to_digit(16);
                        digit(high).zip(digit(low)).map(|(high, low)| (high * 16 + low) as u8)
                    }
                    _ => None,
                };
                // Nothing is decoded twice: a `%` that comes of it stays as it is.
                let kept = matches!(decoded, Some(b'%')) || decoded == Some(b'/') && !self.slash;
                let (byte, used) = decoded.map_or((*first, 1), |byte| (byte, 3));
                rest = &more[used - 1..];
                if kept {
                    out.extend_from_slice(if byte == b'%' { b"%25" } else { b"%2F" });
                } else {
                    out.push(if byte == b'\\' && self.backslash { b'/' } else { byte });
                }
            }
            if self.cuts {
                out = cut(&out);
            }
            if self.merges {
                out.dedup_by(|b, a| *a == b'/' && *b == b'/');
            }
            out
        }
    }

    /// The rule for a path that is read in one way.
    fn rule(path: &[u8]) -> usize {
        if path == EXACT.as_bytes() {
            return LOGIN;
        }
        let is_below = |prefix: &str| {
            let rest = path.strip_prefix(prefix.as_bytes());
            prefix == "/" || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        (0..PREFIXES.len()).rev().find(|i| is_below(PREFIXES[*i])).unwrap_or(0)
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let mut path = if data.first() == Some(&b'/') { Vec::new() } else { vec![b'/'] };
        path.extend_from_slice(data);
        let table = table();
        let Ok(found) = table.find(&path, &Get) else { return };
        let found = found.expect("there is a rule for each path");
        for server in &SERVERS {
            let read = server.reads(&path);
            let is_dot = |segment: &[u8]| segment == b"." || segment == b"..";
            assert!(!read.split(|b| *b == b'/').any(is_dot), "{}", read.escape_ascii());
            assert_eq!(rule(&read), *found.value, "read as {}", read.escape_ascii());
        }
        assert!(path.ends_with(rest_behind(&path, found.matched)));
        let readings = Readings::of(&path).expect("it has been read before");
        assert!(readings.differ() || table.find(&PLAIN.reads(&path), &Get).is_ok_and(|f| f == Some(found)));
    }
}

/// Patterns, one per line, then an empty line and names: the map finds the narrowest pattern that matches.
pub mod names {
    use sealane_route::{NameMap, NamePattern};

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        let (patterns, names) = text.split_once("\n\n").unwrap_or((&text, ""));
        let mut map = NameMap::default();
        let mut all: Vec<NamePattern> = Vec::new();
        for line in patterns.lines() {
            let Ok(pattern) = line.parse::<NamePattern>() else { continue };
            let again = all.contains(&pattern);
            assert_eq!(map.insert(pattern.clone(), all.len()).is_err(), again, "{pattern:?}");
            assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
            assert!(pattern.matches(&pattern.sample()));
            if !again {
                all.push(pattern);
            }
        }
        assert_eq!(map.len(), all.len());
        for name in names.lines() {
            let name = name.to_ascii_lowercase();
            let matching = all.iter().enumerate().filter(|(_, pattern)| pattern.matches(&name));
            let narrowest = matching.max_by_key(|(_, pattern)| pattern.rank()).map(|(index, _)| index);
            assert_eq!(map.find(&name).copied(), narrowest, "{name:?} among {all:?}");
        }
    }
}

/// A list of addresses: an address is in the set exactly if it is in one of the blocks, for access rules and for trusted proxies.
pub mod addresses {
    use sealane_config::{Answers, Content, read_list_again};
    use sealane_route::proxies::{Cidr, TrustedProxies};
    use std::net::{IpAddr, Ipv6Addr};
    use std::path::Path;

    /// Bits of an IPv4-mapped IPv6 address before the IPv4 address, and what they are.
    const MAPPED: u128 = 0xffff;

    fn number(ip: IpAddr) -> u128 {
        match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }

    /// A block as its first address and its bits, all in IPv6.
    fn block(text: &str) -> (u128, u32) {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().expect("it has been read before");
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = if bits.is_empty() { all } else { bits.parse().expect("it has been read before") };
        (number(address), bits + 128 - all)
    }

    /// Only a block of IPv4 addresses has IPv4 addresses in it.
    fn is_in((first, bits): (u128, u32), ip: u128) -> bool {
        let is_v4 = bits >= 96 && first >> 32 == MAPPED;
        is_v4 == (ip >> 32 == MAPPED) && (first ^ ip).checked_shr(128 - bits).unwrap_or(0) == 0
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let file = Path::new("/list");
        let mut answers = Answers::default();
        let content = Content { bytes: data.to_vec().into(), mode: 0o644, print: None };
        answers.contents.insert(file.to_owned(), Ok(content));
        let read = read_list_again(file, &answers);
        let Ok(text) = std::str::from_utf8(data) else { return assert!(read.is_err()) };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let entries = text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default().trim());
        let entries: Vec<&str> = entries.filter(|entry| !entry.is_empty()).collect();
        let parsed: Result<Vec<Cidr>, _> = entries.iter().map(|entry| entry.parse::<Cidr>()).collect();
        let (Ok(set), Ok(parsed)) = (&read, &parsed) else { return assert_eq!(read.is_ok(), parsed.is_ok()) };
        assert!(set.ranges() <= entries.len());
        let proxies: TrustedProxies = parsed.iter().copied().collect();
        let blocks: Vec<(u128, u32)> = entries.iter().map(|entry| block(entry)).collect();
        for (first, bits) in blocks.iter().take(100) {
            let size = 1u128.checked_shl(128 - bits).unwrap_or(0);
            for ip in
                [*first, first.wrapping_sub(1), first.wrapping_add(size), first.wrapping_add(size).wrapping_sub(1)]
            {
                let expected = blocks.iter().any(|block| is_in(*block, ip));
                let ip = IpAddr::from(Ipv6Addr::from(ip));
                assert_eq!(set.contains(ip), expected, "{ip} in {entries:?}");
                assert_eq!(set.contains(ip.to_canonical()), expected, "{ip} in {entries:?}");
                assert_eq!(proxies.contains(ip), expected, "{ip} is a trusted proxy of {entries:?}");
            }
        }
    }
}

/// What a request says of its trace: a `traceparent` that is read is written as it came (in version 00, with the flags that are
/// known), and lists that are passed on keep their bounds however they are divided among fields.
pub mod trace_context {
    use sealane_http::trace_context::{MAX_BAGGAGE, MAX_TRACESTATE, TraceParent, is_baggage, is_trace_state};

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        if let Some(parent) = TraceParent::parse(data) {
            let text = parent.text();
            assert_eq!(text[3..53], data[3..53], "{}", data.escape_ascii());
            assert_eq!(TraceParent::parse(&text), Some(parent));
            assert!(data.len() == text.len() || data[..2] != *b"00");
        }
        let (first, rest) = data.split_at(data.len() / 2);
        assert!(!is_trace_state([data].into_iter()) || data.len() <= MAX_TRACESTATE);
        assert!(!is_baggage([data].into_iter()) || data.len() <= MAX_BAGGAGE);
        if is_trace_state([first, rest].into_iter()) {
            // With a comma between them they are one field (RFC 9110 §5.2).
            let one = [first, rest].join(&b',');
            assert!(one.len() > MAX_TRACESTATE || is_trace_state([&one[..]].into_iter()), "{}", one.escape_ascii());
        }
        if is_baggage([first, rest].into_iter()) {
            let one = [first, rest].join(&b',');
            assert!(one.len() > MAX_BAGGAGE || is_baggage([&one[..]].into_iter()), "{}", one.escape_ascii());
        }
    }
}

/// What proxies append to `Forwarded` is read as they have written it, whatever a client has put before it. The first byte
/// chooses what is appended.
pub mod forwarded {
    use sealane_route::proxies::{TrustedProxies, elements_backwards, node, parameter};

    const APPENDED: [&str; 8] = [
        "for=192.0.2.60",
        r#"for="[2001:db8::1]:80""#,
        r#"for=192.0.2.60;host="a,b""#,
        r#"for=192.0.2.60;x="a\", for=192.0.2.66;y=\"b""#,
        r#"x="\\";for=192.0.2.60"#,
        r#"x="\\\"";for=192.0.2.60"#,
        r#"x="";for=192.0.2.60"#,
        r#"For = 192.0.2.60 ; Proto="https""#,
    ];

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, before)) = data.split_first() else { return };
        let appended = APPENDED[usize::from(*first) % APPENDED.len()];
        let value = [before, b", ", appended.as_bytes()].concat();
        let mut elements = elements_backwards(&value);
        assert_eq!(elements.next(), Some(appended.as_bytes()), "{}", value.escape_ascii());
        assert!(parameter(appended.as_bytes(), "for").and_then(node).is_some());
        let rest: Vec<&[u8]> = elements.collect();
        assert!(rest.iter().map(|e| e.len() + 1).sum::<usize>() <= before.len() + 1);
        let trusted: TrustedProxies = ["10.0.0.0/8", "192.0.2.0/24"].iter().filter_map(|b| b.parse().ok()).collect();
        for element in &rest {
            for name in ["for", "host", "proto"] {
                let Some(value) = parameter(element, name) else { continue };
                assert!(element.windows(value.len().max(1)).any(|w| w == value) || value.is_empty());
                let _ = node(value);
            }
        }
        let told = elements_backwards(before).map(|e| parameter(e, "for").unwrap_or_default());
        let (client, hops) = trusted.client([10, 0, 0, 1].into(), told);
        assert!(hops <= rest.len().min(32) && (hops > 0 || client.to_string() == "10.0.0.1"));
        // Nobody who is not trusted is passed by.
        let mut named = elements_backwards(before).map(|e| parameter(e, "for").and_then(node));
        assert!((1..hops).all(|_| named.next().flatten().is_some_and(|ip| trusted.contains(ip))));
        let _ = trusted.client([10, 0, 0, 1].into(), before.split(|b| *b == b',').rev().map(<[u8]>::trim_ascii));
    }
}
