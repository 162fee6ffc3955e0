package main

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStatus_SilentBroker: who is connected to and says nothing holds nobody up.
func TestStatus_SilentBroker(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	began := time.Now()
	stdout, stderr := operate(t, d.Inbox, exitOK, "status", "--nats", "nats://me:hush@"+silent.Addr().String())
	require.Less(t, time.Since(began), 3*statusConnect)
	require.Contains(t, stdout, "broker    not reachable: ")
	require.NotContains(t, stdout+stderr, "hush")
	require.Contains(t, stdout, "orders", "what the file says is shown")
}
