//! Instructions and LOCK-prefixed instructions per handshake, counted by callgrind: exact on any machine, however few
//! cores it has and however busy they are.
//!
//! The worker runs twice, for N and for 3N handshakes; the difference is what handshakes cost, start-up and warm-up
//! taken off. callgrind emulates a CPU without the newest vector instructions, so its instruction count stands for
//! comparing libraries, not for the time on this machine.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::builder::Built;
use crate::elf::Images;
use crate::locks::Folder;
use crate::recipe;
use crate::wire::{self, Case};

/// What a side executes per handshake.
#[derive(Clone, Debug, Serialize)]
pub struct PerHandshake {
    /// The case's name.
    pub case: String,
    /// `server` or `client`.
    pub side: &'static str,
    /// Handshakes of which the difference was taken.
    pub handshakes: u64,
    /// Instructions.
    pub instructions: f64,
    /// LOCK-prefixed ones; none where the processor has no such prefix.
    pub locked: Option<f64>,
    /// Where most of these are: function and number.
    pub functions: Vec<(String, f64)>,
}

/// Executions by file and address.
type Executed = HashMap<(PathBuf, u64), u64>;

/// Counts one side of a case.
pub fn count(
    built: &Built,
    peer: &Path,
    certs: &Path,
    case: &Case,
    handshakes: u64,
    root: &Path,
    images: &mut Images,
) -> Result<PerHandshake, String> {
    if recipe::find("valgrind").is_none() {
        return Err("valgrind is missing (Debian package valgrind)".into());
    }
    let folder = Folder::new(root)?;
    // Both at once: what another process does changes no count, and callgrind is slow.
    let once = |count: u64| run(built, peer, certs, case, count, &folder.0);
    let (few, many) = std::thread::scope(|scope| {
        let few = scope.spawn(|| once(handshakes));
        let many = once(3 * handshakes);
        (few.join().unwrap_or_else(|_| Err("a thread panicked".into())), many)
    });
    let (few, many) = (few?, many?);
    let per = |n: u64| n as f64 / (2 * handshakes) as f64;
    let total = |executed: &Executed| executed.values().sum::<u64>();
    let mut locked = 0;
    let mut functions: BTreeMap<String, u64> = BTreeMap::new();
    for ((file, address), n) in &many {
        let more = n.saturating_sub(few.get(&(file.clone(), *address)).copied().unwrap_or(0));
        if more == 0 || !images.of(file).bytes(*address).is_some_and(locks) {
            continue;
        }
        locked += more;
        let name = images.of(file).function(*address).unwrap_or("(no name)").to_owned();
        *functions.entry(name).or_default() += more;
    }
    let mut functions: Vec<(String, f64)> = functions.into_iter().map(|(f, n)| (f, per(n))).collect();
    functions.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    functions.truncate(12);
    Ok(PerHandshake {
        case: case.name(),
        side: if case.test == "client" { "client" } else { "server" },
        handshakes: 2 * handshakes,
        instructions: per(total(&many).saturating_sub(total(&few))),
        locked: cfg!(target_arch = "x86_64").then(|| per(locked)),
        functions,
    })
}

fn run(built: &Built, peer: &Path, certs: &Path, case: &Case, count: u64, folder: &Path) -> Result<Executed, String> {
    let out = folder.join(format!("callgrind-{count}"));
    let side = if case.test == "client" { "lab_client_side" } else { "lab_server_side" };
    let mut arguments = case.arguments();
    arguments.extend(["--unsplit", "--unbound", "--warmup", "3", "--count"].map(str::to_owned));
    arguments.push(count.to_string());
    let worker = wire::command(built, peer, certs, &arguments);
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no", "--quiet"])
        .arg(format!("--toggle-collect={side}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(worker.get_program())
        .args(worker.get_args());
    wire::run(command)?;
    let file = std::fs::File::open(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    parse(std::io::BufReader::new(file))
}

/// Reads callgrind's file: `ob=` names the file, a line of an address is that instruction's own cost, and the line
/// after `calls=` is what was called, which is not.
fn parse(from: impl BufRead) -> Result<Executed, String> {
    let mut executed = Executed::new();
    let (mut file, mut called) = (PathBuf::new(), false);
    for line in from.lines() {
        let line = line.map_err(|e| format!("callgrind's file: {e}"))?;
        if let Some(name) = line.strip_prefix("ob=") {
            file = PathBuf::from(name.trim());
        } else if line.starts_with("calls=") {
            called = true;
        } else if let Some(rest) = line.strip_prefix("0x") {
            if std::mem::take(&mut called) {
                continue;
            }
            let mut words = rest.split_ascii_whitespace();
            let address = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
            // After the address comes the source line.
            let cost = words.nth(1).and_then(|w| w.parse::<u64>().ok());
            let (Some(address), Some(cost)) = (address, cost) else {
                return Err(format!("callgrind's file has a line that is not understood: {line}"));
            };
            *executed.entry((file.clone(), address)).or_default() += cost;
        }
    }
    Ok(executed)
}

/// Whether the instruction that starts here locks the bus: by prefix, or as `xchg` with memory does without one.
fn locks(code: &[u8]) -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let mut decoder = iced_x86::Decoder::new(64, code, iced_x86::DecoderOptions::NONE);
    let instruction = decoder.decode();
    let memory = (0..instruction.op_count()).any(|n| instruction.op_kind(n) == iced_x86::OpKind::Memory);
    instruction.has_lock_prefix() || (instruction.mnemonic() == iced_x86::Mnemonic::Xchg && memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn locking_instructions_are_known() {
        // lock xadd [rdi], eax; xchg [rdi], eax; xchg eax, ecx; add [rdi], eax; mfence
        assert!(locks(&[0xf0, 0x0f, 0xc1, 0x07]) && locks(&[0x87, 0x07]));
        assert!(!locks(&[0x87, 0xc1]) && !locks(&[0x01, 0x07]) && !locks(&[0x0f, 0xae, 0xf0]));
    }

    #[test]
    fn callgrinds_file_is_read() {
        let text = "version: 1\npositions: instr line\nob=/lib/a.so\nfn=f\n0x10 5 7\ncfn=g\ncalls=3 0x99 1\n0x14 6 900\n0x10 5 1\nob=/lib/b.so\nfn=h\n0x10 1 2\n";
        let executed = parse(text.as_bytes()).expect("right");
        assert_eq!(executed.len(), 2);
        assert_eq!(executed[&(PathBuf::from("/lib/a.so"), 0x10)], 8);
        assert!(parse("0xzz 1 2\n".as_bytes()).is_err());
    }
}
