//! Writes the files that are generated from the table of the admin API's endpoints (`cargo xtask generate`).

use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, text) in sealane_control::admin::api::generated() {
        if let Err(e) = std::fs::write(root.join(name), text) {
            eprintln!("generate-api: {name}: {e}");
            std::process::exit(1);
        }
    }
}
