-- Workers of each instance of a multi-node task, the root at position 0; written before it is handed out.
CREATE TABLE node_data (
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    position INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    variant INTEGER NOT NULL,
    PRIMARY KEY (job, task, instance, position)
) WITHOUT ROWID;

CREATE VIEW task_nodes AS
SELECT job, task, instance, position, worker FROM node_data;

-- As before; the start of a multi-node task names all its workers.
DROP VIEW events;
CREATE VIEW events AS
SELECT seq, at_unix_ns, type, job, NULL AS task, NULL AS instance, worker, NULL AS variant, data
FROM event_log
UNION ALL
SELECT start_seq, started_unix_ns, 'task-started', job, task, instance, worker, variant,
    (SELECT json_object('workers', json_group_array(n.worker ORDER BY n.position)) FROM node_data n
        WHERE n.job = t.job AND n.task = t.task AND n.instance = t.instance HAVING count(*) > 0)
FROM attempt_data t WHERE start_seq IS NOT NULL
UNION ALL
SELECT start_seq, started_unix_ns, 'task-started', job, task, instance, worker, variant,
    (SELECT json_object('workers', json_group_array(n.worker ORDER BY n.position)) FROM node_data n
        WHERE n.job = t.job AND n.task = t.task AND n.instance = t.instance HAVING count(*) > 0)
FROM task_data t WHERE start_seq IS NOT NULL
UNION ALL
SELECT end_seq, started_unix_ns + run_us * 1000,
    CASE state WHEN 2 THEN 'task-finished' ELSE 'task-failed' END,
    job, task, instance, worker, NULL,
    CASE WHEN state = 3 THEN json_object('outcome', outcome, 'message', message) END
FROM task_data WHERE end_seq IS NOT NULL;
