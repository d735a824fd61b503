//! Defaults of options in files of the user and of the site.

use crate::harness::Env;

/// Creates an environment with a user's and a site's configuration file.
fn with_files(user: &str, site: &str) -> Env {
    let mut env = Env::new();
    let (user, site) = (env.write("user.toml", user), env.write("site.toml", site));
    env.set("HQ_CONFIG", &user.display().to_string());
    env.set("HQ_SITE_CONFIG", &site.display().to_string());
    env
}

#[test]
fn what_nobody_says_stands_in_files() {
    let user = "[submit]\ntime-limit = \"30s\"\nenv = [\"A=user\", \"B=user\"]\n[server.start]\njournal = \"mine.db\"\n";
    let site = "output-mode = \"json\"\n[submit]\ntime-limit = \"1h\"\ncrash-limit = 7\nresource = [\"mem=1\"]\n\
                max-fails = 5\ncheck-outputs = true\nskip-done = true\nretry-grow = \"mem=2,time=2\"\n";
    let mut env = with_files(user, site);
    env.start_server();
    assert!(env.path("mine.db").exists());
    let plan = |args: &[&str]| {
        let args = [&["submit", "--dry-run"], args].concat();
        env.hq(&args).ok()
    };
    let told = plan(&["--env", "A=me", "--", "true"]);
    let value: serde_json::Value = serde_json::from_str(&told).expect("JSON, as the site wants");
    let text = value.to_string();
    for part in ["30", "\"A\":\"me\"", "\"B\":\"user\"", "\"crash_limit\":7"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The command line has precedence, and so does a script.
    let shown = plan(&["--output-mode=cli", "--time-limit=5s", "--", "true"]);
    assert!(shown.contains("5s") && !shown.contains("30s"), "{shown}");
    env.write(
        "job.sh",
        "#!/bin/sh\n#HQ --crash-limit=2 --resource mem=3\n",
    );
    let shown = plan(&["job.sh"]);
    assert!(shown.contains("\"crash_limit\": 2"), "{shown}");
    assert!(plan(&["--nodes=2", "--", "true"]).contains("node"));
    // Defaults for parts that this submit does not have are not an error.
    env.hq(&["job", "open"]).ok();
    env.hq(&["submit", "--job=1", "--", "true"]).ok();
    // An option overrides a conflicting default.
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    let settings = env.json(&["config"]);
    let of = |key: &str| {
        let rows = settings["settings"].as_array().expect("settings");
        let row = rows
            .iter()
            .find(|row| row["key"] == key)
            .expect("a setting");
        (
            row["value"].clone(),
            row["from"].clone(),
            row["line"].clone(),
        )
    };
    assert_eq!(
        of("submit.time-limit"),
        ("30s".into(), "file".into(), 2.into())
    );
    assert_eq!(
        of("submit.crash-limit"),
        ("7".into(), "file".into(), 4.into())
    );
    assert_eq!(of("server-dir").1, "environment");
    assert_eq!(
        of("colors"),
        ("auto".into(), "default".into(), serde_json::Value::Null)
    );
    let shown = env.hq(&["--output-mode=cli", "config"]).ok();
    assert!(shown.contains("user.toml, line 2"), "{shown}");
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_its_place() {
    for (user, words) in [
        (
            "[submit]\ntime-limt = \"1h\"\n",
            "line 2, column 1: `time-limt` is not an option of [submit]",
        ),
        (
            "[submit]\ntime-limt = \"1h\"\n",
            "did you mean `time-limit`?",
        ),
        (
            "[submit]\ntime-limit = \"soon\"\n",
            "line 2, column 14: time-limit: ",
        ),
        ("[submit]\narray = \"1-3\"\n", "`array` is not an option"),
        ("[submit]\ntask-dir = false\n", "remove the line"),
        ("[job]\n", "line 1, column 2: expected the table [submit]"),
        ("[server]\nhttp = 1\n", "expected a table [server.start]"),
        ("server-dir = [\n", "line "),
    ] {
        let env = with_files(user, "");
        env.hq(&["submit", "--", "true"]).exits_with(1).says(words);
        env.hq(&["doc", "config"]).ok();
    }
    let mut env = with_files("", "");
    env.set("HQ_CONFIG", "/dev/null");
    let ran = env.hq(&["job", "list"]).exits_with(1).says("No server");
    assert!(!ran.stderr.contains("HQ_CONFIG"), "{}", ran.stderr);
    env.set("HQ_CONFIG", "nosuch.toml");
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("the file in HQ_CONFIG does not exist");
    let pipe = env.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a FIFO");
    env.set("HQ_CONFIG", &pipe.display().to_string());
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("it is not a regular file");
    let env = with_files("", "colors = \"loud\"\n");
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("site.toml, line 1, column 10: colors: ");
}
