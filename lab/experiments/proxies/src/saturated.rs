//! Parts in which each subject has one CPU and as much to do as it can: CPU time per operation.

use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{Answer, Http, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Method, Rounds, Sample};
use sealane_lab_load::plan::{Kind, Plan, Protocol};
use sealane_lab_report::Part;

use crate::{Setup, Subjects, Tls, load, site, together};

/// The name of the figure that ratios are of.
pub const CPU: &str = "CPU per operation";

/// Requests on kept connections.
pub fn keepalive(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let site = site(bench, Answer::Proxy(setup.backend.requests))?;
    measure(bench, part, setup, &site, None, |plan| plan)
}

/// Full handshakes.
pub fn full(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup, key: Key) -> anyhow::Result<()> {
    let site = Site { key, ..site(bench, Answer::Respond)? };
    published_full(part, key);
    measure(bench, part, setup, &site, Some(site.tickets), |plan| load::connections(plan, Kind::Full))
}

/// Resumed handshakes, one ticket each: after a resumption OpenSSL sends one whatever is set.
pub fn resumed(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let site = Site { tickets: 1, ..site(bench, Answer::Respond)? };
    measure(bench, part, setup, &site, Some(1), |plan| load::connections(plan, Kind::Resumed))
}

/// Requests over HTTP/2 or HTTP/3. Who does not speak it is left out.
pub fn multiplexed(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup, http: Http) -> anyhow::Result<()> {
    let site = Site { http, ..site(bench, Answer::Proxy(setup.backend.requests))? };
    let streams = bench.size("streams")?;
    measure(bench, part, setup, &site, None, |mut plan| {
        plan.protocol = if http == Http::Three { Protocol::Http3 } else { Protocol::Http2 };
        plan.streams = streams;
        plan.connections = (plan.connections / 2).max(plan.threads);
        plan
    })
}

/// Full QUIC handshakes, each with one request over HTTP/3.
pub fn quic_handshakes(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let site = Site { http: Http::Three, ..site(bench, Answer::Respond)? };
    measure(bench, part, setup, &site, None, |plan| {
        let mut plan = load::connections(plan, Kind::Full);
        plan.protocol = Protocol::Http3;
        plan.connections = (plan.connections / 2).max(plan.threads);
        plan
    })
}

fn measure(
    bench: &mut Bench<'_>,
    part: &mut Part,
    setup: &Setup,
    site: &Site,
    tickets: Option<u32>,
    shape: impl Fn(Plan) -> Plan,
) -> anyhow::Result<()> {
    let cpus = [bench.cores.server[0]];
    let tls = Tls::V13.options(site.key);
    let mut subjects = Subjects::start(bench, part, setup, site, &cpus)?;
    // Over HTTP/1.1, which all speak at the same port beside what is measured.
    subjects.check(&tls)?;
    subjects.keep_able(bench, part, &tls, &shape)?;
    let names = subjects.names();
    let rounds = match bench.options.method {
        Method::Turns => bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, Resumed::Round, |i, _| {
            let report = load::run(bench, &shape(load::plan(bench, &subjects.servers[i], "/", &tls)?))?;
            let mut sample: Sample = load::sample(&report)?;
            if let Some(wanted) = tickets {
                load::check_tickets(&report, wanted, &mut sample);
            }
            Ok(sample)
        })?,
        Method::Together => {
            // Each round starts them anew.
            drop(subjects);
            let programs: Vec<_> = bench.programs.iter().filter(|p| names.contains(&p.name)).cloned().collect();
            let question = together::Question { site, tls: &tls, tickets, shape };
            together::rounds(bench, part, setup, &programs, &question)?
        }
    };
    report(part, &names, &rounds, bench.options.method);
    Ok(())
}

/// Bars of CPU, a table of the rest, and what the ratios to the first subject are.
pub fn report(part: &mut Part, names: &[String], rounds: &Rounds, method: Method) {
    for name in names {
        part.rounds(name, CPU, &rounds.values(name, "cpu_us"), "µs");
        part.rounds(name, "operations per second", &rounds.values(name, "rate"), "/s");
        let percent = |key: &str| rounds.values(name, key).iter().map(|v| v * 100.0).collect::<Vec<_>>();
        part.rounds(name, "use of the servers' CPUs", &percent("server_cpus"), "%");
        part.rounds(name, "CPU use of the busiest thread of the load generator", &percent("load_busy"), "%");
        let tickets = rounds.values(name, "tickets");
        part.rounds(name, "tickets per handshake", &tickets, "");
    }
    let mut ratios = Vec::new();
    if let Some(first) = names.first() {
        for other in &names[1..] {
            let measure = format!("CPU of {first} ÷ {other}");
            part.ratios(first, &measure, &rounds.ratios(first, other, "cpu_us"), "");
            ratios.push(measure);
        }
    }
    part.bars("CPU time per operation, µs", &[CPU], "lower");
    let mut rows = vec![
        "operations per second",
        "use of the servers' CPUs",
        "CPU use of the busiest thread of the load generator",
        "tickets per handshake",
    ];
    rows.extend(ratios.iter().map(String::as_str));
    part.table("Details, and ratios within each round", &rows);
    if method == Method::Together {
        let used: f64 = names.iter().filter_map(|n| rounds.median(n, "server_cpus")).sum();
        if used < 0.9 {
            part.note(format!(
                "The servers together used only {:.0} % of their CPU. A server whose CPU is not saturated wakes up more often \
                 for the same work.",
                used * 100.0
            ));
        }
        return;
    }
    let busy = names.iter().any(|n| rounds.median(n, "load_busy").is_some_and(|b| b > 0.97));
    let full = names.iter().all(|n| rounds.median(n, "server_cpus").is_some_and(|b| b > 0.97));
    if busy && !full {
        part.note(
            "The CPU of the load generator was saturated, and the CPU of some servers was not: the rates are the \
             limit of the load generator. CPU time per operation is valid, although a server that is not saturated \
             wakes up more often for the same work.",
        );
    }
}

/// The SSL study's figures are for RSA and whole machines; they belong beside RSA's.
fn published_full(part: &mut Part, key: Key) {
    if key != Key::Rsa {
        return;
    }
    let Ok(data) = sealane_lab_harness::study::data("ssl-stacks") else { return };
    let Some(map) = data["full_handshakes_per_second_64_threads"].as_object() else { return };
    let mut shown = false;
    for (library, value) in map {
        if let Some(rate) = value.as_f64() {
            let subject = format!("HAProxy with {library}");
            let figure = sealane_lab_report::Figure::new(&subject, "full handshakes per second, study", rate, "/s");
            part.push(figure.from(sealane_lab_report::Source::Published));
            shown = true;
        }
    }
    if shown {
        part.bars(
            "The SSL study: full RSA handshakes per second of HAProxy 3.1-dev1 on 64 Arm cores, by TLS library",
            &["full handshakes per second, study"],
            "higher",
        );
    }
}
