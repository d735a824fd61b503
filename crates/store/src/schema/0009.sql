-- Instances that got more than was asked for, because the one before them ran out of it; later ones get as much until there is
-- another row. Factors are in thousandths, memory in 1/10 000 MiB.
CREATE TABLE grown_data (
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    memory_permille INTEGER NOT NULL,
    time_permille INTEGER NOT NULL,
    memory_units INTEGER,
    time_limit_ms INTEGER,
    PRIMARY KEY (job, task, instance)
) WITHOUT ROWID;

CREATE VIEW grown AS
SELECT job, task, instance, memory_units / 10000.0 AS memory_mib, time_limit_ms / 1000.0 AS time_limit_s
FROM grown_data;
