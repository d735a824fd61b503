-- Tasks that were canceled or aborted while they ran keep how long they did: `run_us`, which is NULL in those that did not run
-- then. They are the ones whose start is the last thing that is known of them.
UPDATE task_data SET run_us = (SELECT max(0, (min(d.at_unix_ns) - started_unix_ns) / 1000) FROM dropped_data d
    WHERE d.job = task_data.job AND d.state = task_data.state
    AND task_data.task BETWEEN d.first AND d.first + (d.count - 1) * d.step AND (task_data.task - d.first) % d.step = 0)
WHERE state IN (4, 5) AND start_seq IS NOT NULL AND started_unix_ns IS NOT NULL;

DROP VIEW attempts;
DROP VIEW tasks;
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
    max_rss_kib, user_ms, system_ms
FROM task_data;

-- As before, without tasks that were given up before their next instance started.
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
