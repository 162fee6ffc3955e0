-- What devices measure: the last value of each, and what became of each hour.
CREATE TABLE device_last (
    device      TEXT NOT NULL,
    metric      TEXT NOT NULL,
    value       REAL NOT NULL,
    measured_at TEXT NOT NULL,
    PRIMARY KEY (device, metric)
) STRICT, WITHOUT ROWID;

CREATE TABLE device_hourly (
    device TEXT    NOT NULL,
    metric TEXT    NOT NULL,
    hour   TEXT    NOT NULL, -- 2026-01-31T12
    count  INTEGER NOT NULL,
    sum    REAL    NOT NULL,
    min    REAL    NOT NULL,
    max    REAL    NOT NULL,
    PRIMARY KEY (device, metric, hour)
) STRICT, WITHOUT ROWID;
