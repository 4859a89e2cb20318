//! `cargo xtask release`: prepares a version and builds everything that is published, into `dist/`.
//!
//! The first step edits the changelog and the versions and commits them. The second builds in two clones of that commit, in
//! different folders, and compares the programs: a difference ends the release. Packages, archives, container images, lists of
//! components, checksums and a signature follow.

mod archive;
mod prepare;

use crate::metadata::Workspace;
use crate::programs::{self, Architecture, Linking, PROGRAMS, checked, quiet};
use crate::{components, image, package, setup};
use anyhow::{Context, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is asked for.
#[derive(clap::Args)]
pub struct Options {
    /// The version: three numbers, such as 0.2.0
    version: String,
    /// Edit and commit the version and the changelog; build nothing
    #[arg(long, conflicts_with_all = ["key", "profile", "no_images", "architecture"])]
    prepare_only: bool,
    /// Sign SHA256SUMS with this minisign key; the passphrase is asked for
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Build with this profile; releases use `dist`
    #[arg(long, value_name = "NAME", default_value = "dist")]
    profile: String,
    /// Build for these architectures [default: this machine's]
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    architecture: Vec<Architecture>,
    /// Build no container images, which need buildah
    #[arg(long)]
    no_images: bool,
}

/// Prepares the version where the workspace has another, and builds what is published.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let key = options.key.as_deref().map(fs::canonicalize).transpose().context("--key")?;
    // What would fail after an hour of building fails now.
    if key.is_some() {
        ensure!(setup::find("minisign").is_some(), "`minisign` is missing; --key needs it (Debian package minisign)");
    }
    if !(options.no_images || options.prepare_only) {
        ensure!(
            setup::find("buildah").is_some(),
            "`buildah` is missing; it builds the container images (Debian package buildah), or give --no-images"
        );
    }
    // Each of the two clones needs a folder of its own for what it builds.
    ensure!(std::env::var_os("CARGO_TARGET_DIR").is_none(), "unset CARGO_TARGET_DIR for a release");
    let unclean = quiet(git(workspace.root()).args(["status", "--porcelain"]))?;
    ensure!(unclean.is_empty(), "commit or remove these changes first:\n{unclean}");
    let version = prepare::Version::parse(&options.version)?;
    let current = prepare::Version::parse(&workspace.version()?)?;
    if version != current {
        ensure!(version > current, "the version is {current}; {version} is older");
        prepare::run(workspace, &version)?;
    }
    if options.prepare_only {
        println!("{version} is prepared. Read the commit, then build it: cargo xtask release {version}");
        return Ok(0);
    }

    let [first, second] = [clone(workspace, "first")?, clone(workspace, "the-second-one")?];
    let architectures = match options.architecture.as_slice() {
        [] => vec![Architecture::native()?],
        given => given.to_vec(),
    };
    // The programs that make packages and lists are built first: what they lack shows now, and not after the two builds.
    package::nfpm(&first)?;
    let mut built = Vec::new();
    for &architecture in &architectures {
        let lists = components::write(&first, architecture)?;
        let one = build(&first, &options.profile, architecture)?;
        compare(&one, &build(&second, &options.profile, architecture)?)?;
        built.push((one, lists));
    }
    fs::remove_dir_all(second.root()).with_context(|| second.root().display().to_string())?;

    let out = workspace.root().join("dist");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    fs::create_dir_all(&out)?;
    for (Built { packages, with_everything, architecture }, lists) in built {
        for file in package::build(&first, &packages, None, false, architecture)? {
            keep(&file, &out)?;
        }
        for (program, _) in PROGRAMS {
            if *program != programs::IN_IMAGE_ONLY {
                archive::write(&first, &with_everything, program, &out, architecture)?;
            }
            let list = components::file_name(program);
            let name = format!("{program}-{version}-linux-{}.cdx.json", architecture.name());
            fs::copy(lists.join(&list), out.join(name)).context(list)?;
        }
        if !options.no_images {
            let folder = first.target().join("image");
            for file in image::build(&first, &with_everything, &folder, &lists, architecture)? {
                keep(&file, &out)?;
            }
        }
    }
    let sums = programs::checksums(&out)?;
    if let Some(key) = key {
        let comment = format!("Sealane {version}");
        checked(Command::new("minisign").arg("-S").arg("-s").arg(key).args(["-t", &comment, "-m"]).arg(&sums))?;
        println!("{}.minisig", sums.display());
    }
    fs::remove_dir_all(first.root()).with_context(|| first.root().display().to_string())?;
    Ok(0)
}

/// The two folders with programs that one clone gives.
struct Built {
    /// For packages.
    packages: PathBuf,
    /// With the C library inside: for archives and images.
    with_everything: PathBuf,
    architecture: Architecture,
}

fn build(clone: &Workspace, profile: &str, architecture: Architecture) -> anyhow::Result<Built> {
    Ok(Built {
        packages: programs::build(clone, profile, Linking::Dynamic, architecture)?,
        with_everything: programs::build(clone, profile, Linking::Static, architecture)?,
        architecture,
    })
}

/// Fails unless two builds of the same commit gave the same programs.
fn compare(one: &Built, other: &Built) -> anyhow::Result<()> {
    let mut different = Vec::new();
    for (folder, of) in [(&one.packages, &other.packages), (&one.with_everything, &other.with_everything)] {
        for (program, _) in PROGRAMS {
            let [a, b] = [folder.join(program), of.join(program)];
            let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
            if read(&a)? != read(&b)? {
                different.push(format!("{} and {}", a.display(), b.display()));
            }
        }
    }
    if !different.is_empty() {
        bail!(
            "two builds of the same commit differ, so nobody could check what is published: {}",
            different.join(", ")
        );
    }
    println!("both builds gave the same programs");
    Ok(())
}

/// What clones share with the workspace: programs that build packages, and compilers, but nothing that was compiled.
const SHARED: [&str; 2] = ["tools", "cross"];

/// A clone of HEAD in a folder of its own under target/release-build.
fn clone(workspace: &Workspace, name: &str) -> anyhow::Result<Workspace> {
    let folder = workspace.target().join("release-build").join(name).join("sealane");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder)?;
    quiet(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(workspace.root()).arg(&folder))?;
    fs::create_dir(folder.join("target"))?;
    for shared in SHARED {
        let original = workspace.target().join(shared);
        fs::create_dir_all(&original)?;
        std::os::unix::fs::symlink(&original, folder.join("target").join(shared))?;
    }
    Workspace::load_in(&folder)
}

fn keep(file: &Path, folder: &Path) -> anyhow::Result<()> {
    let name = file.file_name().with_context(|| file.display().to_string())?;
    fs::copy(file, folder.join(name)).with_context(|| file.display().to_string())?;
    Ok(())
}

fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root);
    command
}
