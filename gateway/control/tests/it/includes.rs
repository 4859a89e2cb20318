//! A configuration in several files.

use super::files::Folder;

const MAIN: &str = "include = [\"conf.d/*.toml\"]\n[[listener]]\naddress = \"127.0.0.1:0\"\n";

fn host(name: &str) -> String {
    format!("[[host]]\nnames = [{name:?}]\nrespond = {{ status = 200 }}\n")
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("conf.d")).unwrap();
    folder
}

#[test]
fn files_of_a_folder_are_read_in_the_order_of_their_names() {
    let folder = folder();
    for name in ["b.toml", "a.toml", ".hidden.toml", "c.toml~"] {
        folder.write(&format!("conf.d/{name}"), host(name));
    }
    let (config, warnings) = folder.load(MAIN).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let files = |name: &str| config.files.contains(&folder.path(name));
    assert!(files("sealane.toml") && files("conf.d/a.toml") && files("conf.d/b.toml") && files("conf.d"));
    assert!(!files("conf.d/.hidden.toml") && !files("conf.d/c.toml~"));
    // The same name again: the second file is named, and says where the first is.
    folder.write("conf.d/z.toml", host("a.toml"));
    let report = folder.report(MAIN);
    assert!(report.contains("conf.d/z.toml:2:"), "{report}");
    assert!(report.contains("conf.d/a.toml:2"), "{report}");
}

#[test]
fn a_file_is_read_once_however_often_it_is_named() {
    let folder = folder();
    folder.write("conf.d/a.toml", host("a"));
    let text = MAIN.replace("[\"conf.d/*.toml\"]", "[\"conf.d/a.toml\", \"conf.d/*.toml\", \"*.toml\"]");
    assert_eq!(folder.report(&text), "");
}

#[test]
fn paths_are_from_the_folder_of_the_main_file() {
    let folder = folder();
    folder.certificate("site", &["localhost"]);
    let certificate = "{ cert = \"certs/site.pem\", key = \"certs/site.key\" }";
    let listener = format!("[[listener]]\naddress = \"127.0.0.1:0\"\ntls.certificates = [{certificate}]\n");
    folder.write("conf.d/a.toml", listener + &host("localhost"));
    assert_eq!(folder.report("include = \"conf.d/a.toml\"\n"), "");
}

#[test]
fn what_cannot_be_read_is_an_error_at_its_entry() {
    let folder = folder();
    for (entry, said) in [
        ("conf.d/none.toml", "cannot read conf.d/none.toml: no such file"),
        ("none.d/*.toml", "cannot read the folder none.d: no such file"),
        ("conf.d", "cannot read conf.d: "),
        ("*/a.toml", "\"*/a.toml\" has \"*\" in the name of a folder"),
    ] {
        let report = folder.report(&MAIN.replace("conf.d/*.toml", entry));
        assert!(report.contains("sealane.toml:1:12: error: ") && report.contains(said), "{entry}: {report}");
    }
    // A pattern may find nothing.
    let report = folder.report(&(MAIN.to_owned() + &host("a")));
    assert_eq!(report, "");
}

#[test]
fn what_is_in_too_many_files_is_refused() {
    let folder = folder();
    for n in 0..=sealane_control::config::MAX_INCLUDED {
        folder.write(&format!("conf.d/{n}.toml"), host(&format!("h{n}")));
    }
    let report = folder.report(MAIN);
    assert!(report.contains("\"include\" names more than 1000 files"), "{report}");
}
