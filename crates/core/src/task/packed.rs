//! The records of finished neighbors. They take a few bytes per task instead of a record each.

use super::{Phase, TaskRecord};
use crate::column;
use crate::id::InstanceId;
use crate::outcome::OutcomeCode;
use crate::time::Timestamp;

/// The number of fields that differ between finished tasks: worker, start, run time, memory, user
/// and system time, instance. A constant field takes no bytes.
const COLUMNS: usize = 7;

/// Tasks that finished without a crash or a retry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Packed {
    count: u16,
    columns: [(i64, Box<[u8]>); COLUMNS],
}

impl Packed {
    /// Packs records. Returns `None` if a record contains other information.
    pub(super) fn new(records: &[TaskRecord]) -> Option<Self> {
        let count = u16::try_from(records.len()).ok()?;
        let first = records.first()?;
        let plain = |values: [i64; COLUMNS]| finished(values);
        let mut lowest = values(first)?;
        let mut highest = lowest;
        for record in records {
            let values = values(record)?;
            // This compares all other fields of the record, including future ones.
            if plain(values) != *record {
                return None;
            }
            for (at, value) in values.into_iter().enumerate() {
                lowest[at] = lowest[at].min(value);
                highest[at] = highest[at].max(value);
            }
        }
        let mut columns: [(i64, Box<[u8]>); COLUMNS] = Default::default();
        for (at, (low, bytes)) in columns.iter_mut().enumerate() {
            *low = lowest[at];
            let of_column = records
                .iter()
                .map(|record| values(record).map_or(0, |values| values[at]));
            *bytes = column::bytes(of_column, lowest[at], highest[at]).into();
        }
        Some(Self { count, columns })
    }

    /// Returns the record at a position.
    pub(super) fn record(&self, place: usize) -> Option<TaskRecord> {
        let count = usize::from(self.count);
        let value = |(low, bytes): &(i64, Box<[u8]>)| column::value_at(*low, bytes, count, place);
        (place < count).then(|| finished(self.columns.each_ref().map(value)))
    }

    /// Returns all records.
    pub(super) fn records(&self) -> Box<[TaskRecord]> {
        let places = 0..usize::from(self.count);
        places.filter_map(|place| self.record(place)).collect()
    }
}

/// Returns the columns of a record. `None` if a number is too large for its column.
fn values(record: &TaskRecord) -> Option<[i64; COLUMNS]> {
    Some([
        record.worker.into(),
        record.started.0,
        i64::try_from(record.run_us).ok()?,
        record.max_rss_kib.into(),
        record.user_ms.into(),
        record.system_ms.into(),
        record.instance.into(),
    ])
}

fn finished(
    [
        worker,
        started,
        run_us,
        max_rss_kib,
        user_ms,
        system_ms,
        instance,
    ]: [i64; COLUMNS],
) -> TaskRecord {
    // These values were converted from numbers of these types.
    let small = |value| u32::try_from(value).unwrap_or(u32::MAX);
    TaskRecord {
        started: Timestamp(started),
        run_us: run_us.unsigned_abs(),
        worker: small(worker),
        outcome: OutcomeCode::FINISHED,
        max_rss_kib: small(max_rss_kib),
        user_ms: small(user_ms),
        system_ms: small(system_ms),
        was_started: true,
        ..TaskRecord::new(Phase::Finished, InstanceId(small(instance)))
    }
}
