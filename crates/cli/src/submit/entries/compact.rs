//! JSON without blanks and with sorted keys. Numbers stay as they are written: ids and seeds of 128 bits are usual, and
//! would not survive as a float.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Levels of lists and objects, as in any JSON that is read elsewhere here: each takes a piece of the stack.
const DEPTH_MAX: usize = 128;

/// A value as compact text with sorted keys; fails if something would be lost.
pub(super) fn compact(value: &RawValue) -> Result<String, String> {
    let mut out = String::with_capacity(value.get().len());
    append(value.get(), 0, &mut out)?;
    Ok(out)
}

fn append(text: &str, depth: usize, out: &mut String) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!(
            "expected at most {DEPTH_MAX} levels of lists and objects, found more"
        ));
    }
    let wrong = |error: serde_json::Error| error.to_string();
    match text.as_bytes().first() {
        Some(b'{') => {
            let mut json = serde_json::Deserializer::from_str(text);
            let fields = json.deserialize_map(Fields).map_err(wrong)?;
            out.push('{');
            for (number, (key, value)) in fields.into_iter().enumerate() {
                out.push_str(if number == 0 { "" } else { "," });
                out.push_str(&serde_json::to_string(&key).map_err(wrong)?);
                out.push(':');
                append(value.get(), depth + 1, out)?;
            }
            out.push('}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(wrong)?;
            out.push('[');
            for (number, item) in items.into_iter().enumerate() {
                out.push_str(if number == 0 { "" } else { "," });
                append(item.get(), depth + 1, out)?;
            }
            out.push(']');
        }
        Some(b'"') => {
            let content: String = serde_json::from_str(text).map_err(wrong)?;
            out.push_str(&serde_json::to_string(&content).map_err(wrong)?);
        }
        Some(_) | None => out.push_str(text),
    }
    Ok(())
}

/// The fields of an object; a key that is there twice is refused, since only one of the values could be kept.
struct Fields;

impl<'a> Visitor<'a> for Fields {
    type Value = BTreeMap<String, &'a RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            if fields.contains_key(&key) {
                return Err(serde::de::Error::custom(format!(
                    "expected different keys, found the key {key:?} twice"
                )));
            }
            fields.insert(key, value);
        }
        Ok(fields)
    }
}
