//! Tests journals that were truncated or damaged, and full disks.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Env, signal, skip, wait_for};

/// The size of a block that a failing disk returns as zeros.
const BLOCK_LEN: usize = 8_192;

/// Creates a journal of finished jobs that was closed cleanly.
fn finished(env: &mut Env, tasks: u32) -> PathBuf {
    env.start_server_with(&["--journal=j.db"]);
    env.start_worker_with(&["--cpus=4", "--on-server-lost=stop"]);
    let array = format!("--array=1-{tasks}");
    let job = env.submit(&[&array, "--stdout=none", "--stderr=none", "--", "true"]);
    env.wait_job(&job);
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    env.wait_exit("worker1");
    env.path("j.db")
}

#[test]
fn a_cut_journal_starts_without_its_end() {
    let mut env = Env::new();
    let journal = finished(&mut env, 300);
    let bytes = std::fs::read(&journal).expect("the journal");
    env.write("cut.db", &bytes[..bytes.len() - 1]);
    env.start_server_with(&["--journal=cut.db"]);
    let log = env.read("server.log");
    assert!(
        log.contains("Journal contains not fully written data; they will be removed from the log"),
        "{log}"
    );
    assert!(
        env.path("cut.db.damaged-1").exists(),
        "what was found is kept"
    );
    env.hq(&["journal", "check", "cut.db"]).ok();
    env.start_worker(2);
    env.wait_job("1");
    assert_eq!(env.stats("1")["finished"], 300, "what was lost runs again");
}

#[test]
fn a_damaged_journal_is_refused_and_can_be_repaired() {
    let mut env = Env::new();
    let journal = finished(&mut env, 1_000);
    let mut bytes = std::fs::read(&journal).expect("the journal");
    // Choose a block with data: some are empty, and losing those does no harm.
    let told = bytes
        .windows(13)
        .rposition(|text| text == b"job-completed")
        .expect("an event in the file");
    let block = told / BLOCK_LEN * BLOCK_LEN;
    bytes[block..block + BLOCK_LEN].fill(0);
    env.write("j.db", &bytes);
    env.hq(&["server", "start", "--journal=j.db"])
        .exits_with(1)
        .says("hq journal check --repair");
    env.hq(&["journal", "check", "j.db"])
        .exits_with(1)
        .says("page");
    let report = env
        .hq(&["journal", "check", "--repair", "j.db"])
        .says("kept:")
        .ok();
    assert!(report.contains("the damaged file is now"), "{report}");
    assert_eq!(
        std::fs::read(env.path("j.db.damaged-1")).expect("it is kept"),
        bytes
    );
    env.hq(&["journal", "check", "j.db"]).ok();
    env.start_server_with(&["--journal=j.db"]);
    env.hq(&["journal", "check", "--repair", "j.db"])
        .exits_with(1)
        .says("used by another server");
}

/// A small file system in memory that is unmounted on drop.
pub(crate) struct SmallDisk(pub(crate) PathBuf);

impl SmallDisk {
    /// Returns `None` and prints a reason if this user may not mount.
    pub(crate) fn mount(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).expect("directory");
        let made = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs"])
            .arg(&path)
            .output();
        match made {
            Ok(output) if output.status.success() => Some(Self(path)),
            other => {
                skip(&format!("a small file system cannot be mounted: {other:?}"));
                None
            }
        }
    }
}

impl SmallDisk {
    /// Takes all remaining space. Returns the file that can be removed to free it.
    pub(crate) fn fill(&self) -> PathBuf {
        let filler = self.0.join("filler");
        // The command fails at the end, when the disk is full.
        let _ = Command::new("dd")
            .args(["if=/dev/zero", "bs=4k"])
            .arg(format!("of={}", filler.display()))
            .output();
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The result of a submit to a server whose disk may be full.
pub(crate) enum Submitted {
    Accepted,
    /// Rejected, with the error text.
    Refused(String),
    /// The submit was in progress when the disk became full. It is stored, and the command ends,
    /// once there is space.
    Waits(Child),
}

/// Submits a task with this argument.
pub(crate) fn submit_to_full_disk(env: &Env, argument: &str) -> Submitted {
    let mut submit = env
        .command(&["submit", "--output-mode=quiet", "--", "true", argument])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be run");
    for _ in 0..200 {
        match submit.try_wait().expect("it can be waited for") {
            Some(status) if status.success() => return Submitted::Accepted,
            Some(_) => {
                let output = submit.wait_with_output().expect("its output");
                return Submitted::Refused(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Submitted::Waits(submit)
}

/// Submits until a submit is rejected. Returns its error text, and the submits that wait for space.
pub(crate) fn refused_submit(env: &Env) -> (String, Vec<Child>) {
    // Results fill the log until it cannot grow.
    let argument = "x".repeat(100_000);
    let mut waiting = Vec::new();
    let refusal = wait_for("a submit is refused", || {
        match submit_to_full_disk(env, &argument) {
            Submitted::Accepted => Err("accepted".to_owned()),
            Submitted::Refused(refusal) => Ok(refusal),
            Submitted::Waits(submit) => {
                waiting.push(submit);
                Err("it waits".to_owned())
            }
        }
    });
    (refusal, waiting)
}

#[test]
fn a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room() {
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    let server = env.start_server_with(&["--journal=disk/j.db"]);
    env.start_worker_with(&["--cpus=4"]);
    let script = "until [ -e go ]; do sleep 0.05; done; echo $HQ_TASK_ID >> ends";
    let job = env.submit(&[
        "--array=1-4",
        "--stdout=none",
        "--stderr=none",
        "--",
        "bash",
        "-c",
        script,
    ]);
    env.wait_running(&job, 4);
    let filler = disk.fill();
    env.write("go", "");
    env.wait_lines("ends", 4);
    let (refusal, waiting) = refused_submit(&env);
    assert!(
        refusal.contains("cannot write its state to disk"),
        "{refusal}"
    );
    env.hq(&["job", "list", "--all"]).ok();
    std::fs::remove_file(&filler).expect("the filler");
    for mut submit in waiting {
        assert!(
            submit.wait().expect("it ends").success(),
            "it only had to wait"
        );
    }
    let late = wait_for("submits are taken again", || {
        let ran = env.hq(&["submit", "--output-mode=quiet", "--", "true"]);
        if ran.code == Some(0) {
            Ok(ran.stdout.trim().to_owned())
        } else {
            Err(ran.stderr)
        }
    });
    env.wait_job(&job);
    env.wait_job(&late);
    assert_eq!(env.stats(&job)["finished"], 4);
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--journal=disk/j.db"]);
    assert_eq!(env.stats(&job)["finished"], 4);
    assert_eq!(env.stats(&late)["finished"], 1);
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
}
