//! JSON with unchanged numbers. Ids and seeds of 128 bits are common, and would lose digits as
//! floats.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The maximum nesting depth, as for all other JSON here. Each level uses stack space.
const DEPTH_MAX: usize = 128;

/// Returns a value as compact text with sorted keys. Fails if data would be lost.
pub(crate) fn compact(value: &RawValue) -> Result<String, String> {
    let mut out = String::with_capacity(value.get().len());
    append(value.get(), 0, &mut out)?;
    Ok(out)
}

/// Returns a value whose numbers are strings with their original text.
pub(crate) fn with_numbers_as_texts(value: &RawValue) -> Result<Value, String> {
    let text = compact(value)?;
    // The compact text has been checked for nesting and duplicate keys.
    numbers_to_texts(&text).map_err(|error| error.to_string())
}

fn numbers_to_texts(text: &str) -> Result<Value, serde_json::Error> {
    match text.as_bytes().first() {
        Some(b'{') => {
            let fields = fields(text)?.into_iter();
            let pairs = fields.map(|(key, value)| Ok((key, numbers_to_texts(value.get())?)));
            pairs.collect::<Result<_, _>>().map(Value::Object)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            let items = items.into_iter().map(|item| numbers_to_texts(item.get()));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        Some(b'-' | b'0'..=b'9') => Ok(Value::String(text.to_owned())),
        Some(_) | None => serde_json::from_str(text),
    }
}

/// Returns the fields of an object. Fails if a key occurs twice.
pub(crate) fn fields(text: &str) -> Result<BTreeMap<String, &RawValue>, serde_json::Error> {
    serde_json::Deserializer::from_str(text).deserialize_map(Fields)
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
            out.push('{');
            for (number, (key, value)) in fields(text).map_err(wrong)?.into_iter().enumerate() {
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

/// The fields of an object. Rejects duplicate keys, because only one value could be kept.
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
