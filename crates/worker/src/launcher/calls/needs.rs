//! Handles calls that read values of other calls. They wait until all of these values have arrived.
//!
//! ```text
//! payload   4 len:u32 notice len:u32 references payload        references: a JSON list of what stands for values, see `values`
//!           3 len:u32 references payload                       of clients that give no notice
//! ```
//!
//! A worker that does not support values treats the notice as a function, which raises an error
//! when called.
//!
//! The interpreter gets the second form, with paths that it can open in the references.
//!
//! If other calls take up the space that a call's values need, the call holds none of its values
//! and waits until there is room for all of them. Two such calls therefore cannot deadlock.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hq_core::outcome::{Usage, VALUE_MISSING};
use hq_core::worker_state::{ExitStatus, LaunchEvent, LaunchToken};
use serde_json::{Value, json};

use super::ends::{LOST, keep, value_of_kind};
use super::{Call, CallPool, PendingInterpreter, Recipe, Reference, ValueFile};
use crate::clock;
use crate::values::{FetchError, Fetched};

/// The first byte of a payload with references.
const HAS_NEEDS: u8 = 3;
/// The first byte of a payload with a notice and references.
const HAS_NOTICE: u8 = 4;

/// A call that waits for values.
pub(super) struct ParkedCall {
    lane: LaunchToken,
    pub(super) recipe: Recipe,
    call: Call,
    references: Vec<Reference>,
    /// The values that have arrived, in the order of the references.
    files: Vec<Option<Arc<ValueFile>>>,
    /// Whether the call waits for space.
    is_starved: bool,
}

impl ParkedCall {
    pub(super) const fn token(&self) -> LaunchToken {
        self.call.token
    }
}

/// Splits a payload into references and the rest. Returns `None` if it has no references.
fn divide(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (kind, rest) = payload.split_first()?;
    match *kind {
        HAS_NEEDS => split_counted(rest),
        HAS_NOTICE => split_counted(split_counted(rest)?.1),
        _ => None,
    }
}

/// Splits bytes at the length that precedes them.
fn split_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
}

/// Returns the values that a call reads.
pub(super) fn of_payload(payload: &[u8]) -> Result<Vec<Reference>, Box<str>> {
    if !matches!(payload.first(), Some(&(HAS_NEEDS | HAS_NOTICE))) {
        return Ok(Vec::new());
    }
    let parse = || -> Option<Vec<Reference>> {
        let (list, _) = divide(payload)?;
        let list: Vec<Value> = serde_json::from_slice(list).ok()?;
        list.into_iter().map(Reference::parse).collect()
    };
    parse().ok_or_else(|| {
        "This worker cannot read the references to the call's values: worker and client are of different releases"
            .into()
    })
}

/// Returns the payload for an interpreter, with paths in the references.
fn with_paths(payload: &[u8], needs: &[(&Reference, &Path)]) -> Box<[u8]> {
    let Some((_, rest)) = divide(payload) else {
        return payload.into();
    };
    let list: Value = needs.iter().map(|(one, path)| one.at_path(path)).collect();
    let list = list.to_string().into_bytes();
    let len = u32::try_from(list.len()).unwrap_or(u32::MAX);
    [&[HAS_NEEDS][..], &len.to_le_bytes(), &list, rest]
        .concat()
        .into()
}

impl CallPool {
    /// Takes a call that reads values. Continues it at once if all values are here.
    pub(super) fn park(
        &mut self,
        lane: LaunchToken,
        recipe: Recipe,
        call: Call,
        references: Vec<Reference>,
    ) {
        let mut files = Vec::with_capacity(references.len());
        for reference in &references {
            match self.long.get(reference) {
                Ok(file) => files.push(file),
                // If one value is missing, the others are useless.
                Err(error) => return self.end_without(&call, reference, &error),
            }
        }
        let parked = ParkedCall {
            lane,
            recipe,
            call,
            references,
            files,
            is_starved: false,
        };
        if parked.files.iter().all(Option::is_some) {
            self.resume(parked);
        } else {
            self.parked.push(parked);
        }
    }

    /// Forgets a call that waits for values. Returns `false` if the call is unknown.
    pub(super) fn unpark(&mut self, token: LaunchToken) -> bool {
        let found = self.parked.iter().position(|one| one.token() == token);
        found.is_some_and(|position| {
            self.parked.remove(position);
            true
        })
    }

    /// Returns the calls that need a new interpreter.
    pub(super) fn take_wanted(&mut self) -> Vec<PendingInterpreter> {
        self.feed_starved();
        std::mem::take(&mut self.wanted)
    }

    /// Requests the values of calls again if there is now room for them, the longest waiting call
    /// first.
    fn feed_starved(&mut self) {
        let mut fed = Vec::new();
        while let Some(position) = self.parked.iter().position(|one| one.is_starved) {
            // This includes the values of calls that were just resumed, because they have not
            // arrived yet.
            fed.extend_from_slice(&self.parked[position].references);
            if !self.long.fits(&fed, true) {
                return;
            }
            let parked = self.parked.remove(position);
            self.park(parked.lane, parked.recipe, parked.call, parked.references);
        }
    }

    /// Records that a value has arrived or cannot be fetched.
    pub(super) fn on_fetched(&mut self, (name, result): Fetched) {
        for mut parked in std::mem::take(&mut self.parked) {
            let position = parked.references.iter().position(|one| one.name() == name);
            let Some(position) = position.filter(|_| !parked.is_starved) else {
                self.parked.push(parked);
                continue;
            };
            let found = match &result {
                Ok(found) => found,
                Err(error) if error.is_no_room() && self.long.fits(&parked.references, false) => {
                    parked.files.clear();
                    parked.is_starved = true;
                    self.parked.push(parked);
                    continue;
                }
                Err(error) => {
                    self.end_without(&parked.call, &parked.references[position], error);
                    continue;
                }
            };
            let same = parked.references.iter().zip(&mut parked.files);
            // A call may read the same value several times.
            for (_, file) in same.filter(|(one, _)| one.name() == name) {
                *file = Some(Arc::clone(found));
            }
            if parked.files.iter().all(Option::is_some) {
                self.resume(parked);
            } else {
                self.parked.push(parked);
            }
        }
    }

    /// Continues a call whose values have all arrived.
    fn resume(&mut self, parked: ParkedCall) {
        let ParkedCall {
            lane,
            recipe,
            mut call,
            references,
            files,
            ..
        } = parked;
        // The files are kept until the call ends, because the interpreter opens them by path.
        call.needs = files.into_iter().flatten().collect();
        let paths = references.iter().zip(&call.needs);
        let paths: Vec<_> = paths.map(|(one, file)| (one, file.path())).collect();
        call.payload = with_paths(&call.payload, &paths);
        if let Some(call) = self.push(lane, &recipe.kind, call) {
            self.wanted.push(PendingInterpreter {
                lane,
                recipe,
                calls: VecDeque::from([call]),
            });
        }
    }

    /// Ends a call whose value cannot be fetched. Its client decides what to do.
    fn end_without(&mut self, call: &Call, reference: &Reference, error: &FetchError) {
        let why = match error {
            FetchError::Gone => "gone",
            FetchError::Unreachable(_) => "unreachable",
            FetchError::Local { .. } => "local",
        };
        let text = format!("{VALUE_MISSING}: {error}");
        let value = json!({"ref": reference.json(), "why": why, "text": text});
        let value = value_of_kind(LOST, &value);
        keep(&mut self.values, &mut self.value_bytes, call.key, value);
        let token = call.token;
        let now = clock::now().mono;
        // The core expects a start event before an end event.
        self.events.push(LaunchEvent::Started { token, at: now });
        self.events.push(LaunchEvent::Exited {
            token,
            status: ExitStatus::Code(1),
            ended: now,
            run: Duration::ZERO,
            usage: Usage::default(),
            message: Some(text.into()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_names_values_wrongly_is_refused_and_no_other_is() {
        assert_eq!(of_payload(b"").expect("nothing").len(), 0);
        assert_eq!(of_payload(b"\0 no needs").expect("nothing").len(), 0);
        for wrong in [
            &b"\x03"[..],
            b"\x03\xff\xff\xff\xff[]",
            b"\x03\x02\0\0\0{}",
            b"\x03\x04\0\0\0[{}]rest",
            b"\x04\x02\0\0\0[]",
            b"\x04\x01\0\0\0n\x02\0\0\0{}",
        ] {
            assert!(of_payload(wrong).is_err(), "{wrong:?}");
        }
        for right in [
            &b"\x03\x02\0\0\0[]rest"[..],
            b"\x04\x01\0\0\0n\x02\0\0\0[]rest",
        ] {
            assert!(of_payload(right).expect("a list").is_empty(), "{right:?}");
            let for_interpreter = with_paths(right, &[]);
            assert_eq!(*for_interpreter, *b"\x03\x02\0\0\0[]rest");
        }
    }
}
