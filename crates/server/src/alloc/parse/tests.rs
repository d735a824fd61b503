//! Tests with answers of real batch systems, and with texts that are not answers.

mod recorded;

use std::collections::BTreeMap;

use super::*;
use hq_core::batch::{CommandTemplate, Words};

const QSTAT_HEAD: &str = r#"{"timestamp": 1795252904, "pbs_version": "23.06.06""#;

fn system(status_format: StatusFormat) -> SystemSpec {
    let program = CommandTemplate(vec![Words {
        words: vec!["true".into()],
        each_job: false,
    }]);
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).into()).collect();
    let states = [
        ("PENDING", StateMeaning::Queued),
        ("Q", StateMeaning::Queued),
        ("H", StateMeaning::Queued),
        ("RUNNING", StateMeaning::Running),
        ("R", StateMeaning::Running),
        ("SUSPENDED", StateMeaning::Suspended),
        ("COMPLETED", StateMeaning::Finished),
        ("TIMEOUT", StateMeaning::Finished),
        ("CANCELLED", StateMeaning::Failed),
        ("NODE_FAIL", StateMeaning::FailedMayReturn),
    ];
    let states: BTreeMap<Box<str>, StateMeaning> = states
        .into_iter()
        .map(|(word, meaning)| (word.into(), meaning))
        .collect();
    SystemSpec {
        name: "Slurm".into(),
        manager: "slurm".into(),
        script: "".into(),
        each_node: "".into(),
        each_node_shell: "".into(),
        submit: program.clone(),
        submit_format: SubmitFormat::Sbatch,
        status: program.clone(),
        status_fallback: CommandTemplate::default(),
        status_format,
        cancel: program.clone(),
        find: program,
        find_format: FindFormat::Lines,
        missing: texts(&["Invalid job id", "Unknown Job Id", "Job has finished"]),
        unclear: texts(&["timed out"]),
        unreachable: texts(&["Unable to contact slurm controller"]),
        states,
    }
}

fn ran(code: i32, stdout: &str, stderr: &str) -> Answer {
    Ok(ProgramResult {
        program: "sbatch".to_owned(),
        code: Some(code),
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
    })
}

/// Returns the reports about jobs if only their ids are known.
fn reports(system: &SystemSpec, answer: &Answer, jobs: &[&str]) -> Option<Vec<Option<Report>>> {
    let jobs: Vec<_> = jobs
        .iter()
        .map(|id| Question {
            id,
            ours: ExpectedJob::default(),
        })
        .collect();
    super::reports(system, answer, &jobs)
}

fn ours(name: &str, dir: &str) -> ExpectedJob {
    ExpectedJob {
        name: Some(name.to_owned()),
        dirs: vec![dir.to_owned()],
    }
}

fn silent() -> Answer {
    Err(CommandError::Timeout {
        program: "sbatch".to_owned(),
        time: std::time::Duration::from_secs(90),
    })
}

fn failed(text: &str, may_return: bool) -> Report {
    Report::Failed {
        text: text.into(),
        may_return,
    }
}

#[test]
fn the_id_is_the_fourth_word() {
    let outcome = |answer: &Answer| submitted(&system(StatusFormat::Scontrol), answer);
    for (text, id) in [
        ("Submitted batch job 12\n", "12"),
        (
            "sbatch: some advice\nsubmitted BATCH job 12 on cluster x\n",
            "12;x",
        ),
        ("Welcome\n\n12\n\n", "12"),
        ("12;x\n", "12;x"),
        ("12;\n", "12"),
    ] {
        let accepted = SubmitOutcome::Accepted(id.into());
        assert_eq!(outcome(&ran(0, text, "")), accepted, "{text}");
    }
    for text in ["job 12", "12a", "12 jobs wait", ";x"] {
        let found = outcome(&ran(0, text, ""));
        assert!(
            matches!(found, SubmitOutcome::Unclear(_)),
            "{text}: {found:?}"
        );
    }
    let id_of = |text: &str| {
        let mut pbs = system(StatusFormat::PbsJson);
        pbs.submit_format = SubmitFormat::LastLine;
        submitted(&pbs, &ran(0, text, ""))
    };
    assert_eq!(
        id_of("1.pbshost\n"),
        SubmitOutcome::Accepted("1.pbshost".into())
    );
    assert_eq!(
        id_of("note\n1.pbshost\n\n"),
        SubmitOutcome::Accepted("1.pbshost".into())
    );
    assert!(matches!(id_of("\n"), SubmitOutcome::Unclear(_)));
    assert!(matches!(id_of("what is this"), SubmitOutcome::Unclear(_)));
}

#[test]
fn what_is_no_clear_refusal_may_have_happened() {
    let outcome = |answer: &Answer| submitted(&system(StatusFormat::Scontrol), answer);
    let refused = outcome(&ran(
        1,
        "",
        "sbatch: error: invalid partition specified: x\n",
    ));
    let SubmitOutcome::Refused(text) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        &*text,
        "sbatch execution failed\nExit code: 1\nStderr: sbatch: error: invalid partition \
         specified: x\nStdout:"
    );
    let timed_out = "sbatch: error: Batch job submission failed: Socket timed out on send/recv";
    for unclear in [
        ran(0, "", ""),
        ran(0, "Submitted batch", ""),
        ran(1, "", timed_out),
        silent(),
        Ok(ProgramResult::default()),
    ] {
        assert!(
            matches!(outcome(&unclear), SubmitOutcome::Unclear(_)),
            "{unclear:?}"
        );
    }
}

/// Returns output in the format of Slurm 22.05, abbreviated.
fn scontrol(state: &str, reason: &str) -> String {
    format!(
        "JobId=12 JobName=hq-1-1\n   UserId=root(0) GroupId=root(0) MCS_label=N/A\n   \
         JobState={state} Reason={reason} Dependency=(null)\n   StartTime=2026-11-21T08:00:00\n\n"
    )
}

#[test]
fn reads_the_states_of_slurm() {
    let slurm = system(StatusFormat::Scontrol);
    let of = |answer: &Answer| reports(&slurm, answer, &["12"])?.remove(0);
    for (state, reason, report) in [
        ("PENDING", "Resources", Report::Queued("Resources".into())),
        ("PENDING", "None", Report::Queued("PENDING".into())),
        ("RUNNING", "None", Report::Running),
        ("COMPLETED", "None", Report::Finished("COMPLETED".into())),
        ("SUSPENDED", "None", Report::Suspended("SUSPENDED".into())),
        (
            "TIMEOUT",
            "TimeLimit",
            Report::Finished("TIMEOUT: TimeLimit".into()),
        ),
        ("CANCELLED", "None", failed("CANCELLED", false)),
        ("CANCELLED", "Resources", failed("CANCELLED", false)),
        ("NODE_FAIL", "NodeDown", failed("NODE_FAIL: NodeDown", true)),
        (
            "WEIRD",
            "None",
            Report::Unreadable("Unknown Slurm job status WEIRD".into()),
        ),
    ] {
        assert_eq!(
            of(&ran(0, &scontrol(state, reason), "")),
            Some(report),
            "{state}"
        );
    }
    let unknown = ran(1, "", "slurm_load_jobs error: Invalid job id specified\n");
    assert_eq!(of(&unknown), Some(Report::Missing));
    let down = ran(
        1,
        "",
        "slurm_load_jobs error: Unable to contact slurm controller\n",
    );
    assert_eq!((of(&down), of(&silent())), (None, None));
    let other = scontrol("RUNNING", "None").replace("JobId=12", "JobId=123");
    for text in ["", "JobId=12 JobName=x", &other] {
        let report = of(&ran(0, text, ""));
        assert!(
            matches!(report, Some(Report::Error(_) | Report::Unreadable(_))),
            "{text}: {report:?}"
        );
    }
}

#[test]
fn reads_the_states_of_pbs() {
    let pbs = system(StatusFormat::PbsJson);
    let text = format!(
        r#"{QSTAT_HEAD}, "Jobs": {{
            "1.pbshost": {{"job_state": "R", "queue_rank": 1.79525290464789e+15}},
            "2.pbshost": {{"job_state": "Q", "comment": "Can Never Run: Insufficient"}},
            "3.pbshost": {{"job_state": "H"}},
            "4.pbshost": {{"job_state": "F", "Exit_status": 0}},
            "5.pbshost": {{"job_state": "F", "Exit_status": "-29", "comment": "exceeded"}},
            "6.pbshost": {{"job_state": "F"}},
            "7.pbshost": {{"job_state": "?"}}}}}}"#
    );
    let ids = [
        "1.pbshost",
        "2",
        "3.pbshost",
        "4.pbshost",
        "5.pbshost",
        "6.pbshost",
        "7.pbshost",
        "8.pbshost",
    ];
    let unknown = "qstat: Unknown Job Id 8.pbshost\n";
    let found = reports(&pbs, &ran(153, &text, unknown), &ids).expect("an answer");
    let found: Vec<Report> = found.into_iter().flatten().collect();
    assert_eq!(
        found,
        [
            Report::Running,
            Report::Queued("Can Never Run: Insufficient".into()),
            Report::Queued("H".into()),
            Report::Finished("Exit_status 0".into()),
            failed("Exit_status -29 exceeded", false),
            failed("it was deleted before it ran", false),
            Report::Unreadable("Unknown Slurm job status ?".into()),
            Report::Missing,
        ]
    );
}

#[test]
fn what_is_no_answer_of_pbs_says_nothing_about_jobs() {
    let pbs = system(StatusFormat::PbsJson);
    let of = |answer: &Answer| reports(&pbs, answer, &["1.pbshost"]);
    let whole = format!(r#"{QSTAT_HEAD}, "Jobs": {{"1.pbshost": {{"job_state": "R"}}}}}}"#);
    assert!(of(&ran(0, &whole, "")).is_some());
    for answer in [
        ran(0, "", ""),
        ran(0, "{}", ""),
        ran(0, &whole[..whole.len() - 9], ""),
        ran(
            1,
            "",
            "qstat: cannot connect to server pbshost (errno=15010)",
        ),
        silent(),
    ] {
        assert_eq!(of(&answer), None, "{answer:?}");
    }
    let gone = ran(
        35,
        &format!("{QSTAT_HEAD}}}"),
        "qstat: 1.pbshost Job has finished, use -x",
    );
    let words = "qstat: 1.pbshost Job has finished, use -x";
    assert_eq!(of(&gone), Some(vec![Some(Report::Finished(words.into()))]));
}

#[test]
fn reads_lines_of_other_systems() {
    let other = system(StatusFormat::Lines);
    let answer = ran(0, " 1 RUNNING\n2 PENDING long queue\n11 COMPLETED\n", "");
    let found = reports(&other, &answer, &["1", "2", "3"]).expect("an answer");
    let found: Vec<Report> = found.into_iter().flatten().collect();
    let expected = [
        Report::Running,
        Report::Queued("long queue".into()),
        Report::Missing,
    ];
    assert_eq!(found, expected);
    assert_eq!(reports(&other, &ran(1, "", "no"), &["1"]), None);
}

#[test]
fn jobs_are_found_by_name_and_directory() {
    let mut slurm = system(StatusFormat::Scontrol);
    let found = |text: &str| parse_lookup(&slurm, &ran(0, text, ""), &ours("hq-1-1", "/d/1 x"));
    assert_eq!(
        found("7 /d/2\n8 /d/1 x\n"),
        LookupOutcome::Found("8".into())
    );
    assert_eq!(found("9\n"), LookupOutcome::Found("9".into()));
    assert_eq!(found("7 /d/2\n"), LookupOutcome::Absent);
    assert_eq!(found(""), LookupOutcome::Absent);
    slurm.find_format = FindFormat::PbsJson;
    let job = |name: &str, dir: &str| {
        format!(r#"{{"Job_Name": "{name}", "Variable_List": {{"PBS_O_WORKDIR": "{dir}"}}}}"#)
    };
    let (own, other) = (job("hq-1-1", "/d/1 x"), job("hq-1-1", "/d/2"));
    let text = format!(r#"{QSTAT_HEAD}, "Jobs": {{"1.p": {other}, "2.p": {own}}}}}"#);
    let found = |text: &str| parse_lookup(&slurm, &ran(0, text, ""), &ours("hq-1-1", "/d/1 x"));
    assert_eq!(found(&text), LookupOutcome::Found("2.p".into()));
    assert_eq!(found(&format!("{QSTAT_HEAD}}}")), LookupOutcome::Absent);
    assert!(matches!(found("{"), LookupOutcome::Error(_)));
}

#[test]
fn a_job_that_does_not_exist_is_canceled() {
    let slurm = system(StatusFormat::Scontrol);
    assert_eq!(canceled(&slurm, &ran(0, "", "")), Ok(()));
    let unknown = "scancel: error: Kill job error on job id 9: Invalid job id specified";
    assert_eq!(canceled(&slurm, &ran(1, "", unknown)), Ok(()));
    assert!(canceled(&slurm, &ran(1, "", "scancel: error: no controller")).is_err());
    assert!(canceled(&slurm, &silent()).is_err());
}

#[test]
fn an_answer_that_names_the_job_says_that_it_is_there() {
    for (text, is_there) in [
        (r#"{"Jobs":{"12.pbs":{{{"#, true),
        ("Job Id: 12.pbs", true),
        (r#"{"Jobs":{"121.pbs":{{{"#, false),
        ("qstat: down", false),
    ] {
        let found = unread(&ran(0, text, ""), "12.pbs");
        assert_eq!(
            matches!(found, Report::Unreadable(_)),
            is_there,
            "{text}: {found:?}"
        );
    }
}

#[test]
fn long_answers_are_shortened() {
    let long = "ä".repeat(SHOWN_LEN_MAX);
    assert!(shown(&long).len() <= SHOWN_LEN_MAX + "…".len());
    assert_eq!(&*shown(" x "), "x");
}

#[test]
fn half_an_answer_ends_no_job() {
    let half = |text: &str, format: StatusFormat, job: &str| {
        for end in 0..text.len() {
            let answer = ran(0, &text[..end], "");
            let found = reports(&system(format), &answer, &[job]);
            let harmless = matches!(
                found.as_deref(),
                None | Some([Some(
                    Report::Error(_) | Report::Unreadable(_) | Report::Running | Report::Queued(_)
                )])
            );
            assert!(harmless, "{format:?}: {:?} means {found:?}", &text[..end]);
        }
    };
    half(&scontrol("RUNNING", "None"), StatusFormat::Scontrol, "12");
    let pbs = format!(r#"{QSTAT_HEAD}, "Jobs": {{"1.pbshost": {{"job_state": "R"}}}}}}"#);
    half(&pbs, StatusFormat::PbsJson, "1.pbshost");
}

#[test]
fn foreign_words_are_no_answer() {
    for format in [StatusFormat::Scontrol, StatusFormat::PbsJson] {
        let found = reports(
            &system(format),
            &ran(0, "T\u{e2}che enfil\u{e9}e\n", ""),
            &["12"],
        );
        let harmless = matches!(found.as_deref(), None | Some([Some(Report::Error(_))]));
        assert!(harmless, "{found:?}");
    }
}
