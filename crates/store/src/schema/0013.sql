-- GPUs of instances over time, with the points of `curve_data`. A byte is 0 where nothing is known, otherwise one more than the
-- share of the peak, in 254ths.
CREATE TABLE gpu_curve_data (
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    busy_peak_milli INTEGER NOT NULL,
    memory_peak_kib INTEGER NOT NULL,
    asked_units INTEGER NOT NULL,
    memory_of_devices_kib INTEGER NOT NULL,
    is_memory_of_devices INTEGER NOT NULL,
    busy BLOB NOT NULL,
    memory BLOB NOT NULL,
    PRIMARY KEY (job, task, instance, worker)
) WITHOUT ROWID;

DROP VIEW usage;
CREATE VIEW usage AS
SELECT c.job AS job, c.task AS task, c.instance AS instance, c.worker AS worker,
    p.place * c.spacing_ms / 1000.0 AS until_s,
    c.memory_peak_kib * (instr(b.bytes, substr(c.memory, p.place, 1)) - 1) / 255 / 1024.0 AS memory_mib,
    c.cpu_peak_milli * (instr(b.bytes, substr(c.cpu, p.place, 1)) - 1) / 255 / 1000.0 AS cpus,
    CASE WHEN c.memory_asked_kib > 0 THEN c.memory_asked_kib / 1024.0 END AS memory_asked_mib,
    CASE WHEN c.is_memory_limit THEN c.memory_asked_kib / 1024.0 END AS memory_limit_mib,
    CASE WHEN c.cpu_asked_units > 0 THEN c.cpu_asked_units / 10000.0 END AS cpus_asked,
    CASE WHEN instr(b.bytes, substr(g.busy, p.place, 1)) > 1
        THEN g.busy_peak_milli * (instr(b.bytes, substr(g.busy, p.place, 1)) - 2) / 254 / 1000.0 END AS gpus,
    CASE WHEN instr(b.bytes, substr(g.memory, p.place, 1)) > 1
        THEN g.memory_peak_kib * (instr(b.bytes, substr(g.memory, p.place, 1)) - 2) / 254 / 1024.0 END AS gpu_memory_mib,
    g.asked_units / 10000.0 AS gpus_asked,
    CASE WHEN g.memory_of_devices_kib > 0 THEN g.memory_of_devices_kib / 1024.0 END AS gpu_memory_of_devices_mib,
    CASE g.is_memory_of_devices WHEN 0 THEN 'processes' WHEN 1 THEN 'devices' END AS gpu_memory_of
FROM (SELECT X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F404142434445464748494A4B4C4D4E4F505152535455565758595A5B5C5D5E5F606162636465666768696A6B6C6D6E6F707172737475767778797A7B7C7D7E7F808182838485868788898A8B8C8D8E8F909192939495969798999A9B9C9D9E9FA0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBFC0C1C2C3C4C5C6C7C8C9CACBCCCDCECFD0D1D2D3D4D5D6D7D8D9DADBDCDDDEDFE0E1E2E3E4E5E6E7E8E9EAEBECEDEEEFF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF' AS bytes) b
CROSS JOIN curve_data c CROSS JOIN place_data p ON p.place <= length(c.memory)
LEFT JOIN gpu_curve_data g ON g.job = c.job AND g.task = c.task AND g.instance = c.instance AND g.worker = c.worker;
