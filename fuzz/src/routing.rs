//! What decides who may see what: the rules for a path, and the patterns for a name.

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
            let conditions = Conditions { path, methods: Vec::new(), fields: Vec::new() };
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
