//! `sealane-lab run` as people and CI call it: a short quick run with real servers, and what is refused.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sealane-lab")).args(args).output().unwrap()
}

fn here(program: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"].iter().any(|f| Path::new(f).join(program).is_file())
}

/// Conditions that any machine meets: this is about working, not about figures.
const ANYHOW: [&str; 8] = ["--quick", "--quiet", "--max-foreign", "1000", "--max-lag", "1h", "--max-wait", "0s"];

#[test]
fn a_quick_run_writes_a_report_whose_forms_agree() {
    if !here("nginx") || !here("setpriv") {
        println!("skipped: no nginx or no setpriv on this machine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let out = out.to_str().unwrap();
    let gateway = std::env::var("SEALANE_BIN").ok().filter(|p| Path::new(p).is_file());
    let peer = gateway.as_ref().map(|p| format!("sealane={p}"));
    let sizes = ["--set", "rounds=2", "--set", "seconds=0.5", "--set", "connections=4", "--set", "bulk_mib=32"];
    let mut args = vec!["run", "proxies", "--only", "keepalive,bulk", "--out", out];
    args.extend(ANYHOW);
    args.extend(sizes);
    args.extend(peer.iter().flat_map(|p| ["--subject", p]));
    let output = lab(&args);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(Path::new(out).join(name)).unwrap();
    let json: Value = serde_json::from_str(&read("report.json")).unwrap();
    let parts = json["pages"][0]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 2, "{said}");
    let figures: usize = parts.iter().map(|p| p["figures"].as_array().unwrap().len()).sum();
    assert!(figures > 0, "{said}");
    assert_eq!(read("report.csv").lines().count(), figures + 1);
    for part in parts {
        assert_eq!(part["skipped"], Value::Null, "{part}");
        let of = |who: &str| {
            let all = part["figures"].as_array().unwrap();
            let cpu = |f: &&Value| f["measure"].as_str().is_some_and(|m| m.starts_with("CPU per"));
            all.iter().filter(cpu).find(|f| f["subject"] == who).and_then(|f| f["value"].as_f64())
        };
        assert!(of("nginx").is_some_and(|cpu| cpu > 0.0), "{part}");
        if gateway.is_some() {
            assert!(of("sealane").is_some_and(|cpu| cpu > 0.0), "{part}");
        }
    }
    let page = read("report.html");
    assert!(page.contains("A request on a kept connection") && page.contains("sealane-lab run proxies --only"));

    // Rendered again it is the same.
    let again = folder.path().join("again");
    let file = format!("{out}/report.json");
    let output = lab(&["report", &file, "--out", again.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_to_string(again.join("report.html")).unwrap() == page, "{file} and {again:?} differ");

    // What a later run measured stands in place of the same part, and the rest stays.
    let mut later = json.clone();
    later["pages"][0]["parts"] = Value::Array(vec![parts[1].clone()]);
    later["pages"][0]["parts"][0]["figures"][0]["value"] = 12_345.0.into();
    let other = folder.path().join("later.json");
    std::fs::write(&other, later.to_string()).unwrap();
    let output = lab(&["report", &file, other.to_str().unwrap(), "--out", again.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let both: Value = serde_json::from_str(&std::fs::read_to_string(again.join("report.json")).unwrap()).unwrap();
    let both = &both["pages"][0]["parts"];
    assert_eq!(both[0]["figures"], parts[0]["figures"]);
    assert_eq!(both[1]["figures"][0]["value"], 12_345.0);
}

/// A run as JSON, with the gateway that CI names; its exit code must be 0.
fn page(args: &[&str], sizes: &[&str]) -> Value {
    page_or(args, sizes, &[0])
}

/// A run as JSON that ends with one of these exit codes.
fn page_or(args: &[&str], sizes: &[&str], codes: &[i32]) -> Value {
    let gateway = std::env::var("SEALANE_BIN").ok().filter(|p| Path::new(p).is_file());
    let peer = gateway.map(|p| format!("sealane={p}"));
    let mut all = [&["run"][..], args, &ANYHOW[..], &["--json"][..]].concat();
    all.extend(sizes.iter().flat_map(|size| ["--set", size]));
    all.extend(peer.iter().flat_map(|p| ["--subject", p]));
    let output = lab(&all);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs until every subject has a valid round. `gaps` asserts what must hold in any case, and returns the subjects of
/// which every round was void ([`gap`]). On a busy machine this may happen, so the run is repeated; if it happens in each of three
/// runs, something is wrong with the subject or the experiment, and the test fails.
fn page_without_gaps(args: &[&str], sizes: &[&str], gaps: impl Fn(&Value) -> Vec<String>) {
    const RUNS: usize = 3;
    let mut last = Vec::new();
    for run in 1..=RUNS {
        // 3: nothing could be measured.
        let json = page_or(args, sizes, &[0, 3]);
        last = gaps(&json);
        if last.is_empty() {
            return;
        }
        println!("run {run}: every round was void: {last:?}");
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
    panic!("in {RUNS} runs, every round of a subject was void: {last:?}");
}

/// Why a subject has no figure: all of its rounds were void. Nothing if it has one. A subject that has neither is a failure.
fn gap(part: &Value, measure: &str, subject: &str) -> Option<String> {
    if figures(part, measure, subject).next().is_some() {
        return None;
    }
    let void = part["voids"].as_array().into_iter().flatten().find(|v| v["subject"] == subject);
    let void = void.unwrap_or_else(|| panic!("{subject} has no {measure:?}, and no void round: {part}"));
    Some(format!("{subject}, {measure}: {}", void["why"]))
}

fn figures<'a>(part: &'a Value, measure: &'a str, subject: &'a str) -> impl Iterator<Item = f64> + 'a {
    let of = part["figures"].as_array().into_iter().flatten();
    of.filter(move |f| f["measure"] == measure && f["subject"] == subject).filter_map(|f| f["value"].as_f64())
}

#[test]
fn a_chain_resumes_with_usual_and_with_light_locks_and_http2_is_compared() {
    if !here("nginx") || !here("haproxy") || !here("setpriv") || !here("cc") {
        println!("skipped: no nginx, haproxy, setpriv or C compiler on this machine");
        return;
    }
    let sizes = ["rounds=1", "seconds=0.3", "connections=4", "chain_connections=1", "threads=1", "light_locks=own"];
    page_without_gaps(&["proxies", "--only", "chain,http2"], &sizes, |json| {
        let parts = json["pages"][0]["parts"].as_array().unwrap();
        assert!(parts.len() == 2 && parts.iter().all(|p| p["skipped"].is_null()), "{parts:?}");
        let chain = ["nginx", "haproxy", "haproxy, light locks"];
        let rate = chain.map(|subject| (&parts[0], "end-to-end connections per second", subject));
        let cpu = ["nginx", "haproxy"].map(|subject| (&parts[1], "CPU per operation", subject));
        let all = rate.into_iter().chain(cpu);
        all.filter_map(|(part, measure, subject)| {
            assert!(figures(part, measure, subject).all(|v| v > 0.0), "{subject}: {part}");
            gap(part, measure, subject)
        })
        .collect()
    });
}

#[test]
fn knees_storms_threads_memory_and_http3_are_measured_in_small() {
    if !here("nginx") || !here("haproxy") || !here("setpriv") {
        println!("skipped: no nginx, haproxy or setpriv on this machine");
        return;
    }
    let rounds = ["rounds=1", "seconds=0.3", "warmup=0.1", "connections=4", "threads=1,2", "streams=4", "idle=50"];
    let knee = ["knee_connections=4", "knee_seconds=0.3", "knee_precision=1", "latency_requests=500"];
    let after = ["latency_rounds=1", "fractions=0.5", "fraction_requests=300", "storm_seconds=1.5"];
    let parts = "knee-1.3,knee-1.2,full-rsa,resumed,threads,storm,memory,http3";
    page_without_gaps(&["proxies", "--only", parts], &[&rounds[..], &knee, &after].concat(), |json| {
        small_parts(json, parts.split(',').count())
    });
}

/// The subjects of these parts of which every round was void.
fn small_parts(json: &Value, parts: usize) -> Vec<String> {
    let measured = json["pages"][0]["parts"].as_array().unwrap();
    let mut gaps = Vec::new();
    assert_eq!(measured.len(), parts, "{measured:?}");
    let gateway = std::env::var("SEALANE_BIN").is_ok_and(|p| Path::new(&p).is_file());
    for part in measured {
        let measure = match part["id"].as_str().unwrap() {
            "knee-1.3" | "knee-1.2" => "knee",
            "threads" => "full handshakes per second",
            "storm" => "handshakes of the flood",
            "memory" => "memory per idle connection",
            _ => "CPU per operation",
        };
        // Of Debian's servers none speaks HTTP/3.
        let peers = if part["id"] == "http3" { &[][..] } else { &["nginx", "haproxy"] };
        let ours = gateway.then_some(&"sealane");
        for subject in peers.iter().chain(ours) {
            // On a busy machine all subjects may hold no rate.
            let nothing_held = measure == "knee" && part["skipped"] == "no subject held any rate";
            assert!(part["skipped"].is_null() || nothing_held, "{part}");
            assert!(figures(part, measure, subject).all(|v| v >= 0.0), "{subject}: {part}");
            // On a busy machine a subject may hold no rate; that it was tried is said either way.
            let held = format!("{subject}: held ");
            let tried = |n: &Value| n.as_str().is_some_and(|n| n.starts_with(&held));
            let told = measure == "knee" && part["notes"].as_array().into_iter().flatten().any(tried);
            gaps.extend(if told || nothing_held { None } else { gap(part, measure, subject) });
        }
    }
    gaps
}

#[test]
fn new_clients_slow_readers_lanes_and_certificates_are_measured_in_small() {
    if !here("nginx") || !here("setpriv") || std::env::var_os("SEALANE_BIN").is_none() {
        println!("skipped: no nginx, setpriv or SEALANE_BIN on this machine");
        return;
    }
    let sizes =
        ["rounds=1", "seconds=0.3", "connections=4", "storm_seconds=0.5", "slow_readers=20", "slow_seconds=0.5"];
    let more = ["lanes_full_rate=50", "lanes_keepalive_rate=100", "certificates=5"];
    let args = ["proxies", "--only", "overload,slow-readers,lanes,certificates", "--without", "haproxy"];
    page_without_gaps(&args, &[&sizes[..], &more].concat(), |json| {
        let parts = json["pages"][0]["parts"].as_array().unwrap();
        assert_eq!(parts.len(), 4, "{json}");
        let mut gaps = Vec::new();
        for (part, measure, subjects) in [
            (&parts[0], "new clients per second", &["sealane", "nginx"][..]),
            (&parts[1], "memory per slow reader", &["sealane", "nginx"]),
            (
                &parts[2],
                "CPU per full handshake at 50/s",
                &["sealane, one", "sealane, two", "nginx, one", "nginx, two"],
            ),
            (&parts[3], "CPU to start", &["sealane, one certificate", "sealane, many"]),
        ] {
            assert!(part["skipped"].is_null(), "{part}");
            for subject in subjects {
                assert!(figures(part, measure, subject).all(|v| v >= 0.0), "{subject}: {part}");
                gaps.extend(gap(part, measure, subject));
            }
            assert!(!part["notes"].to_string().contains("closed the connections"), "{part}");
        }
        gaps
    });
}

/// Fifty certificates: the large number is for machines that do nothing else. What they cost is bounded far above what was measured.
#[test]
fn many_certificates_are_compared_with_one_in_small() {
    if !here("nginx") || !here("haproxy") || !here("setpriv") || std::env::var_os("SEALANE_BIN").is_none() {
        println!("skipped: no nginx, haproxy, setpriv or SEALANE_BIN on this machine");
        return;
    }
    let sizes = ["rounds=1", "seconds=0.3", "connections=4", "certificates=50"];
    page_without_gaps(&["proxies", "--only", "certificates", "--without", "nginx"], &sizes, |json| {
        let part = &json["pages"][0]["parts"][0];
        assert!(part["skipped"].is_null(), "{part}");
        let mut gaps = Vec::new();
        for program in ["sealane", "haproxy"] {
            let each: Vec<f64> = figures(part, "memory per certificate", program).collect();
            assert!(matches!(each[..], [kib] if kib < 200.0), "{program}: {each:?}");
            for label in ["one certificate", "many"] {
                let subject = format!("{program}, {label}");
                for measure in ["time to start", "memory after the start", "time to reload", "CPU to reload"] {
                    let found: Vec<f64> = figures(part, measure, &subject).collect();
                    assert!(matches!(found[..], [value] if value >= 0.0), "{subject}, {measure}: {found:?}: {part}");
                }
                gaps.extend(gap(part, "CPU per full handshake", &subject));
            }
        }
        gaps
    });
}

#[test]
fn together_compares_two_builds_of_the_gateway_in_the_same_rounds() {
    let Some(gateway) = std::env::var("SEALANE_BIN").ok().filter(|p| Path::new(p).is_file()) else {
        println!("skipped: SEALANE_BIN does not say where the gateway is");
        return;
    };
    if !here("nginx") || !here("setpriv") {
        println!("skipped: no nginx or no setpriv on this machine");
        return;
    }
    let old = format!("old={gateway}");
    let args = ["proxies", "--method", "together", "--only", "keepalive,full-ecdsa", "--subject", &old];
    let args = [&args[..], &["--without", "nginx,haproxy"]].concat();
    page_without_gaps(&args, &["rounds=2", "seconds=0.5", "together_connections=4"], together_parts);
}

/// The parts of which every round was void.
fn together_parts(json: &Value) -> Vec<String> {
    let parts = json["pages"][0]["parts"].as_array().unwrap();
    let mut gaps = Vec::new();
    assert_eq!(parts.len(), 2, "{json}");
    for part in parts {
        assert!(part["skipped"].is_null(), "{part}");
        // The raw data: who was measured in which round.
        let rounds = part["rounds"].as_array().unwrap();
        let held = |subject: &str| {
            let own = rounds.iter().filter(|r| r["subject"] == subject && r["void"].is_null());
            own.map(|r| r["what"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(held("sealane"), held("old"), "a round holds for all or for none: {part}");
        assert!(rounds.iter().all(|r| ["sealane", "old"].contains(&r["subject"].as_str().unwrap())), "{part}");
        assert!(
            part["voids"]
                .as_array()
                .unwrap()
                .iter()
                .all(|v| !v["why"].as_str().unwrap().contains("other programs used"))
        );
        if held("old").is_empty() {
            gaps.push(format!("{}: {}", part["id"], part["voids"]));
            continue;
        }
        // The same program under two names costs the same: both had the same CPU at the same time.
        let ratio = figures(part, "CPU of sealane ÷ old", "sealane").next().unwrap();
        assert!((0.5..2.0).contains(&ratio), "{ratio}: {part}");
        let share: f64 =
            ["sealane", "old"].map(|s| figures(part, "use of the servers' CPUs", s).next().unwrap()).iter().sum();
        assert!(share < 110.0, "they share one CPU: {share} %");
    }
    gaps
}

/// Runs two parts of the tunnels' experiment with the gateway: each has figures of its subjects.
fn tunnels_are_measured(parts: &str, sizes: &[&str], subjects: [&[&str]; 2]) {
    let Ok(gateway) = std::env::var("SEALANE_BIN") else {
        println!("skipped: SEALANE_BIN does not say where the gateway is");
        return;
    };
    let only = ["run", "tunnel", "--only", parts, "--json", "--subject"];
    let sizes: Vec<&str> = sizes.iter().flat_map(|size| ["--set", size]).collect();
    let peer = format!("sealane={gateway}");
    let output = lab(&[&only[..], &[&peer], &ANYHOW, &sizes].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    if let Some(why) = json["pages"][0]["obstacle"].as_str() {
        println!("skipped: {why}");
        return;
    }
    let parts = json["pages"][0]["parts"].as_array().unwrap();
    assert!(output.status.success() && parts.len() == 2, "{json}");
    for (part, subjects) in parts.iter().zip(subjects) {
        assert!(part["skipped"].is_null(), "{part}");
        for subject in subjects {
            let of = part["figures"].as_array().unwrap().iter().filter(|f| f["subject"] == *subject);
            assert!(of.clone().next().is_some(), "{subject}: {part}");
            assert!(of.clone().all(|f| f["value"].as_f64() >= Some(0.0)), "{subject}: {part}");
        }
    }
}

/// A server that says nothing is missed after `ping_restart` only; a client that is told goes at once.
#[test]
fn tunnels_carry_on_at_another_server() {
    let Ok(gateway) = std::env::var("SEALANE_BIN") else {
        println!("skipped: SEALANE_BIN does not say where the gateway is");
        return;
    };
    let only = ["run", "tunnel", "--only", "failover", "--json", "--subject"];
    let sizes = ["--set", "failover_rounds=1", "--set", "ping_restart=3"];
    let peer = format!("sealane={gateway}");
    let output = lab(&[&only[..], &[&peer], &ANYHOW, &sizes].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    if let Some(why) = json["pages"][0]["obstacle"].as_str() {
        println!("skipped: {why}");
        return;
    }
    let part = &json["pages"][0]["parts"][0];
    assert!(output.status.success() && part["skipped"].is_null(), "{json}");
    let gap = |subject: &str| figures(part, "without traffic", subject).next().unwrap();
    for server in ["OpenVPN", "Sealane"] {
        let [killed, stopped] = ["killed", "stopped"].map(|how| gap(&format!("{server}, {how}")));
        assert!(killed >= 1.0 && stopped > 0.0, "{server}: {killed} s and {stopped} s");
    }
}

#[test]
fn tunnels_carry_streams_and_datagrams_in_turns() {
    let sizes = ["rounds=1", "seconds=1", "udp_rounds=1", "udp_seconds=1", "sizes=512"];
    let subjects = &["OpenVPN", "OpenVPN tuned", "Sealane", "Sealane with OpenVPN's client"];
    tunnels_are_measured("tcp-segmented,udp", &sizes, [subjects, subjects]);
}

#[test]
fn tunnels_carry_paced_datagrams_of_one_client_and_of_several() {
    let sizes = ["udp_rounds=1", "paced_seconds=1", "paced_rates=5,10", "clients=2", "client_rate=500"];
    let subjects = [&["OpenVPN", "OpenVPN tuned", "Sealane"][..], &["OpenVPN tuned", "Sealane, two lanes"][..]];
    tunnels_are_measured("paced,clients", &sizes, subjects);
}

#[test]
fn versions_of_tls_are_compared_in_every_way() {
    if !here("nginx") || !here("setpriv") {
        println!("skipped: no nginx or no setpriv on this machine");
        return;
    }
    let json = page(&["tls-versions", "--only", "loopback,study"], &["rounds=1", "attempts=3"]);
    let parts = json["pages"][0]["parts"].as_array().unwrap();
    for way in ["TLS 1.2 full", "TLS 1.2 resumed", "TLS 1.3 full", "TLS 1.3 resumed", "TLS 1.3 0-RTT"] {
        assert!(figures(&parts[0], "total, nginx", way).all(|ms| ms > 0.0), "{way}: {}", parts[0]);
        assert!(figures(&parts[0], "total, nginx", way).next().is_some(), "{way}: {}", parts[0]);
    }
    let study = parts[1]["figures"].as_array().unwrap();
    assert!(!study.is_empty() && study.iter().all(|f| f["source"] == "published"), "{study:?}");
}

#[test]
fn fewer_segments_cross_where_the_hello_is_in_the_syn() {
    let output = lab(&[&["run", "syn-tls", "--only", "messages", "--json"][..], &ANYHOW[..]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    if let Some(why) = json["pages"][0]["obstacle"].as_str() {
        println!("skipped: {why}");
        return;
    }
    let part = &json["pages"][0]["parts"][0];
    assert!(output.status.success() && part["skipped"].is_null(), "{part}");
    let sent = |way: &str| figures(part, "segments from the client, ECDSA P-256", way).next().unwrap();
    // SYN with the hello, third packet with Finished; after TCP the hello has a segment of its own.
    assert!(sent("TLS 1.3 in the SYN") < sent("TLS 1.3 after TCP"), "{part}");
    assert!(sent("TLS 1.2 in the SYN") < sent("TLS 1.2 after TCP"), "{part}");
}

#[test]
fn hellos_of_unknown_clients_are_in_the_syn_of_an_open_listener() {
    let sizes = ["rtts=10", "rounds=1", "attempts=2"];
    page_without_gaps(&["syn-tls", "--only", "first-contact"], &sizes, |json| {
        let page = &json["pages"][0];
        if let Some(why) = page["obstacle"].as_str() {
            println!("skipped: {why}");
            return Vec::new();
        }
        let part = &page["parts"][0];
        if let Some(why) = part["skipped"].as_str() {
            // A busy machine can disturb the link, or delay an answer so long that the connector tries again without the SYN. In three
            // runs, it does not do so each time.
            assert!(why.contains("no valid result") || why.contains("after the SYN"), "{part}");
            return vec![why.to_owned()];
        }
        // A connection whose hello was not in the SYN, as this way says, would be an error.
        let ways = ["TLS 1.2 in the SYN", "TLS 1.3 in the SYN", "TLS 1.2 after TCP", "TLS 1.3 after TCP"];
        ways.iter().filter_map(|way| gap(part, "handshake, ECDSA P-256, first contact", way)).collect()
    });
}

#[test]
fn all_is_one_report_in_which_what_cannot_run_says_why() {
    if !here("nginx") {
        println!("skipped: no nginx on this machine");
        return;
    }
    let nowhere = ["--subject", "haproxy=/nowhere/haproxy"];
    let json = page(&[&["all", "--only", "proxies.keepalive,tls-versions.study"][..], &nowhere[..]].concat(), &[]);
    assert_eq!(json["title"], "The state of secure transport on this machine");
    let pages = json["pages"].as_array().unwrap();
    assert_eq!(pages.iter().map(|p| p["name"].as_str().unwrap()).collect::<Vec<_>>(), ["proxies", "tls-versions"]);
    assert!(pages[0]["obstacle"].as_str().unwrap().contains("/nowhere/haproxy"), "{}", pages[0]);
    assert!(json["verdict"].as_str().unwrap().contains("not run here"), "{}", json["verdict"]);
    for page in pages {
        assert_eq!(page["finding"]["outcome"], "not-measured", "{page}");
    }
    assert!(json["verdict"].as_str().unwrap().contains("2 not measured"), "{}", json["verdict"]);
    assert!(pages[0]["finding"]["finding"].as_str().unwrap().starts_with("Not run here: "), "{}", pages[0]["finding"]);
    assert!(!pages[1]["parts"][0]["figures"].as_array().unwrap().is_empty(), "{}", pages[1]);
}

#[test]
fn a_run_is_resumed_with_more_rounds_and_not_with_other_settings() {
    if !here("nginx") || !here("setpriv") {
        println!("skipped: no nginx or no setpriv on this machine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let base = ["run", "proxies", "--only", "keepalive", "--without", "haproxy,sealane", "--set", "connections=4"];
    let run = |more: &[&str]| lab(&[&base[..], &ANYHOW[..], more].concat());
    let report =
        || -> Value { serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap() };
    let output = run(&["--set", "seconds=0.3", "--set", "rounds=1", "--out", out]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let before = report()["pages"][0]["parts"][0]["rounds"].as_array().unwrap().clone();
    assert!(!before.is_empty() && before[0]["at"].as_u64().is_some(), "{before:?}");

    let output = run(&["--set", "seconds=0.4", "--set", "rounds=2", "--resume", out]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("size seconds: was 0.3, is 0.4"), "{said}");
    assert_eq!(report()["pages"][0]["parts"][0]["rounds"], Value::from(before.clone()), "the report is as it was");

    let output = run(&["--set", "seconds=0.3", "--set", "rounds=2", "--resume", out]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let json = report();
    let page = &json["pages"][0];
    let rounds = page["parts"][0]["rounds"].as_array().unwrap();
    assert!(rounds.len() > before.len() && rounds[..before.len()] == before[..], "{rounds:?}");
    assert!(page["settings"].as_array().unwrap().iter().any(|fact| fact["name"] == "Resumed"), "{page}");
    // A folder without a journal, and two folders.
    let code = |args: &[&str]| lab(args).status.code();
    assert_eq!(code(&["run", "proxies", "--resume", "/nowhere"]), Some(2));
    assert_eq!(code(&["run", "proxies", "--resume", out, "--out", out]), Some(2));
}

#[test]
fn what_cannot_be_run_is_refused_or_said() {
    let code = |args: &[&str]| lab(args).status.code();
    assert_eq!(code(&["run", "no-such-experiment"]), Some(2));
    assert_eq!(code(&["run", "proxies", "--subject", "nginx"]), Some(2));
    assert_eq!(code(&["run", "proxies", "--method", "together", "--only", "storm"]), Some(2));
    assert_eq!(code(&["run", "tunnel", "--method", "together"]), Some(2));
    assert_eq!(code(&["run", "proxies", "--tries", "0"]), Some(2));
    assert_eq!(code(&["run", "all", "--only", "bulk"]), Some(2));
    assert_eq!(code(&["report", "/nowhere.json", "--out", "/tmp"]), Some(2));
    let list = lab(&["run", "list"]);
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.status.success() && text.contains("tls-versions") && text.contains("knee-1.3"), "{text}");
    // An experiment that cannot run is a page that says why, and nothing was measured: 3.
    let output = lab(&["run", "proxies", "--quick", "--quiet", "--json", "--subject", "nginx=/nowhere/nginx"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(json["pages"][0]["obstacle"].as_str().unwrap().contains("nginx"), "{json}");
}
