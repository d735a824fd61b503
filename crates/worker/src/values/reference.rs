//! A reference to a value that a worker holds.

use std::path::PathBuf;

use hq_core::worker_state::InstanceKey;
use hq_protocol::SecretKey;
use serde_json::{Value, json};

/// The number of digits in a value's name.
const NAME_LEN: usize = 32;

/// The location of a value, with the right to read it. The server stores it as the result of the
/// call without interpreting it. Its owner gets it from the server over an authenticated
/// connection.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The complete JSON as it is passed on, including fields added by later releases.
    json: Value,
    pub(super) size: u64,
    pub(super) name: String,
    pub(super) key: SecretKey,
    /// The hosts and ports of the holder.
    pub(super) at: Vec<(String, u16)>,
    /// The machine on which the file of the value can be opened by path.
    pub(super) machine: String,
    pub(super) path: PathBuf,
}

impl Reference {
    pub(super) fn new(
        key: InstanceKey,
        worker: u32,
        (name, size, path): (String, u64, PathBuf),
        (secret, at, machine): (&SecretKey, &[(String, u16)], &str),
    ) -> Self {
        let json = json!({
            "job": key.task.job.as_u32(),
            "task": key.task.task.as_u32(),
            "worker": worker,
            "size": size,
            "name": name,
            "key": secret.to_hex(),
            "at": at,
            "machine": machine,
            // A path that is not UTF-8 cannot be opened this way. The holder then serves the value.
            "path": path.to_string_lossy(),
        });
        Self {
            json,
            size,
            name,
            key: secret.clone(),
            at: at.to_vec(),
            machine: machine.to_owned(),
            path,
        }
    }

    /// Parses a reference. Returns `None` if a field is missing or invalid.
    #[must_use]
    pub fn parse(json: Value) -> Option<Self> {
        let text = |name: &str| Some(json.get(name)?.as_str()?.to_owned());
        let name = text("name")?;
        // The name becomes part of a file name.
        if name.len() != NAME_LEN || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let at = json.get("at")?.as_array()?.iter().map(|place| {
            let port = place.get(1)?.as_u64()?;
            Some((
                place.get(0)?.as_str()?.to_owned(),
                u16::try_from(port).ok()?,
            ))
        });
        Some(Self {
            size: json.get("size")?.as_u64()?,
            key: SecretKey::from_hex(&text("key")?).ok()?,
            at: at.collect::<Option<_>>()?,
            machine: text("machine")?,
            path: text("path")?.into(),
            name,
            json,
        })
    }

    /// Returns the size of the value in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the unique name of the value.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the JSON form as it is passed on.
    #[must_use]
    pub const fn json(&self) -> &Value {
        &self.json
    }

    /// Returns the JSON form for an interpreter, with a path that it can open.
    pub(crate) fn at_path(&self, path: &std::path::Path) -> Value {
        let mut json = self.json.clone();
        // The interpreter maps the characters back to bytes.
        json["path"] = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
            .iter()
            .map(|byte| char::from(*byte))
            .collect::<String>()
            .into();
        json
    }
}

/// Returns a name that cannot be guessed.
pub(super) fn new_name() -> Option<String> {
    let mut name = SecretKey::generate().ok()?.to_hex();
    name.truncate(NAME_LEN);
    Some(name)
}

#[cfg(test)]
mod tests {
    use hq_core::id::{InstanceId, JobId};

    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written_and_no_other_is() {
        let key = InstanceKey::new(JobId(3), 4, InstanceId(0));
        let secret = SecretKey::from_bytes([7; 32]);
        let name = new_name().expect("random numbers");
        let at = [("node1".to_owned(), 1234)];
        let made = Reference::new(
            key,
            9,
            (name.clone(), 77, "/values/x".into()),
            (&secret, &at, "node1 boot"),
        );
        let read = Reference::parse(made.json().clone()).expect("it is whole");
        assert_eq!((read.size(), read.name(), &read.key), (77, &*name, &secret));
        assert_eq!(
            (&read.at[..], read.path.to_str()),
            (&at[..], Some("/values/x"))
        );
        for (field, value) in [
            ("name", json!("../../../../../etc/passwd")),
            ("name", json!("../.".repeat(8))),
            ("key", json!("")),
            ("size", json!(-1)),
            ("at", json!([["node1"]])),
        ] {
            let mut other = made.json().clone();
            other[field] = value;
            assert!(Reference::parse(other).is_none(), "{field}");
        }
        assert!(Reference::parse(json!([])).is_none());
    }
}
