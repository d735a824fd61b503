-- As before; what ran out of memory says so.
DROP VIEW attempts;
DROP VIEW tasks;
CREATE VIEW tasks AS
SELECT job, task,
    CASE state WHEN 0 THEN 'waiting' WHEN 1 THEN 'running' WHEN 2 THEN 'finished'
        WHEN 3 THEN 'failed' WHEN 4 THEN 'canceled' ELSE 'aborted' END AS state,
    instance, crash_count, retry_count, worker, started_unix_ns,
    CASE WHEN state IN (2, 3) THEN started_unix_ns + run_us * 1000 END AS ended_unix_ns,
    run_us,
    CASE WHEN outcome >= 0 THEN outcome END AS exit_code,
    CASE WHEN outcome BETWEEN -999 AND -1 THEN -outcome END AS signal,
    CASE outcome WHEN -1000 THEN 'Time limit reached' WHEN -1001 THEN message
        WHEN -1003 THEN 'Out of memory' || coalesce(': ' || message, '') END AS message,
    max_rss_kib, user_ms, system_ms
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
FROM tasks WHERE state <> 'waiting';
