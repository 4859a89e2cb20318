//! What it comes to, in words made from this run's figures.

use sealane_lab_report::{Page, number};

use crate::datagrams::passed;
use crate::measure::{SERVER_CPU, THROUGHPUT, times};
use crate::world::{MIXED, SEALANE, TUNED};

/// Fills verdict and advice.
pub fn conclude(page: &mut Page) {
    let said: Vec<String> = [
        stream(page, "tcp-segmented", "with outer packets segmented on the wire"),
        stream(page, "tcp-whole", "over a wire that takes super-packets"),
        stream(page, "tcp-chacha20", "with ChaCha20-Poly1305"),
        stream(page, "tcp-software", "with AES computed without the CPU's instructions for it"),
        server(page),
        datagrams(page),
    ]
    .into_iter()
    .flatten()
    .collect();
    page.verdict = if said.is_empty() { "Nothing could be compared.".to_owned() } else { said.join(" ") };
    page.advice = advice(page);
}

fn stream(page: &Page, part: &str, how: &str) -> Option<String> {
    let part = page.part(part)?;
    let (ours, theirs) = (part.value(SEALANE, THROUGHPUT)?, part.value(TUNED, THROUGHPUT)?);
    let ratio = part.value(SEALANE, &times(THROUGHPUT))?;
    Some(format!(
        "One TCP stream gets {} Gbit/s through Sealane and {} through tuned OpenVPN {how}: {} times as much.",
        number::short(ours),
        number::short(theirs),
        number::short(ratio)
    ))
}

fn server(page: &Page) -> Option<String> {
    let ratio = page.part("tcp-segmented")?.value(MIXED, &times(SERVER_CPU))?;
    Some(format!(
        "With an OpenVPN client unchanged, Sealane's server takes {} times the CPU time per gigabyte of OpenVPN's.",
        number::short(ratio)
    ))
}

fn datagrams(page: &Page) -> Option<String> {
    let ratio = page.part("udp")?.value(SEALANE, &times(&passed(64)))?;
    Some(format!("64-byte datagrams pass whole at {} times OpenVPN's rate.", number::short(ratio)))
}

fn advice(page: &Page) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(part) = page.part("tcp-segmented")
        && let Some(ratio) = part.value(MIXED, &times(SERVER_CPU))
        && ratio < 0.7
    {
        list.push("Replace the server first: this helps existing clients, too.".to_owned());
    }
    if let Some(part) = page.part("tcp-segmented")
        && let (Some(plain), Some(tuned)) = (part.value("OpenVPN", THROUGHPUT), part.value(TUNED, THROUGHPUT))
        && tuned > plain * 1.1
    {
        list.push("Where OpenVPN stays, set sndbuf and rcvbuf: the defaults cost throughput.".to_owned());
    }
    list
}
