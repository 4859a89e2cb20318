//! Paths and hosts for which the report names a sample.

/// Whether a path is one for which the report names a sample: `/appx` for a route that has `/app` and all below, `/APP/x` for one
/// that is written in lower case.
pub(super) fn is_beside(sample: &str, path: &str) -> bool {
    let sample = sample.split([' ', ';']).next().unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let upper = |text: &str| text.bytes().any(|b| b.is_ascii_uppercase());
    // A sample in upper case is about spellings: the path as the route has it is not one of them.
    let begins = |prefix: &str| {
        let begin = path.get(..prefix.len());
        begin.is_some_and(|b| b.eq_ignore_ascii_case(prefix) && (!upper(prefix) || upper(b))) && !prefix.is_empty()
    };
    let Some(prefix) = sample.strip_suffix('x') else { return begins(sample) && path.len() == sample.len() };
    match prefix.strip_suffix('/') {
        Some(bare) => begins(bare),
        None => {
            let below = path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            begins(prefix) && !below
        }
    }
}

/// Whether a host is one of those for which the report names a sample: `a.example…` for a beginning, `a.example.…` also for a part of
/// the name, `…a.example` for an end, and `a…b` for a beginning and an end. The whole name itself, and names below it, are none of them.
pub(super) fn is_like(sample: &str, host: &str) -> bool {
    let sample = sample.split([' ', ';', ',']).next().unwrap_or_default();
    let Some((begin, end)) = sample.split_once('…').filter(|(begin, end)| !begin.is_empty() || !end.is_empty())
    else {
        return false;
    };
    let host = host.to_ascii_lowercase();
    if begin.is_empty() {
        return host.strip_suffix(end).is_some_and(|rest| !rest.is_empty() && !rest.ends_with('.'));
    }
    let is_more = |rest: &str| !rest.is_empty() && !rest.starts_with(':') && rest.ends_with(end);
    let within = || begin.ends_with('.').then(|| host.split_once(&format!(".{begin}"))).flatten();
    match host.strip_prefix(begin) {
        Some(rest) => is_more(rest),
        None => within().is_some_and(|(_, rest)| is_more(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{difference, draft, entry, line};
    use super::*;
    use crate::difference::Aspect;
    use crate::draft::Draft;
    use crate::translation::Entry;

    #[test]
    fn a_location_announces_the_paths_that_the_report_names() {
        for (sample, inside, outside) in [
            ("/appx; another route handles it", &["/appx", "/appy/z?q", "/APP"][..], &["/app", "/app/x", "/other"][..]),
            ("/adminx; HAProxy does something else. Add", &["/adminx"], &["/admin", "/admin/x"]),
            ("/OWA/x; another route handles it", &["/OWA/x", "/OWA", "/Owa/y"], &["/ow", "/", "/owa", "/owa/x"]),
        ] {
            assert!(inside.iter().all(|p| is_beside(sample, p)), "{sample}");
            assert!(!outside.iter().any(|p| is_beside(sample, p)), "{sample}");
        }
        let entries = [entry(
            9,
            "different",
            "location /app",
            "Sealane matches whole segments and distinguishes upper and lower case: this route does not match /appx; another",
        )];
        let other = difference(Aspect::Backend, "10.0.0.1:80", "10.0.0.2:80");
        assert_eq!(line(&entries, &draft().at("/appx"), &other), Some(9));
        assert_eq!(line(&entries, &draft().at("/app/x"), &other), None);
    }

    #[test]
    fn a_sample_of_the_report_is_for_paths_like_it() {
        assert!(is_beside("/appx", "/appx") && is_beside("/appx", "/appy?q=1") && !is_beside("/appx", "/app/x"));
        assert!(
            is_beside("/OWA/x; another", "/OWA/x") && is_beside("/OWA/x", "/Owa") && !is_beside("/OWA/x", "/owa/x")
        );
        assert!(is_beside("/app", "/app") && !is_beside("/app", "/app/x"));
    }

    #[test]
    fn a_sample_of_the_report_is_for_names_like_it() {
        let api = "api.a.example… get 403";
        assert!(is_like(api, "api.a.examplex") && is_like(api, "API.a.example.b"));
        assert!(
            !is_like(api, "api.a.example") && !is_like(api, "api.a.example:443") && !is_like(api, "x.api.a.examplex")
        );
        let shop = "shop.a.example.…";
        assert!(is_like(shop, "shop.a.example.b") && is_like(shop, "x.shop.a.example.b"));
        assert!(
            !is_like(shop, "shop.a.example")
                && !is_like(shop, "x.shop.a.example")
                && !is_like(shop, "xshop.a.example.b")
        );
        assert!(
            is_like("a.….b", "a.x.b")
                && !is_like("a.….b", "a.x.c")
                && !is_like("…", "a.b")
                && !is_like("other names", "a")
        );
        let end = "…a.example";
        assert!(is_like(end, "xa.example") && !is_like(end, "a.example") && !is_like(end, "x.a.example"));

        let at = |says: &str| [entry(9, "different", "use_backend s if shop", says)];
        let asked = |host: &str| Draft { host: host.to_owned(), ..draft() };
        let refused = at("Sealane compares whole host names: requests for names such as api.a.example… get 403");
        let is = |entries: &[Entry], host: &str, from: &str| {
            line(entries, &asked(host), &difference(Aspect::Backend, from, "none")).is_some()
        };
        // A request of these tests is answered with 200.
        assert!(!is(&refused, "api.a.examplex", "10.0.0.1:80"));
        let other = at("Sealane compares whole host names: this rule does not apply to names such as shop.a.example.…");
        assert!(is(&other, "x.shop.a.example.b", "10.0.0.1:80") && !is(&other, "x.shop.a.example", "10.0.0.1:80"));
    }
}
