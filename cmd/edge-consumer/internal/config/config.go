// Package config reads the configuration file of edge-consumer: YAML, strict,
// with errors that show the place.
package config

import (
	"time"

	"edge.example/inbox/cmd/edge-consumer/internal/natsconn"
	"edge.example/inbox/cmd/edge-consumer/internal/web"
)

// Config is the whole file. Relative paths in it are relative to its folder.
// What is tagged reload:"live" changes while the gateway runs; the rest, but
// for consumers and their handlers, at its next start.
type Config struct {
	Database Database        `yaml:"database"`
	NATS     natsconn.Config `yaml:"nats"`
	// Migrations is a folder of numbered .sql files that make the business
	// tables.
	Migrations string `yaml:"migrations" reload:"live"`
	// Handlers are SQL handlers that consumers name.
	Handlers  map[string]Handler `yaml:"handlers"`
	Consumers []Consumer         `yaml:"consumers"`
	// HTTP is the server for health and metrics; see web.Config.
	HTTP web.Config `yaml:"http"`
	Log  Log        `yaml:"log"`
	// ShutdownTimeout bounds a clean stop. Default 25 s.
	ShutdownTimeout Duration `yaml:"shutdown_timeout"`

	file *file
}

// Database is the SQLite file.
type Database struct {
	Path string `yaml:"path"`
	// CacheSize is the memory of SQLite's page cache. Default 24 MiB.
	CacheSize Size `yaml:"cache_size"`
	// StatementTimeout bounds a statement that runs away. Default 30 s.
	StatementTimeout Duration `yaml:"statement_timeout"`
	// MinFree stops consuming while the disk has less space than this; what
	// waits stays on the broker. Default 64 MiB, 0 for no limit.
	MinFree *Size `yaml:"min_free" reload:"live"`
	// MaxSize stops consuming while the file and its log are larger. Default:
	// no limit.
	MaxSize Size `yaml:"max_size" reload:"live"`
}

// Consumer is one consumer of one stream.
type Consumer struct {
	Name   string `yaml:"name"`
	Stream string `yaml:"stream"`
	// CreateStream makes the stream when it is not there.
	CreateStream *Stream `yaml:"create_stream"`
	// Subjects filter the stream. Default: all of it.
	Subjects []string `yaml:"subjects"`
	// Durable names the durable consumer on the broker. Default: Name.
	Durable string `yaml:"durable"`
	// Start says where a durable consumer that is made new begins, when this
	// database never met the stream. Default: all.
	Start Start `yaml:"start"`

	Identity Identity `yaml:"identity"`
	// Key orders: messages with the same one take effect in their order.
	Key Key `yaml:"key"`
	// Schema is the path of a JSON Schema for the payload. A message that does
	// not fit is dead at once.
	Schema string `yaml:"schema"`
	Retry  Retry  `yaml:"retry"`
	// DeadPasses lets later messages of a key pass a dead one.
	DeadPasses bool `yaml:"dead_passes"`
	// DropPayload drops payload and headers when a message completes.
	DropPayload bool `yaml:"drop_payload"`
	// CanonicalJSON compares payloads as JSON values, not as bytes.
	CanonicalJSON bool `yaml:"canonical_json"`
	// Conflicts is "keep" (default: stored, counted, alerted) or "ignore".
	Conflicts string `yaml:"conflicts"`
	// StoreFirst stores messages at once and applies them afterwards.
	StoreFirst bool `yaml:"store_first"`

	AckWait       Duration `yaml:"ack_wait"`
	Prefetch      int      `yaml:"prefetch"`
	PrefetchBytes Size     `yaml:"prefetch_bytes"`

	// Handler names one of Handlers; or SQL and PermanentIf are here.
	Handler     string      `yaml:"handler"`
	SQL         []Statement `yaml:"sql"`
	PermanentIf []string    `yaml:"permanent_if"`
}

// Stream is what a stream is made with.
type Stream struct {
	Subjects   []string `yaml:"subjects"`
	Storage    string   `yaml:"storage"` // file (default) or memory
	Replicas   int      `yaml:"replicas"`
	MaxAge     Duration `yaml:"max_age"`
	MaxBytes   Size     `yaml:"max_bytes"`
	MaxMsgs    int64    `yaml:"max_msgs"`
	MaxMsgSize Size     `yaml:"max_msg_size"`
	Discard    string   `yaml:"discard"`    // old (default) or new
	Duplicates Duration `yaml:"duplicates"` // window of the broker's own deduplication
}

// Identity says how messages are told apart, before or after what NATS and
// CloudEvents say; see the library's Identity.
type Identity struct {
	Header  string `yaml:"header"`
	JSON    string `yaml:"json"`
	Content bool   `yaml:"content"`
}

// Key says where the ordering key is: one of the two.
type Key struct {
	Header string `yaml:"header"`
	JSON   string `yaml:"json"`
}

// Retry is the schedule after failures.
type Retry struct {
	Initial    Duration `yaml:"initial"`
	Multiplier float64  `yaml:"multiplier"`
	Max        Duration `yaml:"max"`
	Jitter     *float64 `yaml:"jitter"`
	Attempts   int      `yaml:"attempts"` // -1: no limit
}

// Handler is a SQL handler.
type Handler struct {
	SQL         []Statement `yaml:"sql"`
	PermanentIf []string    `yaml:"permanent_if"`
}

// Statement is one statement; it may also be written as a string.
type Statement struct {
	SQL         string   `yaml:"sql"`
	When        string   `yaml:"when"`
	ExpectRows  *int64   `yaml:"expect_rows"`
	PermanentIf []string `yaml:"permanent_if"`
}

// Log is the log on stderr.
type Log struct {
	Level  string `yaml:"level" reload:"live"` // debug, info (default), warn or error
	Format string `yaml:"format"`              // text or json; default: text on a terminal
}

// Defaults of what the library has no default for.
const (
	DefaultMinFree         = 64 << 20
	DefaultShutdownTimeout = 25 * time.Second
)

func (c *Config) setDefaults() {
	if c.HTTP.Listen == "" {
		c.HTTP.Listen = web.DefaultListen
	}
	if c.Database.MinFree == nil {
		free := Size(DefaultMinFree)
		c.Database.MinFree = &free
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = Duration(DefaultShutdownTimeout)
	}
	if c.Log.Level == "" {
		c.Log.Level = "info"
	}
	for i := range c.Consumers {
		if k := &c.Consumers[i]; k.Conflicts == "" {
			k.Conflicts = "keep"
		}
	}
}
