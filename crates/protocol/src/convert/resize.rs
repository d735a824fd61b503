//! Resubmission of jobs with different resource requests.

use hq_core::resize::NewRequest;
use hq_core::resource::amount::Amount;

use super::resource::amount;
use super::wire::{FromWire, each, field, list, received, wire};
use super::{ConvertError, Within, no_nul, required};
use crate::client;

/// The maximum number of new requests per resubmission. Tasks have few kinds.
pub const NEW_REQUESTS_MAX: usize = 64;

/// The maximum number of other resources in a new request, and of words in its command.
const OTHERS_MAX: usize = 256;
const ARGS_MAX: usize = 1 << 16;

wire! {
    read NewRequest = client::NewRequest {
        memory = memory_units: some_memory,
        args: list(ARGS_MAX, no_nul),
        others: each(OTHERS_MAX),
        growth,
        min_time = min_time_ns,
    }
}

fn some_memory(field: &str, found: u64) -> Result<Amount, ConvertError> {
    if found == 0 {
        return Err(ConvertError::invalid(field, "more than nothing", 0));
    }
    amount(field, found)
}
