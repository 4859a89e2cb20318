//! First contact: clients that the server does not know, so without a cookie (`syn_tls = "open"`), as in the study.

use crate::distances::{OverLink, at_each, derive, medians, of_rounds, show};
use crate::place::{Certificates, Place};
use crate::ways::{EMBEDDED_12, EMBEDDED_13, SEQUENTIAL_12, SEQUENTIAL_13, WAYS, Way};
use sealane_lab_emulator::LinkConfig;
use sealane_lab_harness::Bench;
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_report::Part;

/// What distinguishes these figures from those with a cookie.
const LABEL: &str = "ECDSA P-256, first contact";
/// Without a ticket, there is no early data.
const NAMES: [&str; 4] = [SEQUENTIAL_12, EMBEDDED_12, SEQUENTIAL_13, EMBEDDED_13];

pub fn measure(bench: &mut Bench<'_>, part: &mut Part, certificates: &Certificates) -> anyhow::Result<()> {
    let link = "Link for first contact at";
    at_each(bench, part, link, |bench, part, config, rtt| over(bench, part, certificates, config, rtt))?;
    derive(part, LABEL);
    show(part, LABEL, "");
    part.note(
        "The gateway needs an ECDSA certificate to answer unknown clients in its SYN-ACK, so there are no figures with RSA 4096. Until \
         the client's third packet, the gateway sends at most three times the bytes of the SYN.",
    );
    Ok(())
}

fn over(
    bench: &mut Bench<'_>,
    part: &mut Part,
    certificates: &Certificates,
    config: &LinkConfig,
    rtt: f64,
) -> anyhow::Result<OverLink> {
    let place = Place::open(bench, certificates, config)?;
    let (rounds, attempts): (usize, usize) = (bench.size("rounds")?, bench.size("attempts")?);
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| NAMES.contains(&way.name)).collect();
    let names: Vec<String> = ways.iter().map(|way| way.name.to_owned()).collect();
    let (client, to) = (place.link.client(), place.gateways[0].0);
    let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Part, |i, _| {
        let one = || ways[i].first_contact(&certificates.der[0], to);
        let timed = client.run(|| (0..attempts).map(|_| one()).collect::<anyhow::Result<Vec<_>>>())??;
        Ok(medians(&timed))
    })?;
    let figures = of_rounds(&held, &names, LABEL, attempts, rtt);
    Ok(place.finish(figures))
}
