//! Writes rows of workers. The table `meta` contains workers that get no new tasks, because they are
//! draining or in quarantine, for that time.

use hq_core::hardware::HardwareUsage;
use hq_core::id::WorkerId;
use hq_core::outcome::LostReason;
use hq_core::quarantine::Quarantine;
use hq_core::time::Timestamp;
use hq_core::worker_config::WorkerConfig;
use rusqlite::params;
use serde_json::{Value, json};

use super::Group;
use crate::encode;
use crate::meta::{self, draining_key};

impl Group<'_> {
    fn worker_event(
        &mut self,
        at: Timestamp,
        kind: &'static str,
        worker: WorkerId,
        data: &Value,
    ) -> rusqlite::Result<()> {
        self.event(at, kind, None, Some(worker), data)
    }

    pub(super) fn connected(
        &mut self,
        at: Timestamp,
        worker: WorkerId,
        config: &WorkerConfig,
    ) -> rusqlite::Result<()> {
        let (id, configuration) = (worker.as_u32(), encode::worker_json(config));
        let registration = encode::registration_bytes(config);
        self.run(
            "INSERT OR REPLACE INTO worker_data VALUES (?, ?, ?, NULL, NULL, ?, ?)",
            params![
                id,
                config.hostname,
                at.0,
                configuration.to_string(),
                registration
            ],
        )?;
        // Compaction may drop the worker's row, but its id must not be reused.
        meta::set(self.connection, "last_worker", id)?;
        let data = json!({"id": id, "configuration": configuration});
        self.worker_event(at, "worker-connected", worker, &data)
    }

    pub(super) fn lost(
        &mut self,
        at: Timestamp,
        worker: WorkerId,
        reason: LostReason,
    ) -> rusqlite::Result<()> {
        self.run(
            "UPDATE worker_data SET ended_unix_ns = ?, reason = ? WHERE id = ?",
            params![at.0, reason.name(), worker.as_u32()],
        )?;
        // The next server does not wait for this worker, so its draining ends here.
        meta::remove(self.connection, &draining_key(worker))?;
        let data = json!({"id": worker.as_u32(), "reason": reason.name()});
        self.worker_event(at, "worker-lost", worker, &data)
    }

    pub(super) fn overview(
        &mut self,
        at: Timestamp,
        worker: WorkerId,
        usage: &HardwareUsage,
    ) -> rusqlite::Result<()> {
        let data = json!({"id": worker.as_u32(), "hw-state": encode::usage_json(usage)});
        self.worker_event(at, "worker-overview", worker, &data)
    }

    pub(super) fn draining(&mut self, at: Timestamp, worker: WorkerId) -> rusqlite::Result<()> {
        meta::set(self.connection, &draining_key(worker), 1)?;
        let data = json!({"id": worker.as_u32()});
        self.worker_event(at, "worker-draining", worker, &data)
    }

    pub(super) fn quarantined(
        &mut self,
        at: Timestamp,
        quarantine: &Quarantine,
    ) -> rusqlite::Result<()> {
        let data = meta::set_quarantine(self.connection, quarantine)?;
        self.worker_event(at, "worker-quarantined", quarantine.worker, &data)
    }

    pub(super) fn released(
        &mut self,
        at: Timestamp,
        worker: WorkerId,
        why: &str,
    ) -> rusqlite::Result<()> {
        meta::remove(self.connection, &format!("{}{worker}", meta::QUARANTINE))?;
        let data = json!({"id": worker.as_u32(), "reason": why});
        self.worker_event(at, "worker-released", worker, &data)
    }

    pub(super) fn suspected(
        &mut self,
        at: Timestamp,
        worker: WorkerId,
        why: &str,
    ) -> rusqlite::Result<()> {
        let data = json!({"id": worker.as_u32(), "reason": why});
        self.worker_event(at, "worker-suspected", worker, &data)
    }
}
