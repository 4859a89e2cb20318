//! What the kernel counts of TCP Fast Open on the accepting side, of which it tells no socket: for the whole network
//! namespace, since that began.

const FILE: &str = "/proc/net/netstat";

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// SYNs with data that came while a socket's queue was full, and were served in sequence (RFC 7413 §5.1).
    pub queue_overflows: u64,
    /// Cookies that were made from the older of two keys, and were taken.
    pub older_cookies: u64,
}

impl Counts {
    /// As they are now. `None` where the kernel does not count them.
    pub fn read() -> Option<Self> {
        parse(&std::fs::read_to_string(FILE).ok()?)
    }
}

/// The file has two lines for each group: names, then numbers.
fn parse(text: &str) -> Option<Counts> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:")).map(str::split_ascii_whitespace);
    let (names, numbers) = (lines.next()?, lines.next()?);
    let mut counts = Counts::default();
    let mut found = false;
    for (name, number) in names.zip(numbers) {
        let count = match name {
            "TCPFastOpenListenOverflow" => &mut counts.queue_overflows,
            "TCPFastOpenPassiveAltKey" => &mut counts.older_cookies,
            _ => continue,
        };
        *count = number.parse().ok()?;
        found = true;
    }
    found.then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_under_their_names() {
        let text = "TcpExt: SyncookiesSent TCPFastOpenListenOverflow TCPFastOpenCookieReqd TCPFastOpenPassiveAltKey\n\
                    TcpExt: 5 272 9 3\nIpExt: InNoRoutes TCPFastOpenListenOverflow\nIpExt: 1 2\n";
        assert_eq!(parse(text), Some(Counts { queue_overflows: 272, older_cookies: 3 }));
    }

    #[test]
    fn what_is_not_there_or_is_no_number_is_no_count() {
        let overflow = |number: &str| format!("TcpExt: TCPFastOpenListenOverflow\nTcpExt: {number}\n");
        assert_eq!(parse(&overflow("7")), Some(Counts { queue_overflows: 7, older_cookies: 0 }));
        for bad in ["-1", "", "x"] {
            assert_eq!(parse(&overflow(bad)), None, "{bad:?}");
        }
        assert_eq!(parse("TcpExt: SyncookiesSent\nTcpExt: 5\n"), None);
        assert_eq!(parse("TcpExt: TCPFastOpenListenOverflow\n"), None);
        assert_eq!(parse(""), None);
    }
}
