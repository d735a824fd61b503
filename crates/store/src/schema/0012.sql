-- Stretches of tasks that finished in a later instance than the first: all of a stretch in the same one. `check_sum` covers
-- `instance` where it is not 0.
ALTER TABLE stretch_data ADD COLUMN instance INTEGER NOT NULL DEFAULT 0;
DROP VIEW task_data;
-- Both, as rows. A byte is a number by its place among all bytes.
CREATE VIEW task_data AS
SELECT job, task, state, instance, crash_count, worker, variant, started_unix_ns, run_us, outcome, message, max_rss_kib,
    user_ms, system_ms, start_seq, end_seq, retry_count
FROM task_row_data
UNION ALL
SELECT s.job, s.first + p.place - 1, 2, s.instance, 0,
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
