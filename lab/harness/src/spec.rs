//! The declarative half of an experiment: its `experiment.toml`.

use anyhow::{Context, bail};
use serde::Deserialize;

/// What an experiment says about itself before anything runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The name on the command line.
    pub name: String,
    /// The heading of its page.
    pub title: String,
    /// What is asked.
    pub question: String,
    /// How it is answered, a paragraph each.
    #[serde(default)]
    pub method: Vec<String>,
    /// Studies that it stands beside, by the names of `lab/data`.
    #[serde(default)]
    pub studies: Vec<String>,
    /// What is compared.
    #[serde(default, rename = "subject")]
    pub subjects: Vec<SubjectSpec>,
    /// What is the same for all, as rows of a table.
    #[serde(default)]
    pub settings: toml::Table,
    /// What is measured, in order.
    #[serde(rename = "part")]
    pub parts: Vec<PartSpec>,
    /// Sizes of a quick run.
    pub quick: toml::Table,
    /// Sizes of a full run: the same keys.
    pub full: toml::Table,
}

/// One subject.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectSpec {
    /// The name in reports, and in `--subject NAME=PATH`.
    pub name: String,
    /// Which kind of program it is: how it is configured and asked for its version.
    pub kind: String,
    /// The program that is looked for.
    pub program: String,
    /// Whether the experiment makes sense without it.
    #[serde(default)]
    pub optional: bool,
}

/// One part.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSpec {
    /// Its name for `--only`.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// What one operation is and what is counted.
    #[serde(default)]
    pub what: String,
    /// Whether a quick run has it too.
    #[serde(default)]
    pub quick: bool,
}

impl Spec {
    /// Parses and checks.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let spec: Self = toml::from_str(text).context("experiment.toml")?;
        let mut ids: Vec<&str> = spec.parts.iter().map(|p| p.id.as_str()).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            bail!("{}: part {:?} occurs twice", spec.name, twice[0]);
        }
        for key in spec.quick.keys().chain(spec.full.keys()) {
            if !(spec.quick.contains_key(key) && spec.full.contains_key(key)) {
                bail!("{}: {key:?} must be in both [quick] and [full]", spec.name);
            }
        }
        if !spec.parts.iter().any(|p| p.quick) {
            bail!("{}: a quick run would have no part", spec.name);
        }
        Ok(spec)
    }

    /// The part with this id.
    pub fn part(&self, id: &str) -> Option<&PartSpec> {
        self.parts.iter().find(|p| p.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
name = 'x'
title = 'X'
question = 'Why?'
[[subject]]
name = 'nginx'
kind = 'nginx'
program = 'nginx'
[[part]]
id = 'a'
title = 'A'
quick = true
[quick]
rounds = 2
[full]
rounds = 6
";

    #[test]
    fn a_spec_is_checked_as_a_whole() {
        assert_eq!(Spec::parse(GOOD).unwrap().subjects[0].kind, "nginx");
        for (from, to, why) in [
            ("rounds = 6", "", "both"),
            ("quick = true", "", "no part"),
            ("title = 'A'", "title = 'A'\ncolour = 'red'", "experiment.toml"),
            ("[quick]", "[[part]]\nid = 'a'\ntitle = 'B'\n[quick]", "twice"),
        ] {
            let error = Spec::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
