-- The same rows as before, for every SQLite from 3.26 (2018) on: the ones before 3.39 and 3.44 refuse a file in which any
-- view has a HAVING without GROUP BY or an ORDER BY in an aggregate.
DROP VIEW events;
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

-- What compaction looks for: forgotten jobs, their events, and the oldest overviews of workers.
CREATE INDEX job_forgotten ON job_data (id) WHERE is_forgotten;
CREATE INDEX event_by_job ON event_log (job) WHERE job IS NOT NULL;
CREATE INDEX event_overview ON event_log (seq) WHERE type = 'worker-overview';
