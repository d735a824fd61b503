//! Stops the reading of a state that needs more memory than the machine has left.
//!
//! Without this check the kernel kills the server, or a failed allocation aborts it, and no message names the reason.

use std::ffi::c_int;
use std::fs;

use rusqlite::Connection;
use rustix::process::Resource;

/// Steps of SQLite's machine between two checks: some milliseconds.
const STEPS: c_int = 50_000;
/// Least memory that has to be left. A table that grows is copied, so half of the present memory has to be left, too.
const SPARE: u64 = 32 << 20;
/// Address space that an allocator reserves in one piece. If the process has so much that it does not use, its address space says
/// nothing about its memory.
const RESERVED: u64 = 512 << 20;

/// Memory of this process and its bounds, in bytes; `None` = no bound is known.
#[derive(Clone, Copy, Debug)]
struct Memory {
    resident: u64,
    address_space: u64,
    address_space_limit: Option<u64>,
    /// Memory and swap that the machine has left.
    machine_left: Option<u64>,
    /// Memory that the control group has left.
    group_left: Option<u64>,
}

impl Memory {
    fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/statm").ok()?;
        let mut pages = text.split_whitespace().map_while(|word| word.parse().ok());
        let mut bytes = || {
            pages
                .next()
                .map(|pages: u64| pages * rustix::param::page_size() as u64)
        };
        let (address_space, resident) = (bytes()?, bytes()?);
        Some(Self {
            resident,
            address_space,
            address_space_limit: rustix::process::getrlimit(Resource::As).current,
            machine_left: machine_left(),
            group_left: group_left(),
        })
    }

    fn is_short(self) -> bool {
        let is_reserved = self.address_space.saturating_sub(self.resident) > RESERVED;
        let limit = self.address_space_limit.filter(|_| !is_reserved);
        let space_left = limit.map(|limit| limit.saturating_sub(self.address_space));
        let left = [space_left, self.machine_left, self.group_left];
        let spare = SPARE.max(self.resident / 2);
        left.into_iter().flatten().any(|left| left < spare)
    }
}

/// Ends statements of the connection with `SQLITE_INTERRUPT` when memory becomes short; `false` = no longer.
pub(crate) fn guard(connection: &Connection, is_guarded: bool) -> rusqlite::Result<()> {
    let check = is_guarded.then_some(|| Memory::now().is_some_and(Memory::is_short));
    connection.progress_handler(STEPS, check)
}

fn machine_left() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let available = field(&text, "MemAvailable:")?;
    Some((available + field(&text, "SwapFree:").unwrap_or(0)) << 10)
}

/// Of the unified hierarchy; caches of files are given back when memory is needed.
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
            address_space: 200 * MIB,
            address_space_limit: None,
            machine_left: Some(1_000 * MIB),
            group_left: None,
        };
        assert!(!roomy.is_short());
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
            (
                Memory {
                    address_space_limit: Some(240 * MIB),
                    ..roomy
                },
                true,
            ),
            (
                Memory {
                    address_space_limit: Some(300 * MIB),
                    ..roomy
                },
                false,
            ),
            // Most of it is a reservation of the allocator.
            (
                Memory {
                    address_space: 1_200 * MIB,
                    address_space_limit: Some(1_210 * MIB),
                    ..roomy
                },
                false,
            ),
        ] {
            assert_eq!(memory.is_short(), is_short, "{memory:?}");
        }
        assert!(Memory::now().is_some(), "its figures can be read");
    }
}
