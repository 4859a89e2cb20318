//! Error pages and maintenance: what clients get in the place of the gateway's plain texts.

/// A body that the gateway answers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The value of `Content-Type`.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

/// Which statuses a page is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// Ranges of statuses: from, to.
    pub statuses: Vec<(u16, u16)>,
    /// It takes the place of upstreams' responses with these statuses, too.
    pub for_upstream: bool,
    /// Index into [`Routing::pages`](crate::snapshot::Routing::pages).
    pub page: usize,
    /// The status that clients get instead.
    pub status: Option<u16>,
}

impl ErrorPage {
    fn is_for(&self, status: u16) -> bool {
        self.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

/// The first page for a status, and the status that clients get. `of_upstream`: the status is that of an upstream's response.
pub(crate) fn page_for(pages: &[ErrorPage], status: u16, of_upstream: bool) -> Option<(usize, u16)> {
    let found = pages.iter().find(|page| page.is_for(status) && (page.for_upstream || !of_upstream))?;
    Some((found.page, found.status.unwrap_or(status)))
}

/// Maintenance: requests get 503, but those of some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Who is let through: an index into the snapshot's access rules. `None`: nobody.
    pub access: Option<usize>,
    /// The value of `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// Index into [`Routing::pages`](crate::snapshot::Routing::pages); `None`: the error page for 503, if there is one.
    pub page: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_for_a_status_counts() {
        let page = |statuses: &[(u16, u16)], for_upstream, page| {
            let status = (page == 1).then_some(404);
            ErrorPage { statuses: statuses.to_vec(), for_upstream, page, status }
        };
        let pages =
            [page(&[(404, 404), (502, 504)], false, 0), page(&[(400, 599)], false, 1), page(&[(500, 599)], true, 2)];
        assert_eq!(page_for(&pages, 404, false), Some((0, 404)));
        assert_eq!(page_for(&pages, 503, false), Some((0, 503)));
        assert_eq!(page_for(&pages, 405, false), Some((1, 404)), "the page has a status of its own");
        assert_eq!(page_for(&pages, 503, true), Some((2, 503)));
        assert_eq!(page_for(&pages, 404, true), None);
        assert_eq!(page_for(&pages, 200, false), None);
    }
}
