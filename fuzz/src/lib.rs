//! Fuzz targets: each takes any bytes, and panics when a decoder breaks a promise.
//!
//! They compile on stable and know no fuzzer. `cargo test -p sealane-fuzz` replays `corpus/`; the binary runs one
//! target on a file or on standard input, which is all that AFL needs, or mutates the corpus itself for some seconds.
//! `README.md` says how. To add a decoder: a module with `fuzz_one`, a line in [`TARGETS`], a folder in `corpus/`.

pub mod http1;
pub mod http3;
pub mod import;
pub mod mutate;
pub mod ovpn;
pub mod routing;
pub mod tls;

/// A target's name, which is also its folder in `corpus/`, and what runs it.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("request", http1::request::fuzz_one),
    ("response", http1::response::fuzz_one),
    ("chunked", http1::chunked::fuzz_one),
    ("h3-stream", http3::stream::fuzz_one),
    ("h3-control", http3::control::fuzz_one),
    ("h3-section", http3::section::fuzz_one),
    ("path", routing::path::fuzz_one),
    ("names", routing::names::fuzz_one),
    ("client-hello", tls::hello::fuzz_one),
    ("config", import::config::fuzz_one),
    ("ovpn-gate", ovpn::gate::fuzz_one),
    ("ovpn-link", ovpn::link::fuzz_one),
    ("ovpn-data", ovpn::data::fuzz_one),
    ("ovpn-text", ovpn::text::fuzz_one),
    ("import-nginx", import::nginx::fuzz_one),
    ("import-haproxy", import::haproxy::fuzz_one),
];

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|(known, _)| *known == name)
}

/// The folder of a target's corpus.
pub fn corpus(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}
