//! Tests of automatic allocation: single rules, and random histories against a batch system that lies.

mod histories;
mod rules;
