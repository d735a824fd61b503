//! Tests full or read-only disks, at the start of a server and while it runs, and FIFOs in place of
//! its files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::damage::{SmallDisk, refused_submit};
use crate::harness::{Env, signal, skip, wait_for};

fn mkfifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo can be run").success());
}

/// Kills a server with one acknowledged job in `disk/j.db`, most of it in the log.
fn killed(env: &mut Env) -> String {
    let server = env.start_server_with(&["--journal=disk/j.db"]);
    let job = env.submit(&["--name=kept", "--", "true"]);
    signal(server, "KILL");
    env.wait_exit("server");
    job
}

/// Checks that a restarted server has everything that was acknowledged.
fn check_kept(env: &mut Env, job: &str) {
    env.start_server_with(&["--journal=disk/j.db"]);
    assert_eq!(env.json(&["job", "info", job])[0]["info"]["name"], "kept");
    assert_eq!(env.submit(&["--", "true"]), "2", "it takes work");
}

#[test]
fn a_start_on_a_full_disk_is_refused_and_loses_nothing() {
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    let job = killed(&mut env);
    let filler = disk.fill();
    for start in [
        &["server", "start", "--journal=disk/new.db"][..],
        &["server", "start", "--server-dir=disk/server"],
    ] {
        let refused = env.hq(start).exits_with(1);
        let names_cause = ["full", "No space left"].map(|text| refused.stderr.contains(text));
        assert!(names_cause.contains(&true), "{}", refused.stderr);
    }
    // Whether a server starts now depends on the space that it needs; see the tests of the store.
    std::fs::remove_file(filler).expect("the filler");
    check_kept(&mut env, &job);
}

#[test]
fn a_task_that_fails_on_a_full_disk_says_so() {
    let env = Env::with_worker(1);
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    let _filler = disk.fill();
    let job = env.submit(&["--cwd=disk", "--", "bash", "-c", "echo result > file"]);
    env.wait_job(&job);
    let error = env.tasks(&job)[0]["error"].to_string();
    for part in [
        "exit code 1",
        "No room is left on the file system of ",
        "/disk",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let elsewhere = env.submit(&["--", "false"]);
    env.wait_job(&elsewhere);
    assert_eq!(
        env.tasks(&elsewhere)[0]["error"],
        "Program terminated with exit code 1."
    );
}

#[test]
fn a_start_on_a_read_only_disk_is_refused_and_loses_nothing() {
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    let job = killed(&mut env);
    let remount = |how: &str| {
        let option = format!("remount,{how}");
        let mut command = Command::new("mount");
        assert!(
            done_well(command.args(["-o", &option]).arg(&disk.0)),
            "{how}"
        );
    };
    remount("ro");
    for start in [
        &["server", "start", "--journal=disk/j.db"][..],
        &["server", "start", "--journal=disk/new.db"],
        &["server", "start", "--server-dir=disk/server"],
    ] {
        env.hq(start).exits_with(1).says("Read-only file system");
    }
    remount("rw");
    check_kept(&mut env, &job);
}

fn done_well(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// A file system that can be made to detect an internal error, which makes it read-only.
struct FragileDisk {
    path: PathBuf,
    image: PathBuf,
}

impl FragileDisk {
    /// Returns `None` and prints a reason if it cannot be created here.
    fn mount(env: &Env) -> Option<Self> {
        let disk = Self {
            path: env.path("disk"),
            image: env.write("image", ""),
        };
        std::fs::create_dir(&disk.path).expect("directory");
        let script = "truncate -s 16M \"$1\" && mkfs.ext4 -q -O ^has_journal \"$1\"";
        let made = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&disk.image)
            .output();
        let is_made = made.as_ref().is_ok_and(|made| made.status.success());
        if !is_made || !disk.mount_image(&disk.image) {
            skip(&format!("a file system cannot be made: {made:?}"));
            return None;
        }
        if !disk.trigger().exists() {
            skip("file systems cannot be made to fail here");
            return None;
        }
        Some(disk)
    }

    fn mount_image(&self, image: &Path) -> bool {
        done_well(
            Command::new("mount")
                .args(["-o", "loop,errors=remount-ro"])
                .args([image, &self.path]),
        )
    }

    /// Checks the disk and mounts it again. The old mount stays as long as a parallel test has it
    /// in its namespace.
    fn mount_again(&self) -> bool {
        let again = self.image.with_extension("again");
        std::fs::copy(&self.image, &again).expect("there is room");
        let checked = Command::new("e2fsck").arg("-fy").arg(&again).output();
        // With 1, errors were corrected, such as unsynced data.
        let code = checked.ok().and_then(|checked| checked.status.code());
        matches!(code, Some(0 | 1)) && self.mount_image(&again)
    }

    /// Returns the file that triggers the error when it is written.
    fn trigger(&self) -> PathBuf {
        let found = Command::new("findmnt")
            .args(["-no", "SOURCE"])
            .arg(&self.path)
            .output();
        let device = found.expect("findmnt can be run").stdout;
        let device = String::from_utf8_lossy(&device);
        let name = device.trim().rsplit('/').next().unwrap_or_default();
        Path::new("/sys/fs/ext4")
            .join(name)
            .join("trigger_fs_error")
    }

    fn unmount(&self) -> bool {
        done_well(Command::new("umount").arg(&self.path))
    }
}

impl Drop for FragileDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

#[test]
fn a_disk_that_becomes_read_only_costs_nothing_that_was_acknowledged() {
    let mut env = Env::new();
    let Some(disk) = FragileDisk::mount(&env) else {
        return;
    };
    let server = env.start_server_with(&["--journal=disk/j.db"]);
    env.start_worker_with(&["--cpus=1"]);
    let job = env.submit(&["--name=kept", "--", "true"]);
    env.wait_job(&job);
    std::fs::write(disk.trigger(), "1").expect("it fails");
    let (refusal, waiting) = refused_submit(&env);
    assert!(
        refusal.contains("cannot write its state to disk"),
        "{refusal}"
    );
    // Queries work, and their answers are correct.
    assert_eq!(env.stats(&job)["finished"], 1);
    signal(server, "KILL");
    env.wait_exit("server");
    for mut submit in waiting {
        let status = submit.wait().expect("it ends");
        assert!(!status.success(), "it was never acknowledged");
    }
    assert!(disk.unmount() && disk.mount_again());
    env.start_server_with(&["--journal=disk/j.db"]);
    assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "kept");
    assert_eq!(env.stats(&job)["finished"], 1);
    let late = env.submit(&["--", "true"]);
    env.wait_job(&late);
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
}

#[test]
fn a_stop_on_a_full_disk_does_not_wait_for_room() {
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    env.start_server_with(&["--journal=disk/j.db"]);
    let job = env.submit(&["--name=kept", "--", "true"]);
    let filler = disk.fill();
    let (_, waiting) = refused_submit(&env);
    // The server would have to store this request before it answers.
    let cancel = env
        .command(&["job", "cancel", &job])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut cancel = cancel.expect("the program can be run");
    wait_for("the job is canceled", || {
        let stats = env.stats(&job);
        (stats["canceled"] == 1)
            .then_some(())
            .ok_or_else(|| stats.to_string())
    });
    let start = Instant::now();
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    let span = start.elapsed();
    assert!(span < Duration::from_secs(30), "it took {span:?}");
    assert!(!cancel.wait().expect("it ends").success(), "not stored");
    for mut submit in waiting {
        assert!(!submit.wait().expect("it ends").success(), "not stored");
    }
    std::fs::remove_file(filler).expect("the filler");
    env.start_server_with(&["--journal=disk/j.db"]);
    assert_eq!(env.stats(&job)["waiting"], 1, "nothing else was told");
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
}

#[test]
fn fifos_in_the_place_of_files_are_refused_at_the_start() {
    let mut env = Env::new();
    for name in ["fifo", "beside.db.lock", "log.db-wal"] {
        mkfifo(&env.path(name));
    }
    env.write("log.db", "");
    for (option, said) in [
        ("--journal=fifo", "expected a regular file, found a FIFO"),
        (
            "--journal=beside.db",
            "expected a regular file, found a FIFO",
        ),
        ("--journal=fifo/j.db", "Not a directory"),
        ("--access-file=fifo", "expected a regular file"),
        ("--server-dir=fifo", "Not a directory"),
    ] {
        env.hq(&["server", "start", option])
            .exits_with(1)
            .says(said);
    }
    for args in [
        &["journal", "check", "fifo"][..],
        &["journal", "check", "--repair", "fifo"],
        &["journal", "export", "fifo"],
    ] {
        env.hq(args).exits_with(1);
    }
    // Nothing is lost if the log is removed, because committed data is in files.
    env.hq(&["journal", "check", "--repair", "log.db"]).ok();
    // These are files that an earlier server has left in the directory.
    let earlier = env.server_dir().join("001");
    std::fs::create_dir_all(&earlier).expect("directory");
    for name in ["state.db", "access.json", "http-token"] {
        mkfifo(&earlier.join(name));
    }
    std::os::unix::fs::symlink(&earlier, env.server_dir().join("hq-current")).expect("a link");
    env.hq(&["server", "start", "--resume"])
        .exits_with(1)
        .says("Nothing to resume");
    mkfifo(&env.server_dir().join("007"));
    env.start_server_with(&["--http"]);
    assert!(env.server_dir().join("008/state.db").exists());
}
