//! Whether the kernel forwards packets from one interface to another, in the calling thread's network namespace.

/// Families, and the settings of sysctl that let their packets be forwarded.
const SETTINGS: [(&str, &str); 2] = [("IPv4", "net.ipv4.ip_forward"), ("IPv6", "net.ipv6.conf.all.forwarding")];

/// The families, of those that are asked about, whose packets the kernel does not forward, each with the setting that is off.
pub fn missing(four: bool, six: bool) -> Vec<(&'static str, &'static str)> {
    let read = |setting: &str| std::fs::read_to_string(format!("/proc/sys/{}", setting.replace('.', "/"))).ok();
    missing_by(read, [four, six])
}

/// A setting that cannot be read is not said to be off.
fn missing_by(read: impl Fn(&str) -> Option<String>, asked: [bool; 2]) -> Vec<(&'static str, &'static str)> {
    let is_off = |setting: &str| read(setting).is_some_and(|text| text.trim() == "0");
    let families = SETTINGS.into_iter().zip(asked);
    families.filter(|((_, setting), asked)| *asked && is_off(setting)).map(|(family, _)| family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_and_off_is_missing() {
        let [four, six] = SETTINGS;
        let off = |_: &str| Some("0\n".to_owned());
        assert_eq!(missing_by(off, [true, true]), [four, six]);
        assert_eq!(missing_by(off, [false, true]), [six]);
        assert!(missing_by(off, [false, false]).is_empty());
        assert!(missing_by(|_| Some("1\n".to_owned()), [true, true]).is_empty());
        assert!(missing_by(|_| None, [true, true]).is_empty());
        let one = |setting: &str| Some(if setting == four.1 { "1\n" } else { "0\n" }.to_owned());
        assert_eq!(missing_by(one, [true, true]), [six]);
    }
}
