//! Parses recipients of job notifications: `cmd:mail -s done me`, `https://example.org/hook`.

use hq_core::template::NotifyTarget;
use hq_server::check_webhook;

/// The maximum length of a command or address that the server accepts.
const LEN_MAX: usize = 4_096;

/// Parses a value of `--notify`.
pub(crate) fn parse_notify_target(text: &str) -> Result<NotifyTarget, String> {
    if text.len() > LEN_MAX || text.contains(['\0', '\n', '\r']) {
        return Err(format!("expected one line of at most {LEN_MAX} bytes"));
    }
    if let Some(line) = text.strip_prefix("cmd:") {
        if line.trim().is_empty() {
            return Err("expected a command after `cmd:`".to_owned());
        }
        return Ok(NotifyTarget::Command(line.into()));
    }
    let is_web = ["http://", "https://"]
        .iter()
        .filter_map(|scheme| text.strip_prefix(scheme))
        .any(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(' '));
    if is_web {
        // Reject invalid addresses now: when the job has ended, no user would see the error.
        check_webhook(text).map_err(|why| format!("not an address for a request: {why}"))?;
        return Ok(NotifyTarget::Webhook(text.into()));
    }
    Err("expected `cmd:COMMAND`, `http://…` or `https://…`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_command_or_an_address() {
        let command = NotifyTarget::Command("mail -s done me".into());
        assert_eq!(parse_notify_target("cmd:mail -s done me"), Ok(command));
        let address = NotifyTarget::Webhook("https://example.org/hook?x=1".into());
        assert_eq!(
            parse_notify_target("https://example.org/hook?x=1"),
            Ok(address)
        );
        for wrong in [
            "",
            "mail",
            "cmd:",
            "cmd: ",
            "ftp://x",
            "http://",
            "http:///x",
            "https://a b",
            "cmd:a\nb",
            "http://[bad/x",
            "http://host:70000/",
        ] {
            assert!(parse_notify_target(wrong).is_err(), "{wrong:?}");
        }
    }
}
