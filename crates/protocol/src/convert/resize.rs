//! Resubmission of jobs with different resource requests.

use hq_core::resize::NewRequest;
use hq_core::selector::Selector;
use hq_core::time::nanos;

use super::resource::amount;
use super::wire::{FromWire, each, list};
use super::{ConvertError, duration, no_nul};
use crate::{client, common};

/// The maximum number of new requests per resubmission. Tasks have few kinds.
pub const NEW_REQUESTS_MAX: usize = 64;

/// The maximum number of other resources in a new request, and of words in its command.
const OTHERS_MAX: usize = 256;
const ARGS_MAX: usize = 1 << 16;

impl TryFrom<client::NewRequest> for NewRequest {
    type Error = ConvertError;

    fn try_from(message: client::NewRequest) -> Result<Self, ConvertError> {
        if message.memory_units == 0 {
            let expected = "more than nothing";
            return Err(ConvertError::invalid("memory_units", expected, 0));
        }
        Ok(Self {
            args: list(ARGS_MAX, no_nul)("args", message.args)?,
            others: each(OTHERS_MAX)("others", message.others)?,
            memory: amount("memory_units", message.memory_units)?,
            growth: FromWire::from_wire("growth", message.growth)?,
            min_time: duration(message.min_time_ns),
        })
    }
}

impl From<&NewRequest> for client::NewRequest {
    fn from(request: &NewRequest) -> Self {
        let args = request.args.iter();
        Self {
            args: args.map(|arg| arg.to_vec().into()).collect(),
            others: request
                .others
                .iter()
                .map(common::ResourceEntry::from)
                .collect(),
            memory_units: request.memory.0,
            growth: request.growth.map(|growth| common::Growth {
                permille: growth.permille,
                max: growth.max.map(|max| max.0),
            }),
            min_time_ns: nanos(request.min_time),
        }
    }
}

/// Encodes the jobs of a resubmission in a field that only servers with this feature know.
pub(super) fn resize_message(jobs: &Selector, requests: &[NewRequest]) -> client::Resize {
    client::Resize {
        jobs: Some(jobs.into()),
        requests: requests.iter().map(Into::into).collect(),
    }
}
