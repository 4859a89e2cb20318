//! `redirect-gateway` and `redirect-private`: which traffic goes through the tunnel instead of the default route.

/// What these options say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// There is such an option: the server keeps its route outside the tunnel.
    pub enabled: bool,
    /// All IPv4 traffic goes through the tunnel.
    pub four: bool,
    /// All global IPv6 traffic goes through the tunnel.
    pub six: bool,
    /// `def1`: two routes that are more specific than the default route.
    pub def1: bool,
    /// `local`: the server is in a network of this machine, and needs no route.
    pub local: bool,
    /// `autolocal`: the same if the server is in such a network.
    pub autolocal: bool,
    /// `block-local`: the local network is reached through the tunnel, too.
    pub block_local: bool,
}

impl Redirect {
    /// Reads an option; `None` when it has a flag that OpenVPN does not have.
    pub(crate) fn read(&mut self, name: &str, flags: &[&str]) -> Option<()> {
        self.enabled = true;
        self.four |= name == "redirect-gateway";
        for flag in flags {
            match *flag {
                "def1" => self.def1 = true,
                "local" => self.local = true,
                "autolocal" => self.autolocal = true,
                "block-local" => self.block_local = true,
                "ipv6" => self.six = true,
                "!ipv4" => (self.enabled, self.four) = (false, false),
                // OpenVPN has these on Windows only, and ignores them elsewhere.
                "bypass-dhcp" | "bypass-dns" => {}
                _ => return None,
            }
        }
        Some(())
    }

    /// What both say together.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            enabled: self.enabled | other.enabled,
            four: self.four | other.four,
            six: self.six | other.six,
            def1: self.def1 | other.def1,
            local: self.local | other.local,
            autolocal: self.autolocal | other.autolocal,
            block_local: self.block_local | other.block_local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_openvpn_reads_them() {
        let read = |text: &str| {
            let words: Vec<&str> = text.split(' ').collect();
            let mut redirect = Redirect::default();
            redirect.read(words[0], &words[1..]).map(|()| redirect)
        };
        let enabled = Redirect { enabled: true, ..Redirect::default() };
        assert_eq!(read("redirect-gateway"), Some(Redirect { four: true, ..enabled }));
        assert_eq!(
            read("redirect-gateway def1 bypass-dhcp bypass-dns"),
            Some(Redirect { four: true, def1: true, ..enabled })
        );
        assert_eq!(read("redirect-gateway ipv6 !ipv4"), Some(Redirect { six: true, ..Redirect::default() }));
        assert_eq!(read("redirect-private block-local"), Some(Redirect { block_local: true, ..enabled }));
        assert_eq!(
            read("redirect-gateway local autolocal"),
            Some(Redirect { four: true, local: true, autolocal: true, ..enabled })
        );
        assert_eq!(read("redirect-gateway def2"), None);
    }
}
