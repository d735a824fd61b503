//! Idempotency keys. A client without an answer to a submit, because of a timeout or a restart of
//! the server, repeats it with the same key, and gets the job of the first one.
//!
//! A key is kept as long as its job.

use std::collections::BTreeMap;

use super::SubmitRefusal;
use crate::id::JobId;

/// Key of a submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubmitKey {
    /// Name; unique among the submits of the server.
    pub name: Box<str>,
    /// Digest of the submit, so that another use of the key is detected.
    pub digest: Box<str>,
}

/// The keys of all jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct SubmitKeys {
    by_name: BTreeMap<Box<str>, (JobId, Box<str>)>,
    by_job: BTreeMap<JobId, Vec<Box<str>>>,
}

impl SubmitKeys {
    /// Result of the submit with this key; `None` = unknown key.
    pub(super) fn find(&self, key: &SubmitKey) -> Option<Result<JobId, SubmitRefusal>> {
        let (job, digest) = self.by_name.get(&key.name)?;
        Some(if *digest == key.digest {
            Ok(*job)
        } else {
            Err(SubmitRefusal::KeyTaken(*job))
        })
    }

    /// Notes the key of a submit that was accepted.
    pub(super) fn note(&mut self, job: JobId, key: SubmitKey) {
        self.by_job.entry(job).or_default().push(key.name.clone());
        self.by_name.insert(key.name, (job, key.digest));
    }

    /// Forgets a job.
    pub(super) fn forget(&mut self, job: JobId) {
        for name in self.by_job.remove(&job).unwrap_or_default() {
            self.by_name.remove(&name);
        }
    }
}
