package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oklog/ulid/v2"
)

// Events are what the stream holds: ids, a subject for each, one body.
type events struct {
	ids      []string
	subjects []string // nil: "bench.order" for all
	body     []byte
	unique   int // different ids among them
}

// n is how many they are.
func (e *events) n() int { return len(e.ids) }

// different is how many effects the first n have. Repetitions come last.
func (e *events) different(n int) int { return min(n, e.unique) }

func (e *events) subject(i int) string {
	if e.subjects == nil {
		return "bench.order"
	}
	return e.subjects[i]
}

// payload is the size of a body when the case does not say otherwise.
const payload = 256

// makeEvents makes n events with ids of a kind: random (UUIDv4, the worst order
// for an index), ulid (ordered by time) or sequential. repeated of them, from 0
// to below 1, repeat an earlier one. The same call makes the same events.
func makeEvents(n int, kind string, size int, repeated float64) *events {
	rnd := rand.New(rand.NewPCG(1, 2))
	e := &events{ids: make([]string, n), body: make([]byte, size), unique: max(n-int(float64(n)*repeated), 1)}
	for i := range e.body {
		e.body[i] = byte('a' + rnd.IntN(26))
	}
	for i := range e.ids {
		e.ids[i] = makeID(rnd, kind, i)
		if i >= e.unique {
			e.ids[i] = e.ids[i%e.unique]
		}
	}
	return e
}

func makeID(rnd *rand.Rand, kind string, i int) string {
	hi, lo := rnd.Uint64(), rnd.Uint64()
	switch kind {
	case "random":
		return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xfff, lo>>48&0x3fff|0x8000, lo&0xffffffffffff)
	case "ulid":
		var id ulid.ULID
		must(id.SetTime(ulid.Timestamp(time.Unix(1_800_000_000, 0)) + uint64(i)/10)) // ten in a millisecond
		must(id.SetEntropy(fmt.Appendf(nil, "%02x%08x", i%10, uint32(hi))))
		return id.String()
	case "sequential":
		return fmt.Sprintf("order-%012d", i)
	}
	must(fmt.Errorf("no ids of kind %q", kind))
	return ""
}
