-- Names that repeat (consumers, types, streams, sources) are stored once.
-- The kind keeps apart names that look alike: a CloudEvents source "orders"
-- is not the stream "orders" (see identity.go for the kinds of a source).
CREATE TABLE inbox_name (
    id   INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    name TEXT    NOT NULL,
    UNIQUE (kind, name)
);

-- One row for each message of each consumer, in arrival order.
-- Times are milliseconds since 1970, UTC.
--   status       1 pending, 2 processing, 3 dead, 4 completed, 5 discarded;
--                up to 3 it is open: something is still to be done
--   attempts     attempts made, those that count towards the limit
--   failures     failures in a row, those that count towards the delay
--   next_at      pending only: when the next attempt is due;
--                NULL while an earlier message of the same key is not completed
--   retry_delay  how long the wait for next_at was meant to be: a due time
--                further away than this was written by a clock since set back
--   stream       inbox_stream.id, NULL when the message came by Process or Receive
--   payload      NULL when it was dropped at completion; an empty one is x''
CREATE TABLE inbox_message (
    seq          INTEGER PRIMARY KEY,
    consumer     INTEGER NOT NULL,
    source       INTEGER NOT NULL,
    message_id   TEXT    NOT NULL,
    hash         BLOB    NOT NULL,
    status       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    failures     INTEGER NOT NULL,
    received_at  INTEGER NOT NULL,
    processed_at INTEGER,
    next_at      INTEGER,
    retry_delay  INTEGER,
    last_error   TEXT,
    type         INTEGER,
    subject      TEXT,
    key          TEXT,
    stream       INTEGER,
    stream_seq   INTEGER,
    headers      TEXT,
    payload      BLOB
);

-- The identity. Whether a message was seen is decided by this constraint alone.
CREATE UNIQUE INDEX inbox_message_identity ON inbox_message (consumer, source, message_id);

-- What the poller takes next.
CREATE INDEX inbox_message_due ON inbox_message (consumer, next_at, seq, retry_delay)
    WHERE status = 1 AND next_at IS NOT NULL;

-- What a later message of the same key must wait for. (Not IN (1, 2, 3):
-- SQLite builds a table for the list at every insert, a fifth of its time.)
CREATE INDEX inbox_message_key ON inbox_message (consumer, key, seq, status)
    WHERE status <= 3 AND key IS NOT NULL;

-- What is not done: for operators, and for the age of the oldest pending row.
CREATE INDEX inbox_message_open ON inbox_message (status, consumer, seq)
    WHERE status <= 3;

-- The same identity with another content: the refused versions.
CREATE TABLE inbox_conflict (
    id         INTEGER PRIMARY KEY,
    message    INTEGER NOT NULL REFERENCES inbox_message (seq),
    hash       BLOB    NOT NULL,
    first_seen INTEGER NOT NULL,
    last_seen  INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    payload    BLOB    NOT NULL,
    UNIQUE (message, hash)
);

-- The attempts that failed, the last 50 of each message.
CREATE TABLE inbox_attempt (
    id      INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES inbox_message (seq),
    attempt INTEGER NOT NULL, -- begins again at 1 after Retry and Replay
    at      INTEGER NOT NULL,
    error   TEXT    NOT NULL
);
CREATE INDEX inbox_attempt_message ON inbox_attempt (message, id);

-- How often a message came again, and when the last time.
CREATE TABLE inbox_duplicate (
    message INTEGER PRIMARY KEY REFERENCES inbox_message (seq),
    count   INTEGER NOT NULL,
    last_at INTEGER NOT NULL
);

-- One row for each consumer: its switch, its rows by status, and what happened so far.
CREATE TABLE inbox_consumer (
    consumer   INTEGER PRIMARY KEY,
    paused     INTEGER NOT NULL DEFAULT 0,
    pending    INTEGER NOT NULL DEFAULT 0,
    processing INTEGER NOT NULL DEFAULT 0,
    completed  INTEGER NOT NULL DEFAULT 0,
    dead       INTEGER NOT NULL DEFAULT 0,
    discarded  INTEGER NOT NULL DEFAULT 0,
    applied    INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    conflicts  INTEGER NOT NULL DEFAULT 0,
    retries    INTEGER NOT NULL DEFAULT 0,
    failures   INTEGER NOT NULL DEFAULT 0
);

-- One row for each life of a stream that a consumer met. A stream deleted and
-- made anew has another created time; a stream that lost its tail and gave the
-- same sequences to other messages gets another epoch.
--   tail_seq, tail_time  the highest sequence accounted for, and when the
--                        broker stored it: how a lost tail is noticed
--   skipped              sequences that were never ours: filtered out, or
--                        removed from the stream before they were delivered
--   duplicates, conflicts  sequences whose message was known by another one
CREATE TABLE inbox_stream (
    id         INTEGER PRIMARY KEY,
    consumer   INTEGER NOT NULL,
    stream     INTEGER NOT NULL,
    created    INTEGER NOT NULL, -- nanoseconds since 1970, as the broker says
    epoch      INTEGER NOT NULL,
    durable    TEXT    NOT NULL,
    tail_seq   INTEGER NOT NULL DEFAULT 0,
    tail_time  INTEGER NOT NULL DEFAULT 0,
    skipped    INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    conflicts  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (consumer, stream, created, epoch)
);

-- The sequences accounted for, as intervals that neither touch nor overlap.
CREATE TABLE inbox_range (
    stream    INTEGER NOT NULL REFERENCES inbox_stream (id),
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    PRIMARY KEY (stream, first_seq)
) WITHOUT ROWID;

CREATE VIEW inbox AS
SELECT c.name AS consumer,
       CASE s.kind WHEN 11 THEN 'nats-msg-id:' || s.name
                   WHEN 12 THEN 'header:' || s.name
                   WHEN 13 THEN 'json:' || s.name
                   WHEN 14 THEN 'content:' || s.name
                   WHEN 15 THEN 'sequence:' || s.name
                   ELSE s.name END AS source,
       m.message_id,
       t.name AS type,
       m.subject,
       m.key,
       CASE m.status WHEN 1 THEN 'pending'
                     WHEN 2 THEN 'processing'
                     WHEN 3 THEN 'dead'
                     WHEN 4 THEN 'completed'
                     WHEN 5 THEN 'discarded' END AS status,
       m.attempts,
       strftime('%Y-%m-%dT%H:%M:%S', m.received_at / 1000, 'unixepoch')
           || printf('.%03dZ', m.received_at % 1000) AS received_at,
       strftime('%Y-%m-%dT%H:%M:%S', m.processed_at / 1000, 'unixepoch')
           || printf('.%03dZ', m.processed_at % 1000) AS processed_at,
       strftime('%Y-%m-%dT%H:%M:%S', m.next_at / 1000, 'unixepoch')
           || printf('.%03dZ', m.next_at % 1000) AS next_attempt_at,
       m.last_error,
       lower(hex(m.hash)) AS payload_hash,
       m.payload,
       n.name AS stream,
       m.stream_seq,
       coalesce(d.count, 0) AS duplicates,
       strftime('%Y-%m-%dT%H:%M:%S', d.last_at / 1000, 'unixepoch')
           || printf('.%03dZ', d.last_at % 1000) AS last_duplicate_at,
       m.seq
  FROM inbox_message m
  JOIN inbox_name c ON c.id = m.consumer
  JOIN inbox_name s ON s.id = m.source
  LEFT JOIN inbox_duplicate d ON d.message = m.seq
  LEFT JOIN inbox_name t ON t.id = m.type
  LEFT JOIN inbox_stream i ON i.id = m.stream
  LEFT JOIN inbox_name n ON n.id = i.stream;

CREATE VIEW inbox_conflicts AS
SELECT c.name AS consumer,
       CASE s.kind WHEN 11 THEN 'nats-msg-id:' || s.name
                   WHEN 12 THEN 'header:' || s.name
                   WHEN 13 THEN 'json:' || s.name
                   WHEN 14 THEN 'content:' || s.name
                   WHEN 15 THEN 'sequence:' || s.name
                   ELSE s.name END AS source,
       m.message_id,
       lower(hex(m.hash)) AS stored_hash,
       lower(hex(x.hash)) AS refused_hash,
       x.payload AS refused_payload,
       strftime('%Y-%m-%dT%H:%M:%S', x.first_seen / 1000, 'unixepoch')
           || printf('.%03dZ', x.first_seen % 1000) AS first_seen,
       strftime('%Y-%m-%dT%H:%M:%S', x.last_seen / 1000, 'unixepoch')
           || printf('.%03dZ', x.last_seen % 1000) AS last_seen,
       x.count
  FROM inbox_conflict x
  JOIN inbox_message m ON m.seq = x.message
  JOIN inbox_name c ON c.id = m.consumer
  JOIN inbox_name s ON s.id = m.source;

CREATE VIEW inbox_attempts AS
SELECT c.name AS consumer,
       CASE s.kind WHEN 11 THEN 'nats-msg-id:' || s.name
                   WHEN 12 THEN 'header:' || s.name
                   WHEN 13 THEN 'json:' || s.name
                   WHEN 14 THEN 'content:' || s.name
                   WHEN 15 THEN 'sequence:' || s.name
                   ELSE s.name END AS source,
       m.message_id,
       a.attempt,
       strftime('%Y-%m-%dT%H:%M:%S', a.at / 1000, 'unixepoch')
           || printf('.%03dZ', a.at % 1000) AS at,
       a.error
  FROM inbox_attempt a
  JOIN inbox_message m ON m.seq = a.message
  JOIN inbox_name c ON c.id = m.consumer
  JOIN inbox_name s ON s.id = m.source;

CREATE VIEW inbox_streams AS
SELECT c.name AS consumer,
       n.name AS stream,
       strftime('%Y-%m-%dT%H:%M:%S', i.created / 1000000000, 'unixepoch')
           || printf('.%09dZ', i.created % 1000000000) AS created,
       i.epoch,
       r.first_seq,
       r.last_seq
  FROM inbox_range r
  JOIN inbox_stream i ON i.id = r.stream
  JOIN inbox_name c ON c.id = i.consumer
  JOIN inbox_name n ON n.id = i.stream;
