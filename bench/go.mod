module edge.example/inbox/bench

go 1.26.0

require (
	edge.example/inbox v0.0.0
	github.com/mikestefanello/backlite v0.6.0
	github.com/nats-io/nats-server/v2 v2.15.2
	github.com/nats-io/nats.go v1.55.0
	github.com/oklog/ulid/v2 v2.1.2
	github.com/riverqueue/river v0.51.2
	github.com/riverqueue/river/riverdriver/riversqlite v0.51.2
	github.com/riverqueue/river/rivertype v0.51.2
	maragu.dev/goqite v0.4.0
	modernc.org/libc v1.80.1
	modernc.org/sqlite v1.62.0
)

replace edge.example/inbox => ../
