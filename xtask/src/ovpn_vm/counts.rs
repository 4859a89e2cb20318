//! The instructions that the virtual machine has counted (`count.sh`), as a table and as JSON.

use anyhow::ensure;
use serde::Serialize;

/// What must have been counted, or the run is worth nothing.
const SUBJECTS: [&str; 4] = ["veth", "openvpn-2.6", "sealane-user", "sealane-kernel"];
const WORKLOADS: [&str; 3] = ["echo", "upload", "download"];
/// The workloads without a tunnel.
const BARE: &str = "veth";

/// One round of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    subject: String,
    workload: String,
    round: u32,
    packets: u64,
    instructions: u64,
}

/// What the machine has said.
#[derive(Debug, Serialize)]
pub struct Counts {
    /// Versions.
    about: Vec<String>,
    counts: Vec<Count>,
}

impl Counts {
    /// Reads the console's log.
    pub fn read(log: &str) -> anyhow::Result<Self> {
        // The first line of a console may have what the firmware has written before it.
        let behind = |mark: &'static str| log.lines().filter_map(move |line| Some(line.trim_end().split_once(mark)?.1));
        let about = behind("about: ").map(str::to_owned).collect();
        let read = Self { about, counts: behind("count: ").filter_map(count).collect() };
        for subject in SUBJECTS {
            for workload in WORKLOADS {
                ensure!(read.per_packet(subject, workload).is_some(), "nothing was counted for {subject}, {workload}");
            }
        }
        Ok(read)
    }

    /// The median of the rounds.
    fn per_packet(&self, subject: &str, workload: &str) -> Option<u64> {
        let rounds = self.counts.iter().filter(|count| count.subject == subject && count.workload == workload);
        let mut all: Vec<u64> = rounds.map(|count| count.instructions / count.packets.max(1)).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }

    /// Instructions per packet in Markdown, without those of the workload itself.
    pub fn table(&self) -> String {
        let mut subjects: Vec<&str> = Vec::new();
        for count in &self.counts {
            let is_tunnel = count.subject != BARE && WORKLOADS.contains(&count.workload.as_str());
            if is_tunnel && !subjects.contains(&count.subject.as_str()) {
                subjects.push(&count.subject);
            }
        }
        let mut out = format!("| server | {} |\n|---|---|---|---|\n", WORKLOADS.join(" | "));
        for subject in subjects {
            let cell = |workload| {
                let bare = self.per_packet(BARE, workload).unwrap_or(0);
                self.per_packet(subject, workload).map_or_else(String::new, |n| n.saturating_sub(bare).to_string())
            };
            out += &format!("| {subject} | {} |\n", WORKLOADS.map(cell).join(" | "));
        }
        out
    }
}

/// `SUBJECT WORKLOAD ROUND PACKETS INSTRUCTIONS`.
fn count(line: &str) -> Option<Count> {
    let mut words = line.split_whitespace();
    let (subject, workload) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (round, packets, instructions) =
        (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(Count { subject, workload, round, packets, instructions })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(subjects: &[(&str, u64)]) -> String {
        let mut log = "SeaBIOS\r\nfirmwareabout: Linux 7.3.4\r\ncount: nothing nothing 1 1 2985242\r\n".to_owned();
        for (subject, cost) in subjects {
            for workload in WORKLOADS {
                for (round, more) in [(1, 900_000), (2, 0), (3, 10_000)] {
                    log += &format!("count: {subject} {workload} {round} 1000 {}\r\n", cost * 1000 + more);
                }
            }
        }
        log + "count: failed: something\r\n[    3.97] reboot: Power down"
    }

    #[test]
    fn the_table_has_medians_without_the_workload() {
        let all = [
            ("veth", 100),
            ("openvpn-2.6", 500),
            ("openvpn-2.7-dco", 300),
            ("sealane-user", 400),
            ("sealane-kernel", 90),
        ];
        let counts = Counts::read(&log(&all)).expect("all of it is there");
        assert_eq!(counts.about, ["Linux 7.3.4"]);
        assert_eq!(
            counts.table(),
            "| server | echo | upload | download |\n|---|---|---|---|\n| openvpn-2.6 | 400 | 400 | 400 |\n\
             | openvpn-2.7-dco | 200 | 200 | 200 |\n| sealane-user | 300 | 300 | 300 |\n| sealane-kernel | 0 | 0 | 0 |\n"
        );
    }

    #[test]
    fn a_run_without_a_subject_is_an_error() {
        let error =
            Counts::read(&log(&[("veth", 1), ("openvpn-2.6", 2), ("sealane-user", 3)])).unwrap_err().to_string();
        assert_eq!(error, "nothing was counted for sealane-kernel, echo");
    }
}
