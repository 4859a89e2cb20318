//! The SYN budget: how many bytes of data one SYN takes.
//!
//! Linux reserves the most that TCP options can ever need (`MAX_TCP_OPTION_SPACE`, 40 bytes), whatever is used of it. A
//! hello that is one byte longer travels in two segments, the second after the SYN-ACK, and the whole gain is lost
//! (*measured*). So what does not fit is sent in sequence.

use std::net::IpAddr;

const V4_HEADER: u32 = 20;
const V6_HEADER: u32 = 40;
const TCP_HEADER: u32 = 20;
const OPTIONS: u32 = 40;

/// Bytes of data that fit into a SYN: 1420 over IPv4 and 1400 over IPv6 at an MTU of 1500. `mtu` is the interface's, or
/// what the kernel has learnt of the path; where a larger one misleads, the hedge and [`crate::Memory`] take over.
pub fn bytes(to: IpAddr, mtu: u32) -> usize {
    let header = if is_v4(to) { V4_HEADER } else { V6_HEADER };
    mtu.saturating_sub(header + TCP_HEADER + OPTIONS) as usize
}

/// IPv4-mapped addresses travel as IPv4.
fn is_v4(to: IpAddr) -> bool {
    to.to_canonical().is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_as_measured() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!((bytes(v4, 1500), bytes(v6, 1500)), (1420, 1400));
        assert_eq!((bytes(v4, 9000), bytes(v6, 1280)), (8920, 1180));
        assert_eq!(bytes("::ffff:192.0.2.1".parse().unwrap(), 1500), 1420);
        assert_eq!(bytes(v6, 60), 0);
    }
}
