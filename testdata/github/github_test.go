package github

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestEvents(t *testing.T) {
	events, err := Events()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(events); n < 1 || n > 60 {
		t.Errorf("got %d events, want 1 to 60", n)
	}
	if !slices.IsSortedFunc(events, func(a, b Event) int { return strings.Compare(a.File, b.File) }) {
		t.Error("events are not sorted by file name")
	}

	names := map[string]bool{}
	for _, e := range events {
		if e.Name == "" {
			t.Errorf("%s: no event name", e.File)
		}
		names[e.Name] = true

		var payload struct{ Action string }
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			t.Errorf("%s: %v", e.File, err)
			continue
		}
		if e.Action != payload.Action {
			t.Errorf("%s: action %q, but the payload says %q", e.File, e.Action, payload.Action)
		}
	}
	if len(names) < 20 {
		t.Errorf("got %d event names, want at least 20", len(names))
	}
}
