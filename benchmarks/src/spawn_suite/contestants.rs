//! Builds and runs the programs that are compared. Does not know the questions.

use std::fs::{File, OpenOptions};
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
    c: PathBuf,
    rust: PathBuf,
    /// Why Python does not take part; `None` if it does.
    pub(crate) no_python: Option<String>,
}

/// The language of a contestant's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// `baseline/spawn_mech.c`
    C,
    /// `crates/spawn/examples/spawn_contestant.rs`
    Rust,
    /// `baseline/popen.py`
    Python,
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
}

impl Programs {
    /// Compiles the C programs into `dir`, and the Rust program into the target directory of this
    /// program.
    pub(crate) fn build(dir: &Path) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--release", "--package=hq-spawn"])
            .args(["--features=tokio", "--example=spawn_contestant"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .context("cannot run cargo")?;
        ensure!(built.success(), "cannot build the contestants in Rust");
        let rust = std::env::current_exe()?.with_file_name("examples");
        let python = Command::new("python3")
            .args([
                "-c",
                "import sys; sys.exit('it is ' + sys.version.split()[0] if sys.version_info < (3, 11) else 0)",
            ])
            .output();
        let no_python = match python {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        };
        Ok(Self {
            child: baseline::compile(dir, "spawn_child", &["-static"])?,
            dir: dir.into(),
            c: baseline::compile(dir, "spawn_mech", &["-pthread"])?,
            rust: rust.join("spawn_contestant"),
            no_python,
        })
    }

    /// Returns whether the contestant can run here.
    pub(crate) fn has(&self, contestant: &Contestant) -> bool {
        contestant.language != Language::Python || self.no_python.is_none()
    }

    /// Runs a contestant. Returns its output, and the sorted values that its processes wrote.
    pub(crate) fn run(
        &self,
        contestant: &Contestant,
        setting: &Setting,
    ) -> Result<(Vec<f64>, Vec<i64>)> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline/popen.py");
        let mut command = match contestant.language {
            Language::C => Command::new(&self.c),
            Language::Rust => Command::new(&self.rust),
            Language::Python => Command::new("python3"),
        };
        if contestant.language == Language::Python {
            command.arg(script);
        }
        let written = self.dir.join("written");
        File::create(&written)?;
        let output = command
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
            bail!("{} {:?}: {text}", contestant.label, setting.args);
        };
        let bytes = std::fs::read(&written)?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut words: Vec<i64> = words.iter().map(|word| i64::from_ne_bytes(*word)).collect();
        words.sort_unstable();
        Ok((numbers, words))
    }
}
