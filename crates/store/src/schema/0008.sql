-- What calls came to: bytes that only the caller understands. One counts if its instance and worker are those of the end
-- of its task.
CREATE TABLE value_data (
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, task, instance, worker)
) WITHOUT ROWID;
