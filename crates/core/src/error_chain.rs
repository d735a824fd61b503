//! An error with its chain of causes, for logs and messages. `Display` of an error does not include
//! its source.

use std::error::Error;
use std::fmt;

/// Shows an error and its causes on one line: `cannot read F: No such file or directory (os error
/// 2)`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl<'a> ErrorChain<'a> {
    /// Iterates over the error and its causes, the outermost first.
    pub fn iter(self) -> impl Iterator<Item = &'a dyn Error> {
        std::iter::successors(Some(self.0), |error: &&'a dyn Error| {
            let error: &'a dyn Error = *error;
            error.source()
        })
    }
}

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.iter().enumerate() {
            if number > 0 {
                f.write_str(": ")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;

    #[test]
    fn causes_follow_in_order() {
        assert_eq!(ErrorChain(&Outer(Inner)).to_string(), "outer: inner");
        assert_eq!(ErrorChain(&Inner).to_string(), "inner");
    }
}
