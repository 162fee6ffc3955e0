CREATE TABLE orders (
    id       TEXT PRIMARY KEY,
    customer TEXT    NOT NULL,
    total    INTEGER NOT NULL CHECK (total >= 0), -- cents
    status   TEXT    NOT NULL
) STRICT;
