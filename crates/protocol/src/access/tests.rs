//! Tests of access files and the server directory on a real file system.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::key::{SecretKey, ServerKey};

const VERSION: &str = "1.2.3-dev";

fn full() -> AccessFile {
    let key = |byte| Some(SecretKey::from_bytes([byte; 32]));
    let client = Access {
        host: "login1".into(),
        port: 35973,
        key: key(0xab),
    };
    let worker = Access {
        host: "login1".into(),
        port: 35435,
        key: key(0xcd),
    };
    AccessFile::full(VERSION, ServerUid::from_text("hY0C00"), client, worker)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("exists").permissions().mode() & 0o7777
}

#[test]
fn writes_the_documented_json() {
    let expected = format!(
        r#"{{
  "version": "1.2.3-dev",
  "server_uid": "hY0C00",
  "client": {{
    "host": "login1",
    "port": 35973,
    "secret_key": "{}"
  }},
  "worker": {{
    "host": "login1",
    "port": 35435,
    "secret_key": "{}"
  }}
}}
"#,
        "ab".repeat(32),
        "cd".repeat(32)
    );
    assert_eq!(full().to_json(), expected);
}

#[test]
fn partial_files_have_only_their_part_and_null_keys_stay() {
    let mut file = full();
    if let Some(access) = &mut file.worker {
        access.key = None;
    }
    let worker: serde_json::Value =
        serde_json::from_str(&file.worker_only().to_json()).expect("JSON");
    let expected = serde_json::json!({
        "version": VERSION, "worker": { "host": "login1", "port": 35435, "secret_key": null }
    });
    assert_eq!(worker, expected);
    let client = file.client_only();
    let read = AccessFile::parse(&client.to_json(), Path::new("a"), VERSION).expect("own file");
    assert_eq!(read, client);
    assert!(read.plane(Plane::Client, Path::new("a")).is_ok());
    let error = read
        .plane(Plane::Worker, Path::new("a"))
        .expect_err("no such part");
    assert_eq!(
        error.to_string(),
        r#"Access file "a" has no `worker` part; use a file that was made for workers"#
    );
}

#[test]
fn partial_files_do_not_make_a_server() {
    let mut file = full();
    let pair = ServerKey::generate().expect("random numbers");
    for access in [&mut file.client, &mut file.worker].into_iter().flatten() {
        access.key = access.key.take().map(|key| key.with_server(&pair));
    }
    let digits = |file: &AccessFile, plane| {
        let access = file.plane(plane, Path::new("a")).expect("it has this part");
        access.key.as_ref().map(|key| key.to_hex().len())
    };
    assert_eq!(file.server_key(), Some(&pair));
    file.check_for_server(Path::new("a")).expect("the pair");
    for plane in [Plane::Client, Plane::Worker] {
        assert_eq!(digits(&file, plane), Some(192));
    }
    for (part, plane) in [
        (file.client_only(), Plane::Client),
        (file.worker_only(), Plane::Worker),
    ] {
        assert_eq!(digits(&part, plane), Some(128));
        let error = part.check_for_server(Path::new("a")).expect_err("half");
        assert!(error.to_string().contains("lacks the private key"));
        let read = AccessFile::parse(&part.to_json(), Path::new("a"), VERSION);
        assert_eq!(read.expect("own file"), part);
    }
    full()
        .check_for_server(Path::new("a"))
        .expect("of an earlier release");
}

#[test]
fn is_created_once_for_the_owner_only_and_read_back() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("access.json");
    full().create(&path).expect("new file");
    assert_eq!(mode(&path), 0o400);
    assert_eq!(AccessFile::load(&path, VERSION).expect("own file"), full());
    let error = full().create(&path).expect_err("exists");
    assert!(matches!(error, AccessError::Create { .. }));
    assert_eq!(AccessFile::load(&path, VERSION).expect("untouched"), full());
}

#[test]
fn refuses_files_whose_keys_others_can_read() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("copy.json");
    fs::write(&path, full().to_json()).expect("written");
    for (bits, is_fine) in [(0o600, true), (0o640, false), (0o604, false), (0o400, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).expect("own file");
        let result = AccessFile::load(&path, VERSION);
        assert_eq!(result.is_ok(), is_fine, "{bits:o}");
        if let Err(error) = result {
            assert!(error.to_string().contains("Run `chmod 0400 "), "{error}");
        }
    }
    // Only root can change a file's owner.
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
        let error = AccessFile::load(&path, VERSION).expect_err("of another user");
        assert!(
            error.to_string().contains("belongs to user 12345"),
            "{error}"
        );
    }
    let mut open = full();
    for access in [&mut open.client, &mut open.worker].into_iter().flatten() {
        access.key = None;
    }
    let path = dir.path().join("open.json");
    fs::write(&path, open.to_json()).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("own file");
    assert_eq!(
        AccessFile::load(&path, VERSION).expect("nothing secret"),
        open
    );
}

#[test]
fn another_version_is_refused_before_another_shape() {
    let error = AccessFile::parse(r#"{"version": "9", "x": []}"#, Path::new("a"), VERSION);
    assert_eq!(
        error.expect_err("other version").to_string(),
        "Hyperqueue version mismatch detected.\n\
         Access record contains version 9, but the current version is 1.2.3-dev."
    );
    for text in ["", "[]", "{}", r#"{"version": "1.2.3-dev", "client": {}}"#] {
        let error = AccessFile::parse(text, Path::new("a"), VERSION).expect_err("no access file");
        assert!(matches!(error, AccessError::Parse { .. }), "{text}");
    }
    let short = full().to_json().replace("abab", "ab");
    let error = AccessFile::parse(&short, Path::new("a"), VERSION).expect_err("short key");
    assert!(matches!(
        error,
        AccessError::Key {
            plane: Plane::Client,
            ..
        }
    ));
}

#[test]
fn uids_are_six_letters_and_digits() {
    let uid = ServerUid::generate().expect("random numbers");
    assert_eq!(uid.as_str().len(), 6);
    assert!(
        uid.as_str()
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric())
    );
    assert_ne!(uid, ServerUid::generate().expect("random numbers"));
}

#[test]
fn instances_are_numbered_behind_the_highest() {
    let dir = tempfile::tempdir().expect("directory");
    let server_dir = ServerDir::new(dir.path().join("new/server"), false);
    let name = |path: PathBuf| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let first = server_dir.create_instance().expect("first");
    assert_eq!((mode(&first), mode(server_dir.root())), (0o700, 0o700));
    assert_eq!(name(first).as_deref(), Some("001"));
    assert_eq!(
        name(server_dir.create_instance().expect("second")).as_deref(),
        Some("002")
    );
    for other in ["041", "099x", "hq-current-not"] {
        fs::create_dir(server_dir.root().join(other)).expect("directory");
    }
    assert_eq!(
        name(server_dir.create_instance().expect("third")).as_deref(),
        Some("042")
    );
}

#[test]
fn only_instances_of_servers_are_closed() {
    let top = tempfile::tempdir().expect("directory");
    let root = top.path().join("project");
    let server_dir = ServerDir::new(&root, false);
    let open_up = |path: &Path| {
        fs::create_dir_all(path).expect("directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o775)).expect("it is ours");
    };
    let (data, elsewhere) = (root.join("2024"), top.path().join("public"));
    let (instance, number) = (root.join("001"), root.join(u64::MAX.to_string()));
    for dir in [&root, &data, &elsewhere, &instance, &number] {
        open_up(dir);
    }
    fs::write(elsewhere.join(ACCESS_FILE_NAME), "").expect("room");
    symlink(&elsewhere, root.join("999")).expect("room");
    fs::write(instance.join(ACCESS_FILE_NAME), "").expect("room");
    server_dir.create().expect("it is ours");
    let modes = [&root, &data, &elsewhere, &instance].map(|dir| mode(dir));
    assert_eq!(modes, [0o775, 0o775, 0o775, 0o700]);
    let next = server_dir.create_instance().expect("there is room");
    assert!(next.ends_with("2025"), "{}", next.display());
    // If the server directory contains only instances, write access to it is removed as well.
    for name in ["2024", "999", &u64::MAX.to_string()] {
        let path = root.join(name);
        let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
    }
    fs::write(next.join(ACCESS_FILE_NAME), "").expect("room");
    server_dir.create().expect("it is ours");
    assert_eq!(mode(&root), 0o700);
}

#[test]
fn the_link_leads_to_the_running_instance() {
    let dir = tempfile::tempdir().expect("directory");
    let server_dir = ServerDir::new(dir.path(), false);
    let link = dir.path().join(CURRENT_LINK_NAME);
    assert_eq!(server_dir.resolve().expect("directory"), dir.path());
    let first = server_dir.create_instance().expect("first");
    let second = server_dir.create_instance().expect("second");
    server_dir.publish(&first).expect("link");
    server_dir.publish(&second).expect("replaced");
    assert_eq!(server_dir.resolve().expect("link"), second);
    assert!(fs::read_link(&link).expect("link").is_absolute());
    // The first server ends later and must not remove the second server's link.
    server_dir.withdraw(&first).expect("nothing to do");
    assert!(link.exists());
    server_dir.withdraw(&second).expect("removed");
    assert!(fs::symlink_metadata(&link).is_err());
    server_dir.withdraw(&second).expect("nothing to do");
    // A dangling link counts as missing. The directory of an instance can be named directly.
    symlink("/nonexistent", &link).expect("link");
    assert_eq!(server_dir.resolve().expect("directory"), dir.path());
    assert_eq!(
        ServerDir::new(&second, false).resolve().expect("directory"),
        second
    );
}

#[test]
fn finds_the_access_file_through_the_link() {
    let dir = tempfile::tempdir().expect("directory");
    let server_dir = ServerDir::new(dir.path(), false);
    let instance = server_dir.create_instance().expect("instance");
    full()
        .create(&instance.join(ACCESS_FILE_NAME))
        .expect("new file");
    server_dir.publish(&instance).expect("link");
    let (path, access) = server_dir.load_access(VERSION).expect("there");
    assert_eq!((path, access), (instance.join(ACCESS_FILE_NAME), full()));
}

#[test]
fn errors_have_the_documented_texts() {
    let missing = ServerDir::new("/nonexistent/dir", false);
    let error = missing.load_access(VERSION).expect_err("no directory");
    assert_eq!(error.to_string(), "Invalid server directory");
    let cause = error.source().expect("cause").to_string();
    assert_eq!(cause, r#"Error: "/nonexistent/dir" is not a directory"#);

    let dir = tempfile::tempdir().expect("directory");
    let shown = dir.path().display();
    let empty = ServerDir::new(dir.path(), false);
    let error = empty.load_access(VERSION).expect_err("no access file");
    assert_eq!(
        error.to_string(),
        format!(
            "No running instance of HQ found at \"{shown}\".\nTry to start the server: \
             `hq server start --server-dir {shown}` or use a different server directory."
        )
    );
    let cause = error.source().expect("cause").to_string();
    assert_eq!(cause, "No such file or directory (os error 2)");

    let default = ServerDir::new(dir.path(), true);
    let error = default.unreachable("login1", 4000, io::Error::from_raw_os_error(111));
    assert_eq!(
        error.to_string(),
        "Access token found but HQ server login1:4000 is unreachable.\n\
         Try to (re)start the server using `hq server start`"
    );
    let error = empty
        .unreachable("h", 1, io::Error::from_raw_os_error(111))
        .to_string();
    assert!(
        error.ends_with(&format!("`hq server start --server-dir {shown}`")),
        "{error}"
    );
}
