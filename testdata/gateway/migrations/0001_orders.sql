-- Orders of the branch's shop, and its stock.
CREATE TABLE orders (
    id         TEXT PRIMARY KEY,
    customer   TEXT    NOT NULL,
    status     TEXT    NOT NULL CHECK (status IN ('placed', 'cancelled', 'shipped')),
    placed_at  TEXT    NOT NULL,
    changed_at TEXT    NOT NULL,
    total      INTEGER NOT NULL CHECK (total >= 0) -- cents
) STRICT;

CREATE TABLE order_lines (
    order_id TEXT    NOT NULL REFERENCES orders (id),
    line     INTEGER NOT NULL,
    sku      TEXT    NOT NULL,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    price    INTEGER NOT NULL, -- cents
    PRIMARY KEY (order_id, line)
) STRICT, WITHOUT ROWID;

CREATE TABLE inventory (
    sku      TEXT PRIMARY KEY,
    reserved INTEGER NOT NULL DEFAULT 0,
    shipped  INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
