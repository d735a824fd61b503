//! Handles the ends of calls: their values, and the remaining calls of an interpreter that has
//! ended.

use std::collections::HashMap;
use std::time::Duration;

use hq_core::curve::SPACING_MIN;
use hq_core::outcome::Usage;
use hq_core::time::Time;
use hq_core::worker_state::{ExitStatus, InstanceKey, LaunchEvent, LaunchToken};

use super::interpreter::{Interpreter, start_failure};
use super::packet::{CpuTime, Done};
use super::{Call, CallPool, LongEnd, PendingInterpreter};
use crate::clock;
use crate::values::{HoldError, ValueStore};

impl CallPool {
    /// Records the end of an interpreter and its usage. The call that it was running ends with it.
    /// The other calls go to a new interpreter.
    pub(super) fn on_exited(
        &mut self,
        id: u64,
        (status, usage): (ExitStatus, Usage),
        message: Option<Box<str>>,
    ) -> Option<PendingInterpreter> {
        if let Some(interpreter) = self.interpreters.get(&id) {
            // Answers that the interpreter sent before its end still count, although the pool may
            // learn of the end first.
            interpreter.drain(id, &self.packets.0);
        }
        self.take_packets();
        if let Some(interpreter) = self.interpreters.get_mut(&id) {
            interpreter.take_back_sent();
        }
        let mut interpreter = self.remove(id)?;
        // Calls that cannot be taken back from the socket have begun.
        let mut begun: Vec<Call> = interpreter.sent.drain(..).collect();
        let mut waiting = std::mem::take(&mut interpreter.waiting);
        let mut status = status;
        let mut words = message;
        // An interpreter that failed by itself before any call would fail again.
        let has_failed_start = !interpreter.is_ready && !interpreter.is_ending;
        if !interpreter.is_ready {
            let first = waiting.iter().position(|call| call.since.is_some());
            let of_end = first.and_then(|first| waiting.remove(first));
            begun.extend(of_end);
        } else if let (None, ExitStatus::Code(code)) = (&words, status) {
            let text = format!("The interpreter ended with exit code {code} during the call");
            words = Some(text.into());
            status = ExitStatus::Code(1);
        }
        if has_failed_start {
            begun.extend(waiting.drain(..));
        }
        self.end_begun(
            &mut interpreter,
            begun,
            (status, usage),
            (words, has_failed_start),
        );
        let lane = interpreter.lane?;
        (!waiting.is_empty()).then(|| PendingInterpreter {
            lane,
            recipe: interpreter.recipe.clone(),
            calls: waiting,
        })
    }

    /// Ends the calls that an interpreter had begun. If it was never ready, its last words are
    /// their error.
    fn end_begun(
        &mut self,
        interpreter: &mut Interpreter,
        begun: Vec<Call>,
        (status, usage): (ExitStatus, Usage),
        (words, has_failed_start): (Option<Box<str>>, bool),
    ) {
        let total = CpuTime {
            user: usage.user,
            system: usage.system,
        };
        // If none of several has begun, the first one was waiting for the interpreter.
        let mut rest = Some(usage_of(total.since(interpreter.cpu), usage.max_rss_kib));
        let output = interpreter.take_rest(begun.first());
        let mut events = Vec::new();
        for call in begun {
            self.calls.remove(&call.token);
            // This removes the partial file of a value that will never be complete.
            self.long.discard(call.token.0);
            let now = clock::now().mono;
            let since = call.since.unwrap_or(now);
            // The core expects a start event before an end event.
            if call.since.is_none() {
                events.push(LaunchEvent::Started {
                    token: call.token,
                    at: now,
                });
            }
            self.long_ends.extend(long_end(&call, now, total));
            events.push(LaunchEvent::Exited {
                token: call.token,
                status: if has_failed_start {
                    ExitStatus::Code(1)
                } else {
                    status
                },
                ended: now,
                run: now.since(since),
                usage: rest.take().unwrap_or_default(),
                message: words.clone(),
            });
        }
        if events.is_empty() {
            return;
        }
        let copied = self.copied.0.clone();
        output.run(move |last_words| {
            for mut event in events {
                if let LaunchEvent::Exited { message, .. } = &mut event
                    && has_failed_start
                    && message.is_none()
                {
                    *message = Some(start_failure(status, last_words));
                }
                // This fails only if the worker ends.
                let _ = copied.send(event);
            }
        });
    }
}

/// The type bytes of values that the worker itself creates, see python/hq/_pickle.py.
const HELD: u8 = 7;
pub(super) const LOST: u8 = 8;
const TOO_LARGE: u8 = 9;
const DIED: u8 = 10;

/// Returns the value of a call, and the reason if the call failed.
pub(super) fn value_of(
    done: &Done<'_>,
    long: &mut ValueStore,
    call: &Call,
    can_be_made_again: bool,
) -> (Box<[u8]>, Option<Box<str>>) {
    if !done.is_held {
        let failure = (!done.is_ok).then(|| done.message.clone().into());
        return (done.value.into(), failure);
    }
    let size = done.value.try_into().map_or(0, u64::from_le_bytes);
    match long.hold((done.token, size), call.key, can_be_made_again) {
        Ok(reference) => (value_of_kind(HELD, reference.json()), None),
        Err(error) => {
            let kind = match error {
                HoldError::NoRoom(_) => TOO_LARGE,
                HoldError::Io(_) => DIED,
            };
            let text = format!("The result of the call cannot stay on its worker: {error}");
            let value = [&[kind][..], text.as_bytes()].concat();
            (value.into(), Some(text.into()))
        }
    }
}

/// Creates a value that the worker itself produces.
pub(super) fn value_of_kind(kind: u8, json: &serde_json::Value) -> Box<[u8]> {
    let mut value = vec![kind];
    value.extend(json.to_string().into_bytes());
    value.into()
}

/// Keeps a value until the server acknowledges it.
pub(super) fn keep(
    values: &mut HashMap<InstanceKey, Box<[u8]>>,
    bytes: &mut usize,
    key: InstanceKey,
    value: Box<[u8]>,
) {
    if value.is_empty() {
        return;
    }
    *bytes += value.len();
    // This replaces an earlier value of the same instance, whose bytes must not count twice.
    let before = values.insert(key, value);
    *bytes -= before.map_or(0, |value| value.len());
}

/// Returns the end event of a call that was canceled before its interpreter began it.
pub(super) fn kill_requested(token: LaunchToken, since: Time) -> LaunchEvent {
    let now = clock::now().mono;
    LaunchEvent::Exited {
        token,
        status: ExitStatus::Signal(rustix::process::Signal::TERM.as_raw()),
        ended: now,
        run: Duration::from_nanos(now.0.saturating_sub(since.0)),
        usage: Usage::default(),
        message: None,
    }
}

/// Returns the end record of a call that ran long enough for a usage curve. `total` is the CPU time
/// that its interpreter has used so far.
pub(super) fn long_end(call: &Call, ended: Time, total: CpuTime) -> Option<LongEnd> {
    let age = ended.since(call.since?);
    let cpu = total.sum().saturating_sub(call.cpu_before);
    (age >= SPACING_MIN).then_some((call.token, age, cpu))
}

pub(super) const fn usage_of(cpu: CpuTime, max_rss_kib: u64) -> Usage {
    Usage {
        max_rss_kib,
        user: cpu.user,
        system: cpu.system,
    }
}
