//! The batch systems whose scripts `hq import` and `hq submit` read.

use clap::ValueEnum;

/// A batch system whose scripts can be read.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum System {
    /// `#SBATCH` lines
    #[default]
    Slurm,
    /// `#PBS` lines
    Pbs,
    /// `#BSUB` lines
    Lsf,
}
