//! Computes the memory of a decoded message before it is decoded.
//!
//! Only repeated fields can take more memory than the received bytes. A shape therefore lists the
//! fields of a message that are repeated or contain repeated fields. A test compares the shapes
//! with the schema.

use crate::{common, worker};

/// The fields of a message that have to be counted.
#[derive(Debug)]
pub struct Shape {
    /// The name in the schema.
    #[cfg_attr(not(test), expect(dead_code, reason = "ties the shape to the schema"))]
    name: &'static str,
    fields: &'static [(u32, FieldKind)],
}

/// The type of a counted field.
#[derive(Debug)]
enum FieldKind {
    /// Messages, with the overhead of each one in bytes.
    Message(usize, &'static Shape),
    /// Texts.
    Text,
    /// Numbers, with the size of each one in bytes.
    Numbers(usize),
}

/// The overhead of a text in bytes: the size of the largest type that texts are decoded to.
const TEXT_SIZE: usize = size_of::<bytes::Bytes>();

const fn each<M>(shape: &'static Shape) -> FieldKind {
    FieldKind::Message(size_of::<M>(), shape)
}

macro_rules! shapes {
    ($($constant:ident = $name:literal { $($number:literal: $part:expr),* $(,)? })*) => {
        $(pub(super) static $constant: Shape = Shape {
            name: $name,
            fields: &[$(($number, $part)),*],
        };)*
        #[cfg(test)]
        const ALL: &[&Shape] = &[$(&$constant),*];
    };
}

const U32: FieldKind = FieldKind::Numbers(4);
const U64: FieldKind = FieldKind::Numbers(8);

shapes! {
    TO_SERVER = "ToServer" {
        1: each::<worker::Register>(&REGISTER),
        2: each::<worker::Heartbeat>(&HEARTBEAT),
        3: each::<worker::Report>(&REPORT),
        20: each::<worker::Notify>(&NOTIFY),
        40: each::<worker::Output>(&OUTPUT),
        41: each::<worker::Overview>(&OVERVIEW),
        42: each::<worker::Values>(&VALUES),
        43: each::<worker::OpenRelay>(&OPEN_RELAY),
    }
    OPEN_RELAY = "OpenRelay" { 2: FieldKind::Text }
    HEARTBEAT = "Heartbeat" {
        1: each::<worker::Unkillable>(&UNKILLABLE),
        2: U32,
        3: each::<worker::NodeFault>(&NODE_FAULT),
        5: each::<worker::TaskCurve>(&TASK_CURVE),
    }
    UNKILLABLE = "Unkillable" {}
    NODE_FAULT = "NodeFault" {
        2: FieldKind::Text,
        4: FieldKind::Text,
    }
    REGISTER = "Register" {
        1: each::<common::WorkerConfig>(&WORKER_CONFIG),
        2: each::<worker::Reattach>(&REATTACH),
    }
    REATTACH = "Reattach" {
        2: FieldKind::Text,
        3: each::<worker::TaskList>(&TASK_LIST),
        4: each::<worker::Report>(&REPORT),
        5: each::<worker::HeldVariant>(&HELD_VARIANT),
        7: FieldKind::Text,
    }
    HELD_VARIANT = "HeldVariant" {}
    TASK_LIST = "TaskList" { 1: each::<worker::TaskGroup>(&TASK_GROUP) }
    TASK_GROUP = "TaskGroup" { 2: U32, 3: U32 }
    REPORT = "Report" {
        1: each::<worker::Started>(&STARTED),
        2: each::<worker::Ended>(&ENDED),
        3: each::<worker::Failure>(&FAILURE),
        4: each::<worker::TaskList>(&TASK_LIST),
        6: each::<worker::TaskCurve>(&TASK_CURVE),
    }
    TASK_CURVE = "TaskCurve" { 4: each::<common::Curve>(&CURVE) }
    CURVE = "Curve" { 4: FieldKind::Text, 5: FieldKind::Text, 9: each::<common::GpuCurve>(&GPU_CURVE) }
    GPU_CURVE = "GpuCurve" { 3: FieldKind::Text, 4: FieldKind::Text }
    STARTED = "Started" { 2: U32, 3: U32, 4: U64 }
    ENDED = "Ended" { 2: U32, 3: U32, 4: U32, 5: U64, 6: U64, 7: U64, 8: U64, 9: U64 }
    FAILURE = "Failure" { 4: FieldKind::Text }
    NOTIFY = "Notify" { 3: FieldKind::Text }
    OUTPUT = "Output" { 3: FieldKind::Text, 6: FieldKind::Text }
    OVERVIEW = "Overview" {
        2: U32,
        6: each::<worker::Gpus>(&GPUS),
        7: each::<worker::Gpus>(&GPUS),
    }
    VALUES = "Values" { 1: each::<worker::Value>(&VALUE) }
    VALUE = "Value" { 4: FieldKind::Text }
    GPUS = "Gpus" { 1: each::<worker::Gpu>(&GPU) }
    GPU = "Gpu" { 1: FieldKind::Text }
    WORKER_CONFIG = "WorkerConfig" {
        1: FieldKind::Text,
        2: FieldKind::Text,
        3: FieldKind::Text,
        4: FieldKind::Text,
        13: each::<common::Allocation>(&ALLOCATION),
        14: each::<common::ResourceDescriptor>(&RESOURCE_DESCRIPTOR),
        17: FieldKind::Text,
    }
    ALLOCATION = "Allocation" { 2: FieldKind::Text, 4: FieldKind::Text }
    RESOURCE_DESCRIPTOR = "ResourceDescriptor" {
        1: each::<common::ResourceItem>(&RESOURCE_ITEM),
        2: each::<common::CouplingWeight>(&COUPLING_WEIGHT),
    }
    RESOURCE_ITEM = "ResourceItem" {
        1: FieldKind::Text,
        2: each::<common::IndexGroup>(&INDEX_GROUP),
        4: each::<common::IndexGroups>(&INDEX_GROUPS),
    }
    INDEX_GROUP = "IndexGroup" { 1: FieldKind::Text }
    INDEX_GROUPS = "IndexGroups" { 1: each::<common::IndexGroup>(&INDEX_GROUP) }
    COUPLING_WEIGHT = "CouplingWeight" {}
}

impl Shape {
    /// Returns the memory of a message in bytes, without its own struct and without spare capacity
    /// of vectors. Stops at invalid bytes, which the decoder rejects.
    #[must_use]
    pub fn decoded_bytes(&self, mut message: &[u8]) -> usize {
        let mut bytes = 0_usize;
        while let Some((number, value)) = next_field(&mut message) {
            let part = self.fields.iter().find(|(known, _)| *known == number);
            let taken = match (part.map(|(_, part)| part), value) {
                (Some(FieldKind::Message(size, shape)), Value::Bytes(inner)) => {
                    size + shape.decoded_bytes(inner)
                }
                (Some(FieldKind::Text), Value::Bytes(inner)) => TEXT_SIZE + inner.len(),
                // Each number takes at least one byte.
                (Some(FieldKind::Numbers(size)), Value::Bytes(inner)) => size * inner.len(),
                (Some(FieldKind::Numbers(size)), Value::Number) => *size,
                (_, Value::Number | Value::Bytes(_)) => 0,
            };
            bytes = bytes.saturating_add(taken);
        }
        bytes
    }
}

enum Value<'a> {
    Number,
    Bytes(&'a [u8]),
}

/// Removes a field from the front of a message. `None` at the end of the message, or if its bytes
/// are invalid.
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u32, Value<'a>)> {
    let key = varint(message)?;
    let number = u32::try_from(key >> 3).ok()?;
    let value = match key & 7 {
        0 => {
            varint(message)?;
            Value::Number
        }
        1 => {
            *message = message.get(8..)?;
            Value::Number
        }
        2 => {
            let length = usize::try_from(varint(message)?).ok()?;
            let (inner, rest) = message.split_at_checked(length)?;
            *message = rest;
            Value::Bytes(inner)
        }
        5 => {
            *message = message.get(4..)?;
            Value::Number
        }
        // Groups, which the schema does not use, and undefined types.
        _ => return None,
    };
    Some((number, value))
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (position, byte) in message.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            *message = message.get(position + 1..)?;
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Kind, schema};

    fn is_shape_of(name: &str, shape: &Shape) -> bool {
        name.split_once('.')
            .is_some_and(|(_, name)| name == shape.name)
    }

    #[test]
    fn shapes_are_those_of_the_schema() {
        let (schema, _) = schema();
        for shape in ALL {
            let names = ["worker", "common"].map(|package| format!("{package}.{}", shape.name));
            let fields = names.iter().find_map(|name| schema.get(name));
            let fields = fields.unwrap_or_else(|| panic!("no {}", shape.name));
            for (number, part) in shape.fields {
                let found = fields.iter().find(|field| field.number == *number);
                let found = found.unwrap_or_else(|| panic!("{} {number}", shape.name));
                let fits = match (part, &found.kind) {
                    (FieldKind::Message(_, inner), Kind::Message(name)) => is_shape_of(name, inner),
                    (FieldKind::Text, Kind::Text | Kind::Bytes)
                    | (FieldKind::Numbers(4), Kind::Number("uint32" | "sint32"))
                    | (FieldKind::Numbers(8), Kind::Number("uint64")) => true,
                    _ => false,
                };
                assert!(fits, "{} {found:?} is not {part:?}", shape.name);
            }
            for field in fields {
                // A message without repeated fields can be left out, unless it is itself repeated.
                let counts = match &field.kind {
                    Kind::Message(name) => ALL.iter().any(|inner| is_shape_of(name, inner)),
                    Kind::Text | Kind::Bytes => true,
                    Kind::Number(_) | Kind::Enum(_) | Kind::Float | Kind::Fixed => false,
                };
                let is_known = shape.fields.iter().any(|(known, _)| *known == field.number);
                assert_eq!(
                    counts || field.is_repeated,
                    is_known,
                    "{} {field:?}",
                    shape.name
                );
            }
        }
    }

    #[test]
    fn whatever_is_no_message_is_not_counted() {
        for bytes in [&[0x80][..], &[0x0a, 5], &[0x0b], &[0xff; 20], &[0x09, 1]] {
            assert_eq!(TO_SERVER.decoded_bytes(bytes), 0, "{bytes:?}");
        }
    }
}
