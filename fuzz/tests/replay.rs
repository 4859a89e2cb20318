//! Every file of every corpus through its target, and a fixed number of mutations of them.

use sealane_fuzz::mutate::Random;
use sealane_fuzz::{STACKS, TARGETS, corpus, minimised};

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
        for (number, data) in minimised(name).into_iter().enumerate() {
            println!("{name}: input {number} of fuzz/minimised: {}", data.escape_ascii());
            run(&data);
            seeds.push(data);
        }
        // One after the other: directories come in any order, and the run is to be the same everywhere.
        seeds.sort();
        let mut random = Random(1);
        for i in 0..if name.starts_with(STACKS) { 500 } else { 5_000 } {
            let data = random.mutated(&seeds);
            println!("{name} {i}: {}", data.escape_ascii());
            run(&data);
        }
    }
}
