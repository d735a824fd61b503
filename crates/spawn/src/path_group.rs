//! Groups requests that are likely to hang together, based on the paths that they access.
//!
//! A file system that does not respond blocks every thread that opens a file on it. The directories
//! in a request show in advance whether it accesses the same file system. They are only compared
//! and not looked up, because the look-up would hang as well.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::plan::{SpawnPlan, Stdio};

/// Identifies the paths that a creation uses: the working directory and the directories of the
/// program and the streams, and whether there is preparation to do. Equal values mean equal paths,
/// except for hash collisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathGroup(u64);

impl PathGroup {
    pub(crate) fn of(plan: &SpawnPlan) -> Self {
        let cwd = plan.cwd.as_deref();
        let mut hasher = DefaultHasher::new();
        let mut add = |place: Option<&[u8]>| place.hash(&mut hasher);
        add(cwd.map(|cwd| cwd.as_os_str().as_bytes()));
        add(plan.preparation.is_some().then_some(&[]));
        let program = plan.argv.program();
        // All tasks look up a bare program name in the same directories.
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

/// Returns the directory of a file. Returns an empty path for any file below the working directory,
/// where each task may have its own directory.
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
    // The root itself must differ from the empty path.
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
        let path_group = |program, stdout| PathGroup::of(&plan(program, stdout));
        let of_one = path_group("true", "/data/run/0.out");
        assert_eq!(of_one, path_group("false", "/data/run/1.out"));
        for other in [
            path_group("true", "/data/0.out"),
            path_group("true", "/0.out"),
            path_group("true", "0.out"),
            path_group("/data/run/true", "/data/run/0.out"),
            PathGroup::of(&plan("true", "/data/run/0.out").stdout(Stdio::Null)),
            PathGroup::of(&plan("true", "/data/run/0.out").cwd("/own")),
            PathGroup::of(&plan("true", "/data/run/0.out").prepare(|_| Ok(()))),
        ] {
            assert_ne!(of_one, other);
        }
    }

    #[test]
    fn outputs_below_the_working_directory_are_in_one_place() {
        let path_group = |stdout| PathGroup::of(&plan("true", stdout));
        assert_eq!(path_group("/own/a/job-1/0.out"), path_group("job-2/7.out"));
        assert_ne!(
            path_group("/own/a/job-1/0.out"),
            path_group("/own/ab/0.out")
        );
    }
}
