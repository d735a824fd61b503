//! A notification of a job: to whom it goes, and what became of it.

use crate::id::JobId;
use crate::template::{ByteText, NotifySpec};
use crate::time::Timestamp;

/// Which notification of which job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NoticeKey {
    /// The job.
    pub job: JobId,
    /// Number of the notification in the job.
    pub number: u32,
}

/// One notification of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Where to.
    pub spec: NotifySpec,
    /// Directory of the submit that asked for it.
    pub submit_dir: ByteText,
    /// What became of it.
    pub state: NoticeState,
}

/// What became of a notification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum NoticeState {
    /// Nothing to tell yet.
    #[default]
    Waiting,
    /// Being sent.
    Owed,
    /// Sent, or given up.
    Done(NoticeOutcome),
}

/// The end of a notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoticeOutcome {
    /// When.
    pub at: Timestamp,
    /// Attempts that it took.
    pub attempts: u32,
    /// Why it was given up; `None` = it was delivered.
    pub error: Option<Box<str>>,
}
