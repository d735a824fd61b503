//! Converts types to OpenAPI 3.1 schemas. Used only in tests, because the finished description is
//! in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hq_core::task::TaskState;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{ByState, Id};
use crate::http::api::answers::{Bar, BarSum, ProblemKind};
use crate::problems::KINDS;

/// A type with its schema.
pub(in crate::http) trait Described {
    /// Returns the schema for places where the type is used.
    fn schema() -> Schema;

    /// Returns the schema without null.
    fn present() -> Schema {
        Self::schema()
    }

    /// Adds the named schemas that this type refers to.
    fn note(_all: &mut Components) {}
}

/// A type whose fields are query parameters.
pub(in crate::http) trait Asked {
    /// Returns names and schemas. Optional fields can be null.
    fn fields() -> Vec<(&'static str, Schema)>;
}

/// A schema: its keywords, with their values in YAML.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::http) struct Schema(Vec<(&'static str, String)>);

impl Schema {
    fn of(kind: &str) -> Self {
        Self(vec![("type", kind.to_owned())])
    }

    fn and(mut self, keyword: &'static str, value: impl ToString) -> Self {
        self.0.push((keyword, value.to_string()));
        self
    }

    /// Returns a reference to a named schema.
    pub(in crate::http) fn component(name: &str) -> Self {
        Self(vec![("$ref", format!("\"#/components/schemas/{name}\""))])
    }

    /// Returns a schema that accepts the words that these values serialize to.
    pub(in crate::http) fn words<T: Serialize>(all: &[T]) -> Self {
        let words = all.iter().map(|word| {
            let word = serde_json::to_value(word).expect("a word");
            word.as_str().expect("a word").to_owned()
        });
        let words: Vec<String> = words.collect();
        Self::of("string").and("enum", format!("[{}]", words.join(", ")))
    }

    fn array_of(items: &Self) -> Self {
        Self::of("array").and("items", items.flow())
    }

    fn sized(self, length: usize) -> Self {
        self.and("minItems", length).and("maxItems", length)
    }

    fn nullable(self) -> Self {
        if self.keyword("type").is_none() {
            return Self(vec![(
                "anyOf",
                format!("[{}, {{ type: \"null\" }}]", self.flow()),
            )]);
        }
        let keywords = self.0.into_iter().map(|(keyword, value)| match keyword {
            "type" => (keyword, format!("[{value}, \"null\"]")),
            "enum" => (keyword, value.replace(']', ", null]")),
            _ => (keyword, value),
        });
        Self(keywords.collect())
    }

    /// Returns the value of a keyword.
    pub(in crate::http) fn keyword(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(keyword, _)| *keyword == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns whether null is one of the values.
    pub(in crate::http) fn can_be_null(&self) -> bool {
        let places = ["type", "anyOf"]
            .into_iter()
            .filter_map(|name| self.keyword(name));
        places.into_iter().any(|value| value.contains("\"null\""))
    }

    fn flow(&self) -> String {
        let pairs = self
            .0
            .iter()
            .map(|(keyword, value)| format!("{keyword}: {value}"));
        format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    }
}

/// Returns the lines of a doc comment as one YAML text.
fn text(lines: &[&str]) -> Option<String> {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    let text = lines.join(" ");
    let text = text.trim().trim_end_matches('.');
    // YAML accepts JSON strings.
    (!text.is_empty()).then(|| Value::from(text).to_string())
}

/// Schemas by name, in YAML.
#[derive(Default)]
pub(in crate::http) struct Components {
    begun: BTreeSet<&'static str>,
    made: BTreeMap<&'static str, String>,
}

impl Components {
    /// Returns whether to generate a schema. Each schema is generated only once, even if it refers
    /// to itself.
    pub(in crate::http) fn begin(&mut self, name: &'static str) -> bool {
        self.begun.insert(name)
    }

    pub(in crate::http) fn end(&mut self, name: &'static str, object: &Object) {
        self.made.insert(name, object.yaml(name));
    }

    fn plain(&mut self, name: &'static str, schema: &Schema) {
        let line = format!("    {name}: {}\n", schema.flow());
        self.made.insert(name, line);
    }

    /// Returns all schemas, sorted by name.
    pub(in crate::http) fn yaml(&self) -> String {
        self.made.values().map(String::as_str).collect()
    }
}

/// A schema with fields.
pub(in crate::http) struct Object {
    about: Option<String>,
    base: Option<Schema>,
    required: Vec<String>,
    properties: Vec<(String, Schema)>,
}

impl Object {
    pub(in crate::http) fn new(about: &[&str]) -> Self {
        Self {
            about: text(about),
            base: None,
            required: Vec::new(),
            properties: Vec::new(),
        }
    }

    pub(in crate::http) fn base<T: Described>(&mut self, all: &mut Components) {
        T::note(all);
        self.base = Some(T::schema());
    }

    /// Adds a field with its name and the condition under which it is absent, if it can be.
    pub(in crate::http) fn field<T: Described>(
        &mut self,
        all: &mut Components,
        name: &[&str],
        words: &[&str],
    ) {
        T::note(all);
        let is_optional = name.len() > 1;
        let name = name[0].trim_start_matches("r#").to_owned();
        let mut schema = if is_optional {
            T::present()
        } else {
            T::schema()
        };
        if let Some(words) = text(words) {
            schema = schema.and("description", words);
        }
        if !is_optional {
            self.required.push(name.clone());
        }
        self.properties.push((name, schema));
    }

    fn yaml(&self, name: &str) -> String {
        let mut yaml = format!("    {name}:\n");
        let mut indent = "      ";
        if let Some(about) = &self.about {
            let _ = writeln!(yaml, "{indent}description: {about}");
        }
        let mut first = indent.to_owned();
        if let Some(base) = &self.base {
            let _ = writeln!(yaml, "{indent}allOf:\n{indent}  - {}", base.flow());
            first = format!("{indent}  - ");
            indent = "          ";
        }
        let required = self.required.join(", ");
        let _ = writeln!(yaml, "{first}type: object\n{indent}required: [{required}]");
        let _ = writeln!(yaml, "{indent}properties:");
        for (name, schema) in &self.properties {
            let _ = writeln!(yaml, "{indent}  {name}: {}", schema.flow());
        }
        yaml
    }
}

macro_rules! plain {
    ($($type:ty => $schema:expr;)*) => {
        $(
            impl Described for $type {
                fn schema() -> Schema {
                    $schema
                }
            }
        )*
    };
}
plain! {
    bool => Schema::of("boolean");
    String => Schema::of("string");
    f64 => Schema::of("number");
    i64 => Schema::of("integer");
    i32 => Schema::of("integer");
    u32 => Schema::of("integer").and("minimum", 0);
    u64 => Schema::of("integer").and("minimum", 0);
    usize => Schema::of("integer").and("minimum", 0);
    Map<String, Value> => Schema::of("object");
    BTreeMap<String, String> => Schema::of("object").and("additionalProperties", "{ type: string }");
    ProblemKind => Schema::words(KINDS);
    // Rows without field names. Their schema defines only the type and the number of columns.
    Bar => Schema::array_of(&Option::<f64>::schema()).sized(7);
    BarSum => Schema::array_of(&f64::schema()).sized(5);
    ByState<Option<u32>> => Schema::of("object").and("additionalProperties", Option::<u32>::schema().flow());
}

impl Described for Id {
    fn schema() -> Schema {
        Schema::component("Id")
    }

    fn note(all: &mut Components) {
        if all.begin("Id") {
            all.plain("Id", &u32::schema().and("maximum", u32::MAX));
        }
    }
}

impl Described for ByState<u64> {
    fn schema() -> Schema {
        Schema::component("Tasks")
    }

    fn note(all: &mut Components) {
        if all.begin("Tasks") {
            let names = TaskState::ALL.map(TaskState::name).join(", ");
            let counts = Schema::of("object").and("required", format!("[{names}]"));
            let counts = counts.and("additionalProperties", u64::schema().flow());
            all.plain("Tasks", &counts);
        }
    }
}

impl<T: Described> Described for Option<T> {
    fn schema() -> Schema {
        T::schema().nullable()
    }

    fn present() -> Schema {
        T::schema()
    }

    fn note(all: &mut Components) {
        T::note(all);
    }
}

impl<T: Described> Described for Vec<T> {
    fn schema() -> Schema {
        Schema::array_of(&T::schema())
    }

    fn note(all: &mut Components) {
        T::note(all);
    }
}

impl<T: Described, const N: usize> Described for [T; N] {
    fn schema() -> Schema {
        Schema::array_of(&T::schema()).sized(N)
    }

    fn note(all: &mut Components) {
        T::note(all);
    }
}
