//! Waits until everything has been written and compacted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hq_store::reader;

/// The timeout of compaction, and the pause between checks. Compaction is done when the file and
/// the rows no longer change.
const REST_TIMEOUT: Duration = Duration::from_secs(1_200);
const REST_INTERVAL: Duration = Duration::from_secs(4);
/// The number of rows that may remain, because they are too few for another pass.
const ROWS_AT_REST: u64 = 1_100;

/// Waits until compaction has merged finished tasks and returned the pages. Returns how long it
/// took.
///
/// # Errors
///
/// If the store cannot be read, or stays busy for too long.
pub fn wait_for_rest(journal: &Path) -> Result<Duration> {
    let start = Instant::now();
    let mut before = (0, 0);
    loop {
        let size = std::fs::metadata(journal)?.len();
        let now = (reader::task_rows(journal)?, size);
        if now == before && now.0 < ROWS_AT_REST {
            return Ok(start.elapsed());
        }
        if start.elapsed() > REST_TIMEOUT {
            bail!("{} tasks still have rows of their own", now.0);
        }
        before = now;
        std::thread::sleep(REST_INTERVAL);
    }
}
