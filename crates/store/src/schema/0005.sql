-- What became of notifications of jobs, by their number in the job; `error` of those that were given up.
CREATE TABLE notification_data (
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,
    event TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    at_unix_ns INTEGER NOT NULL,
    error TEXT,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE VIEW notifications AS
SELECT job, number, event, CASE WHEN error IS NULL THEN 'delivered' ELSE 'given up' END AS state, attempts, at_unix_ns,
    error
FROM notification_data;
