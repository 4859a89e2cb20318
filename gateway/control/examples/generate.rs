//! Writes the files that are generated from the declarations of the configuration's settings (`cargo xtask generate`).

use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Err(e) = write(&root) {
        eprintln!("generate: {e}");
        std::process::exit(1);
    }
}

fn write(root: &Path) -> Result<(), String> {
    for (name, text) in sealane_control::config::generated(root)? {
        let file = root.join(name);
        let folder = file.parent().unwrap_or(root);
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}
