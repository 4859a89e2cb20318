//! Prometheus, as Debian packages it: it scrapes gateways, evaluates rules, and is asked over its HTTP API.

use crate::client;
use crate::http::Wire;
use crate::process::Server;
use crate::site::Site;
use crate::{WAIT_LIMIT, eventually, ports};
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

/// A running Prometheus; killed on drop.
pub struct Prometheus {
    address: SocketAddr,
    server: Server,
}

/// A series of an answer: its labels, and its value.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The labels, with `__name__` if the series has a name.
    pub labels: Value,
    /// The value.
    pub value: f64,
}

/// The first two numbers of a Prometheus' version; zeros if it does not say.
pub fn version(program: &Path) -> (u32, u32) {
    let said = Command::new(program).arg("--version").output().map(|output| [output.stdout, output.stderr].concat());
    let text = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
    let mut numbers =
        text.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or_default().split('.');
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (next(), next())
}

impl Prometheus {
    /// Scrapes these admin listeners twice a second, as the job `sealane`, and evaluates the rules as often. Returns when each
    /// has been scraped three times.
    #[track_caller]
    pub fn start(site: &Site, program: &Path, targets: &[SocketAddr], rules: &str) -> Self {
        // `cargo xtask prometheus` evaluates everything with native histograms.
        let native = std::env::var_os("SEALANE_NATIVE_HISTOGRAMS").is_some();
        Self::start_with(site, program, targets, rules, native)
    }

    /// The same; with `native`, it asks for native histograms.
    #[track_caller]
    pub fn start_with(site: &Site, program: &Path, targets: &[SocketAddr], rules: &str, native: bool) -> Self {
        // A switch of the program at first, a setting later.
        let is_setting = native && version(program) >= (3, 8);
        let scrapes = if is_setting { "    scrape_native_histograms: true\n" } else { "" };
        let folder = site.path().join("prometheus");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("the folder can be written");
            path
        };
        write("rules.yml", rules);
        let targets: Vec<String> = targets.iter().map(|target| format!("{:?}", target.to_string())).collect();
        let config = write(
            "prometheus.yml",
            &format!(
                "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}\n\
                 rule_files: [rules.yml]\n\
                 scrape_configs:\n  - job_name: sealane\n{scrapes}    static_configs: [{{targets: [{}]}}]\n",
                targets.join(", ")
            ),
        );
        let address = ports::free();
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.args([&format!("--web.listen-address={address}"), "--log.level=warn"]);
        command.arg("--enable-feature=exemplar-storage");
        if native && !is_setting {
            command.arg("--enable-feature=native-histograms");
        }
        let mut prometheus = Self { address, server: Server::start(command, site.path()) };
        prometheus.server.wait_until(|| {
            let Ok(stream) = TcpStream::connect(address) else { return false };
            let mut wire = Wire::new(stream);
            let _ = wire.send(format!("GET /-/ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
            wire.response("GET").is_ok_and(|answer| answer.status() == 200)
        });
        let wanted = targets.len();
        let scraped = || prometheus.query("count_over_time(up[1m]) >= 3").is_ok_and(|found| found.len() == wanted);
        assert!(eventually(scraped), "{}", prometheus.get("/api/v1/targets"));
        prometheus
    }

    /// The body of an answer of its API.
    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let mut wire = Wire::new(client::tcp(self.address));
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        wire.send(request).expect("Prometheus reads");
        let text = wire.response("GET").expect("Prometheus answers").text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// The series that an expression selects now; the error is what is wrong with the expression.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>, String> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={encoded}"));
        if answer["status"] != "success" {
            return Err(answer.to_string());
        }
        let data = &answer["data"];
        let number = |value: &Value| value.as_str().and_then(|value| value.parse().ok());
        let sample = |labels: &Value, pair: &Value| Sample {
            labels: labels.clone(),
            value: number(&pair[1]).unwrap_or(f64::NAN),
        };
        Ok(match data["resultType"].as_str() {
            Some("vector") => {
                let series = data["result"].as_array().into_iter().flatten();
                // A native histogram is no number: how many observations it has stands for it.
                let of = |series: &Value| match number(&series["histogram"][1]["count"]) {
                    Some(value) => Sample { labels: series["metric"].clone(), value },
                    None => sample(&series["metric"], &series["value"]),
                };
                series.map(of).collect()
            }
            _ => vec![sample(&Value::Null, &data["result"])],
        })
    }

    /// The exemplars of the series that a selector names: their labels.
    #[track_caller]
    pub fn exemplars(&self, selector: &str) -> Vec<Value> {
        let encoded: String = selector.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/api/v1/query_exemplars?query={encoded}"));
        let series = answer["data"].as_array().into_iter().flatten();
        let all = series.flat_map(|series| series["exemplars"].as_array().into_iter().flatten());
        all.map(|exemplar| exemplar["labels"].clone()).collect()
    }

    /// The targets, with what scraping them said.
    #[track_caller]
    pub fn targets(&self) -> Value {
        self.get("/api/v1/targets")["data"]["activeTargets"].clone()
    }

    /// What it has been told of a family of metrics: `type`, `help` and `unit`.
    #[track_caller]
    pub fn metadata(&self, family: &str) -> Value {
        self.get(&format!("/api/v1/metadata?metric={family}"))["data"][family][0].clone()
    }

    /// The labels of the alerts that fire now.
    #[track_caller]
    pub fn firing(&self) -> Vec<Value> {
        let answer = self.get("/api/v1/alerts");
        let alerts = answer["data"]["alerts"].as_array().into_iter().flatten();
        alerts.filter(|alert| alert["state"] == "firing").map(|alert| alert["labels"].clone()).collect()
    }

    /// Waits until an alert fires that has this name and these labels.
    #[track_caller]
    pub fn fires(&self, name: &str, labels: &[(&str, &str)]) {
        let is_it = |alert: &Value| {
            alert["alertname"] == name && labels.iter().all(|(key, value)| alert[*key].as_str() == Some(value))
        };
        let fires = || self.firing().iter().any(is_it);
        assert!(eventually(fires), "{name} {labels:?} does not fire within {WAIT_LIMIT:?}; {:?}", self.firing());
    }

    /// All rules as it has read them.
    #[track_caller]
    pub fn rules(&self) -> Vec<Value> {
        let answer = self.get("/api/v1/rules");
        let groups = answer["data"]["groups"].as_array().into_iter().flatten();
        groups.flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    }
}
