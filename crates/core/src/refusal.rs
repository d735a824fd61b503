//! The reason why a request is rejected: its kind, its subject, and a text for users.
//!
//! Code makes decisions based on the kind, and never on the text. The output of a client, the
//! status of an HTTP answer and the exit code of a command are functions of this value.
//! `hq-protocol` defines the first of these functions, because it transfers the value.

use crate::id::{JobId, TaskId};
use crate::limits::shorten;

/// The maximum length of a rejection's text. It may quote the request, which can have several
/// megabytes.
const TEXT_MAX: usize = 16 << 10;

/// The kind of a rejection, which tells the client what it can do about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefusalKind {
    /// The subject of the request does not exist.
    NotFound,
    /// The subject exists, but its current state does not permit the request.
    Conflict,
    /// The request is inconsistent and would always be rejected.
    Invalid,
    /// The request exceeds what can be stored or sent.
    TooLarge,
    /// The request is currently not possible, or not with this server. The same request may succeed
    /// later or elsewhere.
    Unavailable,
    /// The request was attempted, and failed.
    Failed,
}

impl RefusalKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::NotFound,
        Self::Conflict,
        Self::Invalid,
        Self::TooLarge,
        Self::Unavailable,
        Self::Failed,
    ];

    /// Returns the machine-readable name, such as `not-found`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::TooLarge => "too-large",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}

/// A rejected request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The kind, on which decisions are based.
    pub kind: RefusalKind,
    /// The text, without the prefix that scripts search for.
    pub text: Box<str>,
    /// Whether users see the text without that prefix, for compatibility.
    pub is_bare: bool,
    /// The job concerned.
    pub job: Option<JobId>,
    /// The task of that job.
    pub task: Option<TaskId>,
}

impl Refusal {
    /// Creates a rejection of this kind. Truncates very long texts.
    #[must_use]
    pub fn new(kind: RefusalKind, text: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            text: shorten(text.into(), TEXT_MAX),
            is_bare: false,
            job: None,
            task: None,
        }
    }

    /// Creates a rejection of the kind [`RefusalKind::NotFound`].
    #[must_use]
    pub fn not_found(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::NotFound, text)
    }

    /// Creates a rejection of the kind [`RefusalKind::Conflict`].
    #[must_use]
    pub fn conflict(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Conflict, text)
    }

    /// Creates a rejection of the kind [`RefusalKind::Invalid`].
    #[must_use]
    pub fn invalid(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Invalid, text)
    }

    /// Creates a rejection of the kind [`RefusalKind::TooLarge`].
    #[must_use]
    pub fn too_large(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::TooLarge, text)
    }

    /// Creates a rejection of the kind [`RefusalKind::Unavailable`].
    #[must_use]
    pub fn unavailable(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Unavailable, text)
    }

    /// Creates a rejection of the kind [`RefusalKind::Failed`].
    #[must_use]
    pub fn failed(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Failed, text)
    }

    /// Creates the rejection of a server that is shutting down. The next server may accept the
    /// request.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::unavailable("the server is shutting down")
    }

    /// Returns the same rejection, to be shown without the prefix.
    #[must_use]
    pub fn bare(self) -> Self {
        Self {
            is_bare: true,
            ..self
        }
    }

    /// Returns the same rejection, with the job or task concerned.
    #[must_use]
    pub fn about(self, job: Option<JobId>, task: Option<TaskId>) -> Self {
        Self { job, task, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_repeat_a_long_request_are_cut() {
        let refusal = Refusal::invalid("x".repeat(10_000_000));
        assert!(refusal.text.len() <= TEXT_MAX);
        assert!(refusal.text.ends_with(" bytes left out)"), "{refusal:?}");
    }
}
