//! Options that several commands have.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::processes::Cluster;

/// The program to measure.
#[derive(Args, Clone)]
pub(crate) struct Hq {
    /// The hq to measure [default: the one next to this program].
    #[arg(long = "hq", value_name = "PATH", value_parser = |text: &str| existing(text))]
    path: Option<PathBuf>,
}

impl Hq {
    pub(crate) fn path(&self) -> Result<PathBuf> {
        if let Some(path) = &self.path {
            return Ok(path.clone());
        }
        let path = std::env::current_exe()?.with_file_name("hq");
        let advice = || format!("cannot find {}; build it, or use --hq", path.display());
        existing(&path).with_context(advice)
    }
}

/// The programs to compare, and how often.
#[derive(Args)]
pub(crate) struct Contestants {
    #[command(flatten)]
    hq: Hq,
    /// Another program with hq's command line, which takes its turn in every round; can be repeated.
    #[arg(long = "peer", value_name = "LABEL=PATH", value_parser = labelled)]
    peers: Vec<(String, PathBuf)>,
    /// The number of rounds that count.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: u32,
    /// The number of cpus of a worker, and of tasks at a time.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) cpus: u32,
}

impl Contestants {
    /// Starts a server and a worker of each program. hq is the first.
    pub(crate) fn start(&self, dir: &Path) -> Result<Vec<(String, Cluster)>> {
        let hq = ("hq".to_owned(), self.hq.path()?);
        let all = [hq].into_iter().chain(self.peers.iter().cloned());
        let start = |(label, path): (String, PathBuf)| {
            let cluster = Cluster::start(&path, &dir.join(&label), self.cpus, &[])?;
            Ok((label, cluster))
        };
        all.map(start).collect()
    }
}

/// Returns the absolute path of a file, because servers and workers run in other directories.
fn existing(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    std::fs::canonicalize(path)
}

fn labelled(text: &str) -> Result<(String, PathBuf)> {
    let (label, path) = text.split_once('=').context("it has no `=`")?;
    Ok((label.to_owned(), existing(path)?))
}
