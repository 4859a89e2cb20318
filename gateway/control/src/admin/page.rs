//! The status page: one file, and the policy that lets a browser run nothing else with it.

use aws_lc_rs::digest::{SHA256, digest};
use hyper::header::HeaderValue;
use std::sync::OnceLock;

/// The page has all that it needs in itself and asks this listener only. It makes no HTML of what it is told, but text.
pub(super) const PAGE: &str = include_str!("page.html");

/// The page's `Content-Security-Policy`: its own script and style by their hashes, and requests to its own listener. A text that became
/// HTML could not run: scripts in attributes have no hash, and Trusted Types refuse HTML from text altogether.
pub(super) fn policy() -> HeaderValue {
    static POLICY: OnceLock<Option<HeaderValue>> = OnceLock::new();
    let policy = POLICY.get_or_init(|| {
        let text = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; frame-ancestors 'none'; \
             base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
            hash_of("style"),
            hash_of("script"),
        );
        HeaderValue::from_str(&text).ok()
    });
    // Without hashes nothing runs.
    policy.clone().unwrap_or_else(|| HeaderValue::from_static("default-src 'none'"))
}

/// The hash of the content of the page's only element of a name, in base64.
fn hash_of(element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let content = PAGE.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    base64(digest(&SHA256, content.map_or("", |(content, _)| content).as_bytes()).as_ref())
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::cost::OPERATIONS;

    #[test]
    fn digits_are_those_of_the_standard() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_policy_allows_the_page_s_own_script_and_nothing_else() {
        let policy = policy();
        let policy = policy.to_str().unwrap();
        assert!(policy.matches("'sha256-").count() == 2 && !policy.contains("unsafe"), "{policy}");
        assert_eq!((PAGE.matches("<script").count(), PAGE.matches("<style").count()), (1, 1));
    }

    #[test]
    fn each_kind_of_operation_has_a_chart() {
        for operation in OPERATIONS {
            assert!(PAGE.contains(&format!("\"cpu_microseconds_{operation}\", micros]")), "{operation}");
        }
    }

    /// What could make HTML or code of a text, or get something from elsewhere, is not in the page.
    #[test]
    fn the_page_makes_no_html_of_text_and_needs_no_other_file() {
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "setAttribute(\"style\"",
            "setAttribute('style'",
            " style=",
            " onclick",
            " onload",
            "javascript:",
            "src=",
            "@import",
            "url(",
            "http:",
            "https:",
        ] {
            // The name of SVG's elements is no address.
            assert!(!PAGE.replace("http://www.w3.org/2000/svg", "").contains(forbidden), "{forbidden}");
        }
    }
}
