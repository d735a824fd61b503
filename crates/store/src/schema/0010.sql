-- Rows of tasks, and stretches: tasks of one job with consecutive ids that finished in their first instance, up to 256. Of
-- each value a stretch has the lowest (`worker`) and how far the others are above it (`worker_bytes`): as many bytes a task as
-- the largest needs, the lowest of all tasks first, then the next of all tasks; none if all are equal. `check_sum` is the
-- FNV-1a hash of the rest.
DROP VIEW attempts;
DROP VIEW tasks;
DROP VIEW events;
ALTER TABLE task_data RENAME TO task_row_data;
CREATE TABLE stretch_data (
    job INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    variant INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    worker_bytes BLOB NOT NULL,
    started_unix_ns INTEGER NOT NULL,
    started_unix_ns_bytes BLOB NOT NULL,
    run_us INTEGER NOT NULL,
    run_us_bytes BLOB NOT NULL,
    max_rss_kib INTEGER NOT NULL,
    max_rss_kib_bytes BLOB NOT NULL,
    user_ms INTEGER NOT NULL,
    user_ms_bytes BLOB NOT NULL,
    system_ms INTEGER NOT NULL,
    system_ms_bytes BLOB NOT NULL,
    start_seq INTEGER NOT NULL,
    start_seq_bytes BLOB NOT NULL,
    end_seq INTEGER NOT NULL,
    end_seq_bytes BLOB NOT NULL,
    check_sum INTEGER NOT NULL,
    PRIMARY KEY (job, first)
);

-- Places in a stretch, from 1 on.
CREATE TABLE place_data (
    place INTEGER PRIMARY KEY
);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 256) INSERT INTO place_data SELECT i FROM n;

-- Both, as rows. A byte is a number by its place among all bytes.
CREATE VIEW task_data AS
SELECT job, task, state, instance, crash_count, worker, variant, started_unix_ns, run_us, outcome, message, max_rss_kib,
    user_ms, system_ms, start_seq, end_seq, retry_count
FROM task_row_data
UNION ALL
SELECT s.job, s.first + p.place - 1, 2, 0, 0,
    s.worker + CASE WHEN length(s.worker_bytes) > 0 THEN instr(b.bytes, substr(s.worker_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.worker_bytes) > s.count THEN instr(b.bytes, substr(s.worker_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.worker_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.worker_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.worker_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.worker_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.worker_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.worker_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.worker_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.worker_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    s.variant,
    s.started_unix_ns + CASE WHEN length(s.started_unix_ns_bytes) > 0 THEN instr(b.bytes, substr(s.started_unix_ns_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.started_unix_ns_bytes) > s.count THEN instr(b.bytes, substr(s.started_unix_ns_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.started_unix_ns_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.started_unix_ns_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.started_unix_ns_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.started_unix_ns_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.started_unix_ns_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.started_unix_ns_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.started_unix_ns_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.started_unix_ns_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    s.run_us + CASE WHEN length(s.run_us_bytes) > 0 THEN instr(b.bytes, substr(s.run_us_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.run_us_bytes) > s.count THEN instr(b.bytes, substr(s.run_us_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.run_us_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.run_us_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.run_us_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.run_us_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.run_us_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.run_us_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.run_us_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.run_us_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    0, NULL,
    s.max_rss_kib + CASE WHEN length(s.max_rss_kib_bytes) > 0 THEN instr(b.bytes, substr(s.max_rss_kib_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.max_rss_kib_bytes) > s.count THEN instr(b.bytes, substr(s.max_rss_kib_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.max_rss_kib_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.max_rss_kib_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.max_rss_kib_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.max_rss_kib_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.max_rss_kib_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.max_rss_kib_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.max_rss_kib_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.max_rss_kib_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    s.user_ms + CASE WHEN length(s.user_ms_bytes) > 0 THEN instr(b.bytes, substr(s.user_ms_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.user_ms_bytes) > s.count THEN instr(b.bytes, substr(s.user_ms_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.user_ms_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.user_ms_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.user_ms_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.user_ms_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.user_ms_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.user_ms_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.user_ms_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.user_ms_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    s.system_ms + CASE WHEN length(s.system_ms_bytes) > 0 THEN instr(b.bytes, substr(s.system_ms_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.system_ms_bytes) > s.count THEN instr(b.bytes, substr(s.system_ms_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.system_ms_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.system_ms_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.system_ms_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.system_ms_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.system_ms_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.system_ms_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.system_ms_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.system_ms_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    s.start_seq + CASE WHEN length(s.start_seq_bytes) > 0 THEN instr(b.bytes, substr(s.start_seq_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.start_seq_bytes) > s.count THEN instr(b.bytes, substr(s.start_seq_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.start_seq_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.start_seq_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.start_seq_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.start_seq_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.start_seq_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.start_seq_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.start_seq_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.start_seq_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    s.end_seq + CASE WHEN length(s.end_seq_bytes) > 0 THEN instr(b.bytes, substr(s.end_seq_bytes, p.place, 1)) - 1
        + 256 * CASE WHEN length(s.end_seq_bytes) > s.count THEN instr(b.bytes, substr(s.end_seq_bytes, s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.end_seq_bytes) > 2 * s.count THEN instr(b.bytes, substr(s.end_seq_bytes, 2 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.end_seq_bytes) > 3 * s.count THEN instr(b.bytes, substr(s.end_seq_bytes, 3 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.end_seq_bytes) > 4 * s.count THEN instr(b.bytes, substr(s.end_seq_bytes, 4 * s.count + p.place, 1)) - 1
        + 256 * CASE WHEN length(s.end_seq_bytes) > 5 * s.count THEN instr(b.bytes, substr(s.end_seq_bytes, 5 * s.count + p.place, 1)) - 1
        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END,
    0
FROM (SELECT X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F404142434445464748494A4B4C4D4E4F505152535455565758595A5B5C5D5E5F606162636465666768696A6B6C6D6E6F707172737475767778797A7B7C7D7E7F808182838485868788898A8B8C8D8E8F909192939495969798999A9B9C9D9E9FA0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBFC0C1C2C3C4C5C6C7C8C9CACBCCCDCECFD0D1D2D3D4D5D6D7D8D9DADBDCDDDEDFE0E1E2E3E4E5E6E7E8E9EAEBECEDEEEFF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF' AS bytes) b
CROSS JOIN stretch_data s CROSS JOIN place_data p ON p.place <= s.count;

-- As before.
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

CREATE VIEW events AS
SELECT seq, at_unix_ns, type, job, NULL AS task, NULL AS instance, worker, NULL AS variant, data
FROM event_log
UNION ALL
SELECT start_seq, started_unix_ns, 'task-started', job, task, instance, worker, variant,
    CASE WHEN EXISTS (SELECT 1 FROM node_data n
        WHERE n.job = t.job AND n.task = t.task AND n.instance = t.instance)
    THEN json_object('workers', json((SELECT json_group_array(worker) FROM (SELECT n.worker AS worker FROM node_data n
        WHERE n.job = t.job AND n.task = t.task AND n.instance = t.instance ORDER BY n.position)))) END
FROM attempt_data t WHERE start_seq IS NOT NULL
UNION ALL
SELECT start_seq, started_unix_ns, 'task-started', job, task, instance, worker, variant,
    CASE WHEN EXISTS (SELECT 1 FROM node_data n
        WHERE n.job = t.job AND n.task = t.task AND n.instance = t.instance)
    THEN json_object('workers', json((SELECT json_group_array(worker) FROM (SELECT n.worker AS worker FROM node_data n
        WHERE n.job = t.job AND n.task = t.task AND n.instance = t.instance ORDER BY n.position)))) END
FROM task_data t WHERE start_seq IS NOT NULL
UNION ALL
SELECT end_seq, started_unix_ns + run_us * 1000,
    CASE state WHEN 2 THEN 'task-finished' ELSE 'task-failed' END,
    job, task, instance, worker, NULL,
    CASE WHEN state = 3 THEN json_object('outcome', outcome, 'message', message) END
FROM task_data WHERE end_seq IS NOT NULL;
