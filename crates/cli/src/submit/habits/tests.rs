//! Tests each habit as typed, and similar command lines without one.

use clap::Parser;

use super::*;
use crate::args::run::RunArgs;
use crate::submit::params;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: RunArgs,
}

/// Returns the notes and rejections of a line. Its first word is `run` or `submit`, preceded by `|
/// ` if standard input is a pipe.
fn said(line: &str) -> (Vec<String>, bool) {
    let is_piped = line.starts_with("| ");
    let words = shlex::split(line.trim_start_matches("| ")).expect("closed quotes");
    let args = Line::try_parse_from(&words)
        .unwrap_or_else(|error| panic!("{line}: {error}"))
        .args;
    let params = params::build(&args.tasks, &mut Vec::new()).expect("valid");
    let verb = if words[0] == "run" {
        Verb::Run
    } else {
        Verb::Submit
    };
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let at = words.len() - args.command.len();
    let front = Front::split(&words[..at], &words[at..], is_piped);
    let typed = Typed::of_options(
        (verb, &front),
        &args.tasks,
        &args.command,
        (params.as_deref(), args.stdin),
    );
    let notes = match look(&typed) {
        Ok(notes) => notes.iter().map(ToString::to_string).collect(),
        Err(error) => vec![format!("refused: {error:?}")],
    };
    (notes, typed.takes_entry())
}

#[test]
fn input_for_a_script_is_told_whatever_interpreter_runs_it() {
    let args = Line::try_parse_from(["submit", "/bin/sh", "./x.sh"])
        .expect("valid")
        .args;
    let front = Front::split(&["hq".into(), "submit".into()], &["./x.sh".into()], true);
    let typed = Typed::of_options(
        (Verb::Submit, &front),
        &args.tasks,
        &args.command,
        (None, false),
    );
    let notes = look(&typed).expect("a note");
    assert!(
        notes[0].contains("`hq submit --stdin -- ./x.sh`"),
        "{notes:?}"
    );
}

/// Lines, each with a part of its only message.
#[rustfmt::skip] // A line for each habit is a table.
const HABITS: &[(&str, &str)] = &[
    // Options after the program.
    ("submit --array 1-3 true --cpus 2", "`--cpus` comes after the program"),
    ("submit -- true --output-mode json", "`--output-mode` comes after the program"),
    ("submit -- /sim --array=1-3", "`--array` comes after the program"),
    ("submit /train.py --name x", "put `--` before the program"),
    ("run -- sleep 1 --name x", "`--name` comes after the program"),
    // GNU parallel.
    ("run echo ::: a b c", "`hq run --param x=a,b,c -- echo {x}`"),
    ("run gzip -k '{}' ::: a b", "`hq run --param x=a,b -- gzip -k {x}`"),
    ("submit cat :::: files", "`hq submit --each-line files -- cat {}`"),
    ("run echo '{}' :::: f.txt", "`hq run --each-line f.txt -- echo {}`"),
    ("submit --resource gpu=1 -- /x", "`gpus/nvidia`"),
    ("run --each-line f -- convert {} {.}.png", "`${HQ_ENTRY%.*}`"),
    ("run --each-line f -- bash -c 'mv {} {/}'", "`${HQ_ENTRY##*/}`"),
    ("submit --each-line f -- /x {#}", "`$HQ_TASK_ID`"),
    ("submit --array 1-3 -- /x {1}", "--param x=1,2"),
    ("run -- xargs -n1 gzip", "`hq run --each-line - -- gzip`"),
    ("run --each-line f -- /x {1}", "the line of a task is `{}` in `hq run`"),
    ("submit -- bash -c 'sleep 1 && echo x > f &'", "add `wait`"),
    ("run -- sh -c './a & ./b & '", "add `wait`"),
    ("run -- sh -c 'for i in 1 2; do ./a $i & done'", "add `wait`"),
    ("run -- sh -c './a > log 2>&1 & exit 0;'", "add `wait`"),
    // Words in braces.
    ("submit --each-line f -- /convert {}", "`$HQ_ENTRY`, which a shell expands: `bash -c 'LINE'`; `hq run` replaces"),
    ("submit --each-line f -- bash -c 'gzip {}'", "the line of a task is in `$HQ_ENTRY`;"),
    ("submit --array 1-3 -- /x {}", "`$HQ_TASK_ID`"),
    ("submit --each-line f -- echo {entry}", "`{entry}` is not replaced; the value of a task is in `$HQ_ENTRY`"),
    ("submit --from-json f -- /x {sample}", "`{sample}` is not replaced"),
    ("submit -- /x {TASK_ID}", "`$HQ_TASK_ID`"),
    ("run --array 1-3 -- /x -o out_{wildcards.s}.txt", "`{wildcards.s}` is not replaced"),
    ("submit --param lr=1,2 -- /x {seed}", "names no parameter and is not replaced; the parameters are `lr`"),
    ("run --param lr=1,2 -- /x {}", "a parameter is `{NAME}`"),
    ("submit --array 1-3 --stdout {task_id}.out -- true", "`%{TASK_ID}` and `%{JOB_ID}`"),
    ("submit --param lr=1,2 --env X={lr} -- /x", "is not replaced in `--env`"),
    ("submit --each-line f --stdout out-{}.txt -- /x", "`{}` is not replaced in `--stdout`"),
    ("run --each-line f --stdout out-{}.txt -- /x {}", "each task has a path of its own with `--stdout 'out-%{TASK_ID}.txt'`"),
    ("run --each-line f --cwd d/{} -- /x {}", "`--cwd 'd/%{TASK_ID}'`"),
    // Placeholders for paths.
    ("run --array 1-3 -- /x '%{TASK_ID}'", "`%{TASK_ID}` is a placeholder for paths"),
    ("submit -- bash -c 'echo %{job_id}'", "`$HQ_JOB_ID`"),
    ("submit --name 'x-%{TASK_ID}' --array 1-2 -- true", "one name for all of its tasks"),
    ("submit --stdout out-%a.txt -- true", "here `%a` is `%{TASK_ID}`"),
    ("submit --stderr slurm-%A_%4a.err -- true", "here `%A` is `%{JOB_ID}`, `%a` is `%{TASK_ID}`"),
    // Variables.
    ("run --array 1-3 -- /x '$HQ_TASK_ID'", "no shell expands `$HQ_TASK_ID`"),
    ("run --array 1-3 -- /x '$HQ_TASK_ID'", "`bash -c '/x \"$HQ_TASK_ID\"'`"),
    ("submit --array 1-3 -- /x -i '$SLURM_ARRAY_TASK_ID'", "a task has `$HQ_TASK_ID`, which a shell expands: `bash -c '/x -i \"$HQ_TASK_ID\"'`"),
    ("submit -- /x '${LSB_JOBINDEX}'", "`bash -c '/x \"${HQ_TASK_ID}\"'`; `--array 1-10` makes ten tasks"),
    ("submit --each-line f -- /x '$1'", "`bash -c '/x \"$HQ_ENTRY\"'`"),
    ("submit -- /x '$(hostname)'", "`bash -c '/x \"$(hostname)\"'`"),
    ("submit --cwd '$HOME/x' -- true", "without single quotes this shell expands it in `--cwd`"),
    ("submit --stdout 'o.$HQ_TASK_ID' -- true", "`%{TASK_ID}`"),
    ("submit --env 'A=$HQ_TASK_ID' -- /x", "no shell expands"),
    ("submit -- python3 /x/train.py --seed '${HQ_TASK_ID}'", "no shell expands `$HQ_TASK_ID`"),
    ("submit --array 1-3 -- bash -c 'echo $SLURM_ARRAY_TASK_ID'", "a task has `$HQ_TASK_ID`"),
    ("submit --array 1-3 -- sh -ec 'echo $HQ_TASKID'", "did you mean `$HQ_TASK_ID`?"),
    ("submit --array 1-3 -- bash -c 'echo $HQ_ENTRY'", "empty without `--each-line`"),
    ("submit --param lr=1 -- bash -c 'echo $HQ_PARAM_SEED'", "no `--param` has that name"),
    ("submit --each-line f -- bash -c 'gzip \"$1\"'", "`$1` and `$@` are empty in this line"),
    ("submit --array 1-3 -- bash -c 'echo '", "has a gap"),
    ("submit --array 1-3 -- echo 'task '", "the text `task ` has a gap"),
    ("submit --array 1-3 -- printf out_.txt", "has a gap"),
    ("submit --array 1-3 -- gzip file_.dat", "the number of a task is in `$HQ_TASK_ID`, which `gzip` does not read"),
    ("submit --array 1-3 -- bash -c 'sort in.txt'", "use `\"$HQ_TASK_ID\"` in the command line"),
    ("submit --array 1-3 -- /x ''", "argument 1 is empty"),
    ("submit --time-limit 30 -- true", "a number alone is in seconds; for minutes write `--time-limit 30min`"),
    ("submit --time-limit=30 -- true", "`--time-limit 30min`"),
    ("submit --array 1-1,000 -- true", "separates ids; one number is `--array 1-1000`"),
    ("submit --time-limit 01:30 -- true", "is 1 min 30 s; hours and minutes are `--time-limit 01:30:00`"),
    ("run --retry-delay=2:00 --retries 1 -- true", "`--retry-delay 2:00` is 2 min 0 s"),
    ("submit --env 'A B=1' -- true", "has a blank; several variables"),
    ("submit --array 1-3 -- echo", "`echo` has no arguments; if you typed `$HQ_TASK_ID`"),
    ("submit --array 1-3 -- echo task", "`echo` prints the same in each task; if you typed `$HQ_TASK_ID`"),
    ("run --each-line f -- printf", "if you typed `$HQ_ENTRY`"),
    ("submit -- python3 no-such-file.py", "`no-such-file.py` does not exist in this directory"),
    ("submit -- bash no-such-file.sh", "`no-such-file.sh` does not exist in this directory"),
    // Words that only a shell understands.
    ("submit -- echo hi '|' wc -l", "`|` is passed to the program as an argument"),
    ("submit -- /x '>' out", "`>` is passed to the program as an argument"),
    ("submit -- cat '*.txt'", "no shell expands `*.txt`"),
    ("submit -- /x '~/data'", "no shell expands `~/data`"),
    ("submit 'echo hi | wc -l'", "bash -c 'LINE'"),
    ("run 'echo hi | wc -l'", "refused: "),
    ("run 'sleep 1'", "remove them"),
    ("submit FOO=1 ./sim.py", "--env FOO=1 -- PROGRAM"),
    ("submit cd /tmp", "--cwd DIR"),
    ("submit conda activate x", "`conda activate` is not a program: it works only inside a shell"),
    ("submit 'for i in 1 2; do echo; done'", "it works only inside a shell"),
    ("submit /usr/bin/", "is a directory"),
    // Words in the wrong place.
    ("submit --array 1,2 3 -- true", "refused: "),
    ("submit --name my job -- true", "needs quotes"),
    ("submit --enforce-memory no -- true", "follows without a blank: `--enforce-memory=no`"),
    ("submit --enforce-memory no true", "`--enforce-memory=no`"),
    ("submit --dry-run 10 -- true", "refused: "),
    ("submit --dry-run yes -- true", "`--dry-run` takes no value"),
    ("submit --task-dir /tmp -- true", "`--task-dir` takes no value"),
    ("submit --stdin in.txt cat", "`hq submit --stdin -- PROGRAM < in.txt`"),
    ("submit --param lr=0.1 lr=0.01 -- true {lr}", "`--param lr=0.1,0.01`"),
    ("run --param lr=0.1 lr=0.01 lr=1 -- true {lr}", "`--param lr=0.1,0.01,1`"),
    ("submit --param lr=0.1 0.01 -- true {lr}", "`--param lr=0.1,0.01`"),
    ("submit --param mode=a b -- true {mode}", "`--param mode=a,b`"),
    ("submit --param a=1 b=2 -- true {a}", "`--param a=1 --param b=2`"),
    ("submit --resource gpus/nvidia=1 mem=4G -- true", "`--resource gpus/nvidia=1 --resource mem=4G`"),
    ("submit --env A=1 B=2 -- true", "`--env A=1 --env B=2`"),
    // Pipes to hq.
    ("| run -- echo {}", "`hq run --each-line - -- echo {}`"),
    ("| submit -- echo {}", "`hq submit --each-line - -- bash"),
    ("| run -- wc -l", "`hq run --stdin -- wc -l`"),
    ("| run sort -n", "`hq run --stdin -- sort -n`"),
    ("| submit -- awk '{print $1}'", "`hq submit --stdin -- awk"),
    ("| run -- grep x", "`hq run --stdin -- grep x`"),
    ("| run -- tr a b", "`hq run --stdin -- tr a b`"),
    ("| run -j2 echo", "`hq run --each-line - -- echo {}`"),
    ("| run -- rm -f", "`hq run --each-line - -- rm -f {}`"),
    ("| submit /x", "`hq submit --stdin -- /x`"),
    ("| run -- bash", "`hq run --stdin -- bash`"),
    // Words after a command line.
    ("submit -- bash -c echo hi", "`bash -c 'echo hi'`"),
    ("run -- sh -c ls -l /tmp", "`sh -c 'ls -l /tmp'`"),
    ("submit --array 10 -- /x", "10 tasks are `--array 1-10`"),
    ("submit --time-limit 10 min -- true", "`min` is taken as the program"),
    ("submit '#HQ' --stdout=o ./s.sh", "`#HQ` is not a program"),
    ("submit ''", "empty name"),
    ("submit --time-limit 1 hour sleep 5", "`hour` is taken as the program"),
    ("submit ./nope", "`./nope` does not exist in this directory"),
    // Values.
    ("submit --stdout - -- true", "`-` is only the name of a file"),
    ("submit --stderr stdout -- true", "one path for both"),
    ("submit --stdout NULL -- true", "`--stdout none` discards"),
    ("submit --inputs '*.nosuch' -- true", "give an `--inputs` for each file"),
    ("submit --outputs a.txt,b.txt -- true", "commas separate nothing here"),
    ("submit --env 'A = 1' -- /x", "`A=1` sets `A`"),
    ("submit --env 'A=~/x' -- /x", "`A=\"$HOME/x\"`"),
    ("submit --env 'A=\"x\"' -- /x", "the quotes become part of the value"),
    ("run --param 'x=1, 2' -- /x {x}", "the blank becomes part of the value ` 2`"),
    ("run --param 'x=*.nosuch' -- /x {x}", "`ls *.nosuch |"),
    ("submit --array 1-3 --name 'j-{TASK_ID}' -- true", "one name for all of its tasks"),
    ("submit --env A 1 -- /x", "`--env A=1`"),
    ("submit --resource mem=8 -- /x", "`--resource mem=8G`"),
    ("submit --stream /etc/hostname -- true", "`--stream` names a directory"),
    ("submit --inputs nosuch.dat -- true", "the input `nosuch.dat` does not exist now"),
    ("submit -- /x '%{HQ_TASK_ID}'", "use `$HQ_TASK_ID`"),
    ("submit nosuch.py", "neither in this directory nor in the PATH"),
    ("submit --cwd nosuch -- true", "the directory `nosuch` does not exist"),
    ("submit --stderr '&1' -- true", "`&1` is shell syntax"),
    ("submit --stdout '>out' -- true", "`>out` is shell syntax"),
    ("submit --stdout /out.txt -- true", "if a variable stood in front of it"),
    ("submit --cwd /no-such-directory -- true", "if a variable stood in front of it"),
    ("submit --resource cpu=4 -- /x", "cpus of a task are `--cpus 4`"),
    ("submit --resource ram=4 -- /x", "`--resource mem=4G`"),
    ("submit --stdout logs/ -- true", "names a file in it"),
    ("submit --cwd /etc/hostname -- true", "`--cwd` names a directory"),
    ("submit --name '' -- true", "`--name` is empty"),
    ("submit --env A:1 -- /x", "`--env A=1`"),
    ("submit --time-limit 10M -- true", "`--time-limit 10min`"),
    ("run --param 'x=1;2' -- /x {x}", "`1,2`"),
    ("submit “echo hi”", "begins with a typographic quote"),
    ("submit --env A=1,B=2 -- /x", "give an `--env` for each variable"),
    ("run --param x=1..3 -- /x {x}", "`1..3` is one value; a range is"),
    ("run --param 'x={1..3}' -- /x {x}", "a range is"),
    ("run --param 'x=1 2 3' -- /x {x}", "`1,2,3`"),
    ("run --param 'x=[1,2]' -- /x {x}", "without brackets"),
    ("run --param x=1.0..3.0:0.5 -- /x {x}", "is one value; a range is"),
    ("run --param x=range(3) -- /x {x}", "`range(3)` is one value; a range is `1-10`"),
    ("run --param x=1:10 -- /x {x}", "`1:10` is one value; a range is `1-10`"),
    ("submit --resource gpus/nvdia=1 -- /x", "detected GPUs are"),
    ("submit –cpus 4 -- true", "type it as `--cpus`"),
    ("submit –-cpus=4 true", "type it as `--cpus=4`"),
    ("submit –j4 true", "type it as `-j4`"),
    // Programs that need features which tasks lack.
    ("submit srun -n 2 hostname", "hq places tasks itself"),
    ("submit -- sbatch -p x job.sh", "`hq import job.sh`"),
    ("submit vim notes.txt", "needs a terminal"),
    ("submit sudo ./x", "tasks run as the user who started their worker"),
    ("submit docker run -it image", "leave out `-it`"),
    ("submit --cpus=4 make -j8", "`-j 8` uses 8 cpus, but a task requests 4 cpus"),
    ("submit mpirun -np 8 /x", "a task requests 1 cpu, so other tasks may run on the same cpus. Add `--cpus 8`"),
    ("submit -- make --jobs=3", "`--cpus 3`"),
    ("submit --env HQ_NO_SUCH_VARIABLE -- /x", "to nothing"),
    ("submit last", "`hq job wait last`"),
    ("submit --env PATH -- /x", "`--env PATH=\"$PATH\"`"),
    ("submit — true", "long dash"),
    // Values that no program reads.
    ("submit --param x=1,2 -- bash -c 'echo $x'", "or `$HQ_PARAM_X` in the line"),
    ("submit --param lr=1,2 -- echo hi", "nothing uses the parameter `lr`: write `{lr}`"),
    ("submit --param lr=1,2 --param s=3,4 -- echo {lr}", "nothing uses the parameter `s`: write `{s}`"),
    // Entries that no program reads.
    ("run --each-line f -- gzip -k", "`hq run … -- gzip -k {}`"),
    ("submit --each-line f -- gzip", "`bash -c 'gzip \"$HQ_ENTRY\"'`"),
];

/// Files, each with the name (with a leading `-` if it is not executable), the content, a line, in
/// which `@` is the directory, and a part of its only message.
#[rustfmt::skip] // A line for each habit is a table.
const FILES: &[(&str, &str, &str, &str)] = &[
    // Variables of other systems.
    ("t.sh", "#!/bin/bash\necho $SLURM_ARRAY_TASK_ID\n", "submit --array 1-3 -- @/t.sh", "`$SLURM_ARRAY_TASK_ID`, which"),
    ("t.sh", "#!/bin/bash\n./x ${PBS_ARRAY_INDEX}\n", "submit --array 1-3 -- bash @/t.sh", "a task has `$HQ_TASK_ID`"),
    ("t", "#!/bin/sh\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n", "submit @/t", "`$HQ_RESOURCE_REQUEST_cpus`"),
    ("t.sh", "echo $LSB_JOBINDEX\n", "submit --each-line f -- @/t.sh", "its line in `$HQ_ENTRY`"),
    ("t.py", "i = int(os.environ['SGE_TASK_ID'])\n", "submit --array 1-3 -- python3 @/t.py", "`$SGE_TASK_ID`, which"),
    ("t.R", "i <- Sys.getenv(\"SLURM_ARRAY_TASK_ID\")\n", "submit -- /x/Rscript @/t.R", "a task has `$HQ_TASK_ID`"),
    ("t.sh", "#!/bin/sh\necho $HQ_TASKID\n", "submit @/t.sh", "did you mean `$HQ_TASK_ID`?"),
    ("t.sh", "#!/bin/sh\necho hello $1\n", "run --array 1-3 @/t.sh", "the script can read `$HQ_TASK_ID` itself"),
    // Files that cannot be started directly.
    ("-sim.py", "print(1)\n", "submit -- @/sim.py 3", "is not executable; put the interpreter in front: `python3 @/sim.py 3`"),
    ("-sim.R", "print(1)\n", "run -- @/sim.R", "refused: "),
    ("-Makefile", "all:\n\ttrue\n", "submit -- @/Makefile", "`make -f @/Makefile`"),
    ("-tool", "#!/usr/bin/env perl\n1;\n", "submit -- @/tool", "`perl @/tool`"),
    ("-data", "x\n", "submit -- @/data", "`chmod +x @/data`"),
    ("-mol.inp", "! B3LYP\n", "run -- @/mol.inp", "does not look like a program or a script; the program that reads it comes first: `hq run PROGRAM @/mol.inp`"),
    ("-data.h5", "\0\u{1}", "submit -- @/data.h5", "`hq submit PROGRAM @/data.h5`"),
    ("-tool.x86", "\u{7f}ELF\0", "submit -- @/tool.x86", "`chmod +x @/tool.x86`"),
    ("s.sh", "#!/bin/sh\n#HQ --time-limit 01:30\n", "submit @/s.sh", "hours and minutes are `--time-limit 01:30:00`"),
    ("s.sh", "#!/bin/sh\n#HQ --time-limit 01:30 --resource mem=8\n", "submit --time-limit=30 --resource mem=8G @/s.sh", "for minutes write `--time-limit 30min`"),
    ("nothing.sh", "", "submit -- @/nothing.sh", "is an empty file"),
    ("-data.csv", "x\n", "submit -- @/data.csv", "`hq run --each-row @/data.csv -- PROGRAM {NAME}`"),
    ("-nb.ipynb", "{\"cells\": []}", "submit -- @/nb.ipynb", "`jupyter nbconvert --to notebook --execute @/nb.ipynb`"),
    ("sim.py", "def f(x):\n  pass\n", "submit -- @/sim.py", "does not begin with a line such as `#!"),
    ("data.csv", "1,2\n", "submit -- @/data.csv", "name the program that reads it: `PROGRAM @/data.csv`"),
    ("t.py", "#!/nonexistent/python2\nprint(1)\n", "submit @/t.py", "names `/nonexistent/python2`, which this machine does not have"),
    ("t", "#!/usr/bin/env nonexistent2\n", "submit @/t", "names `nonexistent2`"),
    ("t", "#!/bin/sh\nls\n", "submit --param lr=1,2 @/t", "or read `HQ_PARAM_LR` in `@/t`"),
    // Files from Windows.
    ("t.sh", "#!/bin/bash\r\nls\r\n", "submit @/t.sh", "Windows line ends (CRLF)"),
    ("t.py", "#!/usr/bin/env python3\r\nf()\r\n", "submit @/t.py", "Windows line ends (CRLF)"),
    ("t", "\u{feff}#!/bin/sh\nls\n", "submit @/t", "byte order mark"),
    // Ignored lines.
    ("t.sh", "#!/bin/bash\ncd x\n#HQ --array 1-3\n", "submit @/t.sh", "it comes after the first command"),
    ("t.sh", "#!/bin/bash\n# HQ --array 1-3\nls\n", "submit @/t.sh", "write it as `#HQ --array 1-3`"),
    ("t.sh", "#!/bin/bash\n#HQ--array 1-3\nls\n", "submit @/t.sh", "write it as `#HQ --array 1-3`"),
    ("t", "#!/bin/bash\n#HQ --array 1-3\nls\n", "submit @/t", "`hq submit --directives file @/t`"),
    ("t.sh", "#!/bin/bash\n#HQ --array 1-3\nls\n", "submit bash @/t.sh 3", "a script that is itself the program: `hq submit @/t.sh 3`"),
    ("t.py", "#!/usr/bin/env python3\n#HQ --array 1-3\nf()\n", "submit python3 @/t.py", "`hq submit --directives file @/t.py`"),
    ("t.py", "#HQ --array 1-3\nf()\n", "submit python3 @/t.py", "with `#!/usr/bin/env python3` as its first line"),
    // Other habits.
    ("list.txt", "a\nb\n", "submit --param file=@/list.txt -- /x {file}", "`--param file=@@/list.txt`"),
    ("x", "", "submit --stdout @ -- true", "is a directory"),
    ("a/pipeline.toml", "", "submit @/a/pipelne.toml", "refused: "),
];

#[test]
fn habits_in_files_are_told_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut wrong = Vec::new();
    for (file, content, line, part) in FILES {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(file.trim_start_matches('-'));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(&path, content).expect("written");
        let mode = if file.starts_with('-') { 0o644 } else { 0o755 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        let dir = dir.path().to_str().expect("text");
        let (notes, _) = said(
            &line
                .replace("=@@", "=\0")
                .replace('@', dir)
                .replace('\0', "@"),
        );
        let part = part
            .replace("=@@", "=\0")
            .replace('@', dir)
            .replace('\0', &format!("@{dir}"));
        if !matches!(&notes[..], [note] if note.contains(&part)) {
            wrong.push(format!("{line}: {notes:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// None of these scripts may cause a message.
#[test]
fn scripts_that_are_right_are_not_told() {
    for (file, content, line) in [
        ("t.sh", "#!/bin/bash\r", "submit -- @/t.sh"),
        (
            "t.sh",
            "#!/bin/sh\n#HQ --array 1-3\n# HQ is nice\nls\n",
            "submit @/t.sh",
        ),
        (
            "t.sh",
            "#!/bin/sh\ni=${SLURM_ARRAY_TASK_ID:-$HQ_TASK_ID}\n",
            "submit @/t.sh",
        ),
        (
            "t.sh",
            "#!/bin/sh\n# $SLURM_ARRAY_TASK_ID\nls\n",
            "submit @/t.sh",
        ),
        (
            "t.sh",
            "#!/bin/sh\nsrun ./x $SLURM_PROCID\n",
            "submit @/t.sh",
        ),
        (
            "t.sh",
            "#!/bin/sh\nSGE_TASK_ID=1\necho $SGE_TASK_ID\n",
            "submit @/t.sh",
        ),
        (
            "t.py",
            "#!/usr/bin/env python3\nos.environ.get('SGE_TASK_ID', '0')\n",
            "submit @/t.py",
        ),
        ("t.py", "a\r\n", "submit python3 @/t.py"),
        ("t", "\x7fELF\0\r\n", "submit @/t"),
        (
            "t",
            "#!/bin/sh\n./x $HQ_PARAM_LR\n",
            "submit --param lr=1,2 @/t",
        ),
        ("t", "\x7fELF\0", "submit --param lr=1,2 @/t"),
        ("t", "echo hi\n", "submit @/t"),
        (
            "data.bin",
            "x",
            "submit --param file=@/data.bin -- /x {file}",
        ),
    ] {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(file);
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        let (notes, _) = said(&line.replace('@', dir.path().to_str().expect("text")));
        assert!(notes.is_empty(), "{line} {content:?}: {notes:#?}");
    }
}

#[test]
fn each_habit_is_told_once() {
    let mut wrong = Vec::new();
    for (line, part) in HABITS {
        let (notes, _) = said(line);
        if !matches!(&notes[..], [note] if note.contains(part)) {
            wrong.push(format!("{line}: {notes:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Words that look like a habit but are intended.
#[rustfmt::skip] // A line for each is a table.
const MEANT: &[&str] = &[
    "submit -- true",
    "submit -- bash -c './a & ./b & wait'",
    "submit -- bash -c 'for i in 1 2; do ./a & done; wait; exit 0'",
    "submit -- bash -c './server & ./client; exit'",
    "submit -- /train.py --name x --seed 3 --retries 2",
    "submit -- docker run --name x --cpus 2 --env A=1 image",
    "submit --nodes 2 -- srun ./x",
    "submit -- sudo -n ./x",
    "submit -- conda run -n x ./y",
    "submit -- tmux new -d",
    "submit -- docker run -i image",
    "submit --cpus 8 -- mpirun -np 8 ./x",
    "submit --cpus all -- make -j64",
    "submit --nodes 2 -- mpirun -np 64 ./x",
    "submit --env HQ_NO_SUCH_VARIABLE= -- /x",
    "submit --array 1-3 -- hostname -s",
    "submit --array 1-3 -- /x a_",
    "submit --array 1-3 --cwd 'd%{TASK_ID}' -- gzip f",
    "submit --array 1-3 -- bash -c 'gzip $(ls | sed -n ${HQ_TASK_ID}p)'",
    "submit --array 1,100,200 -- /x",
    "submit --array 001,002 -- /x",
    "submit --stdout /tmp/x.txt -- /x",
    "submit --stream /tmp -- /x",
    "submit --stdout 'a&b' -- /x",
    "submit --stderr null.txt -- /x",
    "submit --resource mem=4000 -- /x",
    "submit --inputs /etc/hostname -- /x",
    "submit --env 'A=a b' --env 'B=it is' -- /x",
    "submit --cwd 'd-%{JOB_ID}' -- /x",
    "submit --cwd /scratch-of-a-node/x -- /x",
    "run --param 'x=a b,c' -- /x {x}",
    "submit --param x=1,2 -- bash -c './run $x $HQ_PARAM_X'",
    "submit --param x=1,2 -- bash -c './run'",
    "| submit -- hostname",
    "| submit -- /x f",
    "submit --cpus 4 -- /x --help",
    "submit -- parallel gzip ::: a b",
    "submit -- find . -name '*.o' -exec rm {} ';'",
    "submit -- awk '{print $1}' file",
    "submit -- awk '{x} END {print NR}' '$HQ_TASK_ID'",
    "submit -- python3 -c 'd = {}; print(f\"{d}\")'",
    "submit -- python3.12 -c 'import os; print(os.environ[\"HQ_TASK_ID\"])'",
    "submit --array 1-3 -- bash -c 'echo $HQ_TASK_ID'",
    "submit --array 1-3 -- bash -c 'for i in 1 2; do echo $i ${HQ_TASK_ID}; done'",
    "submit --array 1-3 -- bash -c 'echo $HOME $1' x a",
    "submit --each-line f -- bash -c 'gzip \"$HQ_ENTRY\"'",
    "submit --each-line f -- /work.py",
    "submit --param lr=1,2 --param +s=3,4 -- echo {s}",
    "submit --param lr=1,2 -- /x {lr} --out r-{lr}.txt",
    "submit --param lr=1,2 --stdout 'r-{lr}.%{TASK_ID}' -- /x {lr}",
    "submit --param lr=1,2 -- bash -c 'echo $HQ_PARAM_LR'",
    "submit --stdout '%{TASK_ID}.out' --cwd '%{SUBMIT_DIR}/x' -- true",
    "submit --stdout '100%' -- true",
    "submit -- curl -w '%{http_code}' http://x/",
    "submit -- git show 'HEAD@{1}'",
    "submit -- test 1 -lt 2",
    "submit -- expr 1 '<' 2",
    "submit -- /x '{}'",
    "submit -- /x '{\"a\": 1}'",
    "submit --array 1-3 -- latex '\\def\\n{x}'",
    "submit -- env FOO=1 ./x",
    "submit -- grep -E 'a{3}' file",
    "submit --env X=1 -- bash -c 'SLURM_ARRAY_TASK_ID=$HQ_TASK_ID ./x $SLURM_ARRAY_TASK_ID'",
    "submit --cpus 4 -- make -j4 CC=gcc",
    "submit -- make -j",
    "submit --stdin -- xargs echo",
    "submit -- hq submit --cpus 2 true",
    "run -j 2 --array 1-3 -- /x",
    "run --array 1 -- /x",
    "| run --each-line - -- echo {}",
    "| submit -- wc -l /etc/hostname",
    "| submit -- find . -exec echo {} ';'",
    "| submit --stdin -- wc -l",
    "submit -- wc -l",
    "| submit -- python3 -c 'print(1)'",
    "submit -- bash -c 'echo $1' x a",
    "submit -- bash -c 'shift; ls' x a",
];

#[test]
fn what_is_meant_is_not_told() {
    for line in MEANT {
        let (notes, _) = said(line);
        assert!(notes.is_empty(), "{line}: {notes:#?}");
    }
}

#[test]
fn braces_are_the_line_unless_the_program_has_its_own() {
    for (line, taken) in [
        ("run --each-line f -- ./convert {} {}.png", true),
        ("run --each-line f -- bash -c 'gzip < {} > {}.gz'", true),
        ("run --each-line f -- {}", true),
        ("run --from-json f -- /x {}", true),
        (
            "run --each-line f -- find {} -name x -exec rm {} ';'",
            false,
        ),
        ("run --each-line f -- fd -x echo {}", false),
        (
            "run --each-line f -- bash -c 'ls $HQ_ENTRY | xargs -I{} cp {} /tmp'",
            false,
        ),
        ("run --each-line f -- python3 -c 'd = {}'", false),
        ("run --each-line f -- python3 x.py {}", true),
        ("run --each-line f -- /x", false),
        ("run --array 1-3 -- /x {}", false),
        ("submit --each-line f -- /x {}", false),
    ] {
        assert_eq!(said(line).1, taken, "{line}");
    }
}

#[test]
fn the_value_of_an_array_names_the_first_habit_only() {
    let (notes, _) = said("submit --array 1-3 true --cpus 2 --nodes 1 --time-limit 3s");
    assert_eq!(notes.len(), 1, "{notes:#?}");
}
