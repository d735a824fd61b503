//! Conversion between messages and core types.
