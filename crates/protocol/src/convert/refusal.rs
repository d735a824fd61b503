//! Rejections on the wire, and their messages for users.
//!
//! Only this module builds the messages. Clients of earlier releases print the message and ignore
//! the rest. If a later server sends a kind that a client does not know, the client treats the
//! rejection as one without a kind.

use hq_core::id::{JobId, TaskId};
use hq_core::refusal::{Refusal, RefusalKind};

use super::wire::{ToWire, same_enum};
use crate::client;

/// The prefix that scripts look for.
const PREFIX: &str = "Error: ";

/// Returns the human-readable message.
#[must_use]
pub fn refusal_text(refusal: &Refusal) -> String {
    let prefix = if refusal.is_bare { "" } else { PREFIX };
    format!("{prefix}{}", refusal.text)
}

same_enum! {
    RefusalKind = client::RefusalKind, or Unspecified {
        NotFound Conflict Invalid TooLarge Unavailable Failed
    }
}

impl client::Error {
    /// Returns the kind. `None` if the server is of another release and sends no known kind.
    #[must_use]
    pub fn known_kind(&self) -> Option<RefusalKind> {
        client::RefusalKind::try_from(self.kind).ok()?.known()
    }

    /// Returns the rejection. `None` if its kind is not known.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        let kind = self.known_kind()?;
        Some(Refusal {
            is_bare: self.message == self.text,
            ..Refusal::new(kind, self.text).about(self.job.map(JobId), self.task.map(TaskId))
        })
    }
}

impl From<&Refusal> for client::Error {
    fn from(refusal: &Refusal) -> Self {
        Self {
            message: refusal_text(refusal),
            kind: refusal.kind.to_wire(),
            text: refusal.text.to_string(),
            job: refusal.job.map(JobId::as_u32),
            task: refusal.task.map(TaskId::as_u32),
        }
    }
}

impl From<Refusal> for client::reply::Reply {
    fn from(refusal: Refusal) -> Self {
        Self::Error((&refusal).into())
    }
}

impl From<Refusal> for client::Reply {
    fn from(refusal: Refusal) -> Self {
        Self {
            reply: Some(refusal.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_travel_as_values_with_the_sentence_beside_them() {
        for kind in RefusalKind::ALL {
            let about = (Some(JobId(3)), Some(TaskId(7)));
            let plain = Refusal::new(kind, "no such task").about(about.0, about.1);
            for refusal in [plain.clone(), plain.bare()] {
                let message = client::Error::from(&refusal);
                let prefix = if refusal.is_bare { "" } else { "Error: " };
                assert_eq!(message.message, format!("{prefix}no such task"));
                assert_eq!(message.refusal(), Some(refusal));
            }
        }
    }

    #[test]
    fn a_sentence_alone_decides_nothing() {
        let old = client::Error {
            message: "Error: Job not found".to_owned(),
            ..client::Error::default()
        };
        assert_eq!(old.known_kind(), None);
        let newer = client::Error { kind: 99, ..old };
        assert_eq!(newer.refusal(), None);
    }
}
