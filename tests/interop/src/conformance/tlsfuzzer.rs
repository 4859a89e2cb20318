//! tlsfuzzer: scripts that hold conversations with a server, most of them with a mistake.

use super::Case;
use super::expected::{Script, Tlsfuzzer, folder};
use crate::backend::Backend;
use crate::base64;
use crate::gateway::{Gateway, before, configured};
use crate::site::{HOST, Identity, Site};
use anyhow::{Context, ensure};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The gateways that scripts run against, and what each is for.
pub const GATEWAYS: &[(&str, &str)] = &[
    ("rsa", "a certificate with an RSA key"),
    ("ecdsa", "certificates with ECDSA keys"),
    ("ed25519", "a certificate with an Ed25519 key"),
    ("clients", "an RSA certificate, and client certificates that are optional"),
    ("tls12", "an RSA certificate, and only TLS 1.2"),
];

/// How long a script may run. The longest ones take some minutes.
const LIMIT: Duration = Duration::from_secs(1200);

/// A gateway for scripts, and what belongs to it.
pub struct Target {
    /// It answers every request.
    pub gateway: Gateway,
    /// Client certificates that it accepts, by what stands for them in a script's arguments.
    clients: Vec<(&'static str, Identity)>,
    _backend: Backend,
}

impl Target {
    /// The file that an argument such as `{rsa-key}` stands for.
    fn file(&self, argument: &str) -> Option<&OsStr> {
        let (kind, file) = argument.strip_prefix('{')?.strip_suffix('}')?.split_once('-')?;
        let (_, client) = self.clients.iter().find(|(name, _)| *name == kind)?;
        Some(if file == "key" { &client.key } else { &client.cert }.as_os_str())
    }
}

/// Starts the gateways that the scripts need.
pub fn gateways(site: &Site, needed: &[&str]) -> BTreeMap<String, Target> {
    let rsa = site.issue_rsa("conformance-rsa", &[HOST]);
    let mut all = BTreeMap::new();
    for name in needed {
        let backend = Backend::saying("hello");
        let setup = || before(site, [backend.url()]).identities(&[&rsa]);
        let mut clients = Vec::new();
        let gateway = match *name {
            "ecdsa" => before(site, [backend.url()]).start(),
            "ed25519" => before(site, [backend.url()]).identities(&[&site.issue_ed25519("ed25519", &[HOST])]).start(),
            "clients" => {
                let names = ["client.example.test"];
                clients = vec![
                    ("rsa", site.issue_rsa("conformance-client-rsa", &names)),
                    ("ec", site.issue("conformance-client-ec", &names)),
                    ("ed", site.issue_ed25519("conformance-client-ed", &names)),
                ];
                without_public_key(&clients[2].1.key);
                with_clients(site, &rsa, &backend)
            }
            "tls12" => setup().tls("versions = [\"1.2\"]").start(),
            _ => setup().start(),
        };
        all.insert((*name).to_owned(), Target { gateway, clients, _backend: backend });
    }
    all
}

/// Writes an Ed25519 key again as the first version of PKCS #8 (RFC 5958 §2): the scripts read no other version, and a key of the second
/// version has its public key beside it.
fn without_public_key(file: &Path) {
    let key = PrivateKeyDer::from_pem_file(file).expect("a key that we have written");
    // RFC 8410 §7: version, algorithm and private key, 46 bytes with version 0.
    let rest = &key.secret_der()[5..48];
    let text = base64(&[&[0x30, 46, 2, 1, 0], rest].concat());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    std::fs::write(file, pem).expect("our own file");
}

fn with_clients(site: &Site, identity: &Identity, backend: &Backend) -> Gateway {
    let (cert, key, ca) = (identity.cert.display(), identity.key.display(), site.ca.display());
    configured(
        site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             client_auth = [{{ mode = \"optional\", ca = \"{ca}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        ),
    )
}

/// A clone of tlsfuzzer.
pub struct Checkout {
    folder: PathBuf,
    /// Its commit.
    pub revision: String,
}

impl Checkout {
    /// Looks whether it is one.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let is_one = folder.join("scripts").is_dir() && folder.join("tlsfuzzer/runner.py").is_file();
        ensure!(is_one, "{} is not a clone of tlsfuzzer: it has no scripts", folder.display());
        let mut git = Command::new("git");
        git.arg("-C").arg(&folder).args(["rev-parse", "HEAD"]);
        let output = git.output().context("git")?;
        let revision = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(output.status.success(), "git rev-parse in {}: {}", folder.display(), output.status);
        Ok(Self { folder, revision })
    }

    /// The names of its scripts, in order.
    pub fn scripts(&self) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.folder.join("scripts"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("test-") && name.ends_with(".py") {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Runs a script, and reads what it says about each conversation.
    pub fn run(&self, python: &Path, script: &Script, target: &Target, output: &Path) -> anyhow::Result<Vec<Case>> {
        let mut command = Command::new(python);
        command.arg("-u").arg(folder().join("adapter.py")).args(script.ecdhe.then_some("--ecdhe"));
        command.arg(&self.folder).arg(&script.name);
        let address = target.gateway.address;
        command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
        for argument in &script.arguments {
            command.arg(target.file(argument).unwrap_or(argument.as_ref()));
        }
        // To a file: a script that writes to a full pipe stops.
        let file = std::fs::File::create(output).with_context(|| output.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().context("python")?;
        let start = Instant::now();
        let ended = loop {
            if child.try_wait()?.is_some() {
                break true;
            }
            if start.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = String::from_utf8_lossy(&std::fs::read(output)?).into_owned();
        let mut cases = cases(&text);
        if !ended || !text.contains("\nTest end") {
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            let why = if ended { last.to_owned() } else { format!("it did not end in {} s: {last}", LIMIT.as_secs()) };
            cases.push(Case { name: "(the script)".to_owned(), result: Err(why) });
        }
        Ok(cases)
    }
}

/// What a script prints: `NAME ...`, then `OK`, or `Error while processing` and a traceback. A case that runs several times, as `sanity`
/// does, counts once, and passes if each run passes.
fn cases(text: &str) -> Vec<Case> {
    // Some scripts write the name and the result into one line.
    let text = text.replace("... OK\n", " ...\nOK\n").replace("... Error encountered", " ...\nError encountered");
    let mut found: Vec<Case> = Vec::new();
    let mut name: Option<&str> = None;
    let mut error: Option<String> = None;
    let mut end = |name: &mut Option<&str>, result: Result<(), String>| {
        let Some(name) = name.take() else { return };
        match found.iter_mut().find(|case| case.name == name) {
            Some(case) if result.is_err() => case.result = result,
            Some(_) => {}
            None => found.push(Case { name: name.to_owned(), result }),
        }
    };
    for line in text.lines() {
        if let Some(next) = heading(line) {
            end(&mut name, Err(error.take().unwrap_or_else(|| "it says nothing".to_owned())));
            name = Some(next);
        } else if name.is_some() && (line == "OK" || line.starts_with("OK-")) {
            error = None;
            end(&mut name, Ok(()));
        } else if name.is_some() && is_exception(line) {
            error = Some(line.to_owned());
        } else if line == "Test end" {
            end(&mut name, Err(error.take().unwrap_or_else(|| "it says nothing".to_owned())));
        }
    }
    end(&mut name, Err(error.unwrap_or_else(|| "it does not come to its end".to_owned())));
    found
}

/// The name of the case that begins with this line: `NAME ...`, or `"NAME" repeat 0...` in scripts that run cases several times.
fn heading(line: &str) -> Option<&str> {
    if let Some((name, count)) = line.strip_prefix('"').and_then(|rest| rest.split_once("\" repeat ")) {
        return count.trim_end_matches('.').parse::<u32>().ok().map(|_| name);
    }
    line.strip_suffix(" ...").filter(|name| !name.starts_with(char::is_whitespace))
}

/// The last line of a traceback: `AssertionError: ...`, or the class of an exception alone.
fn is_exception(line: &str) -> bool {
    let class = line.split(':').next().unwrap_or_default();
    let of_python = class.ends_with("Error") || class.ends_with("Exception") || class.ends_with("timeout");
    of_python && !class.contains(' ') && class.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// How the scripts of a clone run: each once at least, in the order of their names.
pub fn plan(clone: &Checkout, expected: &Tlsfuzzer, only: &[String]) -> anyhow::Result<Vec<Script>> {
    let scripts = clone.scripts()?;
    for entry in &expected.scripts {
        ensure!(scripts.contains(&entry.name), "the clone has no script {}, which expected.toml lists", entry.name);
    }
    let wanted = |name: &String| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    Ok(scripts.iter().filter(|name| wanted(name)).flat_map(|name| expected.entries(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_prints_is_read() {
        let text = "sanity ...\nOK\n\na b: c ...\nError encountered while processing node X (child: Y) with last message being: None\n\
                    Error while processing\nTraceback (most recent call last):\n  File \"x\", line 1, in y\n    raise ...\n\
                    AssertionError: Expected alert \"x\"\n\nsanity ...\nError while processing\nTraceback\nConnectionRefusedError: [Errno 111]\n\n\
                    Test end\n====================\nTOTAL: 3\nFAILED:\n\t'a b: c'\n";
        let found = cases(text);
        let list: Vec<(&str, Option<&str>)> =
            found.iter().map(|case| (case.name.as_str(), case.result.as_ref().err().map(String::as_str))).collect();
        assert_eq!(
            list,
            [
                ("sanity", Some("ConnectionRefusedError: [Errno 111]")),
                ("a b: c", Some("AssertionError: Expected alert \"x\""))
            ]
        );
        assert_eq!(cases("a ...\nOK\nb ...\n")[1].result, Err("it does not come to its end".to_owned()));
        assert!(cases("").is_empty());
        let repeated = cases(
            "\"a\" repeat 0...\nOK\n\"a\" repeat 1...\nError while processing\nAssertionError\n\"b\" repeat 0\nOK\nc... OK\n\nTest end\n",
        );
        let list: Vec<(&str, bool)> = repeated.iter().map(|case| (case.name.as_str(), case.result.is_ok())).collect();
        assert_eq!(list, [("a", false), ("b", true), ("c", true)]);
    }
}
