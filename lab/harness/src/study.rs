//! The studies' published figures, as `lab/data` holds them.

use anyhow::{Context, bail};
use sealane_lab_report::{Fact, Study};
use serde_json::Value;

const ALL: &[(&str, &str)] = &[
    ("proxies", include_str!("../../data/proxies.json")),
    ("ssl-stacks", include_str!("../../data/ssl-stacks.json")),
    ("openvpn-dco", include_str!("../../data/openvpn-dco.json")),
    ("sslmtcp", include_str!("../../data/sslmtcp.json")),
];

/// The twenty rows of curl of "TLS 1.2 vs 1.3".
pub const TLS_VERSIONS_ROWS: &str = include_str!("../../data/tls-versions-curl.csv");

/// A study's figures as they are in its file.
pub fn data(name: &str) -> anyhow::Result<Value> {
    let Some((_, text)) = ALL.iter().find(|(n, _)| *n == name) else { bail!("there is no study {name:?}") };
    serde_json::from_str(text).with_context(|| format!("lab/data/{name}.json"))
}

/// A study for a page: its title, and everything that it says as facts.
pub fn study(name: &str) -> anyhow::Result<Study> {
    if name == "tls-versions" {
        return Ok(Study {
            title: "TLS 1.2 vs TLS 1.3: ten requests with curl in each version".to_owned(),
            facts: vec![Fact::new(
                "data",
                "twenty rows of curl -w; lab/data/tls-versions-curl.csv, analysed in docs/measurements/tls-versions-curl.md",
            )],
        });
    }
    let data = data(name)?;
    let object = data.as_object().with_context(|| format!("lab/data/{name}.json is not an object"))?;
    let title = object.get("study").and_then(Value::as_str).unwrap_or(name).to_owned();
    let mut facts = Vec::new();
    for (key, value) in object.iter().filter(|(key, _)| *key != "study") {
        flatten(&key.replace('_', " "), value, &mut facts);
    }
    Ok(Study { title, facts })
}

fn flatten(name: &str, value: &Value, facts: &mut Vec<Fact>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(k, v)| flatten(&format!("{name}: {}", k.replace('_', " ")), v, facts))
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for row in list {
                let cells = row.as_object().into_iter().flatten();
                let text: Vec<String> = cells.map(|(k, v)| format!("{} {}", k.replace('_', " "), plain(v))).collect();
                facts.push(Fact::new(name, text.join(", ")));
            }
        }
        Value::Array(list) => facts.push(Fact::new(name, list.iter().map(plain).collect::<Vec<_>>().join(", "))),
        other => facts.push(Fact::new(name, plain(other))),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_study_can_be_read() {
        for (name, _) in ALL {
            let study = study(name).unwrap();
            assert!(!study.title.is_empty() && study.facts.len() > 1, "{study:?}");
        }
        assert!(study("tls-versions").is_ok() && study("none").is_err());
        assert_eq!(data("ssl-stacks").unwrap()["full_handshakes_per_second_64_threads"]["OpenSSL 1.1.1w"], 48000);
    }
}
