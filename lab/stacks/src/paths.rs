//! Which of the CPU's paths a library really takes: the instructions that it runs, sampled by `on-demand/preload/paths.c` while a
//! server seals records, signs and derives keys.
//!
//! What a library says of itself is what it found, not what it uses; names of functions are stripped from what
//! distributions ship. The instructions are there in any case.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic as M, OpKind, Register};
use serde::Serialize;

use crate::builder::Built;
use crate::locks::{self, Folder};
use crate::wire::{self, Case};

// The sizes of `struct file` and `struct sample`.
const SAMPLES: usize = 4096;
const CODE: usize = 120;
const SAMPLE_BYTES: usize = 8 + CODE;
const HEADER: usize = 16;

/// Fewer samples than this say nothing.
const ENOUGH: u64 = 20;
/// With SHA instructions, hashing is about 1 % of a handshake: that it is not seen says something among so many only.
const ENOUGH_FOR_SHA: u64 = 700;

/// What a kind of work runs on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Taken {
    /// What the server did.
    pub work: &'static str,
    /// Samples of it.
    pub samples: u64,
    /// Kinds of instructions, and the part of the samples that were taken at them, most first.
    pub kinds: Vec<(&'static str, f64)>,
}

impl Taken {
    /// The part of the samples at instructions of one of these kinds.
    pub fn part(&self, kinds: &[&str]) -> f64 {
        self.kinds.iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, part)| *part).fold(0.0, f64::max)
    }
}

/// The kinds of work, each with its case.
fn works(tls: &'static str) -> [(&'static str, Case); 6] {
    let base = Case { tls, ..Case::BASE };
    let records = |cipher| Case { cipher, record: Some(16 * 1024), ..base.clone() };
    [
        ("AES-128-GCM", records("aes128")),
        ("AES-256-GCM", records("aes256")),
        ("ChaCha20-Poly1305", records("chacha20")),
        (HANDSHAKES[0], Case { key: "rsa2048", ..base.clone() }),
        (HANDSHAKES[1], base.clone()),
        (HANDSHAKES[2], Case { resumed: true, ..base.clone() }),
    ]
}

/// The kinds of work that are handshakes.
const HANDSHAKES: [&str; 3] = ["RSA-2048, X25519", "P-256, X25519", "resuming (SHA-256)"];

/// What it takes to look.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'a> {
    /// The fixed peer.
    pub peer: &'a Path,
    /// The certificates' folder.
    pub certs: &'a Path,
    /// `on-demand/preload/paths.c`, compiled.
    pub sampler: &'a Path,
    /// The cache.
    pub root: &'a Path,
}

/// Samples all kinds of work, so many seconds each. A kind that the library refuses is left out; when it refuses all, the
/// last refusal is the answer.
pub fn look(built: &Built, tools: &Tools<'_>, tls: &'static str, seconds: f64) -> Result<Vec<Taken>, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("only the instructions of x86-64 are known here".into());
    }
    let folder = Folder::new(tools.root)?;
    let (mut taken, mut refused) = (Vec::new(), None);
    for (n, (work, case)) in works(tls).into_iter().enumerate() {
        let file = folder.0.join(n.to_string());
        let mut arguments = case.arguments();
        arguments.extend(["--unsplit".into(), "--seconds".into(), seconds.to_string()]);
        let mut command = wire::command(built, tools.peer, tools.certs, &arguments);
        sample(&mut command, tools.sampler, &file);
        match wire::run(command) {
            Ok(_) => {
                let data = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
                taken.push(sort(work, &data)?);
            }
            Err(why) => refused = Some(why),
        }
    }
    match refused {
        Some(why) if taken.is_empty() => Err(why),
        _ => Ok(taken),
    }
}

fn sample(command: &mut Command, sampler: &Path, file: &Path) {
    locks::preload(command, sampler, Path::new(""), false, false);
    command.env_remove("SEALANE_LOCKS_DIR").env("SEALANE_PATHS_FILE", file);
}

/// Reads the sampler's file.
fn sort(work: &'static str, data: &[u8]) -> Result<Taken, String> {
    if data.len() != HEADER + SAMPLES * SAMPLE_BYTES || &data[..8] != b"SEAPATH1" {
        return Err("the samples are not of this version's format".into());
    }
    let number = |at: usize| data[at..at + 8].iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let used = usize::try_from(number(8)).unwrap_or(SAMPLES).min(SAMPLES);
    let mut samples = 0;
    let mut found = BTreeMap::<&'static str, u64>::new();
    for n in 0..used {
        let at = HEADER + n * SAMPLE_BYTES;
        let bytes = usize::try_from(number(at)).unwrap_or(0).min(CODE);
        if bytes > 0 {
            samples += 1;
            for kind in kinds(&data[at + 8..at + 8 + bytes]) {
                *found.entry(kind).or_default() += 1;
            }
        }
    }
    let mut kinds: Vec<_> = found.into_iter().map(|(kind, n)| (kind, n as f64 / samples as f64)).collect();
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    Ok(Taken { work, samples, kinds })
}

/// The kinds of instructions in a stretch of code, up to where it goes elsewhere for good.
fn kinds(code: &[u8]) -> Vec<&'static str> {
    let mut found = Vec::new();
    for instruction in Decoder::new(64, code, DecoderOptions::NONE).iter() {
        if instruction.is_invalid() {
            break;
        }
        if let Some(kind) = kind(&instruction).filter(|kind| !found.contains(kind)) {
            found.push(kind);
        }
        if matches!(instruction.mnemonic(), M::Ret | M::Jmp | M::Call) {
            break;
        }
    }
    found
}

const AES: &[&str] = &["AES-NI", "VAES"];
const WIDE_MULTIPLY: &[&str] = &["MULX", "IFMA"];

/// What an instruction tells; most tell nothing.
fn kind(instruction: &Instruction) -> Option<&'static str> {
    let bits = widest(instruction);
    Some(match instruction.mnemonic() {
        M::Aesenc | M::Aesenclast | M::Aesdec | M::Aesdeclast | M::Aeskeygenassist => "AES-NI",
        M::Vaesenc | M::Vaesenclast | M::Vaesdec | M::Vaesdeclast if bits > 128 => "VAES",
        M::Vaesenc | M::Vaesenclast | M::Vaesdec | M::Vaesdeclast => "AES-NI",
        M::Vpclmulqdq if bits > 128 => "VPCLMULQDQ",
        M::Vpclmulqdq | M::Pclmulqdq => "PCLMULQDQ",
        M::Sha1rnds4 | M::Sha1nexte | M::Sha1msg1 | M::Sha1msg2 | M::Sha256rnds2 | M::Sha256msg1 | M::Sha256msg2 => {
            "SHA"
        }
        M::Vpmadd52luq | M::Vpmadd52huq => "IFMA",
        M::Mulx => "MULX",
        M::Adcx | M::Adox => "ADX",
        M::Mul => "MUL",
        // Copying says nothing about computing.
        M::Movups | M::Movaps | M::Movdqa | M::Movdqu | M::Movd | M::Movq | M::Pxor | M::Vpxor | M::Vzeroupper => {
            return None;
        }
        M::Vmovups | M::Vmovaps | M::Vmovdqa | M::Vmovdqu | M::Vmovd | M::Vmovq => return None,
        _ => match bits {
            512 => "512-bit vectors",
            256 => "256-bit vectors",
            128 => "128-bit vectors",
            _ => return None,
        },
    })
}

/// Bits of the widest vector register that an instruction names.
fn widest(instruction: &Instruction) -> u32 {
    let registers = (0..instruction.op_count())
        .filter(|&n| instruction.op_kind(n) == OpKind::Register)
        .map(|n| instruction.op_register(n) as usize);
    let within = |r: usize, first: Register, last: Register| (first as usize..=last as usize).contains(&r);
    registers
        .map(|r| match r {
            r if within(r, Register::XMM0, Register::XMM31) => 128,
            r if within(r, Register::YMM0, Register::YMM31) => 256,
            r if within(r, Register::ZMM0, Register::ZMM31) => 512,
            _ => 0,
        })
        .max()
        .unwrap_or(0)
}

/// Paths that this CPU (its flags as the kernel names them) could go faster than the library does.
pub fn slow(taken: &[Taken], cpu: &[String]) -> Vec<String> {
    let has = |flag: &str| cpu.iter().any(|f| f == flag);
    let misses = |prefix: &str, kinds: &[&str]| {
        let of: Vec<_> = taken.iter().filter(|t| t.work.starts_with(prefix) && t.samples >= ENOUGH).collect();
        !of.is_empty() && of.iter().all(|t| t.part(kinds) < 0.1)
    };
    let mut said = Vec::new();
    if has("aes") && misses("AES", AES) {
        said.push("AES without this CPU's AES instructions".to_owned());
    }
    if has("bmi2") && has("adx") && misses("RSA", WIDE_MULTIPLY) {
        said.push("RSA without MULX, ADX or IFMA, which this CPU has".to_owned());
    }
    if has("avx2") && misses("ChaCha20", &["256-bit vectors", "512-bit vectors"]) {
        said.push("ChaCha20 without vectors of 256 bits, which this CPU has".to_owned());
    }
    let handshakes: Vec<_> = taken.iter().filter(|t| HANDSHAKES.contains(&t.work)).collect();
    if has("sha_ni")
        && handshakes.iter().map(|t| t.samples).sum::<u64>() >= ENOUGH_FOR_SHA
        && handshakes.iter().all(|t| t.part(&["SHA"]) == 0.0)
    {
        said.push("SHA-256 without this CPU's SHA instructions".to_owned());
    }
    said
}

/// One kind of work in a line.
pub fn line(taken: &Taken) -> String {
    if taken.samples < ENOUGH {
        return format!("{}: {} samples are too few to say", taken.work, taken.samples);
    }
    // SHA-256 is a small part of a handshake, but how it is done shows in a single sample.
    let shown = taken.kinds.iter().filter(|(kind, part)| *part >= 0.05 || *kind == "SHA");
    let mut parts: Vec<String> = shown.map(|(kind, part)| format!("{kind} {:.0} %", part * 100.0)).collect();
    if parts.is_empty() {
        parts.push("plain instructions".into());
    }
    format!("{}: {} ({} samples)", taken.work, parts.join(", "), taken.samples)
}

/// The abilities behind OpenSSL's own words (`OPENSSL_ia32cap=0x…:0x…`): what it found, or was told to find.
pub fn capabilities(text: &str) -> Option<Vec<&'static str>> {
    let rest = text.split_once("OPENSSL_ia32cap=")?.1;
    let mut words = rest.split_whitespace().next()?.split(':');
    let mut word = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (first, second) = (word()?, word()?);
    // cpuid(1): EDX below, ECX above; cpuid(7): EBX below, ECX above.
    let first =
        [(57, "aes"), (33, "pclmulqdq"), (41, "ssse3"), (60, "avx")].map(|(bit, name)| (first >> bit & 1, name));
    let second = [
        (5, "avx2"),
        (8, "bmi2"),
        (19, "adx"),
        (29, "sha_ni"),
        (16, "avx512f"),
        (21, "avx512ifma"),
        (41, "vaes"),
        (42, "vpclmulqdq"),
    ]
    .map(|(bit, name)| (second >> bit & 1, name));
    Some(first.into_iter().chain(second).filter(|(set, _)| *set == 1).map(|(_, name)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_give_the_path_away() {
        // aesenc xmm2,xmm0; vaesenc ymm1,ymm1,ymm2; mulx rax,rbx,rcx; sha256rnds2 xmm1,xmm2; ret; aesenc
        let code = [
            &[0x66, 0x0f, 0x38, 0xdc, 0xd0][..],
            &[0xc4, 0xe2, 0x75, 0xdc, 0xca],
            &[0xc4, 0xe2, 0xe3, 0xf6, 0xc1],
            &[0x0f, 0x38, 0xcb, 0xca],
            &[0xc3],
            &[0x48, 0xf7, 0xe1],
        ]
        .concat();
        assert_eq!(kinds(&code), ["AES-NI", "VAES", "MULX", "SHA"]);
        // After the return lies something else: mul rcx.
        assert_eq!(kinds(&code[code.len() - 3..]), ["MUL"]);
        assert!(kinds(&[0xff, 0xff, 0xff]).is_empty());
    }

    fn file(samples: &[&[u8]]) -> Vec<u8> {
        let mut data = [&b"SEAPATH1"[..], &(samples.len() as u64).to_le_bytes()].concat();
        for code in samples {
            data.extend((code.len() as u64).to_le_bytes());
            data.extend_from_slice(code);
            data.resize(data.len() + CODE - code.len(), 0);
        }
        data.resize(HEADER + SAMPLES * SAMPLE_BYTES, 0);
        data
    }

    #[test]
    fn samples_are_sorted_and_slow_paths_stand_out() {
        let (fast, slow_one): (&[u8], &[u8]) = (&[0x66, 0x0f, 0x38, 0xdc, 0xd0], &[0x48, 0x01, 0xc8]);
        let fast = sort("AES-128-GCM", &file(&[fast; 30])).expect("right");
        assert_eq!((fast.samples, fast.kinds.clone()), (30, vec![("AES-NI", 1.0)]));
        assert_eq!(line(&fast), "AES-128-GCM: AES-NI 100 % (30 samples)");
        let plain = sort("AES-128-GCM", &file(&[slow_one; 30])).expect("right");
        let cpu = ["aes".to_owned()];
        assert!(slow(&[fast], &cpu).is_empty() && slow(std::slice::from_ref(&plain), &[]).is_empty());
        assert_eq!(slow(&[plain], &cpu).len(), 1);
        // A handshake's hashes show in few samples: none among many is what counts.
        let hashed = |samples: &[&[u8]]| sort(HANDSHAKES[2], &file(samples)).expect("right");
        let (sha, cpu_sha) = (&[0x0f, 0x38, 0xcb, 0xca][..], ["sha_ni".to_owned()]);
        assert!(slow(&[hashed(&[slow_one; 699])], &cpu_sha).is_empty());
        assert_eq!(slow(&[hashed(&[slow_one; 701])], &cpu_sha).len(), 1);
        assert!(slow(&[hashed(&[&[slow_one; 800][..], &[sha]].concat())], &cpu_sha).is_empty());
        let few = sort("AES-128-GCM", &file(&[slow_one; 3])).expect("right");
        assert!(slow(std::slice::from_ref(&few), &cpu).is_empty() && line(&few).contains("too few"));
        assert!(sort("AES-128-GCM", b"SEAPATH1").is_err());
        // A count beyond the table, as when it ran over.
        let mut over = file(&[slow_one; 2]);
        over[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(sort("x", &over).expect("right").samples, 2);
    }

    #[test]
    fn openssls_words_are_read() {
        let found = capabilities("CPUINFO: OPENSSL_ia32cap=0xfffa3203078bffff:0x400684219c07ab").expect("its form");
        assert!(found.contains(&"aes") && found.contains(&"adx") && found.contains(&"bmi2"), "{found:?}");
        let none = capabilities("CPUINFO: OPENSSL_ia32cap=0x0:0x0 env:~0x200000200000000");
        assert_eq!(none, Some(Vec::new()));
        assert_eq!(capabilities("n/a"), None);
    }
}
