//! Paths for which the report names a sample.

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

#[cfg(test)]
mod tests {
    use super::super::cases::{difference, draft, entry, line};
    use super::*;
    use crate::difference::Aspect;

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
}
