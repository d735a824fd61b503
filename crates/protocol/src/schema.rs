//! Reads the schema, and messages as trees of fields, so that tests can change any field.

use std::collections::{BTreeMap, BTreeSet};

use prost::encoding::{decode_varint, encode_varint};

/// The type of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A varint of this type.
    Number(&'static str),
    /// An enum with these values.
    Enum(Vec<u64>),
    Float,
    /// Eight bytes.
    Fixed,
    Text,
    Bytes,
    /// A message with this name.
    Message(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) is_repeated: bool,
    /// The `oneof` that the field is a member of.
    pub(crate) one_of: Option<String>,
}

/// The fields of each message, by names such as `common.IdRange`.
pub(crate) type Schema = BTreeMap<String, Vec<Field>>;

/// The files, with the module of their messages.
const FILES: [(&str, &str); 5] = [
    ("common", include_str!("../proto/hq/common.proto")),
    ("client", include_str!("../proto/hq/alloc.proto")),
    ("handshake", include_str!("../proto/hq/handshake.proto")),
    ("worker", include_str!("../proto/hq/worker.proto")),
    ("client", include_str!("../proto/hq/client.proto")),
];

const NUMBERS: [&str; 6] = ["uint32", "uint64", "int64", "sint32", "sint64", "bool"];

/// A field as it is declared, with the word for its type.
struct Declared {
    message: String,
    kind: &'static str,
    field: Field,
}

/// Returns the schema, and the names of its messages.
pub(crate) fn schema() -> (Schema, BTreeSet<String>) {
    let mut enums = BTreeMap::new();
    let mut schema = Schema::new();
    let mut declared = Vec::new();
    for (package, text) in FILES {
        read_file(package, text, (&mut schema, &mut enums, &mut declared));
    }
    let messages: BTreeSet<String> = schema.keys().cloned().collect();
    for Declared {
        message,
        kind,
        mut field,
    } in declared
    {
        field.kind = match kind {
            "string" => Kind::Text,
            "bytes" => Kind::Bytes,
            "float" => Kind::Float,
            "double" | "fixed64" => Kind::Fixed,
            kind => match NUMBERS.iter().find(|number| **number == kind) {
                Some(number) => Kind::Number(number),
                None => {
                    let package = message.split('.').next().unwrap_or_default();
                    let names = [
                        format!("{message}.{kind}"),
                        format!("{package}.{kind}"),
                        kind.replace("hq.common.v1.", "common."),
                    ];
                    let is_known =
                        |name: &&String| messages.contains(*name) || enums.contains_key(*name);
                    let name = names.iter().find(is_known);
                    let name = name.unwrap_or_else(|| panic!("no type {kind} of {message}"));
                    let values = enums.get(name).cloned();
                    values.map_or_else(|| Kind::Message(name.clone()), Kind::Enum)
                }
            },
        };
        schema.entry(message).or_default().push(field);
    }
    (schema, messages)
}

/// The values of each enum.
type Enums = BTreeMap<String, Vec<u64>>;

fn read_file(
    package: &str,
    text: &'static str,
    (schema, enums, declared): (&mut Schema, &mut Enums, &mut Vec<Declared>),
) {
    let (mut message, mut inner, mut one_of) = (package.to_owned(), None, None);
    for line in text.lines() {
        if line == "}" {
            package.clone_into(&mut message);
        }
        let line = line.split("//").next().unwrap_or_default();
        let words = line.split([' ', ';', '=']).filter(|word| !word.is_empty());
        let (is_repeated, words) = match words.collect::<Vec<_>>()[..] {
            ["repeated", kind, name, number] => (true, vec![kind, name, number]),
            ["optional", kind, name, number] => (false, vec![kind, name, number]),
            ref words => (false, words.to_vec()),
        };
        match words[..] {
            ["message", name, ..] => {
                message = format!("{package}.{name}");
                schema.insert(message.clone(), Vec::new());
            }
            ["enum", name, ..] => inner = Some(format!("{message}.{name}")),
            ["oneof", name, ..] => one_of = Some(name.to_owned()),
            ["}"] => (inner, one_of) = (None, None),
            ["syntax" | "package" | "import" | "reserved", ..] => {}
            [_, number] => {
                let values = enums.entry(inner.clone().expect("an enum")).or_default();
                values.push(number.parse().expect("a number"));
            }
            [kind, name, number] => declared.push(Declared {
                message: message.clone(),
                kind,
                field: Field {
                    number: number.parse().expect("a number"),
                    name: name.to_owned(),
                    kind: Kind::Bytes,
                    is_repeated,
                    one_of: one_of.clone(),
                },
            }),
            _ => {}
        }
    }
}

/// The value of a field.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Number(u64),
    Float(f32),
    Fixed(u64),
    Bytes(Vec<u8>),
    Message(Tree),
}

/// The fields of a message in the order of their bytes. A repeated field has an entry for each
/// element.
pub(crate) type Tree = Vec<(u32, Value)>;

/// Parses a message. Panics if it contains a field that is not in the schema.
pub(crate) fn parse(schema: &Schema, message: &str, mut bytes: &[u8]) -> Tree {
    let mut tree = Tree::new();
    while !bytes.is_empty() {
        let tag = decode_varint(&mut bytes).expect("a tag");
        let number = u32::try_from(tag >> 3).expect("a small number");
        let field = schema[message].iter().find(|field| field.number == number);
        let field = field.unwrap_or_else(|| panic!("{message} has no field {number}"));
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            taken
        };
        let value = match tag & 7 {
            1 => Value::Fixed(u64::from_le_bytes(take(8).try_into().expect("8 bytes"))),
            5 => Value::Float(f32::from_le_bytes(take(4).try_into().expect("4 bytes"))),
            0 => Value::Number(decode_varint(&mut bytes).expect("a number")),
            _ => {
                let length = decode_varint(&mut bytes).expect("a length");
                let (mut taken, rest) = bytes.split_at(usize::try_from(length).expect("short"));
                bytes = rest;
                match &field.kind {
                    Kind::Message(inner) => Value::Message(parse(schema, inner, taken)),
                    Kind::Number(_) | Kind::Enum(_) => {
                        while !taken.is_empty() {
                            let value = decode_varint(&mut taken).expect("a number");
                            tree.push((number, Value::Number(value)));
                        }
                        continue;
                    }
                    Kind::Float | Kind::Fixed | Kind::Text | Kind::Bytes => {
                        Value::Bytes(taken.to_vec())
                    }
                }
            }
        };
        tree.push((number, value));
    }
    tree
}

/// The inverse of [`parse`].
pub(crate) fn bytes_of(tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, value) in tree {
        let mut tag = |kind: u64| encode_varint(u64::from(*number) << 3 | kind, &mut bytes);
        match value {
            Value::Number(value) => {
                tag(0);
                encode_varint(*value, &mut bytes);
            }
            Value::Fixed(value) => {
                tag(1);
                bytes.extend(value.to_le_bytes());
            }
            Value::Float(value) => {
                tag(5);
                bytes.extend(value.to_le_bytes());
            }
            Value::Bytes(inner) => {
                tag(2);
                encode_varint(inner.len() as u64, &mut bytes);
                bytes.extend(inner);
            }
            Value::Message(inner) => {
                tag(2);
                let inner = bytes_of(inner);
                encode_varint(inner.len() as u64, &mut bytes);
                bytes.extend(inner);
            }
        }
    }
    bytes
}
