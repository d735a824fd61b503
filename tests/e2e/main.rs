//! End-to-end tests: the real binary, real sockets, real processes, each test in a directory of its own.
//!
//! A file that is not listed here is not run; `cargo xtask tidy` notices.

mod batch_pbs;
mod batch_slurm;
mod campaign;
mod chains;
mod cluster_shapes;
mod commands;
mod control;
mod damage;
mod dashboard;
mod disks;
mod doctor;
mod dry_run;
mod durable;
mod exposition;
mod faults;
mod first_contact;
mod harness;
mod history;
mod http;
mod hung_files;
mod imports;
mod jobs;
mod learning;
mod limits;
mod local;
mod mistakes;
mod model;
mod network;
mod notify;
mod options;
mod ordinary_user;
mod output_modes;
mod own_tasks;
mod owners;
mod parameters;
mod queues;
mod reattach;
mod resources;
mod scale;
mod shapes;
mod stopping;
mod streaming;
mod tail;
mod web;
