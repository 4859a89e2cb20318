//! Host names of listeners and routes, and what both have in common.
//!
//! In the Gateway API, `*.example.com` matches one or more labels; the gateway writes this `**.example.com`.

/// The names that both a listener and a route are for; `None`: there are none. A listener without a name is for every name.
pub fn intersection<'n>(listener: Option<&'n str>, route: &'n str) -> Option<&'n str> {
    let Some(listener) = listener else { return Some(route) };
    match (covers(listener, route), covers(route, listener)) {
        (true, _) => Some(route),
        (false, true) => Some(listener),
        (false, false) => None,
    }
}

/// Whether every name that `inner` matches is one that `outer` matches.
pub fn covers(outer: &str, inner: &str) -> bool {
    match outer.strip_prefix('*') {
        // `.example.com` is the end of every name that `*.example.com` matches, and `*.example.com` ends with it, too.
        Some(suffix) => inner.len() > suffix.len() && inner.ends_with(suffix),
        None => outer == inner,
    }
}

/// Whether some name matches both.
pub fn intersect(a: Option<&str>, b: Option<&str>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => intersection(Some(a), b).is_some(),
        _ => true,
    }
}

/// A name as the gateway's configuration has it; `None`: every name.
pub fn in_configuration(name: Option<&str>) -> String {
    match name {
        None => "*".to_owned(),
        Some(name) => match name.strip_prefix("*.") {
            Some(suffix) => format!("**.{suffix}"),
            None => name.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_common() {
        for (listener, route, expected) in [
            (None, "a.example", Some("a.example")),
            (Some("a.example"), "a.example", Some("a.example")),
            (Some("a.example"), "b.example", None),
            (Some("*.example"), "a.example", Some("a.example")),
            (Some("*.example"), "b.a.example", Some("b.a.example")),
            (Some("*.example"), "example", None),
            (Some("*.example"), "notexample", None),
            (Some("a.example"), "*.example", Some("a.example")),
            (Some("*.a.example"), "*.example", Some("*.a.example")),
            (Some("*.example"), "*.a.example", Some("*.a.example")),
            (Some("*.example"), "*.example", Some("*.example")),
            (Some("*.a.example"), "*.b.example", None),
        ] {
            assert_eq!(intersection(listener, route), expected, "{listener:?} {route}");
        }
    }

    #[test]
    fn names_of_the_configuration() {
        assert_eq!(in_configuration(None), "*");
        assert_eq!(in_configuration(Some("*.a.example")), "**.a.example");
        assert_eq!(in_configuration(Some("a.example")), "a.example");
    }
}
