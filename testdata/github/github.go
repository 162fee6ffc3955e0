// Package github holds example GitHub webhook payloads for tests.
package github

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.json
var files embed.FS

// Event is one example webhook event.
type Event struct {
	Name    string // event name, such as "pull_request"
	Action  string // action, such as "opened"; "" when there is none
	File    string // file name of the payload
	Payload []byte // request body, as JSON
}

// Events returns all events, sorted by file name.
func Events() ([]Event, error) {
	entries, err := files.ReadDir(".") // sorted by name
	if err != nil {
		return nil, err
	}
	events := make([]Event, 0, len(entries))
	for _, entry := range entries {
		e := Event{File: entry.Name()}
		// <event>.<action>.<n>.json or <event>.<n>.json
		switch parts := strings.Split(e.File, "."); len(parts) {
		case 3:
			e.Name = parts[0]
		case 4:
			e.Name, e.Action = parts[0], parts[1]
		default:
			return nil, fmt.Errorf("github: bad file name %q", e.File)
		}
		if e.Payload, err = files.ReadFile(e.File); err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}
