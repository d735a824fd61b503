//! Access rights of files that hq creates: its own directories, and the output of tasks.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::{Env, skip, wait_for};
use crate::http::Site;

fn mode(path: &Path) -> u32 {
    let found = path.symlink_metadata();
    let found = found.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.permissions().mode() & 0o777
}

/// Returns the paths of all entries of a nonempty directory.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let entries: Vec<_> = entries.map(|entry| entry.path()).collect();
    assert!(!entries.is_empty(), "{} is empty", dir.display());
    entries
}

/// Requires that no other user can enter a directory or use anything below it.
fn check_private(top: &Path, umask: &str) {
    let user = top.metadata().expect("a directory").uid();
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        for path in entries(&dir) {
            // The entry may be gone by now.
            let Ok(found) = path.symlink_metadata() else {
                continue;
            };
            if found.is_symlink() {
                continue;
            }
            let expected: &[u32] = if found.is_dir() {
                left.push(path.clone());
                &[0o700]
            } else {
                &[0o600, 0o400]
            };
            let mode = found.mode() & 0o777;
            let what = format!("{} has mode {mode:o} with umask {umask}", path.display());
            assert!(expected.contains(&mode), "{what}");
            assert_eq!(found.uid(), user, "{what}");
        }
    }
}

/// Runs hq with a umask and arguments for a shell.
fn with_umask(env: &Env, umask: &str, args: &str) -> Output {
    let script = format!("umask {umask}; exec \"$@\" {args}");
    let hq = env.command(&[]);
    let variables = hq
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut run = Command::new("sh");
    run.args(["-c", &script, "sh"]);
    run.arg(hq.get_program()).args(hq.get_args());
    run.envs(variables).env("TMPDIR", env.path("runs"));
    let ran = run.current_dir(env.path("")).output();
    ran.expect("a shell can be run")
}

/// Requires that a task of `hq run` finds only private files that hq created.
fn check_run(env: &Env, umask: &str) {
    let ran = with_umask(env, umask, "run -- find $TMPDIR -printf '%y%m %p\\n'");
    let found = String::from_utf8_lossy(&ran.stdout);
    assert!(found.contains("/hq-run"), "{ran:?}");
    // The first line is the temporary directory itself. Captured output belongs to the task.
    let is_output = |line: &&str| line.ends_with(".stdout") || line.ends_with(".stderr");
    for line in found.lines().skip(1).filter(|line| !is_output(line)) {
        let mut private = ["d700", "f600", "s600", "l777"].into_iter();
        let is_private = private.any(|mode| line.starts_with(mode));
        assert!(is_private, "{line} with umask {umask}");
    }
}

/// Requires that neither a member of the owner's group nor a stranger can use anything in
/// directories of hq.
fn check_closed_to_others(env: &Env, umask: &str) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let group = env.path("").metadata().expect("a directory").gid();
    for group in [group, NEIGHBOUR] {
        let mut find = Command::new("setpriv");
        find.args([
            &format!("--reuid={NEIGHBOUR}"),
            &format!("--regid={group}"),
            "--clear-groups",
            "find",
            "server",
            "work",
            "tmp",
        ]);
        // The first two are the server directory, and a directory named by the user.
        find.args(["-mindepth", "1", "!", "-type", "l"]);
        let usable = [
            "(",
            "-readable",
            "-o",
            "-writable",
            "-o",
            "-executable",
            ")",
        ];
        let found = find.args(usable).current_dir(env.path("")).output();
        let found = found.expect("find can be run");
        let usable = String::from_utf8_lossy(&found.stdout);
        assert!(usable.is_empty(), "umask {umask}, group {group}: {usable}");
        let said = String::from_utf8_lossy(&found.stderr);
        assert!(said.contains("Permission denied"), "{said}");
    }
}

#[test]
fn what_hq_makes_for_itself_is_private_and_output_of_tasks_follows_the_umask() {
    for (umask, dir_mode, file_mode) in [
        ("000", 0o777, 0o666),
        ("002", 0o775, 0o664),
        ("022", 0o755, 0o644),
        ("077", 0o700, 0o600),
    ] {
        let set_umask = format!("umask {umask}; exec \"$@\"");
        let behind = ["sh", "-c", &set_umask, "sh"];
        let Some(mut env) = Env::of_ordinary_user() else {
            return;
        };
        let owner = env.path("").metadata().expect("a directory").uid();
        let open = Permissions::from_mode(0o755);
        std::fs::set_permissions(env.path(""), open).expect("ours");
        for name in ["tmp", "runs"] {
            std::fs::create_dir(env.path(name)).expect("room");
            chown(env.path(name), Some(owner), Some(owner)).expect("ours");
        }
        let tmp = env.path("tmp");
        env.set("TMPDIR", tmp.to_str().expect("a path in Unicode"));
        env.start_server_behind(&behind, &["--http"]);
        env.start_worker_behind(&behind, &["--work-dir=work", "--relay"]);
        let announced = wait_for("a relay is announced", || {
            let read = |path: &PathBuf| std::fs::read_to_string(path).ok();
            let dir = env.path("server/001/relays");
            let files = std::fs::read_dir(dir).map_err(|error| error.to_string())?;
            let mut files = files.flatten().map(|entry| entry.path());
            files.find_map(|path| read(&path)).ok_or_else(String::new)
        });
        let announced: serde_json::Value = serde_json::from_str(&announced).expect("JSON");
        let relay = announced["addresses"][0].as_str().expect("an address");
        env.start_worker_behind(&behind, &[&format!("--via={relay}")]);
        env.hq(&["dashboard", "--web"]).ok();
        let output = env.submit(&["--stream=st", "--", "echo", "x"]);
        env.wait_job(&output);
        let held = "echo x; until [ -e go ]; do sleep 0.01; done";
        let args = ["--nodes=2", "--task-dir", "--", "sh", "-c", held];
        let held = env.submit(&args);
        env.wait_running(&held, 1);

        check_closed_to_others(&env, umask);
        check_run(&env, umask);
        for own in ["server", "work", "tmp"] {
            check_private(&env.path(own), umask);
        }
        let mut files = [entries(&env.path("st")), entries(&env.path("job-2"))].concat();
        let made = with_umask(&env, umask, "report");
        assert!(made.status.success(), "{made:?}");
        files.push(env.path("hq-report.html"));
        for (paths, expected) in [
            (vec![env.path("st"), env.path("job-2")], dir_mode),
            (files, file_mode),
        ] {
            for path in paths {
                let found = mode(&path);
                assert_eq!(found, expected, "{} with umask {umask}", path.display());
            }
        }
        env.write("go", "");
        env.wait_job(&held);
    }
}

#[test]
fn a_server_directory_that_others_can_write_to_is_closed_or_told_of() {
    let own = rustix::process::geteuid().as_raw();
    for (owner, dir_mode, entry, expected, text) in [
        (own, 0o775, None, 0o700, ""),
        (own, 0o777, Some("001"), 0o700, ""),
        (
            own,
            0o777,
            Some("notes"),
            0o777,
            "Other users can write to the server directory",
        ),
        (own, 0o755, Some("notes"), 0o755, ""),
        (
            NEIGHBOUR,
            0o777,
            None,
            0o777,
            "belongs to user 65533 (mode 0777)",
        ),
        (
            NEIGHBOUR,
            0o700,
            Some("notes"),
            0o700,
            "belongs to user 65533 (mode 0700)",
        ),
    ] {
        if owner != own && own != 0 {
            skip("only root can act for a second user");
            continue;
        }
        let mut env = Env::new();
        let dir = env.server_dir();
        std::fs::create_dir(&dir).expect("room");
        if let Some(entry) = entry {
            std::fs::create_dir(dir.join(entry)).expect("room");
            let open = Permissions::from_mode(0o777);
            std::fs::set_permissions(dir.join(entry), open).expect("it is ours");
        }
        if entry == Some("001") {
            // This simulates a server that has started to create it.
            std::fs::write(dir.join("001/state.db.lock"), "").expect("room");
        }
        std::fs::set_permissions(&dir, Permissions::from_mode(dir_mode)).expect("it is ours");
        chown(&dir, Some(owner), None).expect("root may do that");
        if owner == own {
            env.start_server();
            env.hq(&["server", "stop"]).ok();
            assert_eq!(env.wait_exit("server"), Some(0));
            let log = env.read("server.log");
            assert!(log.contains(text), "{entry:?}: {log}");
            assert_eq!(log.contains("Other users"), !text.is_empty(), "{log}");
        } else {
            env.hq(&["server", "start"]).exits_with(1).says(text);
            env.hq(&["server", "start", "--background"])
                .exits_with(1)
                .says(text);
        }
        assert_eq!(mode(&dir), expected, "{dir_mode:o} with {entry:?}");
        if entry == Some("001") {
            assert_eq!(mode(&dir.join("001")), 0o700);
        }
    }
}

#[test]
fn the_log_of_a_server_in_the_background_is_not_written_through_a_link() {
    let env = Env::new();
    std::fs::create_dir(env.server_dir()).expect("room");
    let precious = env.write("precious", "x");
    symlink(&precious, env.server_dir().join("server.log")).expect("room");
    env.hq(&["server", "start", "--background"])
        .exits_with(1)
        .says("server.log");
    assert_eq!(env.read("precious"), "x");
}

#[test]
fn without_home_commands_find_the_server_of_the_passwd_entry() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can change the passwd file");
    }
    env.start_server();
    let owner = env.path("").metadata().expect("a directory").uid();
    let home = env.path("home");
    std::fs::create_dir(&home).expect("room");
    symlink(env.server_dir(), home.join(".hq-server")).expect("room");
    let entry = format!("user:x:{owner}:{owner}::{}:/bin/sh\n", home.display());
    let passwd = env.write("passwd", entry);
    let hq = env.command(&["server", "info"]);
    for variables in [
        // A system service, and cron.
        vec![],
        // The environment that sudo leaves.
        vec!["SUDO_USER=root".to_owned(), "SUDO_UID=0".to_owned()],
        vec!["HOME=".to_owned()],
        vec![format!("HOME={}", home.display())],
    ] {
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "sh",
                "-c",
                "mount --bind \"$0\" /etc/passwd && exec env -i \"$@\"",
            ])
            .arg(&passwd)
            .args(&variables)
            .arg("PATH=/usr/bin:/bin")
            .arg(hq.get_program())
            .args(hq.get_args());
        let ran = command.output().expect("unshare can be run");
        let said = String::from_utf8_lossy(&ran.stderr);
        if said.contains("Operation not permitted") {
            return skip("a file cannot be bound over another one here");
        }
        assert!(ran.status.success(), "{variables:?}: {said}");
    }
}

/// A user who is neither the owner nor root.
const NEIGHBOUR: u32 = 65_533;

/// Creates a directory of another user.
fn make_dir(path: &Path, owner: u32) {
    std::fs::create_dir(path).expect("room");
    std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("it is ours");
    chown(path, Some(owner), Some(owner)).expect("root may do that");
}

#[test]
fn default_outputs_do_not_follow_links_of_others() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act for a second user");
    }
    let owner = env.path("").metadata().expect("a directory").uid();
    env.start_server();
    env.start_worker(1);
    let at = |name: &str| env.path("shared").join(name);
    for dir in ["", "own", "elsewhere"] {
        make_dir(&at(dir), owner);
    }
    for (job, dir_of, link, target, link_of) in [
        (1, NEIGHBOUR, "job-1/0.stdout", "../own/0.stdout", NEIGHBOUR),
        (2, owner, "job-2/0.stdout", "../own/0.stdout", NEIGHBOUR),
        (3, owner, "job-3/0.stderr", "../own/0.stdout", NEIGHBOUR),
        (4, owner, "job-4", "own", NEIGHBOUR),
        (5, owner, "job-5", "elsewhere", owner),
        (6, owner, "job-6/0.stdout", "../elsewhere/0.stdout", owner),
        (7, owner, "job-7/0.stdout", "../elsewhere/0.stdout", 0),
    ] {
        for name in ["own/0.stdout", "elsewhere/0.stdout"] {
            std::fs::write(at(name), "precious").expect("room");
            chown(at(name), Some(owner), Some(owner)).expect("root may do that");
        }
        if let Some((dir, _)) = link.split_once('/') {
            make_dir(&at(dir), dir_of);
        }
        symlink(target, at(link)).expect("room");
        lchown(at(link), Some(link_of), Some(link_of)).expect("root may do that");
        let mut submit = env.command(&["submit", "--wait", "--", "echo", "new"]);
        let ran = submit.current_dir(at("")).output().expect("it can be run");
        let read = |name: &str| std::fs::read_to_string(at(name)).expect("it is there");
        assert_eq!(read("own/0.stdout"), "precious", "{link}");
        let task = &env.tasks(&job.to_string())[0];
        let error = task["error"].as_str().unwrap_or_default();
        let is_followed = link_of != NEIGHBOUR;
        let expected = if is_followed { "new\n" } else { "precious" };
        assert_eq!(
            read("elsewhere/0.stdout"),
            expected,
            "{link}: {ran:?} {task}"
        );
        let is_refused = error.contains("a link of another user");
        assert_eq!(is_refused, !is_followed, "{link}: {ran:?} {task}");
    }
}

/// Places something at the output path of a task. `target` is the file of a hard link. Returns
/// `false` if that is not possible here.
fn plant(kind: &str, path: &Path, target: &Path, owner: u32) -> bool {
    let make = |program: &str, args: &[&str]| {
        let made = Command::new(program).arg(path).args(args).status();
        made.expect("it can be run").success()
    };
    let write = |path: &Path, owner: u32| {
        std::fs::write(path, "precious").expect("room");
        chown(path, Some(owner), Some(owner)).expect("root may do that");
        std::fs::set_permissions(path, Permissions::from_mode(0o666)).expect("ours");
    };
    match kind {
        "own file" => write(path, owner),
        "file" => write(path, NEIGHBOUR),
        "hard link" => {
            write(target, owner);
            std::fs::hard_link(target, path).expect("room");
        }
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).expect("room")),
        "device" => return make("mknod", &["-m", "666", "c", "1", "3"]),
        _ => assert!(make("mkfifo", &["-m", "666"])),
    }
    true
}

#[test]
fn default_outputs_are_regular_files_of_the_owner() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act for a second user");
    }
    let owner = env.path("").metadata().expect("a directory").uid();
    env.start_server();
    env.start_worker(1);
    let at = |name: &str| env.path("shared").join(name);
    make_dir(&at(""), owner);
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    for (job, kind, is_used) in [
        (1, "own file", true),
        (2, "file", false),
        (3, "hard link", false),
        (4, "socket", false),
        (5, "FIFO", false),
        (6, "FIFO with a reader", false),
        (7, "device", false),
    ] {
        make_dir(&at(&format!("job-{job}")), NEIGHBOUR);
        let planted = at(&format!("job-{job}/0.stdout"));
        if !plant(kind, &planted, &at("target"), owner) {
            skip("root cannot make devices here");
            continue;
        }
        let mut reader = None;
        if kind == "FIFO with a reader" {
            let mut both = std::fs::File::options();
            reader = Some(both.read(true).write(true).open(&planted).expect("a FIFO"));
        }
        let mut submit = env.command(&["submit", "--wait", "--", "echo", "new"]);
        let ran = submit.current_dir(at("")).output().expect("it can be run");
        let task = &env.tasks(&job.to_string())[0];
        let error = task["error"].as_str().unwrap_or_default();
        let is_refused = error.contains("another user may have put this there");
        assert_eq!(is_refused, !is_used, "{kind}: {ran:?} {task}");
        let file = match kind {
            "hard link" => at("target"),
            _ => planted.clone(),
        };
        if file.symlink_metadata().expect("it is there").is_file() {
            let expected = if is_used { "new\n" } else { "precious" };
            assert_eq!(read(&file), expected, "{kind}");
        }
        if let Some(mut both) = reader {
            use std::io::{Read as _, Write as _};
            both.write_all(b"end").expect("room");
            let mut found = [0; 8];
            let count = both.read(&mut found).expect("the end");
            assert_eq!(&found[..count], b"end");
        }
        // This must not wait for a writer of the FIFO.
        env.hq(&["job", "cat", &job.to_string(), "stdout"]).ok();
    }
    let page = at("hq-report.html");
    assert!(plant("FIFO with a reader", &page, &at("target"), owner));
    chown(&page, Some(NEIGHBOUR), None).expect("root may do that");
    let mut both = std::fs::File::options();
    let _reader = both.read(true).write(true).open(&page).expect("a FIFO");
    let refused = env.command(&["report"]).current_dir(at("")).output();
    let said = refused.expect("it can be run").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("who would receive the report"), "{said}");
}

/// Replaces the directory of a job by one of another user, with something else in the place of an
/// output.
fn swap_output(kind: &str, dir: &Path, owner: u32) {
    let own = dir.with_file_name("own");
    std::fs::remove_dir_all(dir).expect("ours");
    let link = |target: &str, path: &Path, owner: u32| {
        symlink(target, path).expect("room");
        lchown(path, Some(owner), Some(owner)).expect("root may do that");
    };
    if kind == "directory" {
        return link("own", dir, NEIGHBOUR);
    }
    make_dir(dir, NEIGHBOUR);
    for name in ["0.stdout", "0.stderr"] {
        let (path, target) = (dir.join(name), format!("../own/{name}"));
        match kind {
            "link" => link(&target, &path, NEIGHBOUR),
            "own link" => link(&target, &path, owner),
            "hard link" => std::fs::hard_link(own.join(name), path).expect("room"),
            _ => {
                std::fs::copy(own.join(name), &path).expect("room");
                chown(&path, Some(NEIGHBOUR), None).expect("root may do that");
            }
        }
    }
}

/// Returns the standard error of a task as several commands show it.
fn texts_of(job: &str, run: &dyn Fn(&[&str]) -> String, site: &Site, page: &Path) -> [String; 5] {
    let web = format!("/api/v1/jobs/{job}/tasks/0/output?stream=stderr");
    run(&["report", "page.html"]);
    [
        run(&["job", "cat", job, "stderr"]),
        run(&["job", "tail", job]),
        run(&["job", "failures", job]),
        site.get(&web).body,
        // The program in the page has words of its own.
        crate::web::recorded(&std::fs::read_to_string(page).expect("a page")).to_string(),
    ]
}

#[test]
fn outputs_are_neither_read_nor_removed_through_links_of_others() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act for a second user");
    }
    let owner = env.path("").metadata().expect("a directory").uid();
    env.start_server_with(&["--http"]);
    env.start_worker(1);
    let site = Site::of(&env);
    let at = |name: &str| env.path("shared").join(name);
    for dir in ["", "own"] {
        make_dir(&at(dir), owner);
    }
    for name in ["own/0.stdout", "own/0.stderr"] {
        std::fs::write(at(name), "secret\n").expect("room");
        chown(at(name), Some(owner), Some(owner)).expect("root may do that");
    }
    let run = |args: &[&str]| {
        let ran = env.command(args).current_dir(at("")).output();
        let ran = ran.expect("it can be run");
        String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned()
    };
    for (job, kind) in [
        ("1", "link"),
        ("2", "directory"),
        ("3", "hard link"),
        ("4", "file"),
        ("5", "own link"),
    ] {
        let script = "echo said >&2; exit 1";
        run(&["submit", "--wait", "--", "sh", "-c", script]);
        let texts = || texts_of(job, &run, &site, &at("page.html"));
        for text in texts() {
            assert!(text.contains("said"), "{kind}: {text}");
        }
        let dir = at(&format!("job-{job}"));
        swap_output(kind, &dir, owner);
        for text in texts() {
            let is_read = text.contains("secret");
            assert_eq!(is_read, kind == "own link", "{kind}: {text}");
        }
        if kind == "hard link" {
            std::fs::remove_dir_all(dir).expect("root may do that");
        }
    }
    for (job, kind) in [(6, "link"), (8, "directory")] {
        let script = format!("echo said; until [ -e go-{job} ]; do sleep 0.01; done");
        let stdout = format!("job-{job}/0.stdout:rm-if-finished");
        run(&["submit", "--stdout", &stdout, "--", "sh", "-c", &script]);
        env.wait_running(&job.to_string(), 1);
        swap_output(kind, &at(&format!("job-{job}")), owner);
        std::fs::write(at(&format!("go-{job}")), "").expect("room");
        env.wait_job(&job.to_string());
        // When another task has run, the worker has cleaned up after this one.
        run(&["submit", "--wait", "--stdout=none", "--", "true"]);
        let text = std::fs::read_to_string(at("own/0.stdout"));
        assert_eq!(text.ok().as_deref(), Some("secret\n"), "{kind}");
    }
}

#[test]
fn records_and_outputs_of_others_leave_no_task_out() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act for a second user");
    }
    env.start_server();
    env.start_worker(1);
    let submit = "submit --wait --outputs out --skip-done -- touch out";
    let submit: Vec<&str> = submit.split(' ').collect();
    env.hq(&submit).ok();
    env.hq(&submit).says("already done and left out");
    for (name, why) in [
        (".out.hq-done", "records no finished run"),
        ("out", "belongs to another user"),
    ] {
        chown(env.path(name), Some(NEIGHBOUR), None).expect("root may do that");
        let open = Permissions::from_mode(0o666);
        std::fs::set_permissions(env.path(name), open).expect("root may do that");
        env.hq(&[&submit[..1], &["--dry-run"], &submit[2..]].concat())
            .says(why);
        std::fs::remove_file(env.path(name)).expect("root may do that");
        env.hq(&submit).ok();
    }
}

#[test]
fn files_that_others_have_planted_are_refused_with_their_owner() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act for a second user");
    }
    let owner = env.path("").metadata().expect("a directory").uid();
    let plant = |path: &Path, (owner, group): (u32, u32), mode: u32| {
        std::fs::write(path, "").expect("room");
        chown(path, Some(owner), Some(group)).expect("root may do that");
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
    };
    make_dir(&env.server_dir(), owner);
    let lock = env.server_dir().join("hq-start.lock");
    plant(&lock, (NEIGHBOUR, NEIGHBOUR), 0o666);
    let start = env.hq(&["server", "start"]).exits_with(1);
    start.says("it belongs to user 65533");
    std::fs::remove_file(lock).expect("root may do that");

    let config = env.path("config.toml");
    let mut hq = env.command(&["job", "list"]);
    let hq = hq.env("HQ_CONFIG", &config);
    for (owner, group, mode, text) in [
        (NEIGHBOUR, NEIGHBOUR, 0o644, "belongs to user 65533"),
        (owner, NEIGHBOUR, 0o664, "Run `chmod go-w"),
        (owner, owner, 0o666, "Run `chmod go-w"),
        (owner, owner, 0o664, "No running instance"),
        (owner, NEIGHBOUR, 0o644, "No running instance"),
        (0, 0, 0o644, "No running instance"),
    ] {
        plant(&config, (owner, group), mode);
        let said = hq.output().expect("it can be run").stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(text), "{owner} {group} {mode:o}: {said}");
    }

    make_dir(&env.path("man"), owner);
    let precious = env.write("precious", "x");
    chown(&precious, Some(owner), None).expect("root may do that");
    symlink("../precious", env.path("man/hq.1")).expect("room");
    env.hq(&["generate-man", "man"]).ok();
    assert_eq!(env.read("precious"), "x");
    assert!(env.read("man/hq.1").contains(".TH hq"));

    env.start_server();
    let access = env.server_dir().join("001/access.json");
    std::fs::rename(&access, access.with_file_name("moved")).expect("room");
    symlink("moved", &access).expect("room");
    env.hq(&["job", "list"]).ok();
    for link in [access, env.server_dir().join("hq-current")] {
        lchown(&link, Some(NEIGHBOUR), None).expect("root may do that");
        env.hq(&["job", "list"])
            .exits_with(1)
            .says("a link that belongs to user 65533");
        lchown(&link, Some(0), None).expect("root may do that");
        env.hq(&["job", "list"]).ok();
    }
}

#[test]
fn without_a_home_directory_commands_ask_for_the_server_directory() {
    // If root runs the tests, this user is not in the passwd file.
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
