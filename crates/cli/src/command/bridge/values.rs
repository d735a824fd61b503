//! Fetches and releases values that workers hold, and recomputes lost values.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bytes::{BufMut as _, Bytes, BytesMut};
use hq_core::range::IdArray;
use hq_protocol::client;
use hq_worker::values::{self, FetchError, Reference};
use serde_json::{Value, json};

use super::Shared;
use super::talk::{answer, come_back};
use crate::client::Client;
use crate::command::all_tasks;
use crate::error::{CliError, CliResult};

/// The first byte of a payload with references to values. It is followed by a `u32` length, a JSON
/// list of references, and the payload itself.
const HAS_NEEDS: u8 = 3;
/// Like `HAS_NEEDS`, but preceded by a `u32` length and an error text for workers that do not
/// support values.
const HAS_NOTICE: u8 = 4;

fn parse(reference: Value) -> CliResult<Reference> {
    Reference::parse(reference)
        .ok_or_else(|| CliError::new("Expected a reference to a value, found something else"))
}

/// Writes a value to a new file, and reports whether that succeeded.
pub(super) async fn fetch(shared: Shared, id: u64, reference: Value, to: PathBuf) {
    let result = match parse(reference) {
        Ok(reference) => Ok(try_fetch(&reference, &to).await),
        Err(error) => Err(error),
    };
    answer(&shared, Some(id), result).await;
}

async fn try_fetch(reference: &Reference, to: &Path) -> Value {
    let result = values::fetch(reference, to).await;
    let (how, text) = match result {
        Ok(()) => ("here", None),
        Err(error) => {
            let how = match &error {
                FetchError::Gone => "gone",
                FetchError::Unreachable(_) => "unreachable",
                FetchError::Local { .. } => "local",
            };
            (how, Some(error.to_string()))
        }
    };
    json!({"how": how, "text": text})
}

/// Tells the workers that hold values to drop them. Answers the request `id`.
pub(super) async fn release(shared: Shared, id: Option<u64>, references: Vec<Value>) {
    let mut by_holder: BTreeMap<String, Vec<Reference>> = BTreeMap::new();
    for reference in references.into_iter().filter_map(Reference::parse) {
        let holder = reference.json()["key"].to_string();
        by_holder.entry(holder).or_default().push(reference);
    }
    for references in by_holder.into_values() {
        if let Err(error) = values::drop_values(&references).await {
            // Either the worker has ended and its values no longer exist, or it keeps them until it
            // ends.
            tracing::debug!("values were not released: {error}");
        }
    }
    if id.is_some() {
        answer(&shared, id, Ok(Value::Null)).await;
    }
}

/// Returns the payload of a call that is submitted again.
pub(super) async fn again(
    shared: &Shared,
    (job, task): (u32, u32),
    swap: &HashMap<String, Value>,
) -> CliResult<Bytes> {
    let mut client = come_back(shared, None).await?;
    let entry = payload_of(&mut client, (job, task))
        .await?
        // The arguments of a call that was released are empty.
        .filter(|entry| !entry.is_empty())
        .ok_or_else(|| CliError::new(format!("Call {task} of job {job} no longer exists")))?;
    Ok(swapped(entry, swap))
}

/// Returns the payload of a call as stored by the server, or `None` if it has none.
pub(super) async fn payload_of(
    client: &mut Client,
    (job, task): (u32, u32),
) -> CliResult<Option<Bytes>> {
    let request = client::TaskPage {
        tasks: Some((&IdArray::single(task)).into()),
        with_definition: true,
        ..all_tasks(job)
    };
    let page = client.ask(request).await?;
    Ok(page.tasks.into_iter().find_map(|task| task.entry))
}

/// Returns a payload with some references replaced.
fn swapped(payload: Bytes, swap: &HashMap<String, Value>) -> Bytes {
    let parts = || {
        let (kind, rest) = payload.split_first()?;
        let head = match *kind {
            HAS_NEEDS => 1,
            HAS_NOTICE => 5 + split_counted(rest)?.0.len(),
            _ => return None,
        };
        let (head, rest) = payload.split_at_checked(head)?;
        let (list, rest) = split_counted(rest)?;
        Some((head, serde_json::from_slice::<Vec<Value>>(list).ok()?, rest))
    };
    let Some((head, mut references, rest)) = parts() else {
        return payload;
    };
    for reference in &mut references {
        let other = reference["name"].as_str().and_then(|name| swap.get(name));
        if let Some(other) = other {
            *reference = other.clone();
        }
    }
    let list = Value::from(references).to_string();
    let mut made = BytesMut::with_capacity(head.len() + 4 + list.len() + rest.len());
    made.put_slice(head);
    made.put_u32_le(u32::try_from(list.len()).unwrap_or(u32::MAX));
    made.put_slice(list.as_bytes());
    made.put_slice(rest);
    made.freeze()
}

/// Splits off a field that is preceded by its length. Returns the field and the rest.
fn split_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(head: &[u8], references: &Value) -> Bytes {
        let list = references.to_string();
        let len = u32::try_from(list.len()).expect("short");
        [head, &len.to_le_bytes(), list.as_bytes(), b"rest"]
            .concat()
            .into()
    }

    #[test]
    fn only_the_references_that_are_named_are_swapped() {
        let swap = HashMap::from([("b".to_owned(), json!({"name": "c"}))]);
        for head in [&b"\x03"[..], b"\x04\x02\0\0\0no"] {
            let before = payload(head, &json!([{"name": "a"}, {"name": "b"}]));
            let after = payload(head, &json!([{"name": "a"}, {"name": "c"}]));
            assert_eq!(swapped(before, &swap), after);
        }
        for other in [
            &b"\0rest"[..],
            b"\x03",
            b"\x03\xff\0\0\0[]",
            b"\x04\xff\0\0\0[]",
        ] {
            assert_eq!(swapped(Bytes::from(other), &swap), other);
        }
    }
}
