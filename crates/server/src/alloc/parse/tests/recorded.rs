//! Verbatim recorded answers of OpenPBS 23.06.06.

use super::*;

/// Reads a recording: the command, its exit status, standard output and standard error.
fn recorded(text: &str) -> Answer {
    let (head, rest) = text.split_once("--- stdout\n").expect("standard output");
    let (stdout, stderr) = rest.split_once("--- stderr").expect("standard error");
    let mut lines = head.lines();
    let command = lines.next().and_then(|line| line.strip_prefix("$ "));
    let program = command.and_then(|line| line.split(' ').next());
    let code = lines
        .next()
        .and_then(|line| line.strip_prefix("exit status "));
    Ok(ProgramResult {
        program: program.expect("a command").to_owned(),
        code: Some(code.and_then(|code| code.parse().ok()).expect("a number")),
        stdout: stdout.to_owned(),
        stderr: stderr.trim_start().to_owned(),
    })
}

macro_rules! answer {
    ($name:literal) => {
        recorded(include_str!(concat!("../recorded/", $name, ".txt")))
    };
}

fn pbs() -> SystemSpec {
    let mut system = system(StatusFormat::PbsJson);
    system.submit_format = SubmitFormat::LastLine;
    system.find_format = FindFormat::PbsJson;
    system.unreachable = vec!["cannot connect to server".into()];
    system
}

#[test]
fn states_are_read_as_recorded() {
    let cannot = "Can Never Run: Insufficient amount of resource: ncpus (R: 320 A: 2 T: 2)";
    let at = "Job run at Sat Nov 21 at 09:21 on (pbshost:ncpus=1) and";
    for (answer, job, expected) in [
        (answer!("qstat-running-json"), "1.pbshost", Report::Running),
        (
            answer!("qstat-held-json"),
            "2.pbshost",
            Report::Queued("H".into()),
        ),
        (
            answer!("qstat-queued-cannot-run-json"),
            "3.pbshost",
            Report::Queued(cannot.into()),
        ),
        (
            answer!("qstat-finished-ok-json"),
            "1.pbshost",
            Report::Finished(format!("Exit_status 0 {at} finished").into()),
        ),
        (
            answer!("qstat-finished-failed-json"),
            "6.pbshost",
            failed(&format!("Exit_status 3 {at} failed"), false),
        ),
        (
            answer!("qstat-walltime-exceeded-json"),
            "7.pbshost",
            failed(
                &format!("Exit_status -29 {at} exceeded resource walltime"),
                false,
            ),
        ),
        (
            answer!("qstat-deleted-with-x"),
            "2.pbshost",
            failed("it was deleted before it ran", false),
        ),
        (
            answer!("qstat-deleted-without-x"),
            "2.pbshost",
            Report::Finished("qstat: 2.pbshost Job has finished, use -x or -H to obtain historical job information".into()),
        ),
        (answer!("qstat-unknown"), "99999.pbshost", Report::Missing),
    ] {
        assert_eq!(reports(&pbs(), &answer, &[job]), Some(vec![Some(expected)]));
    }
}

#[test]
fn only_the_id_that_is_named_is_unknown() {
    let several = answer!("qstat-several-one-unknown-json");
    let jobs = ["1.pbshost", "3.pbshost", "99999.pbshost", "9999.pbshost"];
    let found = reports(&pbs(), &several, &jobs).expect("an answer");
    assert_eq!(found[0], Some(Report::Running));
    // No recorded answer mentions it, so its state is unknown.
    assert_eq!((&found[1], &found[3]), (&None, &None));
    assert_eq!(found[2], Some(Report::Missing));
}

#[test]
fn what_is_left_out_is_not_gone() {
    let silent = answer!("qstat-no-history");
    assert_eq!(
        reports(&pbs(), &silent, &["1099.pbshead"]),
        Some(vec![None])
    );
    assert!(keeps_no_history(&pbs(), &silent));
    let first = answer!("qstat-first-only");
    let found = reports(&pbs(), &first, &["10.pbshost", "11.pbshost"]);
    assert_eq!(found, Some(vec![Some(Report::Queued("Q".into())), None]));
    assert!(!keeps_no_history(&pbs(), &first));
    let missing = parse_lookup(&pbs(), &silent, &ours("hq-1-1", "/d"));
    assert!(matches!(missing, LookupOutcome::Error(_)), "{missing:?}");
}

#[test]
fn questions_are_asked_again_without_history() {
    let template = |words: &[&str]| {
        let words = words.iter().map(|word| Words {
            words: vec![(*word).into()],
            each_job: word.contains("%{job}"),
        });
        CommandTemplate(words.collect())
    };
    let mut system = pbs();
    system.status = template(&["qstat", "-f", "%{job}", "-F", "json", "-x"]);
    let without = template(&["qstat", "-f", "%{job}", "-F", "json"]);
    assert_eq!(status_fallback(&system), without);
    for (find, plain) in [
        (
            &["qselect", "-x", "-N", "a"][..],
            &["qselect", "-x", "-N", "a"][..],
        ),
        // The description of earlier releases.
        (&["qstat", "-f", "-F", "json", "-x"], &["qstat", "-f", "-x"]),
    ] {
        system.find = template(find);
        let [first, second] = &searches(&system)[..] else {
            panic!("there are two searches");
        };
        assert_eq!((&first.find, &first.status), (&system.find, &system.status));
        assert_eq!(second.find, template(plain));
        assert_eq!(second.status, template(&["qstat", "-f", "%{job}", "-x"]));
    }
    let silent = answer!("qstat-no-history");
    let again = |asked| find_without_history(&system, asked, &silent);
    assert_eq!(again(&system.status), Some(without.clone()));
    assert_eq!(
        find_without_history(&system, &system.status, &ran(0, "", "")),
        None
    );
    system.status = without;
    assert!(status_fallback(&system).is_empty());
}

#[test]
fn a_search_prints_ids_or_jobs() {
    let ids = |code, text: &str| {
        let answer = ran(code, text, "");
        found_ids(&pbs(), &answer).map(|ids| ids.join(" "))
    };
    assert_eq!(
        ids(0, "1.pbs\n 12[].pbs\n\n").as_deref(),
        Some("1.pbs 12[].pbs")
    );
    assert_eq!(ids(0, "").as_deref(), Some(""));
    for (code, text) in [(1, "1.pbs\n"), (0, "Welcome!\n1.pbs\n"), (0, "{\n}\n")] {
        assert_eq!(ids(code, text), None, "{text}");
    }
    assert_eq!(found_ids(&pbs(), &answer!("qstat-running-plain")), None);
    // Another job has vanished in between.
    let jobs = r#"{"Jobs":{"1.pbs":{"Job_Name":"a","job_state":"R","Variable_List":{"PBS_O_WORKDIR":"/d"}}}}"#;
    let answer = ran(153, jobs, "qstat: Unknown Job Id 2.pbs");
    let look = |dir: &str| parse_lookup(&pbs(), &answer, &ours("a", dir));
    assert_eq!(look("/d"), LookupOutcome::Found("1.pbs".into()));
    assert!(matches!(look("/e"), LookupOutcome::Error(_)));
}

#[test]
fn of_several_jobs_the_best_is_found() {
    let job = |id: u32, name: &str, state: &str| {
        format!(
            r#""{id}.pbs":{{"Job_Name":"{name}","job_state":"{state}","Variable_List":{{"PBS_O_WORKDIR":"/d"}}}}"#
        )
    };
    let find = |jobs: &[String]| {
        let text = format!(r#"{{"Jobs":{{{}}}}}"#, jobs.join(","));
        parse_lookup(&pbs(), &ran(0, &text, ""), &ours("a", "/d"))
    };
    let (renamed, ended) = (job(12, "b", "R"), job(11, "a", "F"));
    let (older, newer) = (job(9, "a", "R"), job(10, "a", "Q"));
    let all = [renamed, ended, older, newer];
    for (count, id) in [(4, "10.pbs"), (3, "9.pbs"), (2, "11.pbs"), (1, "12.pbs")] {
        let found = LookupOutcome::Found(id.into());
        assert_eq!(find(&all[..count]), found, "{count}");
    }
}

#[test]
fn jobs_are_found_in_plain_text() {
    let plain = answer!("qstat-running-plain");
    let look = |name: &str, dir: &str| parse_lookup(&pbs(), &plain, &ours(name, dir));
    // A site may rename jobs, so the directory decides.
    for name in ["hq-alloc-1", "hq-alloc-2"] {
        assert_eq!(
            look(name, "/data/user/run"),
            LookupOutcome::Found("1.pbshost".into())
        );
    }
    for (name, dir) in [
        ("hq-alloc-1", "/data/user/ru"),
        ("hq-alloc-1", "/data/user"),
    ] {
        assert_eq!(look(name, dir), LookupOutcome::Absent, "{name} {dir}");
    }
    let away = ran(
        1,
        "",
        "qstat: cannot connect to server pbshost (errno=15010)",
    );
    assert!(matches!(
        parse_lookup(&pbs(), &away, &ours("x", "/")),
        LookupOutcome::Error(_)
    ));
}

#[test]
fn submissions_and_deletions_are_read_as_recorded() {
    for (answer, id) in [
        (answer!("qsub-ok"), "1.pbshost"),
        (answer!("qsub-held"), "2.pbshost"),
        (answer!("qsub-too-big"), "3.pbshost"),
        (answer!("qsub-fail"), "6.pbshost"),
        (answer!("qsub-walltime-exceeded"), "7.pbshost"),
    ] {
        let accepted = SubmitOutcome::Accepted(id.into());
        assert_eq!(submitted(&pbs(), &answer), accepted);
    }
    for (answer, text) in [
        (answer!("qsub-bad-queue"), "qsub: Unknown queue"),
        (
            answer!("qsub-bad-resource"),
            "qsub: Unknown resource: nosuch",
        ),
        (answer!("qsub-bad-walltime"), "Resource_List.walltime"),
        (answer!("qsub-missing-script"), "No such file or directory"),
    ] {
        let outcome = submitted(&pbs(), &answer);
        assert!(
            matches!(&outcome, SubmitOutcome::Refused(told) if told.contains(text)),
            "{outcome:?}"
        );
    }
    let away = "qsub: cannot connect to server pbshost (errno=15010)";
    let mut older = pbs();
    older.unreachable.clear();
    let mut other = pbs();
    other.unreachable = vec!["daemon is down".into()];
    for (system, is_away) in [(pbs(), true), (older, true), (other, false)] {
        let outcome = submitted(&system, &ran(1, "", away));
        let found = matches!(outcome, SubmitOutcome::Unreachable(_));
        assert_eq!(found, is_away, "{:?}: {outcome:?}", system.unreachable);
    }
    for answer in [
        answer!("qdel-held"),
        answer!("qdel-queued"),
        answer!("qdel-unknown"),
    ] {
        assert_eq!(canceled(&pbs(), &answer), Ok(()));
    }
}
