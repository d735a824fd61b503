-- Jobs have a state and the number of their tasks in each; times are texts, too. A task that never started has no row in
-- `tasks`, and is counted here.
DROP VIEW attempts;
DROP VIEW tasks;
DROP VIEW jobs;
CREATE VIEW jobs AS
SELECT id, name, is_open, max_fails, cancel_reason, task_count, submitted_unix_ns, completed_unix_ns,
    CASE WHEN running > 0 THEN 'running' WHEN finished + failed + canceled + aborted < task_count THEN 'waiting'
        WHEN failed > 0 THEN 'failed' WHEN aborted > 0 THEN 'aborted' WHEN canceled > 0 THEN 'canceled'
        WHEN is_open THEN 'opened' ELSE 'finished' END AS state,
    task_count - running - finished - failed - canceled - aborted AS waiting,
    running, finished, failed, canceled, aborted,
    strftime('%Y-%m-%dT%H:%M:%S', submitted_unix_ns / 1000000000, 'unixepoch')
        || printf('.%03dZ', submitted_unix_ns / 1000000 % 1000) AS submitted,
    strftime('%Y-%m-%dT%H:%M:%S', completed_unix_ns / 1000000000, 'unixepoch')
        || printf('.%03dZ', completed_unix_ns / 1000000 % 1000) AS completed
FROM (
    SELECT j.id, j.name, j.is_open, j.max_fails, j.cancel_reason, j.submitted_unix_ns, j.completed_unix_ns,
        (SELECT coalesce(sum(s.task_count), 0) FROM submit_data s WHERE s.job = j.id) AS task_count,
        (SELECT count(*) FROM task_row_data t WHERE t.job = j.id AND t.state = 1) AS running,
        (SELECT coalesce(sum(s.count), 0) FROM stretch_data s WHERE s.job = j.id)
            + (SELECT count(*) FROM task_row_data t WHERE t.job = j.id AND t.state = 2) AS finished,
        (SELECT count(*) FROM task_row_data t WHERE t.job = j.id AND t.state = 3) AS failed,
        (SELECT coalesce(sum(d.count), 0) FROM dropped_data d WHERE d.job = j.id AND d.state = 4) AS canceled,
        (SELECT coalesce(sum(d.count), 0) FROM dropped_data d WHERE d.job = j.id AND d.state = 5) AS aborted
    FROM job_data j WHERE j.is_forgotten = 0
);

CREATE VIEW tasks AS
SELECT job, task,
    CASE state WHEN 0 THEN 'waiting' WHEN 1 THEN 'running' WHEN 2 THEN 'finished'
        WHEN 3 THEN 'failed' WHEN 4 THEN 'canceled' ELSE 'aborted' END AS state,
    instance, crash_count, retry_count, worker,
    CASE WHEN state < 4 OR run_us IS NOT NULL THEN started_unix_ns END AS started_unix_ns,
    CASE WHEN state > 1 THEN started_unix_ns + run_us * 1000 END AS ended_unix_ns,
    run_us,
    CASE WHEN outcome >= 0 THEN outcome END AS exit_code,
    CASE WHEN outcome BETWEEN -999 AND -1 THEN -outcome END AS signal,
    CASE outcome WHEN -1000 THEN 'Time limit reached' WHEN -1001 THEN message
        WHEN -1003 THEN 'Out of memory' || coalesce(': ' || message, '') END AS message,
    max_rss_kib, user_ms, system_ms,
    CASE WHEN state < 4 OR run_us IS NOT NULL THEN
        strftime('%Y-%m-%dT%H:%M:%S', started_unix_ns / 1000000000, 'unixepoch')
        || printf('.%03dZ', started_unix_ns / 1000000 % 1000) END AS started,
    CASE WHEN state > 1 THEN
        strftime('%Y-%m-%dT%H:%M:%S', (started_unix_ns + run_us * 1000) / 1000000000, 'unixepoch')
        || printf('.%03dZ', (started_unix_ns + run_us * 1000) / 1000000 % 1000) END AS ended
FROM task_data;

CREATE VIEW attempts AS
SELECT job, task, instance, worker, started_unix_ns,
    CASE WHEN outcome IS NULL THEN 'superseded' ELSE 'failed' END AS state, run_us,
    CASE WHEN outcome >= 0 THEN outcome END AS exit_code,
    CASE WHEN outcome BETWEEN -999 AND -1 THEN -outcome END AS signal,
    CASE outcome WHEN -1000 THEN 'Time limit reached' WHEN -1001 THEN message
        WHEN -1003 THEN 'Out of memory' || coalesce(': ' || message, '') END AS message
FROM attempt_data
UNION ALL
SELECT job, task, instance, worker, started_unix_ns, state, run_us, exit_code, signal, message
FROM tasks WHERE state <> 'waiting' AND (state NOT IN ('canceled', 'aborted') OR run_us IS NOT NULL);
