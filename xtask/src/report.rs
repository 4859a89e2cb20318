//! What the closing lines of `cargo xtask test` say beside each step's result: what was skipped, and what was run again.

use anyhow::Context;
use std::path::Path;

/// A test or step that could not run here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// The test's or step's name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Collected while the steps run.
#[derive(Debug, Default)]
pub struct Report {
    pub skips: Vec<Skip>,
    /// Tests that failed among the others and were run alone, with what came of it.
    pub retried: Vec<String>,
    /// How many runs of single tests that took.
    pub retries: usize,
}

impl Report {
    pub fn skip(&mut self, name: &str, why: impl Into<String>) {
        let why = why.into();
        println!("skipped: {name}: {why}");
        self.skips.push(Skip { name: name.to_owned(), why });
    }

    /// The closing lines.
    pub fn lines(&self) -> Vec<String> {
        let mut skips = self.skips.clone();
        skips.sort();
        skips.dedup();
        let mut lines = vec![format!("skipped: {}", skips.len())];
        lines.extend(skips.iter().map(|skip| format!("  {}: {}", skip.name, skip.why)));
        lines.push(format!("run again: {} tests, {} times in all", self.retried.len(), self.retries));
        lines.extend(self.retried.iter().map(|line| format!("  {line}")));
        lines
    }

    /// The skips that are not expected in CI, where everything that tests need is installed.
    pub fn unexpected(&self, expected: &Expected) -> Vec<&Skip> {
        self.skips.iter().filter(|skip| !expected.has(skip)).collect()
    }
}

/// `xtask/expected-skips.txt`: a line `NAME: part of the reason` for each; a name may end in `*`.
#[derive(Debug, Default)]
pub struct Expected(Vec<(String, String)>);

impl Expected {
    pub fn load(root: &Path) -> anyhow::Result<Self> {
        let path = root.join("xtask/expected-skips.txt");
        Ok(Self::parse(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pair = |line: &str| line.split_once(": ").map(|(name, why)| (name.to_owned(), why.to_owned()));
        Self(lines.filter_map(pair).collect())
    }

    fn has(&self, skip: &Skip) -> bool {
        self.0.iter().any(|(name, why)| {
            let named = name.strip_suffix('*').map_or(skip.name == *name, |start| skip.name.starts_with(start));
            named && skip.why.contains(why.as_str())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(name: &str, why: &str) -> Skip {
        Skip { name: name.into(), why: why.into() }
    }

    #[test]
    fn expected_skips_are_known_by_name_and_reason() {
        let expected = Expected::parse("# comment\n\ntunnel_kernel::*: no `ovpn`\nnetem::works: no netem\n");
        assert!(expected.has(&skip("tunnel_kernel::upgrade", "this kernel has no `ovpn` (Linux 6.16 has)")));
        assert!(expected.has(&skip("netem::works", "no netem here")));
        assert!(!expected.has(&skip("netem::works_too", "no netem here")));
        assert!(!expected.has(&skip("tunnel_kernel::upgrade", "no curl")));
    }

    #[test]
    fn the_list_accepts_what_ci_lacks_and_nothing_else() {
        let expected = Expected::load(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
        assert!(expected.has(&skip(
            "upgrade_from_old::an_older_build_hands_everything_over",
            "SEALANE_OLD names no older binary to start from"
        )));
        assert!(expected.has(&skip("every_stack_does_every_handshake_on_each_side", "s2n is not built")));
        for program in ["curl", "nginx", "openvpn", "python3"] {
            assert!(
                !expected.has(&skip("upgrade::a_test", &format!("`{program}` is not installed (cargo xtask setup)")))
            );
        }
        assert!(!expected.has(&skip("every_stack_does_every_handshake_on_each_side", "openssl-3.0 is not built")));
        // A line that names all tests and any reason would switch the rule off.
        assert!(expected.0.iter().all(|(name, why)| (name.len() > 3 || why.len() > 10) && why.len() > 3));
    }

    #[test]
    fn the_closing_lines_count_and_name() {
        let mut report = Report { retries: 2, retried: vec!["flaky: a".into()], ..Report::default() };
        report.skips = vec![skip("b", "no curl"), skip("b", "no curl")];
        assert_eq!(report.lines(), ["skipped: 1", "  b: no curl", "run again: 1 tests, 2 times in all", "  flaky: a"]);
        assert_eq!(report.unexpected(&Expected::default()).len(), 2);
    }
}
