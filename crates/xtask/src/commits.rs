//! `cargo xtask commits`: checks the subjects of the commits of a branch.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

/// The maximum length of a subject in characters.
const LENGTH_MAX: usize = 72;
/// The branches from which a branch may start. The first one that exists is used.
const BASES: [&str; 2] = ["origin/main", "main"];
/// The commit that introduced this check. Earlier commits keep their subjects, because other clones
/// have them.
const FIRST: &str = "6a6d24b90656d8e5daa95208e4d040caef0b3d95";
/// Imperatives that end like another form of a verb.
const IMPERATIVES: [&str; 12] = [
    "bring", "discuss", "embed", "exceed", "feed", "focus", "need", "proceed", "seed", "speed",
    "spring", "string",
];

/// Checks the commits that are not on the main branch, or only the newest one if the history is
/// unknown. Returns the problems. Without a repository there are no commits.
///
/// # Errors
///
/// If git cannot be run.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let git = |args: &[&str]| -> anyhow::Result<Option<String>> {
        let output = Command::new("git").arg("-C").arg(root).args(args).output();
        let output = output.context("run git")?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(output.status.success().then_some(text))
    };
    let mut range = "-1".to_owned();
    for base in BASES {
        // A shallow clone may have no common commit.
        if let Some(start) = git(&["merge-base", "HEAD", base])? {
            if git(&["rev-parse", "HEAD"])?.as_ref() != Some(&start) {
                range = format!("{start}..HEAD");
            }
            break;
        }
    }
    let mut log = vec!["log", "--no-merges", "--format=%h %s", &range];
    let earlier = format!("^{FIRST}");
    if git(&["merge-base", "--is-ancestor", FIRST, "HEAD"])?.is_some() {
        log.push(&earlier);
    }
    let subjects = git(&log)?;
    let problems = subjects.unwrap_or_default();
    let problems = problems.lines().filter_map(|line| {
        let (commit, subject) = line.split_once(' ')?;
        Some(format!("{commit} `{subject}`: {}", problem_of(subject)?))
    });
    Ok(problems.collect())
}

fn problem_of(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LENGTH_MAX {
        return Some(format!("has {length} characters, {LENGTH_MAX} are allowed"));
    }
    let is_area = |area: &str| {
        let mut names = area.split(", ");
        names.all(|name| {
            !name.is_empty() && !name.contains(|c: char| c.is_uppercase() || " !".contains(c))
        })
    };
    let parts = subject.split_once(": ").filter(|(area, _)| is_area(area));
    let Some((_, change)) = parts else {
        return Some(
            "write `AREA: CHANGE`, such as `cli: search the manual by paragraph`".to_owned(),
        );
    };
    let verb = change.split(' ').next().unwrap_or_default();
    let is_other_form = ["ed", "ing"].iter().any(|ending| verb.ends_with(ending))
        || verb.ends_with('s') && !verb.ends_with("ss");
    if is_other_form && !IMPERATIVES.contains(&verb) {
        return Some(format!(
            "begin the change with an imperative, not with `{verb}`"
        ));
    }
    (subject.ends_with('.')).then(|| "leave out the full stop".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_short_and_imperative() {
        for (subject, is_good) in [
            ("cli: search the manual by paragraph", true),
            ("store, server: pass errors on", true),
            (".ci: feed the check", true),
            ("docs: searched the manual", false),
            ("docs: searching the manual", false),
            ("docs: searches the manual", false),
            ("docs: search the manual.", false),
            ("search the manual", false),
            ("fixup! docs: search the manual", false),
            ("Docs: search the manual", false),
            (&format!("docs: {}", "a".repeat(67)), false),
        ] {
            assert_eq!(problem_of(subject).is_none(), is_good, "{subject}");
        }
    }

    #[test]
    fn commits_of_the_branch_are_checked_also_without_their_base() {
        let folder = tempfile::tempdir().expect("a directory");
        let run = |place: &str, words: &[&str]| {
            let path = folder.path().join(place);
            std::fs::create_dir_all(&path).expect("room");
            let settings = [
                "-c",
                "user.name=x",
                "-c",
                "user.email=x@x",
                "-c",
                "init.defaultBranch=main",
            ];
            let status = Command::new("git")
                .arg("-C")
                .arg(path)
                .args(settings)
                .args(words)
                .output();
            assert!(status.expect("git").status.success(), "{words:?}");
        };
        let commit = |text: &str| run("all", &["commit", "-q", "--allow-empty", "-m", text]);
        let count = |place: &str| check(&folder.path().join(place)).expect("git").len();
        run("all", &["init", "-q"]);
        assert_eq!(count("."), 0, "it is no repository");
        commit("old and bad");
        assert_eq!(count("all"), 1, "the newest commit of main");
        run("all", &["switch", "-qc", "branch"]);
        commit("docs: writing a page");
        commit("docs: write a page");
        assert_eq!(count("all"), 1, "those of the branch");
        let origin = format!("file://{}", folder.path().join("all").display());
        run(".", &["clone", "-q", &origin, "fresh"]);
        assert_eq!(count("fresh"), 1);
        run(
            ".",
            &[
                "clone",
                "-q",
                "--depth=1",
                "--branch=branch",
                &origin,
                "shallow",
            ],
        );
        assert_eq!(count("shallow"), 0, "the newest alone");
    }
}
