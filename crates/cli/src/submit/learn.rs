//! Requests that are learned from finished tasks.

use hq_core::growth::MEMORY;
use hq_core::resource::request::ResourceEntry;
use hq_core::sizing::{FirstMemory, LearnSpec, PREDICT_DEFAULT};

use crate::args::submit::TaskOptions;
use crate::error::{CliError, CliResult};
use crate::parse::learn::TimeRequest;
use crate::parse::request::ResourceArg;

/// Why the memory of multi-node tasks is not learned.
pub(super) const WHOLE_NODES: &str =
    "mem=auto is for tasks on a part of one node; whole nodes come with all their memory";

/// Separates requests with amounts from the memory request to learn.
pub(super) fn split(
    resources: &[ResourceArg],
) -> CliResult<(Vec<ResourceEntry>, Option<FirstMemory>)> {
    let (mut entries, mut auto) = (Vec::with_capacity(resources.len()), None);
    for resource in resources {
        match resource {
            ResourceArg::Amount(entry) => entries.push(entry.clone()),
            ResourceArg::AutoMemory(first) if auto.is_none() => auto = Some(*first),
            ResourceArg::AutoMemory(_) => return Err(twice()),
        }
    }
    if auto.is_some() && entries.iter().any(|entry| &*entry.resource == MEMORY) {
        return Err(twice());
    }
    Ok((entries, auto))
}

fn twice() -> CliError {
    CliError::new(format!("Resource '{MEMORY}' defined more than once"))
}

/// Returns the settings for learning. `is_timed` means that the time is learned.
pub(super) fn build(
    options: &TaskOptions,
    memory: Option<FirstMemory>,
    is_timed: bool,
) -> CliResult<LearnSpec> {
    // A task whose request was too small is retried.
    if memory.is_some() && options.retries == Some(0) {
        return Err(CliError::new(
            "mem=auto needs another attempt for tasks that need more than most: leave retries out, or give a number",
        ));
    }
    if options.time_request == Some(TimeRequest::Auto) && options.no_predict {
        return Err(CliError::new(
            "--time-request auto and --no-predict contradict each other",
        ));
    }
    if matches!(options.time_request, Some(TimeRequest::Given(_))) && options.predict.is_some() {
        return Err(CliError::new(
            "--predict refines --time-request auto, and cannot be combined with a given time",
        ));
    }
    let predict = match options.predict {
        _ if options.no_predict => Some(0),
        Some(permille) => Some(permille),
        // This is the same as no value, except that later servers cannot apply another default.
        None => is_timed.then_some(PREDICT_DEFAULT),
    };
    Ok(LearnSpec {
        memory,
        predict,
        are_retries_given: memory.is_some() && options.retries.is_some(),
    })
}
