//! Why a request is refused, as a value: what kind of refusal it is, what it is about, and the words for people.
//!
//! Decisions are made by the kind, never by the words. What a client prints, the status of an HTTP answer and the exit code
//! of a command are functions of this value; the first stands in `hq-protocol`, where the value travels.

use crate::id::{JobId, TaskId};
use crate::limits::shorten;

/// Longest words of a refusal. They may repeat what was asked, which has megabytes if somebody wants.
const TEXT_MAX: usize = 16 << 10;

/// Kind of a refusal, by what the client can do about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefusalKind {
    /// The subject of the request does not exist.
    NotFound,
    /// It exists, but is in a state in which that is not possible.
    Conflict,
    /// It contradicts itself, and would at any time.
    Invalid,
    /// It is more than can be kept or sent.
    TooLarge,
    /// Not possible at present, or not with this server; the same request may succeed later or elsewhere.
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
    /// Kind, by which decisions are made.
    pub kind: RefusalKind,
    /// The words, without the prefix that scripts look for.
    pub text: Box<str>,
    /// Whether people see the words without that prefix, as they always have.
    pub is_bare: bool,
    /// Job that it is about.
    pub job: Option<JobId>,
    /// Task of that job that it is about.
    pub task: Option<TaskId>,
}

impl Refusal {
    /// A refusal of a kind. Very long words are cut.
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

    /// The server ends; the next one may do it.
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

    /// The same, about a job, or a task of it.
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
