//! Fuzz targets: each takes any bytes, and panics when a decoder breaks a promise.
//!
//! They compile on stable and know no fuzzer. `cargo test -p sealane-fuzz` replays `corpus/`; the binary runs one
//! target on a file or on standard input, which is all that AFL needs, or mutates the corpus itself for some seconds;
//! `libfuzzer/` is the program that sees coverage. `README.md` says how. To add a decoder: a function, here or, where it is private,
//! in its crate's module `fuzzing`; a line in [`TARGETS`]; a folder in `corpus/`.

pub mod http1;
pub mod http3;
pub mod import;
pub mod mutate;
pub mod ovpn;
pub mod routing;
pub mod tls;

/// A target's name, which is also its folder in `corpus/`, and what runs it.
pub type Target = (&'static str, fn(&[u8]));

/// The beginning of the names of targets that run whole stacks with sockets: these take a hundred times as long as a decoder.
pub const STACKS: &str = "lane-";

/// All targets.
pub const TARGETS: &[Target] = &[
    ("request", http1::request::fuzz_one),
    ("response", http1::response::fuzz_one),
    ("chunked", http1::chunked::fuzz_one),
    ("h1-requests", http1::requests::fuzz_one),
    ("h1-responses", http1::responses::fuzz_one),
    ("h2-guard", sealane_proxy::fuzzing::h2_guard),
    ("h2-window", sealane_proxy::fuzzing::h2_window),
    ("lane-h1-h1", sealane_proxy::fuzzing::lane_h1_h1),
    ("lane-h1-h2", sealane_proxy::fuzzing::lane_h1_h2),
    ("lane-h2-h1", sealane_proxy::fuzzing::lane_h2_h1),
    ("lane-h2-h2", sealane_proxy::fuzzing::lane_h2_h2),
    ("lane-quic", sealane_proxy::fuzzing::lane_quic),
    ("h3-stream", http3::stream::fuzz_one),
    ("h3-control", http3::control::fuzz_one),
    ("h3-section", http3::section::fuzz_one),
    ("quic-padding", sealane_tls::fuzzing::quic_padding),
    ("quic-ids", sealane_proxy::fuzzing::quic_ids),
    ("quic-channel", sealane_proxy::fuzzing::quic_channel),
    ("client-hello", tls::hello::fuzz_one),
    ("ocsp-response", sealane_tls::fuzzing::ocsp_response),
    ("revocation-list", sealane_tls::fuzzing::revocation_list),
    ("timestamps", sealane_tls::fuzzing::timestamps),
    ("proxy-protocol", sealane_proxy::fuzzing::proxy_protocol),
    ("forwarded", routing::forwarded::fuzz_one),
    ("trace-context", routing::trace_context::fuzz_one),
    ("path", routing::path::fuzz_one),
    ("names", routing::names::fuzz_one),
    ("addresses", routing::addresses::fuzz_one),
    ("access-log", sealane_proxy::fuzzing::access_log),
    ("config", import::config::fuzz_one),
    ("dns-answer", sealane_dns::fuzz_answer),
    ("dns-update", sealane_acme::fuzzing::dns_update),
    ("oidc-token", sealane_oidc::fuzzing::token),
    ("oidc-form", sealane_oidc::fuzzing::form),
    ("acme-store", sealane_acme::fuzzing::store_value),
    ("ovpn-gate", ovpn::gate::fuzz_one),
    ("ovpn-link", ovpn::link::fuzz_one),
    ("ovpn-keyed", ovpn::keyed::fuzz_one),
    ("ovpn-data", ovpn::data::fuzz_one),
    ("ovpn-replay", ovpn::replay::fuzz_one),
    ("ovpn-text", ovpn::text::fuzz_one),
    ("ovpn-state", ovpn::state::fuzz_one),
    ("ovpn-profile", import::profile::fuzz_one),
    ("tun-segment", sealane_tunnel::fuzzing::segment),
    ("tun-coalesce", sealane_tunnel::fuzzing::coalesce),
    ("tun-mss", sealane_tunnel::fuzzing::mss),
    ("tun-state", sealane_tunnel::fuzzing::handover),
    ("import-nginx", import::nginx::fuzz_one),
    ("import-haproxy", import::haproxy::fuzz_one),
    ("import-openvpn", import::openvpn::fuzz_one),
];

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|(known, _)| *known == name)
}

/// The folder of a target's corpus.
pub fn corpus(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

/// The inputs that are left of what libFuzzer has found for a target: a file of inputs, each with its length before it (32 bits,
/// big-endian), which `cargo xtask fuzz` writes.
pub fn minimised(name: &str) -> Vec<Vec<u8>> {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("minimised").join(name);
    let bytes = std::fs::read(file).unwrap_or_default();
    let (mut rest, mut all) = (&bytes[..], Vec::new());
    while let Some((length, more)) = rest.split_first_chunk::<4>() {
        let (input, next) = more.split_at((u32::from_be_bytes(*length) as usize).min(more.len()));
        all.push(input.to_vec());
        rest = next;
    }
    all
}
