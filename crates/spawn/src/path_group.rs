//! Which requests are likely to hang together: those that go to the same places.
//!
//! A file system that does not answer holds up every thread that opens a file there. Others can be told apart before they are tried
//! by the directories that they name. Nothing is looked up for that: the look would hang as well.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::plan::{SpawnPlan, Stdio};

/// Where a creation goes: working directory, the directories of program and streams, and whether something is to be
/// prepared. Equal ones go to the same places; by chance, with next to no probability, others do as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kin(u64);

impl Kin {
    pub(crate) fn of(plan: &SpawnPlan) -> Self {
        let cwd = plan.cwd.as_deref();
        let mut hasher = DefaultHasher::new();
        let mut add = |place: Option<&[u8]>| place.hash(&mut hasher);
        add(cwd.map(|cwd| cwd.as_os_str().as_bytes()));
        add(plan.preparation.is_some().then_some(&[]));
        let program = plan.argv.program();
        // A bare name is looked for in the same directories by all.
        let is_path = program.as_bytes().contains(&b'/');
        add(is_path.then(|| place_of(program, cwd)));
        for stdio in [&plan.stdin, &plan.stdout, &plan.stderr] {
            add(match stdio {
                Stdio::File { path } => Some(place_of(path.as_os_str(), cwd)),
                Stdio::Null | Stdio::Inherit | Stdio::Fd(_) | Stdio::Bytes(_) => None,
            });
        }
        Self(hasher.finish())
    }
}

/// The directory of a file; empty for all below the working directory, where each task may have one of its own.
fn place_of<'a>(path: &'a OsStr, cwd: Option<&Path>) -> &'a [u8] {
    let path = path.as_bytes();
    let is_below = |cwd: &Path| {
        let rest = path.strip_prefix(cwd.as_os_str().as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    if !path.starts_with(b"/") || cwd.is_some_and(is_below) {
        return &[];
    }
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    // The root itself is not the empty one.
    path.get(..end.max(1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ArgBlock, EnvBlock};

    fn plan(program: &str, stdout: &str) -> SpawnPlan {
        let argv = ArgBlock::new([program]).unwrap();
        let path = stdout.into();
        SpawnPlan::new(argv, EnvBlock::empty())
            .cwd("/own/a")
            .stdout(Stdio::File { path })
    }

    #[test]
    fn what_goes_to_the_same_directories_is_kin() {
        let kin = |program, stdout| Kin::of(&plan(program, stdout));
        let of_one = kin("true", "/data/run/0.out");
        assert_eq!(of_one, kin("false", "/data/run/1.out"));
        for other in [
            kin("true", "/data/0.out"),
            kin("true", "/0.out"),
            kin("true", "0.out"),
            kin("/data/run/true", "/data/run/0.out"),
            Kin::of(&plan("true", "/data/run/0.out").stdout(Stdio::Null)),
            Kin::of(&plan("true", "/data/run/0.out").cwd("/own")),
            Kin::of(&plan("true", "/data/run/0.out").prepare(|_| Ok(()))),
        ] {
            assert_ne!(of_one, other);
        }
    }

    #[test]
    fn outputs_below_the_working_directory_are_in_one_place() {
        let kin = |stdout| Kin::of(&plan("true", stdout));
        assert_eq!(kin("/own/a/job-1/0.out"), kin("job-2/7.out"));
        assert_ne!(kin("/own/a/job-1/0.out"), kin("/own/ab/0.out"));
    }
}
