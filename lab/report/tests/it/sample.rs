//! The report that the tests look at.

use sealane_lab_report::usl::Fit;
use sealane_lab_report::{
    Axis, Fact, Figure, Finding, Machine, Outcome, Page, Part, Report, Source, Study, Subject, Void,
};

fn cost() -> Part {
    let mut part = Part::new("cost", "What a handshake costs", "connect, handshake, close");
    for (subject, scale) in [("sealane", 1.0), ("nginx <new>", 1.4), ("haproxy, MT", 1.7)] {
        let rounds: Vec<f64> = [150.0, 152.0, 149.0, 151.5].iter().map(|v| v * scale).collect();
        part.rounds(subject, "CPU per operation", &rounds, "µs");
        part.push(Figure::new(subject, "memory", 4.25 * scale, "KiB"));
    }
    part.bars("CPU time per handshake, µs", &["CPU per operation"], "lower");
    part.table("Memory", &["memory"]);
    part.voids.push(Void {
        subject: "nginx <new>".into(),
        what: "round 2".into(),
        why: "other programs used 0.41 CPUs".into(),
    });
    part.note("One & all.");
    part
}

fn spectrum() -> Part {
    let mut part = Part::new("latency", "Latency", "open loop");
    for (subject, scale) in [("sealane", 1.0), ("nginx <new>", 2.5)] {
        for p in [0.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99] {
            let ms = scale * 0.2 * (1.0 / (1.0 - p / 100.0_f64)).powf(0.4);
            part.push(Figure::new(subject, "latency", ms, "ms").at(p).samples(100_000));
        }
    }
    part.push(Figure::new("NGINX, study", "latency", 8.0, "ms").at(99.9999).from(Source::Published));
    part.spectrum("Latency by percentile at 9,000/s", "latency");
    part
}

fn scaling() -> Part {
    let mut part = Part::new("threads", "Over threads", "");
    let points = [(1.0, 100.0), (2.0, 190.0), (4.0, 340.0), (8.0, 520.0)];
    for (n, rate) in points {
        part.push(Figure::new("sealane", "rate", rate, "/s").at(n).between(rate * 0.97, rate * 1.02).samples(6));
    }
    let fit = Fit::of(&points).unwrap();
    part.figures.extend(fit.figures("sealane", "rate", "/s", 16.0));
    part.note(fit.text("sealane"));
    part.push(Figure::new("OpenSSL 3.0.2, study", "rate", 60.0, "/s").at(64.0).from(Source::Published));
    part.lines("Handshakes per second", "rate", Axis::log("threads"), Axis::linear("per second"));
    part
}

/// One report with everything in it.
pub fn report() -> Report {
    let subjects = ["sealane", "nginx <new>", "haproxy, MT"].map(|name| Subject {
        name: name.into(),
        version: vec![format!("{name} 1.0")],
        configuration: "listen = \"127.0.0.1\" # <&>".into(),
    });
    let page = Page {
        name: "proxies".into(),
        title: "Proxies".into(),
        question: "Which & why?".into(),
        verdict: "sealane 150 µs, nginx 211 µs.".into(),
        finding: Some(Finding::new("HAProxy & NGINX", "HAProxy fails first").found(
            "haproxy fails first.",
            "1,000/s < 2,000/s",
            Outcome::Confirmed,
        )),
        method: vec!["Rounds.".into()],
        subjects: subjects.into(),
        settings: vec![Fact::new("TLS", "1.3")],
        parts: vec![cost(), spectrum(), scaling(), Part::skipped("http3", "HTTP/3", "nobody here speaks it")],
        studies: vec![Study { title: "HAProxy vs NGINX".into(), facts: vec![Fact::new("load", "wrk2")] }],
        advice: vec!["Keep connections open.".into()],
        command: "sealane-lab run proxies".into(),
        ..Page::default()
    };
    let mut tunnel = Page::cannot("tunnel", "The tunnel", "How fast?", "no /dev/net/tun");
    tunnel.finding = Some(Finding::new("OpenVPN DCO", "3.6 times"));
    Report {
        format: 1,
        tool: "sealane-lab 0.1.0".into(),
        title: "The state of <everything>".into(),
        verdict: "One line.\nAnother line.".into(),
        mode: "quick".into(),
        started: "2026-11-21T06:51:45Z".into(),
        seconds: 61.0,
        machine: Machine { cpu: "A CPU".into(), cpus: 2, facts: vec![Fact::new("Kernel", "Linux 6.18")] },
        command: "sealane-lab run all".into(),
        pages: vec![page, tunnel],
    }
}
