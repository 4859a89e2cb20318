//! What it comes to, in words made from this run's figures.

use sealane_lab_report::{Page, number};

use crate::datagrams::passed;
use crate::measure::{SERVER_CPU, THROUGHPUT, times};
use crate::world::{MIXED, SEALANE, TUNED};

/// Fills verdict and advice.
pub fn conclude(page: &mut Page) {
    let said: Vec<String> = [
        stream(page, "tcp-segmented", "with outer packets segmented on the wire"),
        stream(page, "tcp-whole", "over a wire that accepts super-packets"),
        stream(page, "tcp-chacha20", "with ChaCha20-Poly1305"),
        stream(page, "tcp-software", "with AES in software"),
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
        "With an unchanged OpenVPN client, Sealane's server needs {} times as much CPU time per gigabyte as tuned OpenVPN's server.",
        number::short(ratio)
    ))
}

fn datagrams(page: &Page) -> Option<String> {
    let ratio = page.part("udp")?.value(SEALANE, &times(&passed(64)))?;
    Some(format!(
        "Sealane carries {} times as many 64-byte datagrams per second as tuned OpenVPN, with at most 0.5 % lost.",
        number::short(ratio)
    ))
}

fn advice(page: &Page) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(part) = page.part("tcp-segmented")
        && let Some(ratio) = part.value(MIXED, &times(SERVER_CPU))
        && ratio < 0.7
    {
        list.push(
            "Replace the server first: Sealane's server needs less CPU time for existing OpenVPN clients, too."
                .to_owned(),
        );
    }
    if let Some(part) = page.part("tcp-segmented")
        && let (Some(plain), Some(tuned)) = (part.value("OpenVPN", THROUGHPUT), part.value(TUNED, THROUGHPUT))
        && tuned > plain * 1.1
    {
        list.push(
            "If you keep OpenVPN, set sndbuf and rcvbuf: the throughput is lower with their defaults.".to_owned(),
        );
    }
    list
}
