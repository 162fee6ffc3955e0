package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"edge.example/inbox/cmd/edge-consumer/internal/web"
)

// daemon asks the running edge-consumer how it is.
func (x *examination) daemon(ctx context.Context) {
	const check = "daemon"
	if x.cfg.HTTP.Off() {
		x.add(levelSkipped, check, "http.listen is off: it cannot be asked", "")
		return
	}
	code, body, err := x.get(ctx, "/healthz")
	switch {
	case err != nil:
		x.add(levelCritical, check, oneLine(err), "start it: edge-consumer run -c FILE, or systemctl start edge-consumer")
		return
	case code != 200:
		x.add(levelCritical, check, fmt.Sprintf("it runs, and says %d: %s", code, flat(body)), "start it anew; its log says what it waited for")
		return
	}
	code, body, err = x.get(ctx, "/readyz")
	switch {
	case err != nil:
		x.add(levelWarning, check, "it runs, and does not say whether it is ready: "+oneLine(err), "try again with a longer --timeout")
	case code == 200:
		x.add(levelOK, check, "it runs and is ready", "")
	case broken(body):
		x.add(levelCritical, check, "it runs, and is not ready: "+flat(body), "see its log, and the other lines here")
	default: // offline: that mends itself
		x.add(levelWarning, check, "it runs, and is not ready: "+flat(body), "nothing, if the network is away: it consumes as soon as it can")
	}
}

func (x *examination) get(ctx context.Context, path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.limit)
	defer cancel()
	return web.Get(ctx, x.cfg.HTTP, path)
}

// broken reports whether a line of /readyz names what somebody has to mend.
func broken(body string) bool {
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if _, state, ok := strings.Cut(lines.Text(), ": "); ok && strings.HasPrefix(state, "broken") {
			return true
		}
	}
	return false
}

// flat is a text of several lines in one.
func flat(s string) string { return strings.Join(strings.Split(strings.TrimSpace(s), "\n"), "; ") }
