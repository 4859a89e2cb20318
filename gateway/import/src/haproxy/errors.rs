//! `errorfile`, `errorfiles` and `http-errors`: files with whole responses, as pages of errors.
//!
//! HAProxy sends such a file as it is. In Sealane, a page is a file with the body alone, so the result has a file of its own for each.

use super::parser::{Line, Proxy, Section};
use crate::output::{ErrorPage, Output};
use crate::reader::Reader;
use crate::report::Report;
use std::collections::BTreeMap;
use std::path::Path;

/// Longest body of a page in Sealane.
const MAX_BODY: usize = 64 << 10;
/// Headers that need no counterpart: Sealane frames its responses, and says that errors are not to be stored.
const LEFT_OUT: &[&str] =
    &["connection", "content-length", "keep-alive", "transfer-encoding", "date", "server", "cache-control"];

/// A response in a file.
#[derive(Debug, PartialEq, Eq)]
struct Reply<'f> {
    status: u16,
    content_type: Option<&'f str>,
    /// The names of other headers.
    others: Vec<&'f str>,
    body: &'f [u8],
}

/// Reads a response: the status, the headers, an empty line and the body. Lines end with a line feed, perhaps behind a carriage return.
fn reply(file: &[u8]) -> Option<Reply<'_>> {
    let mut rest = file;
    let mut line = || -> Option<&str> {
        let end = rest.iter().position(|b| *b == b'\n')?;
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).ok()
    };
    let mut words = line()?.split(' ');
    let version = words.next().is_some_and(|v| v.starts_with("HTTP/1."));
    let status = words.next().and_then(|s| s.parse().ok()).filter(|s| version && (100..=999).contains(s))?;
    let (mut content_type, mut others) = (None, Vec::new());
    loop {
        let text = line()?;
        if text.is_empty() {
            break;
        }
        let (name, value) = text.split_once(':').filter(|(name, _)| crate::nginx::is_name(name))?;
        match name.to_ascii_lowercase().as_str() {
            "content-type" => content_type = Some(value.trim()),
            known if LEFT_OUT.contains(&known) => {}
            _ => others.push(name),
        }
    }
    Some(Reply { status, content_type, others, body: rest })
}

/// What `errorfile` lines are read with.
pub(super) struct Files<'a> {
    pub sections: &'a [Section],
    pub reader: &'a dyn Reader,
    pub base: &'a Path,
}

/// The pages of a proxy, by status.
pub(super) fn pages(proxy: &Proxy, files: &Files, out: &mut Output, report: &mut Report) -> BTreeMap<u16, ErrorPage> {
    // A later line replaces an earlier one, and those of `defaults` come first.
    let mut lines: BTreeMap<u16, &Line> = BTreeMap::new();
    for line in proxy.all() {
        match line.word(0) {
            "errorfile" => match line.word(1).parse() {
                Ok(status) => {
                    lines.insert(status, line);
                }
                Err(_) => report.missing(line.id, NO_STATUS),
            },
            "errorfiles" => {
                let named = |s: &&Section| s.kind == "http-errors" && s.name == line.word(1);
                let Some(section) = files.sections.iter().find(named) else {
                    report.missing(line.id, format!("there is no section http-errors {}", line.word(1)));
                    continue;
                };
                report.same(line.id, "the pages of the section");
                report.same(section.id, "the pages of its lines");
                let wanted = line.from(2);
                for page in section.lines.iter().filter(|l| l.word(0) == "errorfile") {
                    if !wanted.is_empty() && !wanted.iter().any(|w| w == page.word(1)) {
                        continue;
                    }
                    match page.word(1).parse() {
                        Ok(status) => {
                            lines.insert(status, page);
                        }
                        Err(_) => report.missing(page.id, NO_STATUS),
                    }
                }
            }
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    for (status, line) in lines {
        match page(status, line, files, out, report) {
            Ok(page) => {
                found.insert(status, page);
            }
            Err(why) => report.missing(line.id, why),
        }
    }
    found
}

const NO_STATUS: &str = "this line names no status: write error_page";

fn page(status: u16, line: &Line, files: &Files, out: &mut Output, report: &mut Report) -> Result<ErrorPage, String> {
    if !(400..=599).contains(&status) {
        return Err("Sealane has pages for statuses from 400 to 599: write a route with respond".to_owned());
    }
    let read = files.reader.read(&files.base.join(line.word(2)));
    let file = read.map_err(|e| format!("the import cannot read the file ({e}): write error_page"))?;
    if file.is_empty() {
        return Err(
            "Sealane never closes a connection instead of an error response: there is no setting for this".to_owned()
        );
    }
    let Some(reply) = reply(&file) else {
        return Err("the import cannot read the file as an HTTP response: write error_page".to_owned());
    };
    if reply.status != status {
        return Err(format!(
            "Sealane sends a page with the status of the error, but this file has the status {}: write error_page",
            reply.status
        ));
    }
    if reply.body.is_empty() || reply.body.len() > MAX_BODY {
        return Err(
            "the body in this file is empty or larger than 64 KiB: write error_page with another file".to_owned()
        );
    }
    let kind = reply.content_type.unwrap_or("text/plain");
    if kind.chars().any(char::is_control) || kind.is_empty() {
        return Err("the file's Content-Type is invalid: write error_page".to_owned());
    }
    let ending = match kind.split(';').next().unwrap_or_default().trim() {
        "text/html" => "html",
        "application/json" => "json",
        _ => "txt",
    };
    let name = out.file(&format!("error-{status}"), ending, reply.body);
    let mut says = format!(
        "error_page, with the file {name} beside the result: Sealane sends this page for errors of the gateway \
         itself, not for http-request deny and return"
    );
    if status == 503 {
        says += "; also for 502 (a server cannot be reached) and 504 (connecting takes too long) without a page of their own: HAProxy \
                 responds with 503 to both";
    }
    if !reply.others.is_empty() {
        says += &format!("; these headers are left out: {}", reply.others.join(", "));
    }
    report.differs(line.id, says);
    let content_type = Some(kind.to_owned());
    let origin = line.place.clone();
    Ok(ErrorPage { statuses: vec![status], file: name, content_type, upstream: false, status: None, origin })
}

/// Where HAProxy responds with 503 because no connection to a server can be made, Sealane responds with 502 or 504. These have the page
/// for 503 if they have none of their own.
pub(super) fn complete(pages: &mut BTreeMap<u16, ErrorPage>) {
    let missing: Vec<u16> = [502, 504].into_iter().filter(|status| !pages.contains_key(status)).collect();
    if let Some(page) = pages.get_mut(&503) {
        page.statuses.extend(missing);
        page.statuses.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read() {
        let file = b"HTTP/1.0 503 Service Unavailable\r\nCache-Control: no-cache\r\nConnection: close\r\nContent-Type: text/html\r\nX-A: 1\r\n\r\n<p>\r\n";
        let read = reply(file).unwrap();
        assert_eq!((read.status, read.content_type, read.others), (503, Some("text/html"), vec!["X-A"]));
        assert_eq!(read.body, b"<p>\r\n");
        // Files of people have line feeds alone.
        let read = reply(b"HTTP/1.1 404 Not Found\n\nx").unwrap();
        assert_eq!((read.status, read.content_type, read.body), (404, None, &b"x"[..]));
        for bad in [
            &b""[..],
            b"<p>",
            b"HTTP/1.1 503 x",
            b"HTTP/1.1 503 x\r\nA: b",
            b"HTTP/1.1 x\r\n\r\n",
            b"HTTP/2 503\r\n\r\n",
            b"HTTP/1.1 503 x\r\nno header\r\n\r\n",
            b"HTTP/1.1 503 \xff\r\n\r\n",
        ] {
            assert_eq!(reply(bad), None, "{:?}", String::from_utf8_lossy(bad));
        }
    }
}
