package main

import (
	"context"
	"database/sql"
	"slices"

	"edge.example/inbox"
)

// A message is a row of the view inbox, its payload aside, with the names that
// its columns have there. What a message does not have is null.
type message struct {
	Consumer        string  `json:"consumer"`
	Source          string  `json:"source"`
	MessageID       string  `json:"message_id"`
	Status          string  `json:"status"`
	Type            *string `json:"type"`
	Subject         *string `json:"subject"`
	Key             *string `json:"key"`
	Attempts        int64   `json:"attempts"`
	ReceivedAt      string  `json:"received_at"`
	ProcessedAt     *string `json:"processed_at"`
	NextAttemptAt   *string `json:"next_attempt_at"`
	LastError       *string `json:"last_error"`
	Duplicates      int64   `json:"duplicates"`
	LastDuplicateAt *string `json:"last_duplicate_at"`
	PayloadHash     string  `json:"payload_hash"`
	PayloadBytes    *int64  `json:"payload_bytes"` // null when the payload was not kept
	Stream          *string `json:"stream"`
	StreamSeq       *int64  `json:"stream_seq"`
}

const messageColumns = `consumer, source, message_id, status, type, subject, key, attempts,
	       received_at, processed_at, next_attempt_at, last_error, duplicates, last_duplicate_at,
	       payload_hash, length(payload), stream, stream_seq`

func (m *message) scan(rows *sql.Rows) error {
	return rows.Scan(&m.Consumer, &m.Source, &m.MessageID, &m.Status, &m.Type, &m.Subject, &m.Key, &m.Attempts,
		&m.ReceivedAt, &m.ProcessedAt, &m.NextAttemptAt, &m.LastError, &m.Duplicates, &m.LastDuplicateAt,
		&m.PayloadHash, &m.PayloadBytes, &m.Stream, &m.StreamSeq)
}

// eachMessage calls fn for the messages that the filter chooses, as they are
// read: the newest first if there is a limit; without one in the order of the
// file, which is that of arrival, since SQLite would sort in memory.
func eachMessage(ctx context.Context, rx *inbox.Rx, f *filter, limit int, fn func(*message) error) error {
	condition, args := f.where()
	query := `SELECT ` + messageColumns + ` FROM inbox WHERE ` + condition
	if limit > 0 {
		// The view makes its times from numbers, for every row that is sorted:
		// to find first how far back the newest go takes half the time.
		query += ` AND received_at >= (
			SELECT min(received_at) FROM (
				SELECT received_at FROM inbox WHERE ` + condition + ` ORDER BY received_at DESC LIMIT ?))
			ORDER BY received_at DESC, stream_seq DESC LIMIT ?`
		args = slices.Concat(args, args, []any{limit, limit})
	}
	rows, err := rx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var m message
		if err := m.scan(rows); err != nil {
			return err
		}
		if err := fn(&m); err != nil {
			return err
		}
	}
	return rows.Err()
}

// or is the text, or what stands for it when there is none.
func or(text *string, otherwise string) string {
	if text == nil {
		return otherwise
	}
	return *text
}
