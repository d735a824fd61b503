//! Why a request is rejected, as a value: the kind of rejection, its subject, and a text for users.
//!
//! Code decides by the kind, never by the text. The output of a client, the status of an HTTP
//! answer and the exit code of a command are functions of this value. `hq-protocol` defines the
//! first, because the value travels there.

use crate::id::{JobId, TaskId};
use crate::limits::shorten;

/// Longest text of a rejection. It may quote the request, which can have megabytes.
const TEXT_MAX: usize = 16 << 10;

/// Kind of a rejection, by what the client can do about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefusalKind {
    /// The subject of the request does not exist.
    NotFound,
    /// It exists, but its present state does not permit the request.
    Conflict,
    /// The request is inconsistent and would always be rejected.
    Invalid,
    /// The request exceeds what can be stored or sent.
    TooLarge,
    /// Not possible at present, or not with this server; the same request may succeed later or
    /// elsewhere.
    Unavailable,
    /// It was tried, and went wrong.
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

    /// Word for programs: `not-found`.
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

/// A refused request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Kind, on which code decides.
    pub kind: RefusalKind,
    /// The text, without the prefix that scripts look for.
    pub text: Box<str>,
    /// Whether users see the text without that prefix, for compatibility.
    pub is_bare: bool,
    /// Job that it is about.
    pub job: Option<JobId>,
    /// Task of that job that it is about.
    pub task: Option<TaskId>,
}

impl Refusal {
    /// A rejection of this kind. Cuts very long texts.
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

    /// See [`RefusalKind::NotFound`].
    #[must_use]
    pub fn not_found(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::NotFound, text)
    }

    /// See [`RefusalKind::Conflict`].
    #[must_use]
    pub fn conflict(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Conflict, text)
    }

    /// See [`RefusalKind::Invalid`].
    #[must_use]
    pub fn invalid(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Invalid, text)
    }

    /// See [`RefusalKind::TooLarge`].
    #[must_use]
    pub fn too_large(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::TooLarge, text)
    }

    /// See [`RefusalKind::Unavailable`].
    #[must_use]
    pub fn unavailable(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Unavailable, text)
    }

    /// See [`RefusalKind::Failed`].
    #[must_use]
    pub fn failed(text: impl Into<Box<str>>) -> Self {
        Self::new(RefusalKind::Failed, text)
    }

    /// The server is shutting down; the next one may accept the request.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::unavailable("the server is shutting down")
    }

    /// The same, shown without the prefix.
    #[must_use]
    pub fn bare(self) -> Self {
        Self {
            is_bare: true,
            ..self
        }
    }

    /// The same, with the job or task concerned.
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
