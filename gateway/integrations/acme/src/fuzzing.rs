//! What the fuzz targets (`fuzz/`) run of this crate's decoders, which are private. Nothing else calls this module.

use crate::dns_update::{Change, check, request, tsig_of};
use crate::shared::fuzz_values;
use sealane_config::{DnsUpdate, TsigAlgorithm};
use std::time::Duration;

/// A DNS server's answer to an update: what nobody with the key has signed never counts as done.
pub fn dns_update(data: &[u8]) {
    if let Some(tsig) = tsig_of(data) {
        assert!((12..data.len()).contains(&tsig.at));
    }
    let update = DnsUpdate {
        server: ([127, 0, 0, 1], 53).into(),
        zone: "a.example".to_owned(),
        key_name: "key.example".to_owned(),
        algorithm: TsigAlgorithm::HmacSha256,
        key: vec![7; 32].into(),
        wait: Duration::ZERO,
    };
    let asked = request(&update, Change::Add, "_acme-challenge.a.example", "value", 77, 1_000_000);
    let asked = asked.unwrap_or_else(|why| panic!("a request is refused: {why}"));
    assert!(check(&update, &asked, data, 1_000_000).is_err(), "an answer that nobody has signed");
}

/// What the store has of certificates, once it is opened: a file that is read is written as it was, names are no paths, and an answer to
/// a challenge is one line.
pub fn store_value(data: &[u8]) {
    fuzz_values(data);
}
