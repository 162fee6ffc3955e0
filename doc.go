// Package inbox is an embedded transactional inbox: each message from a NATS
// JetStream stream (or from anywhere else) takes effect exactly once in a
// SQLite file.
//
// Brokers deliver at least once. The inbox inserts each message and applies
// its business change in one SQLite transaction, and acknowledges only after
// that transaction is on disk; a redelivery then finds its row. So from the
// moment a message is delivered it takes effect exactly once, or it is
// visibly waiting, or it is visibly dead: through crashes, power cuts, full
// disks, a broker that loses its tail, and clocks that jump.
//
// Open a file, register a [Handler] as a [Consumer], and subscribe:
//
//	ib, err := inbox.Open(ctx, "edge.db", nil)
//	orders, err := ib.Consumer("orders", func(ctx context.Context, tx *inbox.Tx, m *inbox.Message) error {
//		_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, body) VALUES (?, ?)`, m.ID, m.Payload)
//		return err
//	}, nil)
//	go ib.Run(ctx)                                      // retries what failed
//	err = orders.Subscribe(ctx, js, "ORDERS", nil)      // until ctx ends
//
// A handler changes only the database, only through its [Tx]: that is what
// makes its effect exactly once. The same file holds the program's own tables;
// [Inbox.Update] and [Inbox.View] write and read them, in turn with the messages.
//
// Messages that come another way (a webhook, a file) go through
// [Consumer.Process], which applies them before it returns, or
// [Consumer.Receive], which stores them for [Inbox.Run] to apply.
//
// What went wrong stays in sight: the views inbox, inbox_attempts,
// inbox_conflicts and inbox_streams are the documented contract for people and scripts, and
// [Inbox.Audit] proves, sequence by sequence, that nothing is missing.
package inbox
