//! Spawns that fail, and how they are reported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use hq_spawn::{SpawnError, SpawnErrorKind, SpawnPlan, Stage, Stdio, TaskEnv};
use tempfile::TempDir;

use crate::harness::{End, Rig, best, command, rungs, sh};

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn every_failing_step_is_named_with_its_path_on_every_backend() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let script = |name: &str, text: &str, mode: u32| {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        path(name)
    };
    let plain = script("plain", "\x7fELF of another machine", 0o755);
    let forbidden = script("forbidden", "#!/bin/sh\n", 0o644);
    let lost = script("lost", "#!/no/such/interpreter\n", 0o755);
    let program = |path: &PathBuf| command(&[path.to_str().unwrap()]);

    let cases: Vec<(SpawnPlan, Stage, SpawnErrorKind, PathBuf)> = vec![
        (
            command(&["no-such-program"]),
            Stage::Resolve,
            SpawnErrorKind::NotFound,
            "no-such-program".into(),
        ),
        (
            command(&["/no/such/program"]),
            Stage::Exec,
            SpawnErrorKind::NotFound,
            "/no/such/program".into(),
        ),
        (
            program(&plain),
            Stage::Exec,
            SpawnErrorKind::NotExecutable,
            plain.clone(),
        ),
        (
            program(&forbidden),
            Stage::Exec,
            SpawnErrorKind::PermissionDenied,
            forbidden.clone(),
        ),
        (
            program(&lost),
            Stage::Exec,
            SpawnErrorKind::InterpreterNotFound,
            lost.clone(),
        ),
        (
            sh("").cwd(path("nowhere")),
            Stage::Chdir,
            SpawnErrorKind::NotFound,
            path("nowhere"),
        ),
        (
            sh("").cwd(&plain),
            Stage::Chdir,
            SpawnErrorKind::NotADirectory,
            plain.clone(),
        ),
        (
            sh("").stdin(Stdio::File {
                path: path("no-input"),
            }),
            Stage::Stdin,
            SpawnErrorKind::NotFound,
            path("no-input"),
        ),
        (
            sh("").stdout(Stdio::File {
                path: path("nowhere/out"),
            }),
            Stage::Stdout,
            SpawnErrorKind::NotFound,
            path("nowhere/out"),
        ),
        (
            sh("").stderr(Stdio::File {
                path: dir.path().to_path_buf(),
            }),
            Stage::Stderr,
            SpawnErrorKind::Other,
            dir.path().to_path_buf(),
        ),
        (
            sh("").stdout(Stdio::File {
                path: "a\0b".into(),
            }),
            Stage::Encode,
            SpawnErrorKind::Other,
            "a\0b".into(),
        ),
        (
            sh("")
                .stdout(Stdio::File {
                    path: plain.join("out"),
                })
                .create_dirs(true),
            Stage::Stdout,
            SpawnErrorKind::NotADirectory,
            plain.join("out"),
        ),
    ];
    for backend in rungs() {
        let mut rig = Rig::new(backend);
        for death_signal in [Some(9), None] {
            for (plan, stage, kind, path) in &cases {
                let error = rig.fail(plan.clone().death_signal(death_signal));
                let context = format!("{} {error}", backend.name());
                assert_eq!((error.stage, error.kind()), (*stage, *kind), "{context}");
                assert_eq!(error.path(), Some(path.as_path()), "{context}");
                assert!(!error.is_transient(), "{context}");
            }
        }
    }
}

#[test]
fn steps_without_a_path_are_named_too() {
    let mut rig = Rig::new(best());
    let mut check = |plan: SpawnPlan, stage: Stage| {
        let error: SpawnError = rig.fail(plan);
        assert_eq!(error.stage, stage, "{error}");
        assert!(error.errno != 0);
    };
    check(
        sh("").affinity([9000].into_iter().collect()),
        Stage::Affinity,
    );
    check(
        sh("").rlimit(hq_spawn::Rlimit {
            resource: 7,
            soft: 10,
            hard: 5,
        }),
        Stage::Rlimit,
    );
    check(sh("").oom_score_adj(2000), Stage::OomScore);
    check(sh("").death_signal(Some(1000)), Stage::DeathSignal);
}

#[test]
fn too_long_an_argument_list_is_permanent() {
    let long = "x".repeat(3_000_000);
    let mut rig = Rig::new(best());
    let with_variable = |name: &str| {
        let mut env = TaskEnv::new();
        env.set(name, &long).unwrap();
        command(&["/bin/true"]).task_env(env)
    };
    let many: Vec<&str> = std::iter::once("/bin/true")
        .chain(std::iter::repeat_n(&long[..100_000], 200))
        .collect();
    for (plan, words) in [
        (
            command(&["/bin/true", "a", &long]),
            "argument 2 has 3000000 bytes",
        ),
        (
            with_variable("HQ_ENTRY"),
            "the variable HQ_ENTRY has 3000009 bytes",
        ),
        (command(&many), "together exceed the kernel's limit"),
    ] {
        let error = rig.fail(plan);
        assert_eq!(error.kind(), SpawnErrorKind::TooLong, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_program_file_that_is_being_written_is_tried_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut rig = Rig::with(|config| config.transient_limit = Duration::from_secs(60));
    let busy = rig.spawn(command(&[path.to_str().unwrap()]));
    // The busy program must not delay other requests.
    for _ in 0..3 {
        rig.succeed(command(&["/bin/true"]));
    }
    assert!(rig.events().iter().all(|event| event.token() != busy));
    drop(writer);
    assert!(matches!(rig.end(busy), End::Exited(status, _) if status.success()));
}

#[test]
fn a_transient_failure_is_reported_as_such_after_its_limit() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let _writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut rig = Rig::with(|config| config.transient_limit = Duration::from_millis(20));
    let error = rig.fail(command(&[path.to_str().unwrap()]));
    assert!(error.is_transient());
    assert_eq!(
        (error.stage, error.kind()),
        (Stage::Exec, SpawnErrorKind::Transient)
    );
}
