package web

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHealthz(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.serve(Config{})
	l.set(func() {
		l.broker = Broker{}
		l.storage = errors.New("disk full")
	})
	resp, body := ask(t, c, http.MethodGet, "/healthz")
	assert.Equal(t, http.StatusOK, resp.StatusCode, "nothing that a restart would mend")
	assert.Equal(t, "ok\n", body)
	l.set(func() { l.alive = errors.New("the writer is stuck") })
	resp, body = ask(t, c, http.MethodGet, "/healthz")
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "not alive: the writer is stuck\n", body)
}

func TestReadyz(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	for name, tt := range map[string]struct {
		change func(*lab)
		code   int
		json   string
		text   string
	}{
		"ready": {
			func(*lab) {}, 200,
			`{"ready": true, "database": "ok", "broker": "ok", "consumers": {"orders": "consuming"}}`,
			"ready\ndatabase: ok\nbroker: ok\nconsumer orders: consuming\n",
		},
		"paused": {
			func(l *lab) {
				l.consumers = map[string]Consumer{"orders": {State: "paused"}, "bills": {State: "consuming"}}
			}, 200,
			`{"ready": true, "database": "ok", "broker": "ok", "consumers": {"orders": "paused", "bills": "consuming"}}`,
			"ready\ndatabase: ok\nbroker: ok\nconsumer bills: consuming\nconsumer orders: paused\n",
		},
		"offline": {
			func(l *lab) { l.broker = Broker{Since: since, Detail: "no route to host"} }, 503,
			`{"ready": false, "database": "ok", "broker": "offline since 2026-03-01T11:00:00Z: no route to host", "consumers": {"orders": "consuming"}}`,
			"not ready\ndatabase: ok\nbroker: offline since 2026-03-01T11:00:00Z: no route to host\nconsumer orders: consuming\n",
		},
		"never connected": {
			func(l *lab) { l.broker = Broker{} }, 503,
			`{"ready": false, "database": "ok", "broker": "offline", "consumers": {"orders": "consuming"}}`,
			"not ready\ndatabase: ok\nbroker: offline\nconsumer orders: consuming\n",
		},
		"credentials refused": {
			func(l *lab) { l.broker = Broker{Since: since, Err: errors.New("Authorization\nViolation <1>")} }, 503,
			`{"ready": false, "database": "ok", "broker": "broken: Authorization\nViolation <1>", "consumers": {"orders": "consuming"}}`,
			"not ready\ndatabase: ok\nbroker: broken: Authorization Violation <1>\nconsumer orders: consuming\n",
		},
		"no stream": {
			func(l *lab) { l.consumers = map[string]Consumer{"orders": {Err: errors.New("no stream ORDERS")}} }, 503,
			`{"ready": false, "database": "ok", "broker": "ok", "consumers": {"orders": "broken: no stream ORDERS"}}`,
			"not ready\ndatabase: ok\nbroker: ok\nconsumer orders: broken: no stream ORDERS\n",
		},
		"disk full": {
			func(l *lab) { l.storage = errors.New("disk full") }, 503,
			`{"ready": false, "database": "broken: disk full", "broker": "ok", "consumers": {"orders": "consuming"}}`,
			"not ready\ndatabase: broken: disk full\nbroker: ok\nconsumer orders: consuming\n",
		},
		"closed": {
			func(l *lab) { require.NoError(l.t, l.ib.Close()) }, 503,
			`{"ready": false, "database": "broken: inbox: reading stats: inbox: closed", "broker": "ok", "consumers": {"orders": "consuming"}}`,
			"not ready\ndatabase: broken: inbox: reading stats: inbox: closed\nbroker: ok\nconsumer orders: consuming\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			c := l.serve(Config{})
			tt.change(l)
			for _, accept := range []string{"X: y", "Accept: */*", "Accept: text/html,*/*;q=0.8"} {
				resp, body := ask(t, c, http.MethodGet, "/readyz", accept)
				assert.Equal(t, tt.code, resp.StatusCode)
				assert.Equal(t, "text/plain; charset=utf-8", resp.Header.Get("Content-Type"))
				assert.Equal(t, tt.text, body)
			}
			resp, body := ask(t, c, http.MethodGet, "/readyz", "Accept: application/json")
			assert.Equal(t, tt.code, resp.StatusCode)
			assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
			assert.Equal(t, "Accept", resp.Header.Get("Vary"))
			assert.JSONEq(t, tt.json, body)
		})
	}
}
