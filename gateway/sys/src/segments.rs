//! How many TCP segments were sent, and how many were sent again because they were lost: for the whole network namespace.

const FILE: &str = "/proc/net/snmp";

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Segments that were sent, without those that were sent again.
    pub sent: u64,
    /// Segments that were sent again.
    pub retransmitted: u64,
}

impl Segments {
    /// As they are now. `None` where the kernel does not count them.
    pub fn read() -> Option<Self> {
        parse(&std::fs::read_to_string(FILE).ok()?)
    }
}

/// The file has two lines for each protocol: names, then numbers.
fn parse(text: &str) -> Option<Segments> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:")).map(str::split_ascii_whitespace);
    let (names, numbers) = (lines.next()?, lines.next()?);
    let (mut sent, mut retransmitted) = (None, None);
    for (name, number) in names.zip(numbers) {
        match name {
            "OutSegs" => sent = number.parse().ok(),
            "RetransSegs" => retransmitted = number.parse().ok(),
            _ => {}
        }
    }
    Some(Segments { sent: sent?, retransmitted: retransmitted? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_under_their_names() {
        let text = "Ip: Forwarding OutSegs\nIp: 1 2\nTcp: MaxConn InSegs OutSegs RetransSegs InErrs\nTcp: -1 7 1000 12 0\nUdp: OutSegs\n";
        assert_eq!(parse(text), Some(Segments { sent: 1000, retransmitted: 12 }));
    }

    #[test]
    fn what_is_not_there_or_is_no_number_is_no_count() {
        for bad in ["", "Tcp: OutSegs RetransSegs\n", "Tcp: OutSegs\nTcp: 5\n", "Tcp: OutSegs RetransSegs\nTcp: 5 -1\n"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
