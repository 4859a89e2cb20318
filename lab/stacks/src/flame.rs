//! A flame graph as one SVG: width is time, the caller stands below what it called. Small enough to be our own; the
//! titles are shown by any browser without a script.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A function called from one place, with its samples and what it called.
#[derive(Default)]
struct Node {
    samples: u64,
    calls: BTreeMap<String, Node>,
}

impl Node {
    fn depth(&self) -> usize {
        1 + self.calls.values().map(Node::depth).max().unwrap_or(0)
    }
}

const WIDE: f64 = 1200.0;
const ROW: f64 = 17.0;
const HEAD: f64 = 30.0;

/// Draws samples by chain of callers, outermost first.
pub fn draw(title: &str, stacks: &BTreeMap<Vec<String>, u64>) -> String {
    let mut root = Node::default();
    for (chain, samples) in stacks {
        let mut at = &mut root;
        at.samples += samples;
        for name in chain {
            at = at.calls.entry(name.clone()).or_default();
            at.samples += samples;
        }
    }
    let high = HEAD + ROW * root.depth() as f64 + 6.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDE} {high:.0}\" width=\"{WIDE}\" height=\"{high:.0}\" \
         font-family=\"monospace\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"19\" font-size=\"13\">{}</text>\n",
        escape(&format!("{title}: {} samples", root.samples))
    );
    let per = WIDE / root.samples.max(1) as f64;
    row(&mut out, &root, 0.0, high - 3.0 - ROW, per, root.samples.max(1));
    out.push_str("</svg>\n");
    out
}

fn row(out: &mut String, node: &Node, x: f64, y: f64, per: f64, all: u64) {
    let mut x = x;
    for (name, call) in &node.calls {
        let wide = call.samples as f64 * per;
        // Narrower than half a pixel nobody sees, and files would be large.
        if wide >= 0.5 {
            let percent = call.samples as f64 * 100.0 / all as f64;
            let _ = write!(
                out,
                "<g><title>{} {percent:.1} %</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"16\" \
                 fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.5\"/>",
                escape(name),
                colour(name)
            );
            let letters = (wide / 6.7) as usize;
            if letters >= 4 {
                let short: String = name.chars().take(letters - 1).collect();
                let _ = write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 2.0, y + 12.0, escape(&short));
            }
            out.push_str("</g>\n");
            row(out, call, x, y - ROW, per, all);
        }
        x += wide;
    }
}

/// Warm colours, the same for the same name in every graph, so that two can be compared.
fn colour(name: &str) -> String {
    let number = name.bytes().fold(5381u32, |n, b| n.wrapping_mul(33) ^ u32::from(b));
    let lock = ["lock", "futex", "mutex"].iter().any(|part| name.contains(part));
    let hue = if lock { 205 } else { 15 + number % 35 };
    format!("hsl({hue},{}%,{}%)", 70 + number / 64 % 20, 62 + number / 4096 % 14)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_as_wide_as_what_they_call() {
        let chain = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let stacks = BTreeMap::from([
            (chain(&["SSL_accept", "RSA_sign"]), 60),
            (chain(&["SSL_accept", "drop<T>"]), 30),
            (chain(&["SSL_write"]), 10),
        ]);
        let svg = draw("x", &stacks);
        assert!(svg.contains("SSL_accept 90.0 %") && svg.contains("width=\"1080.0\""), "{svg}");
        assert!(svg.contains("drop&lt;T&gt; 30.0 %") && svg.contains("x: 100 samples"));
        assert!(draw("none", &BTreeMap::new()).ends_with("</svg>\n"));
    }
}
