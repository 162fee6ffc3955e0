package web

import (
	"context"
	"time"

	"edge.example/inbox"
)

// Source is where the server reads how the daemon stands. All functions must
// be set, safe for concurrent use, and quick, Stats apart.
type Source struct {
	// Stats is inbox.Inbox.Stats.
	Stats func(context.Context) (inbox.Stats, error)
	// Alive says why the process should be restarted: a writer that makes no
	// progress, say. A full disk or a broker that is away is no reason.
	Alive func() error
	// Storage says why nothing can be written now, or not yet.
	Storage func() error
	// DiskFree is the space left on the disk of the database.
	DiskFree func() (bytes uint64, err error)
	// Broker says how the connection stands.
	Broker func() Broker
	// Consumers are the consumers of the configuration, by name.
	Consumers func() map[string]Consumer
	// Alerts counts the alerts, if it is not nil.
	Alerts *Alerts

	// Version is the program's.
	Version string
	// Versions is the JSON of /version.
	Versions any
}

// Broker is how the connection to the broker stands. Being offline is
// ordinary here and mends itself; Err is for what somebody has to mend.
type Broker struct {
	Connected bool
	Since     time.Time // of Connected; may be zero
	Detail    string    // why it is offline; for people
	Err       error     // why it cannot be used: no JetStream, refused credentials
}

// Consumer is how one consumer stands.
type Consumer struct {
	State string // a word for people: "consuming", "paused"
	Err   error  // why it cannot consume: its stream is not there
}

// Limits for one look at the database.
const (
	readyLimit  = 2 * time.Second
	scrapeLimit = 5 * time.Second
)
