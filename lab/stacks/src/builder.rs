//! Builds stacks and workers into the user's cache, each once, each with its log.
//!
//! A stack's library lies in `built/NAME-NUMBER/lib`, where the number stands for its source and recipe; an interrupted
//! build goes on in `built/NAME-NUMBER/tree`. Workers, the fixed peer and the lock counter lie in `bin`, with a number
//! for their sources. Two builders of the same thing wait for each other.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use crate::catalogue::{Source, Stack};
use crate::logged::{run, run_telling, seconds};
use crate::recipe::{self, Recipe, Step};
use crate::sources;

/// Why something could not be built.
#[derive(Debug)]
pub enum BuildError {
    /// Programs are missing; the text names them and their Debian packages.
    Missing(String),
    /// A command failed.
    Failed {
        /// What was run.
        command: String,
        /// Where everything that it printed is.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// Something else, in words.
    Other(String),
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::Missing(what) => write!(f, "missing: {what}"),
            BuildError::Failed { command, log, tail } => {
                write!(f, "`{command}` failed; the log is {}. Its end:\n{tail}", log.display())
            }
            BuildError::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<std::io::Error> for BuildError {
    fn from(why: std::io::Error) -> Self {
        BuildError::Other(why.to_string())
    }
}

/// A stack that can be run.
#[derive(Clone, Debug)]
pub struct Built {
    /// Which.
    pub stack: Stack,
    /// The worker's executable.
    pub worker: PathBuf,
    /// The folder or file of the library, where the worker loads one.
    pub library: Option<PathBuf>,
}

/// The user's cache.
#[derive(Clone, Debug)]
pub struct Builder {
    root: PathBuf,
    target: PathBuf,
    jobs: usize,
}

impl Builder {
    /// In `SEALANE_STACKS_DIR`, else in `sealane-lab/stacks` of the user's cache folder. Workers are compiled in
    /// `SEALANE_STACKS_TARGET`, else in a folder of that; a build tree of this workspace has their costly dependencies
    /// already.
    pub fn new(jobs: Option<usize>) -> Result<Self, BuildError> {
        let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = folder("SEALANE_STACKS_DIR")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("sealane-lab/stacks")))
            .or_else(|| Some(folder("HOME")?.join(".cache/sealane-lab/stacks")))
            .ok_or_else(|| {
                BuildError::Other(
                    "there is no folder for the builds: set HOME, XDG_CACHE_HOME or SEALANE_STACKS_DIR".into(),
                )
            })?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let root = std::path::absolute(root)?;
        let target = folder("SEALANE_STACKS_TARGET").map_or_else(|| Ok(root.join("target")), std::path::absolute)?;
        Ok(Self { root, target, jobs: jobs.unwrap_or(cores).max(1) })
    }

    /// The folder of it all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What is there of a stack already, without building.
    pub fn ready(&self, stack: &Stack) -> Option<Built> {
        let worker = self.worker_path(&stack.worker);
        let library = match (&stack.source, stack.path(), &stack.system) {
            (_, Some(path), _) => Some(path),
            (Some(_), ..) => Some(self.stack_folder(stack).join("lib")),
            (None, None, Some(system)) => Some(system.find()?),
            (None, None, None) => None,
        };
        let there = worker.is_file() && library.as_ref().is_none_or(|path| path.exists());
        there.then(|| Built { stack: stack.clone(), worker, library })
    }

    /// Builds a stack and its worker, or finds them built. `say` is told what is going on.
    pub fn build(&self, stack: &Stack, say: &mut dyn FnMut(&str)) -> Result<Built, BuildError> {
        if let Some(system) = stack.system.as_ref().filter(|system| system.find().is_none()) {
            return Err(BuildError::Missing(format!("{} (Debian package {})", system.library, system.package)));
        }
        self.worker(&stack.worker, say)?;
        if stack.source.is_some() {
            self.library(stack, say)?;
        }
        self.ready(stack).ok_or_else(|| BuildError::Other(format!("{}: the build made no library", stack.name)))
    }

    /// Builds stacks, two at a time unless only one compiler may run: while one is configured, fetched or linked, the
    /// other compiles. `say` is told the number and what is going on; the answers are in the stacks' order.
    pub fn build_all(&self, stacks: &[Stack], say: &(dyn Fn(usize, &str) + Sync)) -> Vec<Result<Built, BuildError>> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut done = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some(stack) = stacks.get(n) else { return done };
                let built = self.build(stack, &mut |what| say(n, what));
                match &built {
                    Ok(_) => say(n, "ready"),
                    Err(why) => say(n, &format!("failed: {why}")),
                }
                done.push((n, built));
            }
        };
        let mut all = std::thread::scope(|scope| {
            let second = (self.jobs > 1 && stacks.len() > 1).then(|| scope.spawn(worker));
            let mut all = worker();
            match second.map(std::thread::ScopedJoinHandle::join) {
                Some(Ok(more)) => all.extend(more),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None => {}
            }
            all
        });
        all.sort_by_key(|(n, _)| *n);
        all.into_iter().map(|(_, built)| built).collect()
    }

    fn stack_folder(&self, stack: &Stack) -> PathBuf {
        let what = format!(
            "{:?}{:?}{}",
            stack.source,
            stack.recipe.as_ref().map(|r| recipe::recipe(r, 1)),
            sources::provision(&stack.name, "Cargo.lock").unwrap_or_default()
        );
        self.root.join("built").join(format!("{}-{}", stack.name, sources::fingerprint(&[], &what)))
    }

    fn library(&self, stack: &Stack, say: &mut dyn FnMut(&str)) -> Result<(), BuildError> {
        let (Some(source), Some(name)) = (&stack.source, &stack.recipe) else { return Ok(()) };
        let folder = self.stack_folder(stack);
        fs::create_dir_all(&folder)?;
        let _lock = exclusive(&folder.join("lock"))?;
        if folder.join("lib").is_dir() {
            return Ok(());
        }
        let recipe = recipe::recipe(name, self.jobs).map_err(BuildError::Other)?;
        let missing = recipe::missing(recipe.needs);
        if !missing.is_empty() {
            let named: Vec<_> =
                missing.iter().map(|p| format!("{p} (Debian package {})", recipe::package(p))).collect();
            return Err(BuildError::Missing(named.join(", ")));
        }
        let log = folder.join("build.log");
        let tree = folder.join("tree");
        if !folder.join("fetched").is_file() {
            let carrier = match source.own() {
                // An absolute path: it stands for itself wherever it is joined to.
                Some(_) => PathBuf::new(),
                None => {
                    say("fetching the source");
                    self.fetch(stack, source, &log)?
                }
            };
            let _ = fs::remove_dir_all(&tree);
            unpack_source(source, &carrier, &tree, &log)?;
            File::create(folder.join("fetched"))?;
        }
        let start = Instant::now();
        self.steps(&recipe, &folder, &tree, &log, say)?;
        let partial = folder.join("lib.partial");
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial)?;
        for (from, to) in recipe.outputs {
            let from = tree.join(from);
            fs::copy(&from, partial.join(to))
                .map_err(|e| BuildError::Other(format!("the build did not make {}: {e}", from.display())))?;
        }
        fs::rename(&partial, folder.join("lib"))?;
        // Some hundred MB each, and of no more use.
        fs::remove_dir_all(&tree)?;
        say(&format!("built in {}", seconds(start.elapsed())));
        Ok(())
    }

    fn steps(
        &self,
        recipe: &Recipe,
        folder: &Path,
        tree: &Path,
        log: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), BuildError> {
        for (n, step) in recipe.steps.iter().enumerate() {
            let done = folder.join(format!("step-{n}"));
            if step.once && done.is_file() {
                continue;
            }
            say(&format!("{} {}", step.program, step.arguments.first().map_or("", String::as_str)));
            run_telling(command(step, tree), log, say)?;
            if step.once {
                File::create(done)?;
            }
        }
        Ok(())
    }

    /// Has cargo fetch the crate that carries the source, and finds it.
    fn fetch(&self, stack: &Stack, source: &Source, log: &Path) -> Result<PathBuf, BuildError> {
        let manifest = self.sources()?.join("provision").join(sources::provision_name(&stack.name)).join("Cargo.toml");
        let host = host()?;
        let mut fetch = cargo();
        fetch.args(["fetch", "--locked", "--target", &host, "--manifest-path"]).arg(&manifest);
        run(fetch, log)?;
        let mut metadata = cargo();
        metadata
            .args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", &host])
            .arg("--manifest-path")
            .arg(&manifest);
        let output = metadata.output()?;
        let document: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| BuildError::Other(String::from_utf8_lossy(&output.stderr).into_owned()))?;
        let found = document["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|p| p["name"] == source.package.as_str() && p["version"] == source.version.as_str())
            .and_then(|p| Path::new(p["manifest_path"].as_str()?).parent().map(Path::to_owned));
        found.ok_or_else(|| {
            BuildError::Other(format!("cargo metadata does not list {} {}", source.package, source.version))
        })
    }

    /// Writes the sources out and returns their folder.
    fn sources(&self) -> Result<PathBuf, BuildError> {
        let folder = self.root.join("src");
        fs::create_dir_all(&folder)?;
        let _lock = exclusive(&self.root.join("src.lock"))?;
        sources::unpack(&folder)?;
        Ok(folder)
    }

    fn worker_path(&self, worker: &str) -> PathBuf {
        let (crate_name, features) = worker_crate(worker);
        let own = format!("workers/{crate_name}/");
        let number = sources::fingerprint(&["workers/frame/", &own], features);
        self.root.join("bin").join(format!("{worker}-{number}"))
    }

    /// Builds a worker.
    pub fn worker(&self, worker: &str, say: &mut dyn FnMut(&str)) -> Result<PathBuf, BuildError> {
        let (crate_name, features) = worker_crate(worker);
        let path = self.worker_path(worker);
        self.cargo_build(crate_name, features, &format!("stack-{crate_name}"), &path, say)?;
        Ok(path)
    }

    /// Builds the fixed peer.
    pub fn peer(&self, say: &mut dyn FnMut(&str)) -> Result<PathBuf, BuildError> {
        let number = sources::fingerprint(&["workers/peer/"], "");
        let path = self.root.join("bin").join(format!("peer-{number}.so"));
        self.cargo_build("peer", "", "libstack_peer.so", &path, say)?;
        Ok(path)
    }

    fn cargo_build(
        &self,
        crate_name: &str,
        features: &str,
        output: &str,
        path: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), BuildError> {
        // Before the lock too: what is there need not wait for what another process compiles.
        if path.is_file() {
            return Ok(());
        }
        let bin = self.root.join("bin");
        fs::create_dir_all(&bin)?;
        let _lock = exclusive(&bin.join("lock"))?;
        if path.is_file() {
            return Ok(());
        }
        say(&format!("compiling {crate_name} {features}"));
        let manifest = self.sources()?.join("workers").join(crate_name).join("Cargo.toml");
        let target = &self.target;
        let mut build = cargo();
        build.args(["build", "--release", "--locked", "--manifest-path"]).arg(manifest);
        build.arg("--target-dir").arg(target).args(["--features", features, "-j", &self.jobs.to_string()]);
        run_telling(build, &bin.join(format!("{crate_name}.log")), say)?;
        install(&target.join("release").join(output), path)
    }

    /// The lock counter, compiled with the system's C compiler.
    pub fn lock_counter(&self) -> Result<PathBuf, BuildError> {
        self.preload("locks")
    }

    /// What samples the code that a worker runs; likewise.
    pub fn path_sampler(&self) -> Result<PathBuf, BuildError> {
        self.preload("paths")
    }

    fn preload(&self, name: &str) -> Result<PathBuf, BuildError> {
        let bin = self.root.join("bin");
        fs::create_dir_all(&bin)?;
        let _lock = exclusive(&bin.join("lock"))?;
        let file = format!("preload/{name}.c");
        let path = bin.join(format!("{name}-{}.so", sources::fingerprint(&[&file], "")));
        if path.is_file() {
            return Ok(path);
        }
        if !recipe::missing(&["cc"]).is_empty() {
            return Err(BuildError::Missing("cc (Debian package gcc), to compile the preloaded library".into()));
        }
        let source = self.sources()?.join(file);
        let fresh = bin.join(format!("{name}.so.new"));
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&fresh).arg(source).arg("-ldl");
        run(compile, &bin.join(format!("{name}.log")))?;
        fs::rename(&fresh, &path)?;
        Ok(path)
    }

    /// Removes everything that was built; the bytes that this freed.
    pub fn clean(&self) -> Result<u64, BuildError> {
        let freed = size(&self.root);
        // Only what this builder makes: the folder may have been chosen badly.
        for name in ["built", "bin", "target", "src", "certs", "certs-2", "certs.new", "certs.lock", "tmp", "src.lock"]
        {
            let path = self.root.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        Ok(freed)
    }
}

/// The crate and the features behind a worker's name.
fn worker_crate(worker: &str) -> (&str, &str) {
    worker.strip_prefix("rustls-").map_or((worker, ""), |features| ("rustls", features))
}

fn unpack_source(source: &Source, carrier: &Path, tree: &Path, log: &Path) -> Result<(), BuildError> {
    if let Some(folder) = &source.folder {
        let from = carrier.join(folder);
        return recipe::copy_tree(&from, tree).map_err(|e| BuildError::Other(format!("{}: {e}", from.display())));
    }
    let Some(tarball) = &source.tarball else {
        return Err(BuildError::Other("a source without folder or archive".into()));
    };
    fs::create_dir_all(tree)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(carrier.join(tarball)).args(["--strip-components=1", "-C"]).arg(tree);
    run(tar, log)
}

fn command(step: &Step, tree: &Path) -> Command {
    let mut command = Command::new(step.program);
    command.args(&step.arguments).current_dir(tree.join(step.folder));
    command
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A target of the user's own choosing is not where the result is looked for.
    command.env_remove("CARGO_BUILD_TARGET").env_remove("CARGO_TARGET_DIR");
    command
}

/// This machine's name for cargo.
fn host() -> Result<String, BuildError> {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
    host.ok_or_else(|| BuildError::Other("rustc does not name this machine".into()))
}

fn install(from: &Path, to: &Path) -> Result<(), BuildError> {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).map_err(|e| BuildError::Other(format!("{}: {e}", from.display())))?;
    fs::rename(fresh, to)?;
    Ok(())
}

/// Held as long as the file is: others wait.
fn exclusive(path: &Path) -> Result<File, BuildError> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    file.lock()?;
    Ok(file)
}

fn size(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder(root: &Path) -> Builder {
        Builder { root: root.to_owned(), target: root.join("target"), jobs: 1 }
    }

    #[test]
    fn nothing_is_ready_before_it_is_built_and_clean_keeps_what_is_not_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        let builder = builder(folder.path());
        let stack = &crate::catalogue::catalogue().stacks[0];
        assert!(builder.ready(stack).is_none());
        fs::write(folder.path().join("mine"), "kept").expect("written");
        fs::create_dir_all(builder.stack_folder(stack).join("lib")).expect("made");
        fs::create_dir_all(folder.path().join("bin")).expect("made");
        fs::write(builder.worker_path("openssl"), "x").expect("written");
        assert!(builder.ready(stack).is_some());
        assert!(builder.clean().expect("cleaned") >= 5);
        assert!(builder.ready(stack).is_none() && folder.path().join("mine").is_file());
    }

    #[test]
    fn a_step_that_is_done_is_not_done_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let step =
            |text: &str, once| Step { program: "sh", arguments: vec!["-c".into(), text.into()], folder: "", once };
        let recipe = Recipe {
            needs: &[],
            steps: vec![step("echo a >> once", true), step("echo a >> always; test -e go", false)],
            outputs: &[],
        };
        let (builder, log) = (builder(folder.path()), folder.path().join("log"));
        let go = |builder: &Builder| builder.steps(&recipe, folder.path(), folder.path(), &log, &mut |_| {});
        go(&builder).expect_err("the second step fails");
        fs::write(folder.path().join("go"), "").expect("written");
        go(&builder).expect("it goes on");
        let lines = |name: &str| fs::read_to_string(folder.path().join(name)).expect("written").lines().count();
        assert_eq!((lines("once"), lines("always")), (1, 2));
    }

    #[test]
    fn an_archive_of_ones_own_is_built_by_its_recipe() {
        if !recipe::missing(&["tar", "make", "cc"]).is_empty() {
            println!("skipped: no tar, make or cc");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("libressl-0.1");
        for (part, output) in [("include", ""), ("crypto", "libcrypto.so"), ("ssl", "libssl.so")] {
            fs::create_dir_all(source.join(part).join(".libs")).expect("made");
            let makes = if output.is_empty() { String::new() } else { format!("\techo {part} > .libs/{output}\n") };
            fs::write(source.join(part).join("Makefile"), format!("all:\n{makes}")).expect("written");
        }
        fs::write(source.join("configure"), "test \"$1\" = --disable-static\n").expect("written");
        let archive = folder.path().join("libressl-0.1.tar.gz");
        let mut pack = Command::new("tar");
        pack.arg("-czf").arg(&archive).arg("-C").arg(folder.path()).arg("libressl-0.1");
        assert!(pack.status().expect("it runs").success());
        let (stack, builder) = (Stack::archive(&archive).expect("one"), builder(&folder.path().join("cache")));
        builder.library(&stack, &mut |_| {}).expect("built");
        let built = builder.stack_folder(&stack);
        assert_eq!(fs::read_to_string(built.join("lib/libssl.so")).expect("there"), "ssl\n");
        assert!(built.join("lib/libcrypto.so").is_file() && !built.join("tree").exists());
    }

    #[test]
    fn all_are_tried_by_one_or_by_two_and_answers_keep_their_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let absent = |name: &str| Stack {
            system: Some(crate::catalogue::System { library: format!("lib{name}.so"), package: format!("{name}-dev") }),
            ..Stack::installed(Path::new(name))
        };
        let stacks = ["nowhere-a", "nowhere-b", "nowhere-c"].map(absent);
        for jobs in [1, 2] {
            let said = std::sync::Mutex::new(Vec::new());
            let say = |n: usize, what: &str| said.lock().expect("whole").push((n, what.to_owned()));
            let done = Builder { jobs, ..builder(folder.path()) }.build_all(&stacks, &say);
            assert_eq!(done.len(), 3);
            for (built, stack) in done.iter().zip(&stacks) {
                let why = built.as_ref().expect_err("there is no such library").to_string();
                assert!(why.contains(&format!("{}-dev", stack.name)), "{why}");
            }
            let mut said = said.into_inner().expect("whole");
            said.sort();
            assert_eq!(said.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 1, 2]);
        }
    }

    #[test]
    fn workers_with_features_are_one_crate() {
        assert_eq!(worker_crate("rustls-aws-lc"), ("rustls", "aws-lc"));
        assert_eq!(worker_crate("openssl"), ("openssl", ""));
    }
}
