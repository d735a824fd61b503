//! Builds and runs the programs that are compared. Does not know the questions.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::baseline;

/// The compiled programs.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The program that the contestants run.
    pub(crate) child: PathBuf,
    /// The directory for files of the measurements.
    pub(crate) dir: PathBuf,
    /// The command of each language that was asked for, or why it is missing.
    commands: BTreeMap<Language, std::result::Result<Vec<PathBuf>, String>>,
}

/// The language of a contestant's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Language {
    /// `baseline/spawn_mech.c`
    C,
    /// `baseline/spawn.cpp`
    Cpp,
    /// `crates/spawn/examples/spawn_contestant`
    Rust,
    /// `baseline/popen.py`
    Python,
    /// `baseline/spawn.go`
    Go,
    /// `baseline/Spawn.java`
    Java,
}

impl Language {
    /// Builds the program of a language. Returns the command that starts it.
    fn build(self, dir: &Path) -> Result<Vec<PathBuf>> {
        let binary = dir.join("contestant");
        let source = |name: &str| baseline::source(name);
        match self {
            Self::C => Ok(vec![baseline::compile(dir, "spawn_mech", &["-pthread"])?]),
            Self::Rust => Ok(vec![rust()?]),
            Self::Cpp => {
                let binary = binary.with_extension("cpp");
                let mut compiler = Command::new("c++");
                compiler.args(["-O2", "-std=c++17", "-o"]);
                succeed(compiler.arg(&binary).arg(source("spawn.cpp")))?;
                Ok(vec![binary])
            }
            Self::Python => {
                let check = "import sys; sys.exit('3.11 or later is needed, it is ' + sys.version.split()[0] \
                             if sys.version_info < (3, 11) else 0)";
                succeed(Command::new("python3").args(["-c", check]))?;
                Ok(vec!["python3".into(), source("popen.py")])
            }
            Self::Go => {
                let binary = binary.with_extension("go");
                let mut compiler = Command::new("go");
                compiler.args(["build", "-o"]).env("GO111MODULE", "off");
                succeed(compiler.arg(&binary).arg(source("spawn.go")))?;
                Ok(vec![binary])
            }
            Self::Java => {
                succeed(Command::new("java").arg("-version"))?;
                let mut compiler = Command::new("javac");
                succeed(compiler.arg("-d").arg(dir).arg(source("Spawn.java")))?;
                // The old generation holds the burden. It has two thirds of the heap.
                let words = ["java", "-Xmx10g", "-XX:+UseSerialGC", "-cp"];
                let words = words.map(PathBuf::from).into_iter();
                Ok(words.chain([dir.into(), "Spawn".into()]).collect())
            }
        }
    }
}

/// Builds the program in Rust, in the target directory of this program.
fn rust() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--package=hq-spawn"])
        .args(["--features=tokio", "--example=spawn_contestant"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "cannot build the contestants in Rust");
    let examples = std::env::current_exe()?.with_file_name("examples");
    Ok(examples.join("spawn_contestant"))
}

/// Runs a program. The error is what it wrote to standard error.
fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("there is no `{name}`"),
        output => output.with_context(|| format!("cannot run `{name}`"))?,
    };
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", text.trim());
    Ok(())
}

/// One way to spawn processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contestant {
    /// The name in tables and plots.
    pub(crate) label: &'static str,
    /// The program that contains the mechanism.
    pub(crate) language: Language,
    /// The mechanism's name in that program.
    pub(crate) mechanism: &'static str,
    /// Other variations of the question, such as how the program is named.
    pub(crate) variant: &'static str,
}

/// The arguments and the environment of a contestant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting {
    /// Arguments in the form `key=value`.
    pub(crate) args: Vec<String>,
    /// The contestant's own environment variables.
    pub(crate) env: Vec<(String, String)>,
    /// Whether the contestant does not take part at this point.
    pub(crate) skip: bool,
}

impl Setting {
    /// Returns the value of an argument.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let mut args = self.args.iter();
        args.find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns the value of an argument that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }
}

impl Programs {
    /// Builds the programs in these languages, most of them in `dir`.
    pub(crate) fn build(dir: &Path, languages: impl Iterator<Item = Language>) -> Result<Self> {
        let mut commands = BTreeMap::new();
        for language in languages {
            commands.entry(language).or_insert_with(|| {
                let built = language.build(dir);
                built.map_err(|error| format!("{error:#}"))
            });
        }
        // The questions are about these two.
        for needed in [Language::C, Language::Rust] {
            if let Some(Err(error)) = commands.get(&needed) {
                bail!("{error}");
            }
        }
        Ok(Self {
            child: baseline::compile(dir, "spawn_child", &["-static"])?,
            dir: dir.into(),
            commands,
        })
    }

    /// Returns the command of a language, or why there is none.
    pub(crate) fn command(&self, language: Language) -> Result<&[PathBuf]> {
        match self.commands.get(&language) {
            Some(Ok(command)) => Ok(command),
            Some(Err(reason)) => bail!("missing: {reason}"),
            None => bail!("missing: nothing asked for {language:?}"),
        }
    }

    /// Runs a contestant. Returns its output, and the sorted values that its processes wrote.
    pub(crate) fn run(
        &self,
        contestant: &Contestant,
        setting: &Setting,
    ) -> Result<(Vec<f64>, Vec<i64>)> {
        let [program, first @ ..] = self.command(contestant.language)? else {
            bail!("a command without a program");
        };
        let written = self.dir.join("written");
        File::create(&written)?;
        let output = Command::new(program)
            .args(first)
            .arg(contestant.mechanism)
            .args(&setting.args)
            .envs(setting.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(OpenOptions::new().append(true).open(&written)?)
            .output()
            .with_context(|| format!("cannot run {}", contestant.label))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let numbers: Option<Vec<f64>> = text
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        let Some(numbers) = numbers.filter(|_| output.status.success()) else {
            bail!("{}", text.trim());
        };
        let bytes = std::fs::read(&written)?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut words: Vec<i64> = words.iter().map(|word| i64::from_ne_bytes(*word)).collect();
        words.sort_unstable();
        Ok((numbers, words))
    }
}
