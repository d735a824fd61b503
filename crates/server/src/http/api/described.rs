//! The types of the API: the values that handlers read and write, with their descriptions in
//! `docs/openapi.yaml`.
//!
//! [`answer`], [`words`] and [`query`] define a type and, for tests, its schema, so that the two
//! cannot differ. One test generates the answers in the description and compares them, and another
//! compares parameters and routes. Comments on fields are descriptions for users of the API.
//! `docs/adr/0021-types-describe-the-interface.md` explains why no crate is used.

#[cfg(test)]
pub(super) mod schema;

use hq_core::autoalloc::ReasonKind;
use hq_core::job::JobState;
use hq_core::task::TaskState;
use hq_protocol::convert::Role;
use serde::{Serialize, Serializer};

/// Defines an answer. All fields are always present, except those after `optional`.
/// `Name: Base { … }` includes the fields of `Base`.
macro_rules! answer {
    (
        $(#[doc = $about:literal])*
        $name:ident $(: $base:ident)? {
            $( $(#[doc = $words:literal])* $field:ident: $type:ty, )*
        }
        $( optional { $( $(#[doc = $more_words:literal])* $more:ident: $more_type:ty, )* } )?
    ) => {
        $(#[doc = $about])*
        #[derive(serde::Serialize, Clone, Debug)]
        pub(in crate::http) struct $name {
            $(
                /// The inherited fields.
                #[serde(flatten)]
                pub(in crate::http) base: $base,
            )?
            $( $(#[doc = $words])* pub(in crate::http) $field: $type, )*
            $($(
                $(#[doc = $more_words])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(in crate::http) $more: Option<$more_type>,
            )*)?
        }

        #[cfg(test)]
        impl $crate::http::api::described::schema::Described for $name {
            fn schema() -> $crate::http::api::described::schema::Schema {
                $crate::http::api::described::schema::Schema::component(stringify!($name))
            }

            fn note(all: &mut $crate::http::api::described::schema::Components) {
                if !all.begin(stringify!($name)) {
                    return;
                }
                let mut object = $crate::http::api::described::schema::Object::new(&[$($about),*]);
                $( object.base::<$base>(all); )?
                $( object.field::<$type>(all, stringify!($field), &[$($words),*]); )*
                $($( object.optional::<$more_type>(all, stringify!($more), &[$($more_words),*]); )*)?
                all.end(stringify!($name), &object);
            }
        }
    };
}
pub(super) use answer;

/// Defines an enumeration whose values are the variant names in lower case.
macro_rules! words {
    ($(#[doc = $about:literal])* $name:ident { $($word:ident,)* }) => {
        $(#[doc = $about])*
        #[derive(serde::Serialize, Clone, Copy, PartialEq, Eq, Debug)]
        #[serde(rename_all = "kebab-case")]
        pub(in crate::http) enum $name { $($word,)* }

        #[cfg(test)]
        impl $crate::http::api::described::schema::Described for $name {
            fn schema() -> $crate::http::api::described::schema::Schema {
                $crate::http::api::described::schema::Schema::words(&[$(Self::$word),*])
            }
        }
    };
}
pub(super) use words;

/// Defines parameters of the query string. Only `Option` fields may be missing.
macro_rules! query {
    (
        $(#[doc = $about:literal])*
        $(#[serde($($how:tt)*)])?
        $name:ident { $( $(#[doc = $words:literal])* $field:ident: $type:ty, )* }
    ) => {
        $(#[doc = $about])*
        #[derive(serde::Deserialize)]
        $(#[serde($($how)*)])?
        pub(in crate::http) struct $name {
            $( $(#[doc = $words])* $field: $type, )*
        }

        #[cfg(test)]
        impl $crate::http::api::described::schema::Asked for $name {
            fn fields() -> Vec<(&'static str, $crate::http::api::described::schema::Schema)> {
                vec![$((
                    stringify!($field),
                    <$type as $crate::http::api::described::schema::Described>::schema(),
                )),*]
            }
        }
    };
}
pub(super) use query;

/// The id of a job, task, worker or queue.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::http) struct Id(pub(in crate::http) u32);

/// A value for each task state.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct ByState<T>(pub(in crate::http) [T; TaskState::ALL.len()]);

impl<T: Serialize> Serialize for ByState<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(TaskState::ALL.map(TaskState::name).into_iter().zip(&self.0))
    }
}

/// A value from the core that has a name.
pub(in crate::http) trait Named: Copy {
    /// Returns the name.
    fn word(self) -> &'static str;
}

macro_rules! named {
    ($($type:ident),*) => {
        $(
            impl Named for $type {
                fn word(self) -> &'static str {
                    self.name()
                }
            }

            #[cfg(test)]
            impl schema::Described for Word<$type> {
                fn schema() -> schema::Schema {
                    schema::Schema::words(&$type::ALL.map(Word))
                }
            }
        )*
    };
}
named!(TaskState, JobState, ReasonKind, Role);

/// Serializes a value from the core as its name.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct Word<T>(pub(in crate::http) T);

impl<T: Named> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}
