package main

// The parts of docs/benchmarks.md that are written by hand.

const docIntro = `# Benchmarks

*Made by ` + "`make bench`" + ` from what it measured (bench/results); do not edit.*

What the inbox costs beside what it could be replaced by, measured so that nobody has to
believe us: ` + "`make bench`" + ` measures again, ` + "`make bench BENCH=-quick`" + ` tries it out in a few minutes.

- All contenders of a case take turns in one run, round by round. Figures are medians of
  the rounds. The column *edge inbox is* is the median of the ratios within each round: a
  machine whose speed changes changes it for all. **Ratios are what counts**; messages a
  second are those of the machine below.
- The same messages, the same business INSERT for each, once: afterwards the effects are
  counted, and a run with another number fails.
- The same durability: WAL and ` + "`synchronous=FULL`" + `, so that what was acknowledged outlives a
  power cut. The same driver (modernc.org/sqlite), page cache, checkpoint size, and
  fdatasync.
- The inbox does more than the others in its transaction: it keeps payload, headers, hash
  and position of each message, for audit and replay, and counters. The hand-written
  consumer keeps the id. The bound *statements alone* keeps id, hash and payload.
`

const docPeers = `## The contenders, and how they are tuned

- **hand-written**: nats.go's ` + "`Consume`" + `, prepared statements, one transaction a message (its id
  into a table with a UNIQUE constraint, the business INSERT), then the acknowledgement.
  It does not retry with backoff, keeps no dead messages, and proves nothing. It asks for 500
  messages at a time, as ` + "`Consume`" + ` does, but at most 32 MB: of 500 messages of 256 KB the server
  ends the connection.
- **goqite**: one connection, as its README has it. It knows no identity: a table of seen ids
  stands before it, in the transaction of ` + "`SendTx`" + `. ` + "`ReceiveTx`" + `, the INSERT and ` + "`DeleteTx`" + ` share
  one transaction, so that nothing acts twice.
- **River** with riversqlite: jobs unique by the message's id (` + "`UniqueOpts.ByArgs`" + `), inserted by
  ` + "`InsertMany`" + `, completed in the business transaction (` + "`JobCompleteTx`" + `). One connection, as the
  driver's documentation advises; ` + "`FetchCooldown`" + `, by which "throughput is limited", at its
  least; 100 workers, as in its examples.
- **backlite**: tasks added in bulk. It removes a task in a transaction of its own after the
  processor returned, so the processor keeps the ids it has seen, in the transaction of the
  INSERT. Its dispatcher looks for idle workers every 100 ms, so it has 500 of them.
- The three queues take messages from JetStream in batches of 100, one transaction a batch,
  which is more than most programs would do for them.
- **Not measured**: BlockQueue (github.com/yudhasubki/blockqueue) and watermill-sqlite's modernc
  module: the Go module proxy that this was made with does not serve them.
`

const docTried = `## Tried, and did not help

What made it faster is in [ARCHITECTURE.md](../ARCHITECTURE.md#why-it-is-so). These did not, or cost more
than they gave; figures are of their time, compare none of them with the tables above.

- **WITHOUT ROWID** for the messages: half the speed of an ordinary rowid table with one
  UNIQUE index, since wide rows then move with the random ids.
- **synchronous=NORMAL**: cheaper, and in simulated power cuts it lost rows that were committed
  and acknowledged, 500 times of 500.
- **Groups of 4,000** instead of 2,000: nothing dependable. Nor does the writer wait for a
  group to fill: while one commits the next gathers.
- **A savepoint for each message**, always: two statements and page copies a message, for
  something that only a failing message needs. Large groups now run without, and again with
  them when a handler fails.
- **Numbered parameters** (` + "`?1`" + `) in the hot INSERT: the driver makes a string for each at every
  execution. They are anonymous now.
- **` + "`status IN (1, 2, 3)`" + ` in a partial index**: SQLite builds a table for the list at every
  insert, a fifth of the time. It is ` + "`status <= 3`" + ` now.
- **The caller's context on statements**: the driver starts a goroutine a statement for a
  context that can end (1 µs of 15), and a write that is interrupted loses the whole
  transaction. A watchdog interrupts what runs away instead.
- **The default checkpoint size** of 1,000 pages: a third of the throughput went into
  checkpoints. It is 8,000.
- **A large page cache**: 128 MiB of memory for pages was the default and made the usual messages
  slower than 32, 16 or 8 MiB do (1.18, 1.15, 1.19 times as fast, ten rounds by turns); payloads of
  4 KiB 1.15, 1.03, 1.04. Rows of the business that are changed at random do need it: of a
  million, 32 MiB were 0.94 and 16 MiB 0.80 times as fast as 128.
- **Other steps of the checkpoints beside the writer**: 2,000 pages gave 1.08, 1,000 gave 1.07 and
  4,000 gave 1.08; each halving writes 1.5 to 2.6 % more.
- **One closure less around each handler**: the compiler had it on the stack already.
- **Larger segments** of identities: 8,192 messages each made a bare loop of a million random
  ids run at 91,700 a second, 32,768 at 79,000, 65,536 at 66,500, 131,072 at 57,700, one
  index for all at 24,500. Smaller ones would need more filters.
- **Making the filter of a full segment from its rows**, in the background: eight allocations
  a message and a tenth of the throughput. It is filled while its segment is.
`
