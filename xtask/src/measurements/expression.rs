//! The small language in which a comment says how a cell is computed: `{median(cases > $row > * > value):.1} µs`.

use super::data::Sources;
use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// A template with its placeholders `{EXPRESSION:FORMAT}` computed.
pub fn render(template: &str, sources: &Sources) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after.split_once('}').with_context(|| format!("{template:?}: a {{ without }}"))?;
        let (expression, format) = inside.rsplit_once(':').with_context(|| format!("{inside:?}: no :FORMAT"))?;
        let mut parser = Parser { rest: expression, sources };
        let value = parser.sum().with_context(|| expression.to_owned())?;
        ensure!(parser.rest.trim().is_empty(), "{expression}: {:?} cannot be read", parser.rest);
        out.push_str(before);
        out.push_str(&print(value, format)?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// `.2`: two digits after the point; `,.0`: also commas between thousands; `%1`: per cent; `void`: `, N void`, or nothing for 0.
fn print(value: f64, format: &str) -> anyhow::Result<String> {
    ensure!(value.is_finite(), "the value is not finite");
    // Halves are rounded up, as people do: 499.45 is a hair less in binary.
    let value = value * (1.0 + 1e-12);
    let digits = |text: &str| text.parse::<usize>().ok().filter(|n| *n <= 9);
    if format == "void" {
        return Ok(if value == 0.0 { String::new() } else { format!(", {value:.0} void") });
    }
    if let Some(n) = format.strip_prefix('%').and_then(digits) {
        let text = format!("{:.n$}", value * 100.0);
        let nothing = value > 0.0 && text.parse::<f64>() == Ok(0.0);
        let least = 0.1f64.powi(i32::try_from(n)?);
        return Ok(if nothing { format!("less than {least:.n$} %") } else { format!("{text} %") });
    }
    let (thousands, rest) = format.strip_prefix(',').map_or((false, format), |rest| (true, rest));
    let n = rest.strip_prefix('.').and_then(digits).with_context(|| format!("{format:?} is no format"))?;
    let text = format!("{value:.n$}");
    Ok(if thousands { with_commas(&text) } else { text })
}

fn with_commas(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut out = sign.to_owned();
    for (i, c) in digits.char_indices() {
        if i > 0 && i < whole && (whole - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Reads and computes at once.
struct Parser<'a> {
    rest: &'a str,
    sources: &'a Sources,
}

impl<'a> Parser<'a> {
    /// Terms with + and −.
    fn sum(&mut self) -> anyhow::Result<f64> {
        let mut value = self.product()?;
        loop {
            match self.operator(['+', '-']) {
                Some('+') => value += self.product()?,
                Some(_) => value -= self.product()?,
                None => return Ok(value),
            }
        }
    }

    /// Factors with * and /.
    fn product(&mut self) -> anyhow::Result<f64> {
        let mut value = self.factor()?;
        loop {
            match self.operator(['*', '/']) {
                Some('*') => value *= self.factor()?,
                Some(_) => value /= self.factor()?,
                None => return Ok(value),
            }
        }
    }

    fn operator(&mut self, of: [char; 2]) -> Option<char> {
        let rest = self.rest.trim_start();
        let operator = rest.chars().next().filter(|c| of.contains(c))?;
        self.rest = &rest[operator.len_utf8()..];
        Some(operator)
    }

    /// A number, an expression in parentheses, or a statistic of the data.
    fn factor(&mut self) -> anyhow::Result<f64> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with('(') {
            let inside = self.parentheses()?;
            let mut parser = Parser { rest: inside, sources: self.sources };
            let value = parser.sum()?;
            ensure!(parser.rest.trim().is_empty(), "{:?} cannot be read", parser.rest);
            return Ok(value);
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        if let Ok(number) = name.parse::<f64>() {
            return Ok(number);
        }
        ensure!(rest.starts_with('('), "{name:?} is no number, and no statistic of a path in parentheses");
        let inside = self.parentheses()?;
        let values = match inside.split_once(" over ") {
            None => self.values(inside)?.into_iter().flatten().collect(),
            Some((above, below)) => {
                let (above, below) = (self.values(above)?, self.values(below)?);
                ensure!(above.len() == below.len(), "{} values over {} values", above.len(), below.len());
                let pairs = above.into_iter().zip(below);
                pairs.filter_map(|(above, below)| Some(above? / below?)).collect()
            }
        };
        statistic(name, values)
    }

    /// What is between this parenthesis and the one that closes it.
    fn parentheses(&mut self) -> anyhow::Result<&'a str> {
        let mut depth = 0usize;
        let text = self.rest;
        for (i, c) in text.char_indices() {
            match c {
                '(' => depth += 1,
                ')' if depth == 1 => {
                    self.rest = &text[i + 1..];
                    return Ok(&text[1..i]);
                }
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        bail!("a ( without )")
    }

    /// The numbers at a path; `None` for an element that `unless` left out, so that pairs stay pairs.
    fn values(&self, path: &str) -> anyhow::Result<Vec<Option<f64>>> {
        let mut segments: Vec<&str> = path.split(" > ").map(str::trim).collect();
        let source = segments[0].strip_prefix('@').unwrap_or_default();
        if segments[0].starts_with('@') {
            segments.remove(0);
        }
        let root = self.sources.0.get(source).with_context(|| format!("there is no `data {source}:`"))?;
        let mut values: Vec<Option<&Value>> = vec![Some(root)];
        for segment in segments {
            values = step(&values, segment).with_context(|| segment.to_owned())?;
        }
        let number = |value: &Value| match value {
            Value::String(text) => text.parse().ok(),
            // For `count`, anything counts.
            other => other.as_f64().or(other.is_object().then_some(1.0)),
        };
        values
            .into_iter()
            .map(|v| v.map(|v| number(v).with_context(|| format!("{v} is no number"))).transpose())
            .collect()
    }
}

fn step<'v>(values: &[Option<&'v Value>], segment: &str) -> anyhow::Result<Vec<Option<&'v Value>>> {
    if let Some(number) = segment.strip_prefix('#') {
        let number: usize = number.parse().context("# needs a number")?;
        let value = number.checked_sub(1).and_then(|i| values.get(i)).context("there are fewer values")?;
        return Ok(vec![*value]);
    }
    if let Some(key) = segment.strip_prefix("unless ") {
        return Ok(values.iter().map(|v| v.filter(|v| !has(v, key))).collect());
    }
    let elements = || {
        values.iter().flatten().copied().flat_map(|v| match v {
            Value::Array(all) => all.iter().collect::<Vec<_>>(),
            _ => Vec::new(),
        })
    };
    if segment == "*" {
        return Ok(elements().map(Some).collect());
    }
    if segment.starts_with('[') {
        let conditions: Vec<&str> = segment.trim_matches(['[', ']']).split("][").collect();
        return Ok(elements().filter(|v| conditions.iter().all(|c| satisfies(v, c))).map(Some).collect());
    }
    let child = |v: &Option<&'v Value>| match v {
        None => Ok(None),
        Some(v) => get(v, segment).map(Some).context("the data have no such key"),
    };
    values.iter().map(child).collect()
}

fn get<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    match value {
        Value::Array(all) => all.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    }
}

/// Whether the element has something under this key: not nothing, false, or an empty list or text.
fn has(value: &Value, key: &str) -> bool {
    match get(value, key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(all)) => !all.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

/// `key=value`, `key` (has it), `!key` (does not).
fn satisfies(value: &Value, condition: &str) -> bool {
    if let Some((key, wanted)) = condition.split_once('=') {
        return match get(value, key) {
            Some(Value::String(text)) => text == wanted,
            Some(Value::Number(number)) => number.as_f64().is_some_and(|n| wanted.parse::<f64>() == Ok(n)),
            _ => false,
        };
    }
    match condition.strip_prefix('!') {
        Some(key) => !has(value, key),
        None => has(value, condition),
    }
}

fn statistic(name: &str, mut values: Vec<f64>) -> anyhow::Result<f64> {
    if name == "count" {
        return Ok(values.len() as f64);
    }
    let n = values.len();
    ensure!(n > 0, "there are no values");
    values.sort_unstable_by(f64::total_cmp);
    let quartile = |part: usize| {
        // At (n + 1) · part / 4 of the sorted values, interpolated.
        let place = ((n + 1) as f64 * part as f64 / 4.0 - 1.0).clamp(0.0, (n - 1) as f64);
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        values[below] + (values[above] - values[below]) * place.fract()
    };
    Ok(match name {
        "value" => {
            ensure!(n == 1, "`value` needs one value, and there are {n}");
            values[0]
        }
        "median" if n % 2 == 1 => values[n / 2],
        "median" => (values[n / 2 - 1] + values[n / 2]) / 2.0,
        "min" => values[0],
        "max" => values[n - 1],
        "q1" => quartile(1),
        "q3" => quartile(3),
        // The quartiles of the first measurements: a value, not interpolated.
        "rank1" => values[n / 4],
        "rank3" => values[n - 1 - n / 4],
        other => bail!("{other:?} is no statistic: value, median, q1, q3, rank1, rank3, min, max, count"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn sources() -> Sources {
        let data = json!({
            "rounds": [
                { "subject": "a", "v": 4.0 }, { "subject": "b", "v": 2.0 },
                { "subject": "a", "v": 9.0, "void": ["late"] }, { "subject": "b", "v": 3.0 },
                { "subject": "a", "v": 20.0 }, { "subject": "b", "v": 4.0 },
            ],
            "x (µs)": [["k", 1234567.0], ["l", 0.0004]],
        });
        let other = json!({ "v": "7" });
        Sources(BTreeMap::from([(String::new(), data), ("other".to_owned(), other)]))
    }

    fn value(template: &str) -> String {
        render(template, &sources()).unwrap()
    }

    #[test]
    fn paths_statistics_and_formats() {
        assert_eq!(value("{median(rounds > [subject=b] > v):.1} µs"), "3.0 µs");
        assert_eq!(value("{min(rounds > * > v):.0} to {max(rounds > * > v):.0}"), "2 to 20");
        assert_eq!(value("{count(rounds > [subject=a][!void]):.0}{count(rounds > [void]):void}"), "2, 1 void");
        assert_eq!(value("{count(rounds > [subject=c]):void}"), "");
        assert_eq!(value("{value(x (µs) > [0=k] > 1):,.0}"), "1,234,567");
        assert_eq!(value("{value(x (µs) > * > #2 > 1):%1}"), "less than 0.1 %");
        assert_eq!(value("{value(@other > v) * (2 + 1) - 1 / 2:.1}"), "20.5");
        assert_eq!(value("{0.0137:%1}"), "1.4 %");
        assert_eq!(value("{499.45:.1} {1076.5:,.0} {0.105:.2} {0.1049:.2}"), "499.5 1,077 0.11 0.10");
    }

    #[test]
    fn ratios_pair_rounds_and_leave_void_ones_out() {
        let ratio = "rounds > [subject=a] > unless void > v over rounds > [subject=b] > v";
        assert_eq!(value(&format!("{{min({ratio}):.1}} {{max({ratio}):.1}} {{count({ratio}):.0}}")), "2.0 5.0 2");
        assert!(
            render("{median(rounds > [subject=a][!void] > v over rounds > [subject=b] > v):.1}", &sources()).is_err()
        );
    }

    #[test]
    fn quartiles_of_both_kinds() {
        let of = |name: &str| statistic(name, vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!([of("q1"), of("q3"), of("rank1"), of("rank3"), of("median")], [1.25, 3.75, 2.0, 3.0, 2.5]);
        assert_eq!(statistic("q1", vec![5.0]).unwrap(), 5.0);
    }

    #[test]
    fn mistakes_are_named() {
        for (template, word) in [
            ("{value(rounds > * > v):.0}", "needs one value"),
            ("{value(none > v):.0}", "no such key"),
            ("{mean(rounds > * > v):.0}", "no statistic"),
            ("{value(rounds > * > subject):.0}", "is no number"),
            ("{value(@none > v):.0}", "no `data none:`"),
            ("{median(rounds > [subject=c] > v):.0}", "no values"),
            ("{1 1:.0}", "cannot be read"),
            ("{1:x}", "no format"),
            ("{1}", "no :FORMAT"),
            ("{1 / 0:.0}", "not finite"),
            ("{value(a:.0}", "without )"),
        ] {
            let why = format!("{:#}", render(template, &sources()).unwrap_err());
            assert!(why.contains(word), "{template}: {why}");
        }
    }
}
