//! `hellos ADDRESS CA-FILE RATE SECONDS`: new clients at this rate, each of whom sends a ClientHello and no more. Prints
//! how many there were per second. For `docs/measurements/gateway/storm.py`.

use sealane_interop::{client, hellos::Storm, raise_open_files};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, ca, rate, seconds] = &arguments[..] else {
        eprintln!("usage: hellos ADDRESS CA-FILE RATE SECONDS");
        std::process::exit(2);
    };
    let number = |text: &str| text.parse::<f64>().expect("a number");
    raise_open_files();
    let config = Arc::new(client::config(std::path::Path::new(ca)));
    let start = Instant::now();
    let storm = Storm::start(address.parse().expect("an address with a port"), &config, 1, Some(number(rate)));
    std::thread::sleep(Duration::from_secs_f64(number(seconds)));
    let failed = storm.failed();
    let sent = storm.stop() as f64 / start.elapsed().as_secs_f64();
    println!("{{\"hellos_per_second\": {sent:.0}, \"failed\": {failed}}}");
}
