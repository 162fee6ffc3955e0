-- Events of GitHub repositories. Nothing here would keep a second application
-- out: events has no UNIQUE, repositories counts. Only the inbox stands between
-- a message that comes twice and an effect that is there twice.
CREATE TABLE events (
    source     TEXT NOT NULL,
    id         TEXT NOT NULL,
    type       TEXT NOT NULL,
    repository TEXT,
    actor      TEXT,
    action     TEXT,
    shape      TEXT NOT NULL CHECK (shape = 'object') -- anything else is no GitHub event
);

CREATE TABLE repositories (
    name          TEXT PRIMARY KEY,
    events        INTEGER NOT NULL,
    issues_open   INTEGER NOT NULL,
    last_event_at TEXT NOT NULL
);
