//! Stops loading a state that needs more memory than is available.
//!
//! Without this check, the kernel would kill the server, or a failed allocation would abort it, and
//! no message would explain the reason.

use std::ffi::c_int;
use std::fs;
use std::path::Path;

use rusqlite::{Connection, ErrorCode};
use rustix::process::Resource;

use crate::StoreError;

/// The number of instructions of SQLite's virtual machine between two checks. Executing them takes
/// a few milliseconds.
const STEPS: c_int = 50_000;
/// The minimum memory that must stay available. Growing a table copies it, so half of the current
/// usage must also stay available.
const SPARE: u64 = 32 << 20;
/// The memory use of this process and its limits, in bytes. `None` means that no limit is known.
#[derive(Clone, Copy, Debug)]
struct Memory {
    resident: u64,
    /// The memory and swap space that the machine has left.
    machine_left: Option<u64>,
    /// The memory that the control group has left.
    group_left: Option<u64>,
}

impl Memory {
    fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self {
            resident: pages * rustix::param::page_size() as u64,
            machine_left: machine_left(),
            group_left: group_left(),
        })
    }

    /// Returns whether `more` bytes and a reserve do not fit.
    fn is_short(self, more: u64) -> bool {
        let needed = SPARE.max(self.resident / 2).saturating_add(more);
        let left = [self.machine_left, self.group_left];
        left.into_iter().flatten().any(|left| left < needed) || !has_address_space(needed)
    }
}

/// Returns whether an allocation of this size succeeds if the address space is limited. The
/// kernel's statistics do not show this, because an allocator reserves address space long before it
/// uses it.
fn has_address_space(len: u64) -> bool {
    let is_limited = rustix::process::getrlimit(Resource::As).current.is_some();
    !is_limited
        || usize::try_from(len).is_ok_and(|len| Vec::<u8>::new().try_reserve_exact(len).is_ok())
}

/// Fails in the same way as SQLite without memory if `more` bytes do not fit.
pub(crate) fn expect(more: u64) -> rusqlite::Result<()> {
    if Memory::now().is_some_and(|memory| memory.is_short(more)) {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOMEM);
        return Err(rusqlite::Error::SqliteFailure(code, None));
    }
    Ok(())
}

/// Runs `read`, and fails when memory becomes low: statements of the connection then fail with
/// `SQLITE_INTERRUPT`.
pub(crate) fn guarded<T>(
    connection: &Connection,
    path: &Path,
    read: impl FnOnce() -> rusqlite::Result<T>,
) -> Result<T, StoreError> {
    let sql = StoreError::sql(path);
    let guard = Some(|| expect(0).is_err());
    connection.progress_handler(STEPS, guard).map_err(&sql)?;
    let found = read();
    let none = None::<fn() -> bool>;
    connection.progress_handler(STEPS, none).map_err(&sql)?;
    found.map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted | ErrorCode::OutOfMemory) => StoreError::TooLarge {
            path: path.to_path_buf(),
        },
        _ => sql(error),
    })
}

fn machine_left() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let available = field(&text, "MemAvailable:")?;
    Some((available + field(&text, "SwapFree:").unwrap_or(0)) << 10)
}

/// Returns the memory that the control group has left. Only the unified hierarchy is supported. The
/// kernel can reclaim file caches, so they count as available.
fn group_left() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |file| fs::read_to_string(format!("/sys/fs/cgroup{name}/{file}")).ok();
    let max: u64 = read("memory.max")?.trim().parse().ok()?;
    let current: u64 = read("memory.current")?.trim().parse().ok()?;
    let caches = field(&read("memory.stat")?, "file ").unwrap_or(0);
    Some(max.saturating_sub(current.saturating_sub(caches)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_where_any_bound_is_near() {
        const MIB: u64 = 1 << 20;
        let roomy = Memory {
            resident: 100 * MIB,
            machine_left: Some(1_000 * MIB),
            group_left: None,
        };
        assert!(!roomy.is_short(0));
        assert!(roomy.is_short(960 * MIB), "the reserve stays");
        for (memory, is_short) in [
            (
                Memory {
                    machine_left: Some(40 * MIB),
                    ..roomy
                },
                true,
            ),
            (
                Memory {
                    group_left: Some(40 * MIB),
                    ..roomy
                },
                true,
            ),
        ] {
            assert_eq!(memory.is_short(0), is_short, "{memory:?}");
        }
        assert!(Memory::now().is_some(), "its figures can be read");
    }
}
