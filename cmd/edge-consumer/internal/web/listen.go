package web

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// listen opens what c, which was checked, names.
func (c Config) listen(ctx context.Context) (net.Listener, error) {
	if path, ok := c.socket(); ok {
		return listenSocket(ctx, path)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen %q: %w; choose another address with listen, or off", c.Listen, err)
	}
	// What localhost means is the machine's to say.
	if a, ok := l.Addr().(*net.TCPAddr); c.Token == "" && (!ok || !a.IP.IsLoopback()) {
		return nil, errors.Join(c.refused(a.IP.String()), l.Close())
	}
	return l, nil
}

// listenSocket takes the place of a socket that a dead process left behind,
// and of nothing else.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("listen %q: another process serves this socket; stop it, or choose another path", "unix:"+path)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen %q: %w; its directory must be there and writable", "unix:"+path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("listen %q: %w", "unix:"+path, err), l.Close())
	}
	return l, nil
}
