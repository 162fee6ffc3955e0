// Package sdnotify tells systemd how the service stands. Its functions do
// nothing, and return nil, when the process was not started by systemd with
// Type=notify.
package sdnotify

import (
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Ready says that the service has started, or that Reloading has ended.
// status is for people; "" leaves the one before.
func Ready(status string) error { return send(daemon.SdNotifyReady, status) }

// Reloading says that the configuration is being read again. Ready must
// follow, if only to say that the old configuration stays.
func Reloading() error {
	// systemd matches the reload it asked for by this time.
	return send(daemon.SdNotifyReloading+"\n"+strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"), "")
}

// Stopping says that the service is on its way down.
func Stopping(status string) error { return send(daemon.SdNotifyStopping, status) }

// Status sets the line that systemctl status shows.
func Status(status string) error { return send("", status) }

// Alive puts the watchdog off: call it more often than every WatchdogInterval,
// and only while the service does its work.
func Alive() error { return send(daemon.SdNotifyWatchdog, "") }

// WatchdogInterval is how often to call Alive: half of the unit's WatchdogSec.
// Zero means never, for there is no watchdog.
func WatchdogInterval() (time.Duration, error) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0, fmt.Errorf("the watchdog of systemd: %w", err)
	}
	return limit / 2, nil
}

// send sends the assignments in one datagram.
func send(state, status string) error {
	if status != "" {
		// A line break would begin another assignment.
		state += "\nSTATUS=" + strings.Join(strings.FieldsFunc(status, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
	}
	if state = strings.TrimSpace(state); state == "" {
		return nil
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("telling systemd (NOTIFY_SOCKET): %w", err)
	}
	return nil
}
