//! Mistakes in command lines, and the resulting messages.

use clap::Parser as _;

use super::*;

fn told(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let error = crate::args::Cli::try_parse_from(&words).expect_err(line);
    anstream::adapter::strip_str(&text(error, &words)).to_string()
}

#[test]
fn habits_get_one_answer_and_no_proposal_of_the_parser() {
    let text = told("hq submit --job-name x -- true");
    assert!(
        text.contains("error: unexpected argument '--job-name' found"),
        "{text}"
    );
    assert!(
        text.contains("\nhelp: the name of a job is `--name TEXT`\n"),
        "{text}"
    );
    assert!(!text.contains("tip:"), "{text}");
    let text = told("hq --server-dir /x job kill 3");
    assert!(text.contains("`hq job cancel JOB`"), "{text}");
}

#[test]
fn usage_is_whole_and_numbers_are_told_in_plain_words() {
    let text = told("hq --server-dir /x submit");
    assert!(
        text.contains("Usage: hq submit [OPTIONS] <COMMAND>..."),
        "{text}"
    );
    let text = told("hq submit --priority high -- true");
    assert!(text.contains("expected a whole number\n"), "{text}");
}

/// Lines, each with a part of its message.
const LINES: &str = r#"
submit --cpus -2 -- true => takes an amount above 0
worker start --enforce-memory no => `--enforce-memory=no`
job resubmit 3 --wait ok => `--wait=ok`
submit --on-notify x -- true => together with `--wait[=<UNTIL>]|--progress`
submit --array -1 -- true => `--array` takes ids from 0
submit --time-limit -5 -- true => `--time-limit` takes a duration such as `90s`
submit --max-fails -1 -- true => takes a whole number from 0
submit --cpus 500m -- true => `--cpus 0.5`
submit --array 1-10:5%0 -- true => with at most 5 running tasks, `--array 1-100%5`
submit --stdin=in.txt -- true => `hq submit --stdin -- PROGRAM < in.txt`
submit --task-dir=x -- true => `--task-dir` takes no value
submit --name a --name b -- true => write it once
job list --filter=DONE => did you mean `finished`?
job cat 4 err => did you mean `stderr`?
submit --pin=cores -- true => did you mean `taskset`?
alloc add sge => queues are for Slurm and PBS
alloc remove 2-4 => name one queue by its id
submit --notify=me@x.org -- true => `--notify 'cmd:mail -s hq me@x.org
--server-dir job list => `job` was taken as the directory
submit --after afterok:3 -- true => `--after 3:ok`
submit --job Job2 -- true => `--output-mode quiet`
task info 3/7 => did you mean `3.7`?
job cat 1 stdout 0 => `hq job cat JOB stdout --tasks 0`
job tail 1 0 => `hq job tail JOB.0`
task list 1 7 => `hq task list JOB --tasks 7`
job info 1 2 => `hq job info 1,2`
worker start 4 => `hq worker start --cpus 4`
worker start --resource gpus=2 => `--resource 'gpus=[0,1]'`
worker start --cpus two => `--cpus 2x4`
server start --cpus 4 => `--cpus` is an option of `hq run`, `hq submit`, `hq worker start`
server stop now => takes options only: `--keep-workers`
job wait --all => `hq job wait all`
worker stop --all => `hq worker stop all`
job submit-file p.toml --array 1-3 => a job file describes its tasks itself
job info 3.7 => this is task 7 of job 3
job cancel 3.7 => `hq job cancel 3` cancels all tasks of job 3
job resubmit 3.7 => `hq job resubmit 3 --filter failed`
job tail -100 3 => `hq job tail -n 100 JOB`
worker list 1 => `hq worker info 1` shows one worker
job summary 3 => `hq job info 3` shows one job
alloc add --time-limit 1h slurm => `hq alloc add slurm --time-limit …`
alloc add slurm --time-limit 1h --dry-run => `--no-dry-run`
server stop --now => it stops at once anyway
query select 1 => one word in quotes
server wait --timeout 1 min => a duration is one word: `1min`
dashboard --port 8080 => `hq server start --http=8080`
job cancel 2_3 => `hq job cancel 2` cancels all tasks
job info 2_3 => this is task 3 of job 2
job cat 2 1 stdout => `hq job cat JOB.1 stdout`
journal export => name a journal
submit --wait=10m true => `timeout 10m hq job wait last`
report --start-time 2024-05-01 => not a date
config set cpus 4 => `hq doc config`
doctor worker => `hq doctor` checks the machine on which it runs
journal prune 1-3 => `hq job forget 1-3`
job cat 1 0 => `hq job cat 1.0 stdout`
job cat 2 2 => the stream is a word: `hq job cat 2 stderr`; task 2 is `hq job cat 2.2 stdout`
job cat 2.7 1 => `hq job cat 2.7 stdout`
job cat 2 both => one stream, `stdout` or `stderr`; both are two commands
job cat 2 => as in `hq job cat 2 stdout`
output-log d cat 3 => as in `hq output-log d cat 3 stdout`
job open --name x -- hostname => `hq submit --job ID -- PROGRAM`
job tail -f last stdout => `hq job tail JOB --channel stdout`
worker info 1 now => takes `<WORKERS>` and no more words
job cancel 4 WAITING => `hq job cancel 3,5-7`
job cancel 4 | ID => a list of hq stands there
server info now => `hq server info` takes
submit --array 1–10 true => type it as `1-10`
submit --array=1–10 true => type it as `1-10`
submit --after prep true => name a job by its id
submit --after 1.3 true => takes whole jobs
submit --after last:failed true => no job starts only after a failure
submit --max-tasks 5 true => together with `--open`
job open --max-tasks 5 => is an option of `hq submit`
output-log dir cat stdout => `hq output-log DIR cat 3 stdout`
submit --each-line f --param x=1 true => a line or parameters
submit --resource memory=4G -- true => `--resource mem=4G`
submit --resource walltime=1h -- true => `--time-limit 1h`
submit --resource cores=2x -- true => `--cpus 4`
job list –all => type it as `--all`
job cancel –all => type it as `--all`
submit -–cpus=4 true => type it as `--cpus=4`
–help => type it as `--help`
job submit-file a.toml ./ok.sh => without a program or arguments: `hq job submit-file a.toml`
job submit-file a.toml b.toml => several files are several commands
job cat 1 stdout Cargo.toml => and no more words
job submit-file => name the file
worker deploy-ssh => a host in each line
job cancel last,all => `last` and `all` stand alone
job info 1-last => `last` and `all` stand alone
worker stop all,2 => `last` and `all` stand alone
job cat all stdout => `all` is not possible here
job cancel 1..3 => did you mean `1-3`?
worker stop 1:3 => did you mean `1-3`?
job cancel job3 => the id alone is a number: `3`
job cancel h2o => ids look like
job cancel slow => not by its name
worker stop vm => not by its name
run --bar -- true => without being asked
run --progress -- true => without being asked
run --joblog x -- true => keeps no log
run -0 -- true => --each-line - --null
submit --resume -- true => --skip-done
submit --ntasks-per-node 2 -- true => `--cpus 4`
job list -a => `hq job list --all`
worker start -c 4 => `hq worker start --cpus 8`
alloc add slurm --partition x => follow `--`
-j4 run => follow the command
./run.sh => `hq submit -- ./run.sh`
submit --each-line cmds => `cmds` is the list
run --each-row=t.csv => `t.csv` is the table
frobnicate => `hq --help` lists the commands
job frobnicate => `hq job` has the commands `list`, 
job list running => `hq job list --filter running,failed`
job cat stdout 1 => `hq job cat JOB stdout`
run -d true => `hq submit` returns at once
# Values in other notations.
submit --array [1-3] true => `--array 1-3`
submit --array 1-3;5 true => `--array 1-3,5`
submit --array 1,2, true => `--array 1,2`
submit --array 5-2 true => `--array 2-5`
submit --cpus 4cores true => `--cpus 4`
submit --cpus 1/2 true => `--cpus 0.5`
submit --cpus 0,5 true => `--cpus 0.5`
submit --cpus= true => a variable of this shell may be unset
submit --time-limit 2H true => `--time-limit 2h`
submit --time-limit 1h30 true => `--time-limit 1h30m`
submit --time-limit 1,5h true => `--time-limit 1.5h`
submit --resource mem:4G true => `--resource mem=4G`
submit --resource 4G true => `--resource mem=4G`
submit --resource mem 4G true => one word: `--resource mem=4G`
submit --resource gpu:1 true => detected GPUs are `gpus/nvidia`
submit --resource mem=4G,gpus/nvidia=1 true => `--resource mem=4G --resource gpus/nvidia=1`
submit --param x 1,2 -- true => one word: `--param x=1,2`
submit --param 1,2 true => expected NAME=VALUES, such as `lr=0.1,0.01` or `seed=1-100`
submit --param 1,2 true => help: `--param <NAME=VALUES>`
doc --search => `hq doc --search memory limit`
job list all => `hq job list --all` all jobs
submit --retries 1_000 true => `--retries 1000`
submit --retries 1,000 true => `--retries 1000`
job info Last => did you mean `last`?
job info lsat => did you mean `last`?
job info -1 => `hq job info last`
job info 99999999999999 => shows the ids
task info 2[1] => did you mean `2.1`?
task info 2:1 => did you mean `2.1`?
job list --filter Running,Failed => did you mean `running`?
job list --filter fialed => did you mean `failed`?
--output-mode JSON job list => did you mean `json`?
# Words after a command.
jbo list => did you mean `hq job`?
job-list => did you mean `hq job list`?
job canel 1 => did you mean `hq job cancel`?
alloc add SLURM => did you mean `hq alloc add slurm`?
job timeline 1 => `hq report`
submit --arary 1-3 true => did you mean `--array`?
worker list -a => has the options `--all`, `--filter`
worker list --state running => `hq worker list --filter running`
worker start --manager torque => did you mean `pbs`?
worker start --cpus 4-7 => did you mean `--cpus 'range(4-7)'`?
worker start --cpus 0,2 => did you mean `--cpus '[0,2]'`?
worker start --cpus 4- => `--cpus 'range(4-7)'`
worker start --resource gpus/nvidia=0-3 => `--resource 'gpus/nvidia=range(0-3)'`
alloc add slurm 1h => `hq alloc add slurm --time-limit 1h`
alloc add pbs --time-limit 1h -q fast => `hq alloc add pbs --time-limit 1h -- -q NAME`
status -u alice => a server runs the jobs of one user
job list --me => `hq job list` lists yours
problems --job 4 => `hq job failures JOB` its failures
status --job=4 => `hq job info JOB` shows one job
alloc add slurm => `--time-limit <DURATION>` of `hq alloc add slurm` is
token create => `<NAME>` of `hq token create` is
server generate-access x => of `hq server generate-access` is
server start --fresh --resume => leave out one of the two
server start --http 8080 => `--http=8080`
worker start --background => nohup hq worker start
worker start --cpus -1 => `--cpus 2x4`
run -j -1 true => `--jobs` takes a whole number from 1
alloc list 1 => `hq alloc info 1`
output-log show dir => the directory comes first: `hq output-log dir show`
output-log dir list => are `summary`, `jobs`, `show`, `cat`, `export`
doc submit --array => `hq doc -- submit --array`
query “select 1” => typographic quotes
task info 2 1 3 => `hq task info 3 1,2`
run --each-line -- true => reads standard input
# Lists with blanks, and values of unset variables.
submit --param T=300, 310 -- true => `--param T=300,310`
submit --param=T=300, 310, 320 -- true => `--param T=300,310,320`
submit --array 1, 2 => `--array 1,2`
submit --after 1, 2 -- true => `--after 1,2`
submit --resource mem=4G, gpus/nvidia=1 -- true => `--resource mem=4G --resource gpus/nvidia=1`
submit --array -- true => nothing follows it: if a variable
submit --array 1- true => nothing follows the `-`
submit --resource mem= -- true => nothing follows the `=`
submit --env =1 true => `--env NAME=1`
# A word, an option or a list where something else is expected.
7 => `hq job info 7`
last => `hq job info last`
job 7 => `hq job info 7`
task 2.1 => `hq task info 2.1`
worker 1 => `hq worker info 1`
alloc 1 => `hq alloc info 1`
dashboard 7 => `hq job progress 7`
dashboard stream last => `hq job progress last`
status 7 => `hq job info 7`
problems last => `hq job info last`
server wait 10 => `hq server wait --timeout 10`
job open 3 => `hq submit --job 3 -- PROGRAM`
job open NAME => `hq job open --name 'NAME'`
job open my steps --max-fails 1 => `hq job open --name 'my steps'`
journal replay x.db => `hq journal export x.db`
job info --job 3 => `hq job info 3`
job cancel --jobs=1,2 => `hq job cancel 1,2`
worker stop --id 3 => `hq worker stop 3`
alloc remove --queue 1 => `hq alloc remove 1`
job cat --job 1 stdout => `hq job cat 1 STREAM`
task info --job 2 => `hq task info 2.TASK`
task info --task 1 => `hq task info JOB.1`
task info 2 --task 1 => `hq task info 2.1`
task explain --task 2.1 => `hq task explain 2.1`
output-log --dir slog show => `hq output-log slog`
worker deploy-ssh --hosts h => `hq worker deploy-ssh h`
job submit-file --file a.toml => `hq job submit-file a.toml`
import --script a.sh => `hq import a.sh`
token create --name x => `hq token create x`
journal check --journal d => `hq journal check FILE`
alloc add --manager slurm => `hq alloc add slurm --time-limit 1h`
task explain 3-5 => task 5 of job 3 is `3.5`
job tail 1,2 => it takes one job: `1`
alloc log 1 => Which stream: `stdout`, `stderr`
task notify => `hq task notify MESSAGE`
task notify half way there => `hq task notify 'half way there'`
# Output for people, or a list, instead of an id.
job wait Job submitted successfully, job ID: 3 => the id in this sentence is 3
job cat Job submitted successfully, job ID: 12 stdout => the id in this sentence is 12
task list Job 4 is open. => the id in this sentence is 4
submit --after Job 6 resubmitted successfully, job ID: 21 (1 task) -- true => the id in this sentence is 21
job info FINISHED => is a state: quiet lists
worker info RUNNING => `hq worker list --output-mode quiet | cut
submit --after FAILED true => is a state
task info 2 FAILED => is a state
worker info 1 RUNNING => $(hq worker list --output-mode json
job list --filter RUNING => did you mean `running`?
# An option of the same name elsewhere.
journal replay --after 2026-11-29 => is: Start after the event with this number
output-log d show --job x => is: Only this job
worker address all => not possible here; ids look like `3`
worker address vm => ids look like `3`
import --submit --array=1-5 slurm.sh => `hq import --options '--array=1-5' FILE`
import --sumbit slurm.sh => did you mean `--submit`?
run => `hq run ./script.sh`
alloc info => name a queue by its id
worker start --resource mem=4 => `--resource 'mem=sum(4096)'`
config set submit.cpus 4 => `[submit]` and `cpus = 4` in the file that
config worker.start.time-limit=2h => `[worker.start]` and `time-limit = "2h"`
"#;

#[test]
fn values_are_told_by_their_kind() {
    let mut wrong = Vec::new();
    for (line, answer) in LINES.lines().filter_map(|row| row.split_once(" => ")) {
        let text = told(&format!("hq {line}"));
        if !text.contains(answer) || text.contains("tip:") {
            wrong.push(format!("{line}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
