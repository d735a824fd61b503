//! Sends the values of calls to the server. They are sent before the report that the calls have
//! ended, and kept until that report is acknowledged.

use std::collections::VecDeque;

use hq_core::worker_state::{InstanceKey, Report};
use hq_protocol::worker::{ToServer, Value, Values, to_server};

use crate::launcher::CallPool;

/// The maximum size in bytes of the values in one message.
const MESSAGE_BYTES: usize = 1 << 20;
/// The encoding overhead of a value, in bytes.
const VALUE_BYTES: usize = 32;

/// The calls whose values have been sent, by the number of the report about their end.
#[derive(Debug, Default)]
pub(crate) struct Reported(VecDeque<(u64, Vec<InstanceKey>)>);

impl Reported {
    /// Returns messages with the values of the calls that end in the next report.
    pub(crate) fn values(&mut self, report: &Report, calls: &CallPool) -> Vec<ToServer> {
        let mut messages = Vec::new();
        if report.ended.is_empty() || !calls.has_values() {
            return messages;
        }
        let (mut keys, mut values, mut bytes) = (Vec::new(), Vec::new(), 0);
        for row in &report.ended {
            let Some(data) = calls.value(row.key) else {
                continue;
            };
            keys.push(row.key);
            if bytes + data.len() + VALUE_BYTES > MESSAGE_BYTES && !values.is_empty() {
                messages.push(message(std::mem::take(&mut values)));
                bytes = 0;
            }
            bytes += data.len() + VALUE_BYTES;
            values.push(Value {
                job: row.key.task.job.as_u32(),
                task: row.key.task.task.as_u32(),
                instance: row.key.instance.as_u32(),
                data: data.to_vec().into(),
            });
        }
        if !values.is_empty() {
            messages.push(message(values));
        }
        if !keys.is_empty() {
            self.0.push_back((report.seq, keys));
        }
        messages
    }

    /// Returns the calls whose end the server has stored.
    pub(crate) fn acknowledge(&mut self, seq: u64) -> Vec<InstanceKey> {
        let mut recorded = Vec::new();
        while let Some((_, mut keys)) = self.0.pop_front_if(|(number, _)| *number <= seq) {
            recorded.append(&mut keys);
        }
        recorded
    }
}

fn message(values: Vec<Value>) -> ToServer {
    ToServer {
        message: Some(to_server::Message::Values(Values { values })),
    }
}
