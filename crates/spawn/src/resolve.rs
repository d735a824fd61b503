//! Finds the path of a program by its name. Results are cached by `PATH` and name.
//!
//! A name with a slash is used unchanged; the kernel resolves it relative to the task's working
//! directory. Any other name is searched for once in the task's own `PATH`, so that a long `PATH`
//! is only slow the first time. If the kernel reports that a cached path no longer exists, it is
//! looked up again. Failures are never cached.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{SpawnError, Stage};
use crate::plan::SpawnPlan;
use crate::sys;

/// The path that `execvp` searches if `PATH` is not set.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// The maximum number of programs per `PATH`, and of `PATH`s. If it is exceeded, the cache is
/// cleared: that many distinct values must be generated ones, which will not be used again.
const ENTRIES_MAX: usize = 4096;

/// The result of a search.
#[derive(Debug, Clone)]
pub(crate) enum Resolved {
    /// The name contains a slash, so it is the path.
    AsGiven,
    /// The program was found through `PATH`.
    Found {
        path: Arc<CStr>,
        /// Whether the result comes from the cache and may be stale.
        cached: bool,
    },
}

type Programs = HashMap<Box<[u8]>, Arc<CStr>>;

/// A cache shared by all spawner threads of a launcher.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    by_path: Mutex<HashMap<Box<[u8]>, Programs>>,
}

impl Resolver {
    /// Returns the path to execute for this plan.
    pub(crate) fn resolve(&self, plan: &SpawnPlan) -> Result<Resolved, SpawnError> {
        let name = plan.argv.program_c().to_bytes();
        if name.contains(&b'/') {
            return Ok(Resolved::AsGiven);
        }
        let search = search_path(plan);
        if let Some(path) = self.cached(search, name) {
            return Ok(Resolved::Found { path, cached: true });
        }
        self.search(plan, search, name)
    }

    /// Returns the path to execute, looked up on disk instead of in the cache.
    pub(crate) fn resolve_again(&self, plan: &SpawnPlan) -> Result<Resolved, SpawnError> {
        let name = plan.argv.program_c().to_bytes();
        let search = search_path(plan);
        if let Some(programs) = self.lock().get_mut(search) {
            programs.remove(name);
        }
        self.search(plan, search, name)
    }

    fn cached(&self, search: &[u8], name: &[u8]) -> Option<Arc<CStr>> {
        self.lock().get(search)?.get(name).cloned()
    }

    fn search(&self, plan: &SpawnPlan, search: &[u8], name: &[u8]) -> Result<Resolved, SpawnError> {
        let mut refused = None;
        for directory in search.split(|byte| *byte == b':') {
            let directory = Path::new(OsStr::from_bytes(directory));
            let absolute = directory.is_absolute();
            let candidate = match &plan.cwd {
                // An empty entry stands for the task's current directory.
                Some(cwd) if !absolute => cwd.join(directory),
                None if directory.as_os_str().is_empty() => PathBuf::from("."),
                Some(_) | None => directory.to_path_buf(),
            }
            .join(OsStr::from_bytes(name));
            let Ok(text) = CString::new(candidate.as_os_str().as_bytes()) else {
                continue;
            };
            if !candidate.is_file() {
                continue;
            }
            if let Err(error) = sys::may_execute(&text) {
                refused.get_or_insert((error.raw_os_error().unwrap_or(libc::EACCES), candidate));
                continue;
            }
            let path: Arc<CStr> = absolute_from(plan, &candidate, text).into();
            if absolute {
                self.remember(search, name, &path);
            }
            return Ok(Resolved::Found {
                path,
                cached: false,
            });
        }
        let (errno, path) =
            refused.unwrap_or_else(|| (libc::ENOENT, PathBuf::from(OsStr::from_bytes(name))));
        Err(SpawnError::new(Stage::Resolve, errno, Some(path)))
    }

    fn remember(&self, search: &[u8], name: &[u8], path: &Arc<CStr>) {
        let mut by_path = self.lock();
        if by_path.len() >= ENTRIES_MAX && !by_path.contains_key(search) {
            by_path.clear();
        }
        let programs = by_path.entry(Box::from(search)).or_default();
        if programs.len() >= ENTRIES_MAX {
            programs.clear();
        }
        programs.insert(Box::from(name), Arc::clone(path));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Box<[u8]>, Programs>> {
        // The map is valid between any two operations, so a panic elsewhere cannot corrupt it.
        self.by_path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the candidate for a child that changes its working directory. If the path is still
/// relative (because both the `PATH` entry and the plan's directory are), it is resolved from the
/// launcher's directory.
fn absolute_from(plan: &SpawnPlan, candidate: &Path, text: CString) -> CString {
    if plan.cwd.is_none() || candidate.is_absolute() {
        return text;
    }
    std::path::absolute(candidate)
        .ok()
        .and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok())
        .unwrap_or(text)
}

/// Returns the `PATH` of the task itself.
fn search_path(plan: &SpawnPlan) -> &[u8] {
    let name = OsStr::new("PATH");
    plan.task_env
        .get(name)
        .or_else(|| plan.env.get(name))
        .map_or(DEFAULT_PATH, OsStrExt::as_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::env::{ArgBlock, EnvBlock, TaskEnv};

    #[test]
    fn the_tasks_own_path_is_searched_in_order_and_cached() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        program(&first, "other", 0o755);
        let expected = program(&second, "tool", 0o755);
        let plan = plan("tool", &format!("{}:{}", first.display(), second.display()));
        let resolver = Resolver::default();

        assert_eq!(found(&resolver.resolve(&plan)), (expected.clone(), false));
        assert_eq!(found(&resolver.resolve(&plan)), (expected, true));

        // A program in an earlier directory is found when the cache is bypassed, and is cached from
        // then on.
        let earlier = program(&first, "tool", 0o755);
        assert_eq!(
            found(&resolver.resolve_again(&plan)),
            (earlier.clone(), false)
        );
        assert_eq!(found(&resolver.resolve(&plan)), (earlier, true));
    }

    #[test]
    fn variables_of_the_task_come_before_those_of_the_block() {
        let dir = tempfile::tempdir().unwrap();
        let expected = program(dir.path(), "tool", 0o755);
        let mut env = TaskEnv::new();
        env.set("PATH", dir.path()).unwrap();
        let plan = plan("tool", "/nowhere").task_env(env);
        assert_eq!(found(&Resolver::default().resolve(&plan)).0, expected);
    }

    #[test]
    fn a_relative_entry_is_relative_to_the_tasks_directory_and_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let expected = program(&dir.path().join("bin"), "tool", 0o755);
        let plan = plan("tool", "bin").cwd(dir.path());
        let resolver = Resolver::default();
        for _ in 0..2 {
            assert_eq!(found(&resolver.resolve(&plan)), (expected.clone(), false));
        }
    }

    #[test]
    fn a_file_without_execute_permission_is_skipped_and_named_when_nothing_else_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let refused = program(&first, "tool", 0o644);
        let search = format!("{}:{}", first.display(), second.display());
        let error = Resolver::default()
            .resolve(&plan("tool", &search))
            .unwrap_err();
        assert_eq!((error.errno, error.path), (libc::EACCES, Some(refused)));

        let expected = program(&second, "tool", 0o755);
        assert_eq!(
            found(&Resolver::default().resolve(&plan("tool", &search))).0,
            expected
        );
    }

    #[test]
    fn an_unknown_program_and_a_name_with_a_slash() {
        let error = Resolver::default()
            .resolve(&plan("no-such", "/bin"))
            .unwrap_err();
        assert_eq!((error.stage, error.errno), (Stage::Resolve, libc::ENOENT));
        assert!(matches!(
            Resolver::default().resolve(&plan("./no-such", "/bin")),
            Ok(Resolved::AsGiven)
        ));
    }

    fn plan(program: &str, path: &str) -> SpawnPlan {
        let env = EnvBlock::empty()
            .overlay([("PATH".into(), path.into())])
            .unwrap();
        SpawnPlan::new(ArgBlock::new([program]).unwrap(), env)
    }

    fn program(directory: &Path, name: &str, mode: u32) -> PathBuf {
        fs::create_dir_all(directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn found(resolved: &Result<Resolved, SpawnError>) -> (PathBuf, bool) {
        match resolved {
            Ok(Resolved::Found { path, cached }) => {
                (PathBuf::from(OsStr::from_bytes(path.to_bytes())), *cached)
            }
            other => panic!("expected a found program, got {other:?}"),
        }
    }
}
