//! Random small configurations of NGINX and HAProxy: where their import is complete, Sealane's routing decides about requests as a
//! small model of the original does. The model shares no code with the import.
//!
//! `SEED=N` repeats one configuration, and prints it. `SEEDS=N` tries so many.

#[path = "../model/mod.rs"]
mod model;
mod sealane;

use model::{Answer, Generated, Random, haproxy, nginx, requests};
use sealane::Sealane;
use sealane_import::{Failed, Imported, Memory, Outcome, Reader};
use std::path::Path;

type Import = fn(&dyn Reader, &Path) -> Result<Imported, Failed>;

fn check(kind: &str, import: Import, generate: fn(&mut Random, bool) -> Generated, least: usize) {
    let only: Option<u64> = std::env::var("SEED").ok().map(|s| s.parse().expect("a number"));
    let many: u64 = std::env::var("SEEDS").map_or(600, |s| s.parse().expect("a number"));
    let seeds = only.map_or(1..many + 1, |s| s..s + 1);
    let (mut complete, mut all) = (0, 0);
    for seed in seeds {
        let Generated { text, model } = generate(&mut Random::new(seed), seed % 2 == 0);
        let mut reader = Memory::default();
        reader.files.insert("/etc/x.conf".into(), text.clone().into_bytes());
        let Imported { toml, report, .. } =
            import(&reader, Path::new("/etc/x.conf")).unwrap_or_else(|e| panic!("{seed}: {e}\n{text}"));
        if only.is_some() {
            println!("{text}\n{toml}\n{}", report.to_text(true));
        }
        all += 1;
        if report.count(Outcome::Undecided) > 0 {
            continue;
        }
        complete += 1;
        let sealane = Sealane::new(&toml);
        let said = report.to_text(false);
        let announced = said.contains("whole segments") || said.contains("whole host names");
        for request in requests() {
            let (there, here) = (model(&request), sealane.decide(&request));
            // A path that ends within a segment may go elsewhere, where that is said, and nobody was kept out.
            let free = matches!(there, Answer::Server(..) | Answer::File);
            let unserved = here == Answer::File && free && said.contains("501");
            // A regular expression for files may be left out, where that is said, and nobody gets anything else instead.
            let refused = matches!(here, Answer::Status(403 | 404, _));
            let left_out = there == Answer::File
                && refused
                && said.contains("as this expression: the location with the longest prefix handles these requests");
            // Nobody serves files, and this is said.
            let no_files = there == Answer::File
                && matches!(here, Answer::Status(404, _))
                && said.contains("there is no \"root\"");
            // Where the beginning of a path is replaced, there may be a slash less.
            let slash = said.contains("exactly one slash before")
                && matches!((&there, &here), (Answer::Server(a, x), Answer::Server(b, y)) if a == b && x.replace("//", "/") == *y);
            // A list of addresses refuses with its own status, where this is said.
            let status = said.contains("the status is 403")
                && matches!((&there, &here), (Answer::Status(400.., _), Answer::Status(403, _)));
            assert!(
                status || slash || no_files || there == here || announced && free || unserved || left_out,
                "{kind}, SEED={seed}: {request:?}\n  original: {there:?}\n  sealane:  {here:?}\n{text}\n{toml}\n{}",
                report.to_text(true)
            );
        }
    }
    println!("{kind}: {complete} of {all} complete");
    assert!(only.is_some() || complete >= least, "{kind}: only {complete} of {all} are complete");
}

#[test]
fn complete_imports_of_nginx_decide_as_nginx_does() {
    check("nginx", sealane_import::nginx::import, nginx::generate, 50);
}

#[test]
fn complete_imports_of_haproxy_decide_as_haproxy_does() {
    check("haproxy", sealane_import::haproxy::import, haproxy::generate, 50);
}
