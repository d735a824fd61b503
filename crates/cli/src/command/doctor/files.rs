//! Checks the server directory: its file system, permissions, locks and free space.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::check::{Check, State};

const MIB: u64 = 1 << 20;
/// The space for a journal, its log, and the copy that compaction writes.
const ROOM_FEW: u64 = 256 * MIB;
/// With less space than this, not even a new journal fits.
const ROOM_MIN: u64 = 8 * MIB;
/// The longest normal time to store a file. A slower file system delays every operation that waits
/// for the disk.
const SLOW: Duration = Duration::from_millis(500);
/// File systems that only this machine can see.
const LOCAL: &[&str] = &[
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs",
];

/// Facts about a directory, or about its nearest existing ancestor.
#[derive(Debug)]
struct DirectoryFacts {
    /// The directory as the user named it.
    wanted: PathBuf,
    /// The nearest existing ancestor, or the directory itself.
    directory: PathBuf,
    /// Whether the directory itself exists.
    is_there: bool,
    mount: Option<Mount>,
    /// The owner, if known.
    owner: Option<Owner>,
    /// The number of bytes and files that this user may still write.
    room: Option<(u64, u64)>,
    /// How long it took to store a file, or the error.
    written: Result<Duration, io::ErrorKind>,
    /// The results for locks of open files (flock) and of processes (fcntl). `None` if they were
    /// not tried.
    locks: Option<[Result<(), Errno>; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    user: u32,
    mode: u32,
    /// The uid of this process.
    us: u32,
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mount {
    kind: String,
    point: PathBuf,
    source: String,
}

impl Mount {
    /// Returns the mount of a path without touching the path, so that the check can name a mount
    /// that hangs. Does not follow symbolic links.
    pub(super) fn of(mounts: &str, path: &Path) -> Option<Self> {
        // See proc_pid_mountinfo(5): the mount point is the fifth field, and type and source follow
        // the dash.
        let lines = mounts.lines().filter_map(|line| {
            let (fields, behind) = line.split_once(" - ")?;
            let point = PathBuf::from(plain(fields.split(' ').nth(4)?));
            let mut behind = behind.split(' ');
            path.starts_with(&point).then_some(Self {
                point,
                kind: behind.next()?.to_owned(),
                source: plain(behind.next()?),
            })
        });
        // If there are several mounts at the same place, the last one is visible.
        lines.max_by_key(|mount| mount.point.as_os_str().len())
    }

    fn is_local(&self) -> bool {
        LOCAL.contains(&self.kind.as_str())
    }
}

impl std::fmt::Display for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, point, source) = (&self.kind, self.point.display(), &self.source);
        write!(f, "{kind} {source} on {point}")
    }
}

/// Decodes a field where blanks and backslashes are written as octal numbers.
fn plain(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// Returns the mounts of this process.
pub(super) fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Returns all checks of a server directory.
pub(super) fn checks(wanted: &Path) -> Vec<Check> {
    judge(&look(wanted))
}

fn look(wanted: &Path) -> DirectoryFacts {
    let absolute = std::path::absolute(wanted).unwrap_or_else(|_| wanted.to_owned());
    let nearest = absolute.ancestors().find(|path| path.is_dir());
    let is_there = nearest == Some(&*absolute);
    let directory = nearest.unwrap_or(Path::new("/")).to_owned();
    // The file system answers, so following links cannot hang.
    let directory = directory.canonicalize().unwrap_or(directory);
    let owner = directory.metadata().ok().map(|found| Owner {
        user: found.uid(),
        mode: found.mode() & 0o7777,
        us: rustix::process::geteuid().as_raw(),
    });
    let room = rustix::fs::statvfs(&directory).ok().map(|found| {
        let block = found.f_frsize;
        (found.f_bavail.saturating_mul(block), found.f_favail)
    });
    let (written, locks) = match try_file(&directory) {
        Ok((took, locks)) => (Ok(took), Some(locks)),
        Err(error) => (Err(error.kind()), None),
    };
    DirectoryFacts {
        wanted: wanted.to_owned(),
        mount: Mount::of(&mounts(), &directory),
        directory,
        is_there,
        owner,
        room,
        written,
        locks,
    }
}

/// Stores a file, takes both kinds of locks on it, and removes the file.
fn try_file(directory: &Path) -> io::Result<(Duration, [Result<(), Errno>; 2])> {
    let began = Instant::now();
    try_open_file(&hq_private::unnamed_file(directory)?, began)
}

fn try_open_file(
    mut file: &File,
    began: Instant,
) -> io::Result<(Duration, [Result<(), Errno>; 2])> {
    file.write_all(&[0; 4096])?;
    file.sync_all()?;
    let took = began.elapsed();
    let take = FlockOperation::NonBlockingLockExclusive;
    let of_file = rustix::fs::flock(file, take);
    let of_process = match rustix::fs::fcntl_lock(file, take) {
        // On some file systems, both kinds are the same lock, which this process already holds.
        Err(Errno::ACCESS | Errno::AGAIN) => Ok(()),
        result => result,
    };
    Ok((took, [of_file, of_process]))
}

fn judge(seen: &DirectoryFacts) -> Vec<Check> {
    let mut checks = vec![file_system(seen)];
    checks.extend(seen.owner.map(|owner| rights(seen, owner)));
    checks.extend(seen.room.map(|room| space(seen, room)));
    checks.extend(seen.locks.map(locks));
    checks
}

fn file_system(seen: &DirectoryFacts) -> Check {
    let what = format!("server directory {}", seen.wanted.display());
    let on = seen
        .mount
        .as_ref()
        .map_or_else(|| "an unknown file system".to_owned(), Mount::to_string);
    let took = match seen.written {
        Ok(took) => took,
        Err(kind) => {
            return State::Broken.check(
                what,
                format!(
                    "no file can be written in {}: {kind} ({on})",
                    seen.directory.display()
                ),
                "Choose another directory with --server-dir or HQ_SERVER_DIR. It must be yours, on a file system with free space that all nodes share.",
            );
        }
    };
    let millis = took.as_millis();
    if took > SLOW {
        return State::Poor.check(
            what,
            format!("{on}, {millis} ms to store a file"),
            "Every submit waits for the disk. Put the journal on a faster one: `hq server start --journal FILE`.",
        );
    }
    let seen_by = match &seen.mount {
        Some(mount) if mount.is_local() => {
            "; no other machine sees it: workers elsewhere need --server-dir on a shared file system, or a copy of the \
             access file"
        }
        Some(_) | None => "",
    };
    Check::good(what, format!("{on}, {millis} ms to store a file{seen_by}"))
}

fn rights(seen: &DirectoryFacts, owner: Owner) -> Check {
    let what = "rights of the server directory";
    let shown = seen.directory.display();
    let text = format!(
        "{shown} belongs to user {}, mode {:04o}",
        owner.user, owner.mode
    );
    // In a sticky directory, only the owner of a file can replace it.
    let is_sticky = owner.mode & 0o1000 != 0;
    if owner.mode & 0o022 != 0 && !is_sticky {
        // If the directory does not exist yet, its parent may be intended for other users.
        let advice = if seen.is_there && owner.user == owner.us {
            format!("Run `chmod go-w {shown}`.")
        } else {
            "Choose a directory inside one that only you can write to, with --server-dir."
                .to_owned()
        };
        return State::Poor.check(
            what,
            text,
            format!("Other users can replace your server with their own. {advice}"),
        );
    }
    if owner.user != owner.us && owner.user != 0 {
        return State::Poor.check(
            what,
            text,
            "Its owner can replace your server with another one. Choose your own directory with --server-dir.",
        );
    }
    Check::good(what, text)
}

fn space(seen: &DirectoryFacts, (bytes, files): (u64, u64)) -> Check {
    let what = "room for the journal";
    // Some file systems do not count files, and report zero total and free files.
    let text = format!("{} MiB free", bytes / MIB);
    let advice = format!(
        "Remove files from {}, or keep the journal elsewhere: `hq server start --journal FILE`. A server whose disk is full \
         accepts no work.",
        seen.directory.display()
    );
    if bytes < ROOM_MIN {
        State::Broken.check(what, text, advice)
    } else if bytes < ROOM_FEW || (1..16).contains(&files) {
        State::Poor.check(what, format!("{text}, {files} files"), advice)
    } else {
        Check::good(what, text)
    }
}

fn locks(taken: [Result<(), Errno>; 2]) -> Check {
    let what = "file locks";
    for (result, name) in taken.iter().zip(["flock", "fcntl"]) {
        if let Err(error) = result {
            let error = io::Error::from(*error);
            return State::Broken.check(
                what,
                format!("{name}: {error}"),
                "Without locks two servers could write to one journal, so no server starts. Put the journal on a file system with locks (`hq server start --journal FILE`); Lustre needs the mount option `flock`, NFS a lock service.",
            );
        }
    }
    Check::good(what, "both kinds work")
}

/// Returns the check of a directory that did not answer in time.
pub(super) fn hung(wanted: &Path, seconds: u64) -> Check {
    let absolute = std::path::absolute(wanted).unwrap_or_else(|_| wanted.to_owned());
    let on = Mount::of(&mounts(), &absolute);
    let on = on.map_or_else(String::new, |mount| format!(" from {mount}"));
    State::Broken.check(
        format!("server directory {}", wanted.display()),
        format!("no answer within {seconds} s{on}"),
        "The file system hangs, or its server is gone; `ls` also hangs there. Choose another directory with --server-dir, or have the mount repaired.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
21 20 0:30 / /users rw - nfs4 filer:/ex\\040port rw
22 20 0:31 / /users/u/scratch rw - lustre mds@o2ib:/fs rw
";

    fn seen() -> DirectoryFacts {
        DirectoryFacts {
            wanted: PathBuf::from("/users/u/.hq-server"),
            directory: PathBuf::from("/users/u"),
            is_there: true,
            mount: Mount::of(MOUNTS, Path::new("/users/u")),
            owner: Some(Owner {
                user: 7,
                mode: 0o750,
                us: 7,
            }),
            room: Some((1 << 30, 1_000)),
            written: Ok(Duration::from_millis(2)),
            locks: Some([Ok(()), Ok(())]),
        }
    }

    fn states(seen: &DirectoryFacts) -> Vec<State> {
        judge(seen).iter().map(|check| check.state).collect()
    }

    #[test]
    fn the_innermost_mount_is_named() {
        let of = |path| Mount::of(MOUNTS, Path::new(path)).map(|mount| mount.to_string());
        assert_eq!(of("/var/x").as_deref(), Some("ext4 /dev/sda1 on /"));
        assert_eq!(
            of("/users/u").as_deref(),
            Some("nfs4 filer:/ex port on /users")
        );
        assert_eq!(of("/usersx").as_deref(), Some("ext4 /dev/sda1 on /"));
        let scratch = of("/users/u/scratch/a");
        assert_eq!(
            scratch.as_deref(),
            Some("lustre mds@o2ib:/fs on /users/u/scratch")
        );
    }

    #[test]
    fn a_shared_directory_of_our_own_is_good() {
        let good = judge(&seen());
        assert!(
            good.iter().all(|check| check.state == State::Good),
            "{good:?}"
        );
        assert!(good[0].found.starts_with("nfs4 filer"), "{good:?}");
        let mut local = seen();
        local.mount = Mount::of(MOUNTS, Path::new("/var"));
        assert!(
            judge(&local)[0].found.contains("no other machine"),
            "{local:?}"
        );
    }

    #[test]
    fn a_file_system_without_locks_prevents_work() {
        for locks in [[Err(Errno::NOLCK), Ok(())], [Ok(()), Err(Errno::OPNOTSUPP)]] {
            let mut without = seen();
            without.locks = Some(locks);
            let last = judge(&without).pop().expect("locks are last");
            assert_eq!(last.state, State::Broken);
            assert!(last.advice.unwrap_or_default().contains("--journal"));
        }
    }

    #[test]
    fn rights_room_and_failures_are_judged() {
        let mut open = seen();
        open.owner = Some(Owner {
            user: 7,
            mode: 0o775,
            us: 7,
        });
        open.room = Some((100 * MIB, 1_000));
        open.written = Ok(Duration::from_secs(2));
        use State::{Broken, Good, Poor};
        assert_eq!(states(&open), [Poor, Poor, Poor, Good]);
        let mut sticky = seen();
        sticky.owner = Some(Owner {
            user: 0,
            mode: 0o1777,
            us: 7,
        });
        assert_eq!(states(&sticky)[1], Good);
        let mut foreign = seen();
        foreign.owner = Some(Owner {
            user: 8,
            mode: 0o755,
            us: 7,
        });
        foreign.room = Some((MIB, 0));
        foreign.written = Err(io::ErrorKind::PermissionDenied);
        foreign.locks = None;
        assert_eq!(states(&foreign), [Broken, Poor, Broken]);
    }

    #[test]
    fn only_the_rights_of_a_server_directory_of_our_own_are_to_be_changed() {
        for (is_there, user, has_command) in [
            (true, 7, true),
            (false, 7, false),
            (true, 0, false),
            (false, 0, false),
        ] {
            let mut open = seen();
            open.is_there = is_there;
            open.owner = Some(Owner {
                user,
                mode: 0o777,
                us: 7,
            });
            let advice = judge(&open)[1].advice.clone().unwrap_or_default();
            assert_eq!(advice.contains("chmod"), has_command, "{advice}");
        }
    }

    #[test]
    fn the_file_that_is_tried_has_no_name_that_another_could_have_or_find() {
        let directory = tempfile::tempdir().expect("directory");
        // A process with the same id in another container could have left this file.
        let name = format!(".hq-doctor-{}", std::process::id());
        let other = directory.path().join(name);
        std::fs::write(&other, "").expect("writable");
        let file = hq_private::unnamed_file(directory.path()).expect("there is room");
        std::fs::remove_file(other).expect("it is there");
        let left = std::fs::read_dir(directory.path()).map(Iterator::count);
        assert_eq!(left.ok(), Some(0), "{file:?}");
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_looked_at_above() {
        let directory = tempfile::tempdir().expect("directory");
        let seen = look(&directory.path().join("not/there"));
        assert_eq!(
            seen.directory,
            directory.path().canonicalize().expect("it is there")
        );
        assert!(seen.written.is_ok(), "{seen:?}");
        assert_eq!(seen.locks, Some([Ok(()), Ok(())]));
        let left = std::fs::read_dir(directory.path())
            .expect("directory")
            .count();
        assert_eq!(left, 0, "nothing is left behind");
    }
}
