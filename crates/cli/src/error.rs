//! Errors of commands, how they are printed, and their exit codes.
//!
//! Messages are complete, human-readable sentences. Rejections by the server have the prefix
//! `Error: `, which scripts search for. Errors of the client do not.

use std::error::Error;
use std::fmt::Write as _;

use hq_core::error_chain::ErrorChain;
use hq_core::refusal::{Refusal, RefusalKind};
use hq_protocol::client;
use hq_protocol::convert::refusal_text;

use crate::text::cut_lines;

/// Exit codes, on which scripts rely.
pub(crate) mod exit {
    /// The exit code for success.
    pub(crate) const OK: u8 = 0;
    /// The exit code for any error while running.
    pub(crate) const FAILURE: u8 = 1;
    /// The exit code if the command line could not be parsed.
    pub(crate) const USAGE: u8 = 2;
    /// The exit code after an interrupt, which is the code that shells use for SIGINT.
    pub(crate) const INTERRUPTED: u8 = 130;
    /// The exit code if standard output was closed, which is the code that shells use for SIGPIPE.
    pub(crate) const CLOSED_PIPE: u8 = 141;
}

/// Why a command fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CliError {
    /// Something that did not work.
    Failed(Box<Failure>),
    /// A mistake in the command line, as described by the parser. Always printed as text to
    /// standard error.
    Usage(String),
    /// The reader closed standard output. Nothing is reported.
    ClosedPipe,
    /// The error has already been reported. Only the exit code remains.
    AlreadyReported(u8),
}

/// A message and its causes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Failure {
    /// The message.
    message: String,
    /// The causes, outermost first.
    causes: Vec<String>,
    /// A drawing for human-readable output.
    drawing: Option<String>,
    /// Advice with the exact command, shown only in human-readable output.
    help: Option<String>,
    /// The reason for the server's rejection, if it sent one.
    refusal: Option<RefusalKind>,
}

/// The result of a command.
pub(crate) type CliResult<T> = Result<T, CliError>;

impl CliError {
    /// Creates an error that the client found.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(Box::new(Failure {
            message: message.into(),
            ..Failure::default()
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Failure)) -> Self {
        if let Self::Failed(failure) = &mut self {
            change(failure);
        }
        self
    }

    fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::Usage(_) | Self::ClosedPipe | Self::AlreadyReported(_) => None,
        }
    }

    /// Creates an error for a command line that makes no sense.
    pub(crate) fn usage(message: &str) -> Self {
        Self::Usage(format!(
            "error: {message}\n\nFor more information, try '--help'."
        ))
    }

    /// Creates a rejection that the client detects itself, in the words of the server.
    pub(crate) fn refused(message: &str) -> Self {
        Self::new(refusal_text(&Refusal::invalid(message)))
    }

    /// Creates an error from a rejection by the server.
    pub(crate) fn from_server(error: client::Error) -> Self {
        let kind = error.known_kind();
        Self::new(error.message).with(|failure| failure.refusal = kind)
    }

    /// Returns whether the server rejected the request.
    pub(crate) fn is_refusal(&self) -> bool {
        self.failure()
            .is_some_and(|failure| failure.refusal.is_some())
    }

    /// Returns whether the server reports that something does not exist. Servers of earlier
    /// releases do not send a reason.
    pub(crate) fn is_not_found(&self) -> bool {
        let refusal = self.failure().and_then(|failure| failure.refusal);
        refusal == Some(RefusalKind::NotFound)
    }

    /// Creates an error with all its causes.
    pub(crate) fn caused(message: impl Into<String>, source: &dyn Error) -> Self {
        let causes = ErrorChain(source).iter().map(ToString::to_string);
        Self::new(message).with(|failure| failure.causes = causes.collect())
    }

    /// Adds a drawing for human-readable output.
    pub(crate) fn with_drawing(self, text: String) -> Self {
        self.with(|failure| failure.drawing = Some(text))
    }

    /// Adds advice with the exact command.
    pub(crate) fn with_help(self, text: impl Into<String>) -> Self {
        self.with(|failure| failure.help = Some(text.into()))
    }

    /// Creates an error about writing to standard output.
    pub(crate) fn from_output(error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::caused("Cannot write to standard output", error)
    }

    /// Returns the exit code of the process.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => exit::FAILURE,
            Self::ClosedPipe => exit::CLOSED_PIPE,
            Self::Usage(_) => exit::USAGE,
            Self::AlreadyReported(code) => *code,
        }
    }

    /// Returns the message with its causes, with very long lines shortened, or `None` if nothing is
    /// reported.
    pub(crate) fn text(&self) -> Option<String> {
        let failure = self.failure()?;
        let mut text = failure.message.clone();
        match failure.causes.as_slice() {
            [] => {}
            [cause] => {
                let _ = write!(text, "\n\nCaused by:\n    {}", indented(cause));
            }
            several => {
                text.push_str("\n\nCaused by:");
                for (i, cause) in several.iter().enumerate() {
                    let _ = write!(text, "\n    {i}: {}", indented(cause));
                }
            }
        }
        Some(cut_lines(text))
    }

    /// Returns the drawing if the error has one.
    pub(crate) fn drawing(&self) -> Option<&str> {
        self.failure()?.drawing.as_deref()
    }

    /// Returns the advice, if there is any.
    pub(crate) fn help(&self) -> Option<&str> {
        self.failure()?.help.as_deref()
    }
}

/// Says what failed.
pub(crate) trait Caused<T> {
    /// Adds a message to an error, which becomes the cause.
    fn caused(self, message: impl Into<String>) -> CliResult<T>;
}

impl<T, E: Error + 'static> Caused<T> for Result<T, E> {
    fn caused(self, message: impl Into<String>) -> CliResult<T> {
        self.map_err(|error| CliError::caused(message, &error))
    }
}

impl From<std::io::Error> for CliError {
    /// Converts an error of standard output. `?` is only used for these; other code adds the failed
    /// operation.
    fn from(error: std::io::Error) -> Self {
        Self::from_output(&error)
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_are_indented_and_numbered() {
        let io = std::io::Error::from_raw_os_error(2);
        let one = CliError::caused("Cannot read F", &io);
        assert_eq!(
            one.text().as_deref(),
            Some("Cannot read F\n\nCaused by:\n    No such file or directory (os error 2)")
        );
        let two = CliError::caused("Cannot read F", &Outer(io));
        assert_eq!(
            two.text().as_deref(),
            Some(
                "Cannot read F\n\nCaused by:\n    0: outer\n    1: No such file or directory (os error 2)"
            )
        );
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let error = CliError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((error.text(), error.exit_code()), (None, 141));
    }
}
