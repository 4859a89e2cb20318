//! The experiment `tls-stacks`: what `sealane-lab stacks` builds, as a page of the report, the study's figures beside.

mod counts;
mod model;
mod scaling;
mod speed;
mod verdict;

use std::cell::RefCell;

use anyhow::anyhow;
use sealane_lab_harness::{Bench, Experiment, Options, Spec};
use sealane_lab_report::{Fact, Figure, Finding, Page, Part, Subject};
use sealane_lab_stacks::builder::{Builder, Built};
use sealane_lab_stacks::catalogue;
use sealane_lab_stacks::elf::Images;
use sealane_lab_stacks::study::Bench as Lab;

/// The experiment.
#[derive(Debug)]
pub struct TlsStacks {
    spec: Spec,
}

impl TlsStacks {
    /// Reads its file.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { spec: Spec::parse(include_str!("../experiment.toml"))? })
    }
}

/// What the parts share.
struct Stacks {
    lab: Lab,
    built: Vec<Built>,
    images: RefCell<Images>,
}

fn built(builder: &Builder) -> Vec<Built> {
    catalogue::catalogue().stacks.iter().filter_map(|stack| builder.ready(stack)).collect()
}

/// Those that were asked for: the default set, or all where none of it is built; `all`; or names.
fn choose(mut built: Vec<Built>, wanted: &[String]) -> anyhow::Result<Vec<Built>> {
    match wanted {
        [word] if word == "all" => {}
        [word] if word == "default" => {
            if built.iter().any(|b| b.stack.default) {
                built.retain(|b| b.stack.default);
            }
        }
        names => {
            if let Some(name) = names.iter().find(|name| built.iter().all(|b| b.stack.name != **name)) {
                return Err(anyhow!("stacks={name}: not built (sealane-lab stacks build {name})"));
            }
            built.retain(|b| names.contains(&b.stack.name));
        }
    }
    Ok(built)
}

impl Experiment for TlsStacks {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn obstacle(&self, _: &Options) -> Option<String> {
        match Builder::new(None) {
            Err(why) => Some(why.to_string()),
            Ok(builder) if built(&builder).is_empty() => {
                Some("no TLS stack is built yet: `sealane-lab stacks build` builds the default set".into())
            }
            Ok(_) => None,
        }
    }

    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let builder = Builder::new(None)?;
        let built = choose(built(&builder), &bench.sizes::<String>("stacks")?)?;
        let lab = Lab::new(builder, &mut |text| bench.say(text)).map_err(|why| anyhow!(why))?;
        let stacks = Stacks { lab, built, images: RefCell::default() };
        subjects(bench, &stacks);
        let rule = speed::void_rule(bench.options.tries);
        bench.page.settings.retain(|fact| fact.name != "Void");
        bench.page.settings.push(Fact::new("Void", rule));
        bench.part("counts", |b, p| counts::count(b, p, &stacks))?;
        bench.part("cost", |b, p| speed::cost(b, p, &stacks))?;
        bench.part("profile", |b, p| speed::profile(b, p, &stacks))?;
        bench.part("scaling", |b, p| scaling::scaling(b, p, &stacks))?;
        bench.part("model", |b, p| model::model(&b.page, p))?;
        bench.part("bulk", |b, p| speed::bulk(b, p, &stacks))?;
        bench.part("features", |_, p| features(p, &stacks))?;
        Ok(())
    }

    fn conclude(&self, page: &mut Page) {
        verdict::conclude(page);
    }

    fn finding(&self, page: &Page) -> Option<Finding> {
        Some(verdict::finding(page))
    }
}

/// The stacks on the page: version, licence, support.
fn subjects(bench: &mut Bench<'_>, stacks: &Stacks) {
    let today = catalogue::today();
    for built in &stacks.built {
        let stack = &built.stack;
        let said = stacks.lab.describe(built).unwrap_or_default();
        let mut version = vec![
            said.version,
            format!("support: {}", stack.support(&today).until(stack.support_ends.as_deref())),
            format!("licence: {}", stack.licence),
        ];
        version.extend(said.compiled);
        version.extend(stack.note.clone());
        let configuration = stack.source.as_ref().map_or_else(String::new, |source| {
            let from = source.folder.as_deref().or(source.tarball.as_deref()).unwrap_or_default();
            format!("crate {} {} ({from})", source.package, source.version)
        });
        bench.page.subjects.push(Subject { name: stack.name.clone(), version, configuration });
    }
    let absent: Vec<String> = catalogue::catalogue()
        .stacks
        .iter()
        .filter(|s| stacks.built.iter().all(|b| b.stack.name != s.name))
        .map(|s| s.name.clone())
        .collect();
    if !absent.is_empty() {
        bench.page.settings.push(Fact::new("Left out", absent.join(", ")));
    }
}

fn features(part: &mut Part, stacks: &Stacks) -> anyhow::Result<()> {
    let mut names: Vec<String> = Vec::new();
    for built in &stacks.built {
        let name = &built.stack.name;
        match stacks.lab.features(built) {
            Ok(features) => {
                if let Some(quic) = features.iter().find(|f| f.name == "quic" && f.state == "yes") {
                    part.note(format!("{name}, QUIC: {}.", quic.note));
                }
                for feature in features {
                    let value = match feature.state.as_str() {
                        "yes" => 1.0,
                        "no" => 0.0,
                        _ => continue,
                    };
                    part.push(Figure::new(name, &feature.name, value, "").samples(1));
                    if !names.contains(&feature.name) {
                        names.push(feature.name.clone());
                    }
                }
            }
            Err(why) => part.note(format!("{name}: {why}")),
        }
    }
    let versions = |name: &&str| name.starts_with("tls") || name.starts_with("group") || name.starts_with("tickets");
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let (first, rest): (Vec<&str>, Vec<&str>) = all.into_iter().partition(versions);
    let (ciphers, others): (Vec<&str>, Vec<&str>) = rest.into_iter().partition(|name| name.starts_with("cipher"));
    part.table("Versions, groups, tickets", &first);
    part.table("Cipher suites", &ciphers);
    part.table("Features", &others);
    part.note(
        "The row fips says whether these builds have a FIPS mode. Several series have a validated module that is built and installed separately.",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_chosen_among_those_that_are_built() {
        let built = |names: &[&str]| -> Vec<Built> {
            let all = catalogue::catalogue().stacks.into_iter().filter(|s| names.contains(&s.name.as_str()));
            all.map(|stack| Built { stack, worker: "/nowhere".into(), library: None }).collect()
        };
        let chosen = |of: &[&str], wanted: &[&str]| -> Option<Vec<String>> {
            let wanted: Vec<String> = wanted.iter().map(|w| (*w).to_owned()).collect();
            Some(choose(built(of), &wanted).ok()?.into_iter().map(|b| b.stack.name).collect())
        };
        let some = ["openssl-3.0", "openssl-3.1", "s2n"];
        assert_eq!(chosen(&some, &["default"]).as_deref(), Some(&["openssl-3.0".to_owned()][..]));
        assert_eq!(chosen(&some[1..], &["default"]).map(|all| all.len()), Some(2), "none of the default set is built");
        assert_eq!(chosen(&some, &["all"]).map(|all| all.len()), Some(3));
        assert_eq!(chosen(&some, &["s2n", "openssl-3.1"]).map(|all| all.len()), Some(2));
        assert_eq!(chosen(&some, &["wolfssl"]), None);
    }
}
