//! A notification of a job: its target and its delivery state.

use crate::id::JobId;
use crate::template::{ByteText, NotifySpec, NotifyTarget};
use crate::time::Timestamp;

/// Identifies a notification by its job and its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NoticeKey {
    /// The job.
    pub job: JobId,
    /// The number of the notification in the job.
    pub number: u32,
}

/// A notification of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The target and the event.
    pub spec: NotifySpec,
    /// The directory of the submission that requested it.
    pub submit_dir: ByteText,
    /// The delivery state.
    pub state: NoticeState,
}

/// The delivery state of a notification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum NoticeState {
    /// There is nothing to report yet.
    #[default]
    Waiting,
    /// The notification is being sent.
    Owed,
    /// The notification was sent or given up.
    Done(NoticeOutcome),
}

/// The outcome of a notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoticeOutcome {
    /// The time of the outcome.
    pub at: Timestamp,
    /// The number of attempts.
    pub attempts: u32,
    /// Why delivery has failed for good. `None` if it succeeded.
    pub error: Option<Box<str>>,
}

/// Returns the displayed form of a target. Addresses often have a secret in their path, and
/// commands in their options.
#[must_use]
pub fn shown_target(target: &NotifyTarget) -> String {
    match target {
        NotifyTarget::Command(command) => {
            // Variables in front of a command are as secret as its options.
            let mut words = command.split_whitespace();
            let program = words.by_ref().find(|word| !word.contains('='));
            let more = if words.next().is_some() { " …" } else { "" };
            format!("cmd:{}{more}", program.unwrap_or("…"))
        }
        NotifyTarget::Webhook(url) => {
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            // The part before the host may contain a password.
            let host = host.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/…")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_not_shown() {
        let shown = |url: &str| shown_target(&NotifyTarget::Webhook(url.into()));
        assert_eq!(
            shown("https://user:pw@hooks.example.org:8443/services/T0/B0/secret?x=1"),
            "https://hooks.example.org:8443/…"
        );
        assert_eq!(shown("http://[::1]:80"), "http://[::1]:80/…");
    }

    #[test]
    fn secrets_in_commands_are_not_shown() {
        let shown = |line: &str| shown_target(&NotifyTarget::Command(line.into()));
        assert_eq!(shown("./on-end.sh"), "cmd:./on-end.sh");
        assert_eq!(shown("true --token=CMDSECRET"), "cmd:true …");
        assert_eq!(shown(" TOKEN=CMDSECRET curl -d @- host"), "cmd:curl …");
        assert_eq!(shown("TOKEN=CMDSECRET"), "cmd:…");
    }
}
