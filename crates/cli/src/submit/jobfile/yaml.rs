//! Parses YAML, and finds positions in it.

use hq_protocol::limits::REQUEST_MAX;
use serde::Deserialize;

/// The maximum number of nodes in a file. This is more than any submit has, but bounded.
const YAML_NODES_MAX: usize = 1 << 28;

/// Parses YAML 1.2. Limits the repetition by aliases, so that a short file cannot expand to a huge
/// one.
pub(super) fn yaml<'de, T: Deserialize<'de>>(content: &'de str) -> Result<T, serde_saphyr::Error> {
    let budget = serde_saphyr::budget! {
        max_events: 2 * YAML_NODES_MAX,
        max_nodes: YAML_NODES_MAX,
        max_total_scalar_bytes: REQUEST_MAX,
        max_documents: 1,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(content, options)
}

/// Returns the byte offset of a position in a YAML file.
pub(super) fn yaml_offset(content: &str, place: serde_saphyr::Location) -> usize {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    match place.span().byte_offset() {
        Some(at) => number(at),
        None => offset(content, number(place.line()), number(place.column())),
    }
}

/// Returns the byte offset of a line and a column of bytes, both starting from 1.
pub(super) fn offset(content: &str, line: usize, column: usize) -> usize {
    let before = content.split_inclusive('\n').take(line.saturating_sub(1));
    let start: usize = before.map(str::len).sum();
    (start + column.saturating_sub(1)).min(content.len())
}
