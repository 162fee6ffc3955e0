package web

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// healthz answers 200 while there is no reason to restart the process. Nobody
// needs a token to ask, so only those who have it are told the reason.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	err := s.src.Alive()
	switch {
	case err == nil:
		writeText(w, http.StatusOK, "ok\n")
	case s.allowed(r):
		writeText(w, http.StatusServiceUnavailable, "not alive: "+oneLine(err.Error())+"\n")
	default:
		writeText(w, http.StatusServiceUnavailable, "not alive\n")
	}
}

// readyz answers 200 while the database and the broker can be used, and says
// which cannot.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ready := s.src.readiness(r.Context())
	code := http.StatusOK
	if !ready.Ready {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Vary", "Accept")
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		writeJSON(w, code, ready)
		return
	}
	writeText(w, code, ready.text())
}

// readiness is the JSON of /readyz.
type readiness struct {
	Ready     bool              `json:"ready"`
	Database  string            `json:"database"`
	Broker    string            `json:"broker"`
	Consumers map[string]string `json:"consumers"`
}

// usable is how the database and the broker are when nothing is wrong.
const usable = "ok"

// readiness asks for everything, also when something is already known to be
// wrong. A paused consumer is ready: it is as its operator wants it.
func (src *Source) readiness(ctx context.Context) readiness {
	r := readiness{Database: src.database(ctx), Broker: src.Broker().text(), Consumers: map[string]string{}}
	r.Ready = r.Database == usable && r.Broker == usable
	for name, c := range src.Consumers() {
		r.Consumers[name] = c.State
		if c.Err != nil {
			r.Ready = false
			r.Consumers[name] = "broken: " + c.Err.Error()
		}
	}
	return r
}

// database is "ok", or what is wrong with it.
func (src *Source) database(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	err := src.Storage()
	if err == nil {
		_, err = src.Stats(ctx)
	}
	if err != nil {
		return "broken: " + err.Error()
	}
	return usable
}

// text is "ok", or whether the broker is away or needs somebody.
func (b Broker) text() string {
	switch {
	case b.Err != nil:
		return "broken: " + b.Err.Error()
	case b.Connected:
		return usable
	}
	text := "offline"
	if !b.Since.IsZero() {
		text += " since " + b.Since.UTC().Format(time.RFC3339)
	}
	if b.Detail != "" {
		text += ": " + b.Detail
	}
	return text
}

func (r readiness) text() string {
	var b strings.Builder
	b.WriteString(map[bool]string{true: "ready\n", false: "not ready\n"}[r.Ready])
	fmt.Fprintf(&b, "database: %s\nbroker: %s\n", oneLine(r.Database), oneLine(r.Broker))
	for _, name := range slices.Sorted(maps.Keys(r.Consumers)) {
		fmt.Fprintf(&b, "consumer %s: %s\n", oneLine(name), oneLine(r.Consumers[name]))
	}
	return b.String()
}

// oneLine is for errors of several lines in a text with a line for each thing.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // who asked may be gone
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}
