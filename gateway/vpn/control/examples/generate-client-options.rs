//! Writes `docs/reference/openvpn-client-options.md` from the lists of options (`cargo xtask generate`).

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    std::fs::write(root.join("docs/reference/openvpn-client-options.md"), sealane_vpn::profile::reference())
}
