//! Every file of every corpus through its target, and a fixed number of mutations of them.

use sealane_fuzz::mutate::Random;
use sealane_fuzz::{TARGETS, corpus};

#[test]
fn corpora() {
    for (name, run) in TARGETS {
        let mut seeds = Vec::new();
        for entry in std::fs::read_dir(corpus(name)).unwrap() {
            let path = entry.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            // Printed when the test fails: which file it was.
            println!("{}", path.display());
            run(&data);
            seeds.push(data);
        }
        assert!(seeds.len() >= 10, "{name}: only {} files", seeds.len());
        // One after the other: directories come in any order, and the run is to be the same everywhere.
        seeds.sort();
        let mut random = Random(1);
        for i in 0..20_000 {
            let data = random.mutated(&seeds);
            println!("{name} {i}: {}", data.escape_ascii());
            run(&data);
        }
    }
}
