-- Times are nanoseconds since 1970 UTC. Views without the suffix _data are for people.
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

-- Who writes this file; one row.
CREATE TABLE lease (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_start INTEGER NOT NULL,
    boot TEXT NOT NULL,
    heartbeat INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    is_held INTEGER NOT NULL
);

CREATE TABLE job_data (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    max_fails INTEGER,
    is_open INTEGER NOT NULL,
    cancel_reason TEXT,
    submitted_unix_ns INTEGER NOT NULL,
    completed_unix_ns INTEGER,
    is_forgotten INTEGER NOT NULL DEFAULT 0
);

-- `spec` is the submit message of the client protocol with the ids that the tasks got, `spec_check` its
-- FNV-1a hash.
CREATE TABLE submit_data (
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at_unix_ns INTEGER NOT NULL,
    task_count INTEGER NOT NULL,
    spec BLOB NOT NULL,
    spec_check INTEGER NOT NULL,
    PRIMARY KEY (job, number)
);

-- One row a task that was started. state: 0 waiting, 1 running, 2 finished, 3 failed, 4 canceled,
-- 5 aborted. outcome: exit code, or minus the signal, -1000 time limit, -1001 `message`, -1002 killed.
CREATE TABLE task_data (
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,
    state INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    crash_count INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    variant INTEGER NOT NULL,
    started_unix_ns INTEGER,
    run_us INTEGER,
    outcome INTEGER,
    message TEXT,
    max_rss_kib INTEGER,
    user_ms INTEGER,
    system_ms INTEGER,
    start_seq INTEGER,
    end_seq INTEGER,
    retry_count INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, task)
) WITHOUT ROWID;

-- Earlier instances of tasks that were started again; `outcome` and what follows if it is known how
-- they ended.
CREATE TABLE attempt_data (
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    variant INTEGER NOT NULL,
    started_unix_ns INTEGER,
    start_seq INTEGER,
    run_us INTEGER,
    outcome INTEGER,
    message TEXT,
    max_rss_kib INTEGER,
    user_ms INTEGER,
    system_ms INTEGER,
    PRIMARY KEY (job, task, instance)
) WITHOUT ROWID;

-- Tasks that were canceled (4) or aborted (5): `count` ids from `first`, `step` apart.
CREATE TABLE dropped_data (
    seq INTEGER NOT NULL,
    job INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    step INTEGER NOT NULL,
    state INTEGER NOT NULL,
    at_unix_ns INTEGER NOT NULL
);
CREATE INDEX dropped_by_job ON dropped_data (job);

CREATE TABLE worker_data (
    id INTEGER PRIMARY KEY,
    hostname TEXT NOT NULL,
    started_unix_ns INTEGER NOT NULL,
    ended_unix_ns INTEGER,
    reason TEXT,
    config TEXT NOT NULL,
    -- The registration message of the worker protocol.
    registration BLOB
);

CREATE TABLE allocation_data (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    worker_count INTEGER NOT NULL,
    state TEXT NOT NULL,
    queued_unix_ns INTEGER,
    started_unix_ns INTEGER,
    ended_unix_ns INTEGER,
    PRIMARY KEY (queue, id)
) WITHOUT ROWID;

-- Events that are not the start or end of a single task; those are in task_data and attempt_data.
CREATE TABLE event_log (
    seq INTEGER PRIMARY KEY,
    at_unix_ns INTEGER NOT NULL,
    type TEXT NOT NULL,
    job INTEGER,
    worker INTEGER,
    data TEXT NOT NULL
);

CREATE VIEW jobs AS
SELECT j.id, j.name, j.is_open, j.max_fails, j.cancel_reason,
    (SELECT coalesce(sum(s.task_count), 0) FROM submit_data s WHERE s.job = j.id) AS task_count,
    j.submitted_unix_ns, j.completed_unix_ns
FROM job_data j WHERE j.is_forgotten = 0;

CREATE VIEW tasks AS
SELECT job, task,
    CASE state WHEN 0 THEN 'waiting' WHEN 1 THEN 'running' WHEN 2 THEN 'finished'
        WHEN 3 THEN 'failed' WHEN 4 THEN 'canceled' ELSE 'aborted' END AS state,
    instance, crash_count, retry_count, worker, started_unix_ns,
    CASE WHEN state IN (2, 3) THEN started_unix_ns + run_us * 1000 END AS ended_unix_ns,
    run_us,
    CASE WHEN outcome >= 0 THEN outcome END AS exit_code,
    CASE WHEN outcome BETWEEN -999 AND -1 THEN -outcome END AS signal,
    CASE outcome WHEN -1000 THEN 'Time limit reached' WHEN -1001 THEN message END AS message,
    max_rss_kib, user_ms, system_ms
FROM task_data;

CREATE VIEW attempts AS
SELECT job, task, instance, worker, started_unix_ns,
    CASE WHEN outcome IS NULL THEN 'superseded' ELSE 'failed' END AS state, run_us,
    CASE WHEN outcome >= 0 THEN outcome END AS exit_code,
    CASE WHEN outcome BETWEEN -999 AND -1 THEN -outcome END AS signal,
    CASE outcome WHEN -1000 THEN 'Time limit reached' WHEN -1001 THEN message END AS message
FROM attempt_data
UNION ALL
SELECT job, task, instance, worker, started_unix_ns, state, run_us, exit_code, signal, message
FROM tasks WHERE state <> 'waiting';

CREATE VIEW workers AS
SELECT id, hostname, started_unix_ns, ended_unix_ns, reason, config FROM worker_data;

CREATE VIEW allocations AS
SELECT queue, id, worker_count, state, queued_unix_ns, started_unix_ns, ended_unix_ns
FROM allocation_data;

-- The journal in order of `seq`; `data` holds what is particular to a type, as JSON.
CREATE VIEW events AS
SELECT seq, at_unix_ns, type, job, NULL AS task, NULL AS instance, worker, NULL AS variant, data
FROM event_log
UNION ALL
SELECT start_seq, started_unix_ns, 'task-started', job, task, instance, worker, variant, NULL
FROM attempt_data WHERE start_seq IS NOT NULL
UNION ALL
SELECT start_seq, started_unix_ns, 'task-started', job, task, instance, worker, variant, NULL
FROM task_data WHERE start_seq IS NOT NULL
UNION ALL
SELECT end_seq, started_unix_ns + run_us * 1000,
    CASE state WHEN 2 THEN 'task-finished' ELSE 'task-failed' END,
    job, task, instance, worker, NULL,
    CASE WHEN state = 3 THEN json_object('outcome', outcome, 'message', message) END
FROM task_data WHERE end_seq IS NOT NULL;
