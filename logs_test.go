package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLog_Throttled: a handler that always fails does not fill the disk with
// its log, and no payload ever gets there.
func TestLog_Throttled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLab(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&out, nil)) })
		c := l.consumer("c", func(ctx context.Context, tx *Tx, m *Message) error { return errors.New("boom") }, nil)
		process := func(id string) {
			_, err := c.Process(ctxBG, Message{ID: id, Payload: []byte("SECRET"), Headers: Header{"h": {"SECRET"}}})
			require.NoError(t, err)
		}
		for i := range 500 {
			process(fmt.Sprint(i))
		}
		pass(2 * time.Minute)
		process("later")
		l.close()
		assert.Equal(t, throttleLines+1, strings.Count(out.String(), "attempt failed"))
		assert.Contains(t, out.String(), "left_out=490")
		assert.NotContains(t, out.String(), "SECRET")
		l.open()
	})
}
