//! Writes rows of jobs when they are created, submitted to or forgotten.

use hq_core::id::JobId;
use hq_core::server_state::{Change, ChangeKind};
use hq_core::template::SubmitTarget;
use hq_core::time::Timestamp;
use rusqlite::params;
use serde_json::json;

use super::Group;
use crate::encode;
use crate::meta::{self, set_number};

impl Group<'_> {
    pub(super) fn forget(&mut self, jobs: &[JobId]) -> rusqlite::Result<()> {
        for job in jobs {
            let sql = "UPDATE job_data SET is_forgotten = 1 WHERE id = ?";
            self.run(sql, [job.as_u32()])?;
            // The row of the job remains until compaction, but this entry would remain even longer.
            meta::remove(self.connection, &format!("{}{job}", meta::RESUBMITTED))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::REPEATED))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::FIRST_INSTANCE))?;
            meta::remove_all(self.connection, &format!("{}{job}_", meta::SUBMIT_KEY))?;
        }
        Ok(())
    }

    pub(super) fn add_job(
        &mut self,
        at: Timestamp,
        job: JobId,
        name: &str,
        max_fails: Option<u32>,
        is_open: bool,
    ) -> rusqlite::Result<()> {
        self.run(
            "INSERT OR REPLACE INTO job_data VALUES (?, ?, ?, ?, NULL, ?, NULL, 0)",
            params![job.as_u32(), name, max_fails, is_open, at.0],
        )?;
        // This may be a smaller id, because a large submit is stored after smaller ones that
        // arrived later.
        let last = meta::number(self.connection, "last_job")?;
        set_number(
            self.connection,
            "last_job",
            last.max(i64::from(job.as_u32())),
        )
    }

    pub(super) fn resubmitted(&self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::JobResubmitted { job, new } = &change.kind else {
            return Ok(());
        };
        let key = format!("{}{job}", meta::RESUBMITTED);
        set_number(self.connection, &key, new.as_u32().into())
    }

    /// Stores the last attempt of a task that made a submit.
    pub(super) fn repeated(&self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::SubmitRepeated {
            job,
            number,
            instance,
        } = &change.kind
        else {
            return Ok(());
        };
        let key = format!("{}{job}_{number}", meta::REPEATED);
        set_number(self.connection, &key, instance.as_u32().into())
    }

    /// Stores the first instance of those tasks of a submit that were never sent to a worker.
    pub(super) fn superseded(&self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::WaitingSuperseded { job, number, first } = &change.kind else {
            return Ok(());
        };
        let key = format!("{}{job}_{number}", meta::FIRST_INSTANCE);
        set_number(self.connection, &key, first.as_u32().into())
    }

    pub(super) fn starts_unknown(&self, are_unknown: bool) -> rusqlite::Result<()> {
        if are_unknown {
            set_number(self.connection, meta::STARTS_UNKNOWN, 1)
        } else {
            meta::remove(self.connection, meta::STARTS_UNKNOWN)
        }
    }

    pub(super) fn opened(
        &mut self,
        at: Timestamp,
        job: JobId,
        name: &str,
        max_fails: Option<u32>,
    ) -> rusqlite::Result<()> {
        let data = json!({"job_id": job.as_u32(), "name": name, "max_fails": max_fails});
        self.event(at, "job-open", Some(job), None, &data)
    }

    pub(super) fn submit(&mut self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::Submitted {
            job,
            is_new,
            name,
            max_fails,
            number,
            ids,
            spec,
            encoded,
        } = &change.kind
        else {
            return Ok(());
        };
        // A job that was opened earlier already has a row.
        let stays_open = matches!(spec.target, SubmitTarget::SelfClosing { .. });
        if *is_new {
            self.add_job(change.at, *job, name, *max_fails, stays_open)?;
        }
        // Readers of events see that a job was opened and received a submit.
        if *is_new && stays_open {
            self.opened(change.at, *job, name, *max_fails)?;
        }
        let (bytes, check) = encode::stored_spec(*job, (spec, encoded.as_ref()), ids);
        self.run(
            "INSERT OR REPLACE INTO submit_data VALUES (?, ?, ?, ?, ?, ?)",
            params![job.as_u32(), number, change.at.0, ids.len(), bytes, check],
        )?;
        let data = json!({
            "job": job.as_u32(),
            "closed_job": *is_new && !stays_open,
            "job_desc": {"name": name, "max_fails": max_fails},
            "submit_desc": encode::submit_json(spec),
        });
        let data = encode::with_ranges(&data, ids);
        self.event_text(change.at, "job-created", Some(*job), None, data)
    }
}
