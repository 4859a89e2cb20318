//! `pull-filter`: selects the server's options that a client accepts.

use anyhow::{Result, bail};
use sealane_ovpn::file::Directive;

/// What is done with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Accept,
    Ignore,
    Reject,
}

/// The filters of a profile. The first one that matches decides; an option without a match is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullFilter(Vec<(Action, String)>);

/// An option of the server that the profile rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected(pub String);

impl PullFilter {
    pub(super) fn read(directives: &[Directive]) -> Result<Self> {
        let mut filters = Vec::new();
        for d in directives.iter().filter(|d| d.name() == "pull-filter") {
            let (action, text) = match d.arguments().as_slice() {
                ["accept", text] => (Action::Accept, (*text).to_owned()),
                ["ignore", text] => (Action::Ignore, (*text).to_owned()),
                ["reject", text] => (Action::Reject, (*text).to_owned()),
                _ => bail!("line {}: {}: write pull-filter accept|ignore|reject TEXT", d.line, d.words.join(" ")),
            };
            filters.push((action, text));
        }
        Ok(Self(filters))
    }

    /// Returns the accepted options. A filter matches options that begin with its text; the prefixes `-` and `?` of a
    /// PUSH_UPDATE do not count.
    pub fn apply(&self, options: Vec<String>) -> Result<Vec<String>, Rejected> {
        let mut out = Vec::with_capacity(options.len());
        for option in options {
            let named = option.trim_start_matches(['-', '?']);
            match self.0.iter().find(|(_, text)| named.starts_with(text.as_str())) {
                None | Some((Action::Accept, _)) => out.push(option),
                Some((Action::Ignore, _)) => {}
                Some((Action::Reject, _)) => return Err(Rejected(option)),
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_ovpn::file::parse;

    #[test]
    fn the_first_filter_that_fits_decides() {
        let read = |text: &str| PullFilter::read(&parse(text).expect("well formed"));
        let text =
            "pull-filter accept \"route 10.1.\"\npull-filter ignore route\npull-filter reject \"dhcp-option DNS\"\n";
        let filter = read(text).expect("good");
        let options = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(filter.apply(options("-route,-?ping,?dns x")), Ok(options("-?ping,?dns x")));
        let taken =
            filter.apply(options("route 10.1.0.0 255.255.0.0,route 10.2.0.0 255.255.0.0,route-ipv6 fd00::/8,ping 1"));
        assert_eq!(taken, Ok(options("route 10.1.0.0 255.255.0.0,ping 1")));
        assert_eq!(
            filter.apply(options("ping 1,dhcp-option DNS 1.1.1.1")),
            Err(Rejected("dhcp-option DNS 1.1.1.1".into()))
        );
        for bad in ["pull-filter", "pull-filter ignore", "pull-filter drop route", "pull-filter ignore route 10.0.0.0"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
