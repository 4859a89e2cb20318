//! The probes for tracers: the program's notes name those of the documentation, and gdb, which we did not write, stops at one and reads
//! its arguments.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::before;
use sealane_interop::site::Site;
use sealane_interop::{binary, eventually, need, skip};
use std::collections::BTreeMap;
use std::process::Command;

/// A probe as the notes have it.
#[derive(Debug)]
struct Probe {
    /// Where it is in the file.
    offset: usize,
    semaphore: u64,
    arguments: usize,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut padded = [0; 8];
    padded[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(padded)
}

/// A section of an ELF file of 64 bits (its offset and size), by its name.
fn section(elf: &[u8], wanted: &str) -> Option<(usize, usize)> {
    let (table, size, count) =
        (number::<8>(elf, 0x28) as usize, number::<2>(elf, 0x3a) as usize, number::<2>(elf, 0x3c) as usize);
    let header = |i: usize| table + i * size;
    let place = |i: usize| (number::<8>(elf, header(i) + 0x18) as usize, number::<8>(elf, header(i) + 0x20) as usize);
    let (names, _) = place(number::<2>(elf, 0x3e) as usize);
    let name = |i: usize| {
        let start = names + number::<4>(elf, header(i)) as usize;
        let end = elf[start..].iter().position(|byte| *byte == 0).map(|length| start + length).unwrap_or(start);
        String::from_utf8_lossy(&elf[start..end]).into_owned()
    };
    (0..count).find(|i| name(*i) == wanted).map(place)
}

/// The offset in the file of what is loaded at an address.
fn offset_of(elf: &[u8], address: u64) -> Option<usize> {
    let (table, size, count) =
        (number::<8>(elf, 0x20) as usize, number::<2>(elf, 0x36) as usize, number::<2>(elf, 0x38) as usize);
    (0..count).map(|i| table + i * size).filter(|at| number::<4>(elf, *at) == 1).find_map(|at| {
        let (offset, start, length) =
            (number::<8>(elf, at + 8), number::<8>(elf, at + 0x10), number::<8>(elf, at + 0x20));
        (start..start + length).contains(&address).then(|| (address - start + offset) as usize)
    })
}

/// The probes in `.note.stapsdt`, by their names.
fn probes(elf: &[u8]) -> BTreeMap<String, Vec<Probe>> {
    let mut found: BTreeMap<String, Vec<Probe>> = BTreeMap::new();
    let (mut at, length) = section(elf, ".note.stapsdt").expect("the program has notes");
    let end = at + length;
    while at < end {
        let (name, content) = (number::<4>(elf, at) as usize, number::<4>(elf, at + 4) as usize);
        assert_eq!((number::<4>(elf, at + 8), &elf[at + 12..at + 12 + name]), (3, &b"stapsdt\0"[..]));
        let start = at + 12 + name.next_multiple_of(4);
        let note = &elf[start..start + content];
        let texts: Vec<String> =
            note[24..].split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        assert_eq!(texts[0], "sealane");
        let address = number::<8>(note, 0);
        found.entry(texts[1].clone()).or_default().push(Probe {
            offset: offset_of(elf, address)
                .unwrap_or_else(|| panic!("{}: nothing is loaded at {address:#x}", texts[1])),
            semaphore: number::<8>(note, 16),
            arguments: texts[2].split_whitespace().count(),
        });
        at = start + content.next_multiple_of(4);
    }
    found
}

/// The probes in the table of the page, with the number of their arguments.
fn documented(page: &str) -> BTreeMap<String, usize> {
    // | `name` | when | `arg0`, `arg1` |
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once('`')?;
        let arguments = rest.rsplit(" | ").next()?;
        Some((name.to_owned(), arguments.matches('`').count() / 2))
    })
    .collect()
}

#[test]
fn the_program_has_the_probes_of_the_documentation() {
    let elf = std::fs::read(binary::sealane()).expect("the program was built");
    if !(cfg!(target_arch = "x86_64") || cfg!(target_arch = "aarch64")) {
        skip!("there are no probes on this architecture");
    }
    let found = probes(&elf);
    let page =
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/tracing.md"))
            .expect("the page is there");
    let documented = documented(&page);
    let in_program: BTreeMap<String, usize> =
        found.iter().map(|(name, all)| (name.clone(), all[0].arguments)).collect();
    assert_eq!(documented, in_program);
    let nop: &[u8] = if cfg!(target_arch = "x86_64") { &[0x90] } else { &[0x1f, 0x20, 0x03, 0xd5] };
    for (name, all) in &found {
        for probe in all {
            assert_eq!(&elf[probe.offset..probe.offset + nop.len()], nop, "{name}: {probe:?}");
            // Tracers raise it in memory that can be written, where it begins with zero.
            let semaphore = offset_of(&elf, probe.semaphore).unwrap_or_else(|| panic!("{name}: {probe:?}"));
            assert_eq!(&elf[semaphore..semaphore + 2], [0, 0], "{name}: {probe:?}");
        }
    }
}

/// bpftrace needs rights that containers do not have, so the packaged script is compared with the table by its text.
#[test]
fn the_script_uses_the_probes_of_the_documentation() {
    let read = |path: &str| {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    let (script, documented) = (read("packaging/bpftrace/sealane.bt"), documented(&read("docs/how-to/tracing.md")));
    let mut used = BTreeMap::new();
    for part in script.split("\nusdt:").skip(1) {
        let (probe, body) = part.split_once('\n').expect("a probe has a body");
        let name = probe.strip_prefix("/usr/bin/sealane:sealane:").unwrap_or_else(|| panic!("{probe}"));
        let numbers = body.match_indices("arg").filter_map(|(at, _)| body[at + 3..].chars().next()?.to_digit(10));
        used.insert(name.to_owned(), numbers.map(|number| number as usize + 1).max().unwrap_or(0));
    }
    assert_eq!(used.keys().collect::<Vec<_>>(), documented.keys().collect::<Vec<_>>());
    for (name, arguments) in used {
        assert!(arguments <= documented[&name], "{name} has no argument {}", arguments - 1);
    }
}

/// gdb raises the semaphore of the probe at which it stops, as tracers do; without that, nothing would stop it.
#[test]
fn a_tracer_stops_at_a_probe_and_reads_its_arguments() {
    let gdb = need!("gdb");
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).start();
    let script = site.file(
        "probes.gdb",
        "set pagination off\nset confirm off\nset breakpoint pending off\nbreak -probe-stap sealane:exchange_end\n\
         printf \"the probe is set\\n\"\ncontinue\n\
         printf \"stopped: connection %lu request %lu status %lu after %lu us, %lu arguments\\n\", $_probe_arg0, $_probe_arg1, \
         $_probe_arg2, $_probe_arg3, $_probe_argc\ndetach\n",
    );
    let mut command = Command::new(gdb);
    command.args(["-q", "-nx", "-batch", "-p", &gateway.server.id().to_string(), "-x"]).arg(script);
    let log = site.path().join("gdb.log");
    let file = std::fs::File::create(&log).expect("the folder is ours");
    let twin = file.try_clone().expect("a descriptor can be duplicated");
    let mut child = command.stdout(file).stderr(twin).stdin(std::process::Stdio::null()).spawn().expect("gdb starts");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let mut has_ended = || child.try_wait().is_ok_and(|status| status.is_some());
    assert!(eventually(|| said().contains("the probe is set") || has_ended()), "{}", said());
    if !said().contains("the probe is set") {
        // Where processes may not be traced, nobody needs probes.
        let denied = said().contains("Operation not permitted") || said().contains("ptrace");
        assert!(denied, "{}", said());
        skip!("this system does not let gdb trace: {}", said().lines().last().unwrap_or_default());
    }
    // The gateway stops in the middle of the first request that ends, and goes on when gdb leaves.
    assert_eq!(gateway.get("/").text(), "hello");
    assert!(eventually(has_ended), "{}", said());
    let _ = child.wait();
    let line = said()
        .lines()
        .find(|line| line.starts_with("stopped:"))
        .map(str::to_owned)
        .unwrap_or_else(|| panic!("{}", said()));
    assert!(line.contains("request 1 status 200 after") && line.ends_with("5 arguments"), "{line}");
    assert_eq!(gateway.get("/").text(), "hello", "it goes on without the tracer");
}
