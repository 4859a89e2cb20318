//! `compression`: how the responses of a proxy are compressed.

use super::parser::{Line, Proxy};
use crate::output::{is_media_type, list};
use crate::report::{Place, Report};
use crate::units::shown_size;

const DIFFERS: &str = "compression: Sealane does not compress responses with Set-Cookie, or responses to requests with Cookie, \
     Authorization or a client certificate (BREACH). It compresses responses of every status except 204, 205, 206 and \
     304";

/// The rule of a proxy, if it has one.
pub(super) fn compression(proxy: &Proxy, report: &mut Report) -> Option<(String, Place)> {
    let lines: Vec<&Line> = proxy.all().filter(|l| l.word(0) == "compression").collect();
    let mut origin = None;
    let (mut types, mut min_length) = (Vec::new(), 0);
    for line in lines {
        match line.word(1) {
            "algo" | "algo-res" => match line.from(2).iter().any(|algorithm| algorithm == "gzip") {
                true => {
                    report.differs(line.id, DIFFERS);
                    origin = Some(line.place.clone());
                }
                false => report.missing(line.id, "Sealane compresses with zstd, br and gzip: write \"compression\""),
            },
            "type" | "type-res" => {
                let (good, bad): (Vec<&String>, Vec<&String>) = line.from(2).iter().partition(|t| is_media_type(t));
                types.extend(good.into_iter().cloned());
                match bad.is_empty() {
                    true => report.same(line.id, "compression.types"),
                    false => report.differs(line.id, "compression.types: without the types that are never compressed"),
                }
            }
            "minsize-res" => match line.word(2).parse() {
                Ok(size) => {
                    min_length = size;
                    report.same(line.id, "compression.min_length");
                }
                Err(_) => report.missing(line.id, "is not a size"),
            },
            "direction" if line.word(2) == "response" => report.same(line.id, ""),
            "offload" => report.missing(
                line.id,
                "servers get Accept-Encoding, so they may compress responses themselves: to prevent this, write \
                 request_headers = { remove = [\"Accept-Encoding\"] }",
            ),
            _ => report.missing(line.id, "requests are passed on as they are"),
        }
    }
    // Without a list, all types are compressed.
    if types.is_empty() {
        types.push("*/*".to_owned());
    }
    let rule = format!(
        "{{ encodings = [\"gzip\"], gzip_level = 1, types = {}, min_length = {} }}",
        list(&types),
        shown_size(min_length)
    );
    origin.map(|origin| (rule, origin))
}
