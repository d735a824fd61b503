//! Tests the exact text of scripts, because users' tools read them.

use super::*;
use hq_core::batch::{CommandTemplate, FindFormat, StatusFormat, SubmitFormat, SystemSpec, Words};

const SLURM: &str = include_str!("../../../../cli/src/batch_system/slurm.toml");
const PBS: &str = include_str!("../../../../cli/src/batch_system/pbs.toml");

/// Returns the part of a description between two texts.
fn part(description: &str, from: &str, to: &str) -> Box<str> {
    let (_, after) = description.split_once(from).expect("part begins");
    after.split_once(to).expect("part ends").0.into()
}

fn system(description: &str, manager: &str) -> SystemSpec {
    let program = CommandTemplate(vec![Words {
        words: vec!["true".into()],
        each_job: false,
    }]);
    SystemSpec {
        name: "test".into(),
        manager: manager.into(),
        script: part(description, "text = '''\n", "'''"),
        each_node: part(description, "each-node = \"", "\"\n"),
        each_node_shell: part(description, "each-node-shell = \"", "\"\n"),
        submit: program.clone(),
        submit_format: SubmitFormat::LastLine,
        status: program.clone(),
        status_fallback: CommandTemplate::default(),
        status_format: StatusFormat::Lines,
        cancel: program.clone(),
        find: program,
        find_format: FindFormat::Lines,
        missing: Vec::new(),
        unclear: Vec::new(),
        unreachable: Vec::new(),
        states: std::collections::BTreeMap::new(),
    }
}

fn params(system: SystemSpec) -> QueueParams {
    QueueParams {
        system,
        name: None,
        time_limit: Duration::from_secs(5_400),
        backlog: 1,
        max_workers_per_alloc: 4,
        max_worker_count: None,
        keep_waiting: false,
        start_command: None,
        stop_command: None,
        wrap_command: None,
        worker_time_limit: None,
        idle_timeout: Duration::from_secs(300),
        min_utilization: 0.0,
        worker_args: vec!["--on-server-lost".into(), "\"finish-running\"".into()],
        additional_args: Vec::new(),
        amounts: std::collections::BTreeMap::new(),
    }
}

fn script(params: &QueueParams, workers: u32, is_test: bool) -> String {
    script_avoiding("", params, workers, is_test)
}

fn script_avoiding(excluded: &str, params: &QueueParams, workers: u32, is_test: bool) -> String {
    let program = Program {
        hq: "/opt/hq".to_owned(),
        rust_log: None,
    };
    let job = Job {
        params,
        program: &program,
        name: "hq-1-1",
        dir: Path::new("/s/001/autoalloc/1/001"),
        server_dir: Path::new("/s/001"),
        workers,
        excluded,
        is_test,
    };
    job.script()
}

/// Returns the last line of a script for this many workers.
fn command(params: &QueueParams, workers: u32) -> String {
    let script = script(params, workers, false);
    script.lines().last().expect("a command").to_owned()
}

const WORKER: &str = "/opt/hq worker start --idle-timeout \"5m\" --manager \"slurm\" \
    --server-dir \"/s/001\" --on-server-lost \"finish-running\" --time-limit \"1h 30m\"";

#[test]
fn slurm_is_asked_in_its_dialect() {
    let mut params = params(system(SLURM, "slurm"));
    let head = "#!/bin/bash\n\
        #SBATCH --nodes=1\n\
        #SBATCH --job-name=hq-1-1\n\
        #SBATCH --output=/s/001/autoalloc/1/001/stdout\n\
        #SBATCH --error=/s/001/autoalloc/1/001/stderr\n\
        #SBATCH --time=01:30:00\n";
    assert_eq!(script(&params, 1, false), format!("{head}\n{WORKER}"));
    params.additional_args = vec!["--partition=p".into(), "-A".into(), "a".into()];
    let asked = script(&params, 1, true);
    assert_eq!(
        asked,
        format!("{head}#SBATCH --partition=p -A a\n\n{WORKER}")
    );
    let several = format!("srun --overlap --ntasks=3 --nodes=3 {WORKER}");
    assert_eq!(command(&params, 3), several);
}

#[test]
fn pbs_is_asked_in_its_dialect_and_tests_are_held() {
    let mut params = params(system(PBS, "pbs"));
    params.additional_args = vec!["-q".into(), "qexp".into()];
    let worker = WORKER.replace("slurm", "pbs");
    let expected = |hold: &str, nodes: u32, command: &str| {
        format!(
            "#!/bin/bash\n\
             #PBS -l select={nodes}\n\
             #PBS -N hq-1-1\n\
             #PBS -o /s/001/autoalloc/1/001/stdout\n\
             #PBS -e /s/001/autoalloc/1/001/stderr\n\
             #PBS -l walltime=01:30:00\n\
             #PBS -q qexp\n\
             {hold}\n\
             {command}"
        )
    };
    assert_eq!(script(&params, 1, false), expected("", 1, &worker));
    assert_eq!(script(&params, 1, true), expected("#PBS -h\n", 1, &worker));
    let several = format!("pbsdsh -- bash -l -c '{worker}'");
    assert_eq!(script(&params, 2, false), expected("", 2, &several));
}

#[test]
fn more_than_a_program_is_run_by_a_shell_on_each_node() {
    let mut params = params(system(SLURM, "slurm"));
    params.start_command = Some("module load 'x y'".into());
    params.stop_command = Some("date".into());
    params.wrap_command = Some("numactl -i all".into());
    let one = format!("module load 'x y' && numactl -i all {WORKER}; date");
    assert_eq!(command(&params, 1), one);
    let quoted = one.replace('\'', "'\\''");
    let several = format!("srun --overlap --ntasks=2 --nodes=2 bash -c '{quoted}'");
    assert_eq!(command(&params, 2), several);
    let words = shlex::split(&command(&params, 2)).expect("valid shell words");
    assert_eq!(words.last(), Some(&one));
}

#[test]
fn slurm_is_told_which_nodes_are_set_aside() {
    let params = params(system(SLURM, "slurm"));
    let text = script_avoiding("n3,n7", &params, 1, false);
    assert!(text.contains("\n#SBATCH --exclude=n3,n7\n"), "{text}");
    assert!(!script(&params, 1, false).contains("exclude"));
}

#[test]
fn values_cannot_break_out_of_their_quotes() {
    let params = params(system(SLURM, "slurm"));
    let program = Program {
        hq: "/a b/hq".to_owned(),
        rust_log: Some("hq=debug,x=1;$(id)".to_owned()),
    };
    let job = Job {
        params: &params,
        program: &program,
        name: "n",
        dir: Path::new("/d"),
        server_dir: Path::new("/s \"$HOME`"),
        workers: 1,
        excluded: "",
        is_test: false,
    };
    let text = job.worker_command();
    let words = shlex::split(&text).expect("valid shell words");
    assert_eq!(words[0], "RUST_LOG=hq=debug,x=1;$(id)");
    assert_eq!(words[1], "/a b/hq");
    assert!(words.contains(&"/s \"$HOME`".to_owned()), "{text}");
}

#[test]
fn times_are_written_for_each_reader() {
    assert_eq!(walltime(Duration::from_secs(100 * 3_600 + 61)), "100:01:01");
    for (secs, text) in [
        (5, "5s"),
        (90_061, "1day 1h 1m 1s"),
        (172_800, "2days"),
        (0, "0s"),
    ] {
        assert_eq!(duration(Duration::from_secs(secs)), text);
    }
    assert_eq!(duration(Duration::from_millis(1_500)), "1s 500ms");
}

#[test]
fn directories_with_blanks_are_quoted_and_nothing_else_is() {
    for (line, quoted) in [
        (
            "#SBATCH --output=%{dir}/stdout\n",
            "#SBATCH --output=\"%{dir}/stdout\"\n",
        ),
        ("#PBS -o %{dir}/stdout\n", "#PBS -o \"%{dir}/stdout\"\n"),
        ("#SBATCH --nodes=%{nodes}\n", "#SBATCH --nodes=%{nodes}\n"),
    ] {
        assert_eq!(with_quotes(line), quoted);
    }
}

#[test]
fn workers_get_the_environment_of_the_job_if_the_user_chose_one_for_it() {
    let mut params = params(system(SLURM, "slurm"));
    let rest = format!("--overlap --ntasks=2 --nodes=2 {WORKER}");
    assert_eq!(command(&params, 2), format!("srun {rest}"));
    params.additional_args = vec!["--export=NONE".into()];
    assert_eq!(command(&params, 2), format!("srun --export=ALL {rest}"));
}

#[test]
fn the_users_paths_for_the_output_are_known() {
    for (words, [stdout, stderr]) in [
        ("--output=o-%j -e %x.err", [Some("o-12"), Some("n.err")]),
        ("--output=/d/%5A%%", [Some("/d/00012%"), None]),
        ("-o %999999999999j", [Some("0000000012"), None]),
        ("-o %N.txt --error=%", [None, None]),
        ("-o %5%x --error=a\\b-%j", [None, None]),
        (
            "--chdir=/w --output=o --error=/e",
            [Some("/w/o"), Some("/e")],
        ),
        ("-p o", [None, None]),
    ] {
        let mut params = params(system(SLURM, "slurm"));
        params.additional_args = vec![words.into()];
        let expected = [stdout, stderr].map(|path| path.map(str::to_owned));
        assert_eq!(params.own_outputs("12", "n"), expected, "{words}");
    }
    for (words, [stdout, stderr]) in [
        ("-o node1:/d/o -e e", [Some("/d/o"), Some("e")]),
        ("-o /d/ -j n", [None, None]),
        (
            "-o /d/run:1/o -e n:/d:1",
            [Some("/d/run:1/o"), Some("/d:1")],
        ),
        ("-o o.$PBS_JOBID -e e.^array_index^", [None, None]),
        ("-j oe", [None, Some("stdout")]),
        ("-j oe -o /d/o", [Some("/d/o"), Some("/d/o")]),
        ("-j eo -e x", [Some("x"), Some("x")]),
    ] {
        let mut params = params(system(PBS, "pbs"));
        params.additional_args = vec![words.into()];
        let expected = [stdout, stderr].map(|path| path.map(str::to_owned));
        assert_eq!(params.own_outputs("12.pbs", "n"), expected, "{words}");
    }
}

#[test]
fn the_users_name_of_the_jobs_is_known_without_quotes() {
    for (manager, words, name) in [
        ("pbs", "-N mine", Some("mine")),
        ("pbs", "-N \"mine\"", Some("mine")),
        ("slurm", "--job-name='mine' -p x", Some("mine")),
        ("slurm", "-p x", None),
    ] {
        let mut params = params(system(SLURM, manager));
        params.additional_args = vec![words.into()];
        assert_eq!(params.own_name(), name, "{words}");
    }
}
