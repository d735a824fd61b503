//! Who can read and change what hq makes: its own directories, and the output of tasks.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::harness::{Env, skip};

fn mode(path: &Path) -> u32 {
    let found = path.symlink_metadata();
    let found = found.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.permissions().mode() & 0o777
}

/// Paths of everything in a directory, of which there is something.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let entries: Vec<_> = entries.map(|entry| entry.path()).collect();
    assert!(!entries.is_empty(), "{} is empty", dir.display());
    entries
}

#[test]
fn own_directories_are_private_and_output_of_tasks_follows_the_umask() {
    for (umask, dir_mode, file_mode) in [
        ("000", 0o777, 0o666),
        ("002", 0o775, 0o664),
        ("077", 0o700, 0o600),
    ] {
        let set_umask = format!("umask {umask}; exec \"$@\"");
        let behind = ["sh", "-c", &set_umask, "sh"];
        let mut env = Env::new();
        std::fs::create_dir(env.path("tmp")).expect("room");
        env.set(
            "TMPDIR",
            env.path("tmp").to_str().expect("a path in Unicode"),
        );
        env.start_server();
        env.start_worker_behind(&behind, &["--work-dir=work"]);
        env.start_worker_behind(&behind, &[]);
        for output in ["--stream=st", "--task-dir"] {
            let submit = ["submit", "--wait=ok", output, "--", "sh", "-c", "echo x"];
            let _ = env.hq(&submit).ok();
        }

        let private = [entries(&env.path("work")), entries(&env.path("tmp"))];
        let made = entries(&env.path("st"));
        let files = [made, vec![env.path("job-2/0.stdout")]];
        let dirs = vec![env.path("st"), env.path("job-2")];
        for (paths, expected) in [
            (private.concat(), 0o700),
            (dirs, dir_mode),
            (files.concat(), file_mode),
        ] {
            for path in paths {
                let found = mode(&path);
                assert_eq!(found, expected, "{} with umask {umask}", path.display());
            }
        }
    }
}

#[test]
fn without_a_home_directory_commands_ask_for_the_server_directory() {
    // Not in the passwd file, if root runs the tests.
    let Some(env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become a user without a passwd entry");
    }
    for args in [
        &["server", "start"][..],
        &["worker", "start"],
        &["job", "list"],
    ] {
        for home in [None, Some("")] {
            let mut command = env.command(args);
            command.env_remove("HQ_SERVER_DIR").env_remove("HOME");
            let ended = command.envs(home.map(|home| ("HOME", home))).output();
            let ended = ended.expect("the program can be run");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(!ended.status.success(), "{args:?}");
            assert!(
                said.contains("--server-dir or HQ_SERVER_DIR"),
                "{args:?}: {said}"
            );
        }
    }
}
