//! Server directories and journals in unusual states: fresh, interrupted, copied, incomplete.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{Env, signal};
use crate::starts::{hostname, jobs, kill_server};

/// Makes the directory look as if nothing had been started since the first server.
pub(crate) fn remove_later_instances(env: &Env) {
    for entry in std::fs::read_dir(env.server_dir()).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.as_str() > "001" && name.parse::<u32>().is_ok() {
            std::fs::remove_dir_all(entry.path()).expect("ours");
        }
    }
}

#[test]
fn a_fresh_server_that_was_never_used_is_the_last_one() {
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--", "true"]);
    kill_server(&mut env, server);
    for (end, then) in [
        ("stop", &[][..]),
        ("stop", &["--resume"]),
        ("INT", &[]),
        ("KILL", &[]),
        ("TERM", &["--resume"]),
    ] {
        let server = env.start_server_with(&["--fresh"]);
        match end {
            "stop" => drop(env.hq(&["server", "stop"]).ok()),
            _ => signal(server, end),
        }
        env.wait_exit("server");
        let server = env.start_server_with(then);
        assert!(jobs(&env).is_empty(), "{end}, {then:?}");
        kill_server(&mut env, server);
        remove_later_instances(&env);
        let server = env.start_server();
        assert_eq!(jobs(&env).len(), 1);
        kill_server(&mut env, server);
    }
}

#[test]
fn what_an_interrupted_start_has_left_does_not_block_the_journal() {
    for content in ["", "{\n  \"version\": \"", "\0\0\0\0", "{\0\0"] {
        let mut env = Env::new();
        let server = env.start_server_with(&["--journal=j.db"]);
        env.submit(&["--", "true"]);
        kill_server(&mut env, server);
        let instance = env.path("server/002");
        std::fs::create_dir(&instance).expect("room");
        std::os::unix::fs::symlink(env.path("j.db"), instance.join("journal")).expect("room");
        env.write("server/002/access.json", content);
        let server = env.start_server();
        assert!(env.read("server.log").contains("is incomplete"));
        assert_eq!(jobs(&env).len(), 1, "{content:?}");
        kill_server(&mut env, server);
        // Nor is a server that starts this way taken for one without a store.
        let instance = env.path("server/003");
        std::fs::create_dir(&instance).expect("room");
        std::os::unix::fs::symlink("/dev/null", instance.join("journal")).expect("room");
        env.write("server/003/access.json", content);
        env.start_server();
        assert_eq!(jobs(&env).len(), 1, "{content:?}");
    }
}

#[test]
fn a_published_server_without_its_state_is_refused() {
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--", "true"]);
    kill_server(&mut env, server);
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(env.path(&format!("server/001/state.db{suffix}"))).expect("a file");
    }
    for args in [&["server", "start"][..], &["server", "start", "--resume"]] {
        env.hq(args)
            .exits_with(1)
            .says("/server/001/state.db, which is missing")
            .says(" --fresh`");
    }
    env.start_server_with(&["--fresh"]);
}

#[test]
fn an_access_file_that_is_of_no_use_is_refused_with_the_remedy() {
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--name=kept", "--", "true"]);
    kill_server(&mut env, server);
    let (path, given) = ("server/001/access.json", "given.json");
    let whole = env.read(path);
    let access: serde_json::Value = serde_json::from_str(&whole).expect("JSON");
    let key = access["client"]["secret_key"].as_str().expect("a key");
    let other = key.replace(&key[64..128], &key[..64]);
    let write = |env: &Env, name: &str, text: &str| {
        let _ = std::fs::remove_file(env.path(name));
        let file = env.write(name, text);
        let owner_only = PermissionsExt::from_mode(0o400);
        std::fs::set_permissions(file, owner_only).expect("ours");
    };
    for (text, reason) in [
        (&whole[..whole.len() / 2], "is not valid"),
        (
            &whole.replace(key, &key[..128]),
            "lacks the private key of the server",
        ),
        (&whole.replace(key, &other), "do not match"),
        (&whole.replace(key, &key[..190]), "found 190 characters"),
        (
            &whole.replace(key, &key.replace(&key[..1], "x")),
            "some of them not hexadecimal",
        ),
    ] {
        write(&env, path, text);
        env.hq(&["server", "start"])
            .exits_with(1)
            .says(reason)
            .says("Restore the file from a copy, or remove it");
        write(&env, given, text);
        env.hq(&["server", "start", "--fresh", "--access-file", given])
            .exits_with(1)
            .says(reason);
    }
    std::fs::remove_file(env.path(path)).expect("ours");
    env.start_server();
    assert_eq!(jobs(&env)[&1], "kept");
}

#[test]
fn a_server_before_the_last_one_is_named_if_it_left_jobs() {
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--name=kept", "--", "true"]);
    kill_server(&mut env, server);
    for is_gone in [false, true] {
        env.start_server_with(&["--fresh"]);
        env.hq(&["server", "stop"]).ok();
        assert_eq!(env.wait_exit("server"), Some(0));
        let said = if is_gone {
            std::fs::remove_file(env.path("server/002/state.db")).expect("it is there");
            let said = env.hq(&["server", "start"]).exits_with(1);
            said.says("002/state.db, which is missing").stderr
        } else {
            env.start_server();
            env.hq(&["server", "stop"]).ok();
            assert_eq!(env.wait_exit("server"), Some(0));
            env.read("server.log")
        };
        let told = said
            .lines()
            .find(|line| line.contains("left 1 unfinished job"));
        let told = told.unwrap_or_else(|| panic!("it is silent: {said}"));
        assert!(told.contains("server/001)"), "{told}");
        assert!(told.contains("server/001/state.db"), "{told}");
        remove_later_instances(&env);
    }
}

#[test]
fn a_refused_start_announces_nothing() {
    let mut env = Env::new();
    let server = env.start_server();
    env.submit(&["--", "true"]);
    kill_server(&mut env, server);
    env.write("damaged.db", [1; 4096]);
    for args in [
        &["--no-journal", "--access-file=none.json"][..],
        &["--journal=damaged.db"],
        &[
            "--journal=other.db",
            "--client-port=1",
            "--host=127.0.0.1",
            "--access-file=none.json",
        ],
    ] {
        let ran = env.hq(&[&["server", "start"], args].concat()).exits_with(1);
        for text in ["starts without", "No online server", "WARN"] {
            assert!(!ran.stderr.contains(text), "{args:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn another_start_that_takes_long_is_named() {
    let mut env = Env::new();
    let server = env.start_server();
    kill_server(&mut env, server);
    let held = std::fs::File::open(env.path("server/hq-start.lock")).expect("a lock file");
    held.lock().expect("it is free");
    let ran = env.hq(&["server", "start"]).exits_with(1);
    let name = format!("process {server} on {}", hostname());
    let ran = ran
        .says("Another `hq server start` is in progress")
        .says(&name);
    assert!(!ran.stderr.contains("already online"), "{}", ran.stderr);
}

#[test]
fn a_copied_server_directory_is_a_directory_of_its_own() {
    for args in [&[][..], &["--journal=server/j.db"]] {
        let mut env = Env::new();
        let server = env.start_server_with(args);
        env.submit(&["--name=kept", "--", "true"]);
        let copy = |env: &Env, name: &str| {
            let copied = env.user_command(&["cp", "-a", "server", name]).status();
            assert!(copied.expect("cp can be run").success());
        };
        // A copy of changing files may be inconsistent.
        signal(server, "STOP");
        copy(&env, "copy");
        signal(server, "CONT");
        env.hq(&["server", "start", "--server-dir=copy"])
            .exits_with(1)
            .says("and this directory is a copy of that one")
            .says("--fresh`");
        kill_server(&mut env, server);
        copy(&env, "later");
        // The copy is independent of the original.
        std::fs::remove_dir_all(env.server_dir()).expect("ours");
        for name in ["copy", "later"] {
            let pid = env.spawn(name, &["server", "start", "--server-dir", name]);
            let list = env.wait_for("the copy answers", || {
                let ran = env.hq(&["job", "list", "--all", "--server-dir", name]);
                (ran.code == Some(0))
                    .then_some(ran.stdout)
                    .ok_or(ran.stderr)
            });
            assert!(list.contains("kept"), "{list}");
            signal(pid, "KILL");
            env.wait_exit(name);
        }
    }
}

/// Checks that the first start with a repaired journal warns about the loss, and the second does
/// not.
fn expect_repair_told_once(env: &mut Env, other: &str) {
    for is_first in [true, false] {
        let args = ["--journal=copy.db", "--server-dir", other];
        let pid = env.spawn("repaired", &[&["server", "start"], &args[..]].concat());
        let log = env.wait_for("the server is ready", || {
            let log = env.read("repaired.log");
            if log.contains("is ready") {
                Ok(log)
            } else {
                Err(log)
            }
        });
        assert_eq!(log.contains("was repaired before this start"), is_first);
        assert_eq!(log.contains("WARN its write-ahead log is lost"), is_first);
        signal(pid, "KILL");
        env.wait_exit("repaired");
    }
}

#[test]
fn a_journal_without_its_log_is_refused_or_whole() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal=k.db"]);
    env.submit(&["--", "true"]);
    // From now on, no reader from the start keeps the file from being marked.
    env.copy_flushed("k.db", "settled.db");
    env.submit(&["--", "true"]);
    let copy = |env: &Env, from: &str, to: &str| {
        std::fs::copy(env.path(from), env.path(to)).expect("room");
    };
    copy(&env, "k.db", "copy.db");
    copy(&env, "k.db-wal", "old-log.db-wal");
    copy(&env, "k.db", "new-log.db");
    env.submit(&["--", "true"]);
    env.copy_flushed("k.db", "flushed.db");
    copy(&env, "flushed.db", "old-log.db");
    env.submit(&["--", "true"]);
    copy(&env, "k.db-wal", "new-log.db-wal");
    std::fs::copy(env.path("k.db"), env.path("later.db")).expect("room");
    kill_server(&mut env, server);
    for name in ["k.db", "k.db-wal"] {
        std::fs::copy(env.path(name), env.path(&format!("both-{name}"))).expect("room");
    }
    std::fs::rename(env.path("k.db"), env.path("moved.db")).expect("a journal");
    let other = env.path("other").display().to_string();
    for (name, reason) in [
        ("copy.db", "`k.db-wal`"),
        ("later.db", "`k.db-wal`"),
        ("moved.db", "`k.db-wal`"),
        ("old-log.db", "do not belong together"),
        ("new-log.db", "do not belong together"),
    ] {
        for args in [
            &["journal", "check", name][..],
            &["journal", "export", name],
            &["server", "start", "--journal", name, "--server-dir", &other],
        ] {
            env.hq(args).exits_with(1).says(reason);
        }
        let kept = env.hq(&["journal", "check", "--repair", name]).ok();
        assert!(kept.contains("kept: "), "{kept}");
        // That log belonged to another file. This one needs none.
        let is_lost = name != "old-log.db";
        assert_eq!(kept.contains("write-ahead log is lost"), is_lost, "{kept}");
        assert_eq!(kept.contains("no event is missing"), !is_lost, "{kept}");
        env.hq(&["journal", "check", name]).ok();
    }
    expect_repair_told_once(&mut env, &other);
    let count = |name: &str| {
        let sql = "SELECT count(*) AS n FROM jobs";
        env.json(&["query", "--journal", name, sql])[0]["n"].clone()
    };
    assert_eq!(count("flushed.db"), 3, "a flush makes the file whole");
    assert_eq!(
        count("old-log.db"),
        3,
        "the log of an earlier time is not used"
    );
    assert_eq!(count("both-k.db"), 4, "both files are whole");
    // The journal was removed without its log.
    env.hq(&["server", "start", "--journal=k.db", "--server-dir", &other])
        .exits_with(1)
        .says("remove `k.db-wal` and `k.db-shm`");
    assert!(!env.path("k.db").exists(), "it is not made");
}
