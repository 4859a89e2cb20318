//! Writes `docs/reference/import.md` from the tables of directives (`cargo xtask generate`).

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::write(root.join("docs/reference/import.md"), sealane_import::reference())
}
