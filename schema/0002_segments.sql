-- The identities in segments of 8,192 messages in order of arrival. New ones
-- go to the pages of the newest segment alone, however many are kept: with ids
-- in random order one index over all of them is written all over.
-- Whether a message was seen is decided by this constraint within the segment,
-- and by looking into the earlier ones, which do not change any more.
DROP INDEX inbox_message_identity;
CREATE UNIQUE INDEX inbox_message_identity ON inbox_message (seq >> 13, message_id, consumer, source);

-- What the earlier segments may have: a Bloom filter for each (segments.go).
-- It saves looking, so it must not be wrong: crc is CRC-32C of
-- the segment, 8 bytes, and bits.
CREATE TABLE inbox_filter (
    segment INTEGER PRIMARY KEY,
    crc     INTEGER NOT NULL,
    bits    BLOB    NOT NULL
);
