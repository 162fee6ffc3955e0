package main

import (
	"iter"
	"maps"
	"slices"
)

// A chosenMessage is one that a change is about.
type chosenMessage struct {
	seq             int64
	source, id, key string
}

// A batch is what is changed in one transaction: ids of one source.
type batch struct {
	source string
	ids    []string
}

// changeBatch bounds a batch, so that the owner's messages are not kept waiting.
const changeBatch = 500

// batches are the messages in transactions. The owner may run what one made
// pending before the next begins. So of two messages with the same key the
// earlier is never in a later batch: where sources meet in a key, the batches
// before it are given out first.
func batches(messages []chosenMessage) iter.Seq[batch] {
	return func(yield func(batch) bool) {
		ids := map[string][]string{}    // by source
		sourceOf := map[string]string{} // of the key, in these ids
		flush := func() bool {
			for _, source := range slices.Sorted(maps.Keys(ids)) {
				if !yield(batch{source, ids[source]}) {
					return false
				}
			}
			clear(ids)
			clear(sourceOf)
			return true
		}
		for _, m := range messages {
			source, met := sourceOf[m.key]
			if m.key != "" && met && source != m.source || len(ids[m.source]) == changeBatch {
				if !flush() {
					return
				}
			}
			ids[m.source] = append(ids[m.source], m.id)
			sourceOf[m.key] = m.source
		}
		flush()
	}
}
