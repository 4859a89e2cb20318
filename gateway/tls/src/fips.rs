//! Builds whose cryptography is that of AWS-LC's FIPS module (the feature `fips`).
//!
//! What such a build does in another way is decided where it is done, by [`BUILD`]: the key schedule of TLS 1.3, RSA signatures, session
//! tickets, and what `gateway/config` refuses. `docs/how-to/fips.md` lists all of it.

/// Whether this is such a build.
pub const BUILD: bool = cfg!(feature = "fips");

/// Whether the module is linked and in force. `Err`: why not.
pub fn check() -> Result<(), &'static str> {
    aws_lc_rs::try_fips_mode()
}

/// The module of such a build, with its version.
pub fn module() -> Option<String> {
    BUILD.then(|| format!("AWS-LC-FIPS {}", aws_lc_rs::awslc_version()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_the_module_or_says_that_it_has_none() {
        assert_eq!(check().is_ok(), BUILD);
        assert_eq!(module().is_some(), BUILD);
    }
}
